// The KV cache: sequences over pages. It owns the memory and decides which page holds what; it
// knows neither models nor schedulers.
//
//   KvCache cache({.layout = layout, .pool_pages = pool_pages_for(layout, 4096, 8)});
//   const SequenceId id = cache.create();
//   cache.reserve(id, 100);   // room for 100 tokens, or OutOfMemory and nothing changed
//   ...                       // a kernel writes keys and values through a view
//   cache.commit(id, 100);    // now they can be read
//
// Pages are shared by forks and by the prefix index, and never written while shared: reserve()
// copies a page that is partly filled and has another owner. Every call that throws leaves the
// cache as it was. One thread at a time may change a cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "touchstone/cache/layout.h"
#include "touchstone/cache/page_pool.h"
#include "touchstone/cache/prefix_index.h"
#include "touchstone/cache/sequence.h"
#include "touchstone/core/tensor.h"

namespace touchstone::cache {

struct KvCacheOptions {
  Layout layout{};
  // Pages of each group, e.g. from pool_pages_for. To store every sequence contiguously, set
  // page_tokens to the longest length: one page per sequence.
  std::vector<std::int64_t> pool_pages{};
  // Of a cache on the CPU: pages in page-locked memory, for what does not fit on a GPU (see
  // transfer.h). Unsupported in a build without CUDA.
  bool page_locked = false;
  // Tokens of a block of the prefix index: a multiple of every page_tokens. 0 = the least.
  std::int64_t prefix_block_tokens = 0;
  // Key of the prefix index. Zeros = drawn at random. It changes speed under attack, not results.
  std::array<std::uint64_t, 2> hash_key{};
  // Where the pages are.
  Device device{};
  // CUDA: the cudaStream_t on which pages are copied; must be that of the context whose kernels
  // write and read them. Null = the default stream.
  void* stream = nullptr;
};

struct GroupStatistics {
  std::int64_t page_bytes = 0;
  std::int64_t capacity = 0;  // pages, = free + used + cached
  std::int64_t free = 0;
  std::int64_t used = 0;
  std::int64_t cached = 0;
  std::int64_t peak_used = 0;
  std::int64_t evicted = 0;  // since the beginning, as all below
  std::int64_t copied = 0;   // copies on write
};

struct Statistics {
  std::vector<GroupStatistics> groups{};
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;  // in all sequences; shared ones count for each
  std::int64_t prefix_entries = 0;
  std::int64_t prefix_lookups = 0;
  std::int64_t prefix_hit_tokens = 0;
  std::int64_t prefix_miss_tokens = 0;
  std::int64_t refused_reservations = 0;
};

struct PrefixHit {
  SequenceId sequence{};
  std::int64_t tokens = 0;  // length of the sequence: so many leading tokens were found
};

class KvCache {
 public:
  // InvalidArgument for a bad layout, OutOfMemory when the pages cannot be allocated.
  explicit KvCache(KvCacheOptions options);
  // A copy would answer to the same sequence ids.
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;
  KvCache(KvCache&&) = default;
  KvCache& operator=(KvCache&&) = default;

  // An empty sequence.
  SequenceId create();
  // Makes room for `tokens` after the length. Evicts cached pages where free ones do not suffice.
  void reserve(SequenceId id, std::int64_t tokens);
  // The same for many sequences, all or none. A copy on write is counted for each sequence that
  // shares its last page, also where the last of them could keep the original.
  void reserve(std::span<const SequenceId> ids, std::int64_t tokens);
  // The first `tokens` reserved ones were written: they can be read from now on.
  void commit(SequenceId id, std::int64_t tokens);
  void commit(std::span<const SequenceId> ids, std::int64_t tokens);
  // Forgets everything from position `length` on, and what was reserved. InvalidArgument when the
  // next token would see positions that advance_window has given up.
  void truncate(SequenceId id, std::int64_t length);
  // A second sequence with the same tokens, all pages shared. Gives up what was reserved.
  SequenceId fork(SequenceId id);
  // Gives up pages that no later token sees, sinks excepted.
  void advance_window(SequenceId id);
  void release(SequenceId id);

  // Makes the first tokens of a sequence findable. `tokens` are those of positions 0 to
  // tokens.size() - 1, at most the length. What is there already stays. Gives up what was reserved.
  void insert_prefix(SequenceId id, std::span<const std::int32_t> tokens, std::uint32_t space = 0);
  // A new sequence with the longest beginning of `tokens` that is in the index, whole blocks or
  // part of one, in pages shared with it. Of windowed groups only what later tokens see is needed.
  PrefixHit open_prefix(std::span<const std::int32_t> tokens, std::uint32_t space = 0);
  // Frees up to `pages` cached pages of each group, those out of use longest first. How many.
  std::int64_t evict(std::int64_t pages);

  const Sequence& sequence(SequenceId id) const;
  std::int64_t length(SequenceId id) const { return sequence(id).length; }
  const Layout& layout() const { return options_.layout; }
  Device device() const { return options_.device; }
  void* stream() const { return options_.stream; }
  std::int64_t groups() const { return static_cast<std::int64_t>(groups_.size()); }
  const PageGeometry& geometry(std::int64_t group) const;
  const PagePool& pool(std::int64_t group) const;
  const PrefixIndex& prefixes() const { return index_; }

  // All pages of a group, [pages, page_bytes], on the cache's device: page i begins at data() + i *
  // page_bytes. What is below returns addresses there too.
  const Tensor& memory(std::int64_t group) const;
  std::byte* memory_data(std::int64_t group);
  // The page that holds a position. To read: position below the length and not given up. To write:
  // position reserved and not committed.
  std::span<const std::byte> page_at(SequenceId id, std::int64_t group,
                                     std::int64_t position) const;
  std::span<std::byte> writable_page_at(SequenceId id, std::int64_t group, std::int64_t position);

  // Grows with every change. A view of an older generation may name pages that moved on.
  std::uint64_t generation() const { return generation_; }
  Statistics statistics() const;
  // O(groups): whether free, used and cached pages sum to the capacity of each pool.
  bool counters_consistent() const;
  // Recounts every reference, list and counter. Empty when consistent, otherwise what is wrong.
  std::string find_inconsistency() const;

 private:
  friend class Arrival;  // sequences that come from elsewhere: src/cache/arrival.h

  struct Group {
    LayerGroup layer_group;
    PageGeometry geometry;
    PagePool pool;
    Tensor memory;
    std::int64_t sink_pages = 0;
    std::int64_t evicted = 0;
    std::int64_t copied = 0;
  };
  struct Slot {
    Sequence sequence;
    std::uint32_t generation = 0;
    bool live = false;
  };
  // The prefix of a prompt as the index has it.
  struct Path {
    struct Page {
      PageHandle page{};
      std::int64_t end = 0;  // position up to which the page holds the tokens of the prompt
    };
    std::vector<std::vector<Page>> pages;  // of each group, gaps empty
    std::int64_t tokens = 0;
  };

  Slot& checked(SequenceId id, const char* what);
  const Slot& checked(SequenceId id, const char* what) const;
  Sequence& writable(SequenceId id, const char* what) { return checked(id, what).sequence; }
  void reserve_slots(std::size_t count);
  SequenceId allocate_slot();
  const Group& group_at(std::int64_t group) const;

  bool must_replace_last(const Group& group, const Sequence& sequence,
                         const PageTable& table) const;
  std::int64_t missing_pages(const Group& group, const Sequence& sequence, const PageTable& table,
                             std::int64_t tokens) const;
  void check_room(const std::vector<std::int64_t>& pages, const char* what);
  void make_room(const std::vector<std::int64_t>& pages);
  void grow(Sequence& sequence, std::int64_t tokens);
  void replace_last_page(Group& group, const Sequence& sequence, PageTable& table);
  void cut(Sequence& sequence, std::int64_t length);
  void evict_oldest(std::int64_t group);

  std::vector<PageHandle> block_pages(const Sequence& sequence, std::int64_t first,
                                      std::int64_t tokens) const;
  bool is_indexed(std::uint64_t parent, std::span<const std::int32_t> block,
                  std::span<const PageHandle> pages) const;
  PrefixIndex::Entry index_block(std::uint64_t parent, std::span<const std::int32_t> block,
                                 std::span<const PageHandle> pages);
  Path walk(std::span<const std::int32_t> tokens, std::uint32_t space) const;
  bool fill_from_entry(PrefixIndex::Entry entry, std::span<PrefixIndex::Found> found) const;
  std::int64_t usable_tokens(const Path& path) const;
  bool usable(std::size_t group, const Path& path, std::span<const std::int64_t> runs,
              std::int64_t tokens) const;

  KvCacheOptions options_;
  std::vector<Group> groups_;
  PrefixIndex index_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> unused_slots_;
  std::uint64_t generation_ = 1;
  std::uint32_t id_ = 0;
  std::int64_t live_sequences_ = 0;
  std::int64_t prefix_lookups_ = 0;
  std::int64_t prefix_hit_tokens_ = 0;
  std::int64_t prefix_miss_tokens_ = 0;
  std::int64_t refused_reservations_ = 0;
};

}  // namespace touchstone::cache
