// Sampled outputs: many draws of one call against the distribution that the oracle knows.
//
// Five questions, none of which a right sampler fails more often than the false-alarm rate says,
// for any number of draws; no limit theorem is involved. See docs/design/judge_tolerances.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "judge/task/task.h"

namespace touchstone::judge {

// A right sampler is called wrong in one of a thousand million cases, at most.
inline constexpr double kFalseAlarm = 1e-9;

struct DrawnRule {
  double false_alarm = kFalseAlarm;
  // How far the sampler's own probabilities may be from the oracle's, relative: f32 arithmetic.
  double relative_error = 1e-5;
};

// What the frequencies of a sample say.
struct DrawnTest {
  // At least as surprising draws come from a right sampler with this probability, at most. 0 when a
  // draw lies outside the support.
  double p_value = 1;
  std::string reason;          // one line: what surprises most
  int64_t outside = 0;         // draws outside the support
  int64_t first_outside = -1;  // the first of them
  int64_t value = -1;          // the value whose count surprises most
};
// `probability[v]` is that of value v; they sum to 1.
DrawnTest test_draws(std::span<const int32_t> draws, std::span<const double> probability,
                     const DrawnRule& rule = {});

// The comparer of Compare::distribution. Where the oracle cannot tell which of several
// distributions is meant (a token just at the border of top-p), the draws have to fit one of them.
struct DrawnError {
  OutputError error;
  std::string reason;  // empty when the draws fit
};
DrawnError compare_draws(const std::string& output, int call, std::span<const int32_t> draws,
                         std::span<const std::vector<double>> admissible,
                         const DrawnRule& rule = {});

// P(X >= k) and P(X <= k) for X binomial with n trials of probability p: exact to rounding.
double binomial_at_least(int64_t n, double p, int64_t k);
double binomial_at_most(int64_t n, double p, int64_t k);

}  // namespace touchstone::judge
