// How numbers are stored: as they are in a floating point type, or quantized with scales.
#pragma once

#include <cstdint>
#include <string_view>

#include "touchstone/core/dtype.h"

namespace touchstone {

// The format of a vector. Quantized types store codes and a scale for every `group_size` values:
//   symmetric    value = code * scale
//   asymmetric   value = minimum + code * scale
struct QuantFormat {
  // f32, bf16 or f16; quantized: i8, i4 (two codes per byte) or f8_e4m3.
  DType dtype = DType::bf16;
  // Quantized types: values that share a scale. 0 = the whole vector.
  std::int64_t group_size = 0;
  // i8 and i4: a minimum is kept beside each scale.
  bool asymmetric = false;
  // Type of scales and minima.
  DType scale_dtype = DType::f16;

  friend bool operator==(const QuantFormat&, const QuantFormat&) = default;
};

// The types a QuantFormat of the cache can have.
inline constexpr DType kFormatDTypes[] = {DType::f32, DType::bf16, DType::f16,
                                          DType::i8,  DType::i4,   DType::f8_e4m3};

constexpr bool is_quantized(DType dtype) {
  return dtype == DType::i8 || dtype == DType::i4 || dtype == DType::f8_e4m3;
}

// Names of formats as users write them: "f32", "bf16", "f16", "int8", "int4", "fp8_e4m3".
// "unknown" for other types.
std::string_view format_name(DType dtype);
// The inverse of format_name; InvalidArgument lists the known names.
DType parse_format_dtype(std::string_view name);

}  // namespace touchstone
