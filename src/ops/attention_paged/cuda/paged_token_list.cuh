// The tokens of a split that are attended to, as the split kernels read them.
#pragma once

#include "ops/attention_paged/cuda/paged_cuda.cuh"

namespace touchstone::paged_attention {

// Where a token is: what a thread reads in one access.
struct alignas(16) PageSlot {
  std::int64_t page;  // bytes to its beginning
  std::uint32_t slot;

  __device__ static PageSlot of(std::int32_t number, std::uint32_t slot, std::int64_t page_bytes) {
    return {number * page_bytes, slot};
  }
};

// What a block finds out about its query token.
struct QueryInfo {
  std::int64_t row;
  VisibleRange visible;
  SplitRange range;
};

// The tokens that are attended to. A kernel has a list of their slots (`slots`), or, with
// kRunList, one of runs of kRun tokens that lie side by side (`runs`); where they do not, a list of
// their positions in the split (`positions`).
struct TokenList {
  int tokens;
  bool dense;  // there are runs
  // Otherwise the pages of the split, and the slot of its first position in the first of them.
  std::uint32_t first_slot;
  const std::int32_t* pages;
  // Positions of the split from this one on are ancestors in a tree, which are in slots of their
  // own (QueryInfo::visible): to be looked for from `tree` on.
  int first_ancestor;
  TreeCursor tree;
  std::int64_t first_position;  // of the split
};

// Slot of the ancestor at a position. Out of line, like all that is long and rare; the range is in
// shared memory.
__device__ __noinline__ inline std::int64_t ancestor_slot_of(const VisibleRange& visible,
                                                             TreeCursor from,
                                                             std::int64_t position) {
  return ancestor_slot(visible, from, position - visible.tree_position);
}

// The word that holds the ancestor at a position, or the first one. By a whole warp.
__device__ __noinline__ inline TreeCursor find_ancestor(const VisibleRange& visible,
                                                        std::int64_t position) {
  const std::int64_t rank = larger(position - visible.tree_position, 0);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  TreeCursor cursor;
  for (std::int64_t first = 0; first < visible.tree_words; first += 32) {
    const std::int64_t word = first + lane;
    const int count = word < visible.tree_words ? count_bits(tree_word(visible, word)) : 0;
    int before = count;  // of lanes up to this one
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(kAllLanes, before, offset);
      if (lane >= offset) before += other;
    }
    const unsigned behind = __ballot_sync(kAllLanes, static_cast<int>(cursor.rank + before > rank));
    if (behind != 0) {
      const int found = __ffs(static_cast<int>(behind)) - 1;
      cursor.word = static_cast<std::int32_t>(first) + found;
      cursor.rank += __shfl_sync(kAllLanes, before - count, found);
      return cursor;
    }
    cursor.word = static_cast<std::int32_t>(first) + 32;
    cursor.rank += __shfl_sync(kAllLanes, before, 31);
  }
  return cursor;
}

// Lists the tokens of a split in general: those that are attended to and have a page. Out of line:
// a split of which a query attends to a beginning, in pages of whole runs, is listed without it.
template <class Shared>
class TokenLister {
 public:
  // Tokens of row `row` from position `first` on. Visible to all threads after the next barrier.
  __device__ __noinline__ static void list(const SplitWork& work, Shared& shared,
                                           std::int64_t first, std::int64_t row, SplitMask mask) {
    const cache::GroupView& view = work.p.pages;
    const auto page_tokens = static_cast<std::uint32_t>(view.page_tokens);
    const std::int64_t first_page = first / page_tokens;
    const auto first_slot = static_cast<std::uint32_t>(first - first_page * page_tokens);
    const std::int32_t* const pages = work.table + row * view.table_stride + first_page;
    const std::int64_t capacity = view.table_stride * view.page_tokens - first;
    const VisibleRange& visible = shared.info.visible;
    TreeCursor tree;
    int first_ancestor = kSplit;
    if (mask.tree) {
      tree = find_ancestor(visible, first);
      first_ancestor = static_cast<int>(larger(visible.tree_position - first, 0));
    }
    int before = 0;
#pragma unroll 1
    for (int begin = 0; begin < kSplit; begin += kAtOnce * kThreads) {
      std::int32_t numbers[kAtOnce];
      std::uint32_t slots[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int token = begin + i * kThreads + static_cast<int>(threadIdx.x);
        numbers[i] = -1;
        bool attended = token < mask.end && (token < mask.sinks || token >= mask.begin);
        std::int64_t offset = token;  // of its slot, from that of the first position on
        if (token >= first_ancestor) {
          const std::int64_t slot = ancestor_slot_of(visible, tree, first + token);
          attended = slot >= 0;
          offset = slot - first;
        }
        const std::uint32_t at = first_slot + static_cast<std::uint32_t>(offset);
        const std::uint32_t page = at / page_tokens;
        slots[i] = at - page * page_tokens;
        if (attended && offset < capacity) numbers[i] = pages[page];
      }
      before = pick(shared, numbers, slots, view.geometry.page_bytes, begin, before);
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      shared.list = {before, false, first_slot, pages, first_ancestor, tree, first};
    }
  }

 private:
  static constexpr int kSplit = Shared::kSplit;
  static constexpr int kAtOnce = 4;  // tokens of a thread

  // Those that have a page; `before` are there already. Returns how many there are then.
  __device__ static int pick(Shared& shared, const std::int32_t (&numbers)[kAtOnce],
                             const std::uint32_t (&slots)[kAtOnce], std::int64_t page_bytes,
                             int begin, int before) {
    unsigned present[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      present[i] = __ballot_sync(kAllLanes, static_cast<int>(numbers[i] >= 0));
      if (threadIdx.x % 32 == 0) shared.counts[i * kWarps + threadIdx.x / 32] = __popc(present[i]);
    }
    __syncthreads();
    for (int group = 0, i = 0; i < kAtOnce; ++i) {
      for (int warp = 0; warp < kWarps; ++warp, ++group) {
        if (warp == static_cast<int>(threadIdx.x / 32) && numbers[i] >= 0) {
          const int at = before + __popc(present[i] & ((1U << (threadIdx.x % 32)) - 1));
          if constexpr (Shared::kRunList) {
            shared.positions[at] =
                static_cast<std::uint16_t>(begin + i * kThreads + static_cast<int>(threadIdx.x));
          } else {
            shared.slots[at] = PageSlot::of(numbers[i], slots[i], page_bytes);
          }
        }
        before += shared.counts[group];
      }
    }
    return before;
  }
};

}  // namespace touchstone::paged_attention
