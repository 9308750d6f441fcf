// The public face of CacheState.
#include "touchstone/cache/kv_cache.h"

#include "cache/cache_state.h"

namespace touchstone::inline v0::cache {

KvCache::KvCache(Context& context, KvCacheOptions options)
    : state_(std::make_unique<CacheState>(context.device(), context.stream(), std::move(options))) {
}
KvCache::~KvCache() = default;
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;

SequenceId KvCache::create() { return state_->create(); }
void KvCache::reserve(SequenceId id, std::int64_t tokens) { state_->reserve({&id, 1}, tokens); }
void KvCache::reserve(std::span<const SequenceId> ids, std::int64_t tokens) {
  state_->reserve(ids, tokens);
}
void KvCache::commit(SequenceId id, std::int64_t tokens) { state_->commit({&id, 1}, tokens); }
void KvCache::commit(std::span<const SequenceId> ids, std::int64_t tokens) {
  state_->commit(ids, tokens);
}
void KvCache::reserve(std::span<const TokenCount> counts, std::int64_t watermark) {
  state_->reserve(counts, watermark);
}
ReserveEstimate KvCache::estimate_reserve(std::span<const TokenCount> counts,
                                          std::int64_t watermark) const {
  return state_->estimate_reserve(counts, watermark);
}
ReserveEstimate KvCache::estimate_chunks(std::span<const TokenCount> counts,
                                         std::int64_t chunk) const {
  return state_->estimate_chunks(counts, chunk);
}
void KvCache::commit(std::span<const TokenCount> counts) { state_->commit(counts); }
void KvCache::keep(std::span<const KeptSlots> kept) { state_->keep(kept); }
void KvCache::set_eviction_hook(EvictionHook hook) { state_->set_eviction_hook(std::move(hook)); }
void KvCache::truncate(SequenceId id, std::int64_t length) { state_->truncate(id, length); }
SequenceId KvCache::fork(SequenceId id) { return state_->fork(id); }
void KvCache::advance_window(SequenceId id) { state_->advance_window(id); }
void KvCache::release(SequenceId id) { state_->release(id); }

void KvCache::insert_prefix(SequenceId id, std::span<const std::int32_t> tokens,
                            std::uint32_t space) {
  state_->insert_prefix(id, tokens, space);
}
PrefixHit KvCache::open_prefix(std::span<const std::int32_t> tokens, std::uint32_t space) {
  return state_->open_prefix(tokens, space);
}
std::int64_t KvCache::evict(std::int64_t pages) { return state_->evict(pages); }

std::int64_t KvCache::length(SequenceId id) const { return state_->length(id); }
std::int64_t KvCache::reserved(SequenceId id) const { return state_->sequence(id).reserved; }
const Layout& KvCache::layout() const { return state_->layout(); }
Device KvCache::device() const { return state_->device(); }
std::uint64_t KvCache::generation() const { return state_->generation(); }
Statistics KvCache::statistics() const { return state_->statistics(); }

}  // namespace touchstone::inline v0::cache
