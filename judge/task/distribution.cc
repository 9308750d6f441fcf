#include "judge/task/distribution.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

constexpr int kQuestions = 4;  // of chance; the fifth, the support, has no false alarms
// Values by rank: this many are tested one by one, the rest in groups of growing
// size, since rare values by the thousand say nothing together that they do not say in groups.
constexpr size_t kAlone = 64;

// std::lgamma writes to a global.
double log_gamma(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}

double log_binomial(int64_t n, double p, int64_t k) {
  const auto count = static_cast<double>(n);
  const auto hits = static_cast<double>(k);
  return log_gamma(count + 1) - log_gamma(hits + 1) - log_gamma(count - hits + 1) +
         hits * std::log(p) + (count - hits) * std::log1p(-p);
}

struct Sample {
  std::span<const int32_t> draws;
  std::span<const double> probability;
  std::vector<int64_t> count;
  int64_t n = 0;
  double relative_error = 0;
};

// The most surprising answer so far.
struct Surprise {
  double p = 1;
  std::string reason;
  int64_t value = -1;

  void take(double p_value, std::string why, int64_t of = -1) {
    if (!(p_value < p)) return;
    p = p_value;
    reason = std::move(why);
    value = of;
  }
};

// Both tails of a count whose probability lies within the relative error of `probability`.
double two_tails(int64_t n, double probability, int64_t k, double relative_error) {
  const double high = std::min(1.0, probability * (1 + relative_error));
  const double low = probability * (1 - relative_error);
  return std::min(1.0, 2 * std::min(binomial_at_least(n, high, k), binomial_at_most(n, low, k)));
}

// Each value by itself.
void ask_counts(const Sample& s, Surprise& most) {
  const auto possible =
      static_cast<double>(std::ranges::count_if(s.probability, [](double p) { return p > 0; }));
  for (size_t v = 0; v < s.probability.size(); ++v) {
    if (s.probability[v] <= 0) continue;
    const double p = possible * two_tails(s.n, s.probability[v], s.count[v], s.relative_error);
    if (p >= most.p) continue;
    most.take(p,
              fmt::format("{} of {} draws are {}, about {:.0f} should be", s.count[v], s.n, v,
                          s.probability[v] * static_cast<double>(s.n)),
              static_cast<int64_t>(v));
  }
}

// All frequencies together, by their relative entropy d to the right ones. For k possible values
// P(d >= x) <= exp(-n x) (e n x / (k - 1))^(k - 1), whatever n (R. Agrawal, 2020).
void ask_all_frequencies(const Sample& s, Surprise& most) {
  std::vector<size_t> rank;
  for (size_t v = 0; v < s.probability.size(); ++v) {
    if (s.probability[v] > 0) rank.push_back(v);
  }
  std::ranges::stable_sort(rank,
                           [&](size_t a, size_t b) { return s.probability[a] > s.probability[b]; });
  const auto n = static_cast<double>(s.n);
  double distance = 0;
  double groups = 0;
  size_t begin = 0;
  while (begin < rank.size()) {
    const size_t size = begin < kAlone ? 1 : begin / 4;
    const size_t end = std::min(begin + size, rank.size());
    double right = 0;
    int64_t count = 0;
    for (size_t i = begin; i < end; ++i) {
      right += s.probability[rank[i]];
      count += s.count[rank[i]];
    }
    const double got = static_cast<double>(count) / n;
    if (count > 0) distance += got * std::log(got / right);
    groups += 1;
    begin = end;
  }
  if (groups < 2) return;
  const double x = n * (distance - s.relative_error);
  const double k = groups - 1;
  if (x <= k) return;
  most.take(std::exp(-x + k + k * std::log(x / k)),
            fmt::format("the frequencies of {} draws are {:.2g} nats from the right ones", s.n,
                        distance));
}

// The mean of log p over the draws: what a wrong temperature changes first. Its tails are bounded
// by Chernoff's inequality with the moments of the distribution itself.
void ask_mean_surprise(const Sample& s, Surprise& most) {
  std::vector<std::pair<double, double>> terms;  // p, log p
  double sum = 0;
  for (size_t v = 0; v < s.probability.size(); ++v) {
    if (s.probability[v] <= 0) continue;
    terms.emplace_back(s.probability[v], std::log(s.probability[v]));
    sum += static_cast<double>(s.count[v]) * terms.back().second;
  }
  const double mean = sum / static_cast<double>(s.n);
  const double right = std::transform_reduce(terms.begin(), terms.end(), 0.0, std::plus<>(),
                                             [](const auto& t) { return t.first * t.second; });
  // log E exp(t log p) - t mean, smallest in t: the sign of t is that of the difference. Convex, so
  // a search by thirds finds it; any t gives a valid bound.
  const auto exponent = [&](double t) {
    double total = 0;
    for (const auto& [p, log_p] : terms) total += std::exp((1 + t) * log_p);
    return std::log(total) - t * mean;
  };
  double low = mean > right ? 0.0 : -0.999;
  double high = mean > right ? 8.0 : 0.0;
  for (int i = 0; i < 80; ++i) {
    const double a = low + (high - low) / 3;
    const double b = high - (high - low) / 3;
    if (exponent(a) < exponent(b)) {
      high = b;
    } else {
      low = a;
    }
  }
  const double t = (low + high) / 2;
  const double slack = std::fabs(t) * s.relative_error + s.relative_error;
  const double bound = static_cast<double>(s.n) * (exponent(t) + slack);
  if (!(bound < 0)) return;
  most.take(2 * std::exp(bound),
            fmt::format("the mean of log p over {} draws is {:.4f} instead of {:.4f}: too {}", s.n,
                        mean, right, mean > right ? "sure" : "even"));
}

// Whether neighbors are drawn independently: of the pairs (0, 1), (2, 3), ... a binomial number
// holds the same value twice.
void ask_pairs(const Sample& s, Surprise& most) {
  double same = 0;
  for (const double p : s.probability) same += p * p;
  int64_t twice = 0;
  const int64_t pairs = s.n / 2;
  for (int64_t i = 0; i < pairs; ++i) {
    const auto at = static_cast<size_t>(2 * i);
    twice += s.draws[at] == s.draws[at + 1] ? 1 : 0;
  }
  most.take(two_tails(pairs, same, twice, 2 * s.relative_error),
            fmt::format("{} of {} pairs of neighboring draws are equal, about {:.0f} should be",
                        twice, pairs, same * static_cast<double>(pairs)));
}

}  // namespace

double binomial_at_least(int64_t n, double p, int64_t k) {
  if (k <= 0) return 1;
  if (k > n || p <= 0) return 0;
  if (p >= 1) return 1;
  // Below the mean it is no surprise, and the sum would be long.
  if (static_cast<double>(k) <= static_cast<double>(n) * p) return 1;
  const double first = log_binomial(n, p, k);
  const double odds = p / (1 - p);
  double sum = 1;
  double term = 1;
  for (int64_t i = k; i < n && term > 1e-17 * sum; ++i) {
    term *= static_cast<double>(n - i) / static_cast<double>(i + 1) * odds;
    sum += term;
  }
  return std::min(1.0, std::exp(first) * sum);
}

double binomial_at_most(int64_t n, double p, int64_t k) {
  return binomial_at_least(n, 1 - p, n - k);
}

DrawnTest test_draws(std::span<const int32_t> draws, std::span<const double> probability,
                     const DrawnRule& rule) {
  DrawnTest test;
  Sample s{draws, probability, std::vector<int64_t>(probability.size()),
           static_cast<int64_t>(draws.size()), rule.relative_error};
  for (size_t i = 0; i < draws.size(); ++i) {
    const int32_t v = draws[i];
    const bool possible = v >= 0 && static_cast<size_t>(v) < probability.size() &&
                          probability[static_cast<size_t>(v)] > 0;
    if (possible) {
      ++s.count[static_cast<size_t>(v)];
    } else if (test.outside++ == 0) {
      test.first_outside = static_cast<int64_t>(i);
    }
  }
  if (test.outside > 0) {
    test.p_value = 0;
    test.value = draws[static_cast<size_t>(test.first_outside)];
    test.reason = fmt::format("{} of {} draws have probability 0, the first is {}", test.outside,
                              s.n, test.value);
    return test;
  }
  if (s.n == 0) return test;
  Surprise most;
  ask_counts(s, most);
  ask_all_frequencies(s, most);
  ask_mean_surprise(s, most);
  ask_pairs(s, most);
  test.p_value = std::min(1.0, kQuestions * most.p);
  test.reason = most.reason;
  test.value = most.value;
  return test;
}

DrawnError compare_draws(const std::string& output, int call, std::span<const int32_t> draws,
                         std::span<const std::vector<double>> admissible, const DrawnRule& rule) {
  if (admissible.empty()) throw InvalidArgument("compare_draws: admissible: expected one at least");
  DrawnTest best;
  size_t chosen = 0;
  for (size_t i = 0; i < admissible.size(); ++i) {
    DrawnTest test = test_draws(draws, admissible[i], rule);
    const bool better = i == 0 || test.p_value > best.p_value ||
                        (test.p_value == best.p_value && test.outside < best.outside);
    if (!better) continue;
    best = std::move(test);
    chosen = i;
  }
  DrawnError result;
  OutputError& error = result.error;
  error.output = output;
  error.call = call;
  error.count = static_cast<int64_t>(draws.size());
  // In units of the bound: the surprise, measured in the surprise that is allowed.
  error.worst = best.p_value > 0 ? std::log(best.p_value) / std::log(rule.false_alarm)
                                 : std::numeric_limits<double>::infinity();
  if (best.p_value >= rule.false_alarm) return result;
  error.outside = std::max<int64_t>(best.outside, 1);
  error.first = std::max<int64_t>(best.first_outside, 0);
  if (best.value >= 0 && best.value < static_cast<int64_t>(admissible[chosen].size())) {
    const auto drawn = std::ranges::count(draws, static_cast<int32_t>(best.value));
    error.got = static_cast<double>(drawn) / static_cast<double>(draws.size());
    error.expected = admissible[chosen][static_cast<size_t>(best.value)];
  }
  result.reason = best.outside > 0 ? best.reason
                                   : fmt::format("{}; by chance with probability {:.1g} at most",
                                                 best.reason, best.p_value);
  return result;
}

}  // namespace touchstone::judge
