#include "touchstone/cache/transfer.h"

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "cache/snapshot/sequence_import.h"
#include "cache/snapshot/sequence_set.h"
#include "cache/snapshot/snapshot_format.h"
#include "core/copy.h"
#include "core/cuda_runtime.h"
#include "core/index.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

void check(const CacheState& from, const CacheState& to, const char* what) {
  if (&from == &to) {
    throw InvalidArgument(std::string(what) + ": to: expected another cache than from");
  }
  std::vector<GroupDescription> descriptions;
  for (const LayerGroup& group : from.layout().groups) descriptions.push_back(describe(group));
  check_same_layout(what, to.layout(), descriptions);
}

// Pages that lie side by side in both caches go in one copy.
void queue_pages(const CacheState& from, const GatheredSet& gathered, const CacheState& to,
                 const SequenceImport& imported) {
  const StreamLocation source{from.device(), from.stream()};
  const StreamLocation destination{to.device(), to.stream()};
  for (std::int64_t g = 0; g < from.groups(); ++g) {
    const std::vector<PageOrigin>& origins = gathered.origins[at(g)];
    const std::int64_t bytes = from.geometry(g).page_bytes;
    const auto* memory = static_cast<const std::byte*>(from.memory(g).data());
    std::int64_t end = 0;
    for (std::int64_t begin = 0; begin < std::ssize(origins); begin = end) {
      const std::int64_t first = origins[at(begin)].page.index;
      std::byte* place = imported.page_data(g, begin);
      end = begin + 1;
      while (end < std::ssize(origins) && origins[at(end)].page.index == first + end - begin &&
             imported.page_data(g, end) == place + (end - begin) * bytes) {
        ++end;
      }
      queue_copy(destination, place, source, memory + first * bytes, (end - begin) * bytes);
    }
  }
}

StreamLocation location_of(const CacheState& cache) { return {cache.device(), cache.stream()}; }

// The stream on which copies between these caches are queued.
StreamLocation copy_stream(const CacheState& from, const CacheState& to) {
  return location_of(to.device().is_cuda() ? to : from);
}

std::vector<SequenceId> copy(const CacheState& from, std::span<const SequenceId> ids,
                             CacheState& to, bool wait, const char* what) {
  check(from, to, what);
  const GatheredSet gathered = gather(from, ids);
  SequenceImport imported(to, gathered.set, what);
  imported.allocate_all();
  // Copies queued on another stream than the source's must not overtake its work.
  if (wait || to.device().is_cuda()) wait_for(location_of(from));
  queue_pages(from, gathered, to, imported);
  if (wait) wait_for(copy_stream(from, to));
  return imported.publish();
}

}  // namespace

std::vector<SequenceId> copy_sequences(const KvCache& from, std::span<const SequenceId> ids,
                                       KvCache& to) {
  return copy(state_of(from), ids, state_of(to), true, "copy_sequences");
}

std::vector<SequenceId> move_sequences(KvCache& from, std::span<const SequenceId> ids,
                                       KvCache& to) {
  std::set<std::uint32_t> seen;
  for (const SequenceId id : ids) {
    if (!seen.insert(id.index).second) {
      throw InvalidArgument("move_sequences: ids: sequence " + std::to_string(id.index) +
                            " is named twice");
    }
  }
  std::vector<SequenceId> moved = copy(state_of(from), ids, state_of(to), true, "move_sequences");
  for (const SequenceId id : ids) from.release(id);
  return moved;
}

struct Transfer::State {
  std::vector<SequenceId> sequences;
  int device = 0;
  void* event = nullptr;  // null: done
};

struct TransferAccess {
  static Transfer begin(const CacheState& from, std::span<const SequenceId> ids, CacheState& to) {
    auto state = std::make_unique<Transfer::State>();
    state->sequences = copy(from, ids, to, false, "copy_sequences_async");
    const StreamLocation queued = copy_stream(from, to);
    if (queued.device.is_cuda()) {
      state->device = queued.device.index;
      state->event = cuda::record_event(queued.device.index, queued.stream);
    }
    return Transfer(std::move(state));
  }
};

Transfer::Transfer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&& other) noexcept {
  std::swap(state_, other.state_);  // the destructor of `other` waits
  return *this;
}
Transfer::~Transfer() {
  if (state_ == nullptr || state_->event == nullptr) return;
  try {
    wait();
  } catch (const Error&) {
    // A device that failed has nothing under way.
  }
}

const std::vector<SequenceId>& Transfer::sequences() const { return state_->sequences; }
bool Transfer::done() const {
  return state_->event == nullptr || cuda::event_done(state_->device, state_->event);
}
void Transfer::wait() {
  if (state_->event == nullptr) return;
  cuda::wait_event(state_->device, state_->event);
  cuda::release_event(state_->device, state_->event);
  state_->event = nullptr;
}

Transfer copy_sequences_async(const KvCache& from, std::span<const SequenceId> ids, KvCache& to) {
  return TransferAccess::begin(state_of(from), ids, state_of(to));
}

}  // namespace touchstone::inline v0::cache
