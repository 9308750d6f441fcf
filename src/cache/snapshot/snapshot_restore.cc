#include "cache/snapshot/snapshot_restore.h"

#include <algorithm>
#include <string>

#include "cache/snapshot/sequence_import.h"
#include "cache/snapshot/sequence_set.h"
#include "cache/snapshot/snapshot_format.h"
#include "cache/window.h"
#include "core/checksum.h"
#include "core/copy.h"
#include "core/index.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

[[noreturn]] void corrupt(const std::string& problem) {
  throw CorruptData("restore: the snapshot " + problem);
}

constexpr std::int64_t kReadBufferBytes = std::int64_t{256} << 10;

// Reads ahead where pieces are small, never beyond the end of the snapshot.
class Reader {
 public:
  explicit Reader(const ByteSource& source) : source_(source) {}

  // How many bytes follow.
  void expect(std::int64_t bytes) { left_ = bytes; }

  void read(std::span<std::byte> bytes) {
    if (std::ssize(bytes) > left_ + std::ssize(buffered())) corrupt("is shorter than its content");
    const std::size_t ready = std::min(bytes.size(), buffered().size());
    std::copy_n(buffered().begin(), ready, bytes.begin());
    begin_ += ready;
    bytes = bytes.subspan(ready);
    if (bytes.empty()) return;
    if (std::ssize(bytes) >= kReadBufferBytes) {
      source_(bytes);
      left_ -= std::ssize(bytes);
      return;
    }
    buffer_.resize(at(std::min(left_, kReadBufferBytes)));
    source_(buffer_);
    left_ -= std::ssize(buffer_);
    std::copy_n(buffer_.begin(), bytes.size(), bytes.begin());
    begin_ = bytes.size();
  }

  template <class T>
  T read_value() {
    T value{};
    read(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

  // A section and its checksum. Grows as bytes arrive: what a damaged size claims is not allocated.
  std::vector<std::byte> read_section(std::int64_t bytes, const char* name) {
    std::vector<std::byte> section;
    while (std::ssize(section) < bytes) {
      const std::size_t before = section.size();
      section.resize(before + at(std::min(bytes - std::ssize(section), 4 * kReadBufferBytes)));
      read(std::span(section).subspan(before));
    }
    if (read_value<std::uint64_t>() != checksum(section)) {
      corrupt(std::string("is damaged: ") + name);
    }
    return section;
  }

 private:
  std::span<const std::byte> buffered() const { return std::span(buffer_).subspan(begin_); }

  const ByteSource& source_;
  std::int64_t left_ = 0;
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
};

// Takes values from a section.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::int64_t left() const { return std::ssize(bytes_); }
  void take(std::span<std::byte> values) {
    if (values.size() > bytes_.size()) corrupt("has sequences longer than their section");
    std::copy_n(bytes_.begin(), values.size(), values.begin());
    bytes_ = bytes_.subspan(values.size());
  }
  std::int64_t take_number() {
    std::int64_t value = 0;
    take(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
};

SnapshotHeader read_header(Reader& in, std::optional<std::int64_t> bytes) {
  in.expect(sizeof(SnapshotHeader));
  const auto header = in.read_value<SnapshotHeader>();
  if (header.magic != kSnapshotMagic) corrupt("is none: it does not begin like one");
  if (header.byte_order != kByteOrderMark) {
    throw Unsupported("restore: the snapshot has another byte order than this machine");
  }
  if (header.version != kSnapshotVersion) {
    throw Unsupported("restore: version: expected " + std::to_string(kSnapshotVersion) + ", got " +
                      std::to_string(header.version));
  }
  const auto covered = std::as_bytes(std::span(&header, 1));
  if (header.checksum != checksum(covered.first(offsetof(SnapshotHeader, checksum)))) {
    corrupt("is damaged: header");
  }
  const bool sane = header.sequences >= 0 && header.sequence_bytes >= 0 && header.unused == 0 &&
                    header.file_bytes >= std::int64_t{sizeof(SnapshotHeader)} &&
                    header.groups >= 0 && header.groups <= header.file_bytes / kGroupRecordBytes;
  if (!sane) corrupt("has a header that makes no sense");
  if (bytes && header.file_bytes != *bytes) {
    corrupt("has " + std::to_string(*bytes) + " bytes instead of " +
            std::to_string(header.file_bytes));
  }
  in.expect(header.file_bytes - std::int64_t{sizeof(SnapshotHeader)});
  return header;
}

// The number of pages of each group, when the groups are those of the layout.
std::vector<std::int64_t> read_groups(Reader& in, const SnapshotHeader& header,
                                      const Layout& layout) {
  const std::vector<std::byte> section =
      in.read_section(header.groups * kGroupRecordBytes, "groups");
  Cursor cursor(section);
  std::vector<GroupDescription> descriptions;
  std::vector<std::int64_t> page_counts;
  for (std::int64_t g = 0; g < header.groups; ++g) {
    descriptions.emplace_back();
    cursor.take(std::as_writable_bytes(std::span(descriptions.back())));
    page_counts.push_back(cursor.take_number());
    if (page_counts.back() < 0) corrupt("has a negative number of pages");
  }
  check_same_layout("restore", layout, descriptions);
  return page_counts;
}

// The sections are exactly as long as the whole. By subtraction, which cannot overflow.
void check_size(const SnapshotHeader& header, const Layout& layout,
                const std::vector<std::int64_t>& page_counts) {
  std::int64_t left = header.file_bytes - std::int64_t{sizeof(SnapshotHeader)} - 3 * 8 -
                      header.groups * kGroupRecordBytes;
  if (left < header.sequence_bytes) corrupt("is shorter than its content");
  left -= header.sequence_bytes;
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const std::int64_t page_and_sum = page_bytes(layout.groups[g]) + 8;
    if (page_counts[g] > left / page_and_sum) corrupt("is shorter than its content");
    left -= page_counts[g] * page_and_sum;
  }
  if (left != 0) corrupt("is longer than its content");
}

// Which positions the pages of one group hold: numbers come in the order of their first use, and a
// page is the same positions for all.
class Pages {
 public:
  explicit Pages(std::int64_t count) : count_(count) {}

  void use(std::uint32_t number, std::size_t position) {
    if (number == position_of_.size() && number < count_) {
      position_of_.push_back(position);
    } else if (number >= position_of_.size() || position_of_[number] != position) {
      corrupt("has a page where it cannot be");
    }
  }
  bool all_used() const { return std::ssize(position_of_) == count_; }

 private:
  std::int64_t count_;
  std::vector<std::size_t> position_of_;
};

SequenceSet::Table take_table(Cursor& cursor, const LayerGroup& group, std::int64_t length,
                              Pages& pages) {
  SequenceSet::Table table;
  table.first_kept = cursor.take_number();
  const std::int64_t count = ceil_div(length, group.page_tokens);
  if (count > cursor.left() / 4) corrupt("has sequences longer than their section");
  const std::int64_t sink_pages = ceil_div(group.sinks, group.page_tokens);
  // A page that the next token attends to must be there.
  const bool possible =
      table.first_kept >= 0 && table.first_kept <= count &&
      (table.first_kept <= sink_pages || table.first_kept <= first_page_to_read(group, length));
  if (!possible) corrupt("has a window where it cannot be");
  table.pages.resize(at(count));
  cursor.take(std::as_writable_bytes(std::span(table.pages)));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t number = table.pages[at(i)];
    const bool passed = i >= sink_pages && i < table.first_kept;
    if (passed != (number == kNoPage)) corrupt("has a page where it cannot be");
    if (!passed) pages.use(number, at(i));
  }
  return table;
}

SequenceSet read_sequences(Reader& in, const SnapshotHeader& header, const Layout& layout,
                           std::vector<std::int64_t> page_counts) {
  const std::vector<std::byte> section = in.read_section(header.sequence_bytes, "sequences");
  Cursor cursor(section);
  SequenceSet set;
  set.page_counts = std::move(page_counts);
  std::vector<Pages> pages(set.page_counts.begin(), set.page_counts.end());
  for (std::int64_t s = 0; s < header.sequences; ++s) {
    SequenceSet::Entry entry{.length = cursor.take_number(), .groups = {}};
    if (entry.length < 0) corrupt("has a sequence of negative length");
    for (std::size_t g = 0; g < layout.groups.size(); ++g) {
      entry.groups.push_back(take_table(cursor, layout.groups[g], entry.length, pages[g]));
    }
    set.sequences.push_back(std::move(entry));
  }
  if (cursor.left() != 0) corrupt("has sequences shorter than their section");
  for (const Pages& group : pages) {
    if (!group.all_used()) corrupt("has a page that no sequence uses");
  }
  return set;
}

// Reads all pages and verifies them; allocated pages are filled at once, the others are staged.
class PageReader {
 public:
  PageReader(Reader& in, const CacheState& cache, const SequenceSet& set,
             const SequenceImport& imported)
      : in_(in),
        cache_(cache),
        location_{cache.device(), cache.stream()},
        set_(set),
        imported_(imported) {}

  void read_all() {
    waiting_.resize(set_.page_counts.size());
    for (std::int64_t g = 0; g < cache_.groups(); ++g) read_group(g);
    const std::int64_t bytes = std::ssize(std::as_bytes(std::span(sums_)));
    const std::vector<std::byte> expected = in_.read_section(bytes, "checksums");
    if (!std::ranges::equal(std::as_bytes(std::span(sums_)), expected)) {
      corrupt("is damaged: pages");
    }
  }

  // Once the others are allocated too.
  void place_waiting() {
    for (std::int64_t g = 0; g < cache_.groups(); ++g) {
      const std::int64_t waiting = waiting_[at(g)].elements() / cache_.geometry(g).page_bytes;
      const std::int64_t first = set_.page_counts[at(g)] - waiting;
      for (std::int64_t i = 0; i < waiting; ++i) place(g, first + i, waiting_page(g, i));
    }
    wait_for(location_);
  }

 private:
  void read_group(std::int64_t g) {
    const std::int64_t count = set_.page_counts[at(g)];
    const std::int64_t bytes = cache_.geometry(g).page_bytes;
    std::int64_t placed = 0;
    while (placed < count && imported_.has_page(g, placed)) ++placed;
    const bool on_host = !location_.device.is_cuda();
    Tensor staging = Tensor::empty({on_host ? 0 : bytes}, DType::u8);
    waiting_[at(g)] = Tensor::empty({count - placed, bytes}, DType::u8);
    for (std::int64_t i = 0; i < count; ++i) {
      std::byte* page = i >= placed ? waiting_page(g, i - placed)
                        : on_host   ? imported_.page_data(g, i)
                                    : static_cast<std::byte*>(staging.data());
      const std::span<std::byte> content(page, at(bytes));
      in_.read(content);
      sums_.push_back(checksum(content));
      if (i < placed && !on_host) place(g, i, page);
    }
  }

  std::byte* waiting_page(std::int64_t g, std::int64_t i) {
    return static_cast<std::byte*>(waiting_[at(g)].data()) + i * cache_.geometry(g).page_bytes;
  }

  void place(std::int64_t g, std::int64_t number, const std::byte* content) const {
    queue_copy(location_, imported_.page_data(g, number), {}, content,
               cache_.geometry(g).page_bytes);
  }

  Reader& in_;
  const CacheState& cache_;
  StreamLocation location_;
  const SequenceSet& set_;
  const SequenceImport& imported_;
  std::vector<Tensor> waiting_;  // [group]
  std::vector<std::uint64_t> sums_;
};

}  // namespace

std::vector<SequenceId> restore_sized(KvCache& cache, const ByteSource& source,
                                      std::optional<std::int64_t> bytes) {
  if (!source) throw InvalidArgument("restore: source: expected a function, got none");
  const Layout& layout = cache.layout();
  Reader in(source);
  const SnapshotHeader header = read_header(in, bytes);
  std::vector<std::int64_t> page_counts = read_groups(in, header, layout);
  check_size(header, layout, page_counts);
  const SequenceSet set = read_sequences(in, header, layout, std::move(page_counts));
  SequenceImport imported(state_of(cache), set, "restore");
  PageReader pages(in, state_of(cache), set, imported);
  pages.read_all();
  imported.allocate_all();
  pages.place_waiting();
  return imported.publish();
}

std::vector<SequenceId> restore(KvCache& cache, const ByteSource& source) {
  return restore_sized(cache, source, std::nullopt);
}

}  // namespace touchstone::inline v0::cache
