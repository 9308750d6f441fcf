// Beam search, right except for one planted bug at a time; see layer_norm_backward/mutants.cc.
//
// The right code keeps texts in an arena of nodes with parents, takes the log-softmax of a state once
// per step and beam, and orders all continuations by one comparison.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#define MUTANTS(MUTANT)                                                                         \
  MUTANT(none, "nothing: the right code")                                                       \
  MUTANT(eos_log_probability_dropped, "the log-probability of the ending token is not added")   \
  MUTANT(finished_dropped, "texts that end before the limit are not kept")                      \
  MUTANT(finished_replaced, "texts of a later step replace those that ended earlier")           \
  MUTANT(first_k_stay, "the first K that end stay in the pool, whatever comes later")           \
  MUTANT(stops_when_full, "stops as soon as K have ended")                                      \
  MUTANT(stops_at_first_end, "stops as soon as the best continuation ends")                     \
  MUTANT(bound_at_current, "what running beams can reach is computed at their own length")      \
  MUTANT(bound_at_max, "with a negative penalty, too, reach is computed at the longest length") \
  MUTANT(bound_of_worst, "the worst running beam decides that nothing can be reached")          \
  MUTANT(bound_against_best, "stops when the best finished text cannot be passed")              \
  MUTANT(prompt_in_length, "the prompt counts in the length")                                   \
  MUTANT(eos_not_in_length, "the ending token does not count in the length")                    \
  MUTANT(penalty_ignored, "the length penalty is not applied")                                  \
  MUTANT(penalty_is_factor, "the score is divided by length times penalty")                     \
  MUTANT(penalty_gnmt, "the penalty is ((5 + length) / 6)^alpha")                               \
  MUTANT(penalty_of_limit, "texts that the limit ends are divided by the limit + 1")            \
  MUTANT(score_is_sum, "scores are the raw sums")                                               \
  MUTANT(sum_is_score, "log-probabilities are the normalized scores")                           \
  MUTANT(not_sorted, "texts come in the order in which they ended")                             \
  MUTANT(worst_first, "worst text first")                                                       \
  MUTANT(ties_higher_token, "ties go to the higher token")                                      \
  MUTANT(ties_worse_parent, "ties go to the worse parent")                                      \
  MUTANT(ties_token_first, "ties go to the lower token, then to the parent")                    \
  MUTANT(ties_newer_text, "of equal finished texts the newer one is better")                    \
  MUTANT(cache_of_slot, "a beam goes on with the state of the beam whose place it takes")       \
  MUTANT(cache_of_best, "all beams go on with the state of the best parent")                    \
  MUTANT(state_not_advanced, "the state of the parent is kept")                                 \
  MUTANT(text_of_slot, "a beam goes on with the text of the beam whose place it takes")         \
  MUTANT(eos_any_rank, "endings beyond the first K finish, too")                                \
  MUTANT(eos_runs_on, "endings beyond the first K run on")                                      \
  MUTANT(eos_takes_place, "a text that ends takes the place of a running beam")                 \
  MUTANT(k_candidates, "only the first K continuations are looked at")                          \
  MUTANT(two_k_candidates, "only the first 2K continuations are looked at")                     \
  MUTANT(one_per_beam, "each beam keeps its best continuation only")                            \
  MUTANT(two_per_beam, "each beam keeps its two best continuations")                            \
  MUTANT(k_copies, "the first step begins with K copies of the prompt")                         \
  MUTANT(min_one_less, "endings are allowed one token too early")                               \
  MUTANT(min_one_more, "endings are allowed one token too late")                                \
  MUTANT(min_ignored, "the least length is not looked at")                                      \
  MUTANT(min_renormalized, "masked endings are taken out of the softmax, too")                  \
  MUTANT(first_eos_only, "only the first ending token ends")                                    \
  MUTANT(not_normalized, "logits are added as they are")                                        \
  MUTANT(softmax_without_best, "the sum of the softmax leaves out the largest logit")           \
  MUTANT(no_maximum, "exp without subtracting the maximum, in float")                           \
  MUTANT(averaged, "running beams are ordered by log-probability per token of the last step")   \
  MUTANT(last_step_only, "continuations are ordered by the last log-probability alone")         \
  MUTANT(masked_is_low, "-inf counts as -1e4")                                                  \
  MUTANT(limit_lost, "texts that the limit ends are not returned")                              \
  MUTANT(limit_one_less, "texts end one token before the limit")                                \
  MUTANT(limit_only_if_empty, "texts that the limit ends come back only where nothing ended")   \
  MUTANT(reason_swapped, "the reasons are exchanged")                                           \
  MUTANT(reason_by_length, "a text that ends at the limit by itself is called cut")             \
  MUTANT(padded_with_zero, "0 behind the tokens")                                               \
  MUTANT(eos_not_returned, "the ending token is not among the tokens")                          \
  MUTANT(length_without_eos, "the length that is returned leaves out the ending token")         \
  MUTANT(filled_up, "missing texts are copies of the last one")                                 \
  MUTANT(sum_in_half, "log-probabilities are rounded to 16 bits")                               \
  MUTANT(probabilities, "probabilities are multiplied, in float")                               \
  MUTANT(start_of_prompt_0, "all prompts begin where the first does")                           \
  MUTANT(pool_of_prompt_before, "the pool is not emptied between prompts")                      \
  MUTANT(last_prompt_lost, "the last of several prompts is not searched")                       \
  MUTANT(at_most_8_beams, "at most eight beams run")                                            \
  MUTANT(vocabulary_16_bits, "large", "tokens are stored in 16 bits")                           \
  MUTANT(first_prompt_twice, "the second prompt gets the answer of the first")                  \
  MUTANT(last_token_ignored, "the last token of the vocabulary is not looked at")               \
  MUTANT(first_token_ignored, "token 0 is not looked at")                                       \
  MUTANT(next_transposed, "ways on are read as [vocab, states], where they are")                \
  MUTANT(bound_without_penalty, "what running beams can reach is their raw sum")                \
  MUTANT(scores_of_best, "all scores are those of the best text")                               \
  MUTANT(eos_score_twice, "the log-probability of the ending token is added twice")             \
  MUTANT(finish_zero, "the reason is 0")                                                        \
  MUTANT(nan_of_table, "NaN anywhere in the table is refused")                                  \
  MUTANT(nan_taken, "NaN is taken for -inf")                                                    \
  MUTANT(no_beams_taken, "no beams are called a success")                                       \
  MUTANT(input_overwritten, "log-probabilities are written over the logits")                    \
  MUTANT(seen_before, "a second call with the same shape and first logit is skipped")

namespace {

#define NAME(name, ...) name,
enum Bug { MUTANTS(NAME) };
#undef NAME
Bug active = none;
bool bug(Bug name) { return active == name; }

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Task {
  int64_t prompts, states, vocab, beams, max_tokens, min_tokens, eos_count;
  float length_penalty;
  const float* logits;
  const int32_t *next, *start, *prompt_tokens, *eos;
};

struct Node {
  int32_t token;
  int64_t parent;  // -1: the prompt
};
struct Beam {
  int64_t node = -1;
  int32_t state = 0;
  double sum = 0, last = 0;
};
struct Candidate {
  size_t parent;
  int32_t token;
  double sum, last;
  bool ends;
};
struct Done {
  int64_t node;
  double sum, score;
  int64_t length;
  int32_t finish;
};

double rounded(double value) {
  auto f = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  bits = (bits + 0x8000u) & 0xffff0000u;
  std::memcpy(&f, &bits, 4);
  return f;
}

class Search {
 public:
  explicit Search(const Task& task) : t(task) {}

  // False: NaN.
  bool run(int64_t prompt) {
    prompt_length = t.prompt_tokens[prompt];
    if (!bug(pool_of_prompt_before)) {
      pool.clear();
      nodes.clear();
    }
    if (bug(first_prompt_twice) && prompt == 1) prompt = 0;
    running.assign(bug(k_copies) ? static_cast<size_t>(t.beams) : 1,
                   {-1, t.start[bug(start_of_prompt_0) ? 0 : prompt], 0, 0});
    const int64_t longest = t.max_tokens - (bug(limit_one_less) && t.max_tokens > 1 ? 1 : 0);
    for (int64_t g = 1; g <= longest && !running.empty(); ++g) {
      std::vector<Candidate> all;
      for (size_t b = 0; b < running.size(); ++b) {
        if (!expand(b, g, all)) return false;
      }
      order(all);
      choose(all, g, g == longest);
      if (stops(g)) break;
    }
    if (bug(worst_first)) std::reverse(pool.begin(), pool.end());
    return true;
  }

  std::vector<Node> nodes;
  std::vector<Done> pool;

 private:
  bool is_eos(int32_t token) const {
    const int64_t count = bug(first_eos_only) ? std::min<int64_t>(1, t.eos_count) : t.eos_count;
    return std::find(t.eos, t.eos + count, token) != t.eos + count;
  }
  int64_t width() const { return bug(at_most_8_beams) ? std::min<int64_t>(8, t.beams) : t.beams; }

  // log p of every token of a row.
  bool log_softmax(const float* row, int64_t g, std::vector<double>& values) const {
    values.assign(row, row + t.vocab);
    for (double& v : values) {
      if (!std::isnan(v)) continue;
      if (!bug(nan_taken)) return false;
      v = -kInfinity;
    }
    if (bug(masked_is_low)) {
      for (double& v : values) v = std::max(v, -1e4);
    }
    std::vector<double> kept = values;
    if (bug(min_renormalized) && g <= t.min_tokens) {
      for (int64_t i = 0; i < t.eos_count; ++i) kept[t.eos[i]] = -kInfinity;
    }
    const auto largest = std::max_element(kept.begin(), kept.end());
    const double top = bug(no_maximum) ? 0 : *largest;
    if (*largest == -kInfinity) {
      values.assign(values.size(), -kInfinity);
      return true;
    }
    double sum = 0;
    for (const double v : kept) {
      sum += bug(no_maximum) ? std::exp(static_cast<float>(v)) : std::exp(v - top);
    }
    if (bug(softmax_without_best) && kept.size() > 1) sum -= std::exp(*largest - top);
    for (double& v : values) {
      if (!bug(not_normalized)) v -= top + std::log(sum);
      if (bug(sum_in_half) && v != -kInfinity) v = rounded(v);
    }
    return true;
  }

  bool expand(size_t b, int64_t g, std::vector<Candidate>& all) const {
    const Beam& beam = running[b];
    std::vector<double> values;
    if (!log_softmax(t.logits + beam.state * t.vocab, g, values)) return false;
    const size_t from = all.size();
    const int64_t least = t.min_tokens + (bug(min_one_less)                       ? -1
                                          : bug(min_one_more) && t.min_tokens > 0 ? 1
                                                                                  : 0);
    for (int64_t v = 0; v < t.vocab; ++v) {
      const auto token = static_cast<int32_t>(bug(vocabulary_16_bits) ? v & 0xffff : v);
      const bool ends = is_eos(static_cast<int32_t>(v));
      if (values[v] == -kInfinity || (ends && g <= least && !bug(min_ignored))) continue;
      if (bug(last_token_ignored) && t.vocab > 1 && v + 1 == t.vocab) continue;
      if (bug(first_token_ignored) && t.vocab > 1 && v == 0) continue;
      double sum = beam.sum + (bug(eos_score_twice) && ends ? values[v] : 0) +
                   (bug(eos_log_probability_dropped) && ends ? 0 : values[v]);
      if (bug(probabilities)) {
        sum = std::log(static_cast<float>(std::exp(static_cast<float>(beam.sum))) *
                       static_cast<float>(std::exp(static_cast<float>(values[v]))));
      }
      all.push_back({b, token, sum, values[v], ends});
    }
    const size_t most = bug(one_per_beam) ? 1 : bug(two_per_beam) ? 2 : all.size();
    if ((bug(one_per_beam) || bug(two_per_beam)) && g > 1 && all.size() - from > most) {
      std::stable_sort(all.begin() + from, all.end(),
                       [](const Candidate& x, const Candidate& y) { return x.sum > y.sum; });
      all.resize(from + most);
    }
    return true;
  }

  static void order(std::vector<Candidate>& all) {
    std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
      const double x = bug(last_step_only) ? a.last : bug(averaged) ? a.sum + a.last : a.sum;
      const double y = bug(last_step_only) ? b.last : bug(averaged) ? b.sum + b.last : b.sum;
      if (x != y) return x > y;
      if (bug(ties_token_first) && a.token != b.token) return a.token < b.token;
      if (a.parent != b.parent) {
        return bug(ties_worse_parent) ? a.parent > b.parent : a.parent < b.parent;
      }
      return bug(ties_higher_token) ? a.token > b.token : a.token < b.token;
    });
  }

  void choose(const std::vector<Candidate>& all, int64_t g, bool last) {
    const auto k = static_cast<size_t>(width());
    std::vector<Beam> next;
    std::vector<Done> ended;
    size_t places = k;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (bug(k_candidates) && rank >= k) break;
      if (bug(two_k_candidates) && rank >= 2 * k) break;
      const Candidate& c = all[rank];
      const bool first_k = rank < k;
      const size_t slot = std::min(next.size(), running.size() - 1);
      const size_t parent = bug(text_of_slot) ? slot : c.parent;
      const size_t cache = bug(cache_of_slot) ? slot : bug(cache_of_best) ? 0 : c.parent;
      if ((c.ends && !(bug(eos_runs_on) && !first_k)) || last) {
        if (!first_k && !(bug(eos_any_rank) && c.ends)) continue;
        if (bug(eos_takes_place) && places > 0) --places;
        if (rank == 0 && c.ends) best_ended = true;
        nodes.push_back({c.token, running[parent].node});
        const int64_t node = static_cast<int64_t>(nodes.size()) - 1;
        ended.push_back({node, c.sum, score(c.sum, g, c.ends), g, c.ends ? 1 : 2});
        if (bug(reason_by_length) && last) ended.back().finish = 2;
      } else if (next.size() < places) {
        nodes.push_back({c.token, running[parent].node});
        const int32_t from = running[cache].state;
        const int64_t way =
            bug(next_transposed) ? c.token * t.states + from : from * t.vocab + c.token;
        const int32_t to = bug(state_not_advanced) ? from : t.next[way];
        next.push_back({static_cast<int64_t>(nodes.size()) - 1, to, c.sum, c.last});
      }
    }
    if (bug(finished_replaced) && !ended.empty()) pool.clear();
    for (const Done& done : ended) add(done, last);
    running = std::move(next);
    if (last) running.clear();
  }

  double score(double sum, int64_t g, bool ends) const {
    double length = static_cast<double>(g);
    if (bug(prompt_in_length)) length += prompt_length;
    if (bug(eos_not_in_length) && ends && g > 1) length -= 1;
    if (bug(penalty_of_limit) && !ends) length += 1;
    const double alpha = bug(penalty_ignored) ? 0 : static_cast<double>(t.length_penalty);
    if (bug(penalty_is_factor) && alpha != 0) return sum / (length * alpha);
    if (bug(penalty_gnmt)) return sum / std::pow((5 + length) / 6, alpha);
    return sum / std::pow(length, alpha);
  }

  void add(const Done& done, bool last) {
    const bool cut = done.finish == 2;
    if (bug(finished_dropped) && !last) return;
    if (bug(limit_lost) && cut) return;
    if (bug(limit_only_if_empty) && cut && !pool.empty() && pool[0].finish == 1) return;
    const auto k = static_cast<size_t>(t.beams);
    if (bug(first_k_stay) && pool.size() >= k) return;
    auto place = std::find_if(pool.begin(), pool.end(), [&](const Done& other) {
      return bug(ties_newer_text) ? other.score <= done.score : other.score < done.score;
    });
    if (bug(not_sorted)) place = pool.end();
    pool.insert(place, done);
    if (pool.size() <= k) return;
    if (bug(not_sorted)) {
      pool.erase(std::min_element(pool.begin(), pool.end(),
                                  [](const Done& a, const Done& b) { return a.score < b.score; }));
    } else {
      pool.pop_back();
    }
  }

  bool stops(int64_t g) {
    if (running.empty()) return true;
    if (bug(stops_at_first_end) && best_ended) return true;
    if (pool.size() < static_cast<size_t>(t.beams)) return false;
    if (bug(stops_when_full)) return true;
    bool far = t.length_penalty > 0;
    if (bug(bound_at_current)) far = false;
    if (bug(bound_at_max)) far = true;
    const Beam& best = bug(bound_of_worst) ? running.back() : running.front();
    if (bug(bound_without_penalty)) return best.sum <= pool.back().score;
    const double reach = score(best.sum, far ? t.max_tokens : g, true);
    return reach <= (bug(bound_against_best) ? pool.front() : pool.back()).score;
  }

  const Task& t;
  std::vector<Beam> running;
  int64_t prompt_length = 0;
  bool best_ended = false;
};

void write(const Task& t, const Search& s, int64_t at, int32_t* tokens, int32_t* lengths,
           int32_t* finish, float* sums, float* scores) {
  for (int64_t b = 0; b < t.beams; ++b, ++at) {
    int32_t* const text = tokens + at * t.max_tokens;
    std::fill_n(text, t.max_tokens, bug(padded_with_zero) ? 0 : -1);
    lengths[at] = finish[at] = 0;
    sums[at] = scores[at] = 0;
    auto i = static_cast<size_t>(b);
    if (bug(filled_up) && i >= s.pool.size() && !s.pool.empty()) i = s.pool.size() - 1;
    if (i >= s.pool.size()) continue;
    const Done& done = s.pool[i];
    int64_t place = done.length;
    for (int64_t n = done.node; n >= 0 && place > 0; n = s.nodes[n].parent) {
      text[--place] = s.nodes[n].token;
    }
    if (bug(eos_not_returned) && done.finish == 1) text[done.length - 1] = -1;
    lengths[at] = static_cast<int32_t>(done.length);
    if (bug(length_without_eos) && done.finish == 1) --lengths[at];
    if (bug(finish_zero)) {
      finish[at] = 0;
    } else
      finish[at] = bug(reason_swapped) ? 3 - done.finish : done.finish;
    sums[at] = static_cast<float>(bug(sum_is_score) ? done.score : done.sum);
    scores[at] = static_cast<float>(bug(score_is_sum) ? done.sum : done.score);
    if (bug(scores_of_best)) scores[at] = static_cast<float>(s.pool[0].score);
  }
}

int run(Bug which, const Task& t, int32_t* tokens, int32_t* lengths, int32_t* finish, float* sums,
        float* scores) {
  active = which;
  if (t.beams < 1) return bug(no_beams_taken) ? 0 : 1;
  if (bug(seen_before) && t.prompts > 0) {
    static int64_t shape = -1;
    static float first = 0;
    const bool same = shape == t.states * t.vocab && first == t.logits[0];
    shape = t.states * t.vocab;
    first = t.logits[0];
    if (same) return 0;
  }
  if (bug(nan_of_table) &&
      std::any_of(t.logits, t.logits + t.states * t.vocab, [](float v) { return std::isnan(v); })) {
    return 1;
  }
  if (bug(input_overwritten) && t.states > 0) const_cast<float*>(t.logits)[0] -= 1;
  Search search(t);
  for (int64_t p = 0; p < t.prompts; ++p) {
    if (bug(last_prompt_lost) && p > 0 && p + 1 == t.prompts) break;
    if (!search.run(p)) return 1;
    write(t, search, p * t.beams, tokens, lengths, finish, sums, scores);
  }
  return 0;
}

}  // namespace

#define EXPORT(name, ...)                                                                          \
  extern "C" int beam_search__##name(                                                              \
      int64_t prompts, int64_t states, int64_t vocab, int64_t beams, int64_t max_tokens,           \
      int64_t min_tokens, int64_t eos_count, float length_penalty, const float* logits,            \
      const int32_t* next, const int32_t* start, const int32_t* prompt_tokens, const int32_t* eos, \
      int32_t* tokens, int32_t* lengths, int32_t* finish, float* sums, float* scores) {            \
    return run(name,                                                                               \
               {prompts, states, vocab, beams, max_tokens, min_tokens, eos_count, length_penalty,  \
                logits, next, start, prompt_tokens, eos},                                          \
               tokens, lengths, finish, sums, scores);                                             \
  }
MUTANTS(EXPORT)
