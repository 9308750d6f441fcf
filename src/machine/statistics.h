// Statistics of repeated measurements.
#pragma once

#include <span>

namespace touchstone::machine {

struct Summary {
  double median = 0;
  double best = 0;  // the smallest
  // Half the interquartile range over the median: the typical distance of a sample from the
  // median, blind to the few samples that an interrupt spoiled.
  double spread = 0;
};

// `samples` are times: finite, at least one. Quantiles interpolate between neighbors.
Summary summarize(std::span<const double> samples);

}  // namespace touchstone::machine
