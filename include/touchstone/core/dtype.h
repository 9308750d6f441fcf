// Element types, named as safetensors names them.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "touchstone/core/error.h"
#include "touchstone/core/half.h"

namespace touchstone {

// f8_e4m3 and i4 are storage types of quantized data (quant_format.h): no C++ type stands for one
// element, and operators refuse tensors of them.
enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, i8, u8, f8_e4m3, i4 };

// Those of a C++ element type.
inline constexpr DType kAllDTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16,
                                       DType::i64, DType::i32, DType::i8,   DType::u8};

// Bytes of one element. Unsupported for i4, two of which share a byte.
std::int64_t size_of(DType dtype);

// "f32", "bf16", ...
std::string_view name_of(DType dtype);

// The inverse of name_of; InvalidArgument lists the known names.
DType parse_dtype(std::string_view name);

// The DType of a C++ element type.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<Bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<F16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

// Calls visitor.operator()<T>() with the C++ type of `dtype`:
//   visit_dtype(x.dtype, [&]<class T>() { run<T>(x); });
// Unsupported for f8_e4m3 and i4.
template <class Visitor>
decltype(auto) visit_dtype(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DType::f64:
      return visitor.template operator()<double>();
    case DType::f32:
      return visitor.template operator()<float>();
    case DType::bf16:
      return visitor.template operator()<Bf16>();
    case DType::f16:
      return visitor.template operator()<F16>();
    case DType::i64:
      return visitor.template operator()<std::int64_t>();
    case DType::i32:
      return visitor.template operator()<std::int32_t>();
    case DType::i8:
      return visitor.template operator()<std::int8_t>();
    case DType::u8:
      return visitor.template operator()<std::uint8_t>();
    case DType::f8_e4m3:
    case DType::i4:
      throw Unsupported("dtype: expected a type of whole C++ elements, got f8_e4m3 or i4");
  }
  throw InvalidArgument("dtype: unknown value");
}

// The same for the four floating point types only; anything else is Unsupported.
template <class Visitor>
decltype(auto) visit_float_dtype(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DType::f64:
      return visitor.template operator()<double>();
    case DType::f32:
      return visitor.template operator()<float>();
    case DType::bf16:
      return visitor.template operator()<Bf16>();
    case DType::f16:
      return visitor.template operator()<F16>();
    default:
      throw Unsupported("dtype: expected one of f64, f32, bf16, f16");
  }
}

// One element converted to another type. Floating point narrowing rounds once, to nearest even;
// floating point to integer truncates toward zero, saturates at the ends and takes NaN to 0; an
// integer to a narrower one keeps the low bits.
template <class To, class From>
To convert(From value);

}  // namespace touchstone

#include "touchstone/core/convert.h"  // IWYU pragma: export
