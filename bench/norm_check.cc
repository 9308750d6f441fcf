// The check that comes before a time is taken: float64 on a sample of the output.
#include <cmath>
#include <vector>

#include "bench/data.h"
#include "bench/norm_data.h"
#include "oracle/layer_norm.h"
#include "oracle/rms_norm.h"

namespace touchstone::bench {
namespace {

constexpr std::int64_t kSampledRows = 16;
constexpr std::int64_t kSampledColumns = 16;

double relative_error(const std::vector<double>& got, const std::vector<double>& expected) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

// The larger, where NaN counts as larger than anything.
double worse(double a, double b) { return std::isnan(a) || a > b ? a : b; }

std::vector<double> expected_rows(const NormProblem& problem, const NormData& data,
                                  const NormSet& set, const std::vector<std::int64_t>& rows) {
  const std::vector<double> x = sampled_rows(set.x, rows);
  const std::vector<double> gamma = doubles(data.gamma);
  const std::vector<double> beta = doubles(data.beta);
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<double> result(x.size());
  if (problem.direction == Direction::forward) {
    if (problem.kind == norm::Kind::layer) {
      oracle::LayerNormForward<double> args;
      args.rows = count, args.cols = problem.cols, args.eps = kEpsilon;
      args.x = x.data(), args.gamma = gamma.data(), args.beta = beta.data();
      args.y = result.data();
      oracle::layer_norm_forward(args);
    } else {
      oracle::RmsNormForward<double> args;
      args.rows = count, args.cols = problem.cols, args.eps = kEpsilon;
      args.x = x.data(), args.weight = gamma.data(), args.y = result.data();
      oracle::rms_norm_forward(args);
    }
    return result;
  }
  const std::vector<double> dy = sampled_rows(set.dy, rows);
  if (problem.kind == norm::Kind::layer) {
    oracle::LayerNormBackward args;
    args.rows = count, args.cols = problem.cols, args.eps = kEpsilon;
    args.dy = dy.data(), args.h = x.data(), args.gamma = gamma.data(), args.dx = result.data();
    oracle::layer_norm_backward(args);
  } else {
    oracle::RmsNormBackward args;
    args.rows = count, args.cols = problem.cols, args.eps = kEpsilon;
    args.dy = dy.data(), args.h = x.data(), args.weight = gamma.data(), args.dx = result.data();
    oracle::rms_norm_backward(args);
  }
  return result;
}

// Sums over all rows for a few columns. The row statistics come from the forward, whose output
// has been checked; their rounding is far below the bound.
double column_error(const NormProblem& problem, const NormSet& set) {
  const Tensor x = set.x.to(Device::cpu());
  const Tensor dy = set.dy.to(Device::cpu());
  const std::vector<double> mean = doubles(set.mean);
  const std::vector<double> rstd = doubles(set.rstd);
  const std::vector<double> dgamma = doubles(set.dgamma);
  const std::vector<double> dbeta = doubles(set.dbeta);
  const bool layer = problem.kind == norm::Kind::layer;
  std::vector<double> got_gamma, got_beta, want_gamma, want_beta;
  visit_float_dtype(problem.dtype, [&]<class T>() {
    const std::span<const T> xs = x.values<T>();
    const std::span<const T> dys = dy.values<T>();
    for (const std::int64_t column : spread_sample(problem.cols, kSampledColumns)) {
      double gamma_sum = 0;
      double beta_sum = 0;
      for (std::int64_t row = 0; row < problem.rows; ++row) {
        const auto at = static_cast<std::size_t>(row * problem.cols + column);
        const auto r = static_cast<std::size_t>(row);
        const double g = convert<double>(dys[at]);
        gamma_sum += g * (convert<double>(xs[at]) - (layer ? mean[r] : 0.0)) * rstd[r];
        beta_sum += g;
      }
      want_gamma.push_back(gamma_sum);
      want_beta.push_back(beta_sum);
      got_gamma.push_back(dgamma[static_cast<std::size_t>(column)]);
      got_beta.push_back(dbeta[static_cast<std::size_t>(column)]);
    }
  });
  const double gamma_error = relative_error(got_gamma, want_gamma);
  return layer ? worse(gamma_error, relative_error(got_beta, want_beta)) : gamma_error;
}

}  // namespace

double norm_error(Context& context, const NormProblem& problem, NormData& data,
                  const NormCall& call) {
  NormSet& set = data.sets.back();
  poison(context, set.out);
  if (problem.direction == Direction::backward) {
    poison(context, set.dgamma);
    poison(context, set.dbeta);
  }
  call(set);
  context.synchronize();
  const std::vector<std::int64_t> rows = spread_sample(problem.rows, kSampledRows);
  const double error =
      relative_error(sampled_rows(set.out, rows), expected_rows(problem, data, set, rows));
  if (problem.direction == Direction::forward) return error;
  return worse(error, column_error(problem, set));
}

}  // namespace touchstone::bench
