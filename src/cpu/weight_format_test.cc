// The list of weight formats: every entry decodes the same on every SIMD target as by plain loops over
// its layout, encodes deterministically and within its step, and refuses what it cannot hold. The
// values of other tools are compared in src/io (gguf_golden_test).
#include "touchstone/core/weight_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "touchstone/core/device.h"
#include "touchstone/core/error.h"
#include "touchstone/core/testing.h"

namespace touchstone {
namespace {

constexpr std::int64_t kRow = 1024;

std::vector<float> random_row(unsigned seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> row(kRow);
  for (float& value : row) value = scale * normal(random);
  return row;
}

std::vector<std::byte> encoded(const WeightFormat& format, const std::vector<float>& row) {
  const auto elements = static_cast<std::int64_t>(row.size());
  std::vector<std::byte> bytes(static_cast<std::size_t>(weight_bytes(format, elements)));
  encode_weights(format, row, bytes);
  return bytes;
}

std::vector<float> decoded(const WeightFormat& format, const std::vector<std::byte>& bytes) {
  const auto blocks = static_cast<std::int64_t>(bytes.size()) / format.block_bytes;
  std::vector<float> row(static_cast<std::size_t>(blocks * format.block_elements));
  decode_weights(format, bytes, row);
  return row;
}

std::uint32_t bits(float value) {
  return std::isnan(value) ? 0x7fc00000 : std::bit_cast<std::uint32_t>(value);
}

TEST(WeightFormat, ListIsInOrderOfIdsWithUniqueNames) {
  std::size_t i = 0;
  for (const WeightFormat& format : weight_formats()) {
    EXPECT_EQ(static_cast<std::size_t>(format.id), i++);
    EXPECT_EQ(&weight_format(format.name), &format);
    EXPECT_EQ(&weight_format(format.id), &format);
    EXPECT_NE(format.decode, nullptr);
    if (format.dtype) {
      EXPECT_EQ(weight_format(*format.dtype), &format);
    }
  }
  EXPECT_EQ(weight_format(DType::i32), nullptr);
}

// Blocks of random bytes with scales in a sane range where the format has them.
std::vector<std::byte> random_blocks(const WeightFormat& format, std::size_t blocks,
                                     unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(blocks * static_cast<std::size_t>(format.block_bytes));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xff);
  return bytes;
}

TEST(WeightFormat, EveryTargetDecodesTheSameBits) {
  for (const WeightFormat& format : weight_formats()) {
    for (const std::size_t blocks : {std::size_t{1}, std::size_t{7}, std::size_t{65}}) {
      const auto bytes = random_blocks(format, blocks, 17);
      const auto expected = decoded(format, bytes);
      for (const std::string& target : simd_targets()) {
        testing::set_simd_target(target);
        const auto row = decoded(format, bytes);
        for (std::size_t i = 0; i < row.size(); ++i) {
          ASSERT_EQ(bits(row[i]), bits(expected[i])) << format.name << " " << target << " " << i;
        }
      }
      testing::set_simd_target("");
    }
  }
}

// The largest step of a format relative to the largest magnitude of its block, from its code width.
double step_of(const WeightFormat& format) {
  if (format.ternary) return 1;
  switch (format.id) {
    case WeightFormatId::int8_g32:
    case WeightFormatId::int8_g64:
    case WeightFormatId::int8_g128:
    case WeightFormatId::q8_0:
      return 1.0 / 127;
    case WeightFormatId::int4_g32:
    case WeightFormatId::int4_g64:
    case WeightFormatId::int4_g128:
      return 1.0 / 7;
    case WeightFormatId::q4_0:
      return 1.0 / 7;  // the side that lacks code 8 is clipped by a whole step
    case WeightFormatId::q5_0:
      return 1.0 / 15;
    case WeightFormatId::q4_1:
    case WeightFormatId::q4_k:
      return 2.0 / 15;
    case WeightFormatId::q5_1:
    case WeightFormatId::q5_k:
      return 2.0 / 31;
    case WeightFormatId::q6_k:
      return 1.0 / 31;
    default:
      return format.id == WeightFormatId::bf16 ? 0x1p-7 : 0x1p-10;
  }
}

TEST(WeightFormat, EncodingIsDeterministicAndWithinAStep) {
  for (const WeightFormat& format : weight_formats()) {
    if (format.encode == nullptr) continue;
    for (const float scale : {1e-3F, 1.0F, 100.0F}) {
      const auto row = random_row(5, scale);
      const auto bytes = encoded(format, row);
      EXPECT_EQ(bytes, encoded(format, row)) << format.name;
      const auto back = decoded(format, bytes);
      double largest = 0;
      for (const float value : row)
        largest = std::max(largest, static_cast<double>(std::abs(value)));
      for (std::size_t i = 0; i < row.size(); ++i) {
        // One step: half of it from the code, the rest from the rounding of scales and minima.
        ASSERT_LE(static_cast<double>(std::abs(back[i] - row[i])), step_of(format) * largest)
            << format.name << " scale " << scale << " at " << i;
      }
    }
  }
}

TEST(WeightFormat, SecondEncodingKeepsWhatTheFirstStored) {
  // Legacy blocks may shift a code when the scale was rounded; plain and int formats may not.
  for (const WeightFormat& format : weight_formats()) {
    if (format.encode == nullptr || format.block_elements > 1) continue;
    const auto bytes = encoded(format, random_row(9));
    EXPECT_EQ(encoded(format, decoded(format, bytes)), bytes) << format.name;
  }
}

TEST(WeightFormat, RootMeanSquareErrorOfKBlocksIsBelowThatOfTheirLegacyKin) {
  const auto row = random_row(11);
  const auto error = [&](const char* name) {
    const WeightFormat& format = weight_format(name);
    const auto back = decoded(format, encoded(format, row));
    double sum = 0;
    for (std::size_t i = 0; i < row.size(); ++i) sum += std::pow(back[i] - row[i], 2);
    return std::sqrt(sum / static_cast<double>(row.size()));
  };
  EXPECT_LT(error("q4_k"), error("q4_0"));
  EXPECT_LT(error("q5_k"), error("q5_0"));
  EXPECT_LT(error("q6_k"), error("q5_k"));
  EXPECT_LT(error("q8_0"), error("q6_k"));
}

TEST(WeightFormat, ZerosAndConstantsSurvive) {
  for (const WeightFormat& format : weight_formats()) {
    if (format.encode == nullptr) continue;
    for (const float value : {0.0F, -0.0F, 1e-42F}) {
      const std::vector<float> row(kRow, value);
      for (const float x : decoded(format, encoded(format, row))) {
        // A ternary group that is not 0 keeps its signs: its scale is at least the smallest f16.
        ASSERT_LE(std::abs(x), format.ternary && value > 0 ? 0x1p-24F : 1e-40F) << format.name;
      }
    }
    const std::vector<float> row(kRow, -2.0F);
    for (const float x : decoded(format, encoded(format, row))) {
      if (format.id == WeightFormatId::sherry_g128 && x == 0) continue;  // one of every four
      ASSERT_NEAR(x, -2.0F, 0.04) << format.name;
    }
  }
}

TEST(WeightFormat, Fp8DecodesEveryCode) {
  const WeightFormat& format = weight_format("fp8_e4m3");
  std::vector<std::byte> codes(256);
  for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::byte>(i);
  const auto values = decoded(format, codes);
  for (std::size_t i = 0; i < 256; ++i) {
    const int exponent = static_cast<int>(i >> 3 & 15);
    const int mantissa = static_cast<int>(i & 7);
    double expected =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    if ((i & 0x7f) == 0x7f) expected = NAN;
    if (i >= 128) expected = -expected;
    EXPECT_EQ(bits(values[i]), bits(static_cast<float>(expected))) << i;
  }
}

std::string error_of(const auto& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(WeightFormat, RefusesWhatDoesNotFit) {
  const WeightFormat& q4_0 = weight_format("q4_0");
  std::vector<float> row(32, 1.0F);
  std::vector<std::byte> bytes(18);
  EXPECT_EQ(error_of([&] { weight_bytes(q4_0, 33, "cols"); }),
            "cols: expected a multiple of 32 elements for q4_0, got 33");
  EXPECT_NE(error_of([&] { weight_bytes(q4_0, std::int64_t{1} << 62); }).size(), 1U);
  EXPECT_NE(error_of([&] { weight_bytes(weight_format("f64"), std::int64_t{1} << 61); }), "");
  EXPECT_NE(error_of([&] { weight_format("q9_9"); }).find("q6_k"), std::string::npos);
  EXPECT_EQ(error_of([&] { encode_weights(q4_0, row, std::span(bytes).first(17)); }),
            "encode_weights: to: expected 18 bytes, got 17");
  row[3] = NAN;
  EXPECT_EQ(error_of([&] { encode_weights(q4_0, row, bytes); }),
            "encode_weights: from: value 3 is nan, which q4_0 cannot hold");
  row[3] = 1e30F;
  EXPECT_NE(error_of([&] { encode_weights(q4_0, row, bytes); }), "");
  std::vector<std::byte> codes(32);
  EXPECT_EQ(error_of([&] { encode_weights(weight_format("fp8_e4m3"), row, codes); }),
            "encode_weights: format: fp8_e4m3 is read, not written");
}

// NaN and infinity are data where there are no scales; a number must not become infinity.
TEST(WeightFormat, PlainElementsDoNotOverflow) {
  struct Limit {
    const char* format;
    float largest;  // that is rounded to a number
    float next;
  };
  for (const Limit& limit : {Limit{"f16", std::nextafter(65520.0F, 0.0F), 65520.0F},
                             Limit{"bf16", 0x1.fefffep127F, 0x1.ffp127F}}) {
    const WeightFormat& format = weight_format(limit.format);
    std::vector<float> row = {limit.largest, -limit.largest, NAN, INFINITY, -INFINITY};
    std::vector<std::byte> bytes(10, std::byte{0xab});
    EXPECT_EQ(error_of([&] { encode_weights(format, row, bytes); }), "") << limit.format;
    std::vector<float> back(5);
    decode_weights(format, bytes, back);
    EXPECT_TRUE(std::isfinite(back[0]) && std::isfinite(back[1]) && std::isnan(back[2]));
    EXPECT_EQ(back[3], INFINITY);
    EXPECT_EQ(back[4], -INFINITY);
    const std::vector<std::byte> before = bytes;
    for (const float sign : {1.0F, -1.0F}) {
      row[1] = sign * limit.next;
      EXPECT_NE(error_of([&] {
                  encode_weights(format, row, bytes);
                }).find("encode_weights: from: value 1 is "),
                std::string::npos)
          << limit.format;
    }
    EXPECT_EQ(bytes, before) << "nothing is written";
  }
  const std::vector<float> wide = {3.4e38F, 0};
  std::vector<std::byte> bytes(8);
  EXPECT_EQ(error_of([&] { encode_weights(weight_format("f32"), wide, bytes); }), "");
}

}  // namespace
}  // namespace touchstone
