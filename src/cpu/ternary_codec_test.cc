// The ternary block formats against a second implementation that writes down, for every value, the
// byte, the digit and the base it lives in, and against the arithmetic of base 3.
#include "cpu/ternary_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "touchstone/core/device.h"
#include "touchstone/core/half.h"
#include "touchstone/core/ternary.h"
#include "touchstone/core/testing.h"
#include "touchstone/core/weight_format.h"

namespace touchstone {
namespace {

std::vector<const WeightFormat*> ternary_formats() {
  std::vector<const WeightFormat*> formats;
  for (const WeightFormat& format : weight_formats()) {
    if (format.ternary) formats.push_back(&format);
  }
  return formats;
}

// Where value i lives: a byte and a digit of base 3 or 4. sherry has a place of its own.
struct Place {
  std::size_t byte;
  int digit;
};

Place place_of(std::string_view name, int i) {
  const auto at = [](int byte, int digit) { return Place{static_cast<std::size_t>(byte), digit}; };
  if (name == "ternary_g32") return at(i % 8, i / 8);
  if (name == "ternary_g64") return at(i % 16, i / 16);
  if (name == "ternary_g128") return at(i % 32, i / 32);
  if (name == "ternary_g256") return at(i % 64, i / 64);
  if (name == "tq2_0") return at(32 * (i / 128) + i % 32, i % 128 / 32);
  if (name == "q2_0" || name == "pq2_0") return at(2 + i / 4, i % 4);
  if (name == "base3_g128") return at(i / 5, i % 5);
  if (name == "tq1_0") {
    if (i < 160) return at(i % 32, i / 32);
    if (i < 240) return at(32 + (i - 160) % 16, (i - 160) / 16);
    return at(48 + (i - 240) % 4, (i - 240) / 4);
  }
  if (i < 80) return at(i % 16, i / 16);
  if (i < 120) return at(16 + (i - 80) % 8, (i - 80) / 8);
  return at(24 + (i - 120) % 2, (i - 120) / 2);
}

std::size_t scale_offset(std::string_view name) {
  if (name == "q2_0" || name == "pq2_0") return 0;
  return static_cast<std::size_t>(weight_format(name).block_bytes) - 2;
}

std::vector<std::uint8_t> reference_block(std::string_view name,
                                          const std::vector<std::int8_t>& codes,
                                          std::uint16_t scale) {
  const WeightFormat& format = weight_format(name);
  std::vector<std::uint8_t> block(static_cast<std::size_t>(format.block_bytes));
  const std::size_t offset = scale_offset(name);
  if (name == "sherry_g128") {
    std::vector<int> bits;
    for (std::size_t k = 0; k < 32; ++k) {
      int zero = 0;
      for (std::size_t place = 0; place < 4; ++place) {
        const int code = codes[4 * k + place];
        if (code == 0) {
          zero = static_cast<int>(place);
        } else {
          bits.push_back(code < 0 ? 1 : 0);
        }
      }
      bits.push_back(zero & 1);
      bits.push_back(zero >> 1);
    }
    for (std::size_t i = 0; i < bits.size(); ++i) {
      block[i / 8] = static_cast<std::uint8_t>(block[i / 8] | bits[i] << (i % 8));
    }
  } else if (name.find("tq1") != std::string_view::npos || name == "base3_g128") {
    // Five digits at a time, those that no value has are 0; then the fraction v / 243 in 256ths.
    std::vector<std::vector<int>> digits(offset, std::vector<int>(5, 0));
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const Place place = place_of(name, static_cast<int>(i));
      digits[place.byte][static_cast<std::size_t>(place.digit)] = codes[i] + 1;
    }
    for (std::size_t b = 0; b < offset; ++b) {
      const int v = ((digits[b][0] * 3 + digits[b][1]) * 3 + digits[b][2]) * 9 + digits[b][3] * 3 +
                    digits[b][4];
      block[b] = static_cast<std::uint8_t>(name == "base3_g128" ? v : std::ceil(v * 256.0 / 243.0));
    }
  } else {
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const Place place = place_of(name, static_cast<int>(i));
      block[place.byte] =
          static_cast<std::uint8_t>(block[place.byte] | (codes[i] + 1) << (2 * place.digit));
    }
  }
  std::memcpy(block.data() + offset, &scale, 2);
  return block;
}

std::vector<std::int8_t> random_codes(const WeightFormat& format, std::mt19937& random) {
  std::vector<std::int8_t> codes(static_cast<std::size_t>(format.block_elements));
  for (std::int8_t& code : codes) code = static_cast<std::int8_t>(random() % 3) - 1;
  if (format.name == "sherry_g128") {
    for (std::size_t i = 0; i < codes.size(); i += 4) {
      for (std::size_t k = 0; k < 4; ++k) codes[i + k] = random() % 2 == 0 ? 1 : -1;
      codes[i + random() % 4] = 0;
    }
  }
  return codes;
}

TEST(TernaryCodec, PacksAndUnpacksLikeTheReference) {
  std::mt19937 random(2);
  for (const WeightFormat* format : ternary_formats()) {
    std::vector<std::byte> block(static_cast<std::size_t>(format->block_bytes));
    std::vector<std::int8_t> back(static_cast<std::size_t>(format->block_elements));
    for (int trial = 0; trial < 3000; ++trial) {
      const std::vector<std::int8_t> codes = random_codes(*format, random);
      const auto scale = F16::from_bits(static_cast<std::uint16_t>(1 + random() % 0x7bff));
      ASSERT_TRUE(
          ternary::pack_block(format->id, codes.data(), static_cast<float>(scale), block.data()));
      const std::vector<std::uint8_t> expected = reference_block(format->name, codes, scale.bits);
      ASSERT_EQ(std::memcmp(block.data(), expected.data(), expected.size()), 0) << format->name;
      ternary::unpack_codes(format->id, block.data(), back.data());
      ASSERT_EQ(back, codes) << format->name;
      ASSERT_EQ(ternary::block_scale(format->id, block.data()), static_cast<float>(scale));
      ASSERT_EQ(ternary::block_fault(format->id, block.data()), "") << format->name;
    }
  }
}

TEST(TernaryCodec, TernaryBlocksAreEncodedExactly) {
  std::mt19937 random(3);
  for (const WeightFormat* format : ternary_formats()) {
    const auto n = static_cast<std::size_t>(format->block_elements);
    for (int trial = 0; trial < 200; ++trial) {
      const std::vector<std::int8_t> codes = random_codes(*format, random);
      const auto scale = F16::from_bits(static_cast<std::uint16_t>(1 + random() % 0x7bff));
      std::vector<float> values(n);
      for (std::size_t i = 0; i < n; ++i) {
        values[i] = static_cast<float>(scale) * static_cast<float>(codes[i]);
      }
      std::vector<std::byte> block(static_cast<std::size_t>(format->block_bytes));
      encode_weights(*format, values, block);
      const auto expected = reference_block(format->name, codes, scale.bits);
      ASSERT_EQ(std::memcmp(block.data(), expected.data(), expected.size()), 0) << format->name;
      for (const std::string& target : simd_targets()) {
        testing::set_simd_target(target);
        std::vector<float> back(n);
        decode_weights(*format, block, back);
        ASSERT_EQ(back, values) << format->name << " " << target;
      }
      testing::set_simd_target("");
    }
  }
}

TEST(TernaryCodec, OwnFormatsProjectByTheMean) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (const char* name :
       {"ternary_g32", "ternary_g64", "ternary_g128", "ternary_g256", "base3_g128"}) {
    const WeightFormat& format = weight_format(name);
    std::vector<float> values(static_cast<std::size_t>(3 * format.block_elements));
    for (float& value : values) value = normal(random);
    std::vector<std::byte> bytes(static_cast<std::size_t>(3 * format.block_bytes));
    encode_weights(format, values, bytes);
    std::vector<float> back(values.size());
    decode_weights(format, bytes, back);
    std::vector<float> expected(values.size());
    ternary_project({.geometry = {.size = format.block_elements}}, 3, format.block_elements, values,
                    {.values = expected});
    EXPECT_EQ(back, expected) << name;
  }
}

TEST(TernaryCodec, SherryDropsTheSmallestOfEveryFour) {
  std::vector<float> values(128);
  double sum = 0;
  for (std::size_t i = 0; i < 128; ++i) {
    values[i] = (i % 3 == 0 ? -1.0F : 1.0F) * static_cast<float>(1 + (i * 7) % 128);
  }
  std::vector<float> expected(128);
  for (std::size_t i = 0; i < 128; i += 4) {
    std::size_t least = i;
    for (std::size_t k = i; k < i + 4; ++k) {
      if (std::abs(values[k]) < std::abs(values[least])) least = k;
    }
    for (std::size_t k = i; k < i + 4; ++k) {
      if (k == least) continue;
      sum += std::abs(static_cast<double>(values[k]));
      expected[k] = values[k] < 0 ? -1.0F : 1.0F;
    }
  }
  const auto scale = static_cast<float>(F16(sum / 96));
  for (float& value : expected) value *= scale;
  const WeightFormat& format = weight_format("sherry_g128");
  std::vector<std::byte> block(22);
  encode_weights(format, values, block);
  std::vector<float> back(128);
  decode_weights(format, block, back);
  EXPECT_EQ(back, expected);
  EXPECT_EQ(ternary::block_fault(format.id, block.data()), "");
}

TEST(TernaryCodec, TinyGroupsKeepTheirSigns) {
  for (const WeightFormat* format : ternary_formats()) {
    if (format->name.find("q") != std::string_view::npos) continue;  // as their own tools
    std::vector<float> values(static_cast<std::size_t>(format->block_elements));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 3 == 0 ? -1e-9F : 1e-9F;
    std::vector<std::byte> block(static_cast<std::size_t>(format->block_bytes));
    encode_weights(*format, values, block);
    std::vector<float> back(values.size());
    decode_weights(*format, block, back);
    std::size_t zeros = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      zeros += back[i] == 0 ? 1U : 0U;
      if (back[i] != 0) {
        EXPECT_EQ(back[i], i % 3 == 0 ? -0x1p-24F : 0x1p-24F) << format->name;
      }
    }
    EXPECT_EQ(zeros, format->name == "sherry_g128" ? values.size() / 4 : 0U) << format->name;
  }
}

// Formats of GGUF scale by the largest magnitude: where f16 has no such scale but 0, down to those
// whose reciprocal is infinite, a block is the one of zeros, which no inspection calls a fault.
TEST(TernaryCodec, BlocksBelowTheScalesAreZeros) {
  for (const WeightFormat* format : ternary_formats()) {
    const auto n = static_cast<std::size_t>(format->block_elements);
    const auto encoded = [&](float magnitude) {
      std::vector<float> values(n);
      for (std::size_t i = 0; i < n; ++i) {
        values[i] = i % 3 == 0 ? -magnitude : i % 3 == 1 ? magnitude : 0.75F * magnitude;
      }
      std::vector<std::byte> block(static_cast<std::size_t>(format->block_bytes));
      encode_weights(*format, values, block);
      EXPECT_EQ(ternary::block_fault(format->id, block.data()), "")
          << format->name << " " << magnitude;
      return block;
    };
    const std::vector<std::byte> zeros = encoded(0);
    for (const float magnitude : {1e-9F, 2e-39F, 1e-45F}) {
      const std::vector<std::byte> block = encoded(magnitude);
      if (format->name.find('q') != std::string_view::npos) {
        EXPECT_EQ(block, zeros) << format->name;
      }
    }
    EXPECT_NE(encoded(0x1p-24F), zeros) << format->name;
  }
}

// Checksums (FNV-1a) of what the reference quantizers of the tools that brought these formats into
// use (PrismML's llama.cpp, ggml-quants.c at 811dce5d; ptq1_0 as its pull request 148 defines it)
// make of the same values: ternary groups, groups of five levels with ties among them, nine sizes.
TEST(TernaryCodec, PacksAsTheToolsOfTheirOrigin) {
  std::vector<float> values(64 * 256);
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    state = state * 1664525U + 1013904223U;
    const int level = static_cast<int>((state >> 16) % 5) - 2;
    values[i] = static_cast<float>(level) * std::ldexp(0.375F, static_cast<int>(i / 256) % 9 - 4);
  }
  const std::pair<const char*, std::uint64_t> expected[] = {
      {"q2_0", 0xdbb7e10f9e92c6dc}, {"pq2_0", 0x1ff591567385c474}, {"ptq1_0", 0xd25557ec24531099}};
  for (const auto& [name, sum] : expected) {
    const WeightFormat& format = weight_format(name);
    std::vector<std::byte> bytes(
        static_cast<std::size_t>(weight_bytes(format, std::ssize(values))));
    encode_weights(format, values, bytes);
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const std::byte byte : bytes) {
      hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3;
    }
    EXPECT_EQ(hash, sum) << name;
  }
}

TEST(TernaryCodec, FaultsAreNamed) {
  std::mt19937 random(5);
  for (const WeightFormat* format : ternary_formats()) {
    const std::vector<std::int8_t> codes = random_codes(*format, random);
    const auto bytes = static_cast<std::size_t>(format->block_bytes);
    std::vector<std::byte> good(bytes);
    ASSERT_TRUE(ternary::pack_block(format->id, codes.data(), 0.5F, good.data()));
    const auto with_scale = [&](std::uint16_t bits) {
      std::vector<std::byte> block = good;
      std::memcpy(block.data() + scale_offset(format->name), &bits, 2);
      return ternary::block_fault(format->id, block.data());
    };
    EXPECT_EQ(with_scale(0x7e00), "a scale of NaN") << format->name;
    EXPECT_EQ(with_scale(0x7c00), "an infinite scale") << format->name;
    EXPECT_NE(with_scale(0xb800), "") << format->name;
    EXPECT_NE(with_scale(0), "") << format->name;
    const std::size_t first = scale_offset(format->name) == 0 ? 2 : 0;
    std::vector<std::byte> block = good;
    block[first] = std::byte{0xff};
    if (format->name == "sherry_g128") {
      EXPECT_EQ(ternary::block_fault(format->id, block.data()), "") << "every index is one";
    } else if (format->name.find("tq1") != std::string_view::npos) {
      EXPECT_EQ(ternary::block_fault(format->id, block.data()), "") << "0xff is 22222";
      block[first] = std::byte{0x01};  // between 00000 and 00001
      EXPECT_NE(ternary::block_fault(format->id, block.data()), "") << format->name;
    } else {
      EXPECT_EQ(ternary::block_fault(format->id, block.data()), "a code of 2 at value 0")
          << format->name;
    }
  }
}

}  // namespace
}  // namespace touchstone
