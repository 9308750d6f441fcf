// A paged KV cache: sequences over pages. It owns the memory and maps positions to pages; models
// and schedulers are the caller's.
//
//   KvCache cache(context, {.layout = layout, .pool_pages = pool_pages_for(layout, 4096, 8)});
//   const SequenceId id = cache.create();
//   cache.reserve(id, 100);   // slots for 100 tokens, or OutOfMemory and nothing changed
//   ...                       // kv_append writes keys and values through a view
//   cache.commit(id, 100);    // now they can be read
//
// Pages are shared by forks and by the prefix index, and never written while shared: reserve()
// copies a page that is partly filled and has another owner.
//
// Guarantees  Every call that throws leaves the cache as it was.
// Threads     Calls of const members may run concurrently with each other. Every other member is a
//             change: it must not overlap with any call on the same cache, const ones included, nor
//             with CacheViewBuilder::build. kv_append and cached_attention use the arrays of a view
//             and the memory of pages only: they count as const calls, and may run concurrently
//             with const members; two kv_append calls may overlap when their tokens differ. save()
//             and the source of copy_sequences() count as const calls, restore() and the
//             destination as changes. Caches share nothing with each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "touchstone/cache/layout.h"
#include "touchstone/core/context.h"
#include "touchstone/core/export.h"

namespace touchstone::inline v0::cache {

class CacheState;

struct KvCacheOptions {
  Layout layout{};
  // Pages of each group, e.g. from pool_pages_for. To store every sequence contiguously, set
  // page_tokens to the longest length: one page per sequence.
  std::vector<std::int64_t> pool_pages{};
  // CPU only: pages in page-locked memory, for a host tier beside a GPU (transfer.h). Unsupported
  // in a build without CUDA.
  bool page_locked = false;
  // Tokens of a block of the prefix index: a multiple of every page_tokens. 0 = the least.
  std::int64_t prefix_block_tokens = 0;
  // Key of the prefix index. Zeros = drawn at random. It changes speed under attack, not results.
  std::array<std::uint64_t, 2> hash_key{};
};

// Names a sequence of one cache. Stale after release; InvalidArgument in any other cache.
struct SequenceId {
  std::uint32_t index = 0xffffffffU;
  std::uint32_t generation = 0;
  std::uint32_t cache = 0;

  friend constexpr bool operator==(SequenceId, SequenceId) = default;
};

struct GroupStatistics {
  std::int64_t page_bytes = 0;
  std::int64_t capacity = 0;  // pages, = free + used + cached
  std::int64_t free = 0;
  std::int64_t used = 0;
  std::int64_t cached = 0;
  std::int64_t peak_used = 0;
  std::int64_t evicted = 0;  // since construction, as all below
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

// A number of tokens of a sequence: to reserve, or to commit.
struct TokenCount {
  SequenceId id{};
  std::int64_t tokens = 0;
};

// Reserved slots of a sequence whose tokens were accepted: slot j is position length + j.
// Ascending.
struct KeptSlots {
  SequenceId id{};
  std::span<const std::int64_t> slots{};
};

// The result of a dry run of reserve().
struct ReserveEstimate {
  std::vector<std::int64_t> pages{};  // needed of each group, copies on write included
  bool fits = false;
};

// A page that is about to leave the prefix index.
struct EvictedPage {
  std::int64_t layer_group = 0;
  std::span<const std::byte> bytes{};      // on the cache's device
  std::int64_t first_position = 0;         // of the page
  std::span<const std::int32_t> tokens{};  // positions 0 to the last one that the page holds
  std::uint32_t space = 0;                 // as in insert_prefix
};
using EvictionHook = std::function<void(const EvictedPage&)>;

struct PrefixHit {
  SequenceId sequence{};
  std::int64_t tokens = 0;  // leading tokens that were found: the length of the sequence
};

class TOUCHSTONE_API KvCache {
 public:
  // On the context's device; on CUDA pages are copied on its stream, which must be that of the
  // kernels that read and write them. The context need not outlive the cache, its stream must.
  // InvalidArgument for a bad layout, OutOfMemory when the pages cannot be allocated.
  KvCache(Context& context, KvCacheOptions options);
  ~KvCache();
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;

  // An empty sequence.
  SequenceId create();
  // Allocates `tokens` slots after the length. Evicts cached pages where free ones do not suffice.
  void reserve(SequenceId id, std::int64_t tokens);
  // The same for many sequences, all or none. A copy on write is counted for each sequence that
  // shares its last page, also where the last of them could keep the original.
  void reserve(std::span<const SequenceId> ids, std::int64_t tokens);
  // The same with a count for each sequence. OutOfMemory also when fewer than `watermark` free or
  // cached pages would remain in a group that pages are allocated from.
  void reserve(std::span<const TokenCount> counts, std::int64_t watermark = 0);
  // Dry run: changes nothing, evicts nothing.
  ReserveEstimate estimate_reserve(std::span<const TokenCount> counts,
                                   std::int64_t watermark = 0) const;
  // The same for tokens that come in chunks of at most `chunk`, each committed before the next and
  // the window advanced: the most pages that are needed beyond those of now. Windowed groups need
  // fewer than for all tokens at once.
  ReserveEstimate estimate_chunks(std::span<const TokenCount> counts, std::int64_t chunk) const;
  // The first `tokens` reserved ones were written: they can be read from now on.
  void commit(SequenceId id, std::int64_t tokens);
  void commit(std::span<const SequenceId> ids, std::int64_t tokens);
  void commit(std::span<const TokenCount> counts);
  // Moves the accepted tokens of the reserved part to its front, in order, and commits them: all
  // sequences, groups and layers in one launch, stored bytes and scales as they are. Nothing moves
  // where they are the front already. The rest of the reserved part stays reserved. On CUDA queued
  // on the stream, without allocation or synchronization; can be captured.
  void keep(std::span<const KeptSlots> kept);
  // Drops everything from position `length` on, and what was reserved. InvalidArgument when the
  // next token would attend to positions that advance_window has freed. With a window of 1 there
  // are none: any length is accepted, and positions of a page that was freed read as zeros.
  void truncate(SequenceId id, std::int64_t length);
  // A second sequence with the same tokens, all pages shared. Drops what was reserved.
  SequenceId fork(SequenceId id);
  // Frees pages outside the sliding window; attention-sink pages are kept.
  void advance_window(SequenceId id);
  void release(SequenceId id);

  // Adds the pages of the first tokens of a sequence to the prefix index. `tokens` are those of
  // positions 0 to tokens.size() - 1, at most the length. Pages that are in the index already stay.
  // Drops what was reserved. Windowed groups: call it before advance_window, so that a later prompt
  // finds the window of every shorter length too.
  void insert_prefix(SequenceId id, std::span<const std::int32_t> tokens, std::uint32_t space = 0);
  // A new sequence with the longest beginning of `tokens` in the index, in pages shared with it. Of
  // windowed groups only the pages that later tokens attend to are needed. The logits of the last
  // prompt token need that token to run: look up all but the last token of a prompt.
  PrefixHit open_prefix(std::span<const std::int32_t> tokens, std::uint32_t space = 0);
  // Called before a cached page is evicted, by any member that needs its memory, for example to
  // copy it to a host tier. It must not change this cache. Its exceptions propagate out of the
  // member that evicts: pages evicted until then are gone, nothing else has changed. Empty = none.
  void set_eviction_hook(EvictionHook hook);
  // Frees up to `pages` cached pages of each group, least recently used; returns how many.
  std::int64_t evict(std::int64_t pages);

  std::int64_t length(SequenceId id) const;    // tokens that can be read
  std::int64_t reserved(SequenceId id) const;  // [length, reserved) can be written
  const Layout& layout() const;
  Device device() const;
  // Grows with every change. A view of an older generation may name pages of other owners.
  std::uint64_t generation() const;
  Statistics statistics() const;

 private:
  friend struct CacheAccess;
  std::unique_ptr<CacheState> state_;
};

}  // namespace touchstone::inline v0::cache
