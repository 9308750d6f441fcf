// A small GGUF file without a disk.
#pragma once

#include <span>
#include <string>

#include "touchstone/io/write_tensors.h"

namespace touchstone::inline v0::io {

// The bytes that write_gguf writes.
std::string gguf_in_memory(const GgufMetadata& metadata, std::span<const OutputTensor> tensors);

}  // namespace touchstone::inline v0::io
