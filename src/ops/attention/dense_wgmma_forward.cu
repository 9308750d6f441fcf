// Dense attention forward on Hopper's tensor cores.
//
// A consumer warpgroup holds the scores of 64 rows by a tile of keys and the sums of 64 rows of
// output in registers. While the tensor cores multiply the weights of one tile by its values and
// the queries by the next tile's keys, nothing waits but the softmax of that next tile; of two
// warpgroups one is at its softmax while the other has the tensor cores.
//
// Blocks stay: one per multiprocessor, each takes a tile of queries after the other from a common
// counter, those with the most to do first. The producer is a tile ahead, so that the first keys
// and queries of a tile arrive while the output of the one before goes out.
#include <algorithm>
#include <string>

#include "ops/attention/dense_wgmma.cuh"

namespace touchstone::attend {
namespace {

template <int kDim>
struct Shape {
  static constexpr int kConsumers = kDim == 64 ? 3 : 2;
  static constexpr int kRows = kConsumers * kConsumerRows;
  static constexpr int kKeys = kDim <= 128 ? 128 : 64;
  static constexpr int kStages = 2;
  static constexpr int kThreads = (kConsumers + 1) * cuda::kWarpgroup;
  // Registers are dealt out in eights: what is left of 64 K when the producer has little.
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;
  // Output columns of one product.
  static constexpr int kPart = kDim % 128 == 0 ? 128 : 64;
  static constexpr int kParts = kDim / kPart;
  // Output goes out through memory of its own where there is room, else through that of q.
  static constexpr bool kOwnOutput = kDim <= 192;
};

template <int kDim>
struct Shared {
  using S = Shape<kDim>;
  alignas(1024) std::byte q[kTileBytes<S::kRows, kDim>];
  alignas(1024) std::byte k[S::kStages][kTileBytes<S::kKeys, kDim>];
  alignas(1024) std::byte v[S::kStages][kTileBytes<S::kKeys, kDim>];
  alignas(1024) std::byte output[S::kOwnOutput ? kTileBytes<S::kRows, kDim> : 1];
  alignas(8) std::uint64_t q_full, q_empty;
  std::uint64_t k_full[S::kStages], k_empty[S::kStages];
  std::uint64_t v_full[S::kStages], v_empty[S::kStages];
  std::int64_t tile;  // what q holds; -1: there is no more
};

struct Work {
  AttentionForward p;
  Source q, k, v;
  Deal deal;
  std::int64_t tiles = 0;         // of all lanes
  unsigned* next_tile = nullptr;  // counts those taken, beyond the first of each block
  float scale = 1;                // of the scores, to base 2; 1 where they are changed one by one
};

// A tile of queries.
struct Block {
  Place place;
  SequenceSpan span;
  int first_row = 0;
  int kv_head = 0;
  int batch = 0;  // of the tensors: 0 when packed
  KeyTiles tiles;
};

template <int kDim>
__device__ Block block_of(const Work& work, std::int64_t tile) {
  Block block;
  const AttentionForward& p = work.p;
  block.place = place_of(work.deal, tile, p.batch, p.query_starts);
  block.span = span_of(p, block.place.sequence);
  block.first_row = block.place.tile * Shape<kDim>::kRows;
  block.kv_head = block.place.head / static_cast<int>(p.heads_per_kv);
  block.batch = p.query_starts == nullptr ? static_cast<int>(block.place.sequence) : 0;
  if (block.first_row >= block.span.queries) return block;
  const std::int64_t last = smaller(block.first_row + Shape<kDim>::kRows, block.span.queries) - 1;
  block.tiles = key_tiles(sight_of(p, block.span, block.first_row), sight_of(p, block.span, last),
                          Shape<kDim>::kKeys);
  return block;
}

// The producer's warp.
template <int kDim>
__device__ void produce(const Work& work, Shared<kDim>& shared) {
  using S = Shape<kDim>;
  const bool packed = work.p.query_starts != nullptr;
  const int lane = static_cast<int>(threadIdx.x % 32);
  Turn<S::kStages> turn;
  Turn<1> q_turn;
  std::int64_t tile = blockIdx.x;
  while (tile < work.tiles) {
    const Block block = block_of<kDim>(work, tile);
    const auto load = [&](std::byte* to, const Source& source, int i, std::uint64_t* barrier) {
      const std::int64_t key =
          block.span.first_key + static_cast<std::int64_t>(block.tiles.tile(i)) * S::kKeys;
      load_tile<S::kKeys, kDim>(to, source, key, block.span.first_key + block.span.keys,
                                block.kv_head, block.batch, packed, barrier);
    };
    const auto load_keys = [&](int i) {
      cuda::barrier_wait(&shared.k_empty[turn.stage], turn.parity ^ 1);
      load(shared.k[turn.stage], work.k, i, &shared.k_full[turn.stage]);
    };
    const std::int64_t queries = block.span.queries - block.first_row;
    if (queries > 0) {
      if (block.tiles.count > 0) load_keys(0);
      cuda::barrier_wait(&shared.q_empty, q_turn.parity ^ 1);
      if (lane == 0) shared.tile = tile;
      __syncwarp();
      load_tile<S::kRows, kDim>(shared.q, work.q, block.span.first_query + block.first_row,
                                block.span.first_query + block.span.queries, block.place.head,
                                block.batch, packed, &shared.q_full);
      q_turn.next();
    }
    for (int i = 0; i < block.tiles.count; ++i, turn.next()) {
      if (i > 0) load_keys(i);
      cuda::barrier_wait(&shared.v_empty[turn.stage], turn.parity ^ 1);
      load(shared.v[turn.stage], work.v, i, &shared.v_full[turn.stage]);
    }
    if (lane == 0) tile = gridDim.x + static_cast<std::int64_t>(atomicAdd(work.next_tile, 1U));
    tile = __shfl_sync(kAllLanes, tile, 0);
  }
  cuda::barrier_wait(&shared.q_empty, q_turn.parity ^ 1);
  if (lane == 0) {
    shared.tile = -1;
    cuda::barrier_arrive(&shared.q_full);
  }
}

// One consumer warpgroup.
template <class T, int kDim, bool kChanged>
class Consumer {
  using S = Shape<kDim>;
  static constexpr int kScores = S::kKeys / 2;  // of a thread

 public:
  __device__ Consumer(const Work& work, Shared<kDim>& shared) : work_(work), shared_(shared) {
    group_ = static_cast<int>(threadIdx.x) / cuda::kWarpgroup - 1;
    lane_ = static_cast<int>(threadIdx.x % 32);
  }

  __device__ void run() {
    if (S::kConsumers == 2 && group_ == 1) give_turn(0);
    for (Turn<1> q_turn;; q_turn.next()) {
      cuda::barrier_wait(&shared_.q_full, q_turn.parity);
      const std::int64_t tile = shared_.tile;
      if (tile < 0) break;
      tile_ = tile;
      begin();
      go_through_keys();
      finish();
      if constexpr (!S::kOwnOutput) release(shared_.q_empty);
    }
    // What was given and not taken.
    if (S::kConsumers == 2 && group_ == 0) take_turn();
  }

 private:
  // Found anew where it is wanted: registers are short between.
  __device__ Block block() const { return block_of<kDim>(work_, tile_); }

  __device__ void begin() {
    const Block block = this->block();
    const AttentionForward& p = work_.p;
    tiles_ = block.tiles;
    const int group_row = block.first_row + group_ * kConsumerRows;
    row_ = group_row + static_cast<int>(threadIdx.x % cuda::kWarpgroup) / 32 * 16 + lane_ / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sight_[r] = RowSight(sight_of(p, block.span, row_ + 8 * r));
      largest_[r] = minus_infinity();
      total_[r] = 0;
    }
    all_see_begin_ = static_cast<int>(sight_of(p, block.span, group_row + kConsumerRows - 1).begin);
    all_see_end_ = static_cast<int>(sight_of(p, block.span, group_row).end);
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
#pragma unroll
      for (float& o : sums_[part]) o = 0;
    }
  }

  __device__ void go_through_keys() {
    const int count = tiles_.count;
    if (count == 0) {
      if constexpr (S::kOwnOutput) release(shared_.q_empty);
      return;
    }
    float scores[kScores];
    std::uint32_t weights[S::kKeys / 16][4];
    cuda::barrier_wait(&shared_.k_full[k_turn_.stage], k_turn_.parity);
    multiply_keys(scores, k_turn_.stage);
    cuda::wgmma_wait<0>();
    cuda::wgmma_hold(scores);
    release(shared_.k_empty[k_turn_.stage]);
    k_turn_.next();
    soften(scores, tiles_.tile(0));
    pack(scores, weights);
    for (int i = 1; i < count; ++i) {
      cuda::barrier_wait(&shared_.k_full[k_turn_.stage], k_turn_.parity);
      take_turn();
      multiply_keys(scores, k_turn_.stage);
      cuda::barrier_wait(&shared_.v_full[v_turn_.stage], v_turn_.parity);
      multiply_values(weights, v_turn_.stage);
      give_turn(1 - group_);
      cuda::wgmma_wait<1>();
      cuda::wgmma_hold(scores);
      release(shared_.k_empty[k_turn_.stage]);
      k_turn_.next();
      soften(scores, tiles_.tile(i));
      cuda::wgmma_wait<0>();
      hold_sums();
      release(shared_.v_empty[v_turn_.stage]);
      v_turn_.next();
      rescale();
      pack(scores, weights);
    }
    if constexpr (S::kOwnOutput) release(shared_.q_empty);
    cuda::barrier_wait(&shared_.v_full[v_turn_.stage], v_turn_.parity);
    multiply_values(weights, v_turn_.stage);
    cuda::wgmma_wait<0>();
    hold_sums();
    release(shared_.v_empty[v_turn_.stage]);
    v_turn_.next();
  }

  // Of two warpgroups one issues its products while the other is at its softmax.
  __device__ void take_turn() {
    if constexpr (S::kConsumers == 2) cuda::named_barrier(2 + group_, 2 * cuda::kWarpgroup);
  }
  __device__ void give_turn(int group) {
    if constexpr (S::kConsumers == 2) cuda::named_arrive(2 + group, 2 * cuda::kWarpgroup);
  }

  // Each warp for itself: its own products are done.
  __device__ void release(std::uint64_t& barrier) {
    if (lane_ == 0) cuda::barrier_arrive(&barrier);
  }

  __device__ void multiply_keys(float (&scores)[kScores], int stage) {
    const std::uint64_t q = cuda::tile_descriptor(
        cuda::shared_address(shared_.q + group_ * kConsumerRows * cuda::kSliceRowBytes), S::kRows);
    const std::uint64_t k = cuda::tile_descriptor(cuda::shared_address(shared_.k[stage]), S::kKeys);
    cuda::wgmma_hold(scores);
    cuda::wgmma_begin();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      cuda::wgmma<T, false>(scores, cuda::inner_columns(q, S::kRows, step),
                            cuda::inner_columns(k, S::kKeys, step), step > 0 ? 1 : 0);
    }
    cuda::wgmma_commit();
  }

  __device__ void multiply_values(const std::uint32_t (&weights)[S::kKeys / 16][4], int stage) {
    const std::uint64_t v = cuda::tile_descriptor(cuda::shared_address(shared_.v[stage]), S::kKeys);
    hold_sums();
    cuda::wgmma_begin();
#pragma unroll
    for (int step = 0; step < S::kKeys / 16; ++step) {
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
        const int slice = part * S::kPart / cuda::kSliceColumns * S::kKeys * cuda::kSliceRowBytes;
        cuda::wgmma<T, true>(sums_[part], weights[step],
                             cuda::inner_rows(cuda::advanced(v, slice), step), 1);
      }
    }
    cuda::wgmma_commit();
  }

  __device__ void hold_sums() {
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) cuda::wgmma_hold(sums_[part]);
  }

  // Scores become weights relative to the largest score so far.
  __device__ void soften(float (&scores)[kScores], int tile) {
    const int first_key = tile * S::kKeys;
    if constexpr (kChanged) change(scores, first_key);
    if (first_key + S::kKeys > all_see_end_ || first_key < all_see_begin_) {
      const int column = first_key + lane_ % 4 * 2;
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        if (!sight_[i / 2 % 2].sees(column + i / 4 * 8 + i % 2)) scores[i] = minus_infinity();
      }
    }
    float top[2] = {largest_[0], largest_[1]};
#pragma unroll
    for (int i = 0; i < kScores; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], scores[i]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = row_max(top[r]);
      // Nothing seen yet: any finite number does, since every score is -inf.
      const float base = top[r] == minus_infinity() ? 0 : top[r] * work_.scale;
      shrink_[r] = cuda::exp2_flushed(largest_[r] * work_.scale - base);
      largest_[r] = top[r];
      top[r] = base;
    }
    float total[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      scores[i] = cuda::exp2_flushed(fmaf(scores[i], work_.scale, -top[i / 2 % 2]));
      total[i / 2 % 2] += scores[i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) total_[r] = total_[r] * shrink_[r] + total[r];
  }

  // Soft cap, ALiBi, bias; afterwards scores are to base 2.
  __device__ void change(float (&scores)[kScores], int first_key) {
    const Block block = this->block();
    const ScoreRule rule(work_.p, block.span, block.place.sequence, block.place.head);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int key = first_key + lane_ % 4 * 2 + i / 4 * 8 + i % 2;
      const int row = row_ + i / 2 % 2 * 8;
      const bool there = row < block.span.queries && key < block.span.keys;
      scores[i] = (rule.capped(scores[i]) + rule.added(row, key, there)) * kLog2E;
    }
  }

  __device__ void rescale() {
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
#pragma unroll
      for (int i = 0; i < S::kPart / 2; ++i) sums_[part][i] *= shrink_[i / 2 % 2];
    }
  }

  __device__ static void pack(const float (&scores)[kScores],
                              std::uint32_t (&weights)[S::kKeys / 16][4]) {
#pragma unroll
    for (int i = 0; i < S::kKeys / 4; ++i) {
      weights[i / 4][i % 4] = packed_pair<T>(scores[2 * i], scores[2 * i + 1]);
    }
  }

  __device__ void finish() {
    const AttentionForward& p = work_.p;
    const Block block = this->block();
    const int group_row = block.first_row + group_ * kConsumerRows;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = row_sum(total_[r]);
      float top = largest_[r] * work_.scale;
      factor[r] = 1;
      if (p.sink_logits != nullptr) {
        const float sink = static_cast<const float*>(p.sink_logits)[block.place.head] * kLog2E;
        const float base = fmaxf(top, sink);
        factor[r] = top == minus_infinity() ? 0 : cuda::exp2_flushed(top - base);
        total = total * factor[r] + cuda::exp2_flushed(sink - base);
        top = base;
      }
      factor[r] = total > 0 ? factor[r] / total : (total == 0 ? 0 : total);
      const int row = row_ + 8 * r;
      if (p.log_sum_exp != nullptr && lane_ % 4 == 0 && row < block.span.queries) {
        static_cast<float*>(
            p.log_sum_exp)[row_index(p, block.span, block.place.sequence, block.place.head, row)] =
            total == 0 ? minus_infinity() : fmaf(top, kLn2, logf(total));
      }
    }
    T* const output = token_of<T>(p.output, block.place.sequence, block.place.head,
                                  block.span.first_query + group_row);
    std::byte* const staging = S::kOwnOutput ? shared_.output : shared_.q;
    store_rows<T, kDim, S::kRows>(sums_, factor[0], factor[1],
                                  staging + group_ * kConsumerRows * cuda::kSliceRowBytes, output,
                                  p.output.token_stride, static_cast<int>(p.v_dim),
                                  static_cast<int>(block.span.queries) - group_row, 4 + group_);
  }

  const Work& work_;
  Shared<kDim>& shared_;
  Turn<S::kStages> k_turn_, v_turn_;
  int group_, lane_;
  std::int64_t tile_;
  KeyTiles tiles_;
  int row_;
  RowSight sight_[2];
  int all_see_begin_, all_see_end_;  // keys that all rows of the warpgroup see
  float largest_[2], total_[2], shrink_[2];
  float sums_[S::kParts][S::kPart / 2];
};

template <class T, int kDim, bool kChanged>
__global__ void __launch_bounds__(Shape<kDim>::kThreads, 1)
    forward_kernel(const __grid_constant__ Work work) {
  if constexpr (cuda::kWgmma) {
    using S = Shape<kDim>;
    auto& shared = shared_memory<Shared<kDim>>();
    if (threadIdx.x == 0) {
      cuda::barrier_init(&shared.q_full, 1);
      cuda::barrier_init(&shared.q_empty, S::kConsumers * 4);
      for (int i = 0; i < S::kStages; ++i) {
        cuda::barrier_init(&shared.k_full[i], 1);
        cuda::barrier_init(&shared.v_full[i], 1);
        cuda::barrier_init(&shared.k_empty[i], S::kConsumers * 4);
        cuda::barrier_init(&shared.v_empty[i], S::kConsumers * 4);
      }
      cuda::fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < cuda::kWarpgroup) {
      cuda::give_registers_back<S::kProducerRegisters>();
      if (threadIdx.x < 32) produce<kDim>(work, shared);
    } else {
      cuda::take_registers<S::kConsumerRegisters>();
      Consumer<T, kDim, kChanged>(work, shared).run();
    }
  }
}

template <class T, int kDim, bool kChanged>
void launch_forward(Context& context, const AttentionForward& p) {
  using S = Shape<kDim>;
  Work work;
  work.p = p;
  work.scale = kChanged ? 1.0F : static_cast<float>(p.scale * 1.4426950408889634);
  work.q = source_of(p, p.q, p.query_heads, p.queries, p.k_dim, S::kRows);
  work.k = source_of(p, p.k, p.kv_heads, p.keys, p.k_dim, S::kKeys);
  work.v = source_of(p, p.v, p.kv_heads, p.keys, p.v_dim, S::kKeys);
  work.deal = deal_of(p, p.queries, p.query_heads, p.query_starts != nullptr, S::kRows, p.keys);
  work.tiles = work.deal.lanes * work.deal.tiles;
  work.next_tile = static_cast<unsigned*>(context.workspace(sizeof(unsigned)));
  cuda::check(cudaMemsetAsync(work.next_tile, 0, sizeof(unsigned), cuda::stream_of(context)),
              "cudaMemsetAsync");
  const std::int64_t processors = cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  const auto kernel = forward_kernel<T, kDim, kChanged>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "attention forward", kernel,
               {.blocks = static_cast<unsigned>(std::min(processors, work.tiles)),
                .threads = S::kThreads,
                .shared_bytes = sizeof(Shared<kDim>) + 1024},
               work);
}

template <class T, int kDim>
void launch_dim(Context& context, const AttentionForward& p) {
  const bool changed = p.soft_cap > 0 || p.alibi_slopes != nullptr || p.bias != nullptr;
  changed ? launch_forward<T, kDim, true>(context, p) : launch_forward<T, kDim, false>(context, p);
}

template <class T>
void launch_type(Context& context, const AttentionForward& p) {
  const std::int64_t dim = larger(p.k_dim, p.v_dim);
  if (dim <= 64) {
    launch_dim<T, 64>(context, p);
  } else if (dim <= 128) {
    launch_dim<T, 128>(context, p);
  } else if (dim <= 192) {
    launch_dim<T, 192>(context, p);
  } else {
    launch_dim<T, 256>(context, p);
  }
}

}  // namespace

std::string attention_wgmma_refuses(const Context& context, const AttentionForward& p) {
  if (cuda::device_attribute(context, cudaDevAttrComputeCapabilityMajor) != 9) {
    return "needs a Hopper GPU";
  }
  if (p.dtype != DType::bf16 && p.dtype != DType::f16) return "needs bf16 or f16";
  if (row_count(p) == 0 || p.keys == 0) return "nothing to multiply";
  if (larger(p.k_dim, p.v_dim) > 256) return "head dimensions above 256";
  if (p.k_dim % 8 != 0 || p.v_dim % 8 != 0) return "head dimensions must be multiples of 8";
  if (p.scale < 0) return "a negative scale";
  std::string refusal = refuses_layout(p, "q", p.q, p.query_heads, p.queries, p.k_dim);
  if (refusal.empty()) refusal = refuses_layout(p, "k", p.k, p.kv_heads, p.keys, p.k_dim);
  if (refusal.empty()) refusal = refuses_layout(p, "v", p.v, p.kv_heads, p.keys, p.v_dim);
  if (refusal.empty()) {
    refusal = refuses_layout(p, "output", p.output, p.query_heads, p.queries, p.v_dim);
  }
  return refusal;
}

void attention_wgmma(Context& context, const AttentionForward& p) {
  p.dtype == DType::bf16 ? launch_type<Bf16>(context, p) : launch_type<F16>(context, p);
}

}  // namespace touchstone::attend
