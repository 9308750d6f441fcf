#include <algorithm>
#include <cstring>

#include "cache/snapshot/sequence_set.h"
#include "cache/snapshot/snapshot_format.h"
#include "core/checksum.h"
#include "core/copy.h"
#include "core/index.h"
#include "touchstone/cache/snapshot.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

// Small pieces are collected: a sink is called with much at a time.
constexpr std::size_t kWriteBufferBytes = std::size_t{256} << 10;

class Writer {
 public:
  explicit Writer(const ByteSink& sink) : sink_(sink) { buffer_.reserve(kWriteBufferBytes); }

  void write(std::span<const std::byte> bytes) {
    if (buffer_.size() + bytes.size() > kWriteBufferBytes) flush();
    if (bytes.size() >= kWriteBufferBytes) {
      sink_(bytes);
    } else {
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    }
  }
  void flush() {
    if (!buffer_.empty()) sink_(buffer_);
    buffer_.clear();
  }
  // A section and its checksum.
  template <class T>
  void write_section(std::span<const T> values) {
    const std::span<const std::byte> bytes = std::as_bytes(values);
    const std::uint64_t sum = checksum(bytes);
    write(bytes);
    write(std::as_bytes(std::span(&sum, 1)));
  }

 private:
  const ByteSink& sink_;
  std::vector<std::byte> buffer_;
};

SnapshotHeader header_of(const CacheState& cache, const SequenceSet& set) {
  SnapshotHeader header;
  header.groups = cache.groups();
  header.sequences = std::ssize(set.sequences);
  const auto add = [](std::int64_t a, std::int64_t b) { return checked_add(a, b, "save: bytes"); };
  for (const SequenceSet::Entry& entry : set.sequences) {
    header.sequence_bytes += 8;
    for (const SequenceSet::Table& table : entry.groups) {
      header.sequence_bytes += 8 + 4 * std::ssize(table.pages);
    }
  }
  header.file_bytes = add(std::ssize(std::as_bytes(std::span(&header, 1))) + 3 * 8,
                          header.sequence_bytes);  // and the checksums of three sections
  header.file_bytes = add(header.file_bytes, header.groups * kGroupRecordBytes);
  for (std::int64_t g = 0; g < cache.groups(); ++g) {
    const std::int64_t page_and_sum = cache.geometry(g).page_bytes + 8;
    const std::int64_t pages = set.page_counts[at(g)];
    header.file_bytes = add(header.file_bytes, checked_mul(pages, page_and_sum, "save: bytes"));
  }
  header.checksum =
      checksum(std::as_bytes(std::span(&header, 1)).first(offsetof(SnapshotHeader, checksum)));
  return header;
}

std::vector<std::int64_t> group_section(const Layout& layout, const SequenceSet& set) {
  std::vector<std::int64_t> section;
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const GroupDescription description = describe(layout.groups[g]);
    section.insert(section.end(), description.begin(), description.end());
    section.push_back(set.page_counts[g]);
  }
  return section;
}

std::vector<std::byte> sequence_section(const SequenceSet& set, std::int64_t bytes) {
  std::vector<std::byte> section;
  section.reserve(at(bytes));
  const auto append = [&](std::span<const std::byte> piece) {
    section.insert(section.end(), piece.begin(), piece.end());
  };
  for (const SequenceSet::Entry& entry : set.sequences) {
    append(std::as_bytes(std::span(&entry.length, 1)));
    for (const SequenceSet::Table& table : entry.groups) {
      append(std::as_bytes(std::span(&table.first_kept, 1)));
      append(std::as_bytes(std::span(table.pages)));
    }
  }
  return section;
}

// Copies the first `tokens` of a page; all other bytes of `to` become zero.
void copy_tokens(const LayerGroup& group, const PageGeometry& geometry, std::int64_t tokens,
                 const std::byte* from, std::span<std::byte> to) {
  std::fill(to.begin(), to.end(), std::byte{0});
  const auto copy = [&](std::int64_t offset, std::int64_t bytes_per_token) {
    std::memcpy(&to[at(offset)], from + offset, at(tokens * bytes_per_token));
  };
  for (std::int64_t layer = 0; layer < group.layers; ++layer) {
    for (std::int64_t head = 0; head < group.kv_heads; ++head) {
      const TokenOffsets offsets = token_offsets(group, geometry, layer, head, 0);
      copy(offsets.k_values, value_bytes(group.k, group.k_dim));
      if (is_quantized(group.k.dtype)) copy(offsets.k_scales, scale_bytes(group.k, group.k_dim));
      if (group.k_is_v) continue;
      copy(offsets.v_values, value_bytes(group.v, group.v_dim));
      if (is_quantized(group.v.dtype)) copy(offsets.v_scales, scale_bytes(group.v, group.v_dim));
    }
  }
}

// The pages of a group as they go into the file, in host memory one at a time.
class PageCopies {
 public:
  PageCopies(const CacheState& cache, std::int64_t g)
      : group_(cache.layout().groups[at(g)]),
        geometry_(cache.geometry(g)),
        memory_(static_cast<const std::byte*>(cache.memory(g).data())),
        location_{cache.device(), cache.stream()},
        padded_(geometry_.page_bytes != group_.page_tokens * token_bytes(group_)) {
    if (location_.device.is_cuda()) fetched_.resize(at(geometry_.page_bytes));
  }

  std::span<const std::byte> of(const PageOrigin& origin) {
    const std::int64_t bytes = geometry_.page_bytes;
    const std::byte* page = memory_ + origin.page.index * bytes;
    if (location_.device.is_cuda()) {
      queue_copy({}, fetched_.data(), location_, page, bytes);
      wait_for(location_);
      page = fetched_.data();
    }
    // Slots without tokens, and gaps between sections, may hold what other sequences left.
    if (padded_ || origin.tokens < group_.page_tokens) {
      clean_.resize(at(bytes));
      copy_tokens(group_, geometry_, origin.tokens, page, clean_);
      page = clean_.data();
    }
    return {page, at(bytes)};
  }

 private:
  const LayerGroup& group_;
  const PageGeometry& geometry_;
  const std::byte* memory_;
  StreamLocation location_;
  bool padded_;
  std::vector<std::byte> fetched_;
  std::vector<std::byte> clean_;
};

}  // namespace

std::int64_t snapshot_bytes(const KvCache& cache, std::span<const SequenceId> ids) {
  return header_of(state_of(cache), gather(state_of(cache), ids).set).file_bytes;
}

void save(const KvCache& saved, std::span<const SequenceId> ids, const ByteSink& sink) {
  const CacheState& cache = state_of(saved);
  if (!sink) throw InvalidArgument("save: sink: expected a function, got none");
  const GatheredSet gathered = gather(cache, ids);
  const SnapshotHeader header = header_of(cache, gathered.set);
  Writer out(sink);
  out.write(std::as_bytes(std::span(&header, 1)));
  out.write_section(std::span<const std::int64_t>(group_section(cache.layout(), gathered.set)));
  out.write_section(
      std::span<const std::byte>(sequence_section(gathered.set, header.sequence_bytes)));
  std::vector<std::uint64_t> sums;
  for (std::int64_t g = 0; g < cache.groups(); ++g) {
    PageCopies pages(cache, g);
    for (const PageOrigin& origin : gathered.origins[at(g)]) {
      const std::span<const std::byte> page = pages.of(origin);
      sums.push_back(checksum(page));
      out.write(page);
    }
  }
  out.write_section(std::span<const std::uint64_t>(sums));
  out.flush();
}

}  // namespace touchstone::inline v0::cache
