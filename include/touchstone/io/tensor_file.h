// Files of tensors: safetensors (one file, or several with an index) and GGUF, for reading. Files
// are mapped: opening reads headers only, and a tensor's bytes come from the disk when they are
// touched.
//
// Files may be hostile. Every size, count, offset and type is checked before it is used, and all
// sums and products are in 64 bits: CorruptData names the file, the place and the problem,
// Unsupported a valid type that is not known here, FileError what the system refuses. Opening
// allocates at most kTensorFileMemoryFactor bytes per byte of header and metadata.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "touchstone/core/export.h"
#include "touchstone/core/weight_format.h"

namespace touchstone::inline v0::io {

inline constexpr std::size_t kTensorFileMemoryFactor = 64;

enum class Container : std::uint8_t { safetensors, gguf };
TOUCHSTONE_API std::string_view name_of(Container container);  // "safetensors", "gguf"

struct TOUCHSTONE_API TensorInfo {
  std::string name;
  std::string type;  // "bf16", "q4_k", "i64", "bool"
  const WeightFormat* format =
      nullptr;                      // null for integers, booleans and other types of no weights
  std::vector<std::int64_t> shape;  // outermost dimension first, in both containers
  std::span<const std::byte> data;  // in the mapped file; no alignment is promised
  std::int32_t file = 0;            // index in TensorFile::files()

  std::int64_t elements() const;
  // Of the bytes, which it reads all: what `touchstone inspect --checksums` shows. Notices damage,
  // not forgery.
  std::uint64_t checksum() const;
};

// A value of metadata, in the mapped file. Accessors of another type throw CorruptData with the
// key.
class TOUCHSTONE_API MetadataValue {
 public:
  // Numbered as GGUF numbers them.
  enum class Type : std::uint8_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    string,
    array,
    u64,
    i64,
    f64
  };
  MetadataValue(std::string key, Type type, Type element_type, std::uint64_t size,
                std::span<const std::byte> data)
      : key_(std::move(key)), type_(type), element_type_(element_type), size_(size), data_(data) {}

  const std::string& key() const { return key_; }
  Type type() const { return type_; }
  bool is_array() const { return type_ == Type::array; }
  Type element_type() const { return element_type_; }  // of arrays; else type()
  std::uint64_t size() const { return size_; }         // elements of arrays; else 1
  // Little-endian numbers back to back; the bytes of a string; in an array of strings a 64-bit
  // length before each.
  std::span<const std::byte> data() const { return data_; }

  bool as_bool() const;
  std::int64_t as_int() const;         // any integer type; refused above 2^63 - 1
  double as_float() const;             // any number
  std::string_view as_string() const;  // the bytes of the file: UTF-8 is not promised

  std::vector<std::string_view> strings() const;  // of an array of strings
  std::vector<std::int64_t> integers() const;     // of an array of integers or booleans
  std::vector<float> floats() const;              // of an array of f32 or f64

 private:
  [[noreturn]] void expected(std::string_view what) const;

  std::string key_;
  Type type_;
  Type element_type_;
  std::uint64_t size_;
  std::span<const std::byte> data_;
};
// "u32", "string", "array", ...
TOUCHSTONE_API std::string_view name_of(MetadataValue::Type type);

class TOUCHSTONE_API TensorFile {
 public:
  // A safetensors or GGUF file, told apart by content; the first file of a GGUF model in several
  // (NAME-00001-of-00003.gguf), by which the others are found; an index (*.safetensors.index.json);
  // or a folder with an index, with one file *.safetensors, or with one model *.gguf, looked for in
  // this order.
  static TensorFile open(const std::filesystem::path& path);
  // The same from bytes that outlive the result; `name` stands in messages.
  static TensorFile from_bytes(std::string name, std::span<const std::byte> bytes);

  TensorFile(TensorFile&&) noexcept;
  TensorFile& operator=(TensorFile&&) noexcept;
  ~TensorFile();

  Container container() const;
  // One for a single file, the shards in order of their names for an index, the parts of GGUF.
  std::span<const std::filesystem::path> files() const;
  std::uint64_t bytes() const;  // of all files together

  // In the order of the files' data; of several files one after the other.
  std::span<const TensorInfo> tensors() const;
  const TensorInfo* find(std::string_view name) const;    // null where there is none
  const TensorInfo& tensor(std::string_view name) const;  // CorruptData names the missing one

  // GGUF: keys and values. safetensors: the strings of __metadata__ of the first file.
  std::span<const MetadataValue> metadata() const;
  const MetadataValue* find_metadata(std::string_view key) const;

 private:
  struct State;
  explicit TensorFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace touchstone::inline v0::io
