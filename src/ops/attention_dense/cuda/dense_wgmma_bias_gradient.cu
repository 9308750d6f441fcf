// dbias of dense attention on Hopper's tensor cores: a block owns 128 queries by 64 keys of it, 64
// queries of each warpgroup, and goes over the sequences and heads the bias is shared by, in order.
// A bias is of dense tensors only, never of packed ones.
#include "ops/attention_dense/cuda/dense_wgmma_backward.cuh"

namespace touchstone::dense_attention {
namespace {

constexpr int kRows = 2 * kConsumerRows;
constexpr int kKeys = 64;

template <int kDim_>
struct Side {
  static constexpr int kDim = kDim_;
  static constexpr int kStages = kDim <= 128 ? 2 : 1;
  struct Stage {
    alignas(1024) std::byte q[kTileBytes<kRows, kDim>];
    alignas(1024) std::byte doutput[kTileBytes<kRows, kDim>];
    alignas(1024) std::byte k[kTileBytes<kKeys, kDim>];
    alignas(1024) std::byte v[kTileBytes<kKeys, kDim>];
  };
  struct Shared {
    Stage stages[kStages];
    alignas(8) std::uint64_t full[kStages], empty[kStages];
  };
};

// A tile of dbias.
struct Tile {
  std::int64_t unit = 0;  // of the matrices of dbias
  DbiasUnit shared_by;
  int first_row = 0;
  int first_key = 0;
  int pairs = 0;  // sequences and heads to iterate over; none where all is masked
};

__device__ Tile tile_of(const BackwardProblem& p) {
  const auto key_tiles = static_cast<unsigned>((p.keys + kKeys - 1) / kKeys);
  const auto row_tiles = static_cast<unsigned>((p.queries + kRows - 1) / kRows);
  const unsigned rest = blockIdx.x / key_tiles;
  Tile tile;
  tile.first_key = static_cast<int>(blockIdx.x % key_tiles) * kKeys;
  tile.first_row = static_cast<int>(rest % row_tiles) * kRows;
  tile.unit = rest / row_tiles;
  tile.shared_by = dbias_unit(p, tile.unit);
  const SequenceSpan span = span_of(p, 0);
  const std::int64_t last_row = smaller(tile.first_row + kRows, p.queries) - 1;
  const VisibleRange first = visible_range(p, span, tile.first_row);
  const VisibleRange last = visible_range(p, span, last_row);
  const bool unseen = tile.first_key >= last.end ||
                      (tile.first_key + kKeys <= first.begin && tile.first_key >= last.sinks);
  if (!unseen) tile.pairs = static_cast<int>(tile.shared_by.sequences * tile.shared_by.heads);
  return tile;
}

struct Pair {
  int sequence, head;
  __device__ Pair(const DbiasUnit& unit, int n) {
    const int heads = static_cast<int>(unit.heads);
    sequence = static_cast<int>(unit.first_sequence) + n / heads;
    head = static_cast<int>(unit.first_head) + n % heads;
  }
};

template <class S>
__device__ void produce(const GradientWork& work, const Tile& tile, typename S::Shared& shared) {
  const BackwardProblem& p = work.p;
  PipelineState<S::kStages> turn;
  for (int n = 0; n < tile.pairs; ++n, turn.next()) {
    const Pair pair(tile.shared_by, n);
    const int kv_head = pair.head / static_cast<int>(p.heads_per_kv);
    auto& stage = shared.stages[turn.stage];
    std::uint64_t* const full = &shared.full[turn.stage];
    cuda::barrier_wait(&shared.empty[turn.stage], turn.parity ^ 1);
    load_tile<kRows, S::kDim>(stage.q, work.q, tile.first_row, p.queries, pair.head, pair.sequence,
                              false, full);
    load_tile<kKeys, S::kDim>(stage.k, work.k, tile.first_key, p.keys, kv_head, pair.sequence,
                              false, full);
    load_tile<kRows, S::kDim>(stage.doutput, work.doutput, tile.first_row, p.queries, pair.head,
                              pair.sequence, false, full);
    load_tile<kKeys, S::kDim>(stage.v, work.v, tile.first_key, p.keys, kv_head, pair.sequence,
                              false, full);
  }
}

template <class T, class S>
__device__ void consume(const GradientWork& work, const Tile& tile, typename S::Shared& shared) {
  const BackwardProblem& p = work.p;
  const SequenceSpan span = span_of(p, 0);
  const int group = group_of_thread();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = tile.first_row + group * kConsumerRows + row_of_thread();
  const RowMask visible[2] = {RowMask(visible_range(p, span, row)),
                              RowMask(visible_range(p, span, row + 8))};
  const auto key_of = [&](int i) { return tile.first_key + lane % 4 * 2 + i / 4 * 8 + i % 2; };
  const auto row_of = [&](int i) { return row + i / 2 % 2 * 8; };
  const auto there = [&](int i) { return row_of(i) < p.queries && key_of(i) < p.keys; };
  float sums[kKeys / 2];
#pragma unroll
  for (float& x : sums) x = 0;
  PipelineState<S::kStages> turn;
  for (int n = 0; n < tile.pairs; ++n, turn.next()) {
    const Pair pair(tile.shared_by, n);
    const std::int64_t rows = padded_row(work, pair.sequence, pair.head) + row;
    const float log[2] = {work.rows_log[rows], work.rows_log[rows + 8]};
    const float delta[2] = {work.rows_delta[rows], work.rows_delta[rows + 8]};
    const ScoreRule rule(p, span, pair.sequence, pair.head);
    const auto& stage = shared.stages[turn.stage];
    float scores[kKeys / 2], dweights[kKeys / 2];
    cuda::barrier_wait(&shared.full[turn.stage], turn.parity);
    multiply_columns<T, S::kDim, kRows, kKeys>(scores, rows_of_group(stage.q, group), stage.k);
    multiply_columns<T, S::kDim, kRows, kKeys>(dweights, rows_of_group(stage.doutput, group),
                                               stage.v);
    cuda::wgmma_wait<0>();
    cuda::wgmma_hold(scores);
    cuda::wgmma_hold(dweights);
    if (lane == 0) cuda::barrier_arrive(&shared.empty[turn.stage]);
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      const float score = rule.capped(scores[i]) + rule.added(row_of(i), key_of(i), there(i));
      const float weight = cuda::exp2_flushed(fmaf(score, kLog2E, -log[i / 2 % 2]));
      if (visible[i / 2 % 2].attends(key_of(i))) {
        sums[i] += score_gradient(weight, dweights[i], delta[i / 2 % 2]);
      }
    }
  }
  float* const dbias = static_cast<float*>(p.dbias) + tile.unit * p.queries * p.keys;
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) {
    if (there(i)) dbias[row_of(i) * p.keys + key_of(i)] = sums[i];
  }
}

template <class T, class S>
__global__ void __launch_bounds__(kGradientThreads, 1)
    bias_gradient_kernel(const __grid_constant__ GradientWork work) {
  if constexpr (cuda::kWgmma) {
    auto& shared = shared_memory<typename S::Shared>();
    const Tile tile = tile_of(work.p);
    run_block(
        [&] {
          init_barriers(shared.full, 4);
          init_barriers(shared.empty, 8);
        },
        [&] { produce<S>(work, tile, shared); }, [&] { consume<T, S>(work, tile, shared); });
  }
}

}  // namespace

void attention_wgmma_bias_gradient(Context& context, const GradientWork& rows) {
  const BackwardProblem& p = rows.p;
  const std::int64_t blocks =
      dbias_units(p) * pieces(p.queries, 1, false, kRows) * pieces(p.keys, 1, false, kKeys);
  if (blocks == 0) return;
  for_shape(p, [&]<class T, int kDim>() {
    using S = Side<kDim>;
    GradientWork work = rows;
    work.q = make_tile_source(p, p.q, p.query_heads, p.queries, p.k_dim, kRows);
    work.doutput = make_tile_source(p, p.doutput, p.query_heads, p.queries, p.v_dim, kRows);
    work.k = make_tile_source(p, p.k, p.kv_heads, p.keys, p.k_dim, kKeys);
    work.v = make_tile_source(p, p.v, p.kv_heads, p.keys, p.v_dim, kKeys);
    launch_gradient<typename S::Shared>(context, "attention bias gradient",
                                        bias_gradient_kernel<T, S>, work,
                                        static_cast<unsigned>(blocks));
  });
}

}  // namespace touchstone::dense_attention
