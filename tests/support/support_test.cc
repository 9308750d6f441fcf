// The helpers of the tests, held against planted faults: a test that cannot fail proves nothing.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "tests/support/compare.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"
#include "tests/support/runners.h"

namespace touchstone::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Expected ones(std::size_t count, double bound = 1e-6) {
  return {std::vector<double>(count, 1.0), std::vector<double>(count, bound)};
}

// ---- comparison ----------------------------------------------------------------------------

TEST(Compare, AcceptsWhatIsWithinItsBound) {
  std::vector<double> values(100, 1.0);
  values[99] = 1 + 0.99e-6;
  EXPECT_TRUE(close(values, ones(100), DType::f32));
}

TEST(Compare, OneElementOff) {
  std::vector<double> values(100, 1.0);
  values[42] = 1 + 1.01e-6;
  const testing::AssertionResult result = close(values, ones(100), DType::f32, 10);
  EXPECT_FALSE(result);
  EXPECT_NE(std::string(result.message()).find("(4, 2)"), std::string::npos) << result.message();
}

TEST(Compare, NamesTheWorstElement) {
  std::vector<double> values(100, 1.0);
  values[3] = 2;
  values[70] = 3;
  values[90] = 2;
  const std::string message = close(values, ones(100), DType::f32).message();
  EXPECT_NE(message.find("3 of 100"), std::string::npos) << message;
  EXPECT_NE(message.find("[70]"), std::string::npos) << message;
}

TEST(Compare, NotANumberFails) {
  std::vector<double> values(100, 1.0);
  values[7] = kNan;
  EXPECT_FALSE(close(values, ones(100), DType::f32));
  EXPECT_FALSE(close(std::vector<double>(3, kNan), ones(3, 1e300), DType::f32));
}

TEST(Compare, InfinityFails) {
  EXPECT_FALSE(close(std::vector<double>{kInfinity}, ones(1, 1e300), DType::f64));
  EXPECT_FALSE(close(std::vector<double>{1e300}, {{kInfinity}, {1e300}}, DType::f64));
  EXPECT_FALSE(close(std::vector<double>{-kInfinity}, {{kInfinity}, {0.0}}, DType::f64));
  EXPECT_TRUE(close(std::vector<double>{kInfinity}, {{kInfinity}, {0.0}}, DType::f64));
}

TEST(Compare, NotANumberMustBeMet) {
  EXPECT_TRUE(close(std::vector<double>{kNan}, {{kNan}, {0.0}}, DType::f32));
  EXPECT_FALSE(close(std::vector<double>{0.0}, {{kNan}, {kInfinity}}, DType::f32));
  EXPECT_FALSE(close(std::vector<double>{kInfinity}, {{kNan}, {0.0}}, DType::f32));
}

TEST(Compare, OverflowIsJudgedByTheDtype) {
  EXPECT_TRUE(close(std::vector<double>{kInfinity}, {{65520.0}, {0.0}}, DType::f16));
  EXPECT_FALSE(close(std::vector<double>{kInfinity}, {{65500.0}, {1.0}}, DType::f16));
  EXPECT_FALSE(close(std::vector<double>{-kInfinity}, {{65520.0}, {0.0}}, DType::f16));
  EXPECT_FALSE(close(std::vector<double>{kInfinity}, {{65520.0}, {0.0}}, DType::f32));
}

TEST(Compare, AnInfiniteBoundProvesNothing) {
  EXPECT_FALSE(close(std::vector<double>{1.0}, ones(1, kInfinity), DType::f32));
  EXPECT_FALSE(close(std::vector<double>{1.0}, ones(1, kNan), DType::f32));
  EXPECT_FALSE(close(std::vector<double>{1.0}, ones(1, -1.0), DType::f32));
}

TEST(Compare, NothingToCompareIsAFailure) {
  EXPECT_FALSE(close({}, {}, DType::f32));
  EXPECT_FALSE(close(std::vector<double>(3, 1.0), ones(4), DType::f32));
  EXPECT_TRUE(std::isnan(relative_l2(std::vector<double>(3, 1.0), std::vector<double>(4, 1.0))));
}

TEST(Compare, RelativeError) {
  EXPECT_DOUBLE_EQ(
      relative_l2(std::vector<double>{3e200, 4e200}, std::vector<double>{3e200, 5e200}),
      1 / std::sqrt(34.0));
  EXPECT_TRUE(std::isnan(relative_l2(std::vector<double>{kNan}, std::vector<double>{1.0})));
}

TEST(Compare, RoundingErrorIsHalfASpacing) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    EXPECT_EQ(rounding_error(dtype, 1.0), unit_roundoff(dtype));
    EXPECT_EQ(rounding_error(dtype, -1.5), unit_roundoff(dtype));
    EXPECT_EQ(rounding_error(dtype, 0.75), unit_roundoff(dtype) / 2);
    EXPECT_EQ(rounding_error(dtype, 0.0), rounding_error(dtype, 1e-310));
  }
  EXPECT_EQ(unit_roundoff(DType::f32), 0x1p-24);
  EXPECT_EQ(unit_roundoff(DType::bf16), 0x1p-8);
  EXPECT_EQ(unit_roundoff(DType::f16), 0x1p-11);
  EXPECT_EQ(rounding_error(DType::f16, 0.0), 0x1p-25);
  EXPECT_EQ(rounding_error(DType::f32, 0.0), 0x1p-150);
  EXPECT_EQ(rounding_error(DType::bf16, 0.0), 0x1p-134);
}

// ---- guarded buffers -----------------------------------------------------------------------

// What a kernel with a fault would do to memory, without running one: bytes changed in place.
void overwrite(const Guarded& buffer, std::int64_t element, const TensorView& view) {
  const std::int64_t size = size_of(buffer.dtype());
  std::byte* at = static_cast<std::byte*>(view.data) + element * size;
  for (std::int64_t i = 0; i < size; ++i) at[i] ^= std::byte{0x5a};
}

Guarded counting(Layout layout = {}) {
  std::vector<double> values(12);
  std::iota(values.begin(), values.end(), 0.0);
  return Guarded(Device::cpu(), DType::f32, {3, 4}, values, layout);
}

TEST(Guards, HoldTheValues) {
  for (const Layout layout : {Layout{}, Layout{.row_gap = 3, .offset = 1}}) {
    const Guarded buffer = counting(layout);
    std::vector<double> values(12);
    std::iota(values.begin(), values.end(), 0.0);
    EXPECT_EQ(buffer.values(), values);
    EXPECT_TRUE(buffer.unchanged());
    EXPECT_TRUE(buffer.outside_intact());
    EXPECT_EQ(buffer.view().stride[0], 4 + layout.row_gap);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.view().data) % 64,
              static_cast<std::uintptr_t>(4 * layout.offset));
  }
}

TEST(Guards, InputModified) {
  const Guarded buffer = counting();
  overwrite(buffer, 7, buffer.view());
  EXPECT_FALSE(buffer.unchanged());
  EXPECT_TRUE(buffer.outside_intact());
}

#if !defined(__SANITIZE_ADDRESS__)  // there, touching the guards ends the test by itself
TEST(Guards, WrittenPastTheEnd) {
  for (const std::int64_t element : {-1, 12, 60, -60}) {
    const Guarded buffer = counting();
    overwrite(buffer, element, buffer.view());
    EXPECT_FALSE(buffer.outside_intact()) << element;
    EXPECT_FALSE(buffer.unchanged()) << element;
  }
}

TEST(Guards, WrittenBetweenRows) {
  const Guarded buffer = counting({.row_gap = 2, .offset = 0});
  overwrite(buffer, 5, buffer.view());
  EXPECT_FALSE(buffer.outside_intact());
  const std::string message = buffer.outside_intact().message();
  EXPECT_NE(message.find("byte 20"), std::string::npos) << message;
}
#endif

TEST(Guards, StaleOutputAndSkippedTail) {
  // An output that was never written, or not to its end, is NaN and meets no finite expectation.
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    Guarded output(Device::cpu(), dtype, {10});
    for (const double value : output.values()) EXPECT_TRUE(std::isnan(value));
    EXPECT_FALSE(close(output.values(), ones(10, 1e30), dtype));
    output.set(std::vector<double>(10, 1.0));
    EXPECT_TRUE(close(output.values(), ones(10), dtype));
    output.poison();
    EXPECT_FALSE(close(output.values(), ones(10, 1e30), dtype));
    std::memset(output.view().data, 0, 9 * static_cast<std::size_t>(size_of(dtype)));
    EXPECT_FALSE(
        close(output.values(), {std::vector<double>(10), std::vector<double>(10, 1.0)}, dtype));
  }
}

TEST(Guards, EmptyAndScalar) {
  const Guarded empty(Device::cpu(), DType::f32, {0, 5});
  EXPECT_TRUE(empty.unchanged());
  EXPECT_TRUE(empty.values().empty());
  const Guarded scalar(Device::cpu(), DType::f32, {}, std::vector<double>{4.0});
  EXPECT_EQ(scalar.values(), std::vector<double>{4.0});
  const Guarded absent;
  EXPECT_FALSE(absent.defined());
  EXPECT_TRUE(absent.unchanged());
}

TEST(Guards, BitsTellMoreThanValues) {
  const Guarded plus(Device::cpu(), DType::f32, {1}, std::vector<double>{0.0});
  const Guarded minus(Device::cpu(), DType::f32, {1}, std::vector<double>{-0.0});
  EXPECT_EQ(plus.values(), minus.values());
  EXPECT_FALSE(same_bits(plus, minus.bytes()));
  EXPECT_TRUE(same_bits(plus, plus.bytes()));
  EXPECT_FALSE(same_bits(plus, std::vector<std::byte>(3)));
}

// ---- random numbers ------------------------------------------------------------------------

TEST(RandomNumbers, HaveTheirMoments) {
  const std::int64_t count = 200000;
  for (const std::uint64_t seed : {1U, 2U, 77U}) {
    const std::vector<double> values = random_values({}, count, seed);
    double mean = 0;
    double square = 0;
    double fourth = 0;
    for (const double v : values) {
      mean += v / static_cast<double>(count);
      square += v * v / static_cast<double>(count);
      fourth += v * v * v * v / static_cast<double>(count);
    }
    EXPECT_NEAR(mean, 0, 0.01);
    EXPECT_NEAR(square, 1, 0.02);
    EXPECT_NEAR(fourth, 3, 0.2);
  }
}

TEST(RandomNumbers, DependOnSeedAndIndexOnly) {
  const std::vector<double> a = random_values({}, 1000, 9);
  EXPECT_EQ(a, random_values({}, 1000, 9));
  EXPECT_NE(a, random_values({}, 1000, 10));
  EXPECT_EQ(Random(9).normal(500), a[500]);
}

// ---- loops over implementations ------------------------------------------------------------

TEST(Runners, VisitEveryTargetAndPutItBack) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer sees the best target only";
  const std::string before = simd_target();
  std::vector<std::string> visited;
  for_each_runner({"simd", "plain"}, [&](Runner& context) {
    visited.push_back(context.implementation() == "plain" ? "plain" : simd_target());
  });
  std::vector<std::string> expected = simd_targets();
  expected.emplace_back("plain");
  EXPECT_EQ(visited, expected);
  EXPECT_EQ(simd_target(), before);
}

TEST(Runners, NothingToRunIsAFailure) {
  EXPECT_FATAL_FAILURE(for_each_runner({}, [](Runner&) {}), "no implementation");
}

}  // namespace
}  // namespace touchstone::test
