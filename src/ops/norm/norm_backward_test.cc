// Layer norm and RMS norm backward against the float64 oracle.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/norm/norm_test_support.h"

namespace touchstone::test {
namespace {

// The sum over no rows is zero, and it is written.
TEST(NormBackward, NoRowsGiveZeroWeightGradients) {
  for (const Kind kind : kBothKinds) {
    for (const DTypes& dtypes : all_dtypes()) {
      for (const std::int64_t cols : {1, 64, 65537}) {
        const Problem p{.kind = kind, .dtypes = dtypes, .lead = {0}, .cols = cols, .fused = true};
        BackwardRun run(p, make_data(p));
        const std::vector<std::byte> zeros(
            static_cast<std::size_t>(cols * size_of(dtypes.weight_grad)));
        for_each_implementation(run.accepting(), [&](Runner& context) {
          run.run(context);
          EXPECT_TRUE(same_bits(run.dweight, zeros));
          if (run.dbias.defined()) {
            EXPECT_TRUE(same_bits(run.dbias, zeros));
          }
        });
      }
    }
  }
}

TEST(NormBackward, NoColumnsWritesNothing) {
  for (const Kind kind : kBothKinds) {
    const Problem p{.kind = kind, .lead = {7}, .cols = 0};
    BackwardRun run(p, make_data(p));
    for_each_implementation(run.accepting(), [&](Runner& context) { run.run(context); });
  }
}

TEST(NormBackward, LeadingShapes) {
  for (const Kind kind : kBothKinds) {
    for (const auto& lead : std::vector<std::vector<std::int64_t>>{
             {}, {1}, {2, 3}, {1, 5, 1}, {1, 1, 2, 1, 2, 1, 2}}) {
      for (const std::int64_t gap : {0, 3}) {
        check_backward(
            {.kind = kind, .lead = lead, .cols = 33, .fused = true, .layout = {.row_gap = gap}});
      }
    }
  }
}

TEST(NormBackward, OnlyOneOfTheWeightGradients) {
  const Problem p{.lead = {40}, .cols = 130};
  const Data data = make_data(p);
  const ExpectedBackward expected = expected_backward(p, data);
  for (const bool weight_only : {true, false}) {
    BackwardRun run(p, data);
    (weight_only ? run.args.dbias : run.args.dweight) = {};
    for_each_runner(run.accepting(), [&](Runner& context) {
      run.run(context);
      EXPECT_TRUE(close(run.dx.values(), expected.dx, DType::f32, p.cols));
      if (weight_only) {
        EXPECT_TRUE(close(run.dweight.values(), expected.dweight, DType::f32));
        EXPECT_TRUE(run.dbias.unchanged());
      } else {
        EXPECT_TRUE(close(run.dbias.values(), expected.dbias, DType::f32));
        EXPECT_TRUE(run.dweight.unchanged());
      }
    });
  }
}

TEST(NormBackward, ZeroAndConstantRows) {
  for (const Kind kind : kBothKinds) {
    for (const DTypes& dtypes : all_dtypes()) {
      check_backward({.kind = kind,
                      .dtypes = dtypes,
                      .lead = {5},
                      .cols = 100,
                      .x = {.shape = Shape::constant, .center = 0}});
      check_backward({.kind = kind,
                      .dtypes = dtypes,
                      .lead = {6},
                      .cols = 65,
                      .x = {.shape = Shape::rows, .period = 65}});
    }
  }
}

TEST(NormBackward, Scales) {
  for (const Kind kind : kBothKinds) {
    for (const DTypes& dtypes : all_dtypes()) {
      const bool f16 = dtypes.x == DType::f16;
      // Within the range of the dtype for dx, which is of the order of 1 / scale.
      const std::vector<double> scales =
          f16 ? std::vector<double>{1e-3, 1e-2, 1e2, 8e3}
              : std::vector<double>{1e-36, 1e-30, 1e-20, 1e-10, 1e5, 1e10, 1e20, 1e30, 4e36};
      for (const double scale : scales) {
        for (const double eps : {0.0, 1e-5}) {
          check_backward({.kind = kind,
                          .dtypes = dtypes,
                          .lead = {3},
                          .cols = 777,
                          .eps = eps,
                          .x = {.scale = scale}});
        }
      }
    }
  }
}

TEST(NormBackward, GradientScales) {
  for (const Kind kind : kBothKinds) {
    for (const double scale : {1e-30, 1e-15, 1e15, 1e30}) {
      check_backward({.kind = kind, .lead = {9}, .cols = 321, .dy = {.scale = scale}});
    }
  }
}

// One row of dy for all rows: an expanded view with a row stride of zero.
TEST(NormBackward, ExpandedGradient) {
  for (const Kind kind : kBothKinds) {
    for (const std::int64_t cols : {7, 64, 1024, 4097}) {
      const Problem p{.kind = kind, .lead = {50}, .cols = cols};
      SCOPED_TRACE(p.describe());
      Data data = make_data(p);
      for (std::size_t i = static_cast<std::size_t>(cols); i < data.dy.size(); ++i) {
        data.dy[i] = data.dy[i - static_cast<std::size_t>(cols)];
      }
      const ExpectedBackward expected = expected_backward(p, data);
      BackwardRun run(p, data);
      run.args.dy = with_stride(run.args.dy, 0, 0);
      for_each_runner(run.accepting(), [&](Runner& context) {
        run.run(context);
        EXPECT_TRUE(close(run.dx.values(), expected.dx, DType::f32, cols));
        EXPECT_TRUE(close(run.dweight.values(), expected.dweight, DType::f32));
        if (run.dbias.defined()) {
          EXPECT_TRUE(close(run.dbias.values(), expected.dbias, DType::f32));
        }
      });
    }
  }
}

// Column sums over many rows keep the accuracy of f32, with terms of either sign and of one sign
// (where a running sum outgrows what is added to it).
TEST(NormBackward, LongColumnSums) {
  for (const Kind kind : kBothKinds) {
    for (const bool positive : {false, true}) {
      Problem p{.kind = kind, .lead = {sanitized_size(100000, 10000)}, .cols = 64};
      SCOPED_TRACE(p.describe());
      Data data = make_data(p);
      if (positive) {
        // dy with the sign of xhat, which is the sign of x at mean zero: every term of dweight is
        // positive, up to the few where the sign of the tiny mean decides.
        for (std::size_t i = 0; i < data.dy.size(); ++i) {
          data.dy[i] = std::copysign(data.dy[i], data.x[i]);
        }
      }
      const ExpectedBackward expected = expected_backward(p, data);
      for_each_round_trip(p, data, [&](Runner&, ForwardRun&, BackwardRun& run) {
        const double dweight = relative_l2(run.dweight.values(), expected.dweight.value);
        EXPECT_LE(dweight, 1e-6);
        if (run.dbias.defined()) {
          EXPECT_LE(relative_l2(run.dbias.values(), expected.dbias.value), 1e-6);
        }
      });
    }
  }
}

// All terms of dbias equal: the sum is exact, and beyond the range of f16.
TEST(NormBackward, ColumnSumsOfHalvesDoNotOverflow) {
  for (const DType weight_grad : {DType::f32, DType::f16}) {
    Problem p{.lead = {100000},
              .cols = sanitized_size(64, 5),
              .weight = false,
              .bias = false,
              .dy = {.shape = Shape::constant, .center = 2}};
    p.dtypes = {DType::f16, DType::f16, weight_grad};
    SCOPED_TRACE(p.describe());
    const Data data = make_data(p);
    BackwardRun run(p, data);
    for_each_runner(run.accepting(), [&](Runner& context) {
      run.run(context);
      for (const double value : run.dbias.values()) {
        // f16 ends at 65504; an honest sum rounded once is infinite there.
        ASSERT_EQ(value, weight_grad == DType::f32 ? 200000.0 : HUGE_VAL);
      }
      for (const double value : run.dweight.values()) ASSERT_TRUE(std::isfinite(value));
    });
  }
}

// The gradient is linear in dy and orthogonal to the directions the norm ignores: moving all of x
// (layer norm) or scaling x about its mean changes nothing, so dx has no part along them.
TEST(NormBackward, OrthogonalToInvariances) {
  for (const Kind kind : kBothKinds) {
    const Problem p{.kind = kind, .lead = {20}, .cols = 1000, .eps = 0};
    const Data data = make_data(p);
    for_each_round_trip(p, data, [&](Runner&, ForwardRun&, BackwardRun& run) {
      const std::vector<double> dx = run.dx.values();
      for (std::size_t r = 0; r < 20; ++r) {
        double sum = 0;
        double along = 0;
        double size = 0;
        for (std::size_t c = r * 1000; c < (r + 1) * 1000; ++c) {
          sum += dx[c];
          along += dx[c] * data.x[c];
          size += std::fabs(dx[c]) * (1 + std::fabs(data.x[c]));
        }
        if (kind == Kind::layer) {
          EXPECT_LE(std::fabs(sum), 1e-6 * size) << "row " << r;
        }
        EXPECT_LE(std::fabs(along), 1e-6 * size) << "row " << r;
      }
    });
  }
}

}  // namespace
}  // namespace touchstone::test
