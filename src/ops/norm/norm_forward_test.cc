// Layer norm and RMS norm forward against the float64 oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>

#include "ops/norm/norm_test_support.h"

namespace touchstone::test {
namespace {

// Enough bytes for every kernel of the GPU, which chooses by them.
TEST(NormForward, ManyBytesOnTheGpu) {
  if (!on_gpu()) GTEST_SKIP() << "the CPU has one kernel";
  for (const Kind kind : kBothKinds) check_forward({.kind = kind, .lead = {2304}, .cols = 1024});
}

TEST(NormForward, NoRowsWritesNothing) {
  for (const Kind kind : kBothKinds) {
    for (const DTypes& dtypes : all_dtypes()) {
      for (const std::int64_t cols : {1, 64, 65537}) {
        const Problem p{.kind = kind, .dtypes = dtypes, .lead = {0}, .cols = cols, .fused = true};
        ForwardRun run(p, make_data(p));
        for_each_implementation(run.accepting(), [&](Runner& context) { run.run(context); });
      }
    }
  }
}

TEST(NormForward, NoColumnsWritesNothing) {
  for (const Kind kind : kBothKinds) {
    const Problem p{.kind = kind, .lead = {7}, .cols = 0};
    ForwardRun run(p, make_data(p));
    for_each_implementation(run.accepting(), [&](Runner& context) {
      run.run(context);
      EXPECT_TRUE(run.mean.unchanged());
      EXPECT_TRUE(run.rstd.unchanged());
    });
  }
}

TEST(NormForward, EmptyTensorsNeedNoMemory) {
  Runner context({.device = test_device()});
  const std::int64_t shape[] = {0, 64};
  const TensorView nothing =
      make_view(static_cast<void*>(nullptr), shape, DType::f32, test_device());
  EXPECT_NO_THROW(layer_norm(context, {.x = nothing, .y = nothing}));
  EXPECT_NO_THROW(rms_norm(context, {.x = nothing, .y = nothing}));
}

TEST(NormForward, LeadingShapes) {
  for (const Kind kind : kBothKinds) {
    for (const auto& lead : std::vector<std::vector<std::int64_t>>{
             {}, {1}, {2, 3}, {1, 5, 1}, {2, 1, 3, 1, 2}, {1, 1, 2, 1, 2, 1, 2}}) {
      for (const std::int64_t gap : {0, 3}) {
        check_forward(
            {.kind = kind, .lead = lead, .cols = 33, .fused = true, .layout = {.row_gap = gap}});
      }
    }
  }
}

TEST(NormForward, ZeroInput) {
  for (const Kind kind : kBothKinds) {
    for (const DTypes& dtypes : all_dtypes()) {
      const Problem p{.kind = kind,
                      .dtypes = dtypes,
                      .lead = {5},
                      .cols = 100,
                      .x = {.shape = Shape::constant, .center = 0}};
      check_forward(p);
      // Zero times anything finite: y is bias, exactly.
      const Data data = make_data(p);
      ForwardRun run(p, data);
      for_each_runner(run.accepting(), [&](Runner& context) {
        run.run(context);
        const std::vector<double> y = run.y.values();
        for (std::size_t i = 0; i < y.size(); ++i) {
          const double bias = data.bias.empty() ? 0.0 : data.bias[i % 100];
          ASSERT_EQ(y[i], rounded(std::vector<double>{bias}, dtypes.x)[0]) << "element " << i;
        }
      });
    }
  }
}

TEST(NormForward, ConstantRows) {
  for (const Kind kind : kBothKinds) {
    for (const DTypes& dtypes : all_dtypes()) {
      for (const std::int64_t cols : {1, 3, 65, 1023}) {
        for (const double scale : {1.0, 1000.0}) {
          check_forward({.kind = kind,
                         .dtypes = dtypes,
                         .lead = {6},
                         .cols = cols,
                         .x = {.shape = Shape::rows, .scale = scale, .period = cols}});
        }
      }
    }
  }
}

TEST(NormForward, ConstantRowsWithoutEpsAreNotANumber) {
  const Problem p{.lead = {4}, .cols = 100, .eps = 0, .x = {.shape = Shape::constant, .center = 2}};
  ForwardRun run(p, make_data(p));
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    for (const double y : run.y.values()) ASSERT_TRUE(std::isnan(y)) << y;
  });
}

// The whole range of f32, and what of it bf16 and f64 share; f16 has its own smaller range.
TEST(NormForward, Scales) {
  for (const Kind kind : kBothKinds) {
    for (const DTypes& dtypes : all_dtypes()) {
      const bool f16 = dtypes.x == DType::f16;
      const std::vector<double> scales =
          f16 ? std::vector<double>{1e-4, 1e-2, 1e2, 8e3}
              : std::vector<double>{1e-37, 1e-30, 1e-20, 1e-10, 1e-5, 1e5, 1e10, 1e20, 1e30, 4e36};
      for (const double scale : scales) {
        for (const double eps : {0.0, 1e-5}) {
          check_forward({.kind = kind,
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

// Squares must not overflow on the way: these rows have an exact answer.
TEST(NormForward, HugeSignsNormalizeToOne) {
  struct Case {
    DType dtype;
    double size;
  };
  for (const Case& c : {Case{DType::f32, 1e20}, Case{DType::f32, 3e38}, Case{DType::bf16, 1e20},
                        Case{DType::bf16, 3e38}, Case{DType::f16, 300}, Case{DType::f16, 60000}}) {
    for (const Kind kind : kBothKinds) {
      Problem p{.kind = kind, .lead = {2}, .cols = 1024, .weight = false, .bias = false};
      p.dtypes.x = c.dtype;
      Data data = make_data(p);
      // As many of one sign as of the other, so that the mean is zero.
      for (std::size_t i = 0; i < data.x.size(); ++i) data.x[i] = i % 2 == 0 ? c.size : -c.size;
      ForwardRun run(p, data);
      for_each_runner(run.accepting(), [&](Runner& context) {
        run.run(context);
        const std::vector<double> y = run.y.values();
        for (std::size_t i = 0; i < y.size(); ++i) {
          ASSERT_NEAR(y[i], i % 2 == 0 ? 1.0 : -1.0, 1e-6)
              << name_of(c.dtype) << " " << c.size << " element " << i;
        }
      });
    }
  }
}

TEST(NormForward, Outlier) {
  // One element carries the variance: xhat reaches sqrt(D).
  for (const Kind kind : kBothKinds) {
    Problem p{.kind = kind, .lead = {3}, .cols = 4097};
    Data data = make_data(p);
    for (std::size_t r = 0; r < 3; ++r) data.x[r * 4097 + 1000 * r + 96] = 1e8;
    data.h = data.x;
    const ExpectedForward expected = expected_forward(p, data);
    ForwardRun run(p, data);
    for_each_runner(run.accepting(), [&](Runner& context) {
      run.run(context);
      EXPECT_TRUE(close(run.y.values(), expected.y, p.dtypes.x, p.cols));
    });
  }
}

double round_to(double value, DType dtype) { return rounded(std::vector<double>{value}, dtype)[0]; }

// xhat rounded to the dtype where its rounding is known: where everything within the error of f32
// arithmetic rounds to the same number. NaN elsewhere.
std::vector<double> known_roundings(Problem p, const Data& data) {
  const DType dtype = p.dtypes.x;
  p.weight = p.before_weight = false;
  p.dtypes.x = DType::f32;
  Data bare;
  bare.h = data.h;
  const Expected xhat = expected_forward(p, bare).y;
  std::vector<double> result = xhat.value;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const double below = round_to(xhat.value[i] - xhat.bound[i], dtype);
    const double above = round_to(xhat.value[i] + xhat.bound[i], dtype);
    result[i] = below == above ? below : std::nan("");
  }
  return result;
}

// Rounding before the weight: where the first rounding is known, so is every bit of y.
TEST(RmsNormForward, RoundingBeforeWeightToTheBit) {
  for (const DTypes& dtypes : all_dtypes()) {
    if (dtypes.x == DType::f64 || dtypes.x == DType::f32) continue;
    for (const double offset : {0.0, 1.0}) {
      const Problem p{.kind = Kind::rms,
                      .dtypes = dtypes,
                      .lead = {16},
                      .cols = 1024,
                      .weight_offset = offset,
                      .before_weight = true};
      SCOPED_TRACE(p.describe());
      const Data data = make_data(p);
      const std::vector<double> xhat = known_roundings(p, data);
      ForwardRun run(p, data);
      for_each_runner(run.accepting(), [&](Runner& context) {
        run.run(context);
        const std::vector<double> y = run.y.values();
        int known = 0;
        for (std::size_t i = 0; i < y.size(); ++i) {
          if (std::isnan(xhat[i])) continue;
          ++known;
          const float weight =
              static_cast<float>(offset) + static_cast<float>(data.weight[i % 1024]);
          // The product of 16-bit numbers is exact in f32. That with an f32 weight may be rounded
          // to f32 on its way or not; once in 2^13 that shows.
          const float through_f32 = static_cast<float>(xhat[i]) * weight;
          const double direct = xhat[i] * static_cast<double>(weight);
          if (y[i] == round_to(direct, dtypes.x)) continue;
          ASSERT_EQ(y[i], round_to(static_cast<double>(through_f32), dtypes.x)) << "element " << i;
        }
        EXPECT_GT(known, 16000) << "of 16384";
      });
    }
  }
}

// The two rounding points differ in a good part of the elements, or the option does nothing.
TEST(RmsNormForward, RoundingPointsDiffer) {
  Problem p{.kind = Kind::rms, .lead = {16}, .cols = 1024};
  p.dtypes = {DType::bf16, DType::bf16, DType::bf16};
  const Data data = make_data(p);
  ForwardRun once(p, data);
  p.before_weight = true;
  ForwardRun before(p, data);
  for_each_runner(once.accepting(), [&](Runner& context) {
    once.run(context);
    before.run(context);
    const std::vector<double> a = once.y.values();
    const std::vector<double> b = before.y.values();
    int different = 0;
    for (std::size_t i = 0; i < a.size(); ++i) different += a[i] != b[i] ? 1 : 0;
    EXPECT_GT(different, 1000);
    EXPECT_LT(different, 12000);
  });
}

// Inputs are read from rows far apart: offsets beyond 2^32 elements.
TEST(NormForward, RowOffsetsBeyond32Bits) {
  constexpr std::int64_t kRows = 66000;
  constexpr std::int64_t kStride = 65537;
  constexpr std::int64_t kCols = 3;
  if (on_gpu()) GTEST_SKIP() << "the GPU tests do this with dense rows";
  // No tensor, whose huge pages would all be written for the sake of a few bytes of each.
  const std::unique_ptr<Bf16, void (*)(void*)> wide(
      static_cast<Bf16*>(std::malloc(static_cast<std::size_t>(kRows * kStride) * sizeof(Bf16))),
      std::free);
  if (wide == nullptr) GTEST_SKIP() << "not enough memory";
  Bf16* const elements = wide.get();
  const std::vector<double> values = rounded(random_values({}, kRows * kCols, 5), DType::bf16);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kCols; ++c) {
      elements[r * kStride + c] = Bf16(values[static_cast<std::size_t>(r * kCols + c)]);
    }
  }
  Problem p{.lead = {kRows}, .cols = kCols};
  p.dtypes.x = DType::bf16;
  Data data = make_data(p);
  data.x = data.h = values;
  const ExpectedForward expected = expected_forward(p, data);
  ForwardRun run(p, data);
  run.args.x = with_stride(make_view(elements, {kRows, kCols}), 0, kStride);
  for_each_implementation(run.accepting(), [&](Runner& context) {
    run.run(context);
    EXPECT_TRUE(close(run.y.values(), expected.y, DType::bf16, kCols));
  });
}

}  // namespace
}  // namespace touchstone::test
