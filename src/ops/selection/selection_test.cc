// The CPU components of the selection engine, each by itself. The operators test them together.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "ops/selection/cpu/cpu_scratch.h"
#include "ops/selection/cpu/cpu_weights.h"
#include "tests/support/runners.h"
#include "touchstone/core/testing.h"

namespace touchstone::test {
namespace {

using selection::LogitRows;
using selection::ScratchSizes;

LogitRows rows_of(std::int64_t vocabulary) {
  LogitRows rows;
  rows.rows = 1;
  rows.vocabulary = vocabulary;
  return rows;
}

TEST(SelectionScratch, SizesUpToK_CoverEverySmallerK) {
  for (const std::int64_t vocabulary : {1, 7, 100, 3001, 128256}) {
    const LogitRows rows = rows_of(vocabulary);
    const std::int64_t max_k = std::min<std::int64_t>(vocabulary, 2048);
    const ScratchSizes all = selection::scratch_sizes_up_to(rows, max_k);
    for (std::int64_t k = 1; k <= max_k; k += 1 + k / 16) {
      const ScratchSizes one = selection::scratch_sizes(rows, k);
      EXPECT_LE(one.maxima, all.maxima) << vocabulary << " " << k;
      EXPECT_LE(one.candidates, all.candidates) << vocabulary << " " << k;
      EXPECT_LE(one.slots, all.slots);
      EXPECT_EQ(one.segments, all.segments);
    }
  }
}

TEST(SelectionScratch, Partition_IsDisjointAndAligned) {
  selection::WorkspacePartition measure(nullptr);
  EXPECT_EQ(measure.take<float>(3), nullptr);
  measure.take<double>(5);
  std::vector<std::byte> memory(measure.used() + 64);
  selection::WorkspacePartition partition(memory.data());
  const auto* const first = reinterpret_cast<const std::byte*>(partition.take<float>(3));
  const auto* const second = reinterpret_cast<const std::byte*>(partition.take<double>(5));
  EXPECT_EQ(partition.used(), measure.used());
  // A vector of 64 bytes may be stored at the last element.
  EXPECT_GE(second - first, static_cast<std::ptrdiff_t>(3 * sizeof(float) + 60));
  EXPECT_EQ((second - first) % 64, 0);
}

// Against exp() of the library, on every SIMD target, with tails and masked tokens.
TEST(SelectionWeights, MatchExpAndBinsAreMonotone) {
  std::mt19937 generator(5);
  std::normal_distribution<float> normal(0, 20);
  const std::string before = simd_target();
  for (const std::string& target : simd_targets()) {
    SCOPED_TRACE(target);
    testing::set_simd_target(target);
    for (const std::size_t n : {1U, 3U, 17U, 1000U}) {
      std::vector<float> values(n);
      for (float& value : values) value = normal(generator);
      if (n > 2) values[2] = -std::numeric_limits<float>::infinity();
      float largest = values[0];
      for (const float value : values) largest = std::max(largest, value);
      std::vector<double> weights(n + 16);
      std::vector<std::uint16_t> bins(n + 32);
      std::vector<double> masses(4096), expected_masses(4096);
      const double total = selection::weigh_and_bin(
          values.data(), n,
          {.largest = largest, .temperature = 0.75, .step = 40.0F, .last_bin = 4095},
          {weights.data(), bins.data(), masses.data()});
      double sum = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const double x = (static_cast<double>(values[i]) - static_cast<double>(largest)) / 0.75;
        const double right = std::exp(x);
        const double bound = right > 0 ? (2 + std::fabs(x)) * 2.3e-16 * right : 0;
        EXPECT_LE(std::fabs(weights[i] - right), bound) << x;
        sum += weights[i];
        expected_masses[bins[i]] += weights[i];
        for (std::size_t j = 0; j < std::min<std::size_t>(i, 20); ++j) {
          EXPECT_TRUE(values[i] >= values[j] ? bins[i] <= bins[j] : bins[i] >= bins[j]);
        }
      }
      EXPECT_NEAR(total, sum, 1e-12 * sum);
      EXPECT_EQ(masses, expected_masses);
      for (const std::uint16_t bin : {bins[0], bins[n - 1]}) {
        std::vector<std::uint32_t> tokens(n), expected_tokens;
        for (std::uint32_t i = 0; i < n; ++i) {
          if (bins[i] == bin) expected_tokens.push_back(i);
        }
        tokens.resize(selection::collect_bin(bins.data(), n, bin, tokens.data()));
        EXPECT_EQ(tokens, expected_tokens);
      }
    }
  }
  testing::set_simd_target(before);
}

TEST(SelectionSums, MergeSegments_UsesTheLargestReference) {
  const selection::SegmentSum segments[] = {{3, 1.5, 2.0F}, {0, 0, -1.0F}, {5, 2, 4.0F}};
  const selection::RowSum row = selection::merge_segments(segments, 3);
  EXPECT_EQ(row.reference, 5);
  EXPECT_EQ(row.sum, 1.5 * 0.25 + 2);
  EXPECT_EQ(row.largest, 4);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const selection::SegmentSum bad[] = {{3, nan, 2.0F}, {5, 2, 4.0F}};
  EXPECT_FALSE(selection::merge_segments(bad, 2).sum > 0);
}

}  // namespace
}  // namespace touchstone::test
