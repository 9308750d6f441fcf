// keep(): accepted tokens of the reserved part to its front, then committed.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "cache/cache_state.h"
#include "cache/token_move.h"
#include "core/index.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {

TokenBytes token_bytes_of(const LayerGroup& group, const PageGeometry& geometry,
                          std::byte* memory) {
  TokenBytes bytes{.memory = memory,
                   .page_bytes = geometry.page_bytes,
                   .layer_bytes = geometry.layer_bytes,
                   .page_tokens = group.page_tokens,
                   .layers = group.layers,
                   .heads = group.kv_heads};
  bytes.parts[0] = {geometry.k_values, value_bytes(group.k, group.k_dim)};
  bytes.parts[1] = {geometry.k_scales, scale_bytes(group.k, group.k_dim)};
  if (!group.k_is_v) {
    bytes.parts[2] = {geometry.v_values, value_bytes(group.v, group.v_dim)};
    bytes.parts[3] = {geometry.v_scales, scale_bytes(group.v, group.v_dim)};
  }
  return bytes;
}

void move_tokens_cpu(const MoveBatch& batch) {
  for (int r = 0; r < batch.run_count; ++r) {
    const MoveRun& run = batch.runs[at(r)];
    const TokenBytes& group = batch.groups[at(run.group)];
    for (std::int32_t m = run.first; m < run.first + run.count; ++m) {
      const TokenMove& move = batch.moves[at(m)];
      for (std::int64_t layer = 0; layer < group.layers; ++layer) {
        std::byte* from = group.memory + move.from_page * group.page_bytes;
        std::byte* to = group.memory + move.to_page * group.page_bytes;
        for (const StoredPart& part : group.parts) {
          if (part.bytes == 0) continue;
          const std::int64_t base = layer * group.layer_bytes + part.offset;
          for (std::int64_t head = 0; head < group.heads; ++head) {
            const std::int64_t row = head * group.page_tokens;
            std::memcpy(to + base + (row + move.to_slot) * part.bytes,
                        from + base + (row + move.from_slot) * part.bytes, at(part.bytes));
          }
        }
      }
    }
  }
}

namespace {

// Collects moves and runs a batch whenever it is full.
class MoveQueue {
 public:
  MoveQueue(Device device, void* stream)
      : device_(device), stream_(stream), batch_(std::make_unique<MoveBatch>()) {}

  // Moves of one run, at most kMaxMoves; `group` is a number of the cache.
  void add(std::int64_t group, const TokenBytes& bytes, std::span<const TokenMove> moves) {
    MoveBatch& batch = *batch_;
    const bool known = last_group_ == group && batch.group_count > 0;
    if (batch.run_count == MoveBatch::kMaxRuns ||
        batch.move_count + std::ssize(moves) > MoveBatch::kMaxMoves ||
        (!known && batch.group_count == MoveBatch::kMaxGroups)) {
      flush();
      return add(group, bytes, moves);
    }
    if (!known) batch.groups[at(batch.group_count++)] = bytes;
    last_group_ = group;
    batch.runs[at(batch.run_count++)] = {batch.group_count - 1, batch.move_count,
                                         static_cast<std::int32_t>(moves.size())};
    std::ranges::copy(moves, batch.moves.begin() + batch.move_count);
    batch.move_count += static_cast<std::int32_t>(moves.size());
  }

  void flush() {
    if (batch_->run_count == 0) return;
    if (device_.is_cuda()) {
      move_tokens_cuda(device_.index, stream_, *batch_);
    } else {
      move_tokens_cpu(*batch_);
    }
    batch_->group_count = batch_->run_count = batch_->move_count = 0;
  }

 private:
  Device device_;
  void* stream_;
  std::unique_ptr<MoveBatch> batch_;
  std::int64_t last_group_ = -1;
};

[[noreturn]] void refuse_keep(const std::string& what) {
  throw InvalidArgument("kv_cache: keep: " + what);
}

void check_slots(const Sequence& sequence, std::span<const std::int64_t> slots) {
  const std::int64_t reserved = sequence.reserved - sequence.length;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0 || slots[i] >= reserved) {
      refuse_keep("slots: expected 0 to " + std::to_string(reserved - 1) +
                  ", the reserved part, got " + std::to_string(slots[i]));
    }
    if (i > 0 && slots[i] <= slots[i - 1]) {
      refuse_keep("slots: expected ascending ones, got " + std::to_string(slots[i]) + " after " +
                  std::to_string(slots[i - 1]));
    }
  }
}

}  // namespace

void CacheState::check_kept(std::span<const KeptSlots> kept) const {
  std::vector<std::uint32_t> named;
  for (const KeptSlots& entry : kept) {
    check_slots(checked(entry.id, "keep").sequence, entry.slots);
    named.push_back(entry.id.index);
  }
  std::ranges::sort(named);
  if (std::ranges::adjacent_find(named) != named.end()) refuse_keep("a sequence is named twice");
}

void CacheState::keep(std::span<const KeptSlots> kept) {
  check_kept(kept);
  MoveQueue queue(device_, stream_);
  std::vector<TokenMove> moves;
  // Group by group, so that a launch names each group once.
  for (std::int64_t g = 0; g < groups(); ++g) {
    const Group& group = groups_[at(g)];
    const std::int64_t page_tokens = group.layer_group.page_tokens;
    const TokenBytes bytes = token_bytes_of(group.layer_group, group.geometry, memory_data(g));
    for (const KeptSlots& entry : kept) {
      const Sequence& sequence = slots_[entry.id.index].sequence;
      const std::vector<PageHandle>& pages = sequence.groups[at(g)].pages;
      moves.clear();
      for (std::int64_t i = 0; i < std::ssize(entry.slots); ++i) {
        if (entry.slots[at(i)] == i) continue;  // already there
        const std::int64_t from = sequence.length + entry.slots[at(i)];
        const std::int64_t to = sequence.length + i;
        moves.push_back({static_cast<std::int32_t>(pages[at(from / page_tokens)].index),
                         static_cast<std::int32_t>(from % page_tokens),
                         static_cast<std::int32_t>(pages[at(to / page_tokens)].index),
                         static_cast<std::int32_t>(to % page_tokens)});
        if (std::ssize(moves) == MoveBatch::kMaxMoves) {
          queue.add(g, bytes, moves);
          queue.flush();  // the rest of a run comes after its beginning
          moves.clear();
        }
      }
      if (!moves.empty()) queue.add(g, bytes, moves);
    }
  }
  queue.flush();
  for (const KeptSlots& entry : kept) {
    slots_[entry.id.index].sequence.length += std::ssize(entry.slots);
  }
  ++generation_;
}

}  // namespace touchstone::inline v0::cache
