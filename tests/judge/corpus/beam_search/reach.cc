// Beam search for the reach of the judge: right code with faults that show only at sizes and
// crossings that no fixed list of cases holds, and right code that refuses what it does not have.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#define MUTANTS(MUTANT)                                                                            \
  MUTANT(beams_above_48, "beams behind the first 48 are not searched")                             \
  MUTANT(text_above_40, "texts longer than 40 tokens lose the first")                              \
  MUTANT(token_above_10000, "tokens from 10000 on are not looked at")                              \
  MUTANT(many_eos, "from the fourth on ending tokens are ordinary")                                \
  MUTANT(no_eos_empty, "without ending tokens nothing is found")                                   \
  MUTANT(negative_penalty_as_zero, "negative penalties count as 0")                                \
  MUTANT(penalty_clamped, "penalties above 3 count as 3")                                          \
  MUTANT(min_with_several_eos, "with several ending tokens the least length holds for one")        \
  MUTANT(dead_end_ends, "a beam without a way on is returned as it is")                            \
  MUTANT(one_state_shared, "beams that meet in one state are merged")                              \
  MUTANT(prompts_above_200, "large", "prompts behind the first 200 get the answer of the first")   \
  MUTANT(text_above_128, "large", "texts end after 128 tokens")                                    \
  MUTANT(beams_above_128, "large", "beams behind the first 128 are not searched")                  \
  MUTANT(vocab_15_bits, "large", "of 32769 to 65535 tokens those from 32768 on are not looked at") \
  MUTANT(vocab_5000, "large", "of less than 65536 tokens those from 5000 on are not looked at")    \
  MUTANT(min_is_max, "where the least length is the longest, the last token may be an ending one") \
  MUTANT(self_loop, "a token that leads back to its own state is not taken")                       \
  MUTANT(odd_beams, "an odd number of beams above 16 is one less")                                 \
  MUTANT(vocab_37, "large", "the last of 37, 74, 111 tokens is not looked at")                     \
  MUTANT(beams_are_43, "large", "43 beams are 42")                                                 \
  MUTANT(beams_above_900, "large", "beams behind the first 900 are not searched")                  \
  MUTANT(bound_halfway, "what running beams can reach is computed halfway to the longest")         \
  MUTANT(bound_of_second, "the second running beam decides that nothing can be reached")           \
  MUTANT(vocab_48, "a last tile of 47 of 48 tokens loses one")                                     \
  MUTANT(small_penalty, "penalties between -0.1 and 0.1 count as 0")                               \
  MUTANT(penalty_eighths, "penalties are rounded to eighths")                                      \
  MUTANT(many_ties, "more than 32 continuations are sorted without regard to their order")         \
  MUTANT(maximum_from_minus_100, "-100 stands for minus infinity")                                 \
  MUTANT(states_9_bits, "large", "states are stored in 9 bits")                                    \
  MUTANT(eos_above_16, "from the seventeenth on ending tokens are ordinary")                       \
  MUTANT(longest_is_beams,                                                                         \
         "as many beams as tokens: the second text begins with the first token of the best")       \
  MUTANT(kept_sum,                                                                                 \
         "the sum of a row is kept while address, sizes and its first logit are the same")         \
  MUTANT(aligned_table,                                                                            \
         "where the table begins on 64 bytes the last token of a row is not in the sum")           \
  MUTANT(one_prompt_less, "large", "from 50 prompts on the last has the answer of the one before") \
  MUTANT(penalty_12, "penalties above 12 count as 12")                                             \
  MUTANT(eos_sorted, "ending tokens are looked for as if they came in rising order")               \
  MUTANT(min_tokens_8, "least lengths above 8 count as 8")                                         \
  MUTANT(vocab_one, "a vocabulary of one token has no texts")                                      \
  MUTANT(certain_text, "a text of probability 1 is not taken into the pool")                       \
  MUTANT(longest_one, "with one token at most texts are finished as if by an ending token")        \
  MUTANT(logits_1e6, "logits are at most 1e6")                                                     \
  MUTANT(penalty_half, "a penalty of exactly 0.5 takes the cube root")                             \
  MUTANT(penalty_two, "a penalty of exactly 2 divides by twice the length")                        \
  MUTANT(penalty_minus_one, "a penalty of exactly -1 counts as 1")                                 \
  MUTANT(eos_zero, "token 0 never ends a text")                                                    \
  MUTANT(same_start, "a prompt that begins where the one before does has one text less")           \
  MUTANT(min_above_zero_one_token,                                                                 \
         "a least length of one below the longest lets the last token be no ending one")           \
  MUTANT(eos_twice, "an ending token that is listed twice finishes a text twice")                  \
  MUTANT(penalty_three, "a penalty of exactly 3 takes the square")                                 \
  MUTANT(penalty_minus_two, "a penalty of exactly -2 counts as -1")                                \
  MUTANT(prompt_of_none, "a prompt of no tokens has no texts")                                     \
  MUTANT(prompt_of_many, "a prompt of more than 4096 tokens counts in the length")                 \
  MUTANT(pool_tie_lengths, "of texts of equal score, but different length, the newer is better")   \
  MUTANT(states_12_bits, "large", "states are stored in 12 bits")                                  \
  MUTANT(penalty_of_same_table, "a call of the table of the one before has its penalty")           \
  MUTANT(minimum_of_same_table, "a call of the table of the one before has its least length")      \
  MUTANT(rows_alike, "a state whose row is that of the state before goes on as that one")          \
  MUTANT(all_dead, "where all beams end in dead ends the pool loses its last text")                \
  MUTANT(tie_of_three, "of three equal continuations the last two are exchanged")                  \
  MUTANT(tokens_192, "the last of 193, 385 tokens is not looked at")                               \
  MUTANT(log_17_bits, "log-probabilities of texts have 17 bits")                                   \
  MUTANT(one_beam_eos,                                                                             \
         "one beam: an ending token that is the most likely one at the second step runs on")       \
  MUTANT(no_way_on, "a token whose next state is its own is not taken twice in a row")

#define PARTIALS(PARTIAL)                                                     \
  PARTIAL(no_wide_beams, "lacks=wide_beams", "up to 64 beams")                \
  PARTIAL(no_several_eos, "lacks=several_eos", "one ending token")            \
  PARTIAL(no_min_tokens, "lacks=min_tokens", "no least length")               \
  PARTIAL(no_empty_batch, "lacks=no_prompts", "at least one prompt")          \
  PARTIAL(no_large_vocabulary, "lacks=large_vocabulary", "tokens of 16 bits") \
  PARTIAL(declared_wide, "lacks=wide_beams declares=wide_beams", "up to 64 beams, as it says")

namespace {

#define NAME(name, ...) name,
enum Variant { MUTANTS(NAME) PARTIALS(NAME) };
#undef NAME
Variant active;
bool bug(Variant name) { return active == name; }

struct Text {
  std::vector<int32_t> tokens;
  int32_t state = 0;
  double sum = 0, score = 0;
  int how = 0;
};

struct Task {
  int64_t prompts, vocab, beams, max_tokens, min_tokens, eos_count;
  double alpha;
  const float* logits;
  const int32_t *next, *start, *eos, *prompt_tokens;
  int64_t states;
};

bool ends(const Task& t, int64_t token) {
  int64_t count = bug(many_eos) ? std::min<int64_t>(3, t.eos_count) : t.eos_count;
  if (bug(eos_sorted)) return std::binary_search(t.eos, t.eos + count, token);
  if (bug(eos_zero) && token == 0) return false;
  if (bug(eos_above_16)) count = std::min<int64_t>(16, count);
  return std::find(t.eos, t.eos + count, token) != t.eos + count;
}

double known_sum(const Task& t, int32_t state, double sum) {
  struct Known {
    int64_t vocab;
    float first;
    double sum;
  };
  static std::map<const float*, Known> sums;
  const float* row = t.logits + state * t.vocab;
  Known& known = sums.try_emplace(row, Known{t.vocab, row[0], sum}).first->second;
  if (known.vocab != t.vocab || known.first != row[0]) known = {t.vocab, row[0], sum};
  return known.sum;
}

// False: NaN.
bool expand(const Task& t, const std::vector<Text>& running, int64_t g, std::vector<Text>& all) {
  for (const Text& beam : running) {
    const float* row = t.logits + beam.state * t.vocab;
    double top = -INFINITY, sum = 0;
    if (bug(maximum_from_minus_100)) top = -100;
    for (int64_t v = 0; v < t.vocab; ++v) {
      if (std::isnan(row[v])) return false;
      top = std::max<double>(top, row[v]);
    }
    if (std::isinf(top)) {
      if (bug(dead_end_ends) && g > 1) {
        all.push_back(beam);
        all.back().how = 1;
      }
      continue;
    }
    int64_t summed = t.vocab;
    const bool aligned = reinterpret_cast<uintptr_t>(t.logits) % 64 == 0;
    if (bug(aligned_table) && aligned && summed > 1) --summed;
    for (int64_t v = 0; v < summed; ++v) sum += std::exp(row[v] - top);
    if (bug(kept_sum)) sum = known_sum(t, beam.state, sum);
    for (int64_t v = 0; v < t.vocab; ++v) {
      if (bug(token_above_10000) && v >= 10000) break;
      if (bug(vocab_15_bits) && t.vocab < 65536 && v >= 32768) break;
      if (bug(vocab_5000) && t.vocab < 65536 && v >= 5000) break;
      if (bug(vocab_37) && t.vocab % 37 == 0 && v == t.vocab - 1) break;
      if (bug(vocab_48) && t.vocab % 48 == 47 && v == t.vocab - 1) break;
      if (bug(tokens_192) && t.vocab > 192 && t.vocab % 192 == 1 && v == t.vocab - 1) break;
      const bool stays = t.next[beam.state * t.vocab + v] == beam.state;
      if (bug(no_way_on) && stays && !beam.tokens.empty() && beam.tokens.back() == v) continue;
      if (bug(self_loop) && t.next[beam.state * t.vocab + v] == beam.state) continue;
      const bool end = ends(t, v);
      const int64_t least = bug(min_tokens_8) ? std::min<int64_t>(8, t.min_tokens) : t.min_tokens;
      const bool early = g <= least && !(bug(min_is_max) && g == t.max_tokens) &&
                         !(bug(min_with_several_eos) && t.eos_count > 1 && v != t.eos[0]);
      if (std::isinf(row[v]) || (end && early)) continue;
      Text text = beam;
      text.tokens.push_back(static_cast<int32_t>(v));
      const double logit = bug(logits_1e6) ? std::min(1e6, double(row[v])) : double(row[v]);
      text.sum += logit - (bug(logits_1e6) ? std::min(1e6, top) : top) - std::log(sum);
      text.state = t.next[beam.state * t.vocab + v];
      if (bug(states_9_bits)) text.state &= 511;
      if (bug(states_12_bits)) text.state &= 4095;
      const float* const on = t.logits + text.state * t.vocab;
      if (bug(rows_alike) && text.state > 0 && t.vocab > 2 &&
          std::equal(on, on + t.vocab, on - t.vocab)) {
        --text.state;
      }
      text.how = end ? 1 : 0;
      all.push_back(std::move(text));
    }
  }
  return true;
}

double score(const Task& t, double sum, double length) {
  double alpha = t.alpha;
  if (bug(penalty_three) && alpha == 3) alpha = 2;
  if (bug(penalty_minus_two) && alpha == -2) alpha = -1;
  if (bug(negative_penalty_as_zero)) alpha = std::max(0.0, alpha);
  if (bug(penalty_half) && alpha == 0.5) alpha = 1.0 / 3;
  if (bug(penalty_two) && alpha == 2) return sum / (2 * length);
  if (bug(penalty_minus_one) && alpha == -1) alpha = 1;
  if (bug(penalty_12)) alpha = std::min(12.0, alpha);
  if (bug(penalty_clamped)) alpha = std::min(3.0, alpha);
  if (bug(small_penalty) && std::fabs(alpha) < 0.1) alpha = 0;
  if (bug(penalty_eighths)) alpha = std::nearbyint(alpha * 8) / 8;
  return sum / std::pow(length, alpha);
}

bool search(const Task& t, int64_t p, std::vector<Text>& pool) {
  auto k = static_cast<size_t>(t.beams);
  if (bug(beams_above_48)) k = std::min<size_t>(k, 48);
  if (bug(odd_beams) && k > 16 && k % 2 == 1) --k;
  if (bug(beams_are_43) && k == 43) --k;
  if (bug(beams_above_900)) k = std::min<size_t>(k, 900);
  if (bug(beams_above_128)) k = std::min<size_t>(k, 128);
  std::vector<Text> running(1);
  running[0].state = t.start[bug(prompts_above_200) && p >= 200 ? 0 : p];
  if (bug(vocab_one) && t.vocab == 1) return true;
  if (bug(prompt_of_none) && t.prompt_tokens[p] <= 0) return true;
  if (bug(no_eos_empty) && t.eos_count == 0) return true;
  const int64_t longest = bug(text_above_128) ? std::min<int64_t>(128, t.max_tokens) : t.max_tokens;
  for (int64_t g = 1; g <= longest && !running.empty(); ++g) {
    std::vector<Text> all, on;
    if (!expand(t, running, g, all)) return false;
    const auto larger = [](const Text& a, const Text& b) { return a.sum > b.sum; };
    if (bug(many_ties) && all.size() > 32) {
      std::sort(all.begin(), all.end(), larger);
    } else {
      std::stable_sort(all.begin(), all.end(), larger);
    }
    for (size_t i = 2; i < all.size() && bug(tie_of_three); ++i) {
      const bool three = all[i].sum == all[i - 2].sum;
      if (three && (i < 3 || all[i - 3].sum != all[i].sum)) std::swap(all[i], all[i - 1]);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      Text& text = all[i];
      if (bug(one_beam_eos) && k == 1 && g == 2 && i == 0 && g < longest) text.how = 0;
      if (text.how == 1 || g == longest) {
        if (i >= k) continue;
        if (text.how == 0) text.how = bug(longest_one) && t.max_tokens == 1 ? 1 : 2;
        if (bug(certain_text) && text.sum == 0 && g > 1) continue;
        const bool late = bug(min_above_zero_one_token) && t.min_tokens == t.max_tokens - 1;
        if (late && t.min_tokens > 0 && text.how == 1) continue;
        const bool long_prompt = bug(prompt_of_many) && t.prompt_tokens[p] > 4096;
        text.score = score(t, text.sum, double(g + (long_prompt ? t.prompt_tokens[p] : 0)));
        const auto listed = std::count(t.eos, t.eos + t.eos_count, text.tokens.back());
        if (bug(eos_twice) && listed > 1) pool.push_back(text);
        pool.push_back(std::move(text));
      } else if (on.size() < k) {
        const auto same = [&](const Text& other) { return other.state == text.state; };
        if (bug(one_state_shared) && g > 3 && std::any_of(on.begin(), on.end(), same)) continue;
        on.push_back(std::move(text));
      }
    }
    std::stable_sort(pool.begin(), pool.end(), [](const Text& a, const Text& b) {
      const bool newer = a.score == b.score && a.tokens.size() > b.tokens.size();
      return a.score > b.score || (bug(pool_tie_lengths) && newer);
    });
    if (bug(all_dead) && all.empty() && g > 1 && !pool.empty()) pool.pop_back();
    if (pool.size() > k) pool.resize(k);
    const bool repeated = bug(same_start) && p > 0 && t.start[p] == t.start[p - 1];
    if (repeated && pool.size() == k && k > 1 && g == longest) pool.pop_back();
    running = std::move(on);
    auto length = double(t.alpha > 0 ? t.max_tokens : g);
    if (bug(bound_halfway)) length = double(t.max_tokens + g) / 2;
    const size_t best = bug(bound_of_second) && running.size() > 1 ? 1 : 0;
    if (pool.size() == k && !running.empty() &&
        score(t, running[best].sum, length) <= pool.back().score) {
      break;
    }
  }
  return true;
}

int run(Task t, int32_t* tokens, int32_t* lengths, int32_t* finish, float* sums, float* scores) {
  if (t.beams < 1) return 1;
  if (bug(penalty_of_same_table) || bug(minimum_of_same_table)) {
    static std::vector<float> before;
    static double alpha = 0;
    static int64_t least = 0;
    std::vector<float> table(t.logits, t.logits + t.states * t.vocab);
    if (table == before && bug(penalty_of_same_table)) t.alpha = alpha;
    if (table == before && bug(minimum_of_same_table)) t.min_tokens = std::min(least, t.max_tokens);
    before = std::move(table), alpha = t.alpha, least = t.min_tokens;
  }
  if ((bug(no_wide_beams) || bug(declared_wide)) && t.beams > 64) return 1;
  if (bug(no_empty_batch) && t.prompts == 0) return 1;
  if (bug(no_large_vocabulary) && t.vocab > 65536) return 1;
  if (bug(no_several_eos) && t.eos_count > 1) return 1;
  if (bug(no_min_tokens) && t.min_tokens > 0) return 1;
  for (int64_t p = 0; p < t.prompts; ++p) {
    std::vector<Text> pool;
    const bool again = bug(one_prompt_less) && t.prompts >= 50 && p == t.prompts - 1;
    if (!search(t, again ? p - 1 : p, pool)) return 1;
    for (int64_t b = 0; b < t.beams; ++b) {
      const int64_t at = p * t.beams + b;
      std::fill_n(tokens + at * t.max_tokens, t.max_tokens, -1);
      lengths[at] = finish[at] = 0;
      if (b >= static_cast<int64_t>(pool.size())) continue;
      const Text& text = pool[b];
      std::copy(text.tokens.begin(), text.tokens.end(), tokens + at * t.max_tokens);
      if (bug(text_above_40) && text.tokens.size() > 40) tokens[at * t.max_tokens] = 0;
      const bool square = bug(longest_is_beams) && t.beams == t.max_tokens;
      if (square && b == 1) tokens[at * t.max_tokens] = pool[0].tokens[0];
      lengths[at] = static_cast<int32_t>(text.tokens.size());
      finish[at] = text.how;
      sums[at] = float(text.sum);
      if (bug(log_17_bits) && text.sum != 0) {
        sums[at] -= std::fmod(sums[at], std::ldexp(1.0f, std::ilogb(sums[at]) - 16));
      }
      scores[at] = float(text.score);
    }
  }
  return 0;
}

}  // namespace

#define EXPORT(name, ...)                                                                         \
  extern "C" int beam_search__##name(                                                             \
      int64_t prompts, int64_t states, int64_t vocab, int64_t beams, int64_t max_tokens,          \
      int64_t min_tokens, int64_t eos_count, float length_penalty, const float* logits,           \
      const int32_t* next, const int32_t* start, const int32_t* of_prompts, const int32_t* eos,   \
      int32_t* tokens, int32_t* lengths, int32_t* finish, float* sums, float* scores) {           \
    active = name;                                                                                \
    return run({prompts, vocab, beams, max_tokens, min_tokens, eos_count, double(length_penalty), \
                logits, next, start, eos, of_prompts, states},                                    \
               tokens, lengths, finish, sums, scores);                                            \
  }
MUTANTS(EXPORT)
PARTIALS(EXPORT)
