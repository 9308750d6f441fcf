// safetensors: a 64-bit length, a JSON header of that length, the data. Every tensor gives dtype,
// shape and its range of the data; the ranges must cover the data without gap and overlap.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "io/byte_reader.h"
#include "io/container/tensor_file_state.h"
#include "io/json_document.h"
#include "touchstone/core/error.h"
#include "touchstone/core/tensor.h"

namespace touchstone::inline v0::io {
namespace {

// The limit of the reference reader.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr int kMaxHeaderDepth = 4;

struct Range {
  std::uint64_t begin;
  std::uint64_t end;
};

std::uint64_t offset_of(JsonValue value) {
  const std::int64_t offset = value.as_int();
  if (offset < 0) value.fail("expected an offset, got a negative number");
  return static_cast<std::uint64_t>(offset);
}

// One member of the header. The data itself is attached when all ranges are known to be right.
std::pair<TensorInfo, Range> read_entry(const std::string& file, JsonValue entry,
                                        std::uint64_t data_bytes) {
  for (const JsonValue member : entry) {
    if (member.key() != "dtype" && member.key() != "shape" && member.key() != "data_offsets") {
      member.fail("unknown key of a tensor");
    }
  }
  TensorInfo tensor;
  tensor.name = std::string(entry.key());
  const std::string_view dtype = entry.at("dtype").as_string();
  const StorageType* const type = storage_type_of_safetensors(dtype);
  if (type == nullptr) {
    throw Unsupported(fmt::format("{}: tensor '{}': dtype '{}' is not supported", file,
                                  printable(tensor.name), printable(dtype)));
  }
  tensor.type = type->name;
  tensor.format = type->format;
  const JsonValue shape = entry.at("shape");
  if (!shape.is_array()) shape.fail("expected an array");
  if (shape.size() > kMaxRank)
    shape.fail(fmt::format("rank {}, at most {}", shape.size(), kMaxRank));
  for (const JsonValue extent : shape) {
    tensor.shape.push_back(extent.as_int());
    if (tensor.shape.back() < 0) extent.fail("a negative extent");
  }
  const JsonValue offsets = entry.at("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2) offsets.fail("expected [begin, end]");
  const Range range{offset_of(*offsets.begin()), offset_of(*++offsets.begin())};
  if (range.begin > range.end || range.end > data_bytes) {
    offsets.fail(fmt::format("[{}, {}) is no range of {} bytes of data", range.begin, range.end,
                             data_bytes));
  }
  const std::uint64_t expected = count_bytes(file, tensor.name, *type, tensor.shape);
  if (range.end - range.begin != expected) {
    offsets.fail(fmt::format("{} bytes, but {} {} take {}", range.end - range.begin,
                             shape_string(tensor.shape), tensor.type, expected));
  }
  return {std::move(tensor), range};
}

MetadataValue read_metadata(JsonValue member, ContainerContent& content) {
  // Escapes are resolved, so that the text is not that of the file.
  content.texts.push_back(std::make_unique<std::string>(member.as_string()));
  return {std::string(member.key()), MetadataValue::Type::string, MetadataValue::Type::string, 1,
          std::as_bytes(std::span(*content.texts.back()))};
}

}  // namespace

ContainerContent read_safetensors(const std::string& name, std::span<const std::byte> bytes) {
  ByteReader reader(name, bytes);
  // The header is an object, so that its first byte is known. A text would have a length of 10^18.
  const bool has_object = bytes.size() > 8 && bytes[8] == std::byte{'{'};
  if (!bytes.empty() && !has_object) throw CorruptData(name + ": neither GGUF nor safetensors");
  const auto header_bytes = reader.read<std::uint64_t>("header length");
  if (header_bytes > kMaxHeaderBytes) {
    reader.fail(fmt::format("header length {}, at most {}", header_bytes, kMaxHeaderBytes));
  }
  const auto header = reader.take(header_bytes, "header");
  const auto data = bytes.subspan(reader.position());
  const JsonDocument document(name + ": header",
                              {reinterpret_cast<const char*>(header.data()), header.size()},
                              {.max_bytes = kMaxHeaderBytes, .max_depth = kMaxHeaderDepth});
  if (!document.root().is_object()) document.root().fail("expected an object");

  ContainerContent content;
  std::vector<Range> ranges;
  for (const JsonValue entry : document.root()) {
    if (entry.key() == "__metadata__") {
      if (!entry.is_object()) entry.fail("expected an object");
      for (const JsonValue member : entry)
        content.metadata.push_back(read_metadata(member, content));
      continue;
    }
    auto [tensor, range] = read_entry(name, entry, data.size());
    content.tensors.push_back(std::move(tensor));
    ranges.push_back(range);
  }

  std::vector<std::uint32_t> order(ranges.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(ranges[a].begin, ranges[a].end) < std::pair(ranges[b].begin, ranges[b].end);
  });
  std::vector<TensorInfo> sorted;
  sorted.reserve(order.size());
  std::uint64_t end = 0;
  for (const std::uint32_t i : order) {
    TensorInfo& tensor = content.tensors[i];
    if (ranges[i].begin != end) {
      throw CorruptData(
          fmt::format("{}: tensor '{}': begins at {} of the data, the one before ends "
                      "at {}",
                      name, printable(tensor.name), ranges[i].begin, end));
    }
    end = ranges[i].end;
    tensor.data = data.subspan(ranges[i].begin, ranges[i].end - ranges[i].begin);
    sorted.push_back(std::move(tensor));
  }
  if (end != data.size()) {
    throw CorruptData(
        fmt::format("{}: {} bytes of data, the tensors take {}", name, data.size(), end));
  }
  content.tensors = std::move(sorted);
  return content;
}

std::map<std::string, std::vector<std::string>> read_safetensors_index(const std::string& name,
                                                                       std::string_view text) {
  const JsonDocument document(name, text, {.max_bytes = kMaxHeaderBytes, .max_depth = 8});
  std::map<std::string, std::vector<std::string>> shards;
  const JsonValue map = document.root().at("weight_map");
  if (!map.is_object()) map.fail("expected an object");
  for (const JsonValue entry : map) {
    const std::string_view file = entry.as_string();
    // A name in the folder of the index and nothing else: no way out of it.
    if (file.empty() || file == "." || file == ".." || file.size() > 255 ||
        file.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos) {
      entry.fail(fmt::format("'{}' is no file name", printable(file)));
    }
    shards[std::string(file)].emplace_back(entry.key());
  }
  if (shards.empty()) map.fail("no tensors");
  return shards;
}

}  // namespace touchstone::inline v0::io
