#include <fmt/format.h>

#include "io/container/output_check.h"
#include "io/container/tensor_file_state.h"
#include "io/json_document.h"
#include "io/mapped_file.h"
#include "io/utf8.h"
#include "touchstone/core/error.h"
#include "touchstone/core/tensor.h"
#include "touchstone/io/write_tensors.h"

namespace touchstone::inline v0::io {
namespace {

namespace fs = std::filesystem;

std::string header_of(std::span<const OutputTensor> tensors, std::span<const std::uint64_t> sizes,
                      const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (header.back() != '{') header += ',';
      header += json_quote(key) + ':' + json_quote(value);
    }
    header += '}';
  }
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (header.back() != '{') header += ',';
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          json_quote(tensors[i].name), safetensors_type(tensors[i].type),
                          fmt::join(tensors[i].shape, ","), offset, offset + sizes[i]);
    offset += sizes[i];
  }
  header += '}';
  // Data begins at a multiple of 64: elements of any type are aligned, and so are vectors.
  while ((header.size() + 8) % 64 != 0) header += ' ';
  return header;
}

class Writer {
 public:
  Writer(std::span<const OutputTensor> tensors, const SafetensorsOptions& options)
      : tensors_(tensors), options_(options), sizes_(output_sizes("write_safetensors", tensors)) {
    for (const std::uint64_t size : sizes_) total_ += size;
  }

  std::span<const std::uint64_t> sizes() const { return sizes_; }
  std::uint64_t total() const { return total_; }

  void write(const fs::path& path, std::size_t begin, std::size_t end) {
    OutputFile file(path);
    const auto tensors = tensors_.subspan(begin, end - begin);
    const std::string header =
        header_of(tensors, std::span(sizes_).subspan(begin, end - begin), options_.metadata);
    const std::uint64_t length = header.size();
    file.write(&length, sizeof length);
    file.write(header);
    std::vector<std::byte> scratch;
    for (std::size_t i = begin; i < end; ++i) {
      const auto data = output_data("write_safetensors", tensors_[i], sizes_[i], scratch);
      file.write(data.data(), data.size());
      done_ += data.size();
      if (options_.progress) options_.progress(done_, total_);
    }
    file.commit(options_.durable);
  }

 private:
  std::span<const OutputTensor> tensors_;
  const SafetensorsOptions& options_;
  std::vector<std::uint64_t> sizes_;
  std::uint64_t total_ = 0;
  std::uint64_t done_ = 0;
};

}  // namespace

void write_safetensors(const fs::path& path, std::span<const OutputTensor> tensors,
                       const SafetensorsOptions& options) {
  for (const OutputTensor& tensor : tensors) {
    if (safetensors_type(tensor.type).empty()) {
      throw InvalidArgument(fmt::format("write_safetensors: tensor '{}': safetensors has no {}",
                                        printable(tensor.name), tensor.type));
    }
    if (tensor.shape.size() > static_cast<std::size_t>(kMaxRank)) {
      throw InvalidArgument(fmt::format("write_safetensors: tensor '{}': rank {}, at most {}",
                                        printable(tensor.name), tensor.shape.size(), kMaxRank));
    }
    if (!is_valid_utf8(tensor.name) || tensor.name == "__metadata__") {
      throw InvalidArgument(fmt::format(
          "write_safetensors: tensor '{}': not a name for safetensors", printable(tensor.name)));
    }
  }
  Writer writer(tensors, options);
  if (options.max_shard_bytes == 0) {
    writer.write(path, 0, tensors.size());
    return;
  }
  const std::string index_name = path.filename().string();
  if (!index_name.ends_with(kIndexEnding)) {
    throw InvalidArgument(
        fmt::format("write_safetensors: path: expected NAME{}, got {}", kIndexEnding, index_name));
  }
  std::vector<std::size_t> ends;
  std::uint64_t held = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t size = writer.sizes()[i];
    if (held != 0 && size > options.max_shard_bytes - std::min(held, options.max_shard_bytes)) {
      ends.push_back(i);
      held = 0;
    }
    held += size;
  }
  ends.push_back(tensors.size());
  const std::string stem = index_name.substr(0, index_name.size() - kIndexEnding.size());
  std::string map;
  std::size_t begin = 0;
  for (std::size_t shard = 0; shard < ends.size(); ++shard) {
    const std::string file =
        fmt::format("{}-{:05}-of-{:05}.safetensors", stem, shard + 1, ends.size());
    writer.write(path.parent_path() / file, begin, ends[shard]);
    for (; begin < ends[shard]; ++begin) {
      map += fmt::format("{}\n    {}: {}", map.empty() ? "" : ",", json_quote(tensors[begin].name),
                         json_quote(file));
    }
  }
  OutputFile index(path);
  index.write(
      fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{{}\n  }}\n}}\n",
                  writer.total(), map));
  index.commit(options.durable);
}

}  // namespace touchstone::inline v0::io
