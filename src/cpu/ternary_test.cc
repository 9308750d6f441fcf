// The ternary projection on groups made by hand, at the ends of the range of floats and of scales, and
// against a second implementation that sorts out groups one value at a time.
#include "touchstone/core/ternary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "touchstone/core/error.h"
#include "touchstone/core/half.h"

namespace touchstone {
namespace {

constexpr auto kDenormal = std::numeric_limits<float>::denorm_min();

TernaryRule rule_of(TernaryScaleRule scale, std::int64_t size = 32,
                    TernaryScaleType type = TernaryScaleType::f16) {
  return {.geometry = {.size = size}, .scale = scale, .scale_type = type};
}

std::vector<float> values_of(const TernaryMatrix& matrix) {
  std::vector<float> values(matrix.codes.size());
  ternary_values(matrix, values);
  return values;
}

std::string error_of(const auto& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Ternary, MeanOfAGroupMadeByHand) {
  // Sum 20 of 32 values: s = 0.625, a number that an f16 holds; codes are not 0 above 0.3125.
  std::vector<float> group(32, 0.0F);
  for (std::size_t i = 0; i < 16; ++i) group[i] = i % 2 == 0 ? 1.0F : -1.0F;
  const float above = std::nextafter(0.3125F, 1.0F);
  group[16] = 0.3125F;
  group[17] = -0.3125F;
  group[18] = above;
  group[19] = -3.0F;
  group[20] = 0.0625F - (above - 0.3125F);
  const TernaryMatrix matrix = ternary_project(rule_of(TernaryScaleRule::mean), 1, 32, group);
  EXPECT_EQ(matrix.scales, std::vector<float>{0.625F});
  EXPECT_EQ(matrix.codes[16], 0);
  EXPECT_EQ(matrix.codes[17], 0);
  EXPECT_EQ(matrix.codes[18], 1);
  EXPECT_EQ(matrix.codes[19], -1);
  EXPECT_EQ(matrix.codes[20], 0);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(matrix.codes[i], i % 2 == 0 ? 1 : -1);
}

TEST(Ternary, ATieGoesToZero) {
  // 24 values of 1 and 8 of 0.5: no tie; with absmax 1 the values of 0.5 are ties.
  std::vector<float> group(32, 1.0F);
  for (std::size_t i = 24; i < 32; ++i) group[i] = i % 2 == 0 ? 0.5F : -0.5F;
  group[31] = -std::nextafter(0.5F, 1.0F);
  const TernaryMatrix matrix = ternary_project(rule_of(TernaryScaleRule::absmax), 1, 32, group);
  EXPECT_EQ(matrix.scales[0], 1.0F);
  for (std::size_t i = 24; i < 31; ++i) EXPECT_EQ(matrix.codes[i], 0);
  EXPECT_EQ(matrix.codes[31], -1);
}

TEST(Ternary, LeastSquaresIsTheBestOfAllSupports) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<float> group(40);
    for (float& value : group) value = normal(random) * (trial % 3 == 0 ? 1.0F : normal(random));
    const double scale = ternary_scale(TernaryScaleRule::least_squares, group);
    const auto error = [&](double s) {
      double sum = 0;
      for (const float value : group) {
        const double magnitude = std::abs(static_cast<double>(value));
        sum += std::min(magnitude * magnitude, (magnitude - s) * (magnitude - s));
      }
      return sum;
    };
    // The error is piecewise quadratic in s: a fine grid finds no better one.
    const double best = error(scale);
    for (int step = 1; step <= 4000; ++step) {
      ASSERT_GE(error(step * 0.001 * std::max(1.0, scale)), best * (1 - 1e-12)) << trial;
    }
  }
}

TEST(Ternary, LeastSquaresOfTernaryValuesIsTheirScale) {
  std::vector<float> group(64, 0.0F);
  group[3] = 0.75F;
  group[9] = -0.75F;
  const TernaryMatrix matrix =
      ternary_project(rule_of(TernaryScaleRule::least_squares, 64), 1, 64, group);
  EXPECT_EQ(matrix.scales[0], 0.75F);
  EXPECT_EQ(values_of(matrix), group);
}

TEST(Ternary, TheLastGroupOfARowIsShorterAndNothingIsPadded) {
  const std::vector<float> weight(3 * 130, 0.02F);
  const TernaryMatrix matrix = ternary_project({}, 3, 130, weight);
  ASSERT_EQ(matrix.scales.size(), 6U);
  const auto stored = static_cast<float>(F16(0.02F));
  for (const float value : values_of(matrix)) EXPECT_EQ(value, stored);
  EXPECT_EQ(ternary_group({}, 3, 130, 3).begin, 130 + 128);
  EXPECT_EQ(ternary_group({}, 3, 130, 3).count, 2);
}

TEST(Ternary, RowsAndTensorsAreGroupsToo) {
  std::vector<float> weight(2 * 300);
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = i < 300 ? 1.0F : -3.0F;
  const TernaryGeometry row{.grouping = TernaryGrouping::row};
  const TernaryGeometry tensor{.grouping = TernaryGrouping::tensor};
  EXPECT_EQ(ternary_project({.geometry = row}, 2, 300, weight).scales,
            (std::vector<float>{1.0F, 3.0F}));
  const TernaryMatrix whole = ternary_project({.geometry = tensor}, 2, 300, weight);
  EXPECT_EQ(whole.scales, std::vector<float>{2.0F});
  EXPECT_EQ(whole.codes.front(), 0);  // 2 |w| = s is a tie
  EXPECT_EQ(whole.codes.back(), -1);
}

TEST(Ternary, GroupsOfZerosHaveScaleZero) {
  std::vector<float> weight(64, -0.0F);
  weight[40] = 1.0F;
  TernaryMatrix matrix = ternary_project(rule_of(TernaryScaleRule::mean), 1, 64, weight);
  EXPECT_EQ(matrix.scales[0], 0.0F);
  EXPECT_EQ(matrix.codes[40], 1);
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(matrix.codes[i], 0);
    EXPECT_FALSE(std::signbit(values_of(matrix)[i]));
  }
}

TEST(Ternary, TinyGroupsKeepTheirSigns) {
  for (const float size : {1e-9F, 1e-30F, 1e-40F, kDenormal}) {
    for (const auto scale :
         {TernaryScaleRule::mean, TernaryScaleRule::absmax, TernaryScaleRule::least_squares}) {
      for (const auto type : {TernaryScaleType::f16, TernaryScaleType::f32}) {
        std::vector<float> weight(32);
        for (std::size_t i = 0; i < 32; ++i) weight[i] = i % 3 == 0 ? -size : size;
        std::vector<float> values(32);
        std::vector<std::int8_t> codes(32);
        const TernarySummary summary = ternary_project(rule_of(scale, 32, type), 1, 32, weight,
                                                       {.codes = codes, .values = values});
        const float stored = type == TernaryScaleType::f32 ? size : 0x1p-24F;
        for (std::size_t i = 0; i < 32; ++i) {
          EXPECT_EQ(codes[i], i % 3 == 0 ? -1 : 1) << size;
          // A sum of denormals is exact in f64, but a mean of 1e-9 may round by an ulp of f32.
          EXPECT_FLOAT_EQ(values[i], i % 3 == 0 ? -stored : stored) << size;
        }
        EXPECT_EQ(summary.moved_scales, type == TernaryScaleType::f16 ? 1 : 0);
        EXPECT_EQ(summary.zero_codes, 0);
      }
    }
  }
}

TEST(Ternary, HugeGroupsStayFinite) {
  std::vector<float> weight(32, 3e38F);
  weight[5] = 0;
  const TernaryMatrix f16 = ternary_project(rule_of(TernaryScaleRule::absmax), 1, 32, weight);
  EXPECT_EQ(f16.scales[0], 65504.0F);
  EXPECT_EQ(values_of(f16)[5], 0.0F);
  const TernaryMatrix f32 =
      ternary_project(rule_of(TernaryScaleRule::absmax, 32, TernaryScaleType::f32), 1, 32, weight);
  EXPECT_EQ(f32.scales[0], 3e38F);
}

TEST(Ternary, StoredScalesRoundOnceToNearest) {
  EXPECT_EQ(ternary_stored_scale(0, TernaryScaleType::f16), 0.0F);
  EXPECT_EQ(ternary_stored_scale(1e-300, TernaryScaleType::f16), 0x1p-24F);
  EXPECT_EQ(ternary_stored_scale(1e-300, TernaryScaleType::f32), kDenormal);
  EXPECT_EQ(ternary_stored_scale(65519.9, TernaryScaleType::f16), 65504.0F);
  EXPECT_EQ(ternary_stored_scale(1e300, TernaryScaleType::f16), 65504.0F);
  EXPECT_EQ(ternary_stored_scale(1e300, TernaryScaleType::f32), 0x1.fffffep127F);
  // Between 1 and the next f16, below the middle by less than f32 resolves: twice rounded it goes up.
  EXPECT_EQ(ternary_stored_scale(1 + 0x1p-11 - 0x1p-40, TernaryScaleType::f16), 1.0F);
  EXPECT_EQ(ternary_stored_scale(1 + 0x1p-11 + 0x1p-40, TernaryScaleType::f16), 1 + 0x1p-10F);
  // Eight significant bits, in the range of f16.
  EXPECT_EQ(ternary_stored_scale(1 + 0x1p-8 + 0x1p-12, TernaryScaleType::f16_bf16), 1 + 0x1p-7F);
  EXPECT_EQ(ternary_stored_scale(65535, TernaryScaleType::f16_bf16), 65280.0F);
  EXPECT_EQ(ternary_stored_scale(1e-20, TernaryScaleType::f16_bf16), 0x1p-24F);
  std::mt19937 random(1);
  for (int i = 0; i < 10000; ++i) {
    const double scale = std::ldexp(1 + static_cast<double>(random()) * 0x1p-32,
                                    static_cast<int>(random() % 40) - 24);
    const float stored = ternary_stored_scale(scale, TernaryScaleType::f16_bf16);
    ASSERT_EQ(static_cast<float>(Bf16(stored)), stored) << scale;
    ASSERT_EQ(static_cast<float>(F16(stored)), stored) << scale;
    ASSERT_NEAR(stored, scale, scale * 0x1p-8 + 0x1p-25) << scale;
  }
}

// One value at a time, from the definition.
TernaryMatrix naive(const TernaryRule& rule, std::int64_t rows, std::int64_t cols,
                    const std::vector<float>& weight) {
  TernaryMatrix matrix{.rows = rows, .cols = cols, .geometry = rule.geometry};
  matrix.codes.assign(weight.size(), 0);
  const std::int64_t size =
      rule.geometry.grouping == TernaryGrouping::group ? rule.geometry.size : cols;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; c += size) {
      const std::int64_t n = std::min(size, cols - c);
      long double sum = 0;
      long double most = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        const long double magnitude = std::abs(weight[static_cast<std::size_t>(r * cols + c + i)]);
        sum += magnitude;
        most = std::max(most, magnitude);
      }
      const long double s =
          rule.scale == TernaryScaleRule::mean ? sum / static_cast<long double>(n) : most;
      matrix.scales.push_back(static_cast<float>(F16(static_cast<double>(s))));
      for (std::int64_t i = 0; i < n; ++i) {
        const std::size_t at = static_cast<std::size_t>(r * cols + c + i);
        const long double ratio = s == 0 ? 0 : weight[at] / s;
        matrix.codes[at] = static_cast<std::int8_t>(
            std::clamp(static_cast<int>(std::lrint(std::clamp(ratio, -1.0L, 1.0L))), -1, 1));
      }
    }
  }
  return matrix;
}

TEST(Ternary, AgreesWithANaiveProjection) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const std::int64_t size : {32, 64, 100, 128, 255, 256}) {
    for (const std::int64_t cols : {1, 31, 128, 130, 257, 640}) {
      for (const auto scale : {TernaryScaleRule::mean, TernaryScaleRule::absmax}) {
        std::vector<float> weight(static_cast<std::size_t>(3 * cols));
        for (float& value : weight) value = 0.03F * normal(random);
        const TernaryRule rule = rule_of(scale, size);
        EXPECT_EQ(ternary_project(rule, 3, cols, weight), naive(rule, 3, cols, weight))
            << size << " " << cols;
      }
    }
  }
}

TEST(Ternary, ExactTakesApartWhatIsTernary) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> weight(5 * 300);
  for (float& value : weight) value = normal(random);
  const TernaryMatrix matrix = ternary_project({}, 5, 300, weight);
  std::vector<float> values = values_of(matrix);
  const TernaryExact found = ternary_exact({}, TernaryScaleType::f16, 5, 300, values);
  ASSERT_TRUE(found.matrix.has_value());
  EXPECT_EQ(values_of(*found.matrix), values);
  // Of group 64 too, since every group of 64 lies in one of 128; not of group 256.
  EXPECT_TRUE(
      ternary_exact({.size = 64}, TernaryScaleType::f16, 5, 300, values).matrix.has_value());
  EXPECT_FALSE(
      ternary_exact({.size = 256}, TernaryScaleType::f16, 5, 300, values).matrix.has_value());

  values[300 + 7] = 0.1F;
  for (std::size_t i = 300; i < 307; ++i) values[i] = 0;
  const TernaryExact refused = ternary_exact({}, TernaryScaleType::f16, 5, 300, values);
  EXPECT_FALSE(refused.matrix.has_value());
  EXPECT_EQ(refused.mismatch.row, 1);
  EXPECT_EQ(refused.mismatch.col, 7);
  EXPECT_EQ(refused.mismatch.reason, "0.1 is no f16");
  values[300 + 7] = 0.5F;
  values[300 + 9] = -0.25F;
  values[300 + 8] = 0;
  EXPECT_EQ(ternary_exact({}, TernaryScaleType::f16, 5, 300, values).mismatch.reason,
            "0.25 among magnitudes of 0.5");
  values[300 + 9] = NAN;
  EXPECT_EQ(ternary_exact({}, TernaryScaleType::f16, 5, 300, values).mismatch.reason, "nan");
}

TEST(Ternary, RefusesBadArgumentsAndWritesNothing) {
  std::vector<float> weight(2 * 130, 1.0F);
  weight[130 + 3] = INFINITY;
  std::vector<float> values(weight.size(), 7.0F);
  EXPECT_EQ(error_of([&] { ternary_project({}, 2, 130, weight, {.values = values}); }),
            "ternary: weight: expected finite values, got inf in row 1, column 3");
  EXPECT_EQ(values, std::vector<float>(weight.size(), 7.0F));
  EXPECT_NE(error_of([&] { ternary_project({.geometry = {.size = 31}}, 2, 130, values); }), "");
  EXPECT_NE(error_of([&] { ternary_project({.geometry = {.size = 257}}, 2, 130, values); }), "");
  EXPECT_NE(error_of([&] { ternary_project({}, 2, 131, values); }), "");
  EXPECT_NE(error_of([&] { ternary_project({}, -1, 130, values); }), "");
  EXPECT_NE(error_of([&] { ternary_groups({}, std::int64_t{1} << 62, 4); }), "");
  TernaryMatrix matrix = ternary_project({}, 2, 130, values);
  matrix.codes[4] = 2;
  EXPECT_EQ(error_of([&] { values_of(matrix); }),
            "ternary: codes: expected -1, 0 or 1, got 2 at 4");
  matrix.codes[4] = 1;
  matrix.scales[1] = NAN;
  EXPECT_NE(error_of([&] { values_of(matrix); }), "");
  for (const char* name : {"", "31", "257", "12x", "rows"}) {
    EXPECT_NE(error_of([&] { parse_ternary_geometry(name); }), "") << name;
  }
  for (const char* name : {"tensor", "row", "32", "100", "256"}) {
    EXPECT_EQ(ternary_geometry_name(parse_ternary_geometry(name)), name);
  }
  EXPECT_EQ(parse_ternary_scale_rule("least_squares"), TernaryScaleRule::least_squares);
  EXPECT_NE(error_of([&] { parse_ternary_scale_rule("median"); }), "");
}

TEST(Ternary, NoValuesNoGroups) {
  EXPECT_EQ(ternary_project({}, 0, 128, {}), (TernaryMatrix{.rows = 0, .cols = 128}));
  EXPECT_EQ(ternary_groups({.grouping = TernaryGrouping::tensor}, 4, 0), 0);
}

}  // namespace
}  // namespace touchstone
