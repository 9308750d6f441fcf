// The state of a KvCache: pools of pages, sequences over them, and the prefix index. KvCache
// (kv_cache.h) forwards to it; snapshots, transfers, views and tests use it directly.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/page_pool.h"
#include "cache/prefix_index.h"
#include "cache/sequence.h"
#include "touchstone/cache/kv_cache.h"
#include "touchstone/core/tensor.h"

namespace touchstone::inline v0::cache {

class CacheState {
 public:
  // On the CPU, or in CUDA memory whose pages are copied on `stream`.
  CacheState(Device device, void* stream, KvCacheOptions options);
  // Ids and views name one particular cache.
  CacheState(const CacheState&) = delete;
  CacheState& operator=(const CacheState&) = delete;

  // As in KvCache.
  SequenceId create();
  void reserve(std::span<const SequenceId> ids, std::int64_t tokens);
  void reserve(std::span<const TokenCount> counts, std::int64_t watermark);
  ReserveEstimate estimate_reserve(std::span<const TokenCount> counts,
                                   std::int64_t watermark) const;
  ReserveEstimate estimate_chunks(std::span<const TokenCount> counts, std::int64_t chunk) const;
  void commit(std::span<const SequenceId> ids, std::int64_t tokens);
  void commit(std::span<const TokenCount> counts);
  void keep(std::span<const KeptSlots> kept);
  void set_eviction_hook(EvictionHook hook) { eviction_hook_ = std::move(hook); }
  void truncate(SequenceId id, std::int64_t length);
  SequenceId fork(SequenceId id);
  void advance_window(SequenceId id);
  void release(SequenceId id);
  void insert_prefix(SequenceId id, std::span<const std::int32_t> tokens, std::uint32_t space);
  PrefixHit open_prefix(std::span<const std::int32_t> tokens, std::uint32_t space);
  std::int64_t evict(std::int64_t pages);
  const Layout& layout() const { return options_.layout; }
  Device device() const { return device_; }
  std::uint64_t generation() const { return generation_; }
  Statistics statistics() const;

  const Sequence& sequence(SequenceId id) const;
  std::int64_t length(SequenceId id) const { return sequence(id).length; }
  void* stream() const { return stream_; }
  std::int64_t groups() const { return static_cast<std::int64_t>(groups_.size()); }
  const PageGeometry& geometry(std::int64_t group) const;
  const PagePool& pool(std::int64_t group) const;
  const PrefixIndex& prefixes() const { return index_; }

  // All pages of a group, [pages, page_bytes], on the cache's device: page i begins at data() + i *
  // page_bytes. What is below returns addresses there too.
  const Tensor& memory(std::int64_t group) const;
  std::byte* memory_data(std::int64_t group);
  // The page that holds a position. To read: position below the length and not freed. To write:
  // position reserved and not committed.
  std::span<const std::byte> page_at(SequenceId id, std::int64_t group,
                                     std::int64_t position) const;
  std::span<std::byte> writable_page_at(SequenceId id, std::int64_t group, std::int64_t position);

  // O(groups): whether free, used and cached pages sum to the capacity of each pool.
  bool counters_consistent() const;
  // Recounts every reference, list and counter. Empty when consistent, otherwise what is wrong.
  std::string find_inconsistency() const;

 private:
  friend class SequenceImport;

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
  std::int64_t missing_pages_in_chunks(const Group& group, const Sequence& sequence,
                                       const PageTable& table, std::int64_t tokens,
                                       std::int64_t chunk) const;
  void check_capacity(const std::vector<std::int64_t>& pages, const char* what,
                      std::int64_t watermark = 0);
  std::vector<std::int64_t> count_pages(std::span<const TokenCount> counts, std::int64_t chunk,
                                        const char* what) const;
  ReserveEstimate estimate(std::vector<std::int64_t> pages, std::int64_t watermark) const;
  void check_kept(std::span<const KeptSlots> kept) const;
  void ensure_free(const std::vector<std::int64_t>& pages);
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

  Device device_;
  void* stream_ = nullptr;
  KvCacheOptions options_;
  std::vector<Group> groups_;
  PrefixIndex index_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> unused_slots_;
  EvictionHook eviction_hook_;
  std::uint64_t generation_ = 1;
  std::uint32_t id_ = 0;
  std::int64_t live_sequences_ = 0;
  std::int64_t prefix_lookups_ = 0;
  std::int64_t prefix_hit_tokens_ = 0;
  std::int64_t prefix_miss_tokens_ = 0;
  std::int64_t refused_reservations_ = 0;
};

// The internals of a cache, for snapshots, transfers, views and tests.
struct CacheAccess {
  static CacheState& state(KvCache& cache) { return *cache.state_; }
  static const CacheState& state(const KvCache& cache) { return *cache.state_; }
};
inline CacheState& state_of(KvCache& cache) { return CacheAccess::state(cache); }
inline const CacheState& state_of(const KvCache& cache) { return CacheAccess::state(cache); }

}  // namespace touchstone::inline v0::cache
