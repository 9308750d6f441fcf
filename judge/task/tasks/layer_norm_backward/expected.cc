// The float64 answer and the error that f32 arithmetic may make, element by element. The terms are
// derived in docs/judge_tolerances.md.
#include <cmath>

#include "judge/task/generate.h"
#include "judge/task/tasks/layer_norm_backward/layer_norm.h"
#include "oracle/layer_norm.h"

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
  const auto stats = oracle::layer_norm_stats<double>(p.cols, h.data(), static_cast<double>(p.eps));

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

void forward_row(const Problem& p, int64_t row, const Row& r, const Tolerance& t, Expected& y) {
  for (size_t j = 0; j < r.xhat.size(); ++j) {
    const size_t at = static_cast<size_t>(row * p.cols) + j;
    const auto gamma = static_cast<double>(p.gamma[j]);
    const auto beta = static_cast<double>(p.beta[j]);
    y.value[at] = r.xhat[j] * gamma + beta;
    y.scale[at] = std::fabs(r.xhat[j] * gamma) + std::fabs(beta);
    y.bound[at] =
        std::fabs(gamma) * r.xhat_error[j] + t.factor * kUnit * y.scale[at] + kSmallestNormal;
  }
}

void backward_row(const Problem& p, int64_t row, const Row& r, const Tolerance& t, Answer& a) {
  const auto count = static_cast<double>(p.cols);
  const double cu = t.factor * kUnit;
  const double growth = running_growth_of(t.growth, p.cols);
  std::vector<double> g(r.xhat.size());
  double c1 = 0;        // mean of g
  double c2 = 0;        // mean of g * xhat
  double c1_error = 0;  // of the two means
  double c2_error = 0;
  for (size_t j = 0; j < g.size(); ++j) {
    const auto dy = static_cast<double>(p.dy[static_cast<size_t>(row * p.cols) + j]);
    g[j] = dy * static_cast<double>(p.gamma[j]);
    c1 += g[j];
    c2 += g[j] * r.xhat[j];
    c1_error += cu * growth * std::fabs(g[j]);
    c2_error += cu * growth * std::fabs(g[j] * r.xhat[j]) + std::fabs(g[j]) * r.xhat_error[j];
    a.dgamma.value[j] += dy * r.xhat[j];
    a.dgamma.scale[j] += std::fabs(dy * r.xhat[j]);
    a.dgamma.bound[j] += std::fabs(dy) * r.xhat_error[j];
    a.dbeta.value[j] += dy;
    a.dbeta.scale[j] += std::fabs(dy);
  }
  c1 /= count;
  c2 /= count;
  c1_error /= count;
  c2_error /= count;
  for (size_t j = 0; j < g.size(); ++j) {
    const size_t at = static_cast<size_t>(row * p.cols) + j;
    const double through_variance = std::fabs(r.xhat[j] * c2);
    const double bracket = (g[j] - c1) - r.xhat[j] * c2;
    const double terms = std::fabs(g[j]) + std::fabs(c1) + through_variance;
    const double variance_error = r.xhat_error[j] * (std::fabs(c2) + c2_error) +
                                  std::fabs(r.xhat[j]) * c2_error +
                                  2 * r.rstd_error * through_variance;
    a.dx.value[at] = r.rstd * bracket;
    a.dx.scale[at] = r.rstd * terms;
    a.dx.bound[at] = r.rstd * ((2 * cu * terms + c1_error + variance_error) * (1 + r.rstd_error) +
                               std::fabs(bracket) * r.rstd_error) +
                     kSmallestNormal;
  }
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
  for (int64_t row = 0; row < p.rows; ++row) {
    const Row r = analyze_row(p, row, t);
    forward_row(p, row, r, t, a.y);
    backward_row(p, row, r, t, a);
  }
  const double column_growth = t.factor * kUnit * growth_of(t.growth, p.rows);
  for (size_t j = 0; j < a.dgamma.value.size(); ++j) {
    a.dgamma.bound[j] += column_growth * a.dgamma.scale[j] + kSmallestNormal;
    a.dbeta.bound[j] = column_growth * a.dbeta.scale[j] + kSmallestNormal;
  }
  return a;
}

}  // namespace touchstone::judge::layer_norm
