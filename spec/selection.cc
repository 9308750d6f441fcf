#include "spec/selection.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/index.h"
#include "touchstone/core/checked.h"
#include "touchstone/ops/softmax_topk.h"

namespace touchstone::spec {
namespace {

std::int32_t bit_if(bool condition, RowStatus bit) { return condition ? to_int(bit) : 0; }

}  // namespace

const std::int32_t kHowRowWasDone = bit_if(true, RowStatus::two_pass);

std::int32_t expected_status(const oracle::SoftmaxTopkRow& row) {
  if (row.bad_temperature) return bit_if(true, RowStatus::bad_parameter);
  if (row.has_nan) return bit_if(true, RowStatus::has_nan);
  return bit_if(row.has_infinity, RowStatus::has_infinity) |
         bit_if(row.all_masked, RowStatus::all_masked) |
         bit_if(row.fewer_than_k, RowStatus::fewer_than_k);
}

std::int32_t expected_status(const oracle::SampleDistribution& d, std::int64_t top_count) {
  if (d.outcome == oracle::SampleOutcome::bad_parameter) {
    return bit_if(true, RowStatus::bad_parameter);
  }
  if (d.outcome == oracle::SampleOutcome::has_nan) return bit_if(true, RowStatus::has_nan);
  return bit_if(d.has_infinity, RowStatus::has_infinity) |
         bit_if(d.above == 0, RowStatus::all_masked) |
         bit_if(d.above < top_count, RowStatus::fewer_than_k);
}

void TopkReference::add(const oracle::SoftmaxTopkRow& row, double temperature,
                        std::int32_t status_now) {
  for (std::size_t j = 0; j < row.tokens.size(); ++j) {
    tokens.add(static_cast<double>(row.tokens[j]), 0);
    // The bound of the contract; +inf has no distance to itself.
    const double distance = (row.largest - row.values[j]) / temperature;
    const double relative = 1e-6 + (std::isfinite(distance) ? 2e-7 * distance : 0);
    // A subnormal result is rounded once as a weight and once as a probability.
    const double subnormal = row.probability[j] < 0x1p-120 ? 2 * 0x1p-149 : 0;
    probability.add(row.probability[j],
                    row.probability[j] > 0 ? relative * row.probability[j] + subnormal : subnormal);
    // A relative error of p is an absolute one of log p.
    const double log_p = row.log_probability[j];
    const double once = with_rounding(DType::f32, log_p, 1e-6 + relative);
    log_probability.add(log_p, std::isfinite(log_p) ? with_rounding(DType::f32, log_p, once) : 0);
  }
  // Of the sum, and of the two numbers that are added.
  const double added = with_rounding(DType::f32, row.largest / temperature, 1e-6);
  log_sum_exp.add(row.log_sum_exp, std::isfinite(row.log_sum_exp)
                                       ? with_rounding(DType::f32, row.log_sum_exp, added)
                                       : 0);
  status.add(expected_status(row) | (status_now & kHowRowWasDone), 0);
}

bool is_the_draw(const oracle::SampleRow& row, const oracle::SampleDistribution& d, double u,
                 std::int64_t token, double tolerance, std::string* why) {
  // The cuts change nothing but how many tokens of the order are kept.
  const auto kept_with = [&](double factor) {
    oracle::SampleRow shifted;
    shifted.top_k = row.top_k;
    shifted.top_p = row.top_p < 1 ? std::clamp(row.top_p * factor, 0.0, 1.0) : 1;
    // Weights equal to the first are equal in any arithmetic: nothing shifts at 1.
    shifted.min_p = row.min_p < 1 ? std::clamp(row.min_p / factor, 0.0, 1.0) : 1;
    return row.temperature == 0 ? 1 : oracle::sample_detail::kept_count(shifted, d);
  };
  if (std::ranges::find(d.order, token) == d.order.end()) {
    if (why) *why = std::to_string(token) + " is no token";
    return false;
  }
  const std::int64_t fewest = std::min(d.kept, kept_with(1 - tolerance));
  const std::int64_t most = std::max(d.kept, kept_with(1 + tolerance));
  const bool by_token =
      d.kept == static_cast<std::int64_t>(d.order.size()) && std::ranges::is_sorted(d.drawn);
  const std::vector<std::int64_t>& walk = by_token ? d.drawn : d.order;
  for (std::int64_t kept = fewest; kept <= most; ++kept) {
    double mass = 0;
    for (std::int64_t i = 0; i < kept; ++i) mass += d.weight[at(walk[at(i)])];
    double before = 0;
    for (std::int64_t i = 0; i < kept; ++i) {
      const double after = before + d.weight[at(walk[at(i)])];
      const bool hit =
          after > before && before <= (u + tolerance) * mass && after >= (u - tolerance) * mass;
      if (walk[at(i)] == token && hit) return true;
      before = after;
    }
  }
  if (why) {
    *why = "u = " + std::to_string(u) + " picks " + std::to_string(d.token(u)) + " of " +
           std::to_string(d.kept) + " kept, not " + std::to_string(token);
  }
  return false;
}

double log_probability_bound(const oracle::SampleRow& row, const oracle::SampleDistribution& d,
                             std::int64_t token) {
  const double expected = d.log_probability[at(token)];
  if (std::isinf(expected)) return 0;
  const double temperature = row.temperature == 0 ? 1 : row.temperature;
  const float largest = d.value[at(d.order[0])];
  const float value = d.value[at(token)];
  const double distance =
      value == largest ? 0
                       : (static_cast<double>(largest) - static_cast<double>(value)) / temperature;
  return with_rounding(DType::f32, expected, 1e-6 + 2e-7 * distance);
}

std::vector<std::int32_t> packed_mask(const std::vector<bool>& allowed) {
  std::vector<std::uint32_t> words(at(ceil_div(std::ssize(allowed), 32)));
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    if (allowed[i]) words[i / 32] |= 1U << (i % 32);
  }
  if (allowed.size() % 32 != 0) words.back() |= ~0U << (allowed.size() % 32);
  std::vector<std::int32_t> result;
  for (const std::uint32_t word : words) result.push_back(std::bit_cast<std::int32_t>(word));
  return result;
}

}  // namespace touchstone::spec
