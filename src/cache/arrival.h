// Sequences on their way into a cache. Until publish() nobody sees them, and without it every page
// goes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/sequence_set.h"

namespace touchstone::cache {

class Arrival {
 public:
  // Takes those pages of the set that can be had without an eviction. OutOfMemory, naming `what`,
  // when free and cached pages together do not suffice. `set` must outlive this object.
  Arrival(KvCache& cache, const SequenceSet& set, const char* what);
  ~Arrival();
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;

  // Whether a page of the set has a place already; the first of each group have.
  bool has_place(std::int64_t group, std::int64_t number) const;
  // That place: page_bytes in the memory of the cache, to be filled.
  std::byte* place_of(std::int64_t group, std::int64_t number) const;
  // Evicts cached pages, so that all have a place. The content of the cache changes here for the
  // first time.
  void place_all();
  // All have a place and are filled: the sequences, in order.
  std::vector<SequenceId> publish();

 private:
  KvCache& cache_;
  const SequenceSet& set_;
  std::vector<std::vector<PageHandle>> pages_;  // [group][number], of those that have a place
  std::vector<Sequence> sequences_;             // ready but for their page handles
  std::vector<SequenceId> ids_;
};

}  // namespace touchstone::cache
