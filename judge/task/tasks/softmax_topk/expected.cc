// The float64 answer, the error that f32 arithmetic may make, and what counts as a tie. The terms
// are derived in docs/judge_tolerances.md.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <unordered_set>

#include "judge/task/tasks/softmax_topk/softmax_topk.h"
#include "oracle/softmax_topk.h"

namespace touchstone::judge::softmax_topk {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void note(OutputError& error, int64_t element, double got, double expected) {
  error.worst = kNan;
  if (error.outside++ != 0) return;
  error.first = element;
  error.got = got;
  error.expected = expected;
}

// Some column that holds this logit: reported as the expected one.
double column_of(std::span<const float> logits, float value) {
  const auto found = std::ranges::find(logits, value);
  return found == logits.end() ? -1 : static_cast<double>(found - logits.begin());
}

void check_probability(OutputError& error, int64_t element, double got, double right, double bound,
                       double scale) {
  ++error.count;
  const double distance = std::fabs(got - right);
  if (!(distance <= bound)) {
    if (error.outside++ == 0) {
      error.first = element;
      error.got = got;
      error.expected = right;
    }
  }
  if (!std::isfinite(got)) {
    error.worst = error.worst_absolute = kNan;
    return;
  }
  error.worst = std::max(error.worst, distance / bound);
  error.worst_absolute = std::max(error.worst_absolute, distance);
  if (scale > kSmallestNormal) {
    error.worst_bits = std::max(error.worst_bits, std::log2(1 + distance / (kUnit * scale)));
  }
}

}  // namespace

double Row::probability(float logit) const {
  if (all_masked) return 0;
  return std::exp(oracle::softmax_log_weight(static_cast<double>(logit), largest, 1)) / sum;
}

double Row::bound(float logit, const Tolerance& t) const {
  const double p = probability(logit);
  if (p == 0) return kSmallestNormal;
  const double distance = largest - static_cast<double>(logit);
  return (common_error + t.factor * kUnit * (4 + distance)) * p + kSmallestNormal;
}

double Row::own_bound(float logit, const Tolerance& t) const {
  if (probability(logit) == 0) return kSmallestNormal;
  const double distance = largest - static_cast<double>(logit);
  return (own_error + t.factor * kUnit * distance) * probability(logit) + kSmallestNormal;
}

double Row::gap(float logit, const Tolerance& t) const {
  const double p = probability(logit);
  if (p == 0) return kSmallestNormal;
  const double distance = largest - static_cast<double>(logit);
  return (tie_error + t.factor * kUnit * distance) * p + kSmallestNormal;
}

Row analyze_row(std::span<const float> logits, int64_t k, const Tolerance& t) {
  Row row;
  row.largest = -kInfinity;
  for (const float v : logits) {
    row.has_nan = row.has_nan || std::isnan(v);
    row.largest = std::max(row.largest, static_cast<double>(v));
  }
  if (row.has_nan) return row;
  row.all_masked = row.largest == -kInfinity;
  row.kept.assign(logits.begin(), logits.end());
  const auto middle = row.kept.begin() + k;
  if (middle != row.kept.end()) {
    std::nth_element(row.kept.begin(), middle, row.kept.end(), std::greater<>());
    row.kept.resize(static_cast<size_t>(k));
  }
  std::ranges::sort(row.kept, std::greater<>());
  if (row.all_masked) return row;

  double distances = 0;  // weighted with the exponentials
  std::vector<double> terms;
  terms.reserve(logits.size());
  for (const float v : logits) {
    const double distance = row.largest - static_cast<double>(v);
    if (distance > 800) continue;  // exp of it is below any f64
    terms.push_back(std::exp(oracle::softmax_log_weight(static_cast<double>(v), row.largest, 1)));
    row.sum += terms.back();
    distances += terms.back() * distance;
  }
  // Terms of a few roundings of the sum are not rounded at random: a running sum may lose them all.
  const double rounding = kUnit * row.sum;
  double lost = 0;
  for (const double e : terms) {
    if (e < 8 * rounding) lost += std::min(e, rounding);
  }
  const double log_sum = std::log(row.sum);
  double units =
      4 + running_growth_of(t.growth, static_cast<int64_t>(logits.size())) + distances / row.sum;
  // exp(v - (max + log sum)) rounds the parenthesis; with a large maximum this costs digits.
  if (!t.stable) units += std::min(std::fabs(row.largest) + log_sum, 1e4);
  row.common_error = t.factor * kUnit * units + 1.5 * lost / row.sum;
  row.tie_error = t.factor * kUnit * (4 + log_sum);
  row.own_error =
      t.factor * kUnit * (4 + log_sum + (t.stable ? 0 : std::min(std::fabs(row.largest), 1e4)));
  return row;
}

void check_row(const Problem& p, int64_t r, std::span<const float> probabilities,
               std::span<const int32_t> indices, const Tolerance& t, RowErrors& errors) {
  const std::span<const float> logits(p.logits.data() + r * p.vocab, static_cast<size_t>(p.vocab));
  const Row row = analyze_row(logits, p.k, t);
  std::unordered_set<int32_t> seen;
  for (int64_t j = 0; j < p.k; ++j) {
    const int64_t element = r * p.k + j;
    const auto got = static_cast<double>(probabilities[static_cast<size_t>(j)]);
    const int32_t index = indices[static_cast<size_t>(j)];
    if (row.has_nan) {
      ++errors.probabilities.count;
      if (!std::isnan(got)) note(errors.probabilities, element, got, kNan);
      continue;
    }
    ++errors.indices.count;
    const float wanted = row.kept[static_cast<size_t>(j)];
    const bool in_range = index >= 0 && index < p.vocab;
    if (!in_range || !seen.insert(index).second) {
      note(errors.indices, element, static_cast<double>(index), column_of(logits, wanted));
      check_probability(errors.probabilities, element, got, row.probability(wanted),
                        row.bound(wanted, t), row.probability(wanted));
      continue;
    }
    const float logit = logits[static_cast<size_t>(index)];
    const double right = row.probability(logit);
    if (!(std::fabs(right - row.probability(wanted)) <=
          std::max(row.gap(logit, t), row.gap(wanted, t)))) {
      note(errors.indices, element, static_cast<double>(index), column_of(logits, wanted));
    }
    check_probability(errors.probabilities, element, got, right, row.bound(logit, t), right);
    const auto at = static_cast<size_t>(element);
    if (at >= errors.own.value.size()) continue;
    errors.own.value[at] = right;
    errors.own.bound[at] = row.own_bound(logit, t);
  }
}

}  // namespace touchstone::judge::softmax_topk
