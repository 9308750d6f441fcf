// Launches the split kernels of cached_attention, and merges what the splits leave.
#include <algorithm>
#include <bit>

#include "core/context_access.h"
#include "cuda/hopper.cuh"
#include "ops/attention_paged/cuda/paged_split.cuh"
#include "touchstone/core/checked.h"

namespace touchstone::paged_attention {
namespace {

// Splits are summed in this many chains, the first in chain 0, the next in chain 1, and so on;
// chains are summed in order.
constexpr int kChains = 4;

// The largest of all threads' values, to all of them.
__device__ float largest_of_block(float x) {
  __shared__ float of_warps[kChains * kWarps];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) x = fmaxf(x, of_warps[warp]);
  return x;
}

// Sums of weighted values and of weights over some splits.
struct ChainSums {
  float value = 0;
  float weight = 0;
};

// One query token and head.
class Merge {
 public:
  __device__ Merge(const SplitWork& work, const SplitRange& range)
      : work_(work),
        range_(range),
        count_(static_cast<int>(range.sinks + range.end - range.begin)),
        partials_(work.partials + blockIdx.x * work.splits),
        values_(work.partial_values + blockIdx.x * work.splits * work.p.layers.v_dim) {}

  __device__ float largest() const {
    float result = minus_infinity();
    for (int i = static_cast<int>(threadIdx.x); i < count_; i += static_cast<int>(blockDim.x)) {
      result = fmaxf(result, partials_[split_of(i)].x);
    }
    return largest_of_block(result);
  }

  // Some chains of the number d of the output. The values of a tile are loaded before the
  // weights: they take as long to come.
  template <int kOwn>
  __device__ void add(int first_chain, std::int64_t d, float largest,
                      ChainSums (&sums)[kOwn]) const {
    constexpr int kAtOnce = 16 / kOwn;        // of each chain
    constexpr int kTile = kAtOnce * kChains;  // of all
    __shared__ float2 weighted[kTile];        // factor and sum of weights of some splits
    const float* const own = values_ + smaller(d, work_.p.layers.v_dim - 1);
    for (int tile = 0; tile < count_; tile += kTile) {
      float x[kAtOnce][kOwn];
#pragma unroll
      for (int i = 0; i < kAtOnce * kOwn; ++i) {
        const int at = tile + first_chain + i / kOwn * kChains + i % kOwn;
        if (at < count_) x[i / kOwn][i % kOwn] = own[split_of(at) * work_.p.layers.v_dim];
      }
      __syncthreads();
      if (const int i = tile + static_cast<int>(threadIdx.x); threadIdx.x < kTile && i < count_) {
        const float2 partial = partials_[split_of(i)];
        weighted[threadIdx.x] = {weight_of(partial.x, largest), partial.y};
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kAtOnce * kOwn; ++i) {
        const int of_tile = first_chain + i / kOwn * kChains + i % kOwn;
        if (tile + of_tile >= count_) break;
        const float2 with = weighted[of_tile];
        ChainSums& to = sums[i % kOwn];
        to.value = fmaf(x[i / kOwn][i % kOwn], with.x, to.value);
        to.weight = fmaf(with.y, with.x, to.weight);
      }
    }
  }

 private:
  __device__ std::int64_t split_of(int i) const {
    return i < range_.sinks ? i : i - range_.sinks + range_.begin;
  }

  const SplitWork& work_;
  SplitRange range_;
  int count_;
  const float2* partials_;
  const float* values_;
};

// A block for each query token and head, for each number of its output kSide threads, each for some
// of the chains.
template <int kSide>
__global__ void __launch_bounds__(kSide* kThreads)
    merge_kernel(const __grid_constant__ SplitWork work) {
  if constexpr (cuda::kHopper) cuda::pdl_launch_dependents();
  constexpr int kOwn = kChains / kSide;
  const PagedAttentionProblem& p = work.p;
  const auto query_heads = static_cast<std::uint32_t>(p.query_heads);
  const std::int64_t head = blockIdx.x % query_heads;
  const std::int64_t query = work.first_query + blockIdx.x / query_heads;
  const SplitRange range =
      splits_of(visible_range(p, row_of(p, query), query), work.splits, work.split);
  if constexpr (cuda::kHopper) cuda::pdl_wait();
  const Merge merge(work, range);
  const float largest = merge.largest();

  __shared__ ChainSums chains[kChains][kThreads];
  const auto side = static_cast<int>(threadIdx.x) / kThreads;
  const auto thread = static_cast<int>(threadIdx.x) % kThreads;
  for (std::int64_t first = 0; first < p.layers.v_dim; first += kThreads) {
    const std::int64_t d = first + thread;
    ChainSums own[kOwn];
    merge.add(side * kOwn, d, largest, own);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) chains[side * kOwn + i][thread] = own[i];
    __syncthreads();
    if (side > 0) continue;
    ChainSums sums;
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) {
      sums.value = __fadd_rn(sums.value, chains[chain][thread].value);
      sums.weight = __fadd_rn(sums.weight, chains[chain][thread].weight);
    }
    const SoftmaxEpilogue epilogue(p.sink_logits, head, largest, sums.weight);
    if (d < p.layers.v_dim) {
      store_output(p, p.output.offset(query, head) + d,
                   epilogue.nothing ? 0 : __fmul_rn(sums.value, epilogue.factor));
    }
    if (d == 0 && p.log_sum_exp.data != nullptr) {
      p.log_sum_exp.data[p.log_sum_exp.offset(query, head)] = epilogue.log_sum_exp;
    }
  }
}

// Side by side where there are few outputs to keep the device busy.
void launch_merge(Context& context, const SplitWork& work, bool hopper) {
  const std::int64_t outputs = work.queries * work.p.query_heads;
  const bool few = outputs <= tuning::kMaxWideMergeOutputs;
  cuda::launch(context, "cached_attention merge_kernel",
               few ? merge_kernel<kChains> : merge_kernel<1>,
               {.blocks = static_cast<unsigned>(outputs),
                .threads = static_cast<unsigned>(few ? kChains * kThreads : kThreads),
                .pdl = hopper},
               work);
}

}  // namespace

SplitWork split_work(const PagedAttentionProblem& p, int split) {
  const cache::LayerGroup& layers = p.layers;
  const cache::TokenOffsets at = cache::token_offsets(layers, p.pages.geometry, p.layer, 0, 0);
  SplitWork work;
  work.p = p;
  work.keys = {layers.k,    layers.k_dim,
               at.k_values, cache::value_bytes(layers.k, layers.k_dim),
               at.k_scales, cache::scale_bytes(layers.k, layers.k_dim)};
  work.values = {layers.v,    layers.v_dim,
                 at.v_values, cache::value_bytes(layers.v, layers.v_dim),
                 at.v_scales, cache::scale_bytes(layers.v, layers.v_dim)};
  if (layers.k_is_v) work.values = work.keys;
  work.table = p.pages.page_table.data();
  if (const auto tokens = static_cast<std::uint64_t>(p.pages.page_tokens);
      std::has_single_bit(tokens)) {
    work.page_shift = std::countr_zero(tokens);
  }
  work.split = split;
  work.splits = std::max<std::int64_t>(
      1, ceil_div(checked_mul(p.pages.table_stride, p.pages.page_tokens), split));
  return work;
}

std::int64_t query_tile(const Context& context, const PagedAttentionProblem& p) {
  // One: rows of a query each, whose CTAs look for others with the same pages.
  std::int64_t tile = std::clamp<std::int64_t>(p.queries / p.rows, 1, tuning::kMaxQueryTile);
  constexpr std::int64_t kPassVectors = 8;
  const std::int64_t least = std::max<std::int64_t>(2, kPassVectors / p.heads_per_kv);
  const std::int64_t wanted =
      tuning::kTiledCtasPerSm * cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  // Of the splits only the first is sure to be there.
  while (tile > least && ceil_div(p.queries, tile) * p.layers.kv_heads < wanted) {
    tile = std::max(least, tile / 2);
  }
  return tile;
}

void run_splits(Context& context, const PagedAttentionProblem& p, const SplitLaunch& launch) {
  const cuda::DeviceScope scope(context.device().index);
  SplitWork work = split_work(p, launch.split);
  work.tile = query_tile(context, p);
  const std::int64_t partials = checked_mul(p.query_heads, work.splits, "partial results");
  const std::int64_t value_bytes = checked_mul(partials, p.layers.v_dim * 4, "partial results");
  const std::int64_t query_bytes = value_bytes + partials * 8;
  constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 30;
  std::int64_t at_once = std::max<std::int64_t>(
      1, kMaxBlocks / std::max(p.query_heads, p.layers.kv_heads * work.splits));
  const bool merges = work.splits > 1;
  if (work.tile == 1) {
    // Several waves of CTAs, so that the tail is short.
    const std::int64_t blocks =
        tuning::kBlocksPerSm * cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
    const std::int64_t pieces = checked_mul(p.queries, p.layers.kv_heads * work.splits);
    work.splits_per_block =
        std::clamp<std::int64_t>(pieces / blocks, 1, tuning::kMaxSplitsPerBlock);
  }
  const bool hopper = cuda::is_hopper(context);
  // At least one query token: where it does not fit, workspace() throws with the bytes to reserve.
  if (merges) {
    at_once = std::clamp<std::int64_t>(context.workspace_bytes() / query_bytes, 1, at_once);
  }
  at_once = std::min(at_once, p.queries);
  if (merges) {
    auto* const scratch =
        static_cast<std::byte*>(detail::ContextAccess::workspace(context, at_once * query_bytes));
    work.partials = reinterpret_cast<float2*>(scratch);
    work.partial_values = reinterpret_cast<float*>(scratch + at_once * partials * 8);
  }
  for (std::int64_t first = 0; first < p.queries; first += at_once) {
    work.first_query = first;
    work.queries = std::min(at_once, p.queries - first);
    const std::int64_t tiles = ceil_div(work.queries, work.tile);
    launch.run(context, work,
               static_cast<unsigned>(tiles * p.layers.kv_heads *
                                     ceil_div(work.splits, work.splits_per_block)));
    if (!merges) continue;
    launch_merge(context, work, hopper);
  }
}

}  // namespace touchstone::paged_attention
