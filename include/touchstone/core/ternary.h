// Ternary weights: codes in {-1, 0, +1} and one scale per group, value = scale * code. The
// projection of a matrix of floats to such weights, and the inverse test that a matrix is already
// ternary.
//
// Groups     A matrix [rows, cols], rows contiguous, is one group (tensor), one group per row, or
//            groups of `size` neighbors in a row (group). A group never crosses the end of a row:
//            where `size` does not divide cols the last group of each row is shorter, and its scale
//            is that of the values it has. Nothing is padded. Groups are numbered row by row.
// Scale      s(mean)          = (sum of |w|) / n
//            s(absmax)        = max |w|
//            s(least_squares) = the s that, with the best codes for it, has the smallest sum of
//                               (w - s * code)^2; of several the one with the fewest codes other
//                               than 0
//            of the n values of the group, computed in f64. There is no epsilon: a group of zeros
//            has s = 0, and a group of values near 1e-9, or of denormals, is treated like any
//            other.
// Codes      sign(w) where 2 |w| > s, else 0: the nearest level, a tie goes to 0. s is the scale
//            before it is rounded for storage, so that the codes do not depend on the type of the
//            scale.
// Storage    The scale of a file is an f16 (TernaryScaleType::f16, the default), and that is the
//            scale that training has to see. s is rounded to nearest, once, from f64. An f16 ends
//            at 2^-24 and at 65504; s > 0 below and above become these two numbers, and never 0 or
//            infinity: 0 would drop the signs of a group that has them, infinity would make NaN of
//            its zeros. The value of a weight is wrong by less than 2^-24 then. ternary_project
//            counts the groups whose scale was moved that far. f32 holds every scale of f32 weights
//            down to 2^-149; f16_bf16 rounds to bf16 and then to f16: an f16 of at most 8
//            significant bits, so that products in bf16 use the exact scale of the file.
// Sums       In a fixed order, the same on every device. A group is cut into runs of 256 values,
//            the last one shorter. Of a run, 32 partial sums add the values i, i + 32, i + 64 ...
//            in order and are then added in halves (l and l + 16, l + 8, ... l + 1). Runs are added
//            in order. Least squares adds values from the largest magnitude to the smallest.
// Gradient   Straight through: with W^ = project(W) and L a function of W^, the gradient that
//            trains W is dL/dW = dL/dW^, bit for bit, with nothing scaled or clipped and no term
//            for s.
// Refusals   InvalidArgument for NaN or infinity among the weights (with row and column), a size
//            outside 32..256, spans of a wrong length; nothing is written then.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "touchstone/core/export.h"
#include "touchstone/core/language.h"  // IWYU pragma: keep: before everything that needs C++20

namespace touchstone::inline v0 {

enum class TernaryGrouping : std::uint8_t { tensor, row, group };
enum class TernaryScaleRule : std::uint8_t { mean, absmax, least_squares };
enum class TernaryScaleType : std::uint8_t { f16, f32, f16_bf16 };

inline constexpr std::int64_t kTernarySmallestGroup = 32;
inline constexpr std::int64_t kTernaryLargestGroup = 256;

struct TernaryGeometry {
  TernaryGrouping grouping = TernaryGrouping::group;
  std::int64_t size = 128;  // of a group; ignored for tensor and row

  friend bool operator==(const TernaryGeometry&, const TernaryGeometry&) = default;
};

struct TernaryRule {
  TernaryGeometry geometry{};
  TernaryScaleRule scale = TernaryScaleRule::mean;
  TernaryScaleType scale_type = TernaryScaleType::f16;

  friend bool operator==(const TernaryRule&, const TernaryRule&) = default;
};

// As users write them: "tensor", "row", "32" .. "256"; "mean", "absmax", "least_squares". The
// parsers throw InvalidArgument that lists what they know.
TOUCHSTONE_API std::string ternary_geometry_name(const TernaryGeometry& geometry);
TOUCHSTONE_API TernaryGeometry parse_ternary_geometry(std::string_view name);
TOUCHSTONE_API std::string_view ternary_scale_rule_name(TernaryScaleRule rule);
TOUCHSTONE_API TernaryScaleRule parse_ternary_scale_rule(std::string_view name);

// Groups of a matrix; 0 where it has no values. InvalidArgument for a size or a shape that is not
// one.
TOUCHSTONE_API std::int64_t ternary_groups(const TernaryGeometry& geometry, std::int64_t rows,
                                           std::int64_t cols);
// The values of group `index`: where they begin in the matrix and how many there are.
struct TernarySpan {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
TOUCHSTONE_API TernarySpan ternary_group(const TernaryGeometry& geometry, std::int64_t rows,
                                         std::int64_t cols, std::int64_t index);

// The scale of one group of finite values before it is rounded, and as it is stored.
TOUCHSTONE_API double ternary_scale(TernaryScaleRule rule, std::span<const float> group);
TOUCHSTONE_API float ternary_stored_scale(double scale, TernaryScaleType type);

// Where the projection of a matrix goes; an empty span is not written.
struct TernaryOutputs {
  std::span<std::int8_t> codes{};  // [rows * cols]
  std::span<float> scales{};       // [groups], the scales as they are stored
  std::span<float> values{};       // [rows * cols], scale * code; +0 where the code is 0
};

struct TernarySummary {
  std::int64_t groups = 0;
  std::int64_t zero_groups = 0;   // groups of zeros: scale 0
  std::int64_t zero_codes = 0;    // of all values
  std::int64_t moved_scales = 0;  // scales that were moved into the range of the scale type

  friend bool operator==(const TernarySummary&, const TernarySummary&) = default;
};

// `values` may be `weight` exactly; any other overlap is undefined. See ops/ternary_project.h for
// matrices on a device and for threads.
TOUCHSTONE_API TernarySummary ternary_project(const TernaryRule& rule, std::int64_t rows,
                                              std::int64_t cols, std::span<const float> weight,
                                              const TernaryOutputs& outputs);

// A matrix taken apart.
struct TernaryMatrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  TernaryGeometry geometry{};
  std::vector<std::int8_t> codes{};  // [rows * cols]
  std::vector<float> scales{};       // [groups]

  friend bool operator==(const TernaryMatrix&, const TernaryMatrix&) = default;
};

TOUCHSTONE_API TernaryMatrix ternary_project(const TernaryRule& rule, std::int64_t rows,
                                             std::int64_t cols, std::span<const float> weight);

// scale * code. InvalidArgument for a code outside {-1, 0, +1}, for a scale that is negative, NaN
// or infinite, and for vectors of a wrong length.
TOUCHSTONE_API void ternary_values(const TernaryMatrix& matrix, std::span<float> values);

// Takes apart values that are already ternary: in every group all magnitudes other than 0 are one
// number, which the scale type holds. Exact: ternary_values gives the values back (-0 as +0). The
// first group for which that fails is reported instead.
struct TernaryMismatch {
  std::int64_t row = 0;  // of the first value that no scale of its group gives
  std::int64_t col = 0;
  std::string reason;  // "0.25 among magnitudes of 0.5", "0.1 is no f16", "nan"
};
struct TernaryExact {
  std::optional<TernaryMatrix> matrix{};
  TernaryMismatch mismatch{};  // where there is no matrix
};
TOUCHSTONE_API TernaryExact ternary_exact(const TernaryGeometry& geometry, TernaryScaleType type,
                                          std::int64_t rows, std::int64_t cols,
                                          std::span<const float> values);

}  // namespace touchstone::inline v0
