// From the contract of the task to the function that was found. An adapter passes things on; it
// computes nothing but the log-softmax that the other side takes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "theirs.h"

namespace {

std::vector<double> log_softmax(const float* row, int64_t vocab) {
  if (std::any_of(row, row + vocab, [](float v) { return std::isnan(v); })) {
    throw std::invalid_argument("NaN");
  }
  const double top = *std::max_element(row, row + vocab);
  std::vector<double> values(row, row + vocab);
  double sum = 0;
  for (const double v : values) sum += std::isinf(v) ? 0 : std::exp(v - top);
  for (double& v : values) v -= top + std::log(sum);
  return std::isinf(top) ? std::vector<double>(values.size(), -INFINITY) : values;
}

}  // namespace

extern "C" int beam_search(int64_t prompts, int64_t /*states*/, int64_t vocab, int64_t beams,
                           int64_t max_tokens, int64_t min_tokens, int64_t eos_count,
                           float length_penalty, const float* logits, const int32_t* next,
                           const int32_t* start, const int32_t* /*prompt_tokens*/,
                           const int32_t* eos, int32_t* tokens, int32_t* lengths, int32_t* finish,
                           float* log_probabilities, float* scores) {
  if (beams < 1) return 1;
  BeamConfig config;
  config.width = static_cast<int>(beams);
  config.max_length = static_cast<int>(max_tokens);
  config.min_length = static_cast<int>(min_tokens);
  config.length_penalty = length_penalty;
  config.end_ids.assign(eos, eos + eos_count);
  try {
    for (int64_t p = 0; p < prompts; ++p) {
      const auto found = decode(
          start[p], config, [&](int s) { return log_softmax(logits + s * vocab, vocab); },
          [&](int s, int token) { return next[s * vocab + token]; });
      for (int64_t b = 0; b < beams; ++b) {
        const int64_t at = p * beams + b;
        const bool there = b < static_cast<int64_t>(found.size());
        const Hypothesis h = there ? found[b] : Hypothesis{};
        std::fill_n(tokens + at * max_tokens, max_tokens, -1);
        std::copy(h.ids.begin(), h.ids.end(), tokens + at * max_tokens);
        lengths[at] = static_cast<int32_t>(h.ids.size());
        finish[at] = !there ? 0 : h.ended ? 1 : 2;
        log_probabilities[at] = static_cast<float>(h.logprob);
        scores[at] = static_cast<float>(h.score);
      }
    }
  } catch (const std::invalid_argument&) {
    return 1;
  }
  return 0;
}
