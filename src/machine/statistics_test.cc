#include "machine/statistics.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "touchstone/core/error.h"

namespace touchstone::machine {
namespace {

TEST(Statistics, OneSampleIsItsOwnMedian) {
  const std::array<double, 1> samples = {7.0};
  const Summary summary = summarize(samples);
  EXPECT_EQ(summary.median, 7.0);
  EXPECT_EQ(summary.best, 7.0);
  EXPECT_EQ(summary.spread, 0.0);
}

TEST(Statistics, OrderDoesNotMatter) {
  const std::array<double, 5> samples = {5, 1, 4, 2, 3};
  const Summary summary = summarize(samples);
  EXPECT_EQ(summary.median, 3.0);
  EXPECT_EQ(summary.best, 1.0);
  // Quartiles 2 and 4: half their distance is 1, a third of the median.
  EXPECT_DOUBLE_EQ(summary.spread, 1.0 / 3.0);
}

TEST(Statistics, AnEvenCountInterpolates) {
  const std::array<double, 4> samples = {1, 2, 3, 10};
  const Summary summary = summarize(samples);
  EXPECT_DOUBLE_EQ(summary.median, 2.5);
  EXPECT_DOUBLE_EQ(summary.spread, (4.75 - 1.75) / 2 / 2.5);
}

TEST(Statistics, OneSpoiledSampleInManyIsNotSeen) {
  std::vector<double> samples(21, 2.0);
  samples[4] = 1000.0;
  const Summary summary = summarize(samples);
  EXPECT_EQ(summary.median, 2.0);
  EXPECT_EQ(summary.spread, 0.0);
}

TEST(Statistics, ZeroTimesHaveNoSpread) {
  const std::array<double, 3> samples = {0, 0, 0};
  EXPECT_EQ(summarize(samples).spread, 0.0);
}

TEST(Statistics, NoSamplesIsAnError) { EXPECT_THROW(summarize({}), InvalidArgument); }

}  // namespace
}  // namespace touchstone::machine
