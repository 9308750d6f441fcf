// Element types, named as safetensors names them; i4 is two's complement, two per byte, the first
// in the low bits. f8_e4m3 is the OCP format without infinities (E4M3FN).
//
// f8_e4m3 and i4 describe stored values (QuantFormat). They have no C++ element type: visit_dtype
// and every operator on tensors refuse them, and i4 has no size in bytes, so that no view has it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "touchstone/core/error.h"
#include "touchstone/core/half.h"

namespace touchstone::inline v0 {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, i8, u8, f8_e4m3, i4 };

inline constexpr DType kAllDTypes[] = {DType::f64,     DType::f32, DType::bf16, DType::f16,
                                       DType::i64,     DType::i32, DType::i8,   DType::u8,
                                       DType::f8_e4m3, DType::i4};

// Those with a C++ element type.
inline constexpr DType kNativeDTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16,
                                          DType::i64, DType::i32, DType::i8,   DType::u8};

// Bits of one element.
TOUCHSTONE_API std::int64_t bits_of(DType dtype);

// Bytes of one element. InvalidArgument for i4, which has 4 bits.
TOUCHSTONE_API std::int64_t size_of(DType dtype);

// "f32", "bf16", ...
TOUCHSTONE_API std::string_view name_of(DType dtype);

// The inverse of name_of; InvalidArgument lists the known names.
TOUCHSTONE_API DType parse_dtype(std::string_view name);

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

// Calls visitor.operator()<T>() with the C++ type of `dtype`; Unsupported where there is none:
//   visit_dtype(x.dtype, [&]<class T>() { run<T>(x); });
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
      throw Unsupported("dtype: " + std::string(name_of(dtype)) + " has no C++ element type");
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

}  // namespace touchstone::inline v0

#include "touchstone/core/convert.h"  // IWYU pragma: export
#include "touchstone/core/export.h"
