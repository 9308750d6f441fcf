// Dense attention forward on Hopper's tensor cores.
//
// A consumer warpgroup holds the scores of 64 rows by a tile of keys and the sums of 64 rows of
// output in registers. While the tensor cores multiply the weights of one tile by its values and
// the queries by the next tile's keys, nothing waits but the softmax of that next tile; of two
// warpgroups one is at its softmax while the other has the tensor cores.
#include <string>

#include "ops/attention/dense_wgmma.cuh"

namespace touchstone::attention {
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
};

template <int kDim>
struct Shared {
  using S = Shape<kDim>;
  alignas(1024) std::byte q[kTileBytes<S::kRows, kDim>];
  alignas(1024) std::byte k[S::kStages][kTileBytes<S::kKeys, kDim>];
  alignas(1024) std::byte v[S::kStages][kTileBytes<S::kKeys, kDim>];
  alignas(8) std::uint64_t q_full;
  std::uint64_t k_full[S::kStages], k_empty[S::kStages];
  std::uint64_t v_full[S::kStages], v_empty[S::kStages];
};

struct Work {
  AttentionForward p;
  Source q, k, v;
  Deal deal;
  float scale = 1;  // of the scores, to base 2; 1 where they are changed one by one
};

// Where a block works.
struct Block {
  Place place;
  SequenceSpan span;
  int first_row = 0;
  int kv_head = 0;
  int batch = 0;  // of the tensors: 0 when packed
  KeyTiles tiles;
};

template <int kDim>
__device__ Block block_of(const Work& work) {
  Block block;
  const AttentionForward& p = work.p;
  block.place = place_of(work.deal, blockIdx.x, p.batch, p.query_starts);
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

template <int kDim>
__device__ void produce(const Work& work, const Block& block, Shared<kDim>& shared) {
  using S = Shape<kDim>;
  const bool packed = work.p.query_starts != nullptr;
  const auto load = [&](std::byte* to, const Source& source, int i, std::uint64_t* barrier) {
    load_tile<S::kKeys, kDim>(
        to, source,
        block.span.first_key + static_cast<std::int64_t>(block.tiles.tile(i)) * S::kKeys,
        block.span.first_key + block.span.keys, block.kv_head, block.batch, packed, barrier);
  };
  load_tile<S::kRows, kDim>(shared.q, work.q, block.span.first_query + block.first_row,
                            block.span.first_query + block.span.queries, block.place.head,
                            block.batch, packed, &shared.q_full);
  Turn<S::kStages> turn;
  for (int i = 0; i < block.tiles.count; ++i, turn.next()) {
    cuda::barrier_wait(&shared.k_empty[turn.stage], turn.parity ^ 1);
    load(shared.k[turn.stage], work.k, i, &shared.k_full[turn.stage]);
    cuda::barrier_wait(&shared.v_empty[turn.stage], turn.parity ^ 1);
    load(shared.v[turn.stage], work.v, i, &shared.v_full[turn.stage]);
  }
}

// One consumer warpgroup's rows.
template <class T, int kDim, bool kChanged>
class Consumer {
  using S = Shape<kDim>;
  static constexpr int kScores = S::kKeys / 2;  // of a thread

 public:
  __device__ Consumer(const Work& work, const Block& block, Shared<kDim>& shared)
      : work_(work), block_(block), shared_(shared) {
    group_ = static_cast<int>(threadIdx.x) / cuda::kWarpgroup - 1;
    const int thread = static_cast<int>(threadIdx.x) % cuda::kWarpgroup;
    lane_ = thread % 32;
    group_row_ = block.first_row + group_ * kConsumerRows;
    row_ = group_row_ + thread / 32 * 16 + lane_ / 4;
    const AttentionForward& p = work.p;
    for (int i = 0; i < 2; ++i) sight_[i] = RowSight(sight_of(p, block.span, row_ + 8 * i));
    const RowSight first(sight_of(p, block.span, group_row_));
    const RowSight last(sight_of(p, block.span, group_row_ + kConsumerRows - 1));
    all_see_begin_ = last.begin;
    all_see_end_ = first.end;
  }

  __device__ void run() {
    const int count = block_.tiles.count;
    if (count > 0) {
      cuda::barrier_wait(&shared_.q_full, 0);
      cuda::barrier_wait(&shared_.k_full[0], 0);
      float scores[kScores];
      multiply_keys(scores, 0);
      cuda::wgmma_wait<0>();
      cuda::wgmma_hold(scores);
      release(shared_.k_empty[0]);
      soften(scores, block_.tiles.tile(0));
      std::uint32_t weights[S::kKeys / 16][4];
      pack(scores, weights);
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
#pragma unroll
        for (float& o : sums_[part]) o = 0;
      }
      Turn<S::kStages> k_turn, v_turn;
      k_turn.next();
      for (int i = 1; i < count; ++i, k_turn.next(), v_turn.next()) {
        cuda::barrier_wait(&shared_.k_full[k_turn.stage], k_turn.parity);
        take_turn();
        multiply_keys(scores, k_turn.stage);
        cuda::barrier_wait(&shared_.v_full[v_turn.stage], v_turn.parity);
        multiply_values(weights, v_turn.stage);
        pass_turn(i + 1 < count);
        cuda::wgmma_wait<1>();
        cuda::wgmma_hold(scores);
        release(shared_.k_empty[k_turn.stage]);
        soften(scores, block_.tiles.tile(i));
        cuda::wgmma_wait<0>();
        hold_sums();
        release(shared_.v_empty[v_turn.stage]);
        rescale();
        pack(scores, weights);
      }
      cuda::barrier_wait(&shared_.v_full[v_turn.stage], v_turn.parity);
      multiply_values(weights, v_turn.stage);
      cuda::wgmma_wait<0>();
      hold_sums();
    } else {
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
#pragma unroll
        for (float& o : sums_[part]) o = 0;
      }
      cuda::barrier_wait(&shared_.q_full, 0);  // the tile is about to be written over
    }
    finish();
  }

 private:
  // Of two warpgroups one issues its products while the other is at its softmax.
  __device__ void take_turn() {
    if constexpr (S::kConsumers == 2) cuda::named_barrier(2 + group_, 2 * cuda::kWarpgroup);
  }
  __device__ void pass_turn(bool again) {
    if constexpr (S::kConsumers == 2) {
      if (group_ == 0 || again) cuda::named_arrive(2 + (1 - group_), 2 * cuda::kWarpgroup);
    }
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
    const ScoreRule rule(work_.p, block_.span, block_.place.sequence, block_.place.head);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int key = first_key + lane_ % 4 * 2 + i / 4 * 8 + i % 2;
      const int row = row_ + i / 2 % 2 * 8;
      const bool there = row < block_.span.queries && key < block_.span.keys;
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
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = row_sum(total_[r]);
      float top = largest_[r] * work_.scale;
      factor[r] = 1;
      if (p.sink_logits != nullptr) {
        const float sink = static_cast<const float*>(p.sink_logits)[block_.place.head] * kLog2E;
        const float base = fmaxf(top, sink);
        factor[r] = top == minus_infinity() ? 0 : cuda::exp2_flushed(top - base);
        total = total * factor[r] + cuda::exp2_flushed(sink - base);
        top = base;
      }
      factor[r] = total > 0 ? factor[r] / total : (total == 0 ? 0 : total);
      const int row = row_ + 8 * r;
      if (p.log_sum_exp != nullptr && lane_ % 4 == 0 && row < block_.span.queries) {
        static_cast<float*>(p.log_sum_exp)[row_index(p, block_.span, block_.place.sequence,
                                                     block_.place.head, row)] =
            total == 0 ? minus_infinity() : fmaf(top, kLn2, logf(total));
      }
    }
    T* const output = tokens_of<T>(p, p.output, block_.place.sequence, block_.place.head,
                                   block_.span.first_query + group_row_);
    store_rows<T, kDim, S::kRows>(sums_, factor[0], factor[1],
                                  shared_.q + group_ * kConsumerRows * cuda::kSliceRowBytes, output,
                                  p.output.token_stride, static_cast<int>(p.v_dim),
                                  static_cast<int>(block_.span.queries) - group_row_, 4 + group_);
  }

  const Work& work_;
  const Block& block_;
  Shared<kDim>& shared_;
  int group_, lane_, group_row_, row_;
  RowSight sight_[2];
  int all_see_begin_, all_see_end_;
  float largest_[2] = {minus_infinity(), minus_infinity()};
  float total_[2] = {0, 0};
  float shrink_[2] = {1, 1};
  float sums_[S::kParts][S::kPart / 2];
};

template <class T, int kDim, bool kChanged>
__global__ void __launch_bounds__(Shape<kDim>::kThreads, 1)
    forward_kernel(const __grid_constant__ Work work) {
  if constexpr (cuda::kWgmma) {
    using S = Shape<kDim>;
    extern __shared__ std::byte memory[];
    const std::uint32_t misplaced = cuda::shared_address(memory) % 1024;
    auto& shared =
        *reinterpret_cast<Shared<kDim>*>(memory + (misplaced == 0 ? 0 : 1024 - misplaced));
    const Block block = block_of<kDim>(work);
    if (block.first_row >= block.span.queries) return;
    if (threadIdx.x == 0) {
      cuda::barrier_init(&shared.q_full, 1);
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
      if (threadIdx.x < 32) produce<kDim>(work, block, shared);
    } else {
      cuda::take_registers<S::kConsumerRegisters>();
      // The first warpgroup's first turn.
      if (S::kConsumers == 2 && threadIdx.x >= 2 * cuda::kWarpgroup && block.tiles.count > 1) {
        cuda::named_arrive(2, 2 * cuda::kWarpgroup);
      }
      Consumer<T, kDim, kChanged>(work, block, shared).run();
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
  cuda::LaunchShape shape;
  shape.blocks = static_cast<unsigned>(work.deal.lanes * work.deal.tiles);
  shape.threads = S::kThreads;
  shape.shared_bytes = sizeof(Shared<kDim>) + 1024;
  const auto kernel = forward_kernel<T, kDim, kChanged>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "attention forward", kernel, shape, work);
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

}  // namespace touchstone::attention
