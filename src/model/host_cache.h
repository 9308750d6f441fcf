// Swapped-out sequences in host memory: copied there and back while the device keeps running.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "touchstone/cache/kv_cache.h"
#include "touchstone/cache/transfer.h"

namespace touchstone::inline v0::model {

class HostCache {
 public:
  // Beside a cache of the same layout on `device`.
  HostCache(const cache::Layout& layout, std::vector<std::int64_t> pool_pages, Device device);

  // Moves a sequence from `cache` here. Absent, and nothing changed, where the pages do not suffice.
  std::optional<cache::SequenceId> swap_out(cache::KvCache& cache, cache::SequenceId id);
  // The reverse.
  std::optional<cache::SequenceId> swap_in(cache::KvCache& cache, cache::SequenceId id);
  void release(cache::SequenceId id);

 private:
  // Copies in progress, and the sequence that is released when they are done.
  struct Move {
    cache::Transfer transfer;
    std::optional<cache::SequenceId> left{};
  };
  // Waits for copies, and forgets those that are done.
  void finish_moves();

  cache::KvCache cache_;
  std::vector<Move> moves_{};  // after the cache: its copies end first
};

}  // namespace touchstone::inline v0::model
