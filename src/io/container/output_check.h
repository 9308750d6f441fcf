// Checks that both writers share.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "io/container/tensor_file_state.h"
#include "touchstone/io/write_tensors.h"

namespace touchstone::inline v0::io {

// How safetensors spells a type of ours; empty for those it does not have.
std::string_view safetensors_type(std::string_view type);

// The bytes of every tensor by type and shape; InvalidArgument for a type that is not known, a shape
// that does not fit it, a name that is empty or occurs twice.
std::vector<std::uint64_t> output_sizes(std::string_view call,
                                        std::span<const OutputTensor> tensors);

// The data; InvalidArgument where its size is not `bytes`.
std::span<const std::byte> output_data(std::string_view call, const OutputTensor& tensor,
                                       std::uint64_t bytes, std::vector<std::byte>& scratch);

}  // namespace touchstone::inline v0::io
