// cached_attention on CUDA: what its kernels share.
//
// A block computes one split of kSplit positions, for one KV head and some query tokens.
// It lists the tokens of the split that a query attends to; queries with the same list share it, as
// many vectors (query tokens x heads of the KV head) at a time as the kernel holds. Pass 1 reads
// the keys and leaves all scores of the piece in shared memory, then they become weights, and pass
// 2 reads the values. Where there is more than one piece a second kernel merges them, in order.
//
// Determinism: every sum runs over the list in an order that only the number
// of a token in the list decides; what fills the end of the list adds an exact zero; the largest
// score of a piece, and of all pieces, has no order; products that are summed are fused explicitly.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "ops/attention_common/attention_math.cuh"
#include "ops/attention_common/refusal.h"
#include "ops/attention_paged/cached_attention_tuning.h"
#include "ops/attention_paged/paged_problem.h"
#include "ops/attention_paged/paged_visible_range.h"

namespace touchstone::paged_attention {

using attention_common::kAllLanes;
using attention_common::kLog2E;
using attention_common::minus_infinity;
using attention_common::SoftmaxEpilogue;
using attention_common::weight_of;

// Positions that are summed before sums are merged, unless a kernel overrides it.
inline constexpr int kSplit = tuning::kSplit;
inline constexpr int kThreads = 128;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kRun = 16;  // tokens that lie side by side where pages allow it

// Keys or values of the layer: offsets in a page of head 0 in slot 0, and the bytes of a vector.
struct Section {
  QuantFormat format{};
  std::int64_t dim = 0;
  std::int64_t values = 0;
  std::int64_t value_bytes = 0;
  std::int64_t scales = 0;
  std::int64_t scale_bytes = 0;
};

// What a split kernel is launched with: some of the query tokens, so that partial results fit.
struct SplitWork {
  PagedAttentionProblem p;
  Section keys, values;
  const std::int32_t* table = nullptr;
  int page_shift = -1;  // log2 of the tokens of a page; -1: that is no power of two
  int split = kSplit;   // positions of a split
  std::int64_t first_query = 0;
  std::int64_t queries = 0;
  std::int64_t tile = 1;    // query tokens of a block
  std::int64_t splits = 1;  // capacity of the page table
  std::int64_t splits_per_block = 1;
  int prefill_queries = 0;  // rows with this many queries are not for this kernel; 0: all are
  // Of each query token, head and split; null: there is one split, whose result is the output.
  float* partial_values = nullptr;  // [queries, query_heads, splits, v_dim]
  float2* partials = nullptr;       // [queries, query_heads, splits]: largest score, sum of weights
};

// One of the split kernels: the positions it splits at, and what runs the blocks for all query
// tokens, KV heads and splits of the work.
struct SplitLaunch {
  int split = kSplit;
  void (*run)(Context& context, const SplitWork& work, unsigned blocks) = nullptr;
};

// What the kernels that copy 16 bytes at a time refuse of the pages, or nothing.
inline std::string refuses_pages(const PagedAttentionProblem& p) {
  constexpr std::int64_t kMaxPageTokens = (std::int64_t{1} << 31) - 1;
  if (reinterpret_cast<std::uintptr_t>(p.pages.memory) % cache::kSectionAlignment != 0) {
    return "pages are not aligned to 16 bytes";
  }
  if (p.pages.page_tokens > kMaxPageTokens) {
    return attention_common::above("page_tokens", p.pages.page_tokens, kMaxPageTokens);
  }
  return {};
}

// The work of all query tokens, without partial results.
SplitWork split_work(const PagedAttentionProblem& p, int split);
// Query tokens of a CTA.
std::int64_t query_tile(const Context& context, const PagedAttentionProblem& p);

// In waves of query tokens, each merged if there is something to merge.
void run_splits(Context& context, const PagedAttentionProblem& p, const SplitLaunch& launch);

// Keys and values of bf16 with heads of 64 and 128: paged_bf16.cu.
void cached_attention_bf16(Context& context, const PagedAttentionProblem& p, bool ctas);

// The row of a query token. Most often every row has one.
__device__ inline std::int64_t row_of(const PagedAttentionProblem& p, std::int64_t query) {
  const std::int64_t guess = smaller(query, p.rows - 1);
  if (p.query_offsets[guess] <= query && query < p.query_offsets[guess + 1]) return guess;
  std::int64_t row = 0;
  for (std::int64_t end = p.rows; end - row > 1;) {
    const std::int64_t middle = (row + end) / 2;
    (p.query_offsets[middle] <= query ? row : end) = middle;
  }
  return row;
}

// The splits that have a partial result for a query: [0, sinks) and [begin, end).
struct SplitRange {
  std::int64_t sinks, begin, end;

  __device__ bool has(std::int64_t split) const {
    return split < sinks || (begin <= split && split < end);
  }
};

__device__ inline SplitRange splits_of(const VisibleRange& visible, std::int64_t splits,
                                       int split) {
  const auto up = [&](std::int64_t end) {
    return smaller((larger(end, 0) + split - 1) / split, splits);
  };
  const std::int64_t sinks = up(visible.sinks);
  // Behind the window there may be nothing before the tree.
  const bool tree_only = visible.tree != nullptr && visible.begin >= visible.end;
  const std::int64_t first = tree_only ? visible.tree_position : visible.begin;
  const std::int64_t begin = larger(first / split, sinks);
  return {sinks, begin, larger(begin, up(larger(visible.end, end_of(visible))))};
}

// The tokens of a split a query attends to, apart from a tree: [0, sinks) and [begin, end).
struct SplitMask {
  int sinks, begin, end;
  bool tree;  // a tree reaches into the split

  // A beginning of the split and nothing else.
  __device__ bool is_beginning() const { return !tree && begin <= sinks; }

  // Whether two queries certainly attend to the same tokens.
  __device__ bool same(const SplitMask& other) const {
    return !tree && !other.tree && sinks == other.sinks && begin == other.begin && end == other.end;
  }
};

__device__ inline SplitMask split_mask(const VisibleRange& visible, std::int64_t first, int split) {
  const auto within = [&](std::int64_t position) {
    return static_cast<int>(smaller(larger(position - first, 0), split));
  };
  const bool tree =
      visible.tree != nullptr && visible.tree_position < first + split && end_of(visible) > first;
  return {within(visible.sinks), within(visible.begin), within(visible.end), tree};
}

__device__ inline void store_output(const PagedAttentionProblem& p, std::int64_t at, float value) {
  if (p.output_dtype == DType::f32) {
    static_cast<float*>(p.output.data)[at] = value;
  } else if (p.output_dtype == DType::bf16) {
    static_cast<Bf16*>(p.output.data)[at] = cuda::narrow<Bf16>(value);
  } else {
    static_cast<F16*>(p.output.data)[at] = cuda::narrow<F16>(value);
  }
}

}  // namespace touchstone::paged_attention
