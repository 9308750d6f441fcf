// Types of tensors in files: the weight formats, and what else has a known size. One list for both
// containers, each of which has a part of it.
#pragma once

#include <cstdint>
#include <string_view>

#include "touchstone/core/weight_format.h"

namespace touchstone::inline v0::io {

struct StorageType {
  std::string_view name;       // ours
  const WeightFormat* format;  // null for what is no weights
  std::int64_t block_elements = 1;
  std::int64_t block_bytes = 0;
  std::string_view safetensors;  // its spelling there; empty where it does not exist
  std::int32_t gguf = -1;        // its number there; -1 where it does not exist
};

// Null where there is none.
const StorageType* storage_type_named(std::string_view name);
const StorageType* storage_type_of_safetensors(std::string_view spelling);
const StorageType* storage_type_of_gguf(std::uint32_t number);

// The name of a GGUF type that is not supported; empty for numbers without a name.
std::string_view unread_gguf_type(std::uint32_t number);

}  // namespace touchstone::inline v0::io
