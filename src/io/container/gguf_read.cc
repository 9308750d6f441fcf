// GGUF: magic, version, counts, metadata, tensor descriptions, padding, data.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "io/byte_reader.h"
#include "io/container/gguf_types.h"
#include "io/container/storage_types.h"
#include "io/container/tensor_file_state.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

using Type = MetadataValue::Type;

class GgufReader {
 public:
  GgufReader(const std::string& name, std::span<const std::byte> bytes)
      : name_(name), bytes_(bytes), reader_(name, bytes) {}

  ContainerContent run() {
    read_version();
    const auto tensors = reader_.read<std::uint64_t>("tensor count");
    const auto entries = reader_.read<std::uint64_t>("metadata count");
    // The least that a tensor and an entry take: counts beyond that are refused before the loops.
    if (tensors > reader_.left() / 24) fail_count("tensors", tensors);
    if (entries > reader_.left() / 13) fail_count("metadata entries", entries);
    for (std::uint64_t i = 0; i < entries; ++i) read_entry();
    read_alignment();
    for (std::uint64_t i = 0; i < tensors; ++i) read_tensor();
    attach_data();
    return std::move(content_);
  }

 private:
  [[noreturn]] void fail_count(const char* what, std::uint64_t count) const {
    reader_.fail(fmt::format("{} {} do not fit in {} bytes", count, what, reader_.left()));
  }
  [[noreturn]] void fail_tensor(const TensorInfo& tensor, const std::string& problem) const {
    throw CorruptData(fmt::format("{}: tensor '{}': {}", name_, printable(tensor.name), problem));
  }

  void read_version() {
    if (reader_.read<std::uint32_t>("magic") != kGgufMagic) reader_.fail("not a GGUF file");
    const auto version = reader_.read<std::uint32_t>("version");
    // Version 3 defined big-endian files; the layout of 2 is the same.
    if (version == 2 || version == 3) return;
    if ((version & 0xffff) == 0 && version != 0) {
      throw Unsupported(fmt::format("{}: a big-endian GGUF file", name_));
    }
    throw Unsupported(fmt::format("{}: GGUF version {}, expected 2 or 3", name_, version));
  }

  std::string read_name(const char* what) {
    const auto length = reader_.read<std::uint64_t>(what);
    if (length == 0 || length > kGgufMaxName) {
      reader_.fail(fmt::format("{}: {} bytes, expected 1 to {}", what, length, kGgufMaxName));
    }
    return std::string(reader_.take_text(length, what));
  }

  Type read_type(const std::string& key) {
    const auto number = reader_.read<std::uint32_t>("value type");
    if (number > static_cast<std::uint32_t>(Type::f64)) {
      reader_.fail(fmt::format("key '{}': unknown value type {}", printable(key), number));
    }
    return static_cast<Type>(number);
  }

  void check_booleans(const std::string& key, std::span<const std::byte> values) const {
    for (const std::byte value : values) {
      if (value > std::byte{1}) {
        reader_.fail(
            fmt::format("key '{}': a boolean of {}", printable(key), static_cast<int>(value)));
      }
    }
  }

  void read_entry() {
    std::string key = read_name("metadata key");
    const Type type = read_type(key);
    if (type == Type::string) {
      const auto length = reader_.read<std::uint64_t>("string length");
      const auto text = reader_.take(length, "string");
      content_.metadata.emplace_back(std::move(key), type, type, 1, text);
      return;
    }
    if (type == Type::array) {
      read_array(std::move(key));
      return;
    }
    const auto data = reader_.take(metadata_value_bytes(type), "value");
    if (type == Type::boolean) check_booleans(key, data);
    content_.metadata.emplace_back(std::move(key), type, type, 1, data);
  }

  void read_array(std::string key) {
    const Type element = read_type(key);
    const auto count = reader_.read<std::uint64_t>("array length");
    if (element == Type::array) {
      throw Unsupported(fmt::format("{}: key '{}': an array of arrays", name_, printable(key)));
    }
    const std::uint64_t begin = reader_.position();
    const std::uint64_t least = element == Type::string ? 8 : metadata_value_bytes(element);
    if (count > reader_.left() / least) {
      reader_.fail(fmt::format("key '{}': {} elements of {} do not fit in {} bytes", printable(key),
                               count, name_of(element), reader_.left()));
    }
    if (element == Type::string) {
      for (std::uint64_t i = 0; i < count; ++i) {
        reader_.take(reader_.read<std::uint64_t>("string length"), "string");
      }
    } else {
      reader_.take(count * least, "array");
    }
    const auto data = bytes_.subspan(begin, reader_.position() - begin);
    if (element == Type::boolean) check_booleans(key, data);
    content_.metadata.emplace_back(std::move(key), Type::array, element, count, data);
  }

  void read_alignment() {
    for (const MetadataValue& value : content_.metadata) {
      if (value.key() != "general.alignment") continue;
      const std::int64_t alignment = value.type() == Type::u32 ? value.as_int() : 0;
      if (alignment < 1 || alignment > kGgufMaxAlignment ||
          !std::has_single_bit(static_cast<std::uint64_t>(alignment))) {
        reader_.fail(fmt::format("general.alignment: expected a power of two up to {} as u32",
                                 kGgufMaxAlignment));
      }
      alignment_ = static_cast<std::uint64_t>(alignment);
    }
  }

  const StorageType& storage_type(const TensorInfo& tensor, std::uint32_t number) const {
    if (const StorageType* const type = storage_type_of_gguf(number)) return *type;
    const std::string_view name = unread_gguf_type(number);
    throw Unsupported(fmt::format("{}: tensor '{}': type {} ({}) is not supported", name_,
                                  printable(tensor.name), number, name.empty() ? "unknown" : name));
  }

  void read_tensor() {
    TensorInfo tensor;
    tensor.name = read_name("tensor name");
    const auto rank = reader_.read<std::uint32_t>("tensor rank");
    if (rank > kGgufMaxRank)
      fail_tensor(tensor, fmt::format("rank {}, at most {}", rank, kGgufMaxRank));
    for (std::uint32_t i = 0; i < rank; ++i) {
      const auto extent = reader_.read<std::uint64_t>("tensor shape");
      if (extent > static_cast<std::uint64_t>(INT64_MAX)) {
        fail_tensor(tensor, fmt::format("an extent of {}", extent));
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(extent));
    }
    const auto number = reader_.read<std::uint32_t>("tensor type");
    const StorageType& type = storage_type(tensor, number);
    tensor.type = type.name;
    tensor.format = type.format;
    const auto offset = reader_.read<std::uint64_t>("tensor offset");
    if (offset % alignment_ != 0) {
      fail_tensor(tensor, fmt::format("offset {} is no multiple of {}", offset, alignment_));
    }
    begins_.push_back(offset);
    sizes_.push_back(count_bytes(name_, tensor.name, type, tensor.shape));
    content_.tensors.push_back(std::move(tensor));
  }

  std::uint64_t aligned(std::uint64_t position) const {
    return (position + alignment_ - 1) / alignment_ * alignment_;
  }

  // Whether a tensor of `bytes` fills the room up to the next tensor, or to the end of the data.
  bool fills(std::uint64_t bytes, std::uint64_t room, bool last) const {
    return aligned(bytes) == room || (last && bytes == room);
  }

  // Tensors of type 42 have blocks of 64 values or, in some files, of 128: our key says which, else the
  // space between tensors. All of a file are of one kind; a file whose sizes leave it open is
  // refused.
  void resolve_q2_0(const std::vector<std::uint32_t>& order, std::uint64_t data_bytes) {
    const StorageType& wide = *storage_type_named("pq2_0");
    std::int64_t found = stated_q2_0_block();
    std::vector<std::uint32_t> open;
    for (std::size_t k = 0; k < order.size(); ++k) {
      const std::uint32_t i = order[k];
      const TensorInfo& tensor = content_.tensors[i];
      if (tensor.type != "q2_0" || tensor.elements() == 0) continue;
      open.push_back(i);
      const bool last = k + 1 == order.size();
      const std::uint64_t end = last ? std::max(data_bytes, begins_[i]) : begins_[order[k + 1]];
      const bool may_be_wide = tensor.shape.back() % wide.block_elements == 0;
      const std::uint64_t wide_bytes =
          may_be_wide ? count_bytes(name_, tensor.name, wide, tensor.shape) : 0;
      const bool is_narrow = fills(sizes_[i], end - begins_[i], last);
      const bool is_wide = may_be_wide && fills(wide_bytes, end - begins_[i], last);
      if (is_narrow == is_wide) continue;
      const std::int64_t block = is_wide ? wide.block_elements : 64;
      if (found != 0 && found != block) {
        fail_tensor(tensor,
                    fmt::format("type 42 with blocks of {} values, {} elsewhere", block, found));
      }
      found = block;
    }
    if (open.empty()) return;
    if (found == 0) {
      fail_tensor(content_.tensors[open.front()],
                  "type 42 may have blocks of 64 or of 128 values, and no size tells which");
    }
    for (const std::uint32_t i : open) {
      if (found != wide.block_elements) break;
      TensorInfo& tensor = content_.tensors[i];
      tensor.type = wide.name;
      tensor.format = wide.format;
      sizes_[i] = count_bytes(name_, tensor.name, wide, tensor.shape);
    }
  }

  std::int64_t stated_q2_0_block() const {
    for (const MetadataValue& value : content_.metadata) {
      if (value.key() != kGgufQ2_0Block) continue;
      const std::int64_t block = value.type() == Type::u32 ? value.as_int() : 0;
      if (block != 64 && block != 128) {
        reader_.fail(fmt::format("{}: expected 64 or 128 as u32", kGgufQ2_0Block));
      }
      return block;
    }
    return 0;
  }

  // The data begins at the next multiple of the alignment, which a file without tensors need not reach.
  void attach_data() {
    const std::uint64_t end = reader_.position();
    const std::uint64_t begin = aligned(end);
    const auto data = begin <= bytes_.size() ? bytes_.subspan(begin) : std::span<const std::byte>();
    std::vector<std::uint32_t> order(begins_.size());
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::pair(begins_[a], sizes_[a]) < std::pair(begins_[b], sizes_[b]);
    });
    resolve_q2_0(order, data.size());
    std::vector<TensorInfo> sorted;
    sorted.reserve(order.size());
    std::uint64_t covered = 0;
    for (const std::uint32_t i : order) {
      TensorInfo& tensor = content_.tensors[i];
      if (begins_[i] > data.size() || sizes_[i] > data.size() - begins_[i]) {
        fail_tensor(tensor, fmt::format("{} bytes at {} of {} bytes of data", sizes_[i], begins_[i],
                                        data.size()));
      }
      if (begins_[i] < covered) {
        fail_tensor(tensor, fmt::format("begins at {}, where the tensor before it ends at {}",
                                        begins_[i], covered));
      }
      covered = begins_[i] + sizes_[i];
      tensor.data = data.subspan(begins_[i], sizes_[i]);
      sorted.push_back(std::move(tensor));
    }
    content_.tensors = std::move(sorted);
  }

  const std::string& name_;
  std::span<const std::byte> bytes_;
  ByteReader reader_;
  ContainerContent content_;
  std::uint64_t alignment_ = kGgufDefaultAlignment;
  std::vector<std::uint64_t> begins_;
  std::vector<std::uint64_t> sizes_;
};

}  // namespace

bool is_gguf(std::span<const std::byte> bytes) {
  std::uint32_t magic = 0;
  if (bytes.size() < sizeof magic) return false;
  std::memcpy(&magic, bytes.data(), sizeof magic);
  return magic == kGgufMagic;
}

ContainerContent read_gguf(const std::string& name, std::span<const std::byte> bytes) {
  return GgufReader(name, bytes).run();
}

}  // namespace touchstone::inline v0::io
