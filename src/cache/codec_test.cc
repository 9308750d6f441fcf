// The formats against definitions written independently: tables, doubles and bounds.
#include "cache/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/random.h"

namespace touchstone::inline v0::cache {
namespace {

using test::Random;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

// A stored vector, in memory that shows what was not written.
struct Stored {
  std::vector<std::byte> values;
  std::vector<std::byte> scales;

  friend bool operator==(const Stored&, const Stored&) = default;
};

Stored stored(const QuantFormat& format, const std::vector<float>& x) {
  const std::int64_t dim = std::ssize(x);
  Stored result{
      std::vector<std::byte>(static_cast<std::size_t>(value_bytes(format, dim)), std::byte{0xa5}),
      std::vector<std::byte>(static_cast<std::size_t>(scale_bytes(format, dim)), std::byte{0xa5})};
  encode(format, dim, x.data(), result.values.data(), result.scales.data());
  return result;
}

std::vector<float> read(const QuantFormat& format, std::int64_t dim, const Stored& from) {
  std::vector<float> x(static_cast<std::size_t>(dim));
  decode(format, dim, from.values.data(), from.scales.data(), x.data());
  return x;
}

std::vector<float> through(const QuantFormat& format, const std::vector<float>& x) {
  return read(format, std::ssize(x), stored(format, x));
}

std::vector<QuantFormat> quantized_formats(std::int64_t group) {
  std::vector<QuantFormat> list;
  for (const DType scale : {DType::f16, DType::f32}) {
    for (const DType encoding : {DType::i8, DType::i4}) {
      for (const bool asymmetric : {false, true}) {
        list.push_back({encoding, group, asymmetric, scale});
      }
    }
    list.push_back({DType::f8_e4m3, group, false, scale});
  }
  return list;
}

std::string describe(const QuantFormat& format) {
  return std::string(format_name(format.dtype)) + " group " + std::to_string(format.group_size) +
         (format.asymmetric ? " asymmetric " : " symmetric ") +
         std::string(touchstone::name_of(format.scale_dtype));
}

// ---- e4m3 ------------------------------------------------------------------------------------

// The standard's formula, in doubles.
double fp8_value(int code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 7 - 3);
  return code >= 128 ? -magnitude : magnitude;
}

TEST(Fp8, EveryCodeDecodesAsTheStandardSays) {
  for (int code = 0; code < 256; ++code) {
    const float value = decode_fp8_e4m3(static_cast<std::uint8_t>(code));
    const double expected = fp8_value(code);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(static_cast<double>(value), expected) << code;
      EXPECT_EQ(std::signbit(value), code >= 128) << code;
    }
  }
  EXPECT_EQ(decode_fp8_e4m3(0x7e), 448.0F);
}

// The nearest code by search, ties to the even one.
int nearest_fp8(double magnitude) {
  int best = 0;
  for (int code = 1; code <= 0x7e; ++code) {
    const double distance = std::abs(fp8_value(code) - magnitude);
    const double least = std::abs(fp8_value(best) - magnitude);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return best;
}

void expect_nearest_fp8(float x) {
  const int expected = nearest_fp8(std::abs(static_cast<double>(x))) | (std::signbit(x) ? 128 : 0);
  ASSERT_EQ(encode_fp8_e4m3(x), expected) << x;
}

TEST(Fp8, RoundsToTheNearestAndTiesToEven) {
  for (int code = 0; code <= 0x7e; ++code) {
    const auto value = static_cast<float>(fp8_value(code));
    const auto middle =
        static_cast<float>((fp8_value(code) + fp8_value(std::min(code + 1, 0x7e))) / 2);
    for (const float x : {value, middle}) {
      for (const float near : {std::nextafter(x, 0.0F), x, std::nextafter(x, kInfinity)}) {
        expect_nearest_fp8(near);
        expect_nearest_fp8(-near);
      }
    }
  }
  // Every 4093rd float of all finite ones, both signs.
  for (std::uint32_t bits = 0; bits < kInfinityBits; bits += 4093) {
    expect_nearest_fp8(std::bit_cast<float>(bits | (bits % 2) << 31));
  }
  EXPECT_EQ(encode_fp8_e4m3(kInfinity), 0x7e);
  EXPECT_EQ(encode_fp8_e4m3(-kInfinity), 0xfe);
  EXPECT_EQ(encode_fp8_e4m3(kNan), 0x7f);
}

// ---- scales ------------------------------------------------------------------------------------

TEST(Scale, F16NeighborsOfEveryNumber) {
  for (std::uint16_t half = 0; half < 0x7bff; ++half) {
    const auto value = static_cast<float>(F16::from_bits(half));
    const auto next = static_cast<float>(F16::from_bits(static_cast<std::uint16_t>(half + 1)));
    EXPECT_EQ(f16_magnitude(value, true), half);
    EXPECT_EQ(f16_magnitude(value, false), half);
    for (const float between : {std::nextafter(value, next), std::nextafter(next, value)}) {
      ASSERT_EQ(f16_magnitude(between, true), half + 1) << between;
      ASSERT_EQ(f16_magnitude(between, false), half) << between;
    }
  }
  for (const float large : {65504.0F, std::nextafter(65504.0F, kInfinity), 65536.0F, kMax}) {
    EXPECT_EQ(f16_magnitude(large, true), 0x7bff);
    EXPECT_EQ(f16_magnitude(large, false), 0x7bff);
  }
  EXPECT_EQ(f16_magnitude(std::numeric_limits<float>::denorm_min(), true), 1);
  EXPECT_EQ(f16_magnitude(std::numeric_limits<float>::denorm_min(), false), 0);
}

TEST(Scale, F32KeepsSixteenBitsRoundedUp) {
  const Random random(3);
  for (int i = 0; i < 100000; ++i) {
    const auto x = static_cast<float>(std::ldexp(
        1 + random.uniform(2 * i), static_cast<int>(random.bits(2 * i + 1) % 240) - 120));
    const float scale = round_scale(x, DType::f32);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(scale) & 0xffU, 0U);
    ASSERT_GE(scale, x);
    ASSERT_LE(scale, x * (1 + 0x1p-15F));
  }
  EXPECT_EQ(round_scale(std::numeric_limits<float>::denorm_min(), DType::f32), 0x1p-126F);
}

// Scales are made so that a code times a scale is exact: fused or not, a decoded value is one
// number.
TEST(Scale, ProductsWithEveryCodeAreExact) {
  const Random random(4);
  for (int i = 0; i < 2000; ++i) {
    const auto x = static_cast<float>(std::ldexp(1 + random.uniform(i), i % 40 - 30));
    for (const DType type : {DType::f16, DType::f32}) {
      const float scale = round_scale(x, type);
      for (int code = 0; code < 256; ++code) {
        const float factor = static_cast<float>(code);
        ASSERT_EQ(static_cast<double>(factor * scale),
                  static_cast<double>(factor) * static_cast<double>(scale));
        const float fp8 = decode_fp8_e4m3(static_cast<std::uint8_t>(code & 0x7e));
        ASSERT_EQ(static_cast<double>(fp8 * scale),
                  static_cast<double>(fp8) * static_cast<double>(scale));
      }
    }
  }
}

// ---- bytes worked out by hand ------------------------------------------------------------------

TEST(Codec, BytesOfSmallVectors) {
  const auto bytes = [](std::initializer_list<int> list) {
    std::vector<std::byte> result;
    for (const int byte : list) result.push_back(static_cast<std::byte>(byte));
    return result;
  };
  // Largest 127: the scale is 1, 0x3c00. 2.5 goes to the even 2.
  Stored s = stored({.dtype = DType::i8}, {127, -127, 2.5F, -1});
  EXPECT_EQ(s.values, bytes({127, 0x81, 2, 0xff}));
  EXPECT_EQ(s.scales, bytes({0x00, 0x3c}));
  // Two groups with scales 1 and 2 (0x4000); codes are stored as q + 8, the first one low.
  s = stored({.dtype = DType::i4, .group_size = 2}, {7, -7, 14, -2});
  EXPECT_EQ(s.values, bytes({0x1f, 0x7f}));
  EXPECT_EQ(s.scales, bytes({0x00, 0x3c, 0x00, 0x40}));
  // From -3 to 12 in 15 steps of 1: scale 1, then minimum -3 (0xc200).
  s = stored({.dtype = DType::i4, .asymmetric = true}, {-3, 12, 0, 1});
  EXPECT_EQ(s.values, bytes({0xf0, 0x43}));
  EXPECT_EQ(s.scales, bytes({0x00, 0x3c, 0x00, 0xc2}));
  // From 1 to 256 in 255 steps, scale and minimum in f32.
  s = stored({.dtype = DType::i8, .asymmetric = true, .scale_dtype = DType::f32}, {256, 1, 3.5F});
  EXPECT_EQ(s.values, bytes({255, 0, 2}));
  EXPECT_EQ(s.scales, bytes({0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x3f}));
  // 448 is the largest code: scale 1. 0.001 is half of the least step of 2^-9 and a bit.
  s = stored({.dtype = DType::f8_e4m3}, {448, -1, 0.001F, 0});
  EXPECT_EQ(s.values, bytes({0x7e, 0xb8, 0x01, 0x00}));
  EXPECT_EQ(s.scales, bytes({0x00, 0x3c}));
  EXPECT_EQ(stored({.dtype = DType::bf16}, {1, kNan}).values, bytes({0x80, 0x3f, 0xc0, 0x7f}));
  EXPECT_EQ(stored({.dtype = DType::f16}, {1e6F, -kNan}).values, bytes({0, 0x7c, 0, 0x7e}));
}

// ---- errors ------------------------------------------------------------------------------------

// Half a step of the group that holds x, as touchstone/ops/kv_append.h promises it.
double bound_of(const QuantFormat& format, const float* group, std::int64_t length, double x) {
  double largest = 0;
  const auto [least, most] = std::minmax_element(group, group + length);
  for (std::int64_t i = 0; i < length; ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(group[i])));
  }
  const bool f16 = format.scale_dtype == DType::f16;
  double range = largest;
  if (format.asymmetric) {
    range = static_cast<double>(*most) - static_cast<double>(*least);
    if (f16) range += std::max(std::abs(static_cast<double>(*least)) * 0x1p-10, 0x1p-24);
  }
  const double steps = static_cast<double>(top_code(format));
  const double scale = range / steps * (1 + (f16 ? 0x1p-10 : 0x1p-15)) + (f16 ? 0x1p-24 : 0x1p-126);
  // Roundings in f32 of x - m, of the product with 1 / s, and of m + q * s.
  const double arithmetic = 0x1p-22 * (std::abs(x) + range);
  if (format.dtype == DType::f8_e4m3) {
    return std::max(std::abs(x) / 16, scale / 1024) + arithmetic;
  }
  return scale / 2 + arithmetic;
}

using Generator = std::function<double(std::int64_t)>;

void expect_within_bounds(const QuantFormat& format, std::int64_t dim, const Generator& generator) {
  constexpr int kVectors = 200;
  for (int n = 0; n < kVectors; ++n) {
    std::vector<float> x(static_cast<std::size_t>(dim));
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(generator(n * dim + static_cast<std::int64_t>(i)));
    }
    const std::vector<float> y = through(format, x);
    const std::int64_t length = group_length(format, dim);
    for (std::int64_t i = 0; i < dim; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double value = static_cast<double>(x[at]);
      const double bound = bound_of(format, x.data() + i / length * length, length, value);
      ASSERT_LE(std::abs(static_cast<double>(y[at]) - value), bound)
          << describe(format) << ": " << x[at] << " became " << y[at];
    }
  }
}

TEST(Codec, NoValueIsOffByMoreThanHalfAStep) {
  const Random random(7);
  const std::vector<Generator> generators = {
      [&](std::int64_t i) { return random.normal(i); },
      [&](std::int64_t i) { return 1e-3 * random.normal(i); },
      [&](std::int64_t i) { return 1e4 * random.normal(i); },
      [&](std::int64_t i) { return 100 + random.uniform(i); },    // all of one sign
      [&](std::int64_t i) { return -1000 - random.uniform(i); },  // range far from zero
      [&](std::int64_t i) { return 1e-7 * random.normal(i); },    // below the least f16 scale
      [&](std::int64_t i) { return random.sign(i) * std::exp2(40 * random.uniform(i) - 30); },
      [&](std::int64_t i) { return i % 61 == 0 ? 300 * random.normal(i) : random.normal(i); },
  };
  for (const std::int64_t group : {0, 2, 6, 32}) {
    for (const QuantFormat& format : quantized_formats(group)) {
      for (const Generator& generator : generators) {
        expect_within_bounds(format, 96, generator);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// What is stored is a fixed point: storing what was read changes no byte.
TEST(Codec, StoringTwiceIsStoringOnce) {
  const Random random(8);
  for (const QuantFormat& format : quantized_formats(32)) {
    if (format.asymmetric) continue;  // there the top of the range is rounded once more
    for (int n = 0; n < 200; ++n) {
      std::vector<float> x(128);
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<float>(random.normal(n * 128 + static_cast<std::int64_t>(i)));
      }
      const Stored once = stored(format, x);
      ASSERT_EQ(stored(format, read(format, 128, once)), once) << describe(format);
    }
  }
}

// ---- the ends of the range ---------------------------------------------------------------------

TEST(Codec, GroupsOfZerosAndOfOneValue) {
  for (const QuantFormat& format : quantized_formats(4)) {
    for (const float value : through(format, {0.0F, -0.0F, 0, 0, 1, 2, 3, 4})) {
      EXPECT_TRUE(value == 0.0F || value > 0.5F) << describe(format);
    }
    if (!format.asymmetric) continue;
    // 3.5 is a number of f16: nothing is lost.
    for (const float value : through(format, std::vector<float>(4, 3.5F))) EXPECT_EQ(value, 3.5F);
  }
  // The sign of a zero does not reach the minimum, wherever it stands.
  const QuantFormat format{.dtype = DType::i8, .asymmetric = true};
  EXPECT_EQ(stored(format, {0.0F, -0.0F, 1}).scales, stored(format, {-0.0F, 0.0F, 1}).scales);
}

TEST(Codec, NanAndInfinityStayInTheirGroup) {
  for (const QuantFormat& format : quantized_formats(4)) {
    const std::vector<float> clean = through(format, {0, 0, 0, 0, 1, -2, 3, 0.25F, 0, 0, 0, 0});
    for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
      for (std::size_t position = 0; position < 4; ++position) {
        std::vector<float> x = {1, 2, 3, 4, 1, -2, 3, 0.25F, 5, 6, 7, 8};
        x[position] = bad;
        x[8 + position] = bad;
        const std::vector<float> y = through(format, x);
        for (std::size_t i = 0; i < 4; ++i) {
          EXPECT_TRUE(std::isnan(y[i]) && std::isnan(y[8 + i])) << describe(format);
          EXPECT_EQ(y[4 + i], clean[4 + i]) << describe(format);
        }
      }
    }
    // The stored bytes are those of any other such group.
    EXPECT_EQ(stored(format, {1, kNan, 2, 3}), stored(format, {-9, 4, kInfinity, -kNan}));
  }
  for (const DType encoding : {DType::f32, DType::bf16, DType::f16}) {
    const std::vector<float> y = through({.dtype = encoding}, {1, kNan, kInfinity, -kInfinity});
    EXPECT_EQ(y[0], 1.0F);
    EXPECT_TRUE(std::isnan(y[1]));
    EXPECT_EQ(y[2], kInfinity);
    EXPECT_EQ(y[3], -kInfinity);
  }
}

TEST(Codec, HugeValuesSaturateAndStayFinite) {
  for (const QuantFormat& format : quantized_formats(0)) {
    const std::vector<std::vector<float>> vectors = {
        {kMax, -kMax, 1, 0},
        {kMax, kMax, kMax, kMax},
        {-kMax, -kMax, 0, 0},
        {kMax, 0.9F * kMax, 0.95F * kMax, 0.99F * kMax}};
    for (const std::vector<float>& x : vectors) {
      const std::vector<float> y = through(format, x);
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_TRUE(std::isfinite(y[i])) << describe(format) << ": " << x[i] << " became " << y[i];
        EXPECT_LE(std::abs(y[i]), kMax);
      }
      EXPECT_EQ(std::signbit(y[0]), std::signbit(x[0])) << describe(format);
    }
  }
  // f16 scales end at 65504: so do 127 steps of them.
  const QuantFormat int8{.dtype = DType::i8};
  EXPECT_EQ(through(int8, {1e30F, -1e30F})[1], -127 * 65504.0F);
  const QuantFormat asymmetric{.dtype = DType::i8, .asymmetric = true};
  EXPECT_EQ(through(asymmetric, {-1e30F, 1e30F}), (std::vector{-65504.0F, 254 * 65504.0F}));
  const QuantFormat wide{.dtype = DType::i8, .scale_dtype = DType::f32};
  EXPECT_NEAR(through(wide, {1e30F, -1e30F})[1], -1e30F, 1e30F * 0x1p-15F);
}

TEST(Codec, TinyValuesKeepTheLeastStep) {
  // The least f16 is 2^-24: with it as scale, what is below half of it reads as zero.
  const QuantFormat int8{.dtype = DType::i8};
  EXPECT_EQ(through(int8, {0x1p-30F, -0x1p-40F}), (std::vector{0.0F, 0.0F}));
  EXPECT_EQ(through(int8, {0x1p-24F, -0x1p-23F}), (std::vector{0x1p-24F, -0x1p-23F}));
  const QuantFormat wide{.dtype = DType::i8, .scale_dtype = DType::f32};
  EXPECT_NEAR(through(wide, {0x1p-100F, 0})[0], 0x1p-100F, 0x1p-108F);
  const std::vector<float> denormal = through(wide, {std::numeric_limits<float>::denorm_min(), 0});
  EXPECT_EQ(denormal, (std::vector{0.0F, 0.0F}));
}

}  // namespace
}  // namespace touchstone::inline v0::cache
