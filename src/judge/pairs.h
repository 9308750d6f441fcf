// What is said about times that were taken in pairs.
//
// On a shared machine two contenders measured one after the other differ by more than they are
// apart. So every block holds each contender once, in random order, and only ratios within a block
// are looked at: what disturbs a block disturbs both.
#pragma once

#include <cstdint>
#include <span>

#include "judge/record.h"

namespace touchstone::judge {

double median(std::span<const double> samples);  // at least one; NaN is not allowed

// The median with its bootstrap 95 % interval; the same samples give the same interval.
Interval median_interval(std::span<const double> samples);

// mine[i] / peer[i], as the median of the logarithms. Pairs with a NaN are left out.
Interval paired_ratio(std::span<const double> mine, std::span<const double> peer);

// The geometric mean of independent ratios, such as one per shape.
Interval mean_ratio(std::span<const Interval> ratios);

enum class Outcome { faster, slower, same, unresolved };
// `ratio` is mine over the peer's. Same: the whole interval within the margin of 1.
Outcome outcome(const Interval& ratio, double margin = 0.01);

// Whether a twin that should read 1 does. Empty: yes; else what is wrong.
std::string twin_fault(const Interval& ratio);

}  // namespace touchstone::judge
