// Token sampling in float64: the specification the kernels are held to. One row at a time, a full
// sort, every rule of include/touchstone/ops/sample.h written out where it applies. The values
// (step 1 and 2) are f32 by contract, because their order decides ties; all that follows is
// float64.
//
// Nothing here draws: the exact probability of every token is enumerated, and token(u) looks up the
// one that a given uniform picks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace touchstone::oracle {

struct SampleRow {
  std::vector<double> logits;         // [V], values the dtype holds exactly
  std::vector<double> bias;           // [V] f32 values, or empty
  std::vector<bool> token_mask;       // [V], or empty: all
  std::vector<std::int64_t> history;  // what is no token is padding
  std::int64_t prompt_length = 0;
  // f32 values.
  double temperature = 1;
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  double frequency_penalty = 0;
  double presence_penalty = 0;
  std::int64_t top_k = 0;
};

enum class SampleOutcome : std::uint8_t { drawn, bad_parameter, has_nan, all_masked };

struct SampleDistribution {
  SampleOutcome outcome = SampleOutcome::drawn;
  bool has_infinity = false;
  std::int64_t above = 0;           // tokens above -inf
  std::vector<float> value;         // after step 2
  std::vector<std::int64_t> order;  // all tokens, by value descending, token ascending
  std::vector<double> weight;       // exp((v - max) / T), by token
  std::int64_t kept = 0;            // the first `kept` entries of `order`
  std::vector<std::int64_t> drawn;  // the kept tokens in the order in which the draw adds them up
  std::vector<double> probability;  // of being drawn, by token
  std::vector<double> log_probability;  // before any cut, by token; T = 1 for a greedy row

  // Where the running sum of probability first exceeds u.
  std::int64_t token(double u) const {
    double sum = 0;
    for (const std::int64_t t : drawn) {
      sum += probability[static_cast<std::size_t>(t)];
      if (sum > u) return t;
    }
    return drawn.back();
  }
};

namespace sample_detail {

inline bool within(double value, double low, double high) { return value >= low && value <= high; }

inline bool legal(const SampleRow& r) {
  return std::isfinite(r.temperature) && r.temperature >= 0 && r.top_k >= 0 &&
         within(r.top_p, 0, 1) && within(r.min_p, 0, 1) && std::isfinite(r.repetition_penalty) &&
         r.repetition_penalty > 0 && std::isfinite(r.frequency_penalty) &&
         std::isfinite(r.presence_penalty);
}

// Volatile, so that every operation is rounded to f32 on its own.
inline float penalized(const SampleRow& r, std::int64_t token, float v) {
  std::int64_t seen = 0;
  std::int64_t seen_in_output = 0;
  for (std::size_t i = 0; i < r.history.size(); ++i) {
    if (r.history[i] != token) continue;
    ++seen;
    if (static_cast<std::int64_t>(i) >= r.prompt_length) ++seen_in_output;
  }
  if (seen == 0 || v == -std::numeric_limits<float>::infinity()) return v;
  const auto repetition = static_cast<float>(r.repetition_penalty);
  volatile float result = v > 0 ? v / repetition : v * repetition;
  if (seen_in_output > 0) {
    volatile float frequency =
        static_cast<float>(seen_in_output) * static_cast<float>(r.frequency_penalty);
    result = result - frequency;
    result = result - static_cast<float>(r.presence_penalty);
  }
  return result;
}

inline std::vector<float> values(const SampleRow& r) {
  std::vector<float> v;
  for (std::size_t i = 0; i < r.logits.size(); ++i) {
    auto value = static_cast<float>(r.logits[i]);
    if (!r.bias.empty()) value += static_cast<float>(r.bias[i]);
    if (!r.token_mask.empty() && !r.token_mask[i]) value = -std::numeric_limits<float>::infinity();
    v.push_back(value);
  }
  // Only the tokens of the history are searched for: V * L steps would take minutes.
  for (const std::int64_t token : std::vector<std::int64_t>(r.history)) {
    if (token < 0 || token >= static_cast<std::int64_t>(v.size())) continue;
    const auto at = static_cast<std::size_t>(token);
    auto unpenalized = static_cast<float>(r.logits[at]);
    if (!r.bias.empty()) unpenalized += static_cast<float>(r.bias[at]);
    if (!r.token_mask.empty() && !r.token_mask[at]) continue;
    v[at] = penalized(r, token, unpenalized);
  }
  return v;
}

// How many tokens each of the three rules keeps; the shortest prefix wins.
inline std::int64_t kept_count(const SampleRow& r, const SampleDistribution& d) {
  const auto vocabulary = static_cast<std::int64_t>(d.order.size());
  const auto weight_at = [&](std::int64_t rank) {
    return d.weight[static_cast<std::size_t>(d.order[static_cast<std::size_t>(rank)])];
  };
  const std::int64_t by_k = r.top_k == 0 ? vocabulary : std::min(r.top_k, vocabulary);

  double mass = 0;
  for (std::int64_t rank = 0; rank < by_k; ++rank) mass += weight_at(rank);
  std::int64_t by_p = by_k;
  if (r.top_p < 1) {
    double prefix = 0;
    for (by_p = 0; by_p < by_k && (by_p == 0 || prefix < r.top_p * mass); ++by_p) {
      prefix += weight_at(by_p);
    }
  }

  std::int64_t by_min = 0;
  while (by_min < vocabulary && weight_at(by_min) >= r.min_p * weight_at(0)) ++by_min;
  return std::min({by_k, by_p, by_min});
}

}  // namespace sample_detail

inline SampleDistribution sample_distribution(const SampleRow& r) {
  SampleDistribution d;
  if (!sample_detail::legal(r)) {
    d.outcome = SampleOutcome::bad_parameter;
    return d;
  }
  d.value = sample_detail::values(r);
  const auto vocabulary = static_cast<std::int64_t>(d.value.size());
  const auto value = [&](std::int64_t token) { return d.value[static_cast<std::size_t>(token)]; };
  for (const float v : d.value) {
    if (std::isnan(v)) d.outcome = SampleOutcome::has_nan;
    if (v > -std::numeric_limits<float>::infinity()) ++d.above;
  }
  if (d.outcome == SampleOutcome::has_nan) return d;
  if (d.above == 0) {
    d.outcome = SampleOutcome::all_masked;
    return d;
  }
  d.order.resize(d.value.size());
  std::iota(d.order.begin(), d.order.end(), 0);
  std::ranges::sort(d.order, [&](std::int64_t a, std::int64_t b) {
    return value(a) > value(b) || (value(a) == value(b) && a < b);
  });

  const float largest = value(d.order[0]);
  d.has_infinity = std::isinf(largest);
  const double temperature = r.temperature == 0 ? 1 : r.temperature;
  double total = 0;
  for (const float v : d.value) {
    // The largest tokens are at distance 0, also when they are infinite.
    const double distance =
        v == largest ? 0 : static_cast<double>(v) - static_cast<double>(largest);
    d.log_probability.push_back(distance / temperature);
    d.weight.push_back(std::exp(distance / temperature));
    total += d.weight.back();
  }
  for (double& log_probability : d.log_probability) log_probability -= std::log(total);

  d.kept = r.temperature == 0 ? 1 : sample_detail::kept_count(r, d);
  d.drawn.assign(d.order.begin(), d.order.begin() + d.kept);
  const bool asks_for_a_cut =
      (r.top_k > 0 && r.top_k < vocabulary) || r.top_p < 1 || r.min_p > 0 || r.temperature == 0;
  if (!asks_for_a_cut) std::ranges::sort(d.drawn);
  double kept_mass = 0;
  for (const std::int64_t t : d.drawn) kept_mass += d.weight[static_cast<std::size_t>(t)];
  d.probability.assign(d.value.size(), 0.0);
  for (const std::int64_t t : d.drawn) {
    const auto at = static_cast<std::size_t>(t);
    d.probability[at] = d.weight[at] / kept_mass;
  }
  return d;
}

}  // namespace touchstone::oracle
