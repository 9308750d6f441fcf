// Sequences that are imported into a cache. They become visible with publish(); without it every
// page is freed again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/cache_state.h"
#include "cache/snapshot/sequence_set.h"

namespace touchstone::inline v0::cache {

class SequenceImport {
 public:
  // Takes those pages of the set that can be had without an eviction. OutOfMemory, naming `what`,
  // when free and cached pages together do not suffice. `set` must outlive this object.
  SequenceImport(CacheState& cache, const SequenceSet& set, const char* what);
  ~SequenceImport();
  SequenceImport(const SequenceImport&) = delete;
  SequenceImport& operator=(const SequenceImport&) = delete;

  // Whether a page of the set is allocated already; the first of each group are.
  bool has_page(std::int64_t group, std::int64_t number) const;
  // Its page_bytes in the memory of the cache, to be filled.
  std::byte* page_data(std::int64_t group, std::int64_t number) const;
  // Allocates the others, evicting cached pages. The content of the cache changes here for the
  // first time.
  void allocate_all();
  // All pages are allocated and filled: the sequences, in order.
  std::vector<SequenceId> publish();

 private:
  CacheState& cache_;
  const SequenceSet& set_;
  std::vector<std::vector<PageHandle>> pages_;  // [group][number], of those that are allocated
  std::vector<Sequence> sequences_;             // ready but for their page handles
  std::vector<SequenceId> ids_;
};

}  // namespace touchstone::inline v0::cache
