// Sequences from one cache to another of the same layout: to host memory when a GPU is full, and
// back. The host tier is a cache like any other, and can hold prefixes too:
//
//   KvCache host(cpu_context, {.layout = layout, .pool_pages = many, .page_locked = true});
//   const std::vector<SequenceId> away = move_sequences(gpu, ids, host);
//   ...
//   ids = move_sequences(host, away, gpu);
//
// Pages that several of the sequences share are copied once and shared again. Pages that a moved
// sequence shared with one that stays remain with that one. Committed tokens only;
// reserved slots are not copied. All or nothing: a call that throws has changed neither cache,
// except that DeviceError may be thrown after evictions. Calls return when the copies are complete.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "touchstone/cache/kv_cache.h"
#include "touchstone/core/export.h"

namespace touchstone::inline v0::cache {

// The sequences in `to`, in the order of `ids`. Cached pages of `to` are evicted where free ones do
// not suffice. OutOfMemory when that is not enough; InvalidArgument for a stale id, for another
// layout (naming the field), and when both caches are the same.
TOUCHSTONE_API std::vector<SequenceId> copy_sequences(const KvCache& from,
                                                      std::span<const SequenceId> ids, KvCache& to);

// The same; then `from` releases them: a page without another owner becomes free, or cached
// where it is in the prefix index. InvalidArgument also for an id that is named twice.
TOUCHSTONE_API std::vector<SequenceId> move_sequences(KvCache& from,
                                                      std::span<const SequenceId> ids, KvCache& to);

// Copies in progress. The destructor waits for them.
class TOUCHSTONE_API Transfer {
 public:
  Transfer(Transfer&&) noexcept;
  Transfer& operator=(Transfer&&) noexcept;
  ~Transfer();

  // In the destination, in the order of the ids.
  const std::vector<SequenceId>& sequences() const;
  bool done() const;
  void wait();

 private:
  friend struct TransferAccess;
  struct State;
  explicit Transfer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// copy_sequences() without waiting. The copies are queued on the stream of the cache on CUDA (of
// `to` where both are): work queued there later sees them complete, and may overwrite what they
// read. The cache on the CPU should be page_locked: copies of pageable memory block the caller.
// Until done() its new sequences must not be read, and its old ones not be changed. Between caches
// on the CPU, and from one stream to another, the call waits as copy_sequences() does.
TOUCHSTONE_API Transfer copy_sequences_async(const KvCache& from, std::span<const SequenceId> ids,
                                             KvCache& to);

}  // namespace touchstone::inline v0::cache
