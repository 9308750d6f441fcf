// dk and dv of dense attention on Hopper's tensor cores. A CTA owns a tile of keys and iterates
// over the queries that attend to them, head by head of the group.
//
// Heads up to 128: 128 keys, 64 per warpgroup, with both accumulators in registers. Wider
// accumulators do not fit: there a CTA owns 64 keys; one warpgroup computes the weights,
// accumulates dv and passes the weights to the other, which computes their gradients and
// accumulates dk. Four products either way. Keys and values of the next tile are prefetched where
// shared memory allows.
#include "ops/attention_dense/cuda/dense_wgmma_backward.cuh"

namespace touchstone::dense_attention {
namespace {

constexpr int kStages = 2;

// A tile of keys, and the tiles of queries that may attend to them.
struct Item {
  Block block;
  int2 tiles;
  bool there = false;
};

template <int kDim_>
struct Side {
  static constexpr int kDim = kDim_;
  static constexpr bool kWide = kDim > 128;
  static constexpr int kKeys = kWide ? 64 : 128;
  static constexpr int kSlots = kWide ? 1 : 2;            // tiles of keys in shared memory
  static constexpr int kQueries = kDim == 64 ? 128 : 64;  // of a tile
  struct Stage {
    alignas(1024) std::byte q[kTileBytes<kQueries, kDim>];
    alignas(1024) std::byte doutput[kTileBytes<kQueries, kDim>];
  };
  struct Shared {
    alignas(1024) std::byte k[kSlots][kTileBytes<kKeys, kDim>];
    alignas(1024) std::byte v[kSlots][kTileBytes<kKeys, kDim>];
    Stage stages[kStages];
    alignas(16) float log[kStages][kQueries];
    alignas(16) float delta[kStages][kQueries];
    // Weights on their way from one warpgroup to the other: sum i of thread t at [i][t].
    float handed[kWide ? kStages : 1][kWide ? kQueries / 2 : 1][cuda::kWarpgroup];
    OwnTiles<Item, kSlots> own;
    std::uint64_t q_full[kStages], doutput_full[kStages], empty[kStages];
  };
};

template <class S>
class Producer {
 public:
  __device__ Producer(const GradientWork& work, typename S::Shared& shared)
      : work_(work),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x % 32)),
        packed_(work.p.query_offsets != nullptr),
        scheduler_(work.schedule.count(), work.tiles_taken) {}

  __device__ void run() {
    for (bool there = take(); there;) {
      load_own();
      const Block block = shared_.own.ahead.block;
      const int2 tiles = shared_.own.ahead.tiles;
      there = take();
      for (int member = 0; member < work_.p.heads_per_kv; ++member) {
        const int head = block.coord.head * static_cast<int>(work_.p.heads_per_kv) + member;
        const std::int64_t rows = padded_row(work_, block.coord.sequence, head);
        for (int tile = tiles.x; tile < tiles.y; ++tile) load_queries(block, head, rows, tile);
      }
    }
    shared_.own.end(slot_);
  }

 private:
  // The next tile of keys, to shared_.own.ahead; whether there is one.
  __device__ bool take() {
    while (scheduler_.has()) {
      Item item;
      item.block = block_of(work_, scheduler_.take(), work_.p.key_offsets);
      if (item.block.first >= item.block.span.keys) continue;
      item.tiles = query_tiles(work_.p, item.block.span, item.block.first, S::kKeys, S::kQueries);
      shared_.own.set_ahead(item);
      return true;
    }
    return false;
  }

  // Those of shared_.own.ahead.
  __device__ void load_own() {
    const Block& block = shared_.own.ahead.block;
    const std::int64_t key = block.span.first_key + block.first;
    const std::int64_t end = block.span.first_key + block.span.keys;
    const int slot = shared_.own.claim(slot_);
    std::uint64_t* const full = &shared_.own.full[slot];
    load_own_tiles<S::kKeys, S::kDim>(shared_.k[slot], work_.k, shared_.v[slot], work_.v, key, end,
                                      block, packed_, full);
  }

  __device__ void load_queries(const Block& block, int head, std::int64_t rows, int tile) {
    constexpr int kQueries = S::kQueries;
    constexpr std::uint32_t kBytes = kQueries * sizeof(float);
    const int here = turn_.stage;
    auto& stage = shared_.stages[here];
    const std::int64_t query = block.span.first_query + static_cast<std::int64_t>(tile) * kQueries;
    const std::int64_t end = block.span.first_query + block.span.queries;
    std::uint64_t* const full = &shared_.q_full[here];
    cuda::barrier_wait(&shared_.empty[here], turn_.parity ^ 1);
    if (lane_ == 0) {
      cuda::barrier_expect(full, 2 * kBytes);
      const std::int64_t row = rows + static_cast<std::int64_t>(tile) * kQueries;
      cuda::bulk_load(shared_.log[here], work_.rows_log + row, kBytes, full);
      cuda::bulk_load(shared_.delta[here], work_.rows_delta + row, kBytes, full);
    }
    load_tile<kQueries, S::kDim>(stage.q, work_.q, query, end, head, block.batch, packed_, full);
    load_tile<kQueries, S::kDim>(stage.doutput, work_.doutput, query, end, head, block.batch,
                                 packed_, &shared_.doutput_full[here]);
    turn_.next();
  }

  const GradientWork& work_;
  typename S::Shared& shared_;
  const int lane_;
  const bool packed_;
  TileScheduler scheduler_;
  PipelineState<kStages> turn_;
  PipelineState<S::kSlots> slot_;
};

// The tiles of queries of all heads of the group, one after the other.
struct Walk {
  int2 tiles;
  int tile, head, left;
  PipelineState<kStages>& turn;
  __device__ Walk(const GradientWork& work, const Item& item, PipelineState<kStages>& stages)
      : tiles(item.tiles),
        tile(tiles.x),
        head(item.block.coord.head * static_cast<int>(work.p.heads_per_kv)),
        left(static_cast<int>(work.p.heads_per_kv) * (tiles.y - tiles.x)),
        turn(stages) {}
  __device__ void next() {
    --left;
    turn.next();
    if (++tile == tiles.y) {
      tile = tiles.x;
      ++head;
    }
  }
};

// The weights of a warpgroup's keys, from `group_key` on, and one tile of queries.
template <class T, class S, bool kHasScoreMod>
__device__ void weigh_tile(const GradientWork& work, const Block& block, const Walk& walk,
                           const TileMask& pair, const typename S::Shared& shared, int group_key,
                           const float (&scores)[S::kQueries / 2],
                           float (&weights)[S::kQueries / 2],
                           std::uint32_t (&words)[S::kQueries / 16][4]) {
  const int first_query = walk.tile * S::kQueries;
  const int key = group_key + row_of_thread();
  const int column = static_cast<int>(threadIdx.x % 4) * 2;
  const RowMask first(visible_range(work.p, block.span, first_query));
  const RowMask last(visible_range(work.p, block.span, first_query + S::kQueries - 1));
  const auto query_of = [&](int i) { return first_query + i / 4 * 8 + column + i % 2; };
  const auto key_of = [&](int i) { return key + i / 2 % 2 * 8; };
  weigh<T, kHasScoreMod>(
      scores, weights, words, work.scale,
      ScoreRule(work.p, block.span, block.coord.sequence, walk.head), block.span,
      group_key + kConsumerRows > first.end || group_key < last.begin,
      [&](int i) { return !pair.attends(query_of(i), key_of(i)); }, query_of, key_of,
      [&](int i) { return of_column(shared.log[walk.turn.stage], i); });
}

template <class T, class S>
__device__ void store(const MutableHeads& heads, const Block& block, const RowSums<S::kDim>& sums,
                      float scale, std::byte* staging, std::int64_t columns, int group_key) {
  store_rows<T, S::kDim, S::kKeys>(
      sums.part, scale, scale, staging,
      token_of<T>(heads, block.coord.sequence, block.coord.head, block.span.first_key + group_key),
      heads.token_stride, static_cast<int>(columns), static_cast<int>(block.span.keys) - group_key,
      6 + group_of_thread());
}

// A warpgroup that has both sums.
template <class T, class S, bool kHasScoreMod>
__device__ void consume(const GradientWork& work, const Item& item, int slot,
                        PipelineState<kStages>& turn, typename S::Shared& shared) {
  constexpr int kQueries = S::kQueries;
  const BackwardProblem& p = work.p;
  const int group = group_of_thread();
  const Block& block = item.block;
  const int group_key = block.first + group * kConsumerRows;
  const TileMask pair(p, block.span);
  std::byte* const k = rows_of_group(shared.k[slot], group);
  std::byte* const v = rows_of_group(shared.v[slot], group);
  RowSums<S::kDim> dk, dv;
  dk.clear();
  dv.clear();
  for (Walk walk(work, item, turn); walk.left > 0; walk.next()) {
    const int here = walk.turn.stage;
    const auto& stage = shared.stages[here];
    float scores[kQueries / 2], dweights[kQueries / 2];
    cuda::barrier_wait(&shared.q_full[here], walk.turn.parity);
    multiply_columns<T, S::kDim, S::kKeys, kQueries>(scores, k, stage.q);
    cuda::barrier_wait(&shared.doutput_full[here], walk.turn.parity);
    multiply_columns<T, S::kDim, S::kKeys, kQueries>(dweights, v, stage.doutput);
    cuda::wgmma_wait<1>();
    cuda::wgmma_hold(scores);
    float weights[kQueries / 2];
    std::uint32_t words[kQueries / 16][4];
    weigh_tile<T, S, kHasScoreMod>(work, block, walk, pair, shared, group_key, scores, weights,
                                   words);
    cuda::wgmma_wait<0>();
    cuda::wgmma_hold(dweights);
    add_rows<T, S::kDim, kQueries>(dv, words, stage.doutput);
    std::uint32_t dwords[kQueries / 16][4];
    differentiate<T>(weights, dweights, dwords,
                     [&](int i) { return of_column(shared.delta[here], i); });
    add_rows<T, S::kDim, kQueries>(dk, dwords, stage.q);
    cuda::wgmma_wait<0>();
    dv.hold();
    dk.hold();
    cuda::barrier_arrive(&shared.empty[here]);
  }
  store<T, S>(p.dk, block, dk, static_cast<float>(p.scale), k, p.k_dim, group_key);
  store<T, S>(p.dv, block, dv, 1.0F, v, p.v_dim, group_key);
}

// Barriers of both warpgroups: weights are stored; their buffer is free again.
__device__ int handed_barrier(int stage) { return 2 + stage; }
__device__ int taken_barrier(int stage) { return 4 + stage; }

// The warpgroup that makes weights and sums dv.
template <class T, class S, bool kHasScoreMod>
__device__ void consume_for_values(const GradientWork& work, const Item& item, int slot,
                                   PipelineState<kStages>& turn, typename S::Shared& shared) {
  constexpr int kQueries = S::kQueries;
  const Block& block = item.block;
  const TileMask pair(work.p, block.span);
  RowSums<S::kDim> dv;
  dv.clear();
  int done = 0;
  for (Walk walk(work, item, turn); walk.left > 0; walk.next(), ++done) {
    const int here = walk.turn.stage;
    float scores[kQueries / 2], weights[kQueries / 2];
    cuda::barrier_wait(&shared.q_full[here], walk.turn.parity);
    multiply_columns<T, S::kDim, S::kKeys, kQueries>(scores, shared.k[slot], shared.stages[here].q);
    cuda::wgmma_wait<0>();
    cuda::wgmma_hold(scores);
    std::uint32_t words[kQueries / 16][4];
    weigh_tile<T, S, kHasScoreMod>(work, block, walk, pair, shared, block.first, scores, weights,
                                   words);
    if (done >= kStages) cuda::named_barrier(taken_barrier(here), 2 * cuda::kWarpgroup);
#pragma unroll
    for (int i = 0; i < kQueries / 2; ++i) {
      shared.handed[here][i][threadIdx.x % cuda::kWarpgroup] = weights[i];
    }
    cuda::named_arrive(handed_barrier(here), 2 * cuda::kWarpgroup);
    cuda::barrier_wait(&shared.doutput_full[here], walk.turn.parity);
    add_rows<T, S::kDim, kQueries>(dv, words, shared.stages[here].doutput);
    cuda::wgmma_wait<0>();
    dv.hold();
    cuda::barrier_arrive(&shared.empty[here]);
  }
  store<T, S>(work.p.dv, block, dv, 1.0F, shared.k[slot], work.p.v_dim, block.first);
}

// The warpgroup that is handed weights, makes their gradients and sums dk.
template <class T, class S>
__device__ void consume_for_keys(const GradientWork& work, const Item& item, int slot,
                                 PipelineState<kStages>& turn, typename S::Shared& shared) {
  constexpr int kQueries = S::kQueries;
  const Block& block = item.block;
  RowSums<S::kDim> dk;
  dk.clear();
  for (Walk walk(work, item, turn); walk.left > 0; walk.next()) {
    const int here = walk.turn.stage;
    float dweights[kQueries / 2], weights[kQueries / 2];
    cuda::barrier_wait(&shared.doutput_full[here], walk.turn.parity);
    multiply_columns<T, S::kDim, S::kKeys, kQueries>(dweights, shared.v[slot],
                                                     shared.stages[here].doutput);
    cuda::named_barrier(handed_barrier(here), 2 * cuda::kWarpgroup);
#pragma unroll
    for (int i = 0; i < kQueries / 2; ++i) {
      weights[i] = shared.handed[here][i][threadIdx.x % cuda::kWarpgroup];
    }
    if (walk.left > kStages) cuda::named_arrive(taken_barrier(here), 2 * cuda::kWarpgroup);
    cuda::wgmma_wait<0>();
    cuda::wgmma_hold(dweights);
    // Delta came with the queries.
    cuda::barrier_wait(&shared.q_full[here], walk.turn.parity);
    std::uint32_t dwords[kQueries / 16][4];
    differentiate<T>(weights, dweights, dwords,
                     [&](int i) { return of_column(shared.delta[here], i); });
    add_rows<T, S::kDim, kQueries>(dk, dwords, shared.stages[here].q);
    cuda::wgmma_wait<0>();
    dk.hold();
    cuda::barrier_arrive(&shared.empty[here]);
  }
  store<T, S>(work.p.dk, block, dk, static_cast<float>(work.p.scale), shared.v[slot], work.p.k_dim,
              block.first);
}

template <class T, class S, bool kHasScoreMod>
__device__ void consume_all(const GradientWork& work, typename S::Shared& shared) {
  PipelineState<kStages> turn;
  for (PipelineState<S::kSlots> slots; shared.own.await(slots); slots.next()) {
    const int slot = slots.stage;
    const Item& item = shared.own.items[slot];
    if constexpr (!S::kWide) {
      consume<T, S, kHasScoreMod>(work, item, slot, turn, shared);
    } else if (group_of_thread() == 0) {
      consume_for_values<T, S, kHasScoreMod>(work, item, slot, turn, shared);
    } else {
      consume_for_keys<T, S>(work, item, slot, turn, shared);
    }
    cuda::fence_for_async();  // the copy engine writes there next
    shared.own.release(slot);
  }
}

template <class T, class S, bool kHasScoreMod>
__global__ void __launch_bounds__(kGradientThreads, 1)
    key_gradient_kernel(const __grid_constant__ GradientWork work) {
  if constexpr (cuda::kWgmma) {
    auto& shared = shared_memory<typename S::Shared>();
    run_block(
        [&] {
          shared.own.init();
          init_barriers(shared.q_full, 2);
          init_barriers(shared.doutput_full, 1);
          // Every thread reads log and delta itself and arrives for itself.
          init_barriers(shared.empty, 2 * cuda::kWarpgroup);
        },
        [&] { Producer<S>(work, shared).run(); },
        [&] { consume_all<T, S, kHasScoreMod>(work, shared); });
  }
}

template <class T, class S, bool kHasScoreMod>
void launch(Context& context, const GradientWork& work) {
  launch_gradient<typename S::Shared>(context, "attention key gradient",
                                      key_gradient_kernel<T, S, kHasScoreMod>, work,
                                      work.schedule.count());
}

}  // namespace

void attention_wgmma_key_gradient(Context& context, const GradientWork& rows) {
  const BackwardProblem& p = rows.p;
  for_shape(p, [&]<class T, int kDim>() {
    using S = Side<kDim>;
    GradientWork work = with_tiles(rows, S::kQueries, S::kKeys);
    work.schedule = make_tile_schedule(p, p.keys, p.kv_heads, p.key_offsets != nullptr, S::kKeys,
                                       p.queries * p.heads_per_kv);
    work.schedule.last_first = false;
    has_score_mods(p) ? launch<T, S, true>(context, work) : launch<T, S, false>(context, work);
  });
}

}  // namespace touchstone::dense_attention
