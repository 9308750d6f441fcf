// The rotation against the matrix it stands for, and what it does for keys with outlier channels.
#include "cache/rotation.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <vector>

#include "cache/codec.h"
#include "tests/support/random.h"

namespace touchstone::inline v0::cache {
namespace {

using test::Random;

constexpr std::int64_t kDims[] = {1, 2, 3, 4, 6, 7, 8, 12, 16, 64, 80, 96, 128, 192, 256, 576};

std::vector<float> normal_vector(std::int64_t dim, std::uint64_t seed) {
  const Random random(seed);
  std::vector<float> x(static_cast<std::size_t>(dim));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(random.normal(static_cast<std::int64_t>(i)));
  }
  return x;
}

std::vector<float> rotated(std::vector<float> x) {
  rotate(x.data(), std::ssize(x));
  return x;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

TEST(Rotation, BlocksAreTheLargestPowerOfTwo) {
  EXPECT_EQ(rotation_block(1), 1);
  EXPECT_EQ(rotation_block(7), 1);
  EXPECT_EQ(rotation_block(80), 16);
  EXPECT_EQ(rotation_block(96), 32);
  EXPECT_EQ(rotation_block(128), 128);
  EXPECT_EQ(rotation_block(576), 64);
}

TEST(Rotation, IsTheHadamardMatrixOfEachBlock) {
  for (const std::int64_t dim : kDims) {
    const std::vector<float> x = normal_vector(dim, 1);
    const std::vector<float> y = rotated(x);
    const auto block = static_cast<std::size_t>(rotation_block(dim));
    for (std::size_t i = 0; i < x.size(); ++i) {
      double expected = 0;
      const std::size_t first = i / block * block;
      for (std::size_t j = 0; j < block; ++j) {
        const bool minus = std::popcount((i - first) & j) % 2 != 0;
        expected += (minus ? -1.0 : 1.0) * static_cast<double>(x[first + j]);
      }
      expected /= std::sqrt(static_cast<double>(block));
      ASSERT_NEAR(static_cast<double>(y[i]), expected, 1e-5) << dim << " " << i;
    }
  }
}

TEST(Rotation, IsItsOwnInverseAndKeepsProducts) {
  for (const std::int64_t dim : kDims) {
    const std::vector<float> x = normal_vector(dim, 2);
    const std::vector<float> q = normal_vector(dim, 3);
    const std::vector<float> back = rotated(rotated(x));
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(back[i], x[i], 2e-6F) << dim;
    const double tolerance = 1e-6 * std::sqrt(dot(x, x) * dot(q, q));
    EXPECT_NEAR(dot(rotated(x), rotated(q)), dot(x, q), tolerance) << dim;
  }
  const std::vector<float> odd = normal_vector(7, 4);
  EXPECT_EQ(rotated(odd), odd);
}

// ---- outlier channels
// ----------------------------------------------------------------------------

struct KeySet {
  int channels = 0;  // that are off
  double offset = 0;
};
constexpr KeySet kGaussian{};
constexpr KeySet kMild{4, 8};
constexpr KeySet kStrong{8, 20};

// Relative L2 error of 4096 keys of 128 numbers.
double key_error(const KeySet& set, const QuantFormat& format, bool rotating) {
  constexpr std::int64_t kKeys = 4096;
  constexpr std::int64_t kDim = 128;
  const Random random(11);
  double error = 0;
  double energy = 0;
  std::vector<std::byte> values(static_cast<std::size_t>(value_bytes(format, kDim)));
  std::vector<std::byte> scales(static_cast<std::size_t>(scale_bytes(format, kDim)));
  for (std::int64_t n = 0; n < kKeys; ++n) {
    std::vector<float> x(kDim);
    for (std::int64_t i = 0; i < kDim; ++i) {
      // The outlier channels are spread over the head; each is off to its own side.
      const bool off = set.channels > 0 && i % (kDim / set.channels) == 5;
      const double shift = off ? set.offset * random.sign(i) : 0;
      x[static_cast<std::size_t>(i)] = static_cast<float>(random.normal(n * kDim + i) + shift);
    }
    std::vector<float> y = rotating ? rotated(x) : x;
    encode(format, kDim, y.data(), values.data(), scales.data());
    decode(format, kDim, values.data(), scales.data(), y.data());
    if (rotating) rotate(y.data(), kDim);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double difference = static_cast<double>(y[i]) - static_cast<double>(x[i]);
      error += difference * difference;
      energy += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
  }
  return std::sqrt(error / energy);
}

constexpr QuantFormat kInt8G32{.dtype = DType::i8, .group_size = 32};
constexpr QuantFormat kInt8G128{.dtype = DType::i8, .group_size = 128};
constexpr QuantFormat kInt4G32{.dtype = DType::i4, .group_size = 32};
constexpr QuantFormat kInt4G128{.dtype = DType::i4, .group_size = 128};
constexpr QuantFormat kInt4AsymmetricG32{.dtype = DType::i4, .group_size = 32, .asymmetric = true};
constexpr QuantFormat kFp8{.dtype = DType::f8_e4m3};

TEST(KeyError, Gaussian) {
  EXPECT_LE(key_error(kGaussian, kInt8G32, false), 0.0056);
  EXPECT_LE(key_error(kGaussian, kInt8G128, false), 0.007);
  EXPECT_LE(key_error(kGaussian, kInt4G32, false), 0.10);
  EXPECT_LE(key_error(kGaussian, kInt4AsymmetricG32, false), 0.08);
  EXPECT_LE(key_error(kGaussian, kFp8, false), 0.027);
  // Rotation neither helps nor harms what has no outliers.
  for (const QuantFormat& format : {kInt8G128, kInt4AsymmetricG32}) {
    const double plain = key_error(kGaussian, format, false);
    EXPECT_NEAR(key_error(kGaussian, format, true), plain, 0.02 * plain);
  }
}

TEST(KeyError, RotationSpreadsOutliers) {
  EXPECT_GE(key_error(kMild, kInt8G128, false), 0.010);
  EXPECT_LE(key_error(kMild, kInt8G128, true), 0.0065);
  EXPECT_GE(key_error(kStrong, kInt8G128, false), 0.009);
  EXPECT_LE(key_error(kStrong, kInt8G128, true), 0.006);
  EXPECT_GE(key_error(kMild, kInt4AsymmetricG32, false), 0.095);
  EXPECT_LE(key_error(kMild, kInt4AsymmetricG32, true), 0.08);
  EXPECT_GE(key_error(kStrong, kInt4AsymmetricG32, false), 0.09);
  EXPECT_LE(key_error(kStrong, kInt4AsymmetricG32, true), 0.08);
  EXPECT_GE(key_error(kStrong, kInt4G128, false), 0.15);
  EXPECT_LE(key_error(kStrong, kInt4G128, true), 0.11);
}

}  // namespace
}  // namespace touchstone::inline v0::cache
