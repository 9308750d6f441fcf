// Sampling by streaming selection: one CTA per row, or a cluster of CTAs where rows are few. The
// main loop leaves the first tokens in order and the segment sums; the CTA that finishes the row
// draws from them. Only rows whose cut lies further down, is too close to call, or whose values
// overflow f32 are read again.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cuda/launch.h"
#include "ops/sample/cuda/sample_epilogue.cuh"
#include "ops/sample/cuda/sample_launch.h"

namespace touchstone::sampling {

// CTAs per SM: unaligned raw logits need registers for the realignment.
template <bool kRawLogits, bool kAligned16>
inline constexpr int kStreamingBlocksPerSm =
    selection::kStreamingBlocksPerSm<kAligned16 || !kRawLogits>;

// __noinline__ device functions load kernel parameters from memory and miss on first use: stage
// them in shared memory. Valid after the next barrier.
inline constexpr int kStagedArgsBytes = (sizeof(StreamingArgs) + 15) / 16 * 16;
__device__ inline const StreamingArgs& stage_args_in_smem(const StreamingArgs& args,
                                                          unsigned char* memory) {
  using Word = std::uint64_t;
  constexpr int kWords = sizeof(StreamingArgs) / sizeof(Word);
  static_assert(alignof(StreamingArgs) == alignof(Word) && kWords <= selection::kStreamingThreads);
  const unsigned i = threadIdx.x;
  if (i < kWords) {
    reinterpret_cast<Word*>(memory)[i] = reinterpret_cast<const Word*>(&args)[i];
  }
  return *reinterpret_cast<const StreamingArgs*>(memory);
}

// Layout of dynamic shared memory: selection, row state, staged arguments, history table.
template <class Smem = StreamingSmem>
__host__ __device__ std::int64_t state_offset(const StreamingArgs& args) {
  return (Smem::bytes(args.params) + 15) / 16 * 16;
}
template <class Smem = StreamingSmem>
__host__ __device__ std::int64_t staged_args_offset(const StreamingArgs& args) {
  return state_offset<Smem>(args) + (static_cast<std::int64_t>(sizeof(RowState)) + 15) / 16 * 16;
}
template <class Smem = StreamingSmem>
__host__ __device__ std::int64_t history_offset(const StreamingArgs& args) {
  return staged_args_offset<Smem>(args) + kStagedArgsBytes;
}

// A row of raw logits that needs more sorted tokens than a warp draws from, by one CTA; `first` has
// issued its first loads. A separate instantiation of the main loop: what it spills depends on what
// follows.
template <class T, bool kAligned16, class First>
__device__ void sample_row_many_slots(const StreamingArgs& args, std::int64_t row,
                                      unsigned char* memory, const RowControls& controls,
                                      const First& first) {
  using Values = selection::RowValues<T>;
  constexpr StreamingMode kMode =
      std::is_same_v<T, Bf16> ? StreamingMode::estimated_threshold : StreamingMode::single_block;
  using Select = selection::StreamingSelect<Values, true, kAligned16, kMode>;
  const SampleProblem& p = args.p;
  const StreamingParams& params = args.params;
  auto& smem = *reinterpret_cast<StreamingSmem*>(memory);
  auto& state = *reinterpret_cast<RowState*>(memory + state_offset<>(args));
  if (!controls.legal) return store_invalid_row(p, row, RowStatus::bad_parameter);
  const StreamingArgs& smem_args = stage_args_in_smem(args, memory + staged_args_offset<>(args));
  const double inverse = 1 / log_prob_temperature(controls);
  store_state<selection::kStreamingThreads>(p, row, controls, inverse, state);
  int k = wanted_slots(p, controls, args.slots);
  if (threadIdx.x == 0) state.slots = k;
  Select select(params, smem, raw_values<T>(p, row));
  select.start_with(first.loaded());
  select.run(k, selection::exponent_scale(inverse));
  if ((smem.flags & selection::kFlagNan) != 0) return store_invalid_row(p, row, RowStatus::has_nan);
  k = state.slots;
  const Values values = raw_values<T>(p, row);
  const int above = selection::sort_candidates<typename Select::Held>(params, k, smem, values);
  const Weights weights = selection::row_weights(params, smem, values, state.inverse);
  draw_and_store(smem_args.p, smem_args.params, row, k, above, Select::Held::kTokens, RowStatus::ok,
                 weights, smem, state, nullptr);
}

// `smem_args` are the same arguments, for __noinline__ functions.
template <class T, bool kRawLogits, bool kAligned16, class Smem = StreamingSmem,
          StreamingMode kMode = StreamingMode::cluster>
__device__ void sample_row(const StreamingArgs& args, std::int64_t row, unsigned char* memory,
                           const StreamingArgs& smem_args) {
  using Values = std::conditional_t<kRawLogits, selection::RowValues<T>, PenalizedValues<T>>;
  using Select = selection::StreamingSelect<Values, kRawLogits, kAligned16, kMode, Smem>;
  using Late = std::conditional_t<kRawLogits, selection::RowValues<T>, AnyValues>;
  const SampleProblem& p = args.p;
  const StreamingParams& params = args.params;
  auto& smem = *reinterpret_cast<Smem*>(memory);
  auto& state = *reinterpret_cast<RowState*>(memory + state_offset<Smem>(args));
  const selection::RowValues<T> logits =
      kRawLogits ? raw_values<T>(p, row) : unpenalized_values<T>(p, row);
  // Issues the first loads before the controls are read.
  selection::StreamingSelect<selection::RowValues<T>, kRawLogits, kAligned16, kMode, Smem> early(
      params, smem, logits);
  if constexpr (kRawLogits) early.start();
  const RowControls controls = row_controls(p, row);
  if (!controls.legal) {  // all CTAs of the cluster leave
    if (kMode != StreamingMode::cluster ||
        blockIdx.x % static_cast<unsigned>(params.cluster) == 0) {
      store_invalid_row(p, row, RowStatus::bad_parameter);
    }
    return;
  }
  const int k = wanted_slots(p, controls, args.slots);
  const double inverse = 1 / log_prob_temperature(controls);
  store_state<Smem::kThreads>(p, row, controls, inverse, state);
  HistoryTable* table = nullptr;
  if constexpr (kRawLogits) {
    early.run(k, selection::exponent_scale(inverse));
  } else {
    if (args.penalizes) {
      table = reinterpret_cast<HistoryTable*>(memory + history_offset<Smem>(args));
      table->fill(p, row, controls, args.history, logits);
    }
    Select select(params, smem, Values(logits, table));
    select.start();
    select.run(k, selection::exponent_scale(inverse));
  }
  if (kMode == StreamingMode::cluster && !selection::gather_cluster(params, smem)) return;
  if ((smem.flags & selection::kFlagNan) != 0) return store_invalid_row(p, row, RowStatus::has_nan);
  Late values;
  if constexpr (kRawLogits) {
    values = logits;
  } else {
    values = any_values(p, row, table);
  }
  const int above = selection::sort_candidates<typename Select::Held>(params, k, smem, values);
  const Weights weights = selection::row_weights(params, smem, values, state.inverse);
  // Another kernel may have read the row already.
  const bool again = args.second && fits_warp_draw(p, state.controls);
  draw_and_store(smem_args.p, smem_args.params, row, k, above, Select::Held::kTokens,
                 again ? RowStatus::two_pass : RowStatus::ok, weights, smem, state, table);
}
template <class T, bool kRawLogits, bool kAligned16>
__device__ void sample_row(const StreamingArgs& args, std::int64_t row, unsigned char* memory) {
  sample_row<T, kRawLogits, kAligned16>(args, row, memory, args);
}

template <class T, bool kRawLogits, bool kAligned16, StreamingMode kMode = StreamingMode::cluster>
__global__ void __launch_bounds__(selection::kStreamingThreads,
                                  kStreamingBlocksPerSm<kRawLogits, kAligned16>)
    sample_streaming_kernel(const __grid_constant__ StreamingArgs args) {
  extern __shared__ __align__(16) unsigned char memory[];
  const SampleProblem& p = args.p;
  constexpr bool kSingleBlock = kMode != StreamingMode::cluster;
  const std::int64_t row =
      kSingleBlock ? blockIdx.x : blockIdx.x / static_cast<unsigned>(args.params.cluster);
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    if (!kSingleBlock && (args.params.cluster > 1 || !kRawLogits)) {
      selection::StreamingSelect<selection::RowValues<T>, kRawLogits, kAligned16>(
          args.params, *reinterpret_cast<StreamingSmem*>(memory), unpenalized_values<T>(p, row))
          .prefetch_l2();
    }
    cuda::pdl_wait();
  }
  if constexpr (kSingleBlock) {
    sample_row<T, kRawLogits, kAligned16, StreamingSmem, kMode>(
        args, row, memory, stage_args_in_smem(args, memory + staged_args_offset<>(args)));
  } else {
    sample_row<T, kRawLogits, kAligned16>(args, row, memory);
  }
}

// __noinline__ for kernels in which such rows are rare.
template <class T, bool kAligned16>
__device__ __noinline__ void sample_row_slow_path(const StreamingArgs& args, std::int64_t row,
                                                  unsigned char* memory) {
  __syncthreads();  // the shared memory is reused
  sample_row<T, true, kAligned16>(args, row, memory);
}

// Second launch for the deferred rows of another kernel, few if any: the threads of a CTA first
// test whether its rows contain one; then all warps walk the same 32 rows at a time.
template <class T>
__global__ void __launch_bounds__(selection::kStreamingThreads, kDeferredBlocksPerSm)
    sample_deferred_kernel(const __grid_constant__ StreamingArgs args) {
  extern __shared__ __align__(16) unsigned char memory[];
  const SampleProblem& p = args.p;
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    cuda::pdl_wait();
  }
  bool any = false;
  const std::int64_t step = std::int64_t{gridDim.x} * selection::kStreamingThreads;
  for (std::int64_t row = blockIdx.x + std::int64_t{threadIdx.x} * gridDim.x; row < p.rows;
       row += step) {
    any = is_deferred(p, row) || any;
  }
  if (__syncthreads_or(any ? 1 : 0) == 0) return;
#pragma unroll 1
  for (std::int64_t first = blockIdx.x; first < p.rows; first += 32 * std::int64_t{gridDim.x}) {
    const std::int64_t own = first + std::int64_t{threadIdx.x % 32} * gridDim.x;
    unsigned left = __ballot_sync(~0U, own < p.rows && is_deferred(p, own));
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
      // Starts with a barrier, after all threads have voted.
      sample_row_slow_path<T, false>(
          args, first + std::int64_t{__ffs(static_cast<int>(left)) - 1} * gridDim.x, memory);
    }
  }
}

template <class T>
void launch_deferred(Context& context, const StreamingArgs& args) {
  const std::int64_t max_blocks = kDeferredBlocksPerSm * selection::multiprocessors(context);
  const cuda::LaunchShape grid{.blocks = static_cast<unsigned>(std::min(args.p.rows, max_blocks)),
                               .threads = selection::kStreamingThreads,
                               .shared_bytes = row_smem_bytes(args),
                               .pdl = cuda::is_hopper(context)};
  cuda::allow_shared(context, sample_deferred_kernel<T>);
  cuda::launch(context, "sample deferred_kernel", sample_deferred_kernel<T>, grid, args);
}

template <class T, bool kRawLogits, bool kAligned16, StreamingMode kMode = StreamingMode::cluster>
void launch_streaming_kernel(Context& context, const StreamingArgs& args) {
  auto* kernel = sample_streaming_kernel<T, kRawLogits, kAligned16, kMode>;
  const cuda::LaunchShape grid{.blocks = static_cast<unsigned>(args.p.rows * args.params.cluster),
                               .threads = selection::kStreamingThreads,
                               .cluster = static_cast<unsigned>(args.params.cluster),
                               .shared_bytes = selection::streaming_smem_bytes(
                                   context, args.p.rows, args.params, row_smem_bytes(args)),
                               .pdl = cuda::is_hopper(context)};
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "sample streaming_kernel", kernel, grid, args);
}

template <class T>
void launch_streaming(Context& context, const StreamingArgs& args) {
  if (!args.p.samples_raw_logits()) {
    launch_streaming_kernel<T, false, false>(context, args);
  } else if (!args.aligned16) {
    launch_streaming_kernel<T, true, false>(context, args);
  } else {
    launch_streaming_kernel<T, true, true>(context, args);
  }
}

}  // namespace touchstone::sampling
