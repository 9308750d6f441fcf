// The scalar implementation of softmax_topk: plain loops, one thread, f64 arithmetic. Takes every
// case.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/softmax_topk/softmax_topk_problem.h"
#include "touchstone/ops/row_status.h"

namespace touchstone::topk {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool is_unmasked(const SoftmaxTopkProblem& p, std::int64_t row, std::int64_t token) {
  if (p.token_mask == nullptr) return true;
  return (p.token_mask[row * p.token_mask_stride + token / 32] >> (token % 32) & 1) != 0;
}

// logits + bias in f32, -inf where masked.
std::vector<float> row_values(const SoftmaxTopkProblem& p, std::int64_t row) {
  std::vector<float> values(static_cast<std::size_t>(p.vocabulary));
  visit_float_dtype(p.dtype, [&]<class T>() {
    const T* const logits = static_cast<const T*>(p.logits) + row * p.logits_stride;
    for (std::int64_t i = 0; i < p.vocabulary; ++i) {
      float value = convert<float>(logits[i]);
      if (p.bias != nullptr) value += p.bias[row * p.bias_stride + i];
      values[static_cast<std::size_t>(i)] = is_unmasked(p, row, i) ? value : -kInfinity;
    }
  });
  return values;
}

// The outputs of one row.
struct RowOutput {
  RowOutput(const SoftmaxTopkProblem& problem, std::int64_t row) : p(problem), r(row) {}

  void store(std::int64_t slot, std::int64_t token, double probability, double log_probability) {
    const std::int64_t at = r * p.k + slot;
    p.probabilities[at] = static_cast<float>(probability);
    if (p.wide_indices) {
      static_cast<std::int64_t*>(p.indices)[at] = token;
    } else {
      static_cast<std::int32_t*>(p.indices)[at] = static_cast<std::int32_t>(token);
    }
    if (p.log_probabilities != nullptr) {
      p.log_probabilities[at] = static_cast<float>(log_probability);
    }
  }
  void store_row(double log_sum_exp, RowStatus status) {
    if (p.log_sum_exp != nullptr) p.log_sum_exp[r] = static_cast<float>(log_sum_exp);
    if (p.status != nullptr) p.status[r] = to_int(status);
  }
  // A row without a result.
  void store_invalid(RowStatus status) {
    for (std::int64_t j = 0; j < p.k; ++j) store(j, -1, kNan, kNan);
    store_row(kNan, status);
  }

  const SoftmaxTopkProblem& p;
  std::int64_t r;
};

// The first k tokens by (value descending, token ascending).
std::vector<std::int64_t> best_tokens(const std::vector<float>& values, std::int64_t k) {
  std::vector<std::int64_t> tokens(values.size());
  std::iota(tokens.begin(), tokens.end(), std::int64_t{0});
  const auto value = [&](std::int64_t token) { return values[static_cast<std::size_t>(token)]; };
  std::partial_sort(tokens.begin(), tokens.begin() + k, tokens.end(),
                    [&](std::int64_t a, std::int64_t b) {
                      return value(a) != value(b) ? value(a) > value(b) : a < b;
                    });
  tokens.resize(static_cast<std::size_t>(k));
  return tokens;
}

// The weight of a token before the division by the sum. +inf tokens share equally.
double weight_of(float value, float largest, double temperature) {
  if (value == largest) return largest == -kInfinity ? 0 : 1;
  if (largest == kInfinity) return 0;
  return std::exp((static_cast<double>(value) - static_cast<double>(largest)) / temperature);
}

}  // namespace

void plain_row(const SoftmaxTopkProblem& p, std::int64_t row) {
  RowOutput out(p, row);
  double temperature = p.temperature_scale;
  if (p.temperature != nullptr) {
    const auto own = static_cast<double>(p.temperature[row]);
    temperature *= own;
    if (!(own > 0 && std::isfinite(own))) return out.store_invalid(RowStatus::bad_parameter);
  }
  temperature = std::clamp(temperature, kMinTemperatureProduct, kMaxTemperatureProduct);
  const std::vector<float> values = row_values(p, row);
  if (std::any_of(values.begin(), values.end(), [](float v) { return std::isnan(v); })) {
    return out.store_invalid(RowStatus::has_nan);
  }

  const std::vector<std::int64_t> tokens = best_tokens(values, p.k);
  const auto value = [&](std::int64_t token) { return values[static_cast<std::size_t>(token)]; };
  const float largest = value(tokens.front());
  double sum = 0;
  for (const float v : values) sum += weight_of(v, largest, temperature);
  double kept = 0;
  for (const std::int64_t token : tokens) kept += weight_of(value(token), largest, temperature);
  // 1 for a row of -inf only, where every weight is 0.
  const double total = largest == -kInfinity ? 1 : (p.renormalize ? kept : sum);

  for (std::int64_t j = 0; j < p.k; ++j) {
    const std::int64_t token = tokens[static_cast<std::size_t>(j)];
    const float v = value(token);
    // Not the logarithm of the weight, which may have underflowed.
    const double distance =
        v == largest ? 0 : (static_cast<double>(v) - static_cast<double>(largest)) / temperature;
    const double log_probability =
        v == -kInfinity ? static_cast<double>(v) : distance - std::log(total);
    out.store(j, token, weight_of(v, largest, temperature) / total, log_probability);
  }

  const bool finite = std::isfinite(largest);
  RowStatus status = RowStatus::ok;
  if (largest == kInfinity) status |= RowStatus::has_infinity;
  if (largest == -kInfinity) status |= RowStatus::all_masked;
  if (value(tokens.back()) == -kInfinity) status |= RowStatus::fewer_than_k;
  out.store_row(finite ? static_cast<double>(largest) / temperature + std::log(sum)
                       : static_cast<double>(largest),
                status);
}

void softmax_topk_plain(Context& context, const SoftmaxTopkProblem& p) {
  (void)context;
  for (std::int64_t row = 0; row < p.rows; ++row) plain_row(p, row);
}

}  // namespace touchstone::topk
