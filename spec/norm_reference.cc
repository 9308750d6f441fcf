// Expected values from the oracle, and the bounds an implementation must keep. With u the unit
// roundoff of the arithmetic (f32, or f64 for f64) and G(n) the growth of a sum of n terms:
//
//   c = (h - m) - delta. The mean m is off by up to G u A, A = mean |h|; so is delta, which takes
//   that error out again up to G u of it and of mean |h - m|. Hence xhat = c * rstd has the error
//     E = u (G + 4) (|xhat| + mean |xhat|) + (G u)^2 A rstd (1 + |xhat|)
//   where 4 stands for the handful of single operations. RMS norm has neither m nor A:
//     E = u (G + 4) |xhat|
//   y      E |w| + 3 u (|xhat w| + |bias|)
//   mean   G u A
//   rstd   relative r = u (G + 4) (1 + (G u A rstd)^2): the squares are summed about m, not c
//          In f32 these two are no tighter than the contract: 1e-6 A and 1e-6.
//   dx     (u (G + 8) + r) times the oracle's magnitude sum, and what xhat and the two row sums
//          carry: rstd (u (G + 4) (mean |g| + |xhat| mean |g xhat|) + |xhat| mean |g| E + |c2| E)
//   dweight  u (G(rows) + 4) sum |dy xhat| + sum |dy| E
//   dbias    u (G(rows) + 1) sum |dy|
//
// and each output is rounded once to its dtype.
#include <algorithm>
#include <cmath>

#include "core/index.h"
#include "spec/norm.h"

namespace touchstone::spec {
namespace {

// What the contract grants f32 statistics, of the terms that they are sums of.
constexpr double kContract = 1e-6;

const double* data_or_null(const std::vector<double>& v) { return v.empty() ? nullptr : v.data(); }

struct Row {
  double mean = 0;
  double rstd = 0;
  double size = 0;        // A = mean |h| for layer norm
  double rstd_error = 0;  // relative
  std::vector<double> xhat;
  std::vector<double> error;  // of xhat
};

class Bounds {
 public:
  explicit Bounds(const NormProblem& p)
      : p_(p),
        arithmetic_(wide_dtype(p.dtype)),
        u_(unit_roundoff(arithmetic_)),
        // What no operation of this arithmetic can resolve.
        tiny_(4 * rounding_error(arithmetic_, 0)),
        grow_cols_(grow(p.cols)),
        grow_rows_(grow(p.rows)) {}

  double u() const { return u_; }
  double tiny() const { return tiny_; }
  double grow_cols() const { return grow_cols_; }
  double grow_rows() const { return grow_rows_; }

  Row row(const double* h) const {
    Row row;
    row.xhat.resize(at(p_.cols));
    row.error.resize(at(p_.cols));
    double mean_xhat = 0;
    const auto stats = oracle::norm_stats<double>(oracle_norm(p_), p_.cols, h, p_.eps);
    row.mean = stats.mean + stats.delta;
    row.rstd = stats.rstd;
    for (std::int64_t j = 0; j < p_.cols; ++j) {
      row.xhat[at(j)] = stats.xhat(h[j]);
      if (!p_.layer) continue;
      row.size += std::fabs(h[j]) / static_cast<double>(p_.cols);
      mean_xhat += std::fabs(row.xhat[at(j)]) / static_cast<double>(p_.cols);
    }
    const double residual = grow_cols_ * u_ * row.size * row.rstd;  // of the mean, in sigmas
    row.rstd_error = u_ * (grow_cols_ + 4) * (1 + residual * residual);
    for (std::size_t j = 0; j < row.xhat.size(); ++j) {
      const double x = std::fabs(row.xhat[j]);
      row.error[j] =
          u_ * (grow_cols_ + 4) * (x + mean_xhat) + grow_cols_ * u_ * residual * (1 + x) + tiny_;
    }
    return row;
  }

 private:
  // In f64 the plain implementation keeps running sums, as do the gradients of the oracle; in rows
  // of equal numbers every step errs the same way, so all n of them count.
  double grow(std::int64_t n) const {
    return arithmetic_ == DType::f64 ? static_cast<double>(n) : growth(n);
  }

  const NormProblem& p_;
  DType arithmetic_;
  double u_;
  double tiny_;
  double grow_cols_;
  double grow_rows_;
};

double weight(const NormProblem& p, const NormValues& data, std::size_t j) {
  return data.weight.empty() ? 1.0 : p.weight_offset + data.weight[j];
}

// The oracle in the scalar S: double, or long double where doubles themselves are on trial.
template <class S>
std::vector<double> forward_values_in(const NormProblem& p, const NormValues& data) {
  const auto wide = [](const std::vector<double>& v) { return std::vector<S>(v.begin(), v.end()); };
  const auto data_of = [](const std::vector<S>& v) { return v.empty() ? nullptr : v.data(); };
  const std::vector<S> h = wide(data.h);
  const std::vector<S> weight = wide(data.weight);
  const std::vector<S> bias = wide(data.bias);
  std::vector<S> y(h.size());
  oracle::norm_forward<S>({.norm = oracle_norm(p),
                           .rows = p.rows,
                           .cols = p.cols,
                           .eps = p.eps,
                           .weight_offset = p.weight_offset,
                           .x = h.data(),
                           .weight = data_of(weight),
                           .bias = data_of(bias),
                           .y = y.data()});
  return std::vector<double>(y.begin(), y.end());
}

std::vector<double> forward_values(const NormProblem& p, const NormValues& data) {
  return p.dtype == DType::f64 ? forward_values_in<long double>(p, data)
                               : forward_values_in<double>(p, data);
}

template <class S>
NormStatistics statistics_in(const NormProblem& p, const NormValues& data) {
  const std::vector<S> h(data.h.begin(), data.h.end());
  NormStatistics out;
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const S* row = h.data() + r * p.cols;
    const auto stats = oracle::norm_stats<S>(oracle_norm(p), p.cols, row, p.eps);
    if (p.layer) out.mean.push_back(static_cast<double>(stats.mean + stats.delta));
    out.rstd.push_back(static_cast<double>(stats.rstd));
  }
  return out;
}

struct NormGradients {
  std::vector<double> dx, dweight, dbias;
};

// The oracle's gradients, or its magnitude sums.
NormGradients gradients(const NormProblem& p, const NormValues& data, bool magnitude) {
  NormGradients out;
  out.dx.resize(data.h.size());
  out.dweight.resize(at(p.cols));
  out.dbias.resize(p.layer ? at(p.cols) : 0);
  const oracle::NormBackward args{.norm = oracle_norm(p),
                                  .rows = p.rows,
                                  .cols = p.cols,
                                  .eps = p.eps,
                                  .weight_offset = p.weight_offset,
                                  .dy = data.dy.data(),
                                  .h = data.h.data(),
                                  .weight = data_or_null(data.weight),
                                  .dsum = data_or_null(data.dsum),
                                  .dx = out.dx.data(),
                                  .dweight = out.dweight.data(),
                                  .dbias = p.layer ? out.dbias.data() : nullptr};
  magnitude ? oracle::norm_backward_magnitude(args) : oracle::norm_backward(args);
  return out;
}

// What dx carries beyond the magnitude sum: the errors of xhat and of the two row sums.
void add_row_sum_errors(const NormProblem& p, const NormValues& data, const Bounds& bounds,
                        const Row& row, std::int64_t first, std::vector<double>& error) {
  double mean_g = 0;
  double mean_g_xhat = 0;
  double mean_g_error = 0;
  double c2 = 0;
  const double count = static_cast<double>(p.cols);
  for (std::size_t j = 0; j < row.xhat.size(); ++j) {
    const double g = data.dy[at(first) + j] * weight(p, data, j);
    mean_g += std::fabs(g) / count;
    mean_g_xhat += std::fabs(g * row.xhat[j]) / count;
    mean_g_error += std::fabs(g) * row.error[j] / count;
    c2 += g * row.xhat[j] / count;
  }
  if (!p.layer) mean_g = 0;
  const double sums = bounds.u() * (bounds.grow_cols() + 4);
  for (std::size_t j = 0; j < row.xhat.size(); ++j) {
    const double x = std::fabs(row.xhat[j]);
    error[at(first) + j] += row.rstd * (sums * (mean_g + x * mean_g_xhat) + x * mean_g_error +
                                        std::fabs(c2) * row.error[j] + bounds.tiny());
  }
}

}  // namespace

NormStatistics norm_statistics(const NormProblem& p, const NormValues& data) {
  return p.dtype == DType::f64 ? statistics_in<long double>(p, data)
                               : statistics_in<double>(p, data);
}

NormForwardReference norm_forward_reference(const NormProblem& p, const NormValues& data) {
  const Bounds bounds(p);
  NormForwardReference out;
  out.y.value = forward_values(p, data);
  out.y.bound.resize(out.y.value.size());
  const DType statistics = wide_dtype(p.dtype);
  const NormStatistics values = norm_statistics(p, data);
  out.mean.value = values.mean;
  out.rstd.value = values.rstd;
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const Row row = bounds.row(data.h.data() + r * p.cols);
    for (std::size_t j = 0; j < row.xhat.size(); ++j) {
      const std::size_t i = at(r * p.cols) + j;
      const double w = std::fabs(weight(p, data, j));
      const double bias = data.bias.empty() ? 0.0 : std::fabs(data.bias[j]);
      double error = row.error[j] * w + 3 * bounds.u() * (std::fabs(row.xhat[j]) * w + bias);
      if (p.before_weight) error += w * rounding_error(p.dtype, std::fabs(row.xhat[j]) + error);
      out.y.bound[i] = with_rounding(p.dtype, out.y.value[i], error + bounds.tiny());
    }
    const double granted = statistics == DType::f32 ? kContract : 0;
    if (p.layer) {
      const double derived = with_rounding(
          statistics, row.mean, bounds.u() * bounds.grow_cols() * row.size + bounds.tiny());
      out.mean.bound.push_back(std::max(derived, granted * row.size));
    }
    const double derived = with_rounding(statistics, row.rstd, row.rstd_error * row.rstd);
    out.rstd.bound.push_back(std::max(derived, granted * row.rstd));
  }
  return out;
}

NormBackwardReference norm_backward_reference(const NormProblem& p, const NormValues& data) {
  const Bounds bounds(p);
  const NormGradients value = gradients(p, data, false);
  NormGradients error = gradients(p, data, true);
  std::vector<double> dy_error(at(p.cols));
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const std::int64_t first = r * p.cols;
    const Row row = bounds.row(data.h.data() + first);
    for (std::size_t j = 0; j < row.xhat.size(); ++j) {
      error.dx[at(first) + j] *= bounds.u() * (bounds.grow_cols() + 8) + row.rstd_error;
      dy_error[j] += std::fabs(data.dy[at(first) + j]) * row.error[j];
    }
    add_row_sum_errors(p, data, bounds, row, first, error.dx);
  }
  const double columns = bounds.u() * (bounds.grow_rows() + 4);
  NormBackwardReference out;
  out.dx.value = value.dx;
  for (std::size_t i = 0; i < value.dx.size(); ++i) {
    out.dx.bound.push_back(with_rounding(p.dtype, value.dx[i], error.dx[i] + bounds.tiny()));
  }
  const DType grad = p.grad_dtype;
  out.dweight.value = value.dweight;
  for (std::size_t j = 0; j < value.dweight.size(); ++j) {
    const double e = columns * error.dweight[j] + dy_error[j] + bounds.tiny();
    out.dweight.bound.push_back(with_rounding(grad, value.dweight[j], e));
  }
  out.dbias.value = value.dbias;
  for (std::size_t j = 0; j < value.dbias.size(); ++j) {
    const double e = columns * error.dbias[j] + bounds.tiny();
    out.dbias.bound.push_back(with_rounding(grad, value.dbias[j], e));
  }
  return out;
}

// The statistics are inputs of the backward, taken as they are: what is left is the subtraction, the
// products and the sum.
void NormColumn::add(double dy, double h, double mean, double rstd) {
  const double xhat = (h - mean) * rstd;
  dweight_ += dy * xhat;
  dweight_size_ += std::fabs(dy) * (std::fabs(xhat) + std::fabs(mean) * rstd);
  dbias_ += dy;
  dbias_size_ += std::fabs(dy);
}

void NormColumn::finish(Expected& dweight, Expected& dbias) const {
  const Bounds bounds(problem_);
  const double columns = bounds.u() * (bounds.grow_rows() + 8);
  const DType grad = problem_.grad_dtype;
  dweight.add(dweight_, with_rounding(grad, dweight_, columns * dweight_size_ + bounds.tiny()));
  dbias.add(dbias_, with_rounding(grad, dbias_, columns * dbias_size_ + bounds.tiny()));
}

}  // namespace touchstone::spec
