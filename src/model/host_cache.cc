#include "model/host_cache.h"

#include <utility>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::model {
namespace {

cache::KvCache make_cache(const cache::Layout& layout, std::vector<std::int64_t> pool_pages,
                          Device device) {
  Context context({.threads = 1});
  return {context,
          {.layout = layout, .pool_pages = std::move(pool_pages), .page_locked = device.is_cuda()}};
}

std::optional<cache::Transfer> copied(const cache::KvCache& from, cache::SequenceId id,
                                      cache::KvCache& to) {
  try {
    const cache::SequenceId ids[] = {id};
    return cache::copy_sequences_async(from, ids, to);
  } catch (const OutOfMemory&) {
    return std::nullopt;
  }
}

}  // namespace

HostCache::HostCache(const cache::Layout& layout, std::vector<std::int64_t> pool_pages,
                     Device device)
    : cache_(make_cache(layout, std::move(pool_pages), device)) {}

void HostCache::finish_moves() {
  for (Move& move : moves_) {
    move.transfer.wait();
    if (move.left) cache_.release(*move.left);
  }
  moves_.clear();
}

std::optional<cache::SequenceId> HostCache::swap_out(cache::KvCache& cache, cache::SequenceId id) {
  std::optional<cache::Transfer> transfer = copied(cache, id, cache_);
  if (!transfer && !moves_.empty()) {
    finish_moves();
    transfer = copied(cache, id, cache_);
  }
  if (!transfer) return std::nullopt;
  const cache::SequenceId here = transfer->sequences()[0];
  moves_.push_back({std::move(*transfer)});
  // Work queued on the stream later may overwrite the pages: it runs after the copies.
  cache.release(id);
  return here;
}

std::optional<cache::SequenceId> HostCache::swap_in(cache::KvCache& cache, cache::SequenceId id) {
  finish_moves();  // also the copies to the host that are in progress
  std::optional<cache::Transfer> transfer = copied(cache_, id, cache);
  if (!transfer) return std::nullopt;
  const cache::SequenceId there = transfer->sequences()[0];
  moves_.push_back({std::move(*transfer), id});
  return there;
}

void HostCache::release(cache::SequenceId id) {
  finish_moves();
  cache_.release(id);
}

}  // namespace touchstone::inline v0::model
