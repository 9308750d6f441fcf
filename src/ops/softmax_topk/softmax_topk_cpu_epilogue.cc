// Epilogue of softmax_topk on the CPU, for every SIMD target: from the selected tokens and the sum
// of a row to its outputs.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "ops/selection/cpu/cpu_select.h"
#include "ops/softmax_topk/softmax_topk_cpu.h"
#include "touchstone/ops/row_status.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/softmax_topk/softmax_topk_cpu_epilogue.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, as Highway requires.
#include "cpu/simd.h"
#include "ops/selection/cpu/cpu_exp2.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::topk::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;
using selection::power_of_two;
using selection::HWY_NAMESPACE::exp2_full;
using selection::HWY_NAMESPACE::Exponent;

using Tag = hn::ScalableTag<float>;

// Probabilities of the k values in `top`, which has space for whole vectors.
HWY_INLINE void write_probabilities(const SoftmaxTopkProblem& p, std::int64_t row,
                                    const selection::RowSum& sum, double temperature,
                                    const float* top) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto k = static_cast<std::size_t>(p.k);
  const auto scale = static_cast<float>(1.44269504088896340736 / temperature);
  Exponent e(sum.largest, scale);
  const double to_row = power_of_two(e.reference - sum.reference);
  float* const out = p.probabilities + row * p.k;
  double total = sum.sum;
  if (p.renormalize) {
    total = 0;
    for (std::size_t j = 0; j < k; j += lanes) {
      alignas(64) float weight[hn::MaxLanes(Tag())];
      hn::Store(exp2_full(d, hn::LoadU(d, top + j), e), d, weight);
      for (std::size_t i = 0; i < std::min(lanes, k - j); ++i) {
        total += static_cast<double>(weight[i]);
      }
    }
    total *= to_row;
  }
  const auto inverse = hn::Set(d, static_cast<float>(to_row / total));
  for (std::size_t j = 0; j < k; j += lanes) {
    const auto weight = exp2_full(d, hn::LoadU(d, top + j), e);
    // Clamped to 1: the maximum and the sum are rounded differently.
    const auto probability = hn::Min(hn::Mul(weight, inverse), hn::Set(d, 1.0F));
    sd::store_some(probability, d, out + j, std::min(lanes, k - j));
  }
  if (p.log_probabilities == nullptr && p.log_sum_exp == nullptr) return;

  // Logarithm of the sum of exp((v - largest) / T).
  const double distance =
      sum.reference - static_cast<double>(sum.largest) * static_cast<double>(scale);
  const double log_sum = std::log(sum.sum) + distance * 0.693147180559945309417;
  const double log_total = std::log(total) + distance * 0.693147180559945309417;
  if (p.log_sum_exp != nullptr) {
    p.log_sum_exp[row] =
        static_cast<float>(static_cast<double>(sum.largest) / temperature + log_sum);
  }
  if (p.log_probabilities == nullptr) return;
  const double inverse_temperature = 1 / temperature;
  for (std::size_t j = 0; j < k; ++j) {
    const double below = static_cast<double>(top[j]) - static_cast<double>(sum.largest);
    // Clamped to 0, as the probability to 1.
    p.log_probabilities[static_cast<std::size_t>(row) * k + j] =
        static_cast<float>(std::min(below * inverse_temperature - log_total, 0.0));
  }
}

}  // namespace touchstone::topk::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::topk {
namespace {

HWY_EXPORT(write_probabilities);

template <class Index>
void write_indices(const selection::SelectedTokens& tokens, std::size_t k, Index* out) {
  for (std::size_t j = 0; j < tokens.above; ++j) {
    out[j] = static_cast<Index>(selection::token_of(tokens.tokens_above[j]));
  }
  for (std::size_t j = tokens.above; j < k; ++j) {
    out[j] = static_cast<Index>(tokens.equals[j - tokens.above]);
  }
}

}  // namespace

void store_row(const SoftmaxTopkProblem& p, std::int64_t row, double temperature,
               const selection::RowSum& sum, const selection::SelectedTokens& tokens,
               const float* top) {
  const auto k = static_cast<std::size_t>(p.k);
  if (p.wide_indices) {
    write_indices(tokens, k, static_cast<std::int64_t*>(p.indices) + row * p.k);
  } else {
    write_indices(tokens, k, static_cast<std::int32_t*>(p.indices) + row * p.k);
  }
  HWY_DYNAMIC_DISPATCH(write_probabilities)(p, row, sum, temperature, top);
  if (p.status == nullptr) return;
  const bool masked = top[k - 1] == -std::numeric_limits<float>::infinity();
  p.status[row] = to_int(masked ? RowStatus::fewer_than_k : RowStatus::ok);
}

}  // namespace touchstone::topk
#endif  // HWY_ONCE
