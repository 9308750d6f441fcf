// The float64 answer and the error that f32 arithmetic may make, element by element. The terms are
// derived in docs/judge_tolerances.md.
#include <algorithm>
#include <cmath>

#include "judge/task/generate.h"
#include "judge/task/tasks/layer_norm_backward/layer_norm.h"
#include "oracle/norm.h"

namespace touchstone::judge::layer_norm {
namespace {

// One row in float64, with what its errors are made of.
struct Row {
  std::vector<double> xhat;
  std::vector<double> xhat_error;  // of an f32 computation, bounded
  double rstd = 0;
  double rstd_error = 0;  // relative
};

Row analyze_row(const Problem& p, int64_t row, const Tolerance& t) {
  const auto cols = static_cast<size_t>(p.cols);
  std::vector<double> h(cols);
  double mean_magnitude = 0;
  for (size_t j = 0; j < cols; ++j) {
    h[j] = static_cast<double>(p.x[static_cast<size_t>(row * p.cols) + j]);
    mean_magnitude += std::fabs(h[j]);
  }
  mean_magnitude /= static_cast<double>(p.cols);
  const auto stats =
      oracle::norm_stats<double>(oracle::Norm::layer, p.cols, h.data(), static_cast<double>(p.eps));

  Row r;
  r.rstd = stats.rstd;
  r.xhat.resize(cols);
  r.xhat_error.resize(cols);
  const double g = running_growth_of(t.growth, p.cols);
  const double cu = t.factor * kUnit;
  const double mean = std::fabs(stats.mean) * r.rstd;          // in standard deviations
  const double mean_error = cu * g * mean_magnitude * r.rstd;  // likewise
  // mean(x^2) - mean(x)^2 multiplies rounding errors by this; allowed where stability is not asked.
  const double condition = t.stable ? 1 : 1 + mean * mean;
  r.rstd_error = cu * g * condition + mean_error * mean_error;
  for (size_t j = 0; j < cols; ++j) {
    r.xhat[j] = stats.xhat(h[j]);
    const double magnitude = std::fabs(r.xhat[j]);
    r.xhat_error[j] = mean_error + cu * (std::fabs(h[j]) * r.rstd + mean + 2 * magnitude) +
                      magnitude * r.rstd_error;
  }
  return r;
}

void forward_bounds(const Problem& p, int64_t row, const Row& r, const Tolerance& t, Expected& y) {
  for (size_t j = 0; j < r.xhat.size(); ++j) {
    const size_t at = static_cast<size_t>(row * p.cols) + j;
    const auto gamma = static_cast<double>(p.gamma[j]);
    y.scale[at] = std::fabs(r.xhat[j] * gamma) + std::fabs(static_cast<double>(p.beta[j]));
    y.bound[at] =
        std::fabs(gamma) * r.xhat_error[j] + t.factor * kUnit * y.scale[at] + kSmallestNormal;
  }
}

// `scale` holds the magnitudes of the terms already, and `value` what the oracle says.
void backward_bounds(const Problem& p, int64_t row, const Row& r, const Tolerance& t, Answer& a) {
  const auto count = static_cast<double>(p.cols);
  const double cu = t.factor * kUnit;
  const double growth = running_growth_of(t.growth, p.cols);
  double c2 = 0;        // mean of g * xhat
  double c1_error = 0;  // of the means of g and of g * xhat
  double c2_error = 0;
  for (size_t j = 0; j < r.xhat.size(); ++j) {
    const auto dy = static_cast<double>(p.dy[static_cast<size_t>(row * p.cols) + j]);
    const double g = dy * static_cast<double>(p.gamma[j]);
    c2 += g * r.xhat[j] / count;
    c1_error += cu * growth * std::fabs(g) / count;
    c2_error += (cu * growth * std::fabs(g * r.xhat[j]) + std::fabs(g) * r.xhat_error[j]) / count;
    a.dgamma.bound[j] += std::fabs(dy) * r.xhat_error[j];
  }
  for (size_t j = 0; j < r.xhat.size(); ++j) {
    const size_t at = static_cast<size_t>(row * p.cols) + j;
    const double variance_error = r.xhat_error[j] * (std::fabs(c2) + c2_error) +
                                  std::fabs(r.xhat[j]) * c2_error +
                                  2 * r.rstd_error * std::fabs(r.xhat[j] * c2);
    a.dx.bound[at] =
        (2 * cu * a.dx.scale[at] + r.rstd * (c1_error + variance_error)) * (1 + r.rstd_error) +
        std::fabs(a.dx.value[at]) * r.rstd_error + kSmallestNormal;
  }
}

std::vector<double> doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

bool shared_errors(const Problem& p, int64_t row, bool backward,
                   std::vector<std::vector<double>>& vectors) {
  const Row r = analyze_row(p, row, {});
  if (!std::isfinite(r.rstd)) return false;
  const auto cols = static_cast<size_t>(p.cols);
  const size_t base = static_cast<size_t>(row) * cols;
  vectors.assign(backward ? 3 : 2, std::vector<double>(cols));
  for (size_t j = 0; j < cols; ++j) {
    const auto gamma = static_cast<double>(p.gamma[j]);
    if (!std::isfinite(r.xhat[j])) return false;
    // The mean shifts, the variance scales.
    vectors[0][j] = backward ? 1 : gamma;
    vectors[1][j] = (backward ? 1 : gamma) * r.xhat[j];
    if (backward) vectors[2][j] = static_cast<double>(p.dy[base + j]) * gamma;
    if (!std::isfinite(vectors.back()[j])) return false;
  }
  return true;
}

Answer expected_answer(const Problem& p, const Tolerance& t) {
  Answer a;
  a.y = Expected(p.rows * p.cols);
  a.dx = Expected(p.rows * p.cols);
  a.dgamma = Expected(p.cols);
  a.dbeta = Expected(p.cols);
  const std::vector<double> x = doubles(p.x);
  const std::vector<double> gamma = doubles(p.gamma);
  const std::vector<double> beta = doubles(p.beta);
  const std::vector<double> dy = doubles(p.dy);
  oracle::norm_forward<double>({.rows = p.rows,
                                .cols = p.cols,
                                .eps = static_cast<double>(p.eps),
                                .x = x.data(),
                                .weight = gamma.data(),
                                .bias = beta.data(),
                                .y = a.y.value.data()});
  oracle::NormBackward backward{.rows = p.rows,
                                .cols = p.cols,
                                .eps = static_cast<double>(p.eps),
                                .dy = dy.data(),
                                .h = x.data(),
                                .weight = gamma.data(),
                                .dx = a.dx.value.data(),
                                .dweight = a.dgamma.value.data(),
                                .dbias = a.dbeta.value.data()};
  oracle::norm_backward(backward);
  backward.dx = a.dx.scale.data();
  backward.dweight = a.dgamma.scale.data();
  backward.dbias = a.dbeta.scale.data();
  oracle::norm_backward_magnitude(backward);
  set_bounds(p, t, a);
  return a;
}

void set_bounds(const Problem& p, const Tolerance& t, Answer& a) {
  std::ranges::fill(a.dgamma.bound, 0);
  for (int64_t row = 0; row < p.rows; ++row) {
    const Row r = analyze_row(p, row, t);
    forward_bounds(p, row, r, t, a.y);
    backward_bounds(p, row, r, t, a);
  }
  const double column_growth = t.factor * kUnit * growth_of(t.growth, p.rows);
  for (size_t j = 0; j < a.dgamma.value.size(); ++j) {
    a.dgamma.bound[j] += column_growth * a.dgamma.scale[j] + kSmallestNormal;
    a.dbeta.bound[j] = column_growth * a.dbeta.scale[j] + kSmallestNormal;
  }
}

}  // namespace touchstone::judge::layer_norm
