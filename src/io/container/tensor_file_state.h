// The state of a TensorFile, and the content of one file as the readers of both containers return
// it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/container/storage_types.h"
#include "io/mapped_file.h"
#include "touchstone/io/tensor_file.h"

namespace touchstone::inline v0::io {

// Of the file that names the files of a model.
inline constexpr std::string_view kIndexEnding = ".safetensors.index.json";

struct TensorFile::State {
  Container container = Container::safetensors;
  std::vector<MappedFile> mappings;
  std::vector<std::filesystem::path> files;
  std::uint64_t bytes = 0;
  std::vector<TensorInfo> tensors;
  std::vector<MetadataValue> metadata;
  std::vector<std::unique_ptr<std::string>> texts;
  std::vector<std::uint32_t> tensors_by_name;  // indices, sorted by name
  std::vector<std::uint32_t> metadata_by_key;
};

// The content of one file.
struct ContainerContent {
  std::vector<TensorInfo> tensors;
  std::vector<MetadataValue> metadata;
  std::vector<std::unique_ptr<std::string>> texts;  // strings that are not in the file as they are
};

ContainerContent read_safetensors(const std::string& name, std::span<const std::byte> bytes);
ContainerContent read_gguf(const std::string& name, std::span<const std::byte> bytes);
bool is_gguf(std::span<const std::byte> bytes);

// The shards that an index names: file name -> tensors in it.
std::map<std::string, std::vector<std::string>> read_safetensors_index(const std::string& name,
                                                                       std::string_view text);

// A product of extents, none negative; CorruptData naming the tensor where 63 bits do not hold it.
std::uint64_t count_elements(const std::string& file, const std::string& tensor,
                             std::span<const std::int64_t> shape);
// Bytes of a tensor of that type and shape; the innermost extent must be whole blocks.
std::uint64_t count_bytes(const std::string& file, const std::string& tensor,
                          const StorageType& type, std::span<const std::int64_t> shape);

// `text` with control characters and what is not ASCII escaped, cut at 80 bytes: names from files in
// messages of one line.
std::string printable(std::string_view text);

}  // namespace touchstone::inline v0::io
