// The numbers of GGUF: magic, limits, sizes of values. Shared by reader and writer.
#pragma once

#include <cstdint>

#include "touchstone/io/tensor_file.h"

namespace touchstone::inline v0::io {

inline constexpr std::uint32_t kGgufMagic = 0x46554747;  // "GGUF"
inline constexpr std::uint32_t kGgufVersion = 3;
inline constexpr std::uint32_t kGgufDefaultAlignment = 32;
inline constexpr std::uint32_t kGgufMaxAlignment = 1 << 16;
inline constexpr std::uint32_t kGgufMaxRank = 4;
inline constexpr std::uint64_t kGgufMaxName = 65535;  // of keys and tensors

// Type 42 (q2_0) has blocks of 64 values, in some files of 128 (pq2_0, now type 142). Our files
// state the size under this key.
inline constexpr char kGgufQ2_0Block[] = "quantize.q2_0.block_size";

// Bytes of a value of fixed size; 0 for strings and arrays.
inline std::uint64_t metadata_value_bytes(MetadataValue::Type type) {
  using Type = MetadataValue::Type;
  switch (type) {
    case Type::u8:
    case Type::i8:
    case Type::boolean:
      return 1;
    case Type::u16:
    case Type::i16:
      return 2;
    case Type::u32:
    case Type::i32:
    case Type::f32:
      return 4;
    case Type::u64:
    case Type::i64:
    case Type::f64:
      return 8;
    case Type::string:
    case Type::array:
      return 0;
  }
  return 0;
}

}  // namespace touchstone::inline v0::io
