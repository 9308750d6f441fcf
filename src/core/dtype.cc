#include "touchstone/core/dtype.h"

#include <string>

namespace touchstone::inline v0 {

std::int64_t bits_of(DType dtype) {
  if (dtype == DType::i4) return 4;
  if (dtype == DType::f8_e4m3) return 8;
  return visit_dtype(dtype, []<class T>() { return 8 * static_cast<std::int64_t>(sizeof(T)); });
}

std::int64_t size_of(DType dtype) {
  const std::int64_t bits = bits_of(dtype);
  if (bits % 8 != 0) {
    throw InvalidArgument("dtype: " + std::string(name_of(dtype)) +
                          " has no size in bytes: it has " + std::to_string(bits) + " bits");
  }
  return bits / 8;
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "f64";
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i64:
      return "i64";
    case DType::i32:
      return "i32";
    case DType::i8:
      return "i8";
    case DType::u8:
      return "u8";
    case DType::f8_e4m3:
      return "f8_e4m3";
    case DType::i4:
      return "i4";
  }
  return "unknown";
}

DType parse_dtype(std::string_view name) {
  std::string known;
  for (const DType dtype : kAllDTypes) {
    if (name_of(dtype) == name) return dtype;
    known += known.empty() ? "" : ", ";
    known += name_of(dtype);
  }
  throw InvalidArgument("dtype: expected one of " + known + ", got '" + std::string(name) + "'");
}

}  // namespace touchstone::inline v0
