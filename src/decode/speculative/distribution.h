// The distribution that sample() draws a token from, as a list of probabilities: what rejection
// sampling compares with the draft's. In f64, by the steps of touchstone/ops/sample.h.
#pragma once

#include <cstdint>
#include <span>

#include "touchstone/decode/draft.h"
#include "touchstone/decode/request.h"

namespace touchstone::inline v0::decode {

struct DistributionArgs {
  std::span<const float> logits{};
  const SamplingControls* controls = nullptr;
  std::span<const std::int32_t> tokens{};  // before the one that is chosen, prompt included
  std::int64_t prompt_length = 0;
  std::span<const std::int32_t> mask{};  // words as sample's token_mask; empty: all tokens
};

// Log-probabilities of the whole distribution, before top-k, top-p and min-p; T = 1 where greedy.
struct TargetDistribution {
  TokenDistribution drawn{};  // after the cuts; one token where greedy. Empty: nothing is allowed
  bool has_nan = false;
  std::vector<float> values{};  // of every token after mask and penalties
  double temperature = 1;       // that log-probabilities are computed with
  double log_total = 0;         // log sum exp(values / temperature)

  double log_probability(std::int32_t token) const;
  // The n largest, by value descending, token ascending.
  TokenLogProbabilities report(std::int32_t token, std::int32_t n) const;
};

TargetDistribution target_distribution(const DistributionArgs& args);

}  // namespace touchstone::inline v0::decode
