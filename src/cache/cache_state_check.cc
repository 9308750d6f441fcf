// Statistics, and a consistency check that recounts every counter.
#include "cache/cache_state.h"
#include "core/index.h"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0::cache {
namespace {

// The table of one sequence in one group: as long as what is reserved, empty where the window has
// passed and nowhere else. Counts the references it holds.
std::string count_table(const Sequence& sequence, const PageTable& table, const PagePool& pool,
                        std::int64_t page_tokens, std::int64_t sink_pages,
                        std::vector<std::int64_t>& references) {
  if (std::ssize(table.pages) != ceil_div(sequence.reserved, page_tokens)) {
    return "kv_cache: a table is as long as something else than its reservation";
  }
  for (std::int64_t i = 0; i < std::ssize(table.pages); ++i) {
    const PageHandle page = table.pages[at(i)];
    if (page.empty() != (i >= sink_pages && i < table.first_kept)) {
      return "kv_cache: a page is missing, or kept behind the window";
    }
    if (page.empty()) continue;
    if (page.index >= references.size() || !(pool.handle_at(page.index) == page)) {
      return "kv_cache: a sequence holds a stale page";
    }
    ++references[page.index];
    const bool writable =
        (i + 1) * page_tokens > sequence.length && i * page_tokens < sequence.reserved;
    if (writable && sequence.reserved > sequence.length &&
        (pool.references(page) != 1 || pool.kept(page))) {
      return "kv_cache: a page that may be written is shared";
    }
  }
  return {};
}

}  // namespace

Statistics CacheState::statistics() const {
  Statistics all;
  for (const Group& group : groups_) {
    all.groups.push_back({.page_bytes = group.geometry.page_bytes,
                          .capacity = group.pool.capacity(),
                          .free = group.pool.free_pages(),
                          .used = group.pool.used_pages(),
                          .cached = group.pool.cached_pages(),
                          .peak_used = group.pool.peak_used_pages(),
                          .evicted = group.evicted,
                          .copied = group.copied});
  }
  all.sequences = live_sequences_;
  for (const Slot& slot : slots_) {
    if (slot.live) all.tokens += slot.sequence.length;
  }
  all.prefix_entries = index_.entries();
  all.prefix_lookups = prefix_lookups_;
  all.prefix_hit_tokens = prefix_hit_tokens_;
  all.prefix_miss_tokens = prefix_miss_tokens_;
  all.refused_reservations = refused_reservations_;
  return all;
}

bool CacheState::counters_consistent() const {
  for (const Group& group : groups_) {
    const PagePool& pool = group.pool;
    if (pool.free_pages() < 0 || pool.used_pages() < 0 || pool.cached_pages() < 0) return false;
    if (pool.free_pages() + pool.used_pages() + pool.cached_pages() != pool.capacity())
      return false;
  }
  return true;
}

std::string CacheState::find_inconsistency() const {
  if (std::string wrong = index_.find_inconsistency(); !wrong.empty()) return wrong;
  for (std::int64_t g = 0; g < groups(); ++g) {
    const Group& group = groups_[at(g)];
    if (std::string wrong = group.pool.find_inconsistency(); !wrong.empty()) return wrong;
    std::vector<std::int64_t> references(at(group.pool.capacity()));
    for (const Slot& slot : slots_) {
      const PageTable& table = slot.sequence.groups[at(g)];
      if (!slot.live && !table.pages.empty()) return "kv_cache: a released sequence holds pages";
      if (!slot.live) continue;
      if (slot.sequence.length > slot.sequence.reserved) return "kv_cache: length beyond reserved";
      std::string wrong = count_table(slot.sequence, table, group.pool,
                                      group.layer_group.page_tokens, group.sink_pages, references);
      if (!wrong.empty()) return wrong;
    }
    for (std::int64_t i = 0; i < group.pool.capacity(); ++i) {
      if (references[at(i)] != group.pool.references_at(i)) {
        return "kv_cache: references of a page differ from a recount";
      }
      const bool free = group.pool.state_at(i) == PageState::free;
      const bool kept = !free && group.pool.kept(group.pool.handle_at(i));
      if (kept != index_.holds(g, static_cast<std::uint32_t>(i))) {
        return "kv_cache: index and pool disagree about a page";
      }
    }
  }
  std::int64_t live = 0;
  for (const Slot& slot : slots_) live += slot.live ? 1 : 0;
  if (live != live_sequences_ || slots_.size() - at(live) != unused_slots_.size()) {
    return "kv_cache: the number of sequences differs from a recount";
  }
  return {};
}

}  // namespace touchstone::inline v0::cache
