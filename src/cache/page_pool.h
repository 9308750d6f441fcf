// A fixed number of equal pages, by number. The pool tracks the owners of pages, not their content.
//
// A page is in one of three states, and the counters of the three always sum to the capacity:
//
//             take                     drop, last reference
//    free ------------> used (references >= 1) ----------------> free
//      ^                 |   ^                 if kept: cached
//      |           drop  v   | share
//      +---- evict ---- cached (no reference, content still valid)
//
// A handle carries the pool and the generation of its page, so that a handle of another pool, or of
// a page that was freed since, is InvalidArgument. No call that throws changes anything. One thread
// at a time may change a pool.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace touchstone::inline v0::cache {

inline constexpr std::uint32_t kNoPage = 0xffffffffU;

struct PageHandle {
  std::uint32_t index = kNoPage;
  std::uint32_t generation = 0;  // wraps after 2^32 reuses of one page
  std::uint32_t pool = 0;

  constexpr bool empty() const { return index == kNoPage; }
  friend constexpr bool operator==(PageHandle, PageHandle) = default;
};

enum class PageState : std::uint8_t { free, used, cached };

class PagePool {
 public:
  // 1 to 2^31 - 1 pages, so that kernels can hold page numbers in int32.
  explicit PagePool(std::int64_t capacity);
  // A copy would answer to the same handles.
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  PagePool(PagePool&&) = default;
  PagePool& operator=(PagePool&&) = default;

  // Fills `pages` with free pages of one reference each; OutOfMemory unless there are that many.
  void take(std::span<PageHandle> pages);
  // One more reference, also for a cached page, which is in use from then on.
  void share(PageHandle page);
  // The same for many, all or none. Empty handles are passed over.
  void share(std::span<const PageHandle> pages);
  // One reference less. InvalidArgument when there is none left to drop (double free).
  void drop(PageHandle page);
  // The same for many, all or none, the last first. Empty handles are passed over.
  void drop(std::span<const PageHandle> pages);

  // Marks the page evictable: when its last reference is dropped it becomes cached, not free.
  void keep(PageHandle page);
  bool kept(PageHandle page) const;
  // Makes a cached page free. InvalidArgument for a page in use.
  void evict(PageHandle page);
  // The cached page that went out of use first; empty when there is none.
  PageHandle oldest_cached() const;

  std::int64_t capacity() const { return static_cast<std::int64_t>(records_.size()); }
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t used_pages() const { return used_; }
  std::int64_t cached_pages() const { return cached_; }
  std::int64_t peak_used_pages() const { return peak_used_; }

  std::int64_t references(PageHandle page) const;
  // References and state by number, for recounts.
  std::int64_t references_at(std::int64_t index) const;
  PageState state_at(std::int64_t index) const;
  PageHandle handle_at(std::int64_t index) const;

  // Recounts everything. Empty when consistent, otherwise what is wrong.
  std::string find_inconsistency() const;

 private:
  // Eight bytes: pages are taken and dropped in any order, and each is one miss of the cache.
  struct Record {
    std::uint32_t generation = 0;
    std::uint32_t references : 31 = 0;
    std::uint32_t kept : 1 = 0;
  };
  struct Neighbors {  // in the list of cached pages
    std::uint32_t older = kNoPage;
    std::uint32_t newer = kNoPage;
  };

  // Defined here, so that loops over pages contain them.
  const Record& checked(PageHandle page, const char* what) const {
    if (page.pool != id_ || page.index >= records_.size()) refuse(page, what);
    const Record& record = records_[page.index];
    const bool is_free = record.references == 0 && record.kept == 0;
    if (record.generation != page.generation || is_free) refuse(page, what);
    return record;
  }
  Record& checked(PageHandle page, const char* what) {
    return const_cast<Record&>(static_cast<const PagePool*>(this)->checked(page, what));
  }
  // Says what is wrong with a handle.
  [[noreturn]] void refuse(PageHandle page, const char* what) const;
  void leave_use(std::uint32_t index);
  bool in_cached(std::uint32_t index) const;
  void append_to_cached(std::uint32_t index);
  void remove_from_cached(std::uint32_t index);
  void make_free(std::uint32_t index);

  std::vector<Record> records_;
  std::vector<Neighbors> neighbors_;
  std::vector<std::uint32_t> free_;  // a stack: the page freed last is the warmest
  std::uint32_t oldest_ = kNoPage;
  std::uint32_t newest_ = kNoPage;
  std::int64_t used_ = 0;
  std::int64_t cached_ = 0;
  std::int64_t peak_used_ = 0;
  std::uint32_t id_ = 0;
};

}  // namespace touchstone::inline v0::cache
