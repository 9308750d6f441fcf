#include "touchstone/cache/transfer.h"

#include <set>
#include <string>

#include "cache/snapshot/sequence_import.h"
#include "cache/snapshot/sequence_set.h"
#include "cache/snapshot/snapshot_format.h"
#include "core/copy.h"
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
void copy_pages(const CacheState& from, const GatheredSet& gathered, const CacheState& to,
                const SequenceImport& imported) {
  const StreamLocation source{from.device(), from.stream()};
  const StreamLocation destination{to.device(), to.stream()};
  wait_for(source);
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
  wait_for(source);
  wait_for(destination);
}

std::vector<SequenceId> copy(const CacheState& from, std::span<const SequenceId> ids,
                             CacheState& to, const char* what) {
  check(from, to, what);
  const GatheredSet gathered = gather(from, ids);
  SequenceImport imported(to, gathered.set, what);
  imported.allocate_all();
  copy_pages(from, gathered, to, imported);
  return imported.publish();
}

}  // namespace

std::vector<SequenceId> copy_sequences(const KvCache& from, std::span<const SequenceId> ids,
                                       KvCache& to) {
  return copy(state_of(from), ids, state_of(to), "copy_sequences");
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
  std::vector<SequenceId> moved = copy(state_of(from), ids, state_of(to), "move_sequences");
  for (const SequenceId id : ids) from.release(id);
  return moved;
}

}  // namespace touchstone::inline v0::cache
