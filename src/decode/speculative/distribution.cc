#include "decode/speculative/distribution.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <vector>

#include "core/index.h"

namespace touchstone::inline v0::decode {
namespace {

constexpr float kNoValue = -std::numeric_limits<float>::infinity();

bool allowed(std::span<const std::int32_t> mask, std::size_t token) {
  if (mask.empty()) return true;
  return (static_cast<std::uint32_t>(mask[token / 32]) >> (token % 32) & 1U) != 0;
}

// One f32 operation at a time, as sample() rounds.
void penalize(std::vector<float>& values, const DistributionArgs& args) {
  const SamplingControls& c = *args.controls;
  if (c.repetition_penalty == 1 && c.frequency_penalty == 0 && c.presence_penalty == 0) return;
  std::unordered_map<std::int32_t, std::int64_t> in_output;  // of every token of the history
  for (std::size_t i = 0; i < args.tokens.size(); ++i) {
    if (args.tokens[i] < 0 || args.tokens[i] >= std::ssize(values)) continue;  // padding
    std::int64_t& count = in_output[args.tokens[i]];
    if (static_cast<std::int64_t>(i) >= args.prompt_length) ++count;
  }
  const auto repetition = static_cast<float>(c.repetition_penalty);
  for (const auto& [token, count] : in_output) {
    float& value = values[at(token)];
    if (value == kNoValue) continue;
    value = value > 0 ? value / repetition : value * repetition;
    if (count == 0) continue;
    const float frequency = static_cast<float>(count) * static_cast<float>(c.frequency_penalty);
    value -= frequency;
    value -= static_cast<float>(c.presence_penalty);
  }
}

std::vector<float> values_of(const DistributionArgs& args) {
  std::vector<float> values(args.logits.begin(), args.logits.end());
  for (const auto& [token, bias] : args.controls->bias) values[at(token)] += bias;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!allowed(args.mask, i)) values[i] = kNoValue;
  }
  penalize(values, args);
  return values;
}

// How many of the tokens in order stay after top-k, top-p and min-p.
std::int64_t kept_tokens(const SamplingControls& c, std::span<const double> weights) {
  const std::int64_t all = std::ssize(weights);
  std::int64_t kept = c.top_k == 0 ? all : std::min<std::int64_t>(c.top_k, all);
  if (c.top_p < 1) {
    const auto top_p = static_cast<double>(static_cast<float>(c.top_p));
    const double mass = std::accumulate(weights.begin(), weights.begin() + kept, 0.0);
    double prefix = 0;
    std::int64_t by_p = 0;
    for (; by_p < kept && (by_p == 0 || prefix < top_p * mass); ++by_p) prefix += weights[at(by_p)];
    kept = by_p;
  }
  const double least = static_cast<double>(static_cast<float>(c.min_p)) * weights[0];
  while (kept > 1 && weights[at(kept - 1)] < least) --kept;
  return kept;
}

// Infinite values share the whole mass equally.
double weight_of(float value, float top, double temperature) {
  if (value == top) return 1;
  if (std::isinf(top)) return 0;
  return std::exp((static_cast<double>(value) - static_cast<double>(top)) / temperature);
}

}  // namespace

double TargetDistribution::log_probability(std::int32_t token) const {
  const auto value = static_cast<double>(values[at(token)]);
  if (std::isinf(log_total)) return std::isinf(value) && value > 0 ? 0 : kNoValue;
  return value / temperature - log_total;
}

TokenLogProbabilities TargetDistribution::report(std::int32_t token, std::int32_t n) const {
  TokenLogProbabilities result{.own = static_cast<float>(log_probability(token))};
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  const std::int64_t count = std::clamp<std::int64_t>(n, 0, std::ssize(order));
  std::ranges::partial_sort(order, order.begin() + count, [&](std::int32_t a, std::int32_t b) {
    return values[at(a)] != values[at(b)] ? values[at(a)] > values[at(b)] : a < b;
  });
  for (std::int64_t i = 0; i < count; ++i) {
    if (values[at(order[at(i)])] == kNoValue) break;
    result.top.emplace_back(order[at(i)], static_cast<float>(log_probability(order[at(i)])));
  }
  return result;
}

TargetDistribution target_distribution(const DistributionArgs& args) {
  const SamplingControls& c = *args.controls;
  TargetDistribution d;
  d.values = values_of(args);
  std::vector<std::int32_t> order;
  float top = kNoValue;
  for (std::size_t i = 0; i < d.values.size(); ++i) {
    if (std::isnan(d.values[i])) {
      d.has_nan = true;
      return d;
    }
    if (d.values[i] == kNoValue) continue;
    order.push_back(static_cast<std::int32_t>(i));
    top = std::max(top, d.values[i]);
  }
  if (order.empty()) return d;
  // sample() has the temperature as f32, in which the smallest ones are 0.
  const auto temperature = static_cast<double>(static_cast<float>(c.temperature));
  const bool greedy = temperature == 0;
  d.temperature = greedy ? 1 : temperature;
  double total = 0;
  for (const std::int32_t token : order)
    total += weight_of(d.values[at(token)], top, d.temperature);
  d.log_total = static_cast<double>(top) / d.temperature + std::log(total);
  const auto before = [&](std::int32_t a, std::int32_t b) {
    return d.values[at(a)] != d.values[at(b)] ? d.values[at(a)] > d.values[at(b)] : a < b;
  };
  if (greedy) {
    d.drawn = {.tokens = {*std::ranges::min_element(order, before)}, .probabilities = {1}};
    return d;
  }
  const bool cut = (c.top_k > 0 && c.top_k < std::ssize(d.values)) || c.top_p < 1 || c.min_p > 0;
  if (cut) {
    std::ranges::sort(order, before);
    std::vector<double> weights;
    weights.reserve(order.size());
    for (const std::int32_t token : order) {
      weights.push_back(weight_of(d.values[at(token)], top, d.temperature));
    }
    order.resize(at(kept_tokens(c, weights)));
    std::ranges::sort(order);
  }
  double sum = 0;
  for (const std::int32_t token : order) {
    const double weight = weight_of(d.values[at(token)], top, d.temperature);
    if (weight == 0) continue;
    d.drawn.tokens.push_back(token);
    d.drawn.probabilities.push_back(weight);
    sum += weight;
  }
  for (double& probability : d.drawn.probabilities) probability /= sum;
  return d;
}

}  // namespace touchstone::inline v0::decode
