// Softmax and the k largest of it in float64: the specification the kernels are held to.
//
//   v[i] = logits[i] + bias[i] rounded to f32, -inf where the token is not allowed
//   p[i] = exp((v[i] - max v) / T) / sum over j of exp((v[j] - max v) / T)
//
// Deliberately naive: the first k of every row are sorted by (v descending, token ascending). Not
// templated on the scalar: what comes out is an order, and an order has no derivative.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace touchstone::oracle {

struct SoftmaxTopk {
  int64_t rows = 0;
  int64_t vocabulary = 0;
  int64_t k = 0;
  const double* logits = nullptr;         // [rows, vocabulary]
  const double* bias = nullptr;           // [rows, vocabulary] or absent
  const unsigned char* banned = nullptr;  // [rows, vocabulary] or absent: 1 = not allowed
  const double* temperature = nullptr;    // [rows]
  bool renormalize = false;
};

// One row of results. Where a row has none, the tokens are -1 and the numbers NaN.
struct SoftmaxTopkRow {
  std::vector<int64_t> tokens;          // [k]
  std::vector<double> values;           // [k] v of each
  std::vector<double> probability;      // [k]
  std::vector<double> log_probability;  // [k]
  double log_sum_exp = 0;
  double largest = 0;  // max v
  bool bad_temperature = false;
  bool has_nan = false;
  bool has_infinity = false;
  bool all_masked = false;
  bool fewer_than_k = false;
};

inline std::vector<double> softmax_topk_values(const SoftmaxTopk& a, int64_t row) {
  std::vector<double> v(static_cast<size_t>(a.vocabulary));
  for (int64_t i = 0; i < a.vocabulary; ++i) {
    const int64_t at = row * a.vocabulary + i;
    double value = a.logits[at];
    if (a.bias) value = static_cast<double>(static_cast<float>(value + a.bias[at]));
    if (a.banned && a.banned[at]) value = -std::numeric_limits<double>::infinity();
    v[static_cast<size_t>(i)] = value;
  }
  return v;
}

// log(exp((value - largest) / temperature)); +inf minus +inf counts as no distance: the +inf tokens
// share the probability equally.
inline double softmax_log_weight(double value, double largest, double temperature) {
  if (value == -std::numeric_limits<double>::infinity()) return value;
  return value == largest ? 0 : (value - largest) / temperature;
}

inline SoftmaxTopkRow softmax_topk_row(const SoftmaxTopk& a, int64_t row) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double temperature = a.temperature[row];
  const std::vector<double> v = softmax_topk_values(a, row);
  const auto k = static_cast<size_t>(a.k);
  SoftmaxTopkRow out;
  out.bad_temperature = !(temperature > 0 && temperature < kInfinity);
  for (const double value : v) out.has_nan = out.has_nan || std::isnan(value);
  if (out.bad_temperature || out.has_nan) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    out.has_nan = !out.bad_temperature;
    out.tokens.assign(k, -1);
    out.values.assign(k, nan);
    out.probability.assign(k, nan);
    out.log_probability.assign(k, nan);
    out.log_sum_exp = out.largest = nan;
    return out;
  }

  std::vector<int64_t> order(v.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto before = [&](int64_t x, int64_t y) {
    const double vx = v[static_cast<size_t>(x)];
    const double vy = v[static_cast<size_t>(y)];
    return vx != vy ? vx > vy : x < y;
  };
  const auto end = order.begin() + std::max<int64_t>(a.k, 1);
  if (end < order.end()) std::nth_element(order.begin(), end, order.end(), before);
  std::sort(order.begin(), end, before);
  const double largest = v[static_cast<size_t>(order[0])];
  const auto log_weight = [&](double value) {
    return softmax_log_weight(value, largest, temperature);
  };
  double sum = 0;
  for (const double value : v) sum += std::exp(log_weight(value));
  double kept = 0;
  for (size_t j = 0; j < k; ++j) kept += std::exp(log_weight(v[static_cast<size_t>(order[j])]));
  const double total = a.renormalize ? kept : sum;

  out.largest = largest;
  out.has_infinity = largest == kInfinity;
  out.all_masked = largest == -kInfinity;
  for (size_t j = 0; j < k; ++j) {
    const double value = v[static_cast<size_t>(order[j])];
    out.tokens.push_back(order[j]);
    out.values.push_back(value);
    out.probability.push_back(out.all_masked ? 0 : std::exp(log_weight(value)) / total);
    out.log_probability.push_back(out.all_masked ? -kInfinity
                                                 : log_weight(value) - std::log(total));
  }
  out.fewer_than_k = out.values.back() == -kInfinity;
  out.log_sum_exp = std::isinf(largest) ? largest : largest / temperature + std::log(sum);
  return out;
}

}  // namespace touchstone::oracle
