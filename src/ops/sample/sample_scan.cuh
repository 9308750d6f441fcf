// Sampling by one scan of each row, shared with softmax_topk: a block per row, or a cluster of
// blocks where there are few rows. The scan leaves the first tokens in order and the sum of every
// segment; the block that finishes the row draws from those. Only rows whose cut is further down,
// or too close to call, or whose values overflow f32, are read again.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cuda/launch.h"
#include "ops/sample/sample_finish.cuh"
#include "ops/sample/sample_kernels.h"

namespace touchstone::sampling {

// So many fit beside each other: plain rows off the grid need some more registers, deep scans twice
// as many.
template <bool kPlain, bool kOnGrid, int kDepth>
inline constexpr int kScanBlocksPerSm = kDepth == 4          ? 2
                                        : kOnGrid || !kPlain ? 4
                                                             : 3;

// A function that is not inlined reads the parameters of a kernel from memory, and they are far the
// first time. So there is a copy of them in shared memory, from the next barrier on.
inline constexpr int kNearbyBytes = (sizeof(ScanParams) + 15) / 16 * 16;
__device__ inline const ScanParams& bring_nearby(const ScanParams& params, unsigned char* memory) {
  using Word = std::uint64_t;
  constexpr int kWords = sizeof(ScanParams) / sizeof(Word);
  static_assert(alignof(ScanParams) == alignof(Word) && kWords <= topk::kScanThreads);
  const unsigned i = threadIdx.x;
  if (i < kWords) {
    reinterpret_cast<Word*>(memory)[i] = reinterpret_cast<const Word*>(&params)[i];
  }
  return *reinterpret_cast<const ScanParams*>(memory);
}

// Where things are in dynamic shared memory: the scan's, the row's, parameters, the history's.
template <class Memory = ScanShared>
__host__ __device__ std::int64_t state_offset(const ScanParams& params) {
  return (Memory::bytes(params.shape) + 15) / 16 * 16;
}
template <class Memory = ScanShared>
__host__ __device__ std::int64_t nearby_offset(const ScanParams& params) {
  return state_offset<Memory>(params) +
         (static_cast<std::int64_t>(sizeof(RowState)) + 15) / 16 * 16;
}
template <class Memory = ScanShared>
__host__ __device__ std::int64_t history_offset(const ScanParams& params) {
  return nearby_offset<Memory>(params) + kNearbyBytes;
}

// A plain row that a block has to itself, and that wants more tokens in order than a warp draws
// from; `first` has asked for its first segments. A scan of its own: what a scan spills depends on
// all that may follow it.
template <class T, bool kOnGrid, class First>
__device__ void sample_wide_row(const ScanParams& params, std::int64_t row, unsigned char* memory,
                                const RowControls& controls, const First& first) {
  using Values = topk::RowValues<T>;
  // As in softmax_topk.
  constexpr ScanWay kWay = std::is_same_v<T, Bf16> ? ScanWay::guess : ScanWay::alone;
  using Scan = topk::RowScan<Values, true, kOnGrid, 2, kWay>;
  const Sampling& p = params.p;
  const ScanShape& shape = params.shape;
  auto& shared = *reinterpret_cast<ScanShared*>(memory);
  auto& state = *reinterpret_cast<RowState*>(memory + state_offset<>(params));
  if (!controls.legal) return refuse_row(p, row, kRowBadParameter);
  const ScanParams& nearby = bring_nearby(params, memory + nearby_offset<>(params));
  const double inverse = 1 / weighing_temperature(controls);
  keep_state<topk::kScanThreads>(p, row, controls, inverse, state);
  int k = wanted_places(p, controls, params.places);
  if (threadIdx.x == 0) state.places = k;
  Scan scan(shape, shared, plain_values<T>(p, row));
  scan.start_with(first.loaded());
  scan.run(k, topk::exponent_scale(inverse));
  if ((shared.flags & ScanShared::kNan) != 0) return refuse_row(p, row, kRowHasNan);
  k = state.places;
  const Values values = plain_values<T>(p, row);
  const int above = topk::sort_candidates<typename Scan::Held>(shape, k, shared, values);
  const Weights weights = topk::row_weights(shape, shared, values, state.inverse);
  put_draw(nearby.p, nearby.shape, row, k, above, Scan::Held::kTokens, 0, weights, shared, state,
           nullptr);
}

// `nearby` are the same parameters, for what is out of line.
template <class T, bool kPlain, bool kOnGrid, int kDepth, class Memory = ScanShared,
          ScanWay kWay = ScanWay::any>
__device__ void sample_row(const ScanParams& params, std::int64_t row, unsigned char* memory,
                           const ScanParams& nearby) {
  using Values = std::conditional_t<kPlain, topk::RowValues<T>, PenalizedValues<T>>;
  using Scan = topk::RowScan<Values, kPlain, kOnGrid, kDepth, kWay, Memory>;
  using Late = std::conditional_t<kPlain, topk::RowValues<T>, AnyValues>;
  const Sampling& p = params.p;
  const ScanShape& shape = params.shape;
  auto& shared = *reinterpret_cast<Memory*>(memory);
  auto& state = *reinterpret_cast<RowState*>(memory + state_offset<Memory>(params));
  const topk::RowValues<T> logits =
      kPlain ? plain_values<T>(p, row) : unpenalized_values<T>(p, row);
  // The first loads come before the controls are read.
  topk::RowScan<topk::RowValues<T>, kPlain, kOnGrid, kDepth, kWay, Memory> early(shape, shared,
                                                                                 logits);
  if constexpr (kPlain) early.start();
  const RowControls controls = row_controls(p, row);
  if (!controls.legal) {  // all blocks of the cluster leave
    if (kWay != ScanWay::any || blockIdx.x % static_cast<unsigned>(shape.cluster) == 0) {
      refuse_row(p, row, kRowBadParameter);
    }
    return;
  }
  const int k = wanted_places(p, controls, params.places);
  const double inverse = 1 / weighing_temperature(controls);
  keep_state<Memory::kThreads>(p, row, controls, inverse, state);
  HistoryTable* table = nullptr;
  if constexpr (kPlain) {
    early.run(k, topk::exponent_scale(inverse));
  } else {
    if (params.penalizes) {
      table = reinterpret_cast<HistoryTable*>(memory + history_offset<Memory>(params));
      table->fill(p, row, controls, params.history, logits);
    }
    Scan scan(shape, shared, Values(logits, table));
    scan.start();
    scan.run(k, topk::exponent_scale(inverse));
  }
  if (kWay == ScanWay::any && !topk::gather_cluster(shape, shared)) return;
  if ((shared.flags & Memory::kNan) != 0) return refuse_row(p, row, kRowHasNan);
  Late values;
  if constexpr (kPlain) {
    values = logits;
  } else {
    values = any_values(p, row, table);
  }
  const int above = topk::sort_candidates<typename Scan::Held>(shape, k, shared, values);
  const Weights weights = topk::row_weights(shape, shared, values, state.inverse);
  // Another kernel may have read it.
  const bool again = params.second && wants_few(p, state.controls);
  put_draw(nearby.p, nearby.shape, row, k, above, Scan::Held::kTokens, again ? kRowTwoPass : 0,
           weights, shared, state, table);
}
template <class T, bool kPlain, bool kOnGrid, int kDepth>
__device__ void sample_row(const ScanParams& params, std::int64_t row, unsigned char* memory) {
  sample_row<T, kPlain, kOnGrid, kDepth>(params, row, memory, params);
}

template <class T, bool kPlain, bool kOnGrid, int kDepth, ScanWay kWay = ScanWay::any>
__global__ void __launch_bounds__(topk::kScanThreads, kScanBlocksPerSm<kPlain, kOnGrid, kDepth>)
    sample_scan_kernel(const __grid_constant__ ScanParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Sampling& p = params.p;
  constexpr bool kAlone = kWay != ScanWay::any;
  const std::int64_t row =
      kAlone ? blockIdx.x : blockIdx.x / static_cast<unsigned>(params.shape.cluster);
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    if (!kAlone && (params.shape.cluster > 1 || !kPlain)) {
      topk::RowScan<topk::RowValues<T>, kPlain, kOnGrid, kDepth>(
          params.shape, *reinterpret_cast<ScanShared*>(memory), unpenalized_values<T>(p, row))
          .ask_ahead();
    }
    cuda::pdl_wait();
  }
  if constexpr (kAlone) {
    sample_row<T, kPlain, kOnGrid, kDepth, ScanShared, kWay>(
        params, row, memory, bring_nearby(params, memory + nearby_offset<>(params)));
  } else {
    sample_row<T, kPlain, kOnGrid, kDepth>(params, row, memory);
  }
}

// Out of line, for a kernel to which such rows are rare.
template <class T, bool kOnGrid>
__device__ __noinline__ void sample_rare_row(const ScanParams& params, std::int64_t row,
                                             unsigned char* memory) {
  __syncthreads();  // everyone is done with the memory
  sample_row<T, true, kOnGrid, 2>(params, row, memory);
}

// What is out of line, or in a loop, needs more registers.
inline constexpr int kLeftBlocksPerSm = 2;

// The rows that another kernel left, few if any: the threads of a block look whether there are any
// among its own; then a warp looks at 32 at once, and all warps at the same.
template <class T>
__global__ void __launch_bounds__(topk::kScanThreads, kLeftBlocksPerSm)
    sample_left_kernel(const __grid_constant__ ScanParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Sampling& p = params.p;
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    cuda::pdl_wait();
  }
  bool any = false;
  const std::int64_t step = std::int64_t{gridDim.x} * topk::kScanThreads;
  for (std::int64_t row = blockIdx.x + std::int64_t{threadIdx.x} * gridDim.x; row < p.rows;
       row += step) {
    any = is_left(p, row) || any;
  }
  if (__syncthreads_or(any ? 1 : 0) == 0) return;
#pragma unroll 1
  for (std::int64_t first = blockIdx.x; first < p.rows; first += 32 * std::int64_t{gridDim.x}) {
    const std::int64_t own = first + std::int64_t{threadIdx.x % 32} * gridDim.x;
    unsigned left = __ballot_sync(~0U, own < p.rows && is_left(p, own));
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
      // Its barrier comes after everyone has seen who is left.
      sample_rare_row<T, false>(
          params, first + std::int64_t{__ffs(static_cast<int>(left)) - 1} * gridDim.x, memory);
    }
  }
}

template <class T>
void launch_left(Context& context, const ScanParams& params) {
  const std::int64_t most = std::int64_t{kLeftBlocksPerSm} *
                            cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  const cuda::LaunchShape shape{.blocks = static_cast<unsigned>(std::min(params.p.rows, most)),
                                .threads = topk::kScanThreads,
                                .shared_bytes = scan_shared_bytes(params),
                                .pdl = cuda::is_hopper(context)};
  cuda::allow_shared(context, sample_left_kernel<T>);
  cuda::launch(context, "sample sample_left_kernel", sample_left_kernel<T>, shape, params);
}

template <class T, bool kPlain, bool kOnGrid, int kDepth, ScanWay kWay = ScanWay::any>
void launch_scan(Context& context, const ScanParams& params) {
  auto* kernel = sample_scan_kernel<T, kPlain, kOnGrid, kDepth, kWay>;
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>(params.p.rows * params.shape.cluster),
      .threads = topk::kScanThreads,
      .cluster = static_cast<unsigned>(params.shape.cluster),
      .shared_bytes = topk::scan_shared_bytes(params.shape, scan_shared_bytes(params), kDepth == 4),
      .pdl = cuda::is_hopper(context)};
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "sample sample_scan_kernel", kernel, shape, params);
}

template <class T>
void sample_by_scan(Context& context, const ScanParams& params) {
  if (params.second) {
    launch_left<T>(context, params);
  } else if (!is_plain(params.p)) {
    launch_scan<T, false, false, 2>(context, params);
  } else if (!params.on_grid) {
    launch_scan<T, true, false, 2>(context, params);
  } else if (params.deep) {
    launch_scan<T, true, true, 4>(context, params);
  } else {
    launch_scan<T, true, true, 2>(context, params);
  }
}

}  // namespace touchstone::sampling
