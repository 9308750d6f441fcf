#include "io/container/output_check.h"

#include <fmt/format.h>

#include <set>

#include "io/container/storage_types.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {

std::string_view safetensors_type(std::string_view type) {
  const StorageType* const found = storage_type_named(type);
  return found != nullptr ? found->safetensors : std::string_view();
}

std::vector<std::uint64_t> output_sizes(std::string_view call,
                                        std::span<const OutputTensor> tensors) {
  std::vector<std::uint64_t> sizes;
  std::set<std::string_view> names;
  for (const OutputTensor& tensor : tensors) {
    if (tensor.name.empty() || !names.insert(tensor.name).second) {
      throw InvalidArgument(fmt::format("{}: tensor name '{}' is empty or occurs twice", call,
                                        printable(tensor.name)));
    }
    const StorageType* const type = storage_type_named(tensor.type);
    if (type == nullptr) {
      throw InvalidArgument(fmt::format("{}: tensor '{}': unknown type {}", call,
                                        printable(tensor.name), tensor.type));
    }
    try {
      sizes.push_back(count_bytes(std::string(call), tensor.name, *type, tensor.shape));
    } catch (const CorruptData& error) {
      throw InvalidArgument(error.what());
    }
  }
  return sizes;
}

std::span<const std::byte> output_data(std::string_view call, const OutputTensor& tensor,
                                       std::uint64_t bytes, std::vector<std::byte>& scratch) {
  const std::span<const std::byte> data = tensor.data(scratch);
  if (data.size() != bytes) {
    throw InvalidArgument(fmt::format("{}: tensor '{}': expected {} bytes, got {}", call,
                                      printable(tensor.name), bytes, data.size()));
  }
  return data;
}

}  // namespace touchstone::inline v0::io
