// dq of dense attention on Hopper's tensor cores. A CTA owns 128 queries, 64 per warpgroup, and
// iterates over the keys they attend to. Persistent kernel: the queries of the next tile are loaded
// when the last products with those of the current one have completed.
#include "ops/attention_dense/cuda/dense_wgmma_backward.cuh"

namespace touchstone::dense_attention {
namespace {

constexpr int kRows = 2 * kConsumerRows;

// A tile of queries.
struct Item {
  Block block;
  KeyTiles tiles;
  bool there = false;
};

template <int kDim_>
struct Side {
  static constexpr int kDim = kDim_;
  static constexpr int kKeys = kDim <= 128 ? 128 : 64;  // of a tile
  static constexpr int kKeyStages = 2;
  // Values are read once a tile, keys twice.
  static constexpr int kValueStages = kDim <= 192 ? 2 : 1;
  // Staging buffer of the epilogue beside the queries; otherwise the queries' buffer is reused.
  static constexpr bool kOwnOutput = kDim <= 128;
  struct Shared {
    alignas(1024) std::byte q[kTileBytes<kRows, kDim>];
    alignas(1024) std::byte doutput[kTileBytes<kRows, kDim>];
    alignas(1024) std::byte k[kKeyStages][kTileBytes<kKeys, kDim>];
    alignas(1024) std::byte v[kValueStages][kTileBytes<kKeys, kDim>];
    alignas(1024) std::byte output[kOwnOutput ? kTileBytes<kRows, kDim> : 16];
    OwnTiles<Item, 1> own;
    std::uint64_t k_full[kKeyStages], k_empty[kKeyStages];
    std::uint64_t v_full[kValueStages], v_empty[kValueStages];
  };
};

template <class S>
class Producer {
 public:
  __device__ Producer(const GradientWork& work, typename S::Shared& shared)
      : work_(work),
        shared_(shared),
        packed_(work.p.query_offsets != nullptr),
        scheduler_(work.schedule.count(), work.tiles_taken) {}

  __device__ void run() {
    for (bool there = take(); there;) {
      const Item& item = shared_.own.ahead;
      const KeyTiles tiles = item.tiles;
      const SequenceSpan span = item.block.span;
      const int kv_head = item.block.coord.head / static_cast<int>(work_.p.heads_per_kv);
      const int batch = item.block.batch;
      for (int i = 0; i < tiles.count; ++i) {
        const std::int64_t key =
            span.first_key + static_cast<std::int64_t>(tiles.tile(i)) * S::kKeys;
        const std::int64_t end = span.first_key + span.keys;
        cuda::barrier_wait(&shared_.k_empty[k_.stage], k_.parity ^ 1);
        load_tile<S::kKeys, S::kDim>(shared_.k[k_.stage], work_.k, key, end, kv_head, batch,
                                     packed_, &shared_.k_full[k_.stage]);
        k_.next();
        if (i == 0) load_own();
        cuda::barrier_wait(&shared_.v_empty[v_.stage], v_.parity ^ 1);
        load_tile<S::kKeys, S::kDim>(shared_.v[v_.stage], work_.v, key, end, kv_head, batch,
                                     packed_, &shared_.v_full[v_.stage]);
        v_.next();
        if (i == 0) there = take();
      }
      if (tiles.count == 0) {
        load_own();
        there = take();
      }
    }
    shared_.own.end(own_);
  }

 private:
  // The next tile of queries, to shared_.own.ahead; whether there is one.
  __device__ bool take() {
    while (scheduler_.has()) {
      Item item;
      item.block = block_of(work_, scheduler_.take(), work_.p.query_offsets);
      const Block& block = item.block;
      if (block.first >= block.span.queries) continue;
      const auto last = static_cast<int>(smaller(block.first + kRows, block.span.queries)) - 1;
      const TileMask visible(work_.p, block.span);
      item.tiles = key_tiles(visible.row(block.first), visible.row(last), S::kKeys);
      shared_.own.set_ahead(item);
      return true;
    }
    return false;
  }

  // Those of shared_.own.ahead.
  __device__ void load_own() {
    const Block& block = shared_.own.ahead.block;
    const std::int64_t query = block.span.first_query + block.first;
    const std::int64_t end = block.span.first_query + block.span.queries;
    std::uint64_t* const full = &shared_.own.full[shared_.own.claim(own_)];
    load_own_tiles<kRows, S::kDim>(shared_.q, work_.q, shared_.doutput, work_.doutput, query, end,
                                   block, packed_, full);
  }

  const GradientWork& work_;
  typename S::Shared& shared_;
  const bool packed_;
  TileScheduler scheduler_;
  PipelineState<S::kKeyStages> k_;
  PipelineState<S::kValueStages> v_;
  PipelineState<1> own_;
};

template <class T, class S, bool kHasScoreMod>
class Consumer {
 public:
  __device__ Consumer(const GradientWork& work, typename S::Shared& shared)
      : work_(work),
        shared_(shared),
        group_(group_of_thread()),
        lane_(static_cast<int>(threadIdx.x % 32)) {}

  __device__ void run() {
    for (PipelineState<1> own; shared_.own.await(own); own.next()) mainloop();
  }

 private:
  __device__ void release(std::uint64_t& barrier) {
    if (lane_ == 0) cuda::barrier_arrive(&barrier);
  }

  __device__ void mainloop() {
    constexpr int kKeys = S::kKeys;
    const BackwardProblem& p = work_.p;
    // Own copies: what is shared may be that of the next tile before this one is out.
    const Block block = shared_.own.items[0].block;
    const KeyTiles tiles = shared_.own.items[0].tiles;
    const int group_row = block.first + group_ * kConsumerRows;
    const int row = group_row + row_of_thread();
    const std::byte* const q = rows_of_group(shared_.q, group_);
    const std::byte* const doutput = rows_of_group(shared_.doutput, group_);
    const std::int64_t rows = padded_row(work_, block.coord.sequence, block.coord.head) + row;
    const TileMask pair(p, block.span);
    const RowMask visible[2] = {pair.row(row), pair.row(row + 8)};
    const float log[2] = {work_.rows_log[rows], work_.rows_log[rows + 8]};
    const float delta[2] = {work_.rows_delta[rows], work_.rows_delta[rows + 8]};
    const int all_attend_end = pair.row(group_row).end;
    const int all_attend_begin = pair.row(group_row + kConsumerRows - 1).begin;
    RowSums<S::kDim> dq;
    dq.clear();
    for (int n = 0; n < tiles.count; ++n) {
      const int first_key = tiles.tile(n) * kKeys;
      float scores[kKeys / 2], dweights[kKeys / 2];
      cuda::barrier_wait(&shared_.k_full[k_.stage], k_.parity);
      multiply_columns<T, S::kDim, kRows, kKeys>(scores, q, shared_.k[k_.stage]);
      cuda::barrier_wait(&shared_.v_full[v_.stage], v_.parity);
      multiply_columns<T, S::kDim, kRows, kKeys>(dweights, doutput, shared_.v[v_.stage]);
      cuda::wgmma_wait<1>();
      cuda::wgmma_hold(scores);
      const auto key_of = [&](int i) { return first_key + lane_ % 4 * 2 + i / 4 * 8 + i % 2; };
      float weights[kKeys / 2];
      std::uint32_t words[kKeys / 16][4];
      weigh<T, kHasScoreMod>(
          scores, weights, words, work_.scale,
          ScoreRule(p, block.span, block.coord.sequence, block.coord.head), block.span,
          first_key + kKeys > all_attend_end || first_key < all_attend_begin,
          [&](int i) { return !visible[i / 2 % 2].attends(key_of(i)); },
          [&](int i) { return row + i / 2 % 2 * 8; }, key_of,
          [&](int i) { return log[i / 2 % 2]; });
      cuda::wgmma_wait<0>();
      cuda::wgmma_hold(dweights);
      release(shared_.v_empty[v_.stage]);
      v_.next();
      if (S::kOwnOutput && n == tiles.count - 1) shared_.own.release(0);
      differentiate<T>(weights, dweights, words, [&](int i) { return delta[i / 2 % 2]; });
      add_rows<T, S::kDim, kKeys>(dq, words, shared_.k[k_.stage]);
      cuda::wgmma_wait<0>();
      dq.hold();
      release(shared_.k_empty[k_.stage]);
      k_.next();
    }
    if (S::kOwnOutput && tiles.count == 0) shared_.own.release(0);
    const float scale = static_cast<float>(p.scale);
    store_rows<T, S::kDim, kRows>(dq.part, scale, scale,
                                  rows_of_group(S::kOwnOutput ? shared_.output : shared_.q, group_),
                                  token_of<T>(p.dq, block.coord.sequence, block.coord.head,
                                              block.span.first_query + group_row),
                                  p.dq.token_stride, static_cast<int>(p.k_dim),
                                  static_cast<int>(block.span.queries) - group_row, 2 + group_);
    if constexpr (!S::kOwnOutput) {
      cuda::fence_for_async();  // the copy engine writes there next
      shared_.own.release(0);
    }
  }

  const GradientWork& work_;
  typename S::Shared& shared_;
  const int group_, lane_;
  PipelineState<S::kKeyStages> k_;
  PipelineState<S::kValueStages> v_;
};

template <class T, class S, bool kHasScoreMod>
__global__ void __launch_bounds__(kGradientThreads, 1)
    query_gradient_kernel(const __grid_constant__ GradientWork work) {
  if constexpr (cuda::kWgmma) {
    auto& shared = shared_memory<typename S::Shared>();
    run_block(
        [&] {
          shared.own.init();
          init_barriers(shared.k_full, 1);
          init_barriers(shared.v_full, 1);
          init_barriers(shared.k_empty, 8);
          init_barriers(shared.v_empty, 8);
        },
        [&] { Producer<S>(work, shared).run(); },
        [&] { Consumer<T, S, kHasScoreMod>(work, shared).run(); });
  }
}

template <class T, class S, bool kHasScoreMod>
void launch(Context& context, const GradientWork& work) {
  launch_gradient<typename S::Shared>(context, "attention query gradient",
                                      query_gradient_kernel<T, S, kHasScoreMod>, work, 1);
}

}  // namespace

void attention_wgmma_query_gradient(Context& context, const GradientWork& rows) {
  const BackwardProblem& p = rows.p;
  for_shape(p, [&]<class T, int kDim>() {
    using S = Side<kDim>;
    GradientWork work = with_tiles(rows, kRows, S::kKeys);
    work.schedule =
        make_tile_schedule(p, p.queries, p.query_heads, p.query_offsets != nullptr, kRows, p.keys);
    has_score_mods(p) ? launch<T, S, true>(context, work) : launch<T, S, false>(context, work);
  });
}

}  // namespace touchstone::dense_attention
