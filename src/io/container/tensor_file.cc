#include "touchstone/io/tensor_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "core/checksum.h"
#include "io/byte_reader.h"
#include "io/container/gguf_split.h"
#include "io/container/gguf_types.h"
#include "io/container/tensor_file_state.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

namespace fs = std::filesystem;
using Type = MetadataValue::Type;

constexpr std::size_t kMaxIndexBytes = 100'000'000;

// Indices of `items` sorted by name; CorruptData for a name that occurs twice.
template <class Items, class Name>
std::vector<std::uint32_t> sorted_by_name(const std::string& file, const Items& items,
                                          const char* what, Name name) {
  std::vector<std::uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return name(items[a]) < name(items[b]); });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (name(items[order[i]]) == name(items[order[i - 1]])) {
      throw CorruptData(
          fmt::format("{}: {} '{}' twice", file, what, printable(name(items[order[i]]))));
    }
  }
  return order;
}

template <class Items, class Name>
auto find_by_name(const Items& items, const std::vector<std::uint32_t>& order,
                  std::string_view wanted, Name name) -> decltype(&items[0]) {
  const auto at =
      std::lower_bound(order.begin(), order.end(), wanted,
                       [&](std::uint32_t i, std::string_view key) { return name(items[i]) < key; });
  return at != order.end() && name(items[*at]) == wanted ? &items[*at] : nullptr;
}

std::string_view tensor_name(const TensorInfo& tensor) { return tensor.name; }
std::string_view metadata_key(const MetadataValue& value) { return value.key(); }

bool ends_with(const fs::path& path, std::string_view ending) {
  return path.filename().string().ends_with(ending);
}

// What a folder is opened by.
fs::path choose_in_folder(const fs::path& folder) {
  std::vector<fs::path> indices, safetensors, gguf;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const fs::path& path = entry.path();
    if (ends_with(path, kIndexEnding)) indices.push_back(path);
    if (ends_with(path, ".safetensors")) safetensors.push_back(path);
    if (ends_with(path, ".gguf") && !is_further_gguf_part(path)) gguf.push_back(path);
  }
  if (error) throw FileError(folder.string() + ": " + error.message());
  for (const auto* const found : {&indices, &safetensors, &gguf}) {
    if (found->size() == 1) return found->front();
    // Beside what others keep there, such as the weights in another layout.
    for (const fs::path& path : *found) {
      if (path.filename() == "model.safetensors" ||
          path.filename() == "model.safetensors.index.json") {
        return path;
      }
    }
    if (found->size() > 1) {
      throw CorruptData(fmt::format("{}: {} files like {}; name one of them", folder.string(),
                                    found->size(), found->front().filename().string()));
    }
  }
  throw CorruptData(folder.string() + ": no *.safetensors and no *.gguf in this folder");
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 80)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return text.size() > 80 ? out + "..." : out;
}

std::uint64_t count_elements(const std::string& file, const std::string& tensor,
                             std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  // An extent of zero does not excuse the others.
  std::int64_t nonzero = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0 ||
        __builtin_mul_overflow(nonzero, std::max<std::int64_t>(extent, 1), &nonzero)) {
      throw CorruptData(fmt::format("{}: tensor '{}': its shape does not fit in 64 bits", file,
                                    printable(tensor)));
    }
    count *= extent;
  }
  return static_cast<std::uint64_t>(count);
}

std::uint64_t count_bytes(const std::string& file, const std::string& tensor,
                          const StorageType& type, std::span<const std::int64_t> shape) {
  const std::uint64_t elements = count_elements(file, tensor, shape);
  const auto block = static_cast<std::uint64_t>(type.block_elements);
  const auto row = shape.empty() ? 1 : static_cast<std::uint64_t>(shape.back());
  if (row % block != 0) {
    throw CorruptData(fmt::format("{}: tensor '{}': rows of {} are no whole blocks of {} ({})",
                                  file, printable(tensor), row, block, type.name));
  }
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements / block, static_cast<std::uint64_t>(type.block_bytes),
                             &bytes) ||
      bytes > static_cast<std::uint64_t>(INT64_MAX)) {
    throw CorruptData(
        fmt::format("{}: tensor '{}': its size does not fit in 64 bits", file, printable(tensor)));
  }
  return bytes;
}

std::string_view name_of(Container container) {
  return container == Container::gguf ? "gguf" : "safetensors";
}

std::string_view name_of(Type type) {
  constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<std::size_t>(type)];
}

std::int64_t TensorInfo::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

std::uint64_t TensorInfo::checksum() const { return touchstone::checksum(data); }

// ---- metadata -----------------------------------------------------------------------------------

namespace {

template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

bool is_integer(Type type) {
  return type != Type::f32 && type != Type::f64 && type != Type::string && type != Type::array &&
         type != Type::boolean;
}

}  // namespace

void MetadataValue::expected(std::string_view what) const {
  throw CorruptData(fmt::format("metadata: {}: expected {}, got {}{}", printable(key_), what,
                                is_array() ? "an array of " : "", name_of(element_type_)));
}

bool MetadataValue::as_bool() const {
  if (type_ != Type::boolean) expected("a boolean");
  return data_[0] != std::byte{0};
}

namespace {

// Whether the value is in range; u64 is the only type that can be out of it.
bool load_integer(Type type, const std::byte* p, std::int64_t& value) {
  switch (type) {
    case Type::u8:
    case Type::boolean:
      value = load<std::uint8_t>(p);
      return true;
    case Type::i8:
      value = load<std::int8_t>(p);
      return true;
    case Type::u16:
      value = load<std::uint16_t>(p);
      return true;
    case Type::i16:
      value = load<std::int16_t>(p);
      return true;
    case Type::u32:
      value = load<std::uint32_t>(p);
      return true;
    case Type::i32:
      value = load<std::int32_t>(p);
      return true;
    default:
      value = load<std::int64_t>(p);
      return type == Type::i64 || value >= 0;
  }
}

}  // namespace

std::int64_t MetadataValue::as_int() const {
  std::int64_t value = 0;
  if (!is_integer(type_) || !load_integer(type_, data_.data(), value)) {
    expected("an integer below 2^63");
  }
  return value;
}

double MetadataValue::as_float() const {
  if (type_ == Type::f32) return static_cast<double>(load<float>(data_.data()));
  if (type_ == Type::f64) return load<double>(data_.data());
  if (!is_integer(type_)) expected("a number");
  return static_cast<double>(as_int());
}

std::string_view MetadataValue::as_string() const {
  if (type_ != Type::string) expected("a string");
  return {reinterpret_cast<const char*>(data_.data()), data_.size()};
}

std::vector<std::string_view> MetadataValue::strings() const {
  if (!is_array() || element_type_ != Type::string) expected("an array of strings");
  std::vector<std::string_view> strings;
  strings.reserve(size_);  // the reader has checked that each has a length in the file
  ByteReader reader(key_, data_);
  for (std::uint64_t i = 0; i < size_; ++i) {
    strings.push_back(reader.take_text(reader.read<std::uint64_t>("string length"), "string"));
  }
  return strings;
}

std::vector<std::int64_t> MetadataValue::integers() const {
  if (!is_array() || !(is_integer(element_type_) || element_type_ == Type::boolean)) {
    expected("an array of integers");
  }
  const std::uint64_t step = metadata_value_bytes(element_type_);
  std::vector<std::int64_t> values(size_);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!load_integer(element_type_, data_.data() + i * step, values[i])) {
      expected("integers below 2^63");
    }
  }
  return values;
}

std::vector<float> MetadataValue::floats() const {
  if (!is_array() || (element_type_ != Type::f32 && element_type_ != Type::f64)) {
    expected("an array of f32 or f64");
  }
  std::vector<float> values(size_);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = element_type_ == Type::f32 ? load<float>(data_.data() + 4 * i)
                                           : static_cast<float>(load<double>(data_.data() + 8 * i));
  }
  return values;
}

// ---- files --------------------------------------------------------------------------------------

TensorFile::TensorFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
TensorFile::TensorFile(TensorFile&&) noexcept = default;
TensorFile& TensorFile::operator=(TensorFile&&) noexcept = default;
TensorFile::~TensorFile() = default;

namespace {

void sort_names(const std::string& name, std::vector<TensorInfo>& tensors,
                std::vector<MetadataValue>& metadata, std::vector<std::uint32_t>& by_name,
                std::vector<std::uint32_t>& by_key) {
  by_name = sorted_by_name(name, tensors, "tensor", tensor_name);
  by_key = sorted_by_name(name, metadata, "metadata key", metadata_key);
}

// The tensors of one more file. State is TensorFile::State, which is private.
template <class State>
void append_file(State& state, const fs::path& path, MappedFile mapping,
                 std::vector<TensorInfo>& tensors) {
  for (TensorInfo& tensor : tensors) {
    tensor.file = static_cast<std::int32_t>(state.files.size());
    state.tensors.push_back(std::move(tensor));
  }
  state.bytes += mapping.bytes().size();
  state.files.push_back(path);
  state.mappings.push_back(std::move(mapping));
}

// The other files of a GGUF model that is split; what the first one holds is in `state`.
template <class State>
void add_gguf_parts(const fs::path& first, State& state) {
  const std::vector<fs::path> files = further_gguf_parts(first, state.metadata);
  if (files.empty()) return;
  for (const fs::path& file : files) {
    MappedFile mapping(file);
    if (!is_gguf(mapping.bytes())) throw CorruptData(file.string() + ": not a GGUF file");
    ContainerContent content = read_gguf(file.string(), mapping.bytes());
    check_gguf_part(file.string(), content.metadata, std::ssize(state.files),
                    std::ssize(files) + 1);
    append_file(state, file, std::move(mapping), content.tensors);
  }
  check_gguf_tensors(first.string(), state.metadata, state.tensors.size());
  sort_names(first.string(), state.tensors, state.metadata, state.tensors_by_name,
             state.metadata_by_key);
}

// The shard must hold just what the index says.
void check_shard(const std::string& file, const std::vector<TensorInfo>& tensors,
                 const std::vector<std::string>& listed) {
  std::set<std::string_view> names;
  for (const TensorInfo& tensor : tensors) names.insert(tensor.name);
  for (const std::string& name : listed) {
    if (names.erase(name) == 0) {
      throw CorruptData(
          fmt::format("{}: tensor '{}' of the index is not there", file, printable(name)));
    }
  }
  if (!names.empty()) {
    throw CorruptData(
        fmt::format("{}: tensor '{}' is not in the index", file, printable(*names.begin())));
  }
}

}  // namespace

TensorFile TensorFile::from_bytes(std::string name, std::span<const std::byte> bytes) {
  auto state = std::make_unique<State>();
  state->container = is_gguf(bytes) ? Container::gguf : Container::safetensors;
  state->files = {name};
  state->bytes = bytes.size();
  ContainerContent content =
      state->container == Container::gguf ? read_gguf(name, bytes) : read_safetensors(name, bytes);
  state->tensors = std::move(content.tensors);
  state->metadata = std::move(content.metadata);
  state->texts = std::move(content.texts);
  sort_names(name, state->tensors, state->metadata, state->tensors_by_name, state->metadata_by_key);
  return TensorFile(std::move(state));
}

TensorFile TensorFile::open(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return open(choose_in_folder(path));
  if (!ends_with(path, kIndexEnding)) {
    MappedFile mapping(path);
    TensorFile file = from_bytes(path.string(), mapping.bytes());
    file.state_->mappings.push_back(std::move(mapping));
    if (file.container() == Container::gguf) add_gguf_parts(path, *file.state_);
    return file;
  }
  const auto shards = read_safetensors_index(path.string(), read_text_file(path, kMaxIndexBytes));
  auto state = std::make_unique<State>();
  for (const auto& [shard, listed] : shards) {
    const fs::path file = path.parent_path() / shard;
    MappedFile mapping(file);
    ContainerContent content = read_safetensors(file.string(), mapping.bytes());
    check_shard(file.string(), content.tensors, listed);
    if (state->files.empty()) {
      state->metadata = std::move(content.metadata);
      state->texts = std::move(content.texts);
    }
    append_file(*state, file, std::move(mapping), content.tensors);
  }
  sort_names(path.string(), state->tensors, state->metadata, state->tensors_by_name,
             state->metadata_by_key);
  return TensorFile(std::move(state));
}

Container TensorFile::container() const { return state_->container; }
std::span<const fs::path> TensorFile::files() const { return state_->files; }
std::uint64_t TensorFile::bytes() const { return state_->bytes; }
std::span<const TensorInfo> TensorFile::tensors() const { return state_->tensors; }
std::span<const MetadataValue> TensorFile::metadata() const { return state_->metadata; }

const TensorInfo* TensorFile::find(std::string_view name) const {
  return find_by_name(state_->tensors, state_->tensors_by_name, name, tensor_name);
}

const TensorInfo& TensorFile::tensor(std::string_view name) const {
  if (const TensorInfo* const found = find(name)) return *found;
  throw CorruptData(
      fmt::format("{}: no tensor '{}'", state_->files.front().string(), printable(name)));
}

const MetadataValue* TensorFile::find_metadata(std::string_view key) const {
  return find_by_name(state_->metadata, state_->metadata_by_key, key, metadata_key);
}

}  // namespace touchstone::inline v0::io
