// Comparison with a float64 expectation, element by element, each with its own derived bound.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "spec/bounds.h"
#include "touchstone/core/dtype.h"

namespace touchstone::test {

using spec::Expected;
using spec::growth;
using spec::rounding_error;
using spec::unit_roundoff;

// Succeeds when every element is within its bound. A NaN fails unless NaN is expected; infinities
// must match with their sign; a value beyond the dtype's range may be infinite. A bound that is
// itself not finite fails too, and so does an empty comparison: both would prove nothing. The
// message names the worst element, as (row, column) when `cols` is given.
testing::AssertionResult close(std::span<const double> actual, const Expected& expected,
                               DType dtype, std::int64_t cols = 0);

// |actual - expected| / |expected| over the whole array. NaN when the sizes differ.
double relative_l2(std::span<const double> actual, std::span<const double> expected);

// Each value rounded to the dtype.
std::vector<double> rounded(std::span<const double> values, DType dtype);

}  // namespace touchstone::test
