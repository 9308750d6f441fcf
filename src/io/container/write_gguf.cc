#include "io/container/write_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>

#include "io/container/gguf_types.h"
#include "io/container/output_check.h"
#include "io/container/storage_types.h"
#include "io/mapped_file.h"
#include "touchstone/core/error.h"
#include "touchstone/io/write_tensors.h"

namespace touchstone::inline v0::io {
namespace {

using Type = MetadataValue::Type;

template <class T>
void append(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_text(std::string& out, std::string_view text) {
  append(out, static_cast<std::uint64_t>(text.size()));
  out += text;
}

template <class Strings>
std::string joined(const Strings& values) {
  std::string bytes;
  for (const auto& value : values) append_text(bytes, value);
  return bytes;
}

}  // namespace

void GgufMetadata::add(std::string key, Type type, const void* data, std::size_t bytes) {
  Entry entry{std::move(key), {}};
  append(entry.bytes, static_cast<std::uint32_t>(type));
  entry.bytes.append(static_cast<const char*>(data), bytes);
  entries_.push_back(std::move(entry));
}

void GgufMetadata::add_array(std::string key, Type type, std::uint64_t count, std::string bytes) {
  std::string value;
  append(value, static_cast<std::uint32_t>(type));
  append(value, count);
  value += bytes;
  add(std::move(key), Type::array, value.data(), value.size());
}

void GgufMetadata::set(std::string key, bool value) {
  const std::uint8_t byte = value ? 1 : 0;
  add(std::move(key), Type::boolean, &byte, 1);
}
void GgufMetadata::set(std::string key, std::uint32_t value) {
  add(std::move(key), Type::u32, &value, sizeof value);
}
void GgufMetadata::set(std::string key, std::int32_t value) {
  add(std::move(key), Type::i32, &value, sizeof value);
}
void GgufMetadata::set(std::string key, std::uint64_t value) {
  add(std::move(key), Type::u64, &value, sizeof value);
}
void GgufMetadata::set(std::string key, float value) {
  add(std::move(key), Type::f32, &value, sizeof value);
}
void GgufMetadata::set(std::string key, std::string_view value) {
  std::string bytes;
  append_text(bytes, value);
  add(std::move(key), Type::string, bytes.data(), bytes.size());
}
void GgufMetadata::set(std::string key, std::span<const std::string> values) {
  add_array(std::move(key), Type::string, values.size(), joined(values));
}
void GgufMetadata::set(std::string key, std::span<const std::string_view> values) {
  add_array(std::move(key), Type::string, values.size(), joined(values));
}
void GgufMetadata::set(std::string key, std::span<const float> values) {
  add_array(std::move(key), Type::f32, values.size(),
            {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}
void GgufMetadata::set(std::string key, std::span<const std::int32_t> values) {
  add_array(std::move(key), Type::i32, values.size(),
            {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}
void GgufMetadata::set(const MetadataValue& value) {
  const std::string_view bytes(reinterpret_cast<const char*>(value.data().data()),
                               value.data().size());
  if (value.type() == Type::string) {
    set(value.key(), bytes);
  } else if (value.is_array()) {
    add_array(value.key(), value.element_type(), value.size(), std::string(bytes));
  } else {
    add(value.key(), value.type(), bytes.data(), bytes.size());
  }
}

namespace {

std::uint64_t aligned(std::uint64_t position, std::uint64_t alignment) {
  return (position + alignment - 1) / alignment * alignment;
}

// Everything in front of the tensors' bytes, which have these sizes.
std::string gguf_header(const GgufMetadata& metadata, std::span<const OutputTensor> tensors,
                        std::span<const std::uint64_t> sizes, const GgufOptions& options) {
  if (!std::has_single_bit(options.alignment) || options.alignment > kGgufMaxAlignment) {
    throw InvalidArgument(
        fmt::format("write_gguf: alignment: expected a power of two up to {}, got {}",
                    kGgufMaxAlignment, options.alignment));
  }
  std::string header;
  append(header, kGgufMagic);
  append(header, kGgufVersion);
  append(header, static_cast<std::uint64_t>(tensors.size()));
  GgufMetadata all = metadata;
  const bool has_q2_0 = std::any_of(tensors.begin(), tensors.end(), [](const OutputTensor& tensor) {
    return tensor.type == "q2_0";
  });
  const bool is_set =
      std::any_of(all.entries().begin(), all.entries().end(),
                  [](const GgufMetadata::Entry& entry) { return entry.key == kGgufQ2_0Block; });
  if (has_q2_0 && !is_set) all.set(kGgufQ2_0Block, std::uint32_t{64});
  for (const GgufMetadata::Entry& entry : metadata.entries()) {
    if (entry.key != "general.alignment") continue;
    throw InvalidArgument("write_gguf: metadata key 'general.alignment': set it in the options");
  }
  if (options.alignment != kGgufDefaultAlignment) all.set("general.alignment", options.alignment);
  append(header, static_cast<std::uint64_t>(all.entries().size()));
  std::set<std::string_view> keys;
  for (const GgufMetadata::Entry& entry : all.entries()) {
    if (entry.key.empty() || entry.key.size() > kGgufMaxName || !keys.insert(entry.key).second) {
      throw InvalidArgument(fmt::format(
          "write_gguf: metadata key '{}' is empty, too long or set twice", printable(entry.key)));
    }
    append_text(header, entry.key);
    header += entry.bytes;
  }
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const OutputTensor& tensor = tensors[i];
    const StorageType* const type = storage_type_named(tensor.type);
    if (tensor.name.size() > kGgufMaxName) {
      throw InvalidArgument(fmt::format("write_gguf: tensor '{}': a name of {} bytes, at most {}",
                                        printable(tensor.name), tensor.name.size(), kGgufMaxName));
    }
    if (type->gguf < 0 || tensor.shape.size() > kGgufMaxRank) {
      throw InvalidArgument(fmt::format("write_gguf: tensor '{}': GGUF has no {} of rank {}",
                                        printable(tensor.name), tensor.type, tensor.shape.size()));
    }
    append_text(header, tensor.name);
    append(header, static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto extent = tensor.shape.rbegin(); extent != tensor.shape.rend(); ++extent) {
      append(header, static_cast<std::uint64_t>(*extent));
    }
    append(header, static_cast<std::uint32_t>(type->gguf));
    append(header, offset);
    offset = aligned(offset + sizes[i], options.alignment);
  }
  header.resize(aligned(header.size(), options.alignment), '\0');
  return header;
}

}  // namespace

std::string gguf_in_memory(const GgufMetadata& metadata, std::span<const OutputTensor> tensors) {
  const std::vector<std::uint64_t> sizes = output_sizes("write_gguf", tensors);
  std::string bytes = gguf_header(metadata, tensors, sizes, {});
  std::vector<std::byte> scratch;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto data = output_data("write_gguf", tensors[i], sizes[i], scratch);
    bytes.append(reinterpret_cast<const char*>(data.data()), data.size());
    bytes.resize(aligned(bytes.size(), kGgufDefaultAlignment), '\0');
  }
  return bytes;
}

void write_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                std::span<const OutputTensor> tensors, const GgufOptions& options) {
  const std::vector<std::uint64_t> sizes = output_sizes("write_gguf", tensors);
  const std::string header = gguf_header(metadata, tensors, sizes, options);
  std::uint64_t total = 0;
  for (const std::uint64_t size : sizes) total += aligned(size, options.alignment);
  OutputFile file(path);
  file.write(header);
  const std::uint64_t begin = file.position();
  std::vector<std::byte> scratch;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto data = output_data("write_gguf", tensors[i], sizes[i], scratch);
    file.write(data.data(), data.size());
    file.pad_to(aligned(file.position(), options.alignment));
    if (options.progress) options.progress(file.position() - begin, total);
  }
  file.commit();
}

}  // namespace touchstone::inline v0::io
