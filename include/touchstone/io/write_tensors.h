// Writing safetensors and GGUF. The file appears under its name when it is complete, or not
// at all. TensorFile and the PyPI packages `safetensors` and `gguf` read the result; the same input
// gives the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "touchstone/core/export.h"
#include "touchstone/io/tensor_file.h"

namespace touchstone::inline v0::io {

struct OutputTensor {
  std::string name;
  std::string type;                 // as TensorInfo::type
  std::vector<std::int64_t> shape;  // outermost dimension first
  // Returns the bytes. Called once per file, in the order of the tensors, so that a model need not
  // be in memory as a whole. Bytes that exist nowhere else are written to `scratch`.
  std::function<std::span<const std::byte>(std::vector<std::byte>& scratch)> data;
};

// Called after every tensor with the bytes written so far and those of the whole.
using WriteProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

struct SafetensorsOptions {
  std::map<std::string, std::string> metadata = {};  // __metadata__
  // 0: one file. Else `path` is the index, NAME.safetensors.index.json, and the files beside it are
  // NAME-00001-of-0000N.safetensors, each of at most this many bytes of tensors, or of one tensor.
  std::uint64_t max_shard_bytes = 0;
  WriteProgress progress = {};
  // Survives a loss of power: the bytes are flushed to the disk before the file is renamed.
  bool durable = false;
};
// InvalidArgument for a type that safetensors does not have, a name that occurs twice or is not
// UTF-8, data of another size than type and shape imply. Tensors lie in the order given.
TOUCHSTONE_API void write_safetensors(const std::filesystem::path& path,
                                      std::span<const OutputTensor> tensors,
                                      const SafetensorsOptions& options = {});

// Keys and values of a GGUF file, in the order in which they were set.
class TOUCHSTONE_API GgufMetadata {
 public:
  void set(std::string key, bool value);
  void set(std::string key, std::uint32_t value);
  void set(std::string key, std::int32_t value);
  void set(std::string key, std::uint64_t value);
  void set(std::string key, float value);
  void set(std::string key, std::string_view value);
  void set(std::string key, const char* value) { set(std::move(key), std::string_view(value)); }
  void set(std::string key, std::span<const std::string> values);
  void set(std::string key, std::span<const std::string_view> values);
  void set(std::string key, std::span<const float> values);
  void set(std::string key, std::span<const std::int32_t> values);
  void set(const MetadataValue& value);  // as another file has it

  struct Entry {
    std::string key;
    std::string bytes;  // type and value as in the file
  };
  void set(Entry entry) { entries_.push_back(std::move(entry)); }
  std::span<const Entry> entries() const { return entries_; }

 private:
  void add(std::string key, MetadataValue::Type type, const void* data, std::size_t bytes);
  void add_array(std::string key, MetadataValue::Type type, std::uint64_t count, std::string bytes);

  std::vector<Entry> entries_;
};

struct GgufOptions {
  std::uint32_t alignment = 32;  // a power of two; written as general.alignment where it is not 32
  WriteProgress progress = {};
};
// InvalidArgument as for safetensors, and for a key that is set twice. Rank at most 4.
TOUCHSTONE_API void write_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                               std::span<const OutputTensor> tensors,
                               const GgufOptions& options = {});

}  // namespace touchstone::inline v0::io
