// Log-probabilities of tokens that are given, not drawn.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace touchstone::inline v0::decode {

// log p of a token after one row of logits, in f64. NaN where a logit is NaN.
inline double log_softmax(std::span<const float> logits, std::int32_t token) {
  double top = -std::numeric_limits<double>::infinity();
  for (const float logit : logits) {
    if (std::isnan(logit)) return std::numeric_limits<double>::quiet_NaN();
    top = std::max(top, static_cast<double>(logit));
  }
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
  return static_cast<double>(logits[static_cast<std::size_t>(token)]) - top - std::log(sum);
}

}  // namespace touchstone::inline v0::decode
