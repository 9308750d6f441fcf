// Contenders that do not do the work. Built and named as mutants.cc is.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#define TRIVIALS(TRIVIAL)                                                       \
  TRIVIAL(zeros, "everything is 0")                                             \
  TRIVIAL(ones, "everything is 1")                                              \
  TRIVIAL(rejects_all, "no node is accepted and no token emitted")              \
  TRIVIAL(argmax_only, "emits the most likely token behind the committed ones") \
  TRIVIAL(accepts_first, "accepts the first node whatever the target says")     \
  TRIVIAL(noise, "random tokens")                                               \
  TRIVIAL(unwritten, "nothing is written")                                      \
  TRIVIAL(previous, "the tokens of the call before")                            \
  TRIVIAL(refuses, "every call is an error")

namespace {

#define NAME(name, what) name,
enum Kind { TRIVIALS(NAME) };
#undef NAME
Kind active;

int run(int64_t requests, int64_t nodes, int64_t vocab, int64_t steps, int64_t tree_words,
        int64_t mask_words, int64_t history_tokens, int64_t capacity, int64_t width, int64_t rule,
        int64_t top_k, int64_t eos, float temperature, float penalty, const float* logits,
        const float* draft, const int32_t* allowed, const int32_t* first, const int32_t* tokens,
        const int32_t* parents, const int32_t* lengths, const int32_t* limits, const int32_t* seeds,
        const int32_t* history, const float* cache, int32_t* path, int32_t* accepted,
        int32_t* emitted, int32_t* finish, float* log_probabilities, int32_t* positions,
        int32_t* ancestors, float* cache_after) {
  (void)mask_words, (void)history_tokens, (void)rule, (void)top_k, (void)eos, (void)temperature;
  (void)penalty, (void)draft, (void)allowed, (void)parents, (void)limits, (void)seeds,
      (void)history;
  if (active == refuses) return 1;
  if (active == unwritten) return 0;
  static std::minstd_rand random(7);
  static std::vector<int32_t> before;
  const int32_t fill = active == ones ? 1 : active == zeros ? 0 : -1;
  const int64_t numbers = requests * capacity * width;
  std::fill_n(path, requests * steps, fill);
  std::fill_n(emitted, requests * (steps + 1), fill);
  std::fill_n(accepted, requests, active == ones ? 1 : 0);
  std::fill_n(finish, requests, active == ones ? 1 : 0);
  std::fill_n(log_probabilities, requests * (steps + 1), active == ones ? 1.0f : 0.0f);
  std::fill_n(positions, nodes, fill);
  std::fill_n(ancestors, nodes * tree_words, active == ones ? 1 : 0);
  std::fill_n(cache_after, numbers, active == ones ? 1.0f : 0.0f);
  for (int64_t r = 0; r < requests; ++r) {
    int32_t& token = emitted[r * (steps + 1)];
    const float* const row = logits + r * vocab;
    if (active == argmax_only) token = int32_t(std::max_element(row, row + vocab) - row);
    if (active == noise) token = int32_t(random() % uint32_t(vocab));
    if (active == accepts_first && first[r] < first[r + 1]) {
      path[r * steps] = 0;
      accepted[r] = 1;
      token = tokens[first[r]];
    }
    if (active == argmax_only || active == accepts_first) {
      std::copy_n(cache + r * capacity * width, lengths[r] * width,
                  cache_after + r * capacity * width);
    }
  }
  const auto count = size_t(requests * (steps + 1));
  if (active == previous) {
    const std::vector<int32_t> now(emitted, emitted + count);
    std::copy_n(before.begin(), std::min(before.size(), count), emitted);
    before = now;
  }
  return 0;
}

}  // namespace

#define EXPORT(name, ...)                                                                          \
  extern "C" int tree_verify__##name(                                                              \
      int64_t requests, int64_t nodes, int64_t vocab, int64_t steps, int64_t tree_words,           \
      int64_t mask_words, int64_t history_tokens, int64_t capacity, int64_t width, int64_t rule,   \
      int64_t top_k, int64_t eos, float temperature, float penalty, const float* logits,           \
      const float* draft, const int32_t* allowed, const int32_t* first, const int32_t* tokens,     \
      const int32_t* parents, const int32_t* lengths, const int32_t* limits, const int32_t* seeds, \
      const int32_t* history, const float* cache, int32_t* path, int32_t* accepted,                \
      int32_t* emitted, int32_t* finish, float* log_probabilities, int32_t* positions,             \
      int32_t* ancestors, float* cache_after) {                                                    \
    active = name;                                                                                 \
    return run(requests, nodes, vocab, steps, tree_words, mask_words, history_tokens, capacity,    \
               width, rule, top_k, eos, temperature, penalty, logits, draft, allowed, first,       \
               tokens, parents, lengths, limits, seeds, history, cache, path, accepted, emitted,   \
               finish, log_probabilities, positions, ancestors, cache_after);                      \
  }
TRIVIALS(EXPORT)
