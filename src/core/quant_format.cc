#include "touchstone/core/quant_format.h"

#include <string>

#include "touchstone/core/error.h"

namespace touchstone::inline v0 {

std::string_view format_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::bf16:
    case DType::f16:
      return name_of(dtype);
    case DType::i8:
      return "int8";
    case DType::i4:
      return "int4";
    case DType::f8_e4m3:
      return "fp8_e4m3";
    default:
      return "unknown";
  }
}

DType parse_format_dtype(std::string_view name) {
  std::string known;
  for (const DType dtype : kFormatDTypes) {
    if (format_name(dtype) == name) return dtype;
    known += known.empty() ? "" : ", ";
    known += format_name(dtype);
  }
  throw InvalidArgument("format: expected one of " + known + ", got '" + std::string(name) + "'");
}

}  // namespace touchstone::inline v0
