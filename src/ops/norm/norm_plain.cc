// Layer norm and RMS norm as one would write them down: plain loops, one thread, f64 arithmetic.
// The reference to read first; the SIMD implementation follows the same steps.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/norm/norm.h"
#include "ops/norm/norm_row.h"

namespace touchstone::norm {
namespace {

// As kSmallMeanSquare, for f64 arithmetic: a square is off by at most 2^-1075, so above this the
// mean square is right to 2^-105.
constexpr double kSmallMeanSquareF64 = 0x1p-970;

template <class T>
const T* row_of(ConstRows rows, std::int64_t r) {
  return rows.data == nullptr ? nullptr : static_cast<const T*>(rows.data) + r * rows.stride;
}
template <class T>
T* row_of(Rows rows, std::int64_t r) {
  return rows.data == nullptr ? nullptr : static_cast<T*>(rows.data) + r * rows.stride;
}

// Statistics of h * scale. The mean is `mean + delta`: two numbers, because the first alone is
// rounded, and at |mean| = 1e6 sigma the rounding is visible in h - mean.
struct Statistics {
  double scale = 1;
  double mean = 0;
  double delta = 0;
  double mean_square = 0;  // variance + eps, or mean of squares + eps
};

template <class T>
Statistics statistics(const Forward& p, const T* h, double scale) {
  const auto n = static_cast<double>(p.cols);
  Statistics s;
  s.scale = scale;
  if (p.kind == Kind::layer) {
    double sum = 0;
    for (std::int64_t c = 0; c < p.cols; ++c) sum += convert<double>(h[c]) * scale;
    s.mean = sum / n;
  }
  double sum = 0;
  double squares = 0;
  for (std::int64_t c = 0; c < p.cols; ++c) {
    const double d = convert<double>(h[c]) * scale - s.mean;
    sum += d;
    squares += d * d;
  }
  if (p.kind == Kind::layer) s.delta = sum / n;
  // Not std::max(0, ..): that would turn NaN into 0.
  double variance = squares / n - s.delta * s.delta;
  if (variance < 0) variance = 0;
  s.mean_square = variance + p.eps * scale * scale;
  return s;
}

// The power of two that scales the larger of the row and sqrt(eps) to between 1 and 2. A power of
// two scales exactly. Kept where itself and its inverse are normal numbers.
template <class T>
double safe_scale(const Forward& p, const T* h) {
  double largest = std::sqrt(p.eps);
  for (std::int64_t c = 0; c < p.cols; ++c) {
    largest = std::max(largest, std::abs(convert<double>(h[c])));
  }
  if (!std::isfinite(largest) || largest == 0) return 1;
  return std::ldexp(1.0, -std::clamp(std::ilogb(largest), -1021, 1021));
}

}  // namespace

template <class T>
void normalize_row(const Forward& p, const T* h, const Compute<T>* weight, const Compute<T>* bias,
                   T* y, Compute<T>* mean, Compute<T>* rstd) {
  Statistics s = statistics(p, h, 1);
  if (!std::isfinite(s.mean_square) || s.mean_square < kSmallMeanSquareF64) {
    s = statistics(p, h, safe_scale(p, h));
  }
  if (!std::isfinite(s.mean_square)) {  // NaN or infinity among the elements
    s.mean = s.mean_square = std::numeric_limits<double>::quiet_NaN();
  }
  const double inverse = 1 / std::sqrt(s.mean_square);
  if (mean != nullptr) *mean = static_cast<Compute<T>>((s.mean + s.delta) / s.scale);
  if (rstd != nullptr) *rstd = static_cast<Compute<T>>(inverse * s.scale);
  for (std::int64_t c = 0; c < p.cols; ++c) {
    double value = (convert<double>(h[c]) * s.scale - s.mean - s.delta) * inverse;
    if (p.round_before_weight) value = convert<double>(convert<T>(value));
    if (weight != nullptr) value *= static_cast<double>(weight[c]);
    if (bias != nullptr) value += static_cast<double>(bias[c]);
    y[c] = convert<T>(value);
  }
}

template void normalize_row(const Forward&, const double*, const double*, const double*, double*,
                            double*, double*);
template void normalize_row(const Forward&, const float*, const float*, const float*, float*,
                            float*, float*);
template void normalize_row(const Forward&, const Bf16*, const float*, const float*, Bf16*, float*,
                            float*);
template void normalize_row(const Forward&, const F16*, const float*, const float*, F16*, float*,
                            float*);

namespace {

template <class T>
void forward(const Forward& p) {
  using C = Compute<T>;
  const auto weight = widened<C>(p.weight, p.weight_dtype, p.cols, p.weight_offset);
  const auto bias = widened<C>(p.bias, p.weight_dtype, p.cols, 0);
  auto* const mean = static_cast<C*>(p.mean);
  auto* const rstd = static_cast<C*>(p.rstd);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const T* h = row_of<T>(p.x, r);
    if (const T* residual = row_of<T>(p.residual, r)) {
      T* const sum = row_of<T>(p.sum, r);
      for (std::int64_t c = 0; c < p.cols; ++c) {
        sum[c] = convert<T>(convert<C>(h[c]) + convert<C>(residual[c]));
      }
      h = sum;
    }
    normalize_row(p, h, data_or_null(weight), data_or_null(bias), row_of<T>(p.y, r),
                  mean == nullptr ? nullptr : mean + r, rstd == nullptr ? nullptr : rstd + r);
  }
}

// Column sums over the rows, in f64 whatever the dtype: 10^5 rows keep their accuracy.
struct WeightGradients {
  std::vector<double> weight;
  std::vector<double> bias;
};

template <class T>
void backward_row(const Backward& p, std::int64_t r, const Compute<T>* weight,
                  WeightGradients* sums) {
  using C = Compute<T>;
  const auto n = static_cast<double>(p.cols);
  const T* const dy = row_of<T>(p.dy, r);
  const T* const x = row_of<T>(p.x, r);
  const T* const dsum = row_of<T>(p.dsum, r);
  T* const dx = row_of<T>(p.dx, r);
  const bool layer = p.kind == Kind::layer;
  const auto mean = layer ? static_cast<double>(static_cast<const C*>(p.mean)[r]) : 0.0;
  const auto rstd = static_cast<double>(static_cast<const C*>(p.rstd)[r]);
  const auto weight_at = [&](std::int64_t c) {
    return weight == nullptr ? 1.0 : static_cast<double>(weight[c]);
  };

  // t is xhat but for the rounding of the saved mean; its own mean says how much that is.
  double sum_t = 0;
  double sum_g = 0;
  double sum_gt = 0;
  for (std::int64_t c = 0; c < p.cols; ++c) {
    const double t = (convert<double>(x[c]) - mean) * rstd;
    const double g = convert<double>(dy[c]) * weight_at(c);
    sum_t += t;
    sum_g += g;
    sum_gt += g * t;
  }
  const double delta = layer ? sum_t / n : 0;
  double c1 = layer ? sum_g / n : 0;
  double c2 = sum_gt / n - delta * c1;
  if (!std::isfinite(c1) || !std::isfinite(c2)) c1 = c2 = std::numeric_limits<double>::quiet_NaN();

  for (std::int64_t c = 0; c < p.cols; ++c) {
    const auto dy_c = convert<double>(dy[c]);
    const double xhat = (convert<double>(x[c]) - mean) * rstd - delta;
    double value = rstd * (dy_c * weight_at(c) - c1 - xhat * c2);
    if (dsum != nullptr) value += convert<double>(dsum[c]);
    const auto column = static_cast<std::size_t>(c);
    if (p.dweight != nullptr) sums->weight[column] += dy_c * xhat;
    if (p.dbias != nullptr) sums->bias[column] += dy_c;
    dx[c] = convert<T>(value);
  }
}

template <class T>
void backward(const Backward& p) {
  const auto weight = widened<Compute<T>>(p.weight, p.weight_dtype, p.cols, p.weight_offset);
  const auto cols = static_cast<std::size_t>(p.cols);
  WeightGradients sums{std::vector<double>(p.dweight == nullptr ? 0 : cols),
                       std::vector<double>(p.dbias == nullptr ? 0 : cols)};
  for (std::int64_t r = 0; r < p.rows; ++r) backward_row<T>(p, r, data_or_null(weight), &sums);
  visit_float_dtype(p.weight_grad_dtype, [&]<class W>() {
    for (std::size_t c = 0; c < sums.weight.size(); ++c) {
      static_cast<W*>(p.dweight)[c] = convert<W>(sums.weight[c]);
    }
    for (std::size_t c = 0; c < sums.bias.size(); ++c) {
      static_cast<W*>(p.dbias)[c] = convert<W>(sums.bias[c]);
    }
  });
}

}  // namespace

void forward_plain(Context& context, const Forward& p) {
  (void)context;
  visit_float_dtype(p.dtype, [&]<class T>() { forward<T>(p); });
}

void backward_plain(Context& context, const Backward& p) {
  (void)context;
  visit_float_dtype(p.dtype, [&]<class T>() { backward<T>(p); });
}

}  // namespace touchstone::norm
