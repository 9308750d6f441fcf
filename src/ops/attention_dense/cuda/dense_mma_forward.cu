// Dense attention forward on mma.sync: for GPUs before Hopper, and for what wgmma refuses.
//
// The values of a tile of keys arrive while its scores are made, the keys of the next tile while
// the weights become output. Two or three blocks share a multiprocessor, so that one is at its
// products while another is at its softmax.
#include "ops/attention_dense/cuda/dense_mma.cuh"

namespace touchstone::dense_attention {
namespace {

template <int kDim>
struct Shape {
  static constexpr int kTiles = kDim == 64 ? 2 : 1;  // of 16 rows, of a warp
  static constexpr int kWarpRows = 16 * kTiles;
  static constexpr int kRows = kMmaWarps * kWarpRows;
  static constexpr int kKeys = 64;
  static constexpr bool kKeepsQueries = kDim == 64;    // in registers
  static constexpr int kBlocks = kDim == 128 ? 3 : 2;  // on a multiprocessor
};

template <int kDim>
struct Shared {
  using S = Shape<kDim>;
  alignas(128) std::byte q[kMmaTileBytes<S::kRows, kDim>];
  alignas(128) std::byte k[kMmaTileBytes<S::kKeys, kDim>];
  alignas(128) std::byte v[kMmaTileBytes<S::kKeys, kDim>];
};

struct Work {
  ForwardProblem p;
  TileSchedule schedule;
  bool changed = false;  // the scores, one by one
  float scale = 1;       // of the scores as softmax gets them, to base 2
  float natural = 1;     // and to base e
};

// A tile of queries.
struct Block {
  TileCoord coord;
  SequenceSpan span;
};

__device__ Block block_of(const Work& work) {
  const TileCoord coord = tile_coord(work.schedule, blockIdx.x, work.p.batch, work.p.query_offsets);
  return {coord, span_of(work.p, coord.sequence)};
}

template <class T, int kDim>
class Forward {
  using S = Shape<kDim>;
  using Scores = Sums<S::kTiles, S::kKeys>;

 public:
  __device__ Forward(const Work& work, const Block& block, Shared<kDim>& shared)
      : work_(work),
        shared_(shared),
        k_(keys_of(work.p.k, work.p.k_dim, block, static_cast<int>(work.p.heads_per_kv))),
        v_(keys_of(work.p.v, work.p.v_dim, block, static_cast<int>(work.p.heads_per_kv))),
        pair_(work.p, block.span),
        row_(block.coord.tile * S::kRows + warp() * S::kWarpRows) {}

  __device__ void run(const Block& block) {
    const ForwardProblem& p = work_.p;
    const SequenceSpan& span = block.span;
    const int first = block.coord.tile * S::kRows;
    const std::int64_t last = smaller(first + S::kRows, span.queries) - 1;
    const KeyTiles tiles =
        key_tiles(visible_range(p, span, first), visible_range(p, span, last), S::kKeys);
    clear(sums_);
    const Tokens q(p.q, p.k_dim, block.coord.sequence, block.coord.head, span.first_query + first);
    issue_tile<S::kRows, kDim>(address(shared_.q), q, 0, span.queries - first);
    if (tiles.count > 0) issue_loads(k_, shared_.k, tiles.tile(0));
    cuda::commit_copies();
    for (int i = 0; i < tiles.count; ++i) {
      const int tile = tiles.tile(i);
      cuda::wait_copies<0>();
      __syncthreads();
      issue_loads(v_, shared_.v, tile);
      cuda::commit_copies();
      if (S::kKeepsQueries && i == 0) keep_queries();
      Scores scores;
      multiply_keys(scores);
      cuda::wait_copies<0>();
      __syncthreads();
      if (i + 1 < tiles.count) issue_loads(k_, shared_.k, tiles.tile(i + 1));
      cuda::commit_copies();
      online_softmax_tile(scores, tile * S::kKeys);
      if (work_.p.dropout.threshold > 0) drop(scores, tile * S::kKeys);
      add_rows<T, kDim>(sums_, scores, address(shared_.v), offsets_, v_.columns);
    }
    // All copies have arrived, also where there was no tile to wait for: output goes through their
    // place.
    cuda::wait_copies<0>();
    __syncthreads();
    finish();
  }

 private:
  __device__ static int warp() { return static_cast<int>(threadIdx.x / 32); }
  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ static std::uint32_t address(const std::byte* memory) {
    return cuda::shared_address(memory);
  }
  __device__ static Tokens keys_of(const ConstHeads& heads, std::int64_t columns,
                                   const Block& block, int heads_per_kv) {
    return {heads, columns, block.coord.sequence, block.coord.head / heads_per_kv,
            block.span.first_key};
  }

  __device__ void issue_loads(const Tokens& tokens, std::byte* to, int tile) {
    const int key = tile * S::kKeys;
    issue_tile<S::kKeys, kDim>(address(to), tokens, key, pair_.keys - key);
  }

  // The warp's own.
  __device__ FromTile<kDim> queries() const {
    return {address(shared_.q) + warp() * kMmaTileBytes<S::kWarpRows, kDim>, offsets_};
  }
  __device__ void keep_queries() {
#pragma unroll
    for (int c = 0; c < (S::kKeepsQueries ? kDim : 0); c += 16) queries()(kept_[c / 16], c);
  }

  __device__ void multiply_keys(Scores& scores) {
    clear(scores);
    if constexpr (S::kKeepsQueries) {
      const auto kept = [&](std::uint32_t(&a)[S::kTiles][4], int c) {
#pragma unroll
        for (int i = 0; i < 4 * S::kTiles; ++i) a[i / 4][i % 4] = kept_[c / 16][i / 4][i % 4];
      };
      add_columns<T, kDim>(scores, kept, address(shared_.k), offsets_, k_.columns);
    } else {
      add_columns<T, kDim>(scores, queries(), address(shared_.k), offsets_, k_.columns);
    }
  }

  // Scores become weights relative to the largest score so far.
  __device__ void online_softmax_tile(Scores& scores, int first_key) {
    const int row = row_ + lane() / 4;
    const int key = first_key + lane() % 4 * 2;
    if (work_.changed) change(scores, row, key);
    if (!pair_.attends_all(row_, row_ + S::kWarpRows - 1, first_key, first_key + S::kKeys - 1)) {
      hide<true>(scores, pair_, row, key, minus_infinity());
    }
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m) {
      RowSoftmax& softmax = softmax_[m];
      softmax.take(scores[m], work_.scale);
      // Where no running max has changed the factors are exactly 1; the test pays off for many
      // columns.
      if constexpr (kDim > 128) {
        const bool shrinks = softmax.shrink[0] != 1 || softmax.shrink[1] != 1;
        if (__any_sync(kAllLanes, static_cast<int>(shrinks)) == 0) continue;
      }
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums_[m][j][i] *= softmax.shrink[i / 2];
      }
    }
  }

  // Soft cap, ALiBi, bias.
  __device__ void change(Scores& scores, int row, int key) {
    // Found anew where it is wanted: registers are short between.
    const Block block = block_of(work_);
    const ScoreRule rule(work_.p, block.span, block.coord.sequence, block.coord.head);
    apply_score_mods<true>(scores, rule, block.span, row, key);
  }

  // After the sum of the weights was taken.
  __device__ void drop(Scores& weights, int first_key) {
    const Block block = block_of(work_);
    drop_weights<true>(weights, work_.p, block.span, block.coord.sequence, block.coord.head,
                       row_ + lane() / 4, first_key + lane() % 4 * 2);
  }

  __device__ void finish() {
    const ForwardProblem& p = work_.p;
    const Block block = block_of(work_);
    const TileCoord& coord = block.coord;
    const SequenceSpan& span = block.span;
    float factors[S::kTiles][2];
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const SoftmaxEpilogue epilogue(static_cast<const float*>(p.sink_logits), coord.head,
                                       softmax_[m].largest[r] * work_.natural,
                                       row_sum(softmax_[m].total[r]));
        factors[m][r] = epilogue.nothing ? 0 : epilogue.factor;
        const int row = row_ + 16 * m + 8 * r + lane() / 4;
        if (p.log_sum_exp.data != nullptr && lane() % 4 == 0 && row < span.queries) {
          *token_of<float>(p.log_sum_exp, coord.sequence, coord.head, span.first_query + row) =
              epilogue.log_sum_exp;
        }
      }
    }
    store_rows<T, kDim>(sums_, factors, shared_.q + warp() * kMmaTileBytes<S::kWarpRows, kDim>,
                        token_of<T>(p.output, coord.sequence, coord.head, span.first_query + row_),
                        p.output.token_stride, p.v_dim, span.queries - row_);
  }

  const Work& work_;
  Shared<kDim>& shared_;
  Tokens k_, v_;
  TileMask pair_;
  int row_;  // the warp's first
  LaneOffsets<kDim> offsets_;
  RowSoftmax softmax_[S::kTiles];
  std::uint32_t kept_[S::kKeepsQueries ? kDim / 16 : 1][S::kTiles][4];
  Sums<S::kTiles, kDim> sums_;
};

template <class T, int kDim>
__global__ void __launch_bounds__(kMmaThreads, Shape<kDim>::kBlocks)
    forward_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(128) std::byte memory[];
  const Block block = block_of(work);
  if (block.coord.tile * Shape<kDim>::kRows >= block.span.queries) return;
  Forward<T, kDim>(work, block, *reinterpret_cast<Shared<kDim>*>(memory)).run(block);
}

template <class T, int kDim>
void launch_forward(Context& context, const ForwardProblem& p) {
  Work work;
  work.p = p;
  // The largest score is found before it is scaled, which a negative scale would turn round.
  work.changed = has_score_mods(p) || p.scale < 0;
  work.scale = work.changed ? kLog2E : static_cast<float>(p.scale * 1.4426950408889634);
  work.natural = work.changed ? 1.0F : static_cast<float>(p.scale);
  work.schedule = make_tile_schedule(p, p.queries, p.query_heads, p.query_offsets != nullptr,
                                     Shape<kDim>::kRows, p.keys);
  const auto kernel = forward_kernel<T, kDim>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "attention forward", kernel,
               {.blocks = static_cast<unsigned>(work.schedule.count()),
                .threads = kMmaThreads,
                .shared_bytes = sizeof(Shared<kDim>)},
               work);
}

template <class T>
void launch_type(Context& context, const ForwardProblem& p) {
  const std::int64_t dim = larger(p.k_dim, p.v_dim);
  if (dim <= 64) {
    launch_forward<T, 64>(context, p);
  } else if (dim <= 128) {
    launch_forward<T, 128>(context, p);
  } else {
    launch_forward<T, 256>(context, p);
  }
}

}  // namespace

std::string attention_mma_refuses(const Context& context, const ForwardProblem& p) {
  const std::string refusal = mma_refuses(context, p);
  return refusal.empty() ? mma_refuses_layout("output", p.output) : refusal;
}

void attention_mma(Context& context, const ForwardProblem& p) {
  p.dtype == DType::bf16 ? launch_type<Bf16>(context, p) : launch_type<F16>(context, p);
}

}  // namespace touchstone::dense_attention
