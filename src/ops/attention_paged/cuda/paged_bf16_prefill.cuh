// The prefill kernel of cached_attention over bf16: its tiles, what lies in shared memory, and the
// producer that fills it.
//
// A tile is up to 128 query vectors of one row and one KV head: some query tokens times the query
// heads that read the head. A CTA is a producer warp and two consumer warpgroups of 64 vectors. It
// goes through the blocks of 128 positions that any of its vectors attends to, ascending.
#pragma once

#include "cuda/tensor_map.h"
#include "cuda/wgmma.cuh"
#include "ops/attention_paged/cuda/paged_bf16.cuh"
#include "ops/attention_paged/cuda/paged_rows.cuh"

// Compiled for other chips the kernels are empty, and what only they use is unused.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#pragma nv_diag_suppress 177
#endif

namespace touchstone::paged_attention {

template <int kDim_, bool kCaps_>
struct PrefillShape {
  using Scheme = Bf16Scheme<kDim_>;
  static constexpr int kDim = kDim_;
  static constexpr bool kCaps = kCaps_;  // there is a soft cap
  static constexpr int kGroups = 2;      // of consumers
  static constexpr int kGroupRows = 64;
  static constexpr int kRows = kGroups * kGroupRows;
  static constexpr int kKeys = 128;
  static constexpr int kStages = kDim == 64 ? 4 : 2;
  static constexpr int kThreads = (kGroups + 1) * cuda::kWarpgroup;
  static constexpr int kTileBytes = kKeys * kDim * 2;
  static constexpr int kSlices = kDim / cuda::kSliceColumns;
  static constexpr int kSliceBytes = kKeys * cuda::kSliceRowBytes;
  static constexpr int kSums = kDim / 2;  // of a thread
  static_assert(kRows == kKeys && Scheme::kSplit % kKeys == 0 && kKeys % Scheme::kChunk == 0);
};

template <class S>
struct PrefillShared {
  alignas(1024) std::byte q[S::kTileBytes];
  alignas(1024) std::byte k[S::kStages][S::kTileBytes];
  alignas(1024) std::byte v[S::kStages][S::kTileBytes];
  // Sums of the splits so far, a column for each thread.
  float4 totals[S::kGroups][S::kSums / 4][cuda::kWarpgroup];
  std::uint64_t k_full[S::kStages], k_empty[S::kStages];
  std::uint64_t v_full[S::kStages], v_empty[S::kStages];
  std::uint32_t there[S::kStages];  // of the tokens of a block, a bit for each eight
};

struct PrefillWork {
  SplitWork split;
  CUtensorMap keys, values;
  int box = 8;           // tokens that are copied at a time
  int tile_queries = 1;  // of a tile
};

// Blocks of keys, ascending: [0, sinks) and [begin, end).
struct KeyBlocks {
  int sinks = 0, begin = 0, end = 0;
  // Positions that all vectors attend to: [0, all_sinks) and [all_begin, all_end).
  int all_sinks = 0, all_begin = 0, all_end = 0;

  __device__ int count() const { return sinks + end - begin; }
  __device__ int block(int i) const { return i < sinks ? i : begin + i - sinks; }
};

struct PrefillTile {
  std::int64_t row = 0;
  std::int64_t first = 0;  // query token
  int queries = 0;
  std::int64_t kv_head = 0;
  KeyBlocks blocks;
};

// The tile of this CTA; without queries: there is none. By whole warps. The last tiles of a row are
// the longest, and come first.
template <class S>
__device__ PrefillTile find_tile(const PrefillWork& work) {
  const PagedAttentionProblem& p = work.split.p;
  const auto kv_heads = static_cast<unsigned>(p.layers.kv_heads);
  const auto queries_of = [&](std::int64_t row) {
    return p.query_offsets[row + 1] - p.query_offsets[row];
  };
  RowCursor cursor(p.rows, [&](std::int64_t row) {
    if (!is_prefill(p, row, work.split.prefill_queries)) return 0U;
    return static_cast<unsigned>((queries_of(row) + work.tile_queries - 1) / work.tile_queries);
  });
  PrefillTile tile;
  RowItem item;
  if (!cursor.find(blockIdx.x / kv_heads, item)) return tile;
  const std::int64_t queries = queries_of(item.row);
  const std::int64_t last = (queries - 1) / work.tile_queries;
  const std::int64_t first = (last - item.number) * work.tile_queries;
  tile.row = item.row;
  tile.first = p.query_offsets[item.row] + first;
  tile.queries = static_cast<int>(smaller(queries - first, work.tile_queries));
  tile.kv_head = blockIdx.x % kv_heads;

  constexpr int kFar = 0x7fffffff;
  int begin = kFar, end = 0, sinks = 0;
  KeyBlocks& blocks = tile.blocks;
  blocks.all_begin = 0;
  blocks.all_end = blocks.all_sinks = kFar;
  for (int i = static_cast<int>(threadIdx.x % 32); i < tile.queries; i += 32) {
    const VisibleRange visible = chain_range(p, tile.row, tile.first + i);
    const auto of_begin = static_cast<int>(visible.begin);
    const auto of_end = static_cast<int>(visible.end);
    const auto of_sinks = static_cast<int>(visible.sinks);
    if (of_begin < of_end) begin = min(begin, of_begin);
    end = max(end, of_end);
    sinks = max(sinks, of_sinks);
    blocks.all_begin = max(blocks.all_begin, of_begin);
    blocks.all_end = min(blocks.all_end, of_end);
    blocks.all_sinks = min(blocks.all_sinks, of_sinks);
  }
  begin = __reduce_min_sync(kAllLanes, begin);
  end = __reduce_max_sync(kAllLanes, end);
  sinks = __reduce_max_sync(kAllLanes, sinks);
  blocks.all_begin = __reduce_max_sync(kAllLanes, blocks.all_begin);
  blocks.all_end = __reduce_min_sync(kAllLanes, blocks.all_end);
  blocks.all_sinks = __reduce_min_sync(kAllLanes, blocks.all_sinks);
  blocks.sinks = (sinks + S::kKeys - 1) / S::kKeys;
  blocks.end = max(blocks.sinks, (end + S::kKeys - 1) / S::kKeys);
  blocks.begin = min(max(begin / S::kKeys, blocks.sinks), blocks.end);
  return tile;
}

// Position in a pipeline: stage and phase parity of its barriers.
template <int kStages>
struct PrefillTurn {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The producer's warp. Copies are boxes of tokens that lie side by side in a page; what has no page
// becomes zeros.
template <class S>
class PrefillProducer {
 public:
  __device__ PrefillProducer(const PrefillWork& work, PrefillShared<S>& shared,
                             const PrefillTile& tile)
      : work_(work),
        shared_(shared),
        tile_(tile),
        lane_(static_cast<int>(threadIdx.x % 32)),
        slice_(lane_ % S::kSlices),
        box_(lane_ / S::kSlices) {}

  __device__ void run() {
    PrefillTurn<S::kStages> turn;
    const int count = tile_.blocks.count();
    for (int i = 0; i < count; ++i) {
      find_page(tile_.blocks.block(i));
      cuda::barrier_wait(&shared_.k_empty[turn.stage], turn.parity ^ 1);
      if (lane_ == 0) shared_.there[turn.stage] = there_;
      load(shared_.k[turn.stage], &work_.keys, &shared_.k_full[turn.stage]);
      cuda::barrier_wait(&shared_.v_empty[turn.stage], turn.parity ^ 1);
      load(shared_.v[turn.stage], &work_.values, &shared_.v_full[turn.stage]);
      turn.next();
    }
  }

 private:
  __device__ bool has_box() const { return box_ * work_.box < S::kKeys; }

  __device__ void find_page(int block) {
    const SplitWork& split = work_.split;
    const cache::GroupView& pages = split.p.pages;
    page_ = -1;
    unsigned there = 0;
    if (has_box()) {
      const std::int64_t position = std::int64_t{block} * S::kKeys + box_ * work_.box;
      const std::int64_t page =
          split.page_shift >= 0 ? position >> split.page_shift : position / pages.page_tokens;
      slot_ = static_cast<int>(position - page * pages.page_tokens);
      if (page < pages.table_stride) page_ = split.table[tile_.row * pages.table_stride + page];
      const int eights = work_.box / 8;
      if (page_ >= 0) there = ((1U << eights) - 1) << (box_ * eights);
    }
    there_ = __reduce_or_sync(kAllLanes, there);
  }

  __device__ void load(std::byte* to, const CUtensorMap* map, std::uint64_t* barrier) {
    if (lane_ == 0) cuda::barrier_expect(barrier, S::kTileBytes);
    __syncwarp();
    if (!has_box()) return;
    cuda::load_slice(to + slice_ * S::kSliceBytes + box_ * work_.box * cuda::kSliceRowBytes, map,
                     slice_ * cuda::kSliceColumns, slot_, static_cast<int>(tile_.kv_head), page_,
                     barrier);
  }

  const PrefillWork& work_;
  PrefillShared<S>& shared_;
  const PrefillTile& tile_;
  int lane_, slice_, box_;
  int page_ = -1, slot_ = 0;
  unsigned there_ = 0;
};

}  // namespace touchstone::paged_attention
