// ternary_project against the projection of core/ternary.h, which has its own tests: the same bits on
// every device for every geometry, rule and type of scale.
#include "touchstone/ops/ternary_project.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/guarded.h"
#include "tests/support/runners.h"
#include "touchstone/core/error.h"

namespace touchstone {
namespace {

using test::Guarded;
using test::test_device;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr TernaryGeometry kRow{.grouping = TernaryGrouping::row};
constexpr TernaryGeometry kTensor{.grouping = TernaryGrouping::tensor};

// Many magnitudes, so that the order of sums shows; zeros, denormals, a group of zeros.
std::vector<double> weights(std::int64_t rows, std::int64_t cols, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<double> weight(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < weight.size(); ++i) {
    const float value = normal(random) * std::ldexp(1.0F, static_cast<int>(random() % 20) - 14);
    weight[i] = static_cast<double>(i % 17 == 3 ? 0.0F : value);
  }
  for (std::size_t i = 0; i < std::min<std::size_t>(weight.size(), 256); ++i) weight[i] = 0;
  if (rows > 2) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(cols); ++i) {
      const auto tiny = static_cast<double>(std::ldexp(1.0F, -140));
      weight[static_cast<std::size_t>(2 * cols) + i] = i % 2 == 0 ? tiny : -tiny;
    }
  }
  return weight;
}

std::vector<float> narrowed(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

class TernaryProject : public ::testing::Test {
 protected:
  // Calls the operator and compares all three outputs with the host's projection.
  void compare(const TernaryRule& rule, std::int64_t rows, std::int64_t cols, DType dtype,
               DType values_dtype) {
    const std::vector<double> weight = weights(rows, cols, 5);
    const std::int64_t groups = ternary_groups(rule.geometry, rows, cols);
    const Guarded w(test_device(), dtype, {rows, cols}, weight);
    Guarded values(test_device(), values_dtype, {rows, cols});
    Guarded codes(test_device(), DType::i8, {rows, cols});
    Guarded scales(test_device(), DType::f32, {groups});
    ternary_project(
        context_, {.weight = w, .rule = rule, .values = values, .codes = codes, .scales = scales});
    context_.synchronize();
    const TernaryMatrix expected = ternary_project(rule, rows, cols, narrowed(weight));
    std::vector<float> expected_values(weight.size());
    ternary_values(expected, expected_values);
    const Guarded rounded(Device::cpu(), values_dtype, {rows, cols},
                          std::vector<double>(expected_values.begin(), expected_values.end()));
    EXPECT_EQ(codes.values(), std::vector<double>(expected.codes.begin(), expected.codes.end()));
    EXPECT_EQ(scales.values(), std::vector<double>(expected.scales.begin(), expected.scales.end()));
    EXPECT_EQ(values.bytes(), rounded.bytes());
    EXPECT_TRUE(values.outside_intact() && codes.outside_intact() && scales.outside_intact());
    EXPECT_TRUE(w.unchanged());
  }

  Context context_{{.device = test_device(), .workspace_bytes = 1 << 20}};
};

TEST_F(TernaryProject, IsTheProjectionOfTheHost) {
  for (const auto& geometry : {TernaryGeometry{.size = 32}, TernaryGeometry{.size = 100},
                               TernaryGeometry{}, TernaryGeometry{.size = 256}, kRow, kTensor}) {
    for (const auto scale :
         {TernaryScaleRule::mean, TernaryScaleRule::absmax, TernaryScaleRule::least_squares}) {
      if (scale == TernaryScaleRule::least_squares && test_device().is_cuda() &&
          geometry.grouping != TernaryGrouping::group) {
        continue;
      }
      for (const auto type :
           {TernaryScaleType::f16, TernaryScaleType::f32, TernaryScaleType::f16_bf16}) {
        const TernaryRule rule{.geometry = geometry, .scale = scale, .scale_type = type};
        SCOPED_TRACE(ternary_geometry_name(geometry) + " " +
                     std::string(ternary_scale_rule_name(scale)));
        compare(rule, 1, 1, DType::f32, DType::f32);
        compare(rule, 5, 130, DType::f32, DType::f32);
        compare(rule, 33, 513, DType::f32, DType::bf16);
        compare(rule, 3, 1031, DType::f32, DType::f16);
      }
    }
  }
}

TEST_F(TernaryProject, WeightsOfF64) {
  if (test_device().is_cuda()) GTEST_SKIP() << "f64 runs on the CPU";
  compare({}, 5, 300, DType::f64, DType::f64);
  compare({.geometry = kRow}, 5, 300, DType::f64, DType::f32);
  compare({.geometry = kTensor, .scale = TernaryScaleRule::least_squares}, 5, 300, DType::f64,
          DType::f64);
}

// The same where the sum of magnitudes leaves the range of f64, and where half a scale is no number.
TEST_F(TernaryProject, TheEndsOfF64) {
  if (test_device().is_cuda()) GTEST_SKIP() << "f64 runs on the CPU";
  using enum TernaryScaleRule;
  const auto codes_of = [&](TernaryScaleRule rule, double unit) {
    std::vector<double> weight(100);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      weight[i] = unit * (i % 2 == 0 ? 1 : -1) * static_cast<double>(i % 4);
    }
    const Guarded w(test_device(), DType::f64, {1, 100}, weight);
    Guarded codes(test_device(), DType::i8, {1, 100});
    Guarded scales(test_device(), DType::f32, {1});
    ternary_project(context_, {.weight = w,
                               .rule = {.geometry = {.size = 128}, .scale = rule},
                               .codes = codes,
                               .scales = scales});
    EXPECT_EQ(scales.values()[0], unit > 1e6 ? 65504 : 0x1p-24) << unit;
    return codes.values();
  };
  for (const TernaryScaleRule rule : {mean, absmax, least_squares}) {
    const std::vector<double> expected = codes_of(rule, 1e-30);
    EXPECT_EQ(codes_of(rule, 0x1p1022), expected) << ternary_scale_rule_name(rule);
  }
  EXPECT_EQ(codes_of(absmax, 0x1p-1074), codes_of(absmax, 1e-30));
}

// Codes do not depend on the magnitude of a group, also where squares leave the range of f64.
TEST_F(TernaryProject, LeastSquaresOfTinyAndHugeF64) {
  if (test_device().is_cuda()) GTEST_SKIP() << "f64 runs on the CPU";
  const auto codes_of = [&](double unit) {
    std::vector<double> weight(64);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      weight[i] = unit * (static_cast<double>(i % 9) - 4);
    }
    const Guarded w(test_device(), DType::f64, {1, 64}, weight);
    Guarded codes(test_device(), DType::i8, {1, 64});
    ternary_project(context_,
                    {.weight = w,
                     .rule = {.geometry = {.size = 64}, .scale = TernaryScaleRule::least_squares},
                     .codes = codes});
    return codes.values();
  };
  const std::vector<double> expected = codes_of(1);
  EXPECT_GT(std::ranges::count(expected, 0), 0);
  for (const double unit : {0x1p-1070, 0x1p-600, 0x1p600, 0x1p1000}) {
    EXPECT_EQ(codes_of(unit), expected) << unit;
  }
}

TEST_F(TernaryProject, LargeTensorsAreSharedByThreads) {
  compare({.geometry = kTensor}, 40, 2048, DType::f32, DType::f32);
  compare({}, 70, 1024, DType::f32, DType::f32);
}

TEST_F(TernaryProject, ValuesMayReplaceTheWeights) {
  for (const TernaryGeometry& geometry : {TernaryGeometry{}, kRow, kTensor}) {
    const std::vector<double> weight = weights(6, 260, 9);
    Guarded w(test_device(), DType::f32, {6, 260}, weight);
    ternary_project(context_, {.weight = w, .rule = {.geometry = geometry}, .values = w});
    context_.synchronize();
    std::vector<float> expected(weight.size());
    ternary_project({.geometry = geometry}, 6, 260, narrowed(weight), {.values = expected});
    EXPECT_EQ(w.values(), std::vector<double>(expected.begin(), expected.end()));
  }
}

TEST_F(TernaryProject, NanAndInfinityStayInTheirGroup) {
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    for (const auto scale :
         {TernaryScaleRule::mean, TernaryScaleRule::absmax, TernaryScaleRule::least_squares}) {
      std::vector<double> weight(2 * 256, 1.0);
      weight[256 + 130] = bad;
      const Guarded w(test_device(), DType::f32, {2, 256}, weight);
      Guarded values(test_device(), DType::f32, {2, 256});
      Guarded codes(test_device(), DType::i8, {2, 256});
      Guarded scales(test_device(), DType::f32, {4});
      ternary_project(context_, {.weight = w,
                                 .rule = {.scale = scale},
                                 .values = values,
                                 .codes = codes,
                                 .scales = scales});
      context_.synchronize();
      for (std::size_t i = 0; i < weight.size(); ++i) {
        const bool poisoned = i >= 256 + 128;
        EXPECT_EQ(std::isnan(values.values()[i]), poisoned) << i;
        EXPECT_EQ(codes.values()[i], poisoned ? 0 : 1) << i;
        if (i % 61 != 0) i += 20;
      }
      EXPECT_TRUE(std::isnan(scales.values()[3]));
    }
  }
}

TEST_F(TernaryProject, RefusesBadArgumentsAndWritesNothing) {
  const Guarded w(test_device(), DType::f32, {4, 130}, std::vector<double>(520, 1.0));
  Guarded values(test_device(), DType::f32, {4, 130});
  Guarded few(test_device(), DType::f32, {7});
  const auto refused = [&](const TernaryProjectArgs& args, const char* message) {
    EXPECT_THAT([&] { ternary_project(context_, args); }, ThrowsMessage<Error>(HasSubstr(message)));
  };
  refused({.weight = w}, "at least one of");
  refused({.weight = w, .values = values, .scales = few}, "scales");
  refused({.weight = w, .rule = {.geometry = {.size = 16}}, .values = values}, "group size");
  refused({.weight = w, .values = test::columns(values, 0, 65)}, "values");
  refused({.values = values}, "weight");
  refused({.weight = w, .rule = {.scale = static_cast<TernaryScaleRule>(7)}, .values = values},
          "rule");
  const Guarded half(test_device(), DType::bf16, {4, 130});
  refused({.weight = half, .values = values}, "bf16");
  if (test_device().is_cuda()) {
    refused({.weight = w,
             .rule = {.geometry = kRow, .scale = TernaryScaleRule::least_squares},
             .values = values},
            "least squares");
  }
  EXPECT_TRUE(values.unchanged());
}

}  // namespace
}  // namespace touchstone
