// How a vector of numbers is stored: as elements of a floating point type, or quantized in groups
// that share a scale. KV caches store the vector of each head of each token so, weights each row.
#pragma once

#include <cstdint>
#include <string_view>

#include "touchstone/core/dtype.h"
#include "touchstone/core/export.h"

namespace touchstone::inline v0 {

struct QuantFormat {
  // f32, bf16, f16: stored as they are. i8, i4, f8_e4m3: quantized.
  DType dtype = DType::bf16;
  // Quantized: values that share a scale; must divide the length of the vector. 0 = all of it.
  std::int64_t group_size = 0;
  // i8 and i4: a minimum is kept beside each scale.
  bool asymmetric = false;
  // Type of scales and minima: f16 or f32.
  DType scale_dtype = DType::f16;

  friend bool operator==(const QuantFormat&, const QuantFormat&) = default;
};

// Whether values of the dtype are stored with scales.
constexpr bool is_quantized(DType dtype) {
  return dtype == DType::i8 || dtype == DType::i4 || dtype == DType::f8_e4m3;
}
constexpr bool is_quantized(const QuantFormat& format) { return is_quantized(format.dtype); }

// The dtypes of formats.
inline constexpr DType kFormatDTypes[] = {DType::f32, DType::bf16, DType::f16,
                                          DType::i8,  DType::i4,   DType::f8_e4m3};

// Names of formats as users write them: "f32", "bf16", "f16", "int8", "int4", "fp8_e4m3".
// "unknown" for other dtypes.
TOUCHSTONE_API std::string_view format_name(DType dtype);
// The inverse of format_name; InvalidArgument lists the known names.
TOUCHSTONE_API DType parse_format_dtype(std::string_view name);

}  // namespace touchstone::inline v0
