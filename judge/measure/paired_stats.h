// What is said about times that were taken in pairs.
//
// On a shared machine two contenders measured one after the other differ by more than they are
// apart. So every block holds each contender once, in random order, and only ratios within a block
// are looked at: what disturbs a block disturbs both.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "judge/report/record.h"

namespace touchstone::judge {

double median(std::span<const double> samples);  // at least one; NaN is not allowed

// The median with its bootstrap 95 % interval; the same samples give the same interval.
Interval median_interval(std::span<const double> samples);

// One timed call.
struct Sample {
  double seconds = std::numeric_limits<double>::quiet_NaN();  // NaN: it sat this block out
  bool disturbed = false;                                     // others had the processor meanwhile
  // Which of the contender's processes, counted upwards: each has its luck with where memory lies.
  int process = 0;
};
using Times = std::vector<Sample>;  // of one contender, block by block

// The times of all blocks it took part in; undisturbed ones alone, where there are enough of them.
std::vector<double> own_seconds(std::span<const Sample> times);

// mine[i] / peer[i], as the mean of the middle half of the logarithms with its bootstrap 95 %
// interval. Blocks that one of the two sat out are left out, and disturbed ones too where enough
// others are left. What pairs of one process share is no news: where there were several processes,
// these are resampled, not the pairs; of two that live differently long, those of the longer life.
Interval paired_ratio(std::span<const Sample> mine, std::span<const Sample> peer);

// The geometric mean of independent ratios, such as one per shape.
Interval mean_ratio(std::span<const Interval> ratios);

// The interval with `margin` more on either side, in the logarithm: for an error that drawing the
// same samples again does not show.
Interval widened(const Interval& interval, double margin);

// A twin should read 1. Two questions, each answered with what is wrong, or nothing:
// Is it known to be 1 within 2 %? Asked before anyone is accused of a time.
std::string twin_fault(const Interval& ratio);
// Did the control fail: off by more than 10 %, not known to 10 %, or surely off and by more than
// 2 %? Then speeds are withheld. Otherwise they are reported with intervals, widened by what the
// twin is off.
std::string twin_failure(const Interval& ratio);

}  // namespace touchstone::judge
