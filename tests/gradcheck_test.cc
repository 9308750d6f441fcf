// The gradient check accepts right gradients, refuses wrong ones, and says where they are wrong.
#include "touchstone/gradcheck.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "oracle/norm.h"

namespace touchstone::inline v0::gradcheck {
namespace {

using Array = std::vector<double>;

size_t size_of(int64_t count) { return static_cast<size_t>(count); }

// Layer norm with its gradients by the oracle, to be spoiled by the tests.
struct LayerNorm {
  int64_t rows, cols;
  double eps = 1e-5;
  Array x, weight, bias, dy, dx, dweight, dbias;
  int64_t rows_evaluated = 0;
  int64_t largest_slice = 0;

  LayerNorm(int64_t rows_in, int64_t cols_in, uint64_t seed = 1)
      : rows(rows_in),
        cols(cols_in),
        x(random_values(rows * cols, seed)),
        weight(random_values(cols, seed + 1)),
        bias(random_values(cols, seed + 2)),
        dy(random_values(rows * cols, seed + 3)),
        dx(x.size()),
        dweight(weight.size()),
        dbias(bias.size()) {
    backward(dy, dx, dweight, dbias);
  }

  void backward(std::span<const double> v, std::span<double> gx, std::span<double> gg,
                std::span<double> gb) const {
    oracle::norm_backward({.rows = rows,
                           .cols = cols,
                           .eps = eps,
                           .dy = v.data(),
                           .h = x.data(),
                           .weight = weight.data(),
                           .dx = gx.data(),
                           .dweight = gg.data(),
                           .dbias = gb.data()});
  }

  Problem problem(std::vector<int64_t> tile = {}) const {
    return {.inputs = {{.name = "x",
                        .shape = {rows, cols},
                        .value = x,
                        .grad = dx,
                        .per_row = true,
                        .tile = std::move(tile)},
                       {.name = "weight", .shape = {cols}, .value = weight, .grad = dweight},
                       {.name = "bias", .shape = {cols}, .value = bias, .grad = dbias}},
            .outputs = {{.name = "y", .shape = {rows, cols}, .cotangent = dy}},
            .independent_rows = rows};
  }

  DualForward forward() {
    return [this](const DualSlice& s) {
      rows_evaluated += s.rows;
      largest_slice = std::max(largest_slice, s.rows);
      oracle::norm_forward<DualScalar>({.rows = s.rows,
                                        .cols = cols,
                                        .eps = eps,
                                        .x = s.in[0].data(),
                                        .weight = s.in[1].data(),
                                        .bias = s.in[2].data(),
                                        .y = s.out[0].data()});
    };
  }

  Report run(std::vector<int64_t> tile = {}) { return check(problem(std::move(tile)), forward()); }
};

TEST(Gradcheck, AcceptsRightGradients) {
  for (int64_t cols : {1, 2, 3, 64, 255}) {
    for (uint64_t seed : {1u, 10u}) {
      LayerNorm norm(37, cols, seed);
      const Report report = norm.run();
      EXPECT_TRUE(report.ok) << cols << ": " << report.summary();
      EXPECT_LE(report.residual, 1e-12) << cols;
      ASSERT_EQ(report.inputs.size(), 3u);
      EXPECT_EQ(report.inputs[0].directions, 3);
      EXPECT_TRUE(report.locations.empty());
    }
  }
}

TEST(Gradcheck, IsDeterministicAndTheSeedMatters) {
  LayerNorm norm(20, 33);
  norm.dx[100] *= 1.5;
  const double first = norm.run().residual;
  EXPECT_EQ(first, norm.run().residual);
  EXPECT_NE(first, check(norm.problem(), norm.forward(), {.seed = 2}).residual);
}

TEST(Gradcheck, SlicesDoNotChangeTheVerdict) {
  LayerNorm norm(50, 40);
  for (int64_t bytes : {int64_t{1}, int64_t{100000}, int64_t{1} << 30}) {
    EXPECT_TRUE(check(norm.problem(), norm.forward(), {.slice_bytes = bytes}).ok);
  }
  Problem at_once = norm.problem();
  at_once.independent_rows = 0;
  at_once.inputs[0].per_row = false;
  EXPECT_TRUE(check(at_once, [&](const DualSlice& s) {
                DualSlice all = s;
                all.rows = norm.rows;
                norm.forward()(all);
              }).ok);
}

TEST(Gradcheck, MoreDirectionsThanLanes) {
  LayerNorm norm(10, 16);
  const Report report = check(norm.problem(), norm.forward(), {.directions = 20});
  EXPECT_TRUE(report.ok);
  EXPECT_EQ(report.inputs[0].directions, 7);
  EXPECT_EQ(report.inputs[2].directions, 6);
  EXPECT_EQ(check(norm.problem(), norm.forward(), {.directions = 1}).inputs[2].directions, 1);
}

// The size that matters: one element of four million, found and named, in a few passes.
TEST(Gradcheck, FindsOneDoubledElementInFourMillion) {
  LayerNorm norm(4096, 1024);
  const Report right = norm.run();
  EXPECT_TRUE(right.ok) << right.summary();
  EXPECT_LE(right.residual, 1e-11);
  EXPECT_LE(norm.largest_slice, 8);

  const int64_t row = 2345, col = 678;
  const size_t at = size_of(row * norm.cols + col);
  const double truth = norm.dx[at];
  norm.dx[at] *= 2.0;
  norm.rows_evaluated = 0;
  const Report wrong = norm.run();
  EXPECT_FALSE(wrong.ok);
  EXPECT_GT(wrong.residual, 1e-6);
  ASSERT_EQ(wrong.locations.size(), 1u) << wrong.summary();
  EXPECT_EQ(wrong.locations[0].text, "dx: row 2345, col 678");
  EXPECT_EQ(wrong.locations[0].wrong_blocks, 1);
  EXPECT_EQ(wrong.locations[0].claimed, 2.0 * truth);
  EXPECT_NEAR(wrong.locations[0].expected, truth, 1e-14);
  // One pass to check, one for the first split, an eighth for the next...
  EXPECT_LE(norm.rows_evaluated, 4096 * 9 / 4);
}

TEST(Gradcheck, FindsATileScaledByOnePercent) {
  LayerNorm norm(256, 192);
  for (int64_t i = 64; i < 96; ++i) {
    for (int64_t j = 128; j < 192; ++j) norm.dx[size_of(i * norm.cols + j)] *= 1.01;
  }
  const Report tiled = norm.run({32, 64});
  ASSERT_EQ(tiled.locations.size(), 1u);
  EXPECT_EQ(tiled.locations[0].text, "dx: row tile 2 (64..95), col tile 2 (128..191)");
  EXPECT_EQ(tiled.locations[0].begin, (std::vector<int64_t>{64, 128}));
  EXPECT_EQ(tiled.locations[0].end, (std::vector<int64_t>{96, 192}));
  EXPECT_EQ(norm.run({32, 192}).locations.at(0).text, "dx: row tile 2 (64..95)");
  EXPECT_EQ(norm.run().locations.at(0).text, "dx: row 64, col 128");
}

TEST(Gradcheck, FindsTheLastPartialTile) {
  LayerNorm norm(100, 70);
  for (int64_t j = 0; j < norm.cols; ++j) norm.dx[size_of(99 * norm.cols + j)] = 0.0;
  EXPECT_EQ(norm.run({32, 70}).locations.at(0).text, "dx: row tile 3 (96..99)");
}

TEST(Gradcheck, RefusesAWrongSignInDbeta) {
  LayerNorm norm(64, 32);
  for (double& element : norm.dbias) element = -element;
  const Report report = norm.run();
  EXPECT_FALSE(report.ok);
  ASSERT_EQ(report.locations.size(), 1u);
  EXPECT_EQ(report.locations[0].text, "dbias: index 0");
  EXPECT_EQ(report.locations[0].wrong_blocks, 8);
  EXPECT_TRUE(report.inputs[0].residual <= 1e-11);
  EXPECT_GT(report.inputs[2].residual, 0.1);
}

TEST(Gradcheck, RefusesAMissingVarianceTerm) {
  LayerNorm norm(64, 1024);
  for (int64_t i = 0; i < norm.rows; ++i) {
    const auto stats =
        oracle::norm_stats(oracle::Norm::layer, norm.cols, norm.x.data() + i * norm.cols, norm.eps);
    double c2 = 0.0;
    for (int64_t j = 0; j < norm.cols; ++j) {
      const size_t at = size_of(i * norm.cols + j);
      c2 += norm.dy[at] * norm.weight[size_of(j)] * stats.xhat(norm.x[at]);
    }
    for (int64_t j = 0; j < norm.cols; ++j) {
      const size_t at = size_of(i * norm.cols + j);
      norm.dx[at] += stats.rstd * stats.xhat(norm.x[at]) * c2 / static_cast<double>(norm.cols);
    }
  }
  const Report report = norm.run();
  EXPECT_FALSE(report.ok);
  EXPECT_EQ(report.locations.at(0).text, "dx: row 0, col 0");
}

TEST(Gradcheck, RefusesATransposedGradient) {
  LayerNorm norm(48, 48);
  for (int64_t i = 0; i < 48; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      std::swap(norm.dx[size_of(i * 48 + j)], norm.dx[size_of(j * 48 + i)]);
    }
  }
  const Report report = norm.run();
  EXPECT_FALSE(report.ok);
  // The diagonal stays in place: the first wrong element is the second one.
  EXPECT_EQ(report.locations.at(0).text, "dx: row 0, col 1");
}

TEST(Gradcheck, RefusesAZeroGradientAndAllOfSeveralWrongOnes) {
  LayerNorm norm(40, 24);
  std::fill(norm.dx.begin(), norm.dx.end(), 0.0);
  norm.dweight[7] += 1e-6;
  const Report report = norm.run();
  EXPECT_FALSE(report.ok);
  ASSERT_EQ(report.locations.size(), 2u) << report.summary();
  EXPECT_EQ(report.locations[0].text, "dx: row 0, col 0");
  EXPECT_EQ(report.locations[1].text, "dweight: index 7");
}

TEST(Gradcheck, AcceptsGradientsThatReallyVanish) {
  // With two columns and eps = 0, y is +-1 whatever x is: dx is rounding noise and nothing else.
  LayerNorm norm(100, 2);
  norm.eps = 0.0;
  for (size_t i = 0; i < norm.x.size(); ++i) norm.x[i] = 0.1 * norm.x[i] + (i % 2 == 0 ? 1 : -1);
  norm.backward(norm.dy, norm.dx, norm.dweight, norm.dbias);
  EXPECT_TRUE(norm.run().ok) << norm.run().summary();
  norm.dx[50] = 1e-6;
  EXPECT_EQ(norm.run().locations.at(0).text, "dx: row 25, col 0");

  const Array zero(8, 0.0), x = random_values(8, 1);
  const Problem constant{.inputs = {{.name = "x", .shape = {8}, .value = x, .grad = zero}},
                         .outputs = {{.name = "y", .shape = {8}, .cotangent = x}}};
  const Report report = check(constant, [](const DualSlice& s) {
    std::fill(s.out[0].begin(), s.out[0].end(), DualScalar(0.0));
  });
  EXPECT_TRUE(report.ok) << report.summary();
  EXPECT_EQ(report.residual, 0.0);
}

TEST(Gradcheck, NanAndInfinityFailAndAreNamed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  LayerNorm norm(16, 8);
  norm.dx[size_of(5 * 8 + 3)] = nan;
  EXPECT_FALSE(norm.run().ok);
  EXPECT_EQ(norm.run().problem, "dx: row 5, col 3 is nan");
  norm = LayerNorm(16, 8);
  norm.dweight[2] = inf;
  EXPECT_EQ(norm.run().problem, "dweight: index 2 is inf");
  norm = LayerNorm(16, 8);
  norm.dy[9] = nan;
  EXPECT_EQ(norm.run().problem, "cotangent of y: row 1, col 1 is nan");
  norm = LayerNorm(16, 8);
  norm.x[10] = inf;
  EXPECT_EQ(norm.run().problem, "x: row 1, col 2 is inf");

  norm = LayerNorm(16, 8);
  const Report bad_forward = check(norm.problem(), [&](const DualSlice& s) {
    norm.forward()(s);
    s.out[0][size_of((13 - s.first_row) * 8 + 1)].value = nan;
  });
  EXPECT_FALSE(bad_forward.ok);
  EXPECT_EQ(bad_forward.problem, "forward: y: row 13, col 1 is nan");
  const Report bad_lane = check(norm.problem(), [&](const DualSlice& s) {
    norm.forward()(s);
    s.out[0][3].d[0] = nan;
  });
  EXPECT_FALSE(bad_lane.ok);
  EXPECT_TRUE(std::isnan(bad_lane.residual));
}

TEST(Gradcheck, ExtremeScales) {
  for (double scale : {1e-200, 1e-30, 1e30, 1e150}) {
    Array x = random_values(64, 1), dy = random_values(64, 2), dx(64);
    for (size_t i = 0; i < 64; ++i) dx[i] = scale * dy[i];
    const auto problem = [&] {
      return Problem{.inputs = {{.name = "x", .shape = {64}, .value = x, .grad = dx}},
                     .outputs = {{.name = "y", .shape = {64}, .cotangent = dy}}};
    };
    const auto forward = [&](const DualSlice& s) {
      for (size_t i = 0; i < 64; ++i) s.out[0][i] = scale * s.in[0][i];
    };
    EXPECT_TRUE(check(problem(), forward).ok) << scale;
    dx[40] *= 1.001;
    const Report report = check(problem(), forward);
    EXPECT_FALSE(report.ok) << scale;
    EXPECT_EQ(report.locations.at(0).text, "dx: index 40") << scale << " " << report.summary();
  }
}

// ---- attention as a black box -------------------------------------------------------------------

// One causal attention per head; q, k, v and o are [heads, length, width].
struct Attention {
  static constexpr int64_t kHeads = 5, kLength = 24, kWidth = 8;
  static constexpr int64_t kHead = kLength * kWidth, kCount = kHeads * kHead;
  Array q = random_values(kCount, 1), k = random_values(kCount, 2), v = random_values(kCount, 3);
  Array dout = random_values(kCount, 4), dq = Array(kCount), dk = Array(kCount), dv = Array(kCount);
  int calls = 0;

  Attention() {
    for (int64_t h = 0; h < kHeads; ++h) backward(h * kHead);
  }

  static Array weights(const double* q_row, const double* k, int64_t i) {
    Array p(size_of(i + 1));
    double sum = 0.0;
    for (int64_t j = 0; j <= i; ++j) {
      double score = 0.0;
      for (int64_t d = 0; d < kWidth; ++d) score += q_row[d] * k[j * kWidth + d];
      sum += p[size_of(j)] = std::exp(score / std::sqrt(double{kWidth}));
    }
    for (double& element : p) element /= sum;
    return p;
  }

  static void forward(const double* q, const double* k, const double* v, double* o) {
    for (int64_t i = 0; i < kLength; ++i) {
      const Array p = weights(q + i * kWidth, k, i);
      for (int64_t d = 0; d < kWidth; ++d) {
        o[i * kWidth + d] = 0.0;
        for (int64_t j = 0; j <= i; ++j) o[i * kWidth + d] += p[size_of(j)] * v[j * kWidth + d];
      }
    }
  }

  void backward(int64_t head) {
    const double scale = 1.0 / std::sqrt(double{kWidth});
    for (int64_t i = 0; i < kLength; ++i) {
      const int64_t row = head + i * kWidth;
      const Array p = weights(q.data() + row, k.data() + head, i);
      Array dp(p.size());
      double dot = 0.0;
      for (int64_t j = 0; j <= i; ++j) {
        for (int64_t d = 0; d < kWidth; ++d) {
          dp[size_of(j)] += dout[size_of(row + d)] * v[size_of(head + j * kWidth + d)];
          dv[size_of(head + j * kWidth + d)] += p[size_of(j)] * dout[size_of(row + d)];
        }
        dot += p[size_of(j)] * dp[size_of(j)];
      }
      for (int64_t j = 0; j <= i; ++j) {
        const double ds = scale * p[size_of(j)] * (dp[size_of(j)] - dot);
        for (int64_t d = 0; d < kWidth; ++d) {
          dq[size_of(row + d)] += ds * k[size_of(head + j * kWidth + d)];
          dk[size_of(head + j * kWidth + d)] += ds * q[size_of(row + d)];
        }
      }
    }
  }

  Report run(const DifferenceOptions& options) {
    const std::vector<int64_t> shape = {kHeads, kLength, kWidth}, tile = {1, 8, kWidth};
    const std::vector<std::string> dims = {"head", "token", "channel"};
    const auto input = [&](const char* name, const Array& value, const Array& grad) {
      return Input{
          .name = name, .shape = shape, .value = value, .grad = grad, .dims = dims, .tile = tile};
    };
    calls = 0;
    return check_differences(
        {.inputs = {input("q", q, dq), input("k", k, dk), input("v", v, dv)},
         .outputs = {{.name = "o", .shape = shape, .cotangent = dout, .dims = dims}}},
        [&](const Batch& b) {
          ++calls;
          for (int64_t c = 0; c < b.copies * kHeads; ++c) {
            const int64_t at = c * kHead;
            forward(&b.in[0][size_of(at)], &b.in[1][size_of(at)], &b.in[2][size_of(at)],
                    &b.out[0][size_of(at)]);
          }
        },
        options);
  }
};

TEST(GradcheckDifferences, AttentionInOneCall) {
  Attention attention;
  const Report plain = attention.run({});
  EXPECT_TRUE(plain.ok) << plain.summary();
  EXPECT_EQ(attention.calls, 1);
  EXPECT_LE(plain.residual, 2e-9);
  const Report richardson = attention.run({.tolerance = 1e-10, .richardson = true});
  EXPECT_TRUE(richardson.ok) << richardson.summary();
  EXPECT_LE(richardson.residual, 2e-11);
  const Report piecewise = attention.run({.max_copies = 4});
  EXPECT_EQ(attention.calls, 4);
  EXPECT_EQ(piecewise.residual, plain.residual);
}

TEST(GradcheckDifferences, NamesHeadAndTile) {
  Attention attention;
  const int64_t first = 3 * Attention::kHead + 16 * Attention::kWidth;
  for (int64_t i = first; i < first + 8 * Attention::kWidth; ++i) attention.dk[size_of(i)] *= 1.01;
  const Report report = attention.run({});
  EXPECT_FALSE(report.ok);
  ASSERT_EQ(report.locations.size(), 1u) << report.summary();
  EXPECT_EQ(report.locations[0].text, "dk: head 3, token tile 2 (16..23)");
}

TEST(GradcheckDifferences, NanInTheBlackBoxFails) {
  const Array x = random_values(4, 1);
  const Report report =
      check_differences({.inputs = {{.name = "x", .shape = {4}, .value = x, .grad = x}},
                         .outputs = {{.name = "y", .shape = {4}, .cotangent = x}}},
                        [](const Batch& b) {
                          for (double& y : b.out[0]) y = std::nan("");
                        });
  EXPECT_FALSE(report.ok);
  EXPECT_EQ(report.problem, "forward: y: index 0 is nan");
}

// ---- the full Jacobian --------------------------------------------------------------------------

TEST(GradcheckJacobian, LayerNorm) {
  LayerNorm norm(5, 19);
  double spoil = 1.0;
  const Backward backward = [&](const auto& v, const auto& grads) {
    norm.backward(v[0], grads[0], grads[1], grads[2]);
    // Spoiled where the cotangent of column 4 meets column 11 of row 3.
    if (v[0][4] == 1.0) grads[0][3 * 19 + 11] *= spoil;
  };
  const JacobianReport right = check_jacobian(norm.problem(), norm.forward(), backward);
  EXPECT_TRUE(right.ok);
  EXPECT_LE(right.max_abs_difference, 1e-14);
  EXPECT_GT(right.max_abs_entry, 1.0);

  spoil = 1.0 + 1e-6;
  const JacobianReport wrong = check_jacobian(norm.problem(), norm.forward(), backward);
  EXPECT_FALSE(wrong.ok);
  EXPECT_EQ(wrong.where, "dy/dx: y row 3, col 4; x row 3, col 11");
  EXPECT_NEAR(wrong.claimed / wrong.expected, spoil, 1e-12);

  spoil = std::nan("");
  const JacobianReport nan = check_jacobian(norm.problem(), norm.forward(), backward);
  EXPECT_FALSE(nan.ok);
  EXPECT_TRUE(std::isnan(nan.max_abs_difference));
  EXPECT_EQ(nan.where, wrong.where);
}

// ---- arguments ----------------------------------------------------------------------------------

std::string refusal(const Problem& problem, const Options& options = {}) {
  try {
    check(
        problem, [](const DualSlice&) {}, options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Gradcheck, MisuseIsRefusedInOneClearSentence) {
  const Array six = random_values(6, 1), five = random_values(5, 1);
  const Input x{.name = "x", .shape = {3, 2}, .value = six, .grad = six};
  const Output y{.name = "y", .shape = {3, 2}, .cotangent = six};
  Input bad = x;
  bad.grad = five;
  EXPECT_EQ(refusal({.inputs = {bad}, .outputs = {y}}),
            "gradcheck: x: grad: expected 6 elements for shape [3, 2], got 5");
  bad = x;
  bad.shape = {0, 2};
  EXPECT_EQ(refusal({.inputs = {bad}, .outputs = {y}}), "gradcheck: x: empty shape [0, 2]");
  bad = x;
  bad.shape = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_EQ(refusal({.inputs = {bad}, .outputs = {y}}),
            "gradcheck: x: more elements than can be counted: [1099511627776, 1099511627776]");
  bad = x;
  bad.tile = {2};
  EXPECT_EQ(refusal({.inputs = {bad}, .outputs = {y}}),
            "gradcheck: x: tile: expected 2 extents, got 1");
  bad = x;
  bad.per_row = true;
  EXPECT_EQ(refusal({.inputs = {bad}, .outputs = {y}}),
            "gradcheck: x: per_row, but the problem has no independent_rows");
  EXPECT_EQ(refusal({.inputs = {bad}, .outputs = {y}, .independent_rows = 4}),
            "gradcheck: x: expected a leading dimension of 4 independent rows, got shape [3, 2]");
  EXPECT_EQ(refusal({.outputs = {y}}), "gradcheck: no inputs");
  EXPECT_EQ(refusal({.inputs = {x}}), "gradcheck: no outputs");
  EXPECT_EQ(refusal({.inputs = {x}, .outputs = {y}}, {.directions = 0}),
            "gradcheck: directions: expected at least 1");
  EXPECT_EQ(refusal({.inputs = {x}, .outputs = {y}}, {.tolerance = std::nan("")}),
            "gradcheck: tolerance: expected a number >= 0");
  Output short_y = y;
  short_y.cotangent = five;
  EXPECT_EQ(refusal({.inputs = {x}, .outputs = {short_y}}),
            "gradcheck: y: cotangent: expected 6 elements for shape [3, 2], got 5");
  EXPECT_THROW(check_jacobian({.inputs = {x}, .outputs = {y}}, {}, {}), InvalidArgument);
  EXPECT_THROW(random_values(-1, 0), InvalidArgument);
}

TEST(Gradcheck, RandomValuesAreUniformAndIndependentOfLength) {
  const Array values = random_values(1 << 20, 5);
  double sum = 0.0, squares = 0.0, next = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += values[i];
    squares += values[i] * values[i];
    next += i > 0 ? values[i] * values[i - 1] : 0.0;
    ASSERT_LE(std::fabs(values[i]), std::sqrt(3.0));
  }
  // Standard errors are about 1e-3.
  EXPECT_NEAR(sum / double(1 << 20), 0.0, 4e-3);
  EXPECT_NEAR(squares / double(1 << 20), 1.0, 4e-3);
  EXPECT_NEAR(next / double(1 << 20), 0.0, 4e-3);
  const Array prefix = random_values(100, 5);
  EXPECT_TRUE(std::equal(prefix.begin(), prefix.end(), values.begin()));
  EXPECT_NE(random_values(4, 6), random_values(4, 5));
}

}  // namespace
}  // namespace touchstone::inline v0::gradcheck
