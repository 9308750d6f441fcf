// The float64 references against closed forms, against wider arithmetic, against dual numbers and
// against each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "oracle/norm.h"
#include "touchstone/gradcheck.h"

namespace touchstone::inline v0 {
namespace {

using Array = std::vector<double>;

Array random_array(int64_t count, uint64_t seed, double mean = 0.0, double sigma = 1.0) {
  Array x = gradcheck::random_values(count, seed);
  for (double& element : x) element = mean + sigma * element;
  return x;
}

size_t size_of(int64_t count) { return static_cast<size_t>(count); }

struct Gradients {
  Array dx, dweight, dbias;
};

using Backward = void (*)(const oracle::NormBackward&);

struct NormCase {
  int64_t rows = 0, cols = 0;
  double eps = 0.0;
  Array h, dy, weight, dsum;

  Gradients run(Backward backward) const {
    Gradients out{Array(h.size()), Array(size_of(cols)), Array(size_of(cols))};
    backward({.rows = rows,
              .cols = cols,
              .eps = eps,
              .dy = dy.data(),
              .h = h.data(),
              .weight = weight.empty() ? nullptr : weight.data(),
              .dsum = dsum.empty() ? nullptr : dsum.data(),
              .dx = out.dx.data(),
              .dweight = out.dweight.data(),
              .dbias = out.dbias.data()});
    return out;
  }
};

NormCase random_case(int64_t rows, int64_t cols, double eps, uint64_t seed, double mean = 0.0) {
  return {rows,
          cols,
          eps,
          random_array(rows * cols, seed, mean),
          random_array(rows * cols, seed + 100),
          random_array(cols, seed + 200, 1.0, 0.5),
          {}};
}

double largest(const Array& x) {
  double result = 0.0;
  for (double element : x) result = std::max(result, std::fabs(element));
  return result;
}

// The largest difference, relative to the largest magnitude; NaN fails every comparison with it.
double distance(const Array& a, const Array& b, const Array& magnitude) {
  double worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(a[i] - b[i]);
    if (std::isnan(difference)) return difference;
    worst = std::max(worst, difference);
  }
  return worst / largest(magnitude);
}

// ---- closed forms -----------------------------------------------------------------------------

TEST(LayerNormOracle, TwoElementsExactly) {
  const Array x = {-1.0, 1.0, 11.0, 13.0};
  const Array weight = {2.0, 4.0};
  const Array bias = {0.25, -0.25};
  Array y(4), mean(2), rstd(2);
  // Both rows have variance 1; with eps = 3, rstd is exactly 1/2.
  oracle::norm_forward<double>({.rows = 2,
                                .cols = 2,
                                .eps = 3.0,
                                .x = x.data(),
                                .weight = weight.data(),
                                .bias = bias.data(),
                                .y = y.data(),
                                .mean = mean.data(),
                                .rstd = rstd.data()});
  EXPECT_EQ(mean, (Array{0.0, 12.0}));
  EXPECT_EQ(rstd, (Array{0.5, 0.5}));
  EXPECT_EQ(y, (Array{-0.75, 1.75, -0.75, 1.75}));

  // g = (1, 0), c1 = 1/2, xhat = (-1/2, 1/2), c2 = -1/4: dx = (1 - 1/2 - 1/8, -1/2 + 1/8) / 2.
  const NormCase c{1, 2, 3.0, {-1.0, 1.0}, {1.0, 0.0}, {}, {}};
  for (Backward backward : {oracle::norm_backward, oracle::norm_backward_projection}) {
    const Gradients g = c.run(backward);
    EXPECT_EQ(g.dx, (Array{0.1875, -0.1875}));
    EXPECT_EQ(g.dweight, (Array{-0.5, 0.0}));
    EXPECT_EQ(g.dbias, (Array{1.0, 0.0}));
  }
}

TEST(LayerNormOracle, ResidualIsAddedFirstAndItsGradientPassesThrough) {
  const Array x = {-3.0, 2.0};
  const Array residual = {2.0, -1.0};
  Array y(2), sum(2);
  oracle::norm_forward<double>({.rows = 1,
                                .cols = 2,
                                .eps = 3.0,
                                .x = x.data(),
                                .residual = residual.data(),
                                .y = y.data(),
                                .sum = sum.data()});
  EXPECT_EQ(sum, (Array{-1.0, 1.0}));
  EXPECT_EQ(y, (Array{-0.5, 0.5}));
  const NormCase c{1, 2, 3.0, sum, {1.0, 0.0}, {}, {10.0, 20.0}};
  EXPECT_EQ(c.run(oracle::norm_backward).dx, (Array{10.1875, 19.8125}));
  EXPECT_EQ(c.run(oracle::norm_backward_projection).dx, (Array{10.1875, 19.8125}));
}

TEST(LayerNormOracle, ConstantRowsGiveBetaWithEpsAndNanWithout) {
  const Array x(5, 7.0);
  const Array bias = {1.0, 2.0, 3.0, 4.0, 5.0};
  Array y(5);
  oracle::NormForward<double> call{
      .rows = 1, .cols = 5, .eps = 1e-5, .x = x.data(), .bias = bias.data(), .y = y.data()};
  oracle::norm_forward(call);
  EXPECT_EQ(y, bias);
  call.eps = 0.0;
  oracle::norm_forward(call);
  for (double element : y) EXPECT_TRUE(std::isnan(element));
}

TEST(LayerNormOracle, WholeRangeOfFloat) {
  for (double scale : {1e38, 3e38, 1e20, 1e-20, 1e-38, 1e-45}) {
    const Array x = {scale, -scale, scale, -scale};
    Array y(4);
    oracle::norm_forward<double>({.rows = 1, .cols = 4, .x = x.data(), .y = y.data()});
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(y[i], i % 2 == 0 ? 1.0 : -1.0, 1e-15);
    const NormCase c{1, 4, 0.0, x, {1.0, 2.0, 3.0, 5.0}, {}, {}};
    const Gradients a = c.run(oracle::norm_backward);
    const Gradients b = c.run(oracle::norm_backward_projection);
    const Gradients m = c.run(oracle::norm_backward_magnitude);
    EXPECT_LE(distance(a.dx, b.dx, m.dx), 1e-15) << scale;
  }
}

TEST(RmsNormOracle, TwoElements) {
  const Array x = {1.0, 7.0};  // mean square 25
  const Array weight = {1.0, -0.5};
  Array y(2), rstd(1), dx(2), dweight(2);
  oracle::norm_forward<double>({.norm = oracle::Norm::rms,
                                .rows = 1,
                                .cols = 2,
                                .weight_offset = 1.0,
                                .x = x.data(),
                                .weight = weight.data(),
                                .y = y.data(),
                                .rstd = rstd.data()});
  EXPECT_DOUBLE_EQ(rstd[0], 0.2);
  EXPECT_DOUBLE_EQ(y[0], 0.4);
  EXPECT_DOUBLE_EQ(y[1], 0.7);
  // g = (1, 0), xhat = (0.2, 1.4), c2 = 0.1: dx = 0.2 (1 - 0.02, -0.14).
  const Array dy = {1.0, 0.0};
  for (auto backward : {oracle::norm_backward, oracle::norm_backward_projection}) {
    backward({.norm = oracle::Norm::rms,
              .rows = 1,
              .cols = 2,
              .dy = dy.data(),
              .h = x.data(),
              .dx = dx.data(),
              .dweight = dweight.data()});
    EXPECT_NEAR(dx[0], 0.196, 1e-16);
    EXPECT_NEAR(dx[1], -0.028, 1e-16);
    EXPECT_DOUBLE_EQ(dweight[0], 0.2);
    EXPECT_EQ(dweight[1], 0.0);
  }
}

// ---- wider arithmetic -------------------------------------------------------------------------

struct WideRow {
  std::vector<long double> xhat, dx;
};

// The textbook formulas in long double, written without a look at the oracle. Rows are shifted by
// their first element: differences of neighbors are exact, and nothing large is left to round.
WideRow wide_layer_norm(const NormCase& c, int64_t row) {
  using Wide = long double;
  const size_t n = size_of(c.cols);
  const double* h = c.h.data() + row * c.cols;
  const double* dy = c.dy.data() + row * c.cols;
  const Wide count = static_cast<Wide>(c.cols);
  std::vector<Wide> d(n), g(n);
  Wide mean = 0, var = 0, sum_g = 0, sum_gx = 0;
  for (size_t j = 0; j < n; ++j) {
    d[j] = static_cast<Wide>(h[j]) - static_cast<Wide>(h[0]);
    g[j] = static_cast<Wide>(dy[j]) * static_cast<Wide>(c.weight[j]);
    mean += d[j] / count;
  }
  for (size_t j = 0; j < n; ++j) var += (d[j] - mean) * (d[j] - mean) / count;
  const Wide sigma = std::sqrt(var + static_cast<Wide>(c.eps));
  WideRow out{std::vector<Wide>(n), std::vector<Wide>(n)};
  for (size_t j = 0; j < n; ++j) {
    out.xhat[j] = (d[j] - mean) / sigma;
    sum_g += g[j];
    sum_gx += g[j] * out.xhat[j];
  }
  for (size_t j = 0; j < n; ++j) {
    out.dx[j] = (g[j] - (sum_g + out.xhat[j] * sum_gx) / count) / sigma;
  }
  return out;
}

TEST(LayerNormOracle, AgreesWithLongDoubleUpToMeanOverSigmaOfAMillion) {
  for (double mean : {0.0, 1e2, 1e4, 1e6}) {
    for (int64_t cols : {3, 64, 1023}) {
      const NormCase c = random_case(4, cols, 1e-5, 11, mean);
      Array y(c.h.size()), wide_y, wide_dx;
      oracle::norm_forward<double>(
          {.rows = 4, .cols = cols, .eps = c.eps, .x = c.h.data(), .y = y.data()});
      const Gradients g = c.run(oracle::norm_backward);
      for (int64_t i = 0; i < 4; ++i) {
        const WideRow wide = wide_layer_norm(c, i);
        for (long double element : wide.xhat) wide_y.push_back(static_cast<double>(element));
        for (long double element : wide.dx) wide_dx.push_back(static_cast<double>(element));
      }
      EXPECT_LE(distance(y, wide_y, y), 2e-15) << mean << " " << cols;
      EXPECT_LE(distance(g.dx, wide_dx, g.dx), 4e-15) << mean << " " << cols;
    }
  }
}

// ---- two derivations --------------------------------------------------------------------------

TEST(LayerNormOracle, TheTwoDerivationsAgree) {
  for (int64_t cols : {1, 2, 3, 7, 64, 1023}) {
    for (double eps : {0.0, 1e-5}) {
      if (cols == 1 && eps == 0) continue;  // variance 0 and rstd infinite
      for (double mean : {0.0, 1e3, 1e6}) {
        for (uint64_t seed : {1u, 2u, 3u}) {
          NormCase c = random_case(3, cols, eps, seed, mean);
          if (seed == 2) c.weight.clear();
          if (seed == 3) c.dsum = random_array(3 * cols, 9);
          const Gradients a = c.run(oracle::norm_backward);
          const Gradients b = c.run(oracle::norm_backward_projection);
          const Gradients m = c.run(oracle::norm_backward_magnitude);
          const std::string where = "D " + std::to_string(cols) + " eps " + std::to_string(eps) +
                                    " mean " + std::to_string(mean);
          EXPECT_LE(distance(a.dx, b.dx, m.dx), 1e-12) << where;
          EXPECT_LE(distance(a.dbias, b.dbias, m.dbias), 1e-12) << where;
          // With one column xhat is exactly zero, and so is the magnitude of dweight.
          if (cols > 1) {
            EXPECT_LE(distance(a.dweight, b.dweight, m.dweight), 1e-12) << where;
          }
        }
      }
    }
  }
}

TEST(RmsNormOracle, TheTwoDerivationsAgree) {
  for (int64_t cols : {1, 2, 3, 7, 64, 1023}) {
    for (double eps : {0.0, 1e-5}) {
      for (double offset : {0.0, 1.0}) {
        const Array h = random_array(3 * cols, 1, 0.5);
        const Array dy = random_array(3 * cols, 2);
        const Array weight = random_array(cols, 3);
        const Array dsum = random_array(3 * cols, 4);
        Array dx[3], dweight[3];
        int which = 0;
        for (auto backward : {oracle::norm_backward, oracle::norm_backward_projection,
                              oracle::norm_backward_magnitude}) {
          dx[which].resize(h.size());
          dweight[which].resize(weight.size());
          backward({.norm = oracle::Norm::rms,
                    .rows = 3,
                    .cols = cols,
                    .eps = eps,
                    .weight_offset = offset,
                    .dy = dy.data(),
                    .h = h.data(),
                    .weight = weight.data(),
                    .dsum = dsum.data(),
                    .dx = dx[which].data(),
                    .dweight = dweight[which].data()});
          ++which;
        }
        EXPECT_LE(distance(dx[0], dx[1], dx[2]), 1e-12) << cols << " " << eps;
        EXPECT_LE(distance(dweight[0], dweight[1], dweight[2]), 1e-12) << cols << " " << eps;
      }
    }
  }
}

// ---- properties -------------------------------------------------------------------------------

TEST(LayerNormOracle, RowSumsOfDxVanishForConstantGamma) {
  NormCase c = random_case(8, 257, 1e-5, 5, 100.0);
  std::fill(c.weight.begin(), c.weight.end(), 1.7);
  const Gradients g = c.run(oracle::norm_backward);
  for (int64_t i = 0; i < c.rows; ++i) {
    double sum = 0.0, magnitude = 0.0;
    for (int64_t j = 0; j < c.cols; ++j) {
      sum += g.dx[size_of(i * c.cols + j)];
      magnitude += std::fabs(g.dx[size_of(i * c.cols + j)]);
    }
    EXPECT_LE(std::fabs(sum), 1e-14 * magnitude);
  }
}

TEST(LayerNormOracle, BackwardIsLinearInDy) {
  const NormCase first = random_case(5, 65, 1e-5, 1);
  NormCase second = first;
  NormCase both = first;
  second.dy = random_array(5 * 65, 77);
  for (size_t i = 0; i < both.dy.size(); ++i) both.dy[i] = first.dy[i] - 3.0 * second.dy[i];
  const Gradients a = first.run(oracle::norm_backward);
  const Gradients b = second.run(oracle::norm_backward);
  const Gradients c = both.run(oracle::norm_backward);
  const auto combine = [](const Array& p, const Array& q) {
    Array r(p.size());
    for (size_t i = 0; i < p.size(); ++i) r[i] = p[i] - 3.0 * q[i];
    return r;
  };
  EXPECT_LE(distance(c.dx, combine(a.dx, b.dx), c.dx), 1e-14);
  EXPECT_LE(distance(c.dweight, combine(a.dweight, b.dweight), c.dweight), 1e-14);
  EXPECT_LE(distance(c.dbias, combine(a.dbias, b.dbias), c.dbias), 1e-14);
}

TEST(LayerNormOracle, MagnitudesBoundTheValues) {
  const NormCase c = random_case(6, 33, 1e-5, 3, 2.0);
  const Gradients g = c.run(oracle::norm_backward);
  const Gradients m = c.run(oracle::norm_backward_magnitude);
  const auto within = [](const Array& value, const Array& limit) {
    for (size_t i = 0; i < value.size(); ++i) {
      EXPECT_LE(std::fabs(value[i]), limit[i] * (1 + 1e-13));
    }
  };
  within(g.dx, m.dx);
  within(g.dweight, m.dweight);
  within(g.dbias, m.dbias);
}

// ---- dual numbers -----------------------------------------------------------------------------

// Every option at once: residual stream, both outputs, weight and bias.
TEST(LayerNormOracle, BackwardAgreesWithTheForwardOnDualNumbers) {
  for (int64_t cols : {1, 2, 7, 256}) {
    const int64_t rows = 12;
    const Array x = random_array(rows * cols, 1, 3.0), residual = random_array(rows * cols, 2);
    const Array weight = random_array(cols, 3), bias = random_array(cols, 4);
    NormCase c{rows, cols, 1e-3, x, random_array(rows * cols, 5), weight, {}};
    for (size_t i = 0; i < x.size(); ++i) c.h[i] += residual[i];
    c.dsum = random_array(rows * cols, 6);
    const Gradients g = c.run(oracle::norm_backward);
    const std::vector<int64_t> full = {rows, cols}, row = {cols};
    const gradcheck::Report report = gradcheck::check(
        {.inputs =
             {{.name = "x", .shape = full, .value = x, .grad = g.dx, .per_row = true},
              {.name = "residual", .shape = full, .value = residual, .grad = g.dx, .per_row = true},
              {.name = "weight", .shape = row, .value = weight, .grad = g.dweight},
              {.name = "bias", .shape = row, .value = bias, .grad = g.dbias}},
         .outputs = {{.name = "y", .shape = full, .cotangent = c.dy},
                     {.name = "sum", .shape = full, .cotangent = c.dsum}},
         .independent_rows = rows},
        [&](const gradcheck::DualSlice& s) {
          oracle::norm_forward<gradcheck::DualScalar>({.rows = s.rows,
                                                       .cols = cols,
                                                       .eps = c.eps,
                                                       .x = s.in[0].data(),
                                                       .residual = s.in[1].data(),
                                                       .weight = s.in[2].data(),
                                                       .bias = s.in[3].data(),
                                                       .y = s.out[0].data(),
                                                       .sum = s.out[1].data()});
        });
    EXPECT_TRUE(report.ok) << cols << " " << report.summary();
  }
}

TEST(RmsNormOracle, BackwardAgreesWithTheForwardOnDualNumbers) {
  const int64_t rows = 12, cols = 100;
  const Array x = random_array(rows * cols, 1, 3.0), weight = random_array(cols, 3);
  const Array dy = random_array(rows * cols, 5);
  Array dx(x.size()), dweight(weight.size());
  oracle::norm_backward({.norm = oracle::Norm::rms,
                         .rows = rows,
                         .cols = cols,
                         .eps = 1e-6,
                         .weight_offset = 1.0,
                         .dy = dy.data(),
                         .h = x.data(),
                         .weight = weight.data(),
                         .dx = dx.data(),
                         .dweight = dweight.data()});
  const gradcheck::Report report = gradcheck::check(
      {.inputs = {{.name = "x", .shape = {rows, cols}, .value = x, .grad = dx, .per_row = true},
                  {.name = "weight", .shape = {cols}, .value = weight, .grad = dweight}},
       .outputs = {{.name = "y", .shape = {rows, cols}, .cotangent = dy}},
       .independent_rows = rows},
      [&](const gradcheck::DualSlice& s) {
        oracle::norm_forward<gradcheck::DualScalar>({.norm = oracle::Norm::rms,
                                                     .rows = s.rows,
                                                     .cols = cols,
                                                     .eps = 1e-6,
                                                     .weight_offset = 1.0,
                                                     .x = s.in[0].data(),
                                                     .weight = s.in[1].data(),
                                                     .y = s.out[0].data()});
      });
  EXPECT_TRUE(report.ok) << report.summary();
}

}  // namespace
}  // namespace touchstone::inline v0
