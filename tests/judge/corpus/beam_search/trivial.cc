// Contenders that do not do the work. Built and named as mutants.cc is.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#define TRIVIALS(TRIVIAL)                                              \
  TRIVIAL(zeros, "everything is 0")                                    \
  TRIVIAL(ones, "everything is 1")                                     \
  TRIVIAL(nothing_found, "no prompt has a text")                       \
  TRIVIAL(all_eos, "every text is one ending token")                   \
  TRIVIAL(argmax_of_start, "every text begins with the largest logit") \
  TRIVIAL(noise, "random texts")                                       \
  TRIVIAL(unwritten, "nothing is written")                             \
  TRIVIAL(previous, "the answer of the call before")                   \
  TRIVIAL(refuses, "every call is an error")

namespace {

#define NAME(name, what) name,
enum Kind { TRIVIALS(NAME) };
#undef NAME

int run(Kind kind, int64_t prompts, int64_t vocab, int64_t beams, int64_t max_tokens,
        int64_t eos_count, const float* logits, const int32_t* start, const int32_t* eos,
        int32_t* tokens, int32_t* lengths, int32_t* finish, float* sums, float* scores) {
  if (beams < 1 || kind == refuses) return 1;
  if (kind == unwritten) return 0;
  static std::minstd_rand random(7);
  static std::vector<int32_t> before;
  const int64_t slots = prompts * beams;
  const int32_t fill = kind == ones ? 1 : 0;
  for (int64_t at = 0; at < slots; ++at) {
    lengths[at] = finish[at] = fill;
    sums[at] = scores[at] = static_cast<float>(fill);
    std::fill_n(tokens + at * max_tokens, max_tokens, kind == nothing_found ? -1 : fill);
    if (kind == all_eos || kind == argmax_of_start || kind == noise) {
      const float* const row = logits + start[at / beams] * vocab;
      std::fill_n(tokens + at * max_tokens, max_tokens, -1);
      tokens[at * max_tokens] =
          kind == all_eos ? (eos_count > 0 ? eos[0] : 0)
          : kind == noise ? static_cast<int32_t>(random() % vocab)
                          : static_cast<int32_t>(std::max_element(row, row + vocab) - row);
      lengths[at] = finish[at] = 1;
      sums[at] = scores[at] = -1;
    }
  }
  const auto count = static_cast<size_t>(slots * max_tokens);
  if (kind == previous) {
    const std::vector<int32_t> now(tokens, tokens + count);
    std::copy_n(before.begin(), std::min(before.size(), count), tokens);
    before = now;
  }
  return 0;
}

}  // namespace

#define EXPORT(name, what)                                                                     \
  extern "C" int beam_search__##name(                                                          \
      int64_t prompts, int64_t, int64_t vocab, int64_t beams, int64_t max_tokens, int64_t,     \
      int64_t eos_count, float, const float* logits, const int32_t*, const int32_t* start,     \
      const int32_t*, const int32_t* eos, int32_t* tokens, int32_t* lengths, int32_t* finish,  \
      float* sums, float* scores) {                                                            \
    return run(name, prompts, vocab, beams, max_tokens, eos_count, logits, start, eos, tokens, \
               lengths, finish, sums, scores);                                                 \
  }
TRIVIALS(EXPORT)
