// The positions one query of cached_attention attends to, and where its ancestors in a draft tree
// stand.
//
// A draft tree is stored in slots tree_start, tree_start + 1, ... of the row, several branches one
// after the other. On the path of one query its ancestors follow each other without gaps: ancestor
// number r, the r-th set bit, is at position tree_position + r of that path, in whatever slot it is
// stored. Sums are cut into splits by these positions, so that a tree node has the bits of its path
// decoded without a tree.
#pragma once

#include <bit>
#include <cstdint>

#include "ops/attention_common/visible_range.h"
#include "ops/attention_paged/paged_problem.h"

// Kept out of the kernels, where it is rare.
#ifdef __CUDACC__
#define TOUCHSTONE_PAGED_OUT_OF_LINE __host__ __device__ __noinline__
#else
#define TOUCHSTONE_PAGED_OUT_OF_LINE
#endif

namespace touchstone::paged_attention {

using attention_common::larger;
using attention_common::smaller;

// Slots [0, sinks), [begin, end), which are also their positions, and tree_start + j for every bit
// j set in `tree` that lies in [0, length). In this order they are ascending and do not overlap.
struct VisibleRange {
  std::int64_t sinks = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  const std::uint64_t* tree = nullptr;
  std::int64_t tree_words = 0;
  std::int64_t tree_start = 0;     // slot of bit 0
  std::int64_t tree_position = 0;  // of the first ancestor, >= end
  std::int64_t length = 0;
};

// Bits of a word of the tree that are slots of the row.
TOUCHSTONE_HOST_DEVICE inline std::uint64_t tree_word(const VisibleRange& visible,
                                                      std::int64_t word) {
  std::uint64_t bits = visible.tree[word];
  const std::int64_t first = visible.tree_start + 64 * word;  // slot of bit 0 of the word
  if (first <= -64 || first >= visible.length) return 0;
  if (first < 0) bits &= ~std::uint64_t{0} << -first;
  if (visible.length - first < 64) bits &= (std::uint64_t{1} << (visible.length - first)) - 1;
  return bits;
}

// One past the last slot that may be attended to, which also bounds positions.
TOUCHSTONE_HOST_DEVICE inline std::int64_t end_of(const VisibleRange& visible) {
  if (visible.tree == nullptr) return visible.end;
  return smaller(visible.length, visible.tree_start + 64 * visible.tree_words);
}

TOUCHSTONE_HOST_DEVICE inline int count_bits(std::uint64_t bits) {
#ifdef __CUDA_ARCH__
  return __popcll(bits);
#else
  return std::popcount(bits);
#endif
}

// Number of the lowest set bit; there is one.
TOUCHSTONE_HOST_DEVICE inline int lowest_bit(std::uint64_t bits) {
#ifdef __CUDA_ARCH__
  return __ffsll(static_cast<long long>(bits)) - 1;
#else
  return std::countr_zero(bits);
#endif
}

// A word of the tree and the number of ancestors in the words before it.
struct TreeCursor {
  std::int32_t word = 0;
  std::int32_t rank = 0;
};

// Slot of ancestor number `rank`, looked for from `from` on, which is not behind it; -1 if there
// are fewer ancestors.
TOUCHSTONE_HOST_DEVICE inline std::int64_t ancestor_slot(const VisibleRange& visible,
                                                         TreeCursor from, std::int64_t rank) {
  std::int64_t left = rank - from.rank;
  for (std::int64_t word = from.word; word < visible.tree_words; ++word) {
    std::uint64_t bits = tree_word(visible, word);
    const int count = count_bits(bits);
    if (left >= count) {
      left -= count;
      continue;
    }
    for (; left > 0; --left) bits &= bits - 1;
    return visible.tree_start + 64 * word + lowest_bit(bits);
  }
  return -1;
}

TOUCHSTONE_HOST_DEVICE inline bool attends(const VisibleRange& visible, std::int64_t slot) {
  if (slot < visible.end) return slot < visible.sinks || slot >= visible.begin;
  const std::int64_t bit = slot - visible.tree_start;
  if (visible.tree == nullptr || bit < 0 || bit / 64 >= visible.tree_words) return false;
  return (tree_word(visible, bit / 64) >> (bit % 64) & 1) != 0;
}

// Position of the first query of a row: its queries are the last tokens, unless positions are
// given.
TOUCHSTONE_HOST_DEVICE inline std::int64_t first_position(const PagedAttentionProblem& p,
                                                          std::int64_t row) {
  const std::int64_t first = p.query_offsets[row];
  if (p.positions != nullptr && first < p.queries) return p.positions[first];
  return p.lengths[row] - (p.query_offsets[row + 1] - first);
}

// Slot of bit 0 of the tree of a row. Clamped to where no bit is a slot of the row.
TOUCHSTONE_HOST_DEVICE inline std::int64_t tree_start(const PagedAttentionProblem& p,
                                                      std::int64_t row) {
  const std::int64_t start = p.tree_starts != nullptr ? p.tree_starts[row] : first_position(p, row);
  return smaller(larger(start, -64 * p.tree_words), p.lengths[row]);
}

// Position of the first ancestor. Where the window begins inside the tree, the ancestors before the
// window have no bits, and the first one that has stands at the beginning of the window.
TOUCHSTONE_PAGED_OUT_OF_LINE inline std::int64_t first_ancestor_position(
    VisibleRange visible, std::int64_t window_begin) {
  const std::int64_t slot = ancestor_slot(visible, {}, 0);
  return larger(larger(visible.tree_start, 0), smaller(window_begin, slot));
}

// Of a query at a position of a row of a length, whose tree, if there is one, begins at slot
// `tree_start`.
TOUCHSTONE_HOST_DEVICE inline VisibleRange range_before(const PagedAttentionProblem& p,
                                                        std::int64_t position, std::int64_t length,
                                                        std::int64_t tree_start,
                                                        std::int64_t window_begin) {
  VisibleRange visible;
  visible.length = length;
  visible.end = length;
  if (p.causal) visible.end = position < 0 ? 0 : (position < length ? position + 1 : length);
  visible.end = smaller(visible.end, tree_start);
  if (window_begin > 0) {
    visible.begin = smaller(window_begin, visible.end);
    visible.sinks = smaller(p.layers.sinks, visible.begin);
  }
  return visible;
}

// `query` counts over all rows.
TOUCHSTONE_HOST_DEVICE inline std::int64_t position_of(const PagedAttentionProblem& p,
                                                       std::int64_t row, std::int64_t query) {
  if (p.positions != nullptr) return p.positions[query];
  return p.lengths[row] - p.query_offsets[row + 1] + query;
}
TOUCHSTONE_HOST_DEVICE inline std::int64_t window_begin_of(const PagedAttentionProblem& p,
                                                           std::int64_t position) {
  const std::int64_t window = p.layers.window;
  return window > 0 && position >= window ? position - window + 1 : 0;
}

// Without a tree.
TOUCHSTONE_HOST_DEVICE inline VisibleRange chain_range(const PagedAttentionProblem& p,
                                                       std::int64_t row, std::int64_t query) {
  const std::int64_t position = position_of(p, row, query);
  return range_before(p, position, p.lengths[row], p.lengths[row], window_begin_of(p, position));
}

TOUCHSTONE_HOST_DEVICE inline VisibleRange visible_range(const PagedAttentionProblem& p,
                                                         std::int64_t row, std::int64_t query) {
  if (p.tree == nullptr) return chain_range(p, row, query);
  const std::int64_t position = position_of(p, row, query);
  const std::int64_t window_begin = window_begin_of(p, position);
  const std::int64_t start = tree_start(p, row);
  VisibleRange visible = range_before(p, position, p.lengths[row], larger(start, 0), window_begin);
  visible.tree = p.tree + query * p.tree_words;
  visible.tree_words = p.tree_words;
  visible.tree_start = start;
  visible.tree_position = larger(start, 0);
  if (window_begin > visible.tree_position) {
    visible.tree_position = first_ancestor_position(visible, window_begin);
  }
  return visible;
}

}  // namespace touchstone::paged_attention
