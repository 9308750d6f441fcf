// Dense attention forward on Hopper's tensor cores: the shapes of its blocks, what lies in their
// shared memory, and the producer that fills it.
#pragma once

#include "ops/attention_dense/cuda/dense_wgmma.cuh"

namespace touchstone::dense_attention {

template <int kDim_, int kConsumers_>
struct ForwardShape {
  static constexpr int kDim = kDim_;
  static constexpr int kConsumers = kConsumers_;
  static constexpr int kRows = kConsumers * kConsumerRows;
  static constexpr int kKeys = kDim <= 128 ? 128 : 64;
  static constexpr int kStages = kDim == 64 ? 4 : 2;
  // Tiles of queries in shared memory: that at work, through which its output goes out, and the
  // next one where shared memory allows.
  static constexpr int kSlots = kDim <= 192 ? 2 : 1;
  static constexpr int kThreads = (kConsumers + 1) * cuda::kWarpgroup;
  // setmaxnreg, in multiples of 8: what is left of 64 K when the producer has few.
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;
  // Output columns of one product.
  static constexpr int kPart = kDim % 128 == 0 ? 128 : 64;
  static constexpr int kParts = kDim / kPart;
};

// A tile of queries.
struct ForwardItem {
  KeyTiles tiles;  // none: there is no more
  TileMask visible;
  int first_row = 0;
  int rows = 0;  // of the sequence, from the first on
  int head = 0;
  std::int64_t sequence = 0;
  std::int64_t log_at = 0;     // of the first row in log_sum_exp, in elements
  std::int64_t output_at = 0;  // likewise in output
  SequenceSpan span;
};

template <class S>
struct ForwardShared {
  alignas(1024) std::byte q[S::kSlots][kTileBytes<S::kRows, S::kDim>];
  alignas(1024) std::byte k[S::kStages][kTileBytes<S::kKeys, S::kDim>];
  alignas(1024) std::byte v[S::kStages][kTileBytes<S::kKeys, S::kDim>];
  alignas(8) std::uint64_t q_full[S::kSlots], q_empty[S::kSlots];
  std::uint64_t k_full[S::kStages], k_empty[S::kStages];
  std::uint64_t v_full[S::kStages], v_empty[S::kStages];
  ForwardItem items[S::kSlots];  // what q holds
  ForwardItem ahead;             // the producer's own
};

struct ForwardWork {
  ForwardProblem p;
  TileSource q, k, v;
  TileSchedule schedule;
  unsigned* tiles_taken = nullptr;  // see TileScheduler
  float scale = 1;                  // of the scores, to base 2; 1 where they are changed one by one
};

// The producer's warp.
template <class S>
class ForwardProducer {
 public:
  __device__ ForwardProducer(const ForwardWork& work, ForwardShared<S>& shared)
      : work_(work),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x % 32)),
        packed_(work.p.query_offsets != nullptr),
        scheduler_(work.schedule.count(), work.tiles_taken) {}

  __device__ void run() {
    // Values are wanted after the keys of the next tile, be it the first of other queries.
    Keys owed;
    bool owes = false;
    for (bool has_item = take(); has_item;) {
      const ForwardItem& item = shared_.ahead;
      const KeyTiles tiles = item.tiles;
      Keys keys{item.span.first_key, item.span.first_key + item.span.keys,
                item.head / static_cast<int>(work_.p.heads_per_kv),
                packed_ ? 0 : static_cast<int>(item.sequence)};
      const std::int64_t first_key = keys.token;
      for (int i = 0; i < tiles.count; ++i) {
        keys.token = first_key + tiles.tile(i) * S::kKeys;
        load(shared_.k, work_.k, keys, k_turn_, shared_.k_full, shared_.k_empty);
        // Where there is one slot only, its queries wait for their last values.
        if (i == 0 && S::kSlots > 1) load_queries();
        if (owes) load(shared_.v, work_.v, owed, v_turn_, shared_.v_full, shared_.v_empty);
        if (i == 0 && S::kSlots == 1) load_queries();
        owed = keys;
        owes = true;
        // Early: to find one takes as long as the work on a tile of keys.
        if (i == 0) has_item = take();
      }
    }
    if (owes) load(shared_.v, work_.v, owed, v_turn_, shared_.v_full, shared_.v_empty);
    cuda::barrier_wait(&shared_.q_empty[slot_.stage], slot_.parity ^ 1);
    if (lane_ == 0) {
      shared_.items[slot_.stage].tiles.count = 0;
      cuda::barrier_arrive(&shared_.q_full[slot_.stage]);
    }
  }

 private:
  // A tile of keys or of values.
  struct Keys {
    std::int64_t token = 0;
    std::int64_t end = 0;
    int head = 0;
    int batch = 0;
  };

  // The next tile of queries that is not fully masked, to shared_.ahead; whether there is one.
  __device__ bool take() {
    while (scheduler_.has()) {
      const ForwardItem item = item_of(scheduler_.take());
      if (item.rows <= 0) continue;
      if (item.tiles.count > 0) {
        __syncwarp();
        if (lane_ == 0) shared_.ahead = item;
        __syncwarp();
        return true;
      }
      store_fully_masked(item);
    }
    return false;
  }

  __device__ ForwardItem item_of(unsigned tile) const {
    ForwardItem item;
    const ForwardProblem& p = work_.p;
    const TileCoord coord = tile_coord(work_.schedule, tile, p.batch, p.query_offsets);
    item.span = span_of(p, coord.sequence);
    item.visible = TileMask(p, item.span);
    item.first_row = coord.tile * S::kRows;
    item.rows = static_cast<int>(item.span.queries) - item.first_row;
    item.head = coord.head;
    item.sequence = coord.sequence;
    item.log_at = coord.sequence * p.log_sum_exp.batch_stride +
                  coord.head * p.log_sum_exp.head_stride +
                  (item.span.first_query + item.first_row) * p.log_sum_exp.token_stride;
    item.output_at = coord.sequence * p.output.batch_stride + coord.head * p.output.head_stride +
                     (item.span.first_query + item.first_row) * p.output.token_stride;
    if (item.rows > 0) {
      item.tiles =
          key_tiles(item.visible.row(item.first_row),
                    item.visible.row(item.first_row + min(S::kRows, item.rows) - 1), S::kKeys);
    }
    return item;
  }

  template <int kStages>
  __device__ void load(std::byte (&to)[kStages][kTileBytes<S::kKeys, S::kDim>],
                       const TileSource& source, const Keys& keys, PipelineState<kStages>& turn,
                       std::uint64_t (&full)[kStages], std::uint64_t (&empty)[kStages]) {
    cuda::barrier_wait(&empty[turn.stage], turn.parity ^ 1);
    load_tile<S::kKeys, S::kDim>(to[turn.stage], source, keys.token, keys.end, keys.head,
                                 keys.batch, packed_, &full[turn.stage]);
    turn.next();
  }

  // Those of shared_.ahead.
  __device__ void load_queries() {
    const int slot = slot_.stage;
    const ForwardItem& item = shared_.ahead;
    cuda::barrier_wait(&shared_.q_empty[slot], slot_.parity ^ 1);
    if (lane_ == 0) shared_.items[slot] = item;
    __syncwarp();
    load_tile<S::kRows, S::kDim>(shared_.q[slot], work_.q, item.span.first_query + item.first_row,
                                 item.span.first_query + item.span.queries, item.head,
                                 packed_ ? 0 : static_cast<int>(item.sequence), packed_,
                                 &shared_.q_full[slot]);
    slot_.next();
  }

  // A tile whose rows are all fully masked.
  __device__ void store_fully_masked(const ForwardItem& item) const {
    const ForwardProblem& p = work_.p;
    const int rows = min(S::kRows, item.rows);
    auto* const output = static_cast<std::uint16_t*>(p.output.data) + item.output_at;
    const int per_row = static_cast<int>(p.v_dim) / 8;
    for (int i = lane_; i < rows * per_row; i += 32) {
      const std::int64_t row = i / per_row;
      *reinterpret_cast<uint4*>(output + row * p.output.token_stride + i % per_row * 8) = uint4{};
    }
    if (p.log_sum_exp.data == nullptr) return;
    float log = minus_infinity();
    if (p.sink_logits != nullptr) {
      log = static_cast<const float*>(p.sink_logits)[item.head] * kLog2E * kLn2;
    }
    float* const logs = static_cast<float*>(p.log_sum_exp.data) + item.log_at;
    for (int i = lane_; i < rows; i += 32) logs[i * p.log_sum_exp.token_stride] = log;
  }

  const ForwardWork& work_;
  ForwardShared<S>& shared_;
  const int lane_;
  const bool packed_;
  TileScheduler scheduler_;
  PipelineState<S::kStages> k_turn_;
  PipelineState<S::kStages> v_turn_;
  PipelineState<S::kSlots> slot_;
};

}  // namespace touchstone::dense_attention
