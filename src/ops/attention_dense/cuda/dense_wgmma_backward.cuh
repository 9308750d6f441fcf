// Dense attention backward on Hopper's tensor cores: what its kernels share.
//
// Every sum has one owner and one order. One kernel goes over the queries for each tile of keys (dk
// and dv, four products a tile), one over the keys for each tile of queries (dq, three products),
// one over sequences and heads for each tile of a bias (dbias, two). Weights are made anew in each.
#pragma once

#include <algorithm>

#include "ops/attention_dense/cuda/dense_wgmma.cuh"

namespace touchstone::dense_attention {

// A block: a producer and two warpgroups.
inline constexpr int kGradientThreads = 3 * cuda::kWarpgroup;
inline constexpr int kGradientProducerRegisters = 40;
inline constexpr int kGradientConsumerRegisters = 232;
// Rows of log_sum_exp and delta are padded to whole tiles of queries.
inline constexpr int kRowPad = 128;

struct GradientWork {
  BackwardProblem p;
  TileSource q, k, v, doutput;
  TileSchedule schedule;
  unsigned* tiles_taken = nullptr;  // see TileScheduler
  // Padded (padded_row): log_sum_exp to base 2, +inf where a row has no part in any gradient
  // (its weights are then 0), and delta.
  float* rows_log = nullptr;
  float* rows_delta = nullptr;
  std::int64_t padded_queries = 0;  // of a lane
  float scale = 1;                  // of the scores, to base 2
};
// Counters of tiles taken, one of each kernel that counts.
inline constexpr int kTileCounters = 2;

__device__ inline std::int64_t padded_row(const GradientWork& work, std::int64_t sequence,
                                          int head) {
  if (work.p.query_offsets == nullptr) {
    return (sequence * work.p.query_heads + head) * work.padded_queries;
  }
  return head * work.padded_queries +
         first_piece(work.p.query_offsets, sequence, kRowPad) * kRowPad;
}

// dk and dv, dq, dbias: dense_wgmma_key_gradient.cu and so on.
void attention_wgmma_key_gradient(Context& context, const GradientWork& work);
void attention_wgmma_query_gradient(Context& context, const GradientWork& work);
void attention_wgmma_bias_gradient(Context& context, const GradientWork& work);

// Calls launch.template operator()<T, kDim>() for the dtype and the head.
template <class Launch>
void for_shape(const DenseProblem& p, Launch launch) {
  const auto with_type = [&]<class T>() {
    const std::int64_t dim = larger(p.k_dim, p.v_dim);
    if (dim <= 64) {
      launch.template operator()<T, 64>();
    } else if (dim <= 128) {
      launch.template operator()<T, 128>();
    } else if (dim <= 192) {
      launch.template operator()<T, 192>();
    } else {
      launch.template operator()<T, 256>();
    }
  };
  p.dtype == DType::bf16 ? with_type.template operator()<Bf16>()
                         : with_type.template operator()<F16>();
}

// `rows` with its tensors as tiles of so many queries and keys.
inline GradientWork with_tiles(const GradientWork& rows, int queries, int keys) {
  const BackwardProblem& p = rows.p;
  GradientWork work = rows;
  work.q = make_tile_source(p, p.q, p.query_heads, p.queries, p.k_dim, queries);
  work.doutput = make_tile_source(p, p.doutput, p.query_heads, p.queries, p.v_dim, queries);
  work.k = make_tile_source(p, p.k, p.kv_heads, p.keys, p.k_dim, keys);
  work.v = make_tile_source(p, p.v, p.kv_heads, p.keys, p.v_dim, keys);
  return work;
}

template <class Shared, class Kernel>
void launch_gradient(Context& context, const char* name, Kernel* kernel, const GradientWork& work,
                     unsigned blocks) {
  cuda::allow_shared(context, kernel);
  cuda::launch(
      context, name, kernel,
      {.blocks = blocks, .threads = kGradientThreads, .shared_bytes = sizeof(Shared) + 1024}, work);
}
// Of a persistent kernel, with counter number `counter`.
template <class Shared, class Kernel>
void launch_gradient(Context& context, const char* name, Kernel* kernel, GradientWork work,
                     int counter) {
  const auto processors =
      static_cast<unsigned>(cuda::device_attribute(context, cudaDevAttrMultiProcessorCount));
  const bool alike = !work.p.causal && work.p.query_offsets == nullptr;
  work.tiles_taken = alike ? nullptr : work.tiles_taken + counter;
  launch_gradient<Shared>(context, name, kernel, work, std::min(processors, work.schedule.count()));
}

// ---- where a block works ------------------------------------------------------------------------

// At a tile of its own side.
struct Block {
  TileCoord coord;
  SequenceSpan span;
  int first = 0;  // row of the block's own side
  int batch = 0;  // of the tensors: 0 when packed
};

__device__ inline Block block_of(const GradientWork& work, unsigned tile,
                                 const std::int64_t* starts) {
  Block block;
  block.coord = tile_coord(work.schedule, tile, work.p.batch, starts);
  block.span = span_of(work.p, block.coord.sequence);
  block.first = block.coord.tile * work.schedule.rows;
  block.batch = starts == nullptr ? static_cast<int>(block.coord.sequence) : 0;
  return block;
}

// Tiles of the side a block owns, two tensors each, and where they are from.
template <class Item, int kSlots>
struct OwnTiles {
  alignas(8) std::uint64_t full[kSlots], empty[kSlots];
  Item items[kSlots];
  Item ahead;  // the producer's own: what it loads next

  __device__ void init() {
    init_barriers(full, 2);
    init_barriers(empty, 2 * cuda::kWarpgroup);
  }

  // The producer's warp: sets what is ahead.
  __device__ void set_ahead(Item item) {
    item.there = true;
    __syncwarp();
    if (threadIdx.x % 32 == 0) ahead = item;
    __syncwarp();
  }
  // The producer's warp: a slot, once it is free, for what is ahead.
  __device__ int claim(PipelineState<kSlots>& turn) {
    const int slot = turn.stage;
    cuda::barrier_wait(&empty[slot], turn.parity ^ 1);
    if (threadIdx.x % 32 == 0) items[slot] = ahead;
    __syncwarp();
    turn.next();
    return slot;
  }
  // There is no more.
  __device__ void end(const PipelineState<kSlots>& turn) {
    const int slot = turn.stage;
    cuda::barrier_wait(&empty[slot], turn.parity ^ 1);
    if (threadIdx.x % 32 == 0) {
      items[slot].there = false;
      cuda::barrier_arrive(&full[slot]);
      cuda::barrier_arrive(&full[slot]);
    }
  }

  // A consumer: whether there is a tile in the slot.
  __device__ bool await(const PipelineState<kSlots>& turn) {
    cuda::barrier_wait(&full[turn.stage], turn.parity);
    return items[turn.stage].there;
  }
  // Every thread arrives for itself after its reads: that orders them before the producer's next
  // writes without further synchronization, and racecheck can follow it.
  __device__ void release(int slot) { cuda::barrier_arrive(&empty[slot]); }
};

// The producer's warp loads rows [token, token + kRows) of the two tensors a block owns.
template <int kRows, int kDim>
__device__ void load_own_tiles(std::byte* first, const TileSource& first_source, std::byte* second,
                               const TileSource& second_source, std::int64_t token,
                               std::int64_t end, const Block& block, bool packed,
                               std::uint64_t* full) {
  load_tile<kRows, kDim>(first, first_source, token, end, block.coord.head, block.batch, packed,
                         full);
  load_tile<kRows, kDim>(second, second_source, token, end, block.coord.head, block.batch, packed,
                         full);
}

// A block: a thread sets up the barriers, one warp produces, two warpgroups consume.
template <class Init, class Produce, class Consume>
__device__ void run_block(Init init, Produce produce, Consume consume) {
  if (threadIdx.x == 0) {
    init();
    cuda::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < cuda::kWarpgroup) {
    cuda::give_registers_back<kGradientProducerRegisters>();
    if (threadIdx.x < 32) produce();
  } else {
    cuda::take_registers<kGradientConsumerRegisters>();
    consume();
  }
}

// Of a warpgroup's rows, the first of this thread's two.
__device__ inline int row_of_thread() {
  return static_cast<int>(threadIdx.x % cuda::kWarpgroup) / 32 * 16 +
         static_cast<int>(threadIdx.x % 32) / 4;
}
__device__ inline int group_of_thread() {
  return static_cast<int>(threadIdx.x) / cuda::kWarpgroup - 1;
}
__device__ inline const std::byte* rows_of_group(const std::byte* tile, int group) {
  return tile + group * kConsumerRows * cuda::kSliceRowBytes;
}
__device__ inline std::byte* rows_of_group(std::byte* tile, int group) {
  return tile + group * kConsumerRows * cuda::kSliceRowBytes;
}

// ---- products -----------------------------------------------------------------------------------

// Sums of 64 rows by kDim columns, as columns of one product each.
template <int kDim>
struct Parts {
  static constexpr int kColumns = kDim % 128 == 0 ? 128 : 64;
  static constexpr int kCount = kDim / kColumns;
};
template <int kDim>
struct RowSums {
  float part[Parts<kDim>::kCount][Parts<kDim>::kColumns / 2];
  __device__ void clear() {
#pragma unroll
    for (auto& sums : part) {
#pragma unroll
      for (float& x : sums) x = 0;
    }
  }
  __device__ void hold() {
#pragma unroll
    for (auto& sums : part) cuda::wgmma_hold(sums);
  }
};

// sums = left * right transposed: both along their columns. `left` begins at the warpgroup's rows.
template <class T, int kDim, int kLeftRows, int kRightRows>
__device__ void multiply_columns(float (&sums)[kRightRows / 2], const std::byte* left,
                                 const std::byte* right) {
  const std::uint64_t a = cuda::tile_descriptor(cuda::shared_address(left), kLeftRows);
  const std::uint64_t b = cuda::tile_descriptor(cuda::shared_address(right), kRightRows);
  cuda::wgmma_begin();
  cuda::wgmma_new<T, false>(sums, a, b);
#pragma unroll
  for (int step = 1; step < kDim / 16; ++step) {
    cuda::wgmma<T, false>(sums, cuda::inner_columns(a, kLeftRows, step),
                          cuda::inner_columns(b, kRightRows, step), 1);
  }
  cuda::wgmma_commit();
}

// sums += left * right, along the rows of `right`.
template <class T, int kDim, int kRightRows>
__device__ void add_rows(RowSums<kDim>& sums, const std::uint32_t (&left)[kRightRows / 16][4],
                         const std::byte* right) {
  const std::uint64_t b = cuda::tile_descriptor(cuda::shared_address(right), kRightRows);
  sums.hold();
  cuda::wgmma_begin();
#pragma unroll
  for (int step = 0; step < kRightRows / 16; ++step) {
#pragma unroll
    for (int part = 0; part < Parts<kDim>::kCount; ++part) {
      const int slice =
          part * Parts<kDim>::kColumns / cuda::kSliceColumns * kRightRows * cuda::kSliceRowBytes;
      cuda::wgmma<T, true>(sums.part[part], left[step],
                           cuda::inner_rows(cuda::advanced(b, slice), step), 1);
    }
  }
  cuda::wgmma_commit();
}

// ---- numbers ------------------------------------------------------------------------------------

// From scores to weights, and those rounded, the left operand of a product. `hidden`, `query`,
// `key` and `log` (to base 2) are of sum i of this thread. Where scores are changed, what comes out
// is the weight times the slope of the soft cap: that is what the gradient of the score is
// multiplied by.
template <class T, bool kHasScoreMod, int kCount, class Hidden, class Query, class Key, class Log>
__device__ void weigh(const float (&scores)[kCount], float (&weights)[kCount],
                      std::uint32_t (&words)[kCount / 8][4], float scale, const ScoreRule& rule,
                      const SequenceSpan& span, bool any_hidden, Hidden hidden, Query query,
                      Key key, Log log) {
  const int queries = static_cast<int>(span.queries);
  const int keys = static_cast<int>(span.keys);
  if constexpr (!kHasScoreMod) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) weights[i] = fmaf(scores[i], scale, -log(i));
    if (any_hidden) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (hidden(i)) weights[i] = minus_infinity();
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    float weight[2];
#pragma unroll
    for (int j = i; j < i + 2; ++j) {
      if constexpr (kHasScoreMod) {
        const float capped = rule.capped(scores[j]);
        const bool there = query(j) < queries && key(j) < keys;
        float score = fmaf(capped + rule.added(query(j), key(j), there), kLog2E, -log(j));
        if (any_hidden && hidden(j)) score = minus_infinity();
        weight[j - i] = cuda::exp2_flushed(score);
        weights[j] = weight[j - i] * rule.cap_slope(capped);
      } else {
        weights[j] = weight[j - i] = cuda::exp2_flushed(weights[j]);
      }
    }
    words[i / 8][i / 2 % 4] = packed_pair<T>(weight[0], weight[1]);
  }
}

// The gradients of scores, rounded. `delta` is of sum i.
template <class T, int kCount, class Delta>
__device__ void differentiate(const float (&weights)[kCount], const float (&dweights)[kCount],
                              std::uint32_t (&words)[kCount / 8][4], Delta delta) {
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    words[i / 8][i / 2 % 4] =
        packed_pair<T>(score_gradient(weights[i], dweights[i], delta(i)),
                       score_gradient(weights[i + 1], dweights[i + 1], delta(i + 1)));
  }
}

// Of a row in shared memory along which a thread's sums lie, the number of sum i.
__device__ inline float of_column(const float* row, int i) {
  const float* const at = row + i / 4 * 8 + threadIdx.x % 4 * 2;
  const float2 two = *reinterpret_cast<const float2*>(at);
  return i % 2 == 0 ? two.x : two.y;
}

}  // namespace touchstone::dense_attention
