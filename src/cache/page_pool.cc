#include "cache/page_pool.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

constexpr std::uint32_t kMaxReferences = 0x7fffffffU;
constexpr const char* kNothingToDrop = "has no reference to drop";
// Pages between the one in hand and the one whose record is being fetched from memory.
constexpr std::size_t kPrefetchAhead = 24;

std::uint32_t next_pool_id() {
  static std::atomic<std::uint32_t> last{0};
  return ++last;
}

[[noreturn]] void refuse_page(const char* what, const char* problem, PageHandle page) {
  throw InvalidArgument(std::string("page_pool: ") + what + ": page " + std::to_string(page.index) +
                        " " + problem);
}

}  // namespace

PagePool::PagePool(std::int64_t capacity) : id_(next_pool_id()) {
  if (capacity < 1 || capacity > std::numeric_limits<std::int32_t>::max()) {
    throw InvalidArgument("page_pool: capacity: expected 1 to 2147483647, got " +
                          std::to_string(capacity));
  }
  records_.resize(static_cast<std::size_t>(capacity));
  neighbors_.resize(static_cast<std::size_t>(capacity));
  free_.resize(static_cast<std::size_t>(capacity));
  // Page 0 on top: a fresh pool hands out consecutive pages.
  for (std::size_t i = 0; i < free_.size(); ++i) {
    free_[i] = static_cast<std::uint32_t>(free_.size() - 1 - i);
  }
}

void PagePool::refuse(PageHandle page, const char* what) const {
  if (page.pool != id_ || page.index >= records_.size()) {
    refuse_page(what, "is not of this pool", page);
  }
  const bool stale = records_[page.index].generation != page.generation;
  refuse_page(what, stale ? "was freed: the handle is stale" : "is free", page);
}

// Inline, so that the loops below contain them; only this file calls them.

inline void PagePool::make_free(std::uint32_t index) {
  ++records_[index].generation;
  // No page is in the list twice, so the list never outgrows what the constructor allocated.
  free_.push_back(index);
}

inline bool PagePool::in_cached(std::uint32_t index) const {
  return oldest_ == index || neighbors_[index].older != kNoPage;
}

inline void PagePool::append_to_cached(std::uint32_t index) {
  neighbors_[index] = {.older = newest_, .newer = kNoPage};
  (newest_ == kNoPage ? oldest_ : neighbors_[newest_].newer) = index;
  newest_ = index;
  ++cached_;
}

inline void PagePool::remove_from_cached(std::uint32_t index) {
  const auto [older, newer] = neighbors_[index];
  (older == kNoPage ? oldest_ : neighbors_[older].newer) = newer;
  (newer == kNoPage ? newest_ : neighbors_[newer].older) = older;
  neighbors_[index] = {};
  --cached_;
}

inline void PagePool::leave_use(std::uint32_t index) {
  --used_;
  if (records_[index].kept != 0) {
    append_to_cached(index);
  } else {
    make_free(index);
  }
}

void PagePool::take(std::span<PageHandle> pages) {
  if (pages.size() > free_.size()) {
    throw OutOfMemory("page_pool: take: expected " + std::to_string(pages.size()) +
                      " free pages, got " + std::to_string(free_.size()));
  }
  for (PageHandle& page : pages) {
    if (free_.size() > kPrefetchAhead) {
      __builtin_prefetch(&records_[free_[free_.size() - 1 - kPrefetchAhead]], 1);
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    Record& record = records_[index];
    record.references = 1;
    page = {index, record.generation, id_};
  }
  used_ += static_cast<std::int64_t>(pages.size());
  peak_used_ = std::max(peak_used_, used_);
}

void PagePool::share(PageHandle page) {
  checked(page, "share");  // an empty handle among others is none, alone it is a mistake
  share(std::span(&page, 1));
}

void PagePool::share(std::span<const PageHandle> pages) {
  for (const PageHandle page : pages) {
    if (page.empty()) continue;
    if (checked(page, "share").references > kMaxReferences - pages.size()) {
      refuse_page("share", "has too many references", page);
    }
  }
  for (const PageHandle page : pages) {
    if (page.empty() || records_[page.index].references++ > 0) continue;
    remove_from_cached(page.index);
    ++used_;
  }
  peak_used_ = std::max(peak_used_, used_);
}

void PagePool::drop(PageHandle page) {
  Record& record = checked(page, "drop");
  if (record.references == 0) refuse_page("drop", kNothingToDrop, page);
  if (--record.references == 0) leave_use(page.index);
}

void PagePool::drop(std::span<const PageHandle> pages) {
  // First the references, which can be given back should one of the pages be wrong.
  std::size_t i = pages.size();
  try {
    while (i > 0) {
      const std::size_t ahead = i > kPrefetchAhead ? pages[i - 1 - kPrefetchAhead].index : kNoPage;
      if (ahead < records_.size()) __builtin_prefetch(&records_[ahead], 1);
      const PageHandle page = pages[i - 1];
      if (!page.empty()) {
        Record& record = checked(page, "drop");
        if (record.references == 0) refuse_page("drop", kNothingToDrop, page);
        --record.references;
      }
      --i;
    }
  } catch (...) {
    for (; i < pages.size(); ++i) {
      if (!pages[i].empty()) ++records_[pages[i].index].references;
    }
    throw;
  }
  for (i = pages.size(); i-- > 0;) {
    const PageHandle page = pages[i];
    if (page.empty()) continue;
    const Record record = records_[page.index];
    // A page that was there twice has left already.
    const bool left =
        record.generation != page.generation || (record.kept != 0 && in_cached(page.index));
    if (record.references == 0 && !left) leave_use(page.index);
  }
}

void PagePool::keep(PageHandle page) {
  Record& record = checked(page, "keep");
  record.kept = 1;
}

bool PagePool::kept(PageHandle page) const { return checked(page, "kept").kept != 0; }

void PagePool::evict(PageHandle page) {
  Record& record = checked(page, "evict");
  if (record.references != 0) refuse_page("evict", "is in use", page);
  remove_from_cached(page.index);
  record.kept = 0;
  make_free(page.index);
}

PageHandle PagePool::oldest_cached() const {
  if (oldest_ == kNoPage) return {};
  return {oldest_, records_[oldest_].generation, id_};
}

std::int64_t PagePool::references(PageHandle page) const {
  return checked(page, "references").references;
}

std::int64_t PagePool::references_at(std::int64_t index) const {
  return records_.at(static_cast<std::size_t>(index)).references;
}

PageState PagePool::state_at(std::int64_t index) const {
  const Record& record = records_.at(static_cast<std::size_t>(index));
  if (record.references > 0) return PageState::used;
  return record.kept != 0 ? PageState::cached : PageState::free;
}

PageHandle PagePool::handle_at(std::int64_t index) const {
  const Record& record = records_.at(static_cast<std::size_t>(index));
  return {static_cast<std::uint32_t>(index), record.generation, id_};
}

std::string PagePool::find_inconsistency() const {
  std::int64_t count[3] = {};
  for (std::int64_t i = 0; i < capacity(); ++i) ++count[static_cast<int>(state_at(i))];
  if (count[0] != free_pages() || count[1] != used_ || count[2] != cached_) {
    return "page_pool: counters differ from a recount";
  }
  std::vector<bool> listed(records_.size());
  const auto list = [&](std::uint32_t index, PageState state) {
    if (index >= records_.size() || listed[index] || state_at(index) != state) return false;
    listed[index] = true;
    return true;
  };
  for (const std::uint32_t index : free_) {
    if (!list(index, PageState::free)) return "page_pool: the list of free pages is wrong";
  }
  std::int64_t cached = 0;
  for (std::uint32_t i = oldest_, older = kNoPage; i != kNoPage;
       older = i, i = neighbors_[i].newer) {
    if (!list(i, PageState::cached) || neighbors_[i].older != older) {
      return "page_pool: the list of cached pages is wrong";
    }
    ++cached;
  }
  if (cached != cached_) return "page_pool: the list of cached pages is too short";
  return {};
}

}  // namespace touchstone::inline v0::cache
