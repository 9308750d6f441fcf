// Rounding errors, and the comparison of outputs with a float64 reference: every element has its
// own derived bound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "touchstone/core/dtype.h"

namespace touchstone::spec {

// Unit roundoff: half the distance from 1 to the next number.
double unit_roundoff(DType dtype);

// The largest error one rounding to `dtype` can make at `value`, subnormals included.
double rounding_error(DType dtype, double value);

// The bound of a value that carries `error` and is then rounded to the dtype. The rounding may
// happen at the far end of the error, where the spacing can be twice as wide.
double with_rounding(DType dtype, double value, double error);

// From here on, half a unit in the last place beyond the largest number, everything rounds to
// infinity.
double overflow_threshold(DType dtype);

// Growth of the rounding error of a sum of n terms. Sums are made by many short running sums joined
// as a tree: their error is that of the tree's depth, with margin for the runs at the leaves.
double growth(std::int64_t n);

// f32, or f64 for f64: the type of statistics and of sums.
DType wide_dtype(DType dtype);

// Numbers and, beside each, how far from it an implementation may land.
struct Expected {
  std::vector<double> value;
  std::vector<double> bound;

  void add(double v, double b) {
    value.push_back(v);
    bound.push_back(b);
  }
};

// Whether one element is within its bound. A NaN fails unless NaN is expected; infinities must
// match with their sign; a value beyond the dtype's range may be infinite. A bound that is itself
// not finite fails: it would prove nothing.
bool within(double actual, double expected, double bound, double overflow);

// A comparison of one or several outputs.
struct Verdict {
  double worst = 0;           // error over bound, infinite where it is not a number; right: <= 1
  std::int64_t compared = 0;  // elements
  std::int64_t outside = 0;   // of them out of bounds
  std::string where{};        // the worst of these, in words
  std::int64_t element = -1;  // and its index among those compared
  double difference = 0;      // sum of squares of actual - expected
  double size = 0;            // sum of squares of expected

  bool right() const { return compared > 0 && outside == 0; }
  // |actual - expected| / |expected|, NaN where there is one.
  double relative_error() const;
  void merge(const Verdict& other);
};
// `name` and the index of an element are what `where` says. Integer dtypes: equal or wrong.
Verdict compare(std::span<const double> actual, const Expected& expected, DType dtype,
                const std::string& name, std::span<const std::int64_t> index = {});

}  // namespace touchstone::spec
