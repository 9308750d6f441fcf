// Beam search as kernels are written: rows read in parts, candidates of a step as numbers of parent and
// token, texts as a chain of nodes. Faults in counters of few bits, where two sizes meet, at logits far
// below the others, and in where NaN stands.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#define MUTANTS(MUTANT)                                                                          \
  MUTANT(masked_1e4, "logits below -1e4 are masked")                                             \
  MUTANT(masked_1e9, "logits below -1e9 are masked")                                             \
  MUTANT(masked_1e30, "logits below -1e30 are masked")                                           \
  MUTANT(log_of_float, "a probability that is 0 as a float does not exist")                      \
  MUTANT(least_logarithm, "log-probabilities of a token are -64 at least")                       \
  MUTANT(maximum_1e4, "the maximum of a row begins at -1e4")                                     \
  MUTANT(maximum_1e9, "the maximum of a row begins at -1e9")                                     \
  MUTANT(maximum_1e38, "the maximum of a row begins at -1e38")                                   \
  MUTANT(text_8_bits, "lengths of texts have 8 bits")                                            \
  MUTANT(many_parents_ties, "large", "ties of more than 64 parents go to the lower token")       \
  MUTANT(long_ties, "large", "beyond 4096 tokens ties go to the higher token")                   \
  MUTANT(longest_ties, "large", "beyond 65536 tokens ties go to the higher token")               \
  MUTANT(part_last, "large", "beyond 65536 tokens the last of 16 parts is no candidate")         \
  MUTANT(part_first, "large", "beyond 65536 tokens the first of 16 parts is no candidate")       \
  MUTANT(parents_8_bits, "large", "parents of a step have 8 bits")                               \
  MUTANT(states_16_bits, "large", "states have 16 bits")                                         \
  MUTANT(tiles_7168, "large", "a last tile of one behind tiles of 7168 tokens is not read")      \
  MUTANT(tiles_640, "large", "a last tile of one behind tiles of 640 tokens is not read")        \
  MUTANT(outputs_16_bits, "large", "places of tokens are counted in 16 bits")                    \
  MUTANT(prompts_13, "large", "of 13, 26, 39 prompts the last begins like the one before")       \
  MUTANT(prompts_29, "large", "of 29, 58 prompts the last begins like the one before")           \
  MUTANT(prompts_are_53, "large", "of 53 prompts the last begins like the one before")           \
  MUTANT(longest_23, "large", "texts of at most 23, 46 tokens are of one less")                  \
  MUTANT(longest_are_61, "large", "texts of at most 61 tokens are of one less")                  \
  MUTANT(eos_11, "large", "of 11, 22, 33 ending tokens the last is ordinary")                    \
  MUTANT(eos_are_19, "large", "of 19 ending tokens the last is ordinary")                        \
  MUTANT(min_7, "large", "least lengths of 7, 14, 21 are one less")                              \
  MUTANT(min_are_47, "large", "a least length of 47 is one less")                                \
  MUTANT(nan_last_column, "NaN is looked for in the last column only")                           \
  MUTANT(nan_first_step, "NaN is looked for in the first step only")                             \
  MUTANT(nan_first_prompt, "NaN is looked for by the first prompt only")                         \
  MUTANT(quiet_nan_only, "signaling NaN is not seen")                                            \
  MUTANT(only_endings, "where there is nothing but endings the least length does not hold")      \
  MUTANT(one_of_one, "a least length of one of one token at most does not hold")                 \
  MUTANT(long_eos, "large", "ending tokens from 4096 on are ordinary")                           \
  MUTANT(longest_eos, "large", "ending tokens from 65536 on are ordinary")                       \
  MUTANT(long_min, "large", "beyond 4096 tokens the least length does not hold")                 \
  MUTANT(penalty_whole, "penalties that are whole numbers above 8 count as 8")                   \
  MUTANT(penalty_6, "a penalty of exactly 6 is the square of the square")                        \
  MUTANT(long_dead_end, "large", "beyond 4096 tokens a row of -inf only is one of zeros")        \
  MUTANT(beams_64_end, "large", "of more than 64 beams those behind do not end before the last") \
  MUTANT(beams_64_eos, "large", "of more than 64 beams those that end leave no place free")

namespace {

#define NAME(name, ...) name,
enum Bug { MUTANTS(NAME) };
#undef NAME
Bug active;
bool bug(Bug name) { return active == name; }

struct Task {
  int64_t prompts, states, vocab, beams, longest, least, endings;
  double penalty;
  const float* logits;
  const int32_t *next, *start, *eos;
};
struct Node {
  int32_t token, parent;
};
struct Beam {
  int32_t node = -1, state = 0;
  double sum = 0;
};
struct Candidate {
  int32_t parent, token;
  double sum;
};
struct Text {
  int32_t node;
  int64_t length;
  double sum, score;
  int how;
};

bool ends(const Task& t, int32_t token) {
  int64_t count = t.endings;
  if (bug(eos_11) && count % 11 == 0) --count;
  if (bug(eos_are_19) && count == 19) --count;
  if (bug(long_eos) && token >= 4096) return false;
  if (bug(longest_eos) && token >= 65536) return false;
  return std::find(t.eos, t.eos + count, token) != t.eos + std::max<int64_t>(0, count);
}

bool is_nan(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  return bug(quiet_nan_only) ? (bits & 0x7fc00000U) == 0x7fc00000U : std::isnan(v);
}

double logit_of(const float* row, int64_t v) {
  const double value = std::isnan(row[v]) ? -INFINITY : row[v];
  if (bug(masked_1e4) && value < -1e4) return -INFINITY;
  if (bug(masked_1e9) && value < -1e9) return -INFINITY;
  if (bug(masked_1e30) && value < -1e30) return -INFINITY;
  return value;
}

double first_maximum() {
  if (bug(maximum_1e4)) return -1e4;
  if (bug(maximum_1e9)) return -1e9;
  if (bug(maximum_1e38)) return -1e38;
  return -INFINITY;
}

bool left_out(const Task& t, int64_t v) {
  const int64_t part = (t.vocab + 15) / 16;
  if (bug(part_last) && t.vocab > 65536 && v % part == part - 1) return true;
  if (bug(part_first) && t.vocab > 65536 && v > 0 && v % part == 0) return true;
  return false;
}

// The continuations of a beam. False: NaN.
bool expand(const Task& t, int64_t p, int64_t g, int32_t parent, const Beam& beam,
            std::vector<Candidate>& all) {
  const float* row = t.logits + beam.state * t.vocab;
  int64_t count = t.vocab;
  if (bug(tiles_7168) && count > 7168 && count % 7168 == 1) --count;
  if (bug(tiles_640) && count > 640 && count % 640 == 1) --count;
  const bool looks = !(bug(nan_first_step) && g > 1) && !(bug(nan_first_prompt) && p > 0);
  for (int64_t v = 0; v < t.vocab && looks; ++v) {
    if (is_nan(row[v]) && !(bug(nan_last_column) && v < t.vocab - 1)) return false;
  }
  double top = first_maximum(), sum = 0;
  for (int64_t v = 0; v < count; ++v) top = std::max(top, logit_of(row, v));
  std::vector<float> zeros;
  if (bug(long_dead_end) && std::isinf(top) && t.vocab > 4096) {
    zeros.resize(static_cast<size_t>(t.vocab));
    row = zeros.data(), top = 0;
  }
  if (std::isinf(top)) return true;
  int64_t others = 0;
  for (int64_t v = 0; v < count; ++v) {
    sum += std::exp(logit_of(row, v) - top);
    if (bug(only_endings)) others += ends(t, int32_t(v)) ? 0 : 1;
  }
  int64_t least = t.least;
  if (bug(min_7) && least % 7 == 0) --least;
  if (bug(min_are_47) && least == 47) --least;
  if (bug(one_of_one) && t.longest == 1) least = 0;
  if (bug(only_endings) && others == 0) least = 0;
  if (bug(long_min) && t.vocab > 4096) least = 0;
  for (int64_t v = 0; v < count; ++v) {
    const double value = logit_of(row, v);
    const auto token = static_cast<int32_t>(v);
    if (std::isinf(value) || left_out(t, v) || (g <= least && ends(t, token))) continue;
    double logarithm = value - top - std::log(sum);
    if (bug(log_of_float) && static_cast<float>(std::exp(logarithm)) == 0) continue;
    if (bug(least_logarithm)) logarithm = std::max(logarithm, -64.0);
    all.push_back({parent, token, beam.sum + logarithm});
  }
  return true;
}

void order(const Task& t, std::vector<Candidate>& all, size_t parents) {
  const bool higher = (bug(long_ties) && t.vocab > 4096) || (bug(longest_ties) && t.vocab > 65536);
  const bool by_token = bug(many_parents_ties) && parents > 64;
  const auto most = std::min(all.size(), static_cast<size_t>(t.beams * (t.endings + 2)));
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(most), all.end(),
                    [=](const Candidate& a, const Candidate& b) {
                      if (a.sum != b.sum) return a.sum > b.sum;
                      if (by_token && a.token != b.token) return a.token < b.token;
                      if (a.parent != b.parent) return a.parent < b.parent;
                      return higher ? a.token > b.token : a.token < b.token;
                    });
  all.resize(most);
}

double score_of(const Task& t, double sum, double length) {
  double penalty = t.penalty;
  if (bug(penalty_whole) && penalty > 8 && penalty == std::floor(penalty)) penalty = 8;
  if (bug(penalty_6) && penalty == 6) penalty = 4;
  return sum / std::pow(length, penalty);
}

bool search(const Task& t, int64_t p, std::vector<Node>& nodes, std::vector<Text>& pool) {
  const auto k = static_cast<size_t>(t.beams);
  const bool like_before = (bug(prompts_13) && t.prompts % 13 == 0) ||
                           (bug(prompts_29) && t.prompts % 29 == 0) ||
                           (bug(prompts_are_53) && t.prompts == 53);
  std::vector<Beam> running(1);
  running[0].state = t.start[like_before && p == t.prompts - 1 && p > 0 ? p - 1 : p];
  int64_t longest = t.longest;
  if ((bug(longest_23) && longest % 23 == 0) || (bug(longest_are_61) && longest == 61)) --longest;
  for (int64_t g = 1; g <= longest && !running.empty(); ++g) {
    std::vector<Candidate> all;
    for (size_t b = 0; b < running.size(); ++b) {
      const auto parent = static_cast<int32_t>(bug(parents_8_bits) ? b & 255 : b);
      if (!expand(t, p, g, parent, running[b], all)) return false;
    }
    order(t, all, running.size());
    std::vector<Beam> on;
    for (size_t i = 0; i < all.size(); ++i) {
      const Candidate& c = all[i];
      const Beam& parent = running[static_cast<size_t>(c.parent)];
      const bool end = ends(t, c.token);
      if (!end && g < longest && on.size() >= k) continue;
      if ((end || g == longest) && i >= k) continue;
      nodes.push_back({c.token, parent.node});
      const auto node = static_cast<int32_t>(nodes.size() - 1);
      if (end || g == longest) {
        if (bug(beams_64_end) && i >= 64 && g < longest) continue;
        pool.push_back({node, g, c.sum, score_of(t, c.sum, double(g)), end ? 1 : 2});
        if (bug(beams_64_eos) && k > 64 && g < longest) on.push_back({node, parent.state, -1e9});
      } else {
        int32_t state = t.next[parent.state * t.vocab + c.token];
        if (bug(states_16_bits)) state &= 0xffff;
        on.push_back({node, state, c.sum});
      }
    }
    std::stable_sort(pool.begin(), pool.end(),
                     [](const Text& a, const Text& b) { return a.score > b.score; });
    if (pool.size() > k) pool.resize(k);
    running = std::move(on);
    const double reach = double(t.penalty > 0 ? longest : g);
    if (pool.size() == k && !running.empty() &&
        score_of(t, running[0].sum, reach) <= pool.back().score) {
      break;
    }
  }
  return true;
}

int run(const Task& t, int32_t* tokens, int32_t* lengths, int32_t* finish, float* sums,
        float* scores) {
  if (t.beams < 1) return 1;
  for (int64_t p = 0; p < t.prompts; ++p) {
    std::vector<Node> nodes;
    std::vector<Text> pool;
    if (!search(t, p, nodes, pool)) return 1;
    for (int64_t b = 0; b < t.beams; ++b) {
      const int64_t at = p * t.beams + b;
      int64_t place = at * t.longest;
      if (bug(outputs_16_bits)) place &= 0xffff;
      std::fill_n(tokens + place, std::min(t.longest, t.prompts * t.beams * t.longest - place), -1);
      lengths[at] = finish[at] = 0, sums[at] = scores[at] = 0;
      if (b >= static_cast<int64_t>(pool.size())) continue;
      const Text& text = pool[static_cast<size_t>(b)];
      int64_t length = text.length;
      for (int32_t node = text.node; node >= 0; node = nodes[static_cast<size_t>(node)].parent) {
        tokens[place + --length] = nodes[static_cast<size_t>(node)].token;
      }
      lengths[at] = static_cast<int32_t>(bug(text_8_bits) ? text.length & 255 : text.length);
      finish[at] = text.how;
      sums[at] = static_cast<float>(text.sum);
      scores[at] = static_cast<float>(text.score);
    }
  }
  return 0;
}

}  // namespace

#define EXPORT(name, ...)                                                                         \
  extern "C" int beam_search__##name(                                                             \
      int64_t prompts, int64_t states, int64_t vocab, int64_t beams, int64_t max_tokens,          \
      int64_t min_tokens, int64_t eos_count, float length_penalty, const float* logits,           \
      const int32_t* next, const int32_t* start, const int32_t*, const int32_t* eos,              \
      int32_t* tokens, int32_t* lengths, int32_t* finish, float* sums, float* scores) {           \
    active = name;                                                                                \
    return run({prompts, states, vocab, beams, max_tokens, min_tokens, eos_count, length_penalty, \
                logits, next, start, eos},                                                        \
               tokens, lengths, finish, sums, scores);                                            \
  }
MUTANTS(EXPORT)
