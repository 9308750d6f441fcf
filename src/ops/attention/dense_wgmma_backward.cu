// Dense attention backward on Hopper's tensor cores: two kernels, so that every sum has one owner
// and one order. One goes over the queries for each tile of keys (dk and dv, four products a tile),
// one over the keys for each tile of queries (dq, three products). Weights are made anew in both.
#include <string>

#include "ops/attention/dense_wgmma.cuh"

namespace touchstone::attend {
namespace {

constexpr int kConsumers = 2;
constexpr int kRows = kConsumers * kConsumerRows;  // of a block's own side
constexpr int kThreads = (kConsumers + 1) * cuda::kWarpgroup;
constexpr int kStages = 2;
constexpr int kProducerRegisters = 40;
constexpr int kConsumerRegisters = 232;
// Rows of log_sum_exp and delta are padded to whole tiles of queries.
constexpr int kPad = 128;

struct Work {
  AttentionBackward p;
  Source q, k, v, doutput;
  Deal deal;
  // Padded as row_place says: log_sum_exp to base 2, +inf where a row has no part in any gradient
  // (its weights are then 0), and delta.
  float* rows_log = nullptr;
  float* rows_delta = nullptr;
  std::int64_t padded_queries = 0;  // of a lane
  float scale = 1;                  // of the scores, to base 2
};

// ---- rows ---------------------------------------------------------------------------------------

__device__ std::int64_t row_place(const Work& work, std::int64_t sequence, int head) {
  if (work.p.query_starts == nullptr) {
    return (sequence * work.p.query_heads + head) * work.padded_queries;
  }
  return head * work.padded_queries + first_piece(work.p.query_starts, sequence, kPad) * kPad;
}

struct PadWork {
  Work work;
  const float* delta = nullptr;
};

__global__ void __launch_bounds__(kPad) pad_kernel(const __grid_constant__ PadWork pad) {
  const AttentionBackward& p = pad.work.p;
  const std::int64_t tiles = pad.work.padded_queries / kPad;
  const std::int64_t lane = blockIdx.x / tiles;
  const std::int64_t piece = blockIdx.x % tiles;
  const int head = static_cast<int>(lane % p.query_heads);
  std::int64_t sequence = lane / p.query_heads;
  std::int64_t row = piece * kPad + threadIdx.x;
  if (p.query_starts != nullptr) {
    sequence = sequence_of_piece(p.query_starts, p.batch, piece, kPad);
    row -= first_piece(p.query_starts, sequence, kPad) * kPad;
  }
  const SequenceSpan span = span_of(p, sequence);
  float log = __uint_as_float(0x7f800000U);
  float delta = 0;
  if (row < span.queries) {
    const std::int64_t from = row_index(p, span, sequence, head, row);
    const float value = static_cast<const float*>(p.log_sum_exp)[from];
    if (value != minus_infinity()) {
      log = value * kLog2E;
      delta = pad.delta[from];
    }
  }
  const std::int64_t to = lane * pad.work.padded_queries + piece * kPad + threadIdx.x;
  pad.work.rows_log[to] = log;
  pad.work.rows_delta[to] = delta;
}

// ---- what both kernels do -----------------------------------------------------------------------

// Where a block works, and a thread in it.
struct Block {
  Place place;
  SequenceSpan span;
  int first = 0;  // row of the block's own side
  int batch = 0;  // of the tensors: 0 when packed
};

__device__ Block block_of(const Work& work, const std::int64_t* starts) {
  Block block;
  block.place = place_of(work.deal, blockIdx.x, work.p.batch, starts);
  block.span = span_of(work.p, block.place.sequence);
  block.first = block.place.tile * kRows;
  block.batch = starts == nullptr ? static_cast<int>(block.place.sequence) : 0;
  return block;
}

// sums = left * right transposed: both along their columns. `left` begins at the warpgroup's rows.
template <class T, int kDim, int kLeftRows, int kRightRows>
__device__ void multiply_columns(float (&sums)[kRightRows / 2], const std::byte* left,
                                 const std::byte* right) {
  const std::uint64_t a = cuda::tile_descriptor(cuda::shared_address(left), kLeftRows);
  const std::uint64_t b = cuda::tile_descriptor(cuda::shared_address(right), kRightRows);
  cuda::wgmma_hold(sums);
  cuda::wgmma_begin();
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    cuda::wgmma<T, false>(sums, cuda::inner_columns(a, kLeftRows, step),
                          cuda::inner_columns(b, kRightRows, step), step > 0 ? 1 : 0);
  }
  cuda::wgmma_commit();
}

// sums += left * right, along the rows of `right`.
template <class T, int kDim, int kRightRows>
__device__ void add_rows(float (&sums)[kDim / 2], const std::uint32_t (&left)[kRightRows / 16][4],
                         const std::byte* right) {
  const std::uint64_t b = cuda::tile_descriptor(cuda::shared_address(right), kRightRows);
  cuda::wgmma_hold(sums);
  cuda::wgmma_begin();
#pragma unroll
  for (int step = 0; step < kRightRows / 16; ++step) {
    cuda::wgmma<T, true>(sums, left[step], cuda::inner_rows(b, step), 1);
  }
  cuda::wgmma_commit();
}

template <class T, int kCount>
__device__ void pack(const float (&sums)[kCount], std::uint32_t (&words)[kCount / 8][4]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    words[i / 4][i % 4] = packed_pair<T>(sums[2 * i], sums[2 * i + 1]);
  }
}

__device__ float score_gradient(float weight, float dweight, float delta) {
  // A weight of 0 is a key that is not seen: what it holds must not matter.
  return weight == 0 ? 0 : weight * (dweight - delta);
}

// ---- dk and dv ----------------------------------------------------------------------------------

template <int kDim>
struct KeySide {
  static constexpr int kQueries = kDim == 64 ? 128 : 64;  // of a tile
  struct Stage {
    alignas(1024) std::byte q[kTileBytes<kQueries, kDim>];
    alignas(1024) std::byte doutput[kTileBytes<kQueries, kDim>];
  };
  struct Shared {
    alignas(1024) std::byte k[kTileBytes<kRows, kDim>];
    alignas(1024) std::byte v[kTileBytes<kRows, kDim>];
    Stage stages[kStages];
    alignas(16) float log[kStages][kQueries];
    alignas(16) float delta[kStages][kQueries];
    alignas(8) std::uint64_t own_full;
    std::uint64_t q_full[kStages], doutput_full[kStages], empty[kStages];
  };
};

template <int kDim>
__device__ void produce_for_keys(const Work& work, const Block& block, int2 tiles,
                                 typename KeySide<kDim>::Shared& shared) {
  constexpr int kQueries = KeySide<kDim>::kQueries;
  const AttentionBackward& p = work.p;
  const bool packed = p.query_starts != nullptr;
  const SequenceSpan& span = block.span;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t key = span.first_key + block.first;
  const std::int64_t key_end = span.first_key + span.keys;
  load_tile<kRows, kDim>(shared.k, work.k, key, key_end, block.place.head, block.batch, packed,
                         &shared.own_full);
  load_tile<kRows, kDim>(shared.v, work.v, key, key_end, block.place.head, block.batch, packed,
                         &shared.own_full);
  Turn<kStages> turn;
  for (int member = 0; member < p.heads_per_kv; ++member) {
    const int head = block.place.head * static_cast<int>(p.heads_per_kv) + member;
    const std::int64_t rows = row_place(work, block.place.sequence, head);
    for (int tile = tiles.x; tile < tiles.y; ++tile, turn.next()) {
      auto& stage = shared.stages[turn.stage];
      const std::int64_t query = span.first_query + static_cast<std::int64_t>(tile) * kQueries;
      const std::int64_t end = span.first_query + span.queries;
      std::uint64_t* const full = &shared.q_full[turn.stage];
      cuda::barrier_wait(&shared.empty[turn.stage], turn.parity ^ 1);
      if (lane == 0) {
        cuda::barrier_expect(full, 2 * kQueries * sizeof(float));
        const std::int64_t row = rows + static_cast<std::int64_t>(tile) * kQueries;
        cuda::bulk_load(shared.log[turn.stage], work.rows_log + row, kQueries * sizeof(float),
                        full);
        cuda::bulk_load(shared.delta[turn.stage], work.rows_delta + row, kQueries * sizeof(float),
                        full);
      }
      load_tile<kQueries, kDim>(stage.q, work.q, query, end, head, block.batch, packed, full);
      load_tile<kQueries, kDim>(stage.doutput, work.doutput, query, end, head, block.batch, packed,
                                &shared.doutput_full[turn.stage]);
    }
  }
}

template <class T, int kDim>
__device__ void consume_for_keys(const Work& work, const Block& block, int2 tiles,
                                 typename KeySide<kDim>::Shared& shared) {
  constexpr int kQueries = KeySide<kDim>::kQueries;
  const AttentionBackward& p = work.p;
  const SequenceSpan& span = block.span;
  const int group = static_cast<int>(threadIdx.x) / cuda::kWarpgroup - 1;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int group_key = block.first + group * kConsumerRows;
  const int key = group_key + static_cast<int>(threadIdx.x % cuda::kWarpgroup) / 32 * 16 + lane / 4;
  const int column = lane % 4 * 2;
  const PairSight pair(p, span);
  const std::byte* const k = shared.k + group * kConsumerRows * cuda::kSliceRowBytes;
  const std::byte* const v = shared.v + group * kConsumerRows * cuda::kSliceRowBytes;
  float dk[1][kDim / 2], dv[1][kDim / 2];
#pragma unroll
  for (int i = 0; i < kDim / 2; ++i) dk[0][i] = dv[0][i] = 0;
  cuda::barrier_wait(&shared.own_full, 0);
  Turn<kStages> turn;
  const int count = static_cast<int>(p.heads_per_kv) * (tiles.y - tiles.x);
  for (int n = 0, tile = tiles.x; n < count; ++n, turn.next()) {
    const auto& stage = shared.stages[turn.stage];
    const int first_query = tile * kQueries;
    if (++tile == tiles.y) tile = tiles.x;
    float weights[kQueries / 2], dweights[kQueries / 2];
    cuda::barrier_wait(&shared.q_full[turn.stage], turn.parity);
    multiply_columns<T, kDim, kRows, kQueries>(weights, k, stage.q);
    cuda::barrier_wait(&shared.doutput_full[turn.stage], turn.parity);
    multiply_columns<T, kDim, kRows, kQueries>(dweights, v, stage.doutput);
    cuda::wgmma_wait<1>();
    cuda::wgmma_hold(weights);
    const RowSight first(sight_of(p, span, first_query));
    const RowSight last(sight_of(p, span, first_query + kQueries - 1));
    if (group_key + kConsumerRows > first.end || group_key < last.begin) {
#pragma unroll
      for (int i = 0; i < kQueries / 2; ++i) {
        if (!pair.sees(first_query + i / 4 * 8 + column + i % 2, key + i / 2 % 2 * 8)) {
          weights[i] = minus_infinity();
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j) {
      const float2 log = *reinterpret_cast<const float2*>(&shared.log[turn.stage][8 * j + column]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[4 * j + i] =
            cuda::exp2_flushed(fmaf(weights[4 * j + i], work.scale, i % 2 == 0 ? -log.x : -log.y));
      }
    }
    std::uint32_t words[kQueries / 16][4];
    pack<T>(weights, words);
    cuda::wgmma_wait<0>();
    cuda::wgmma_hold(dweights);
    add_rows<T, kDim, kQueries>(dv[0], words, stage.doutput);
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j) {
      const float2 delta =
          *reinterpret_cast<const float2*>(&shared.delta[turn.stage][8 * j + column]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[4 * j + i] =
            score_gradient(weights[4 * j + i], dweights[4 * j + i], i % 2 == 0 ? delta.x : delta.y);
      }
    }
    std::uint32_t dwords[kQueries / 16][4];
    pack<T>(weights, dwords);
    add_rows<T, kDim, kQueries>(dk[0], dwords, stage.q);
    cuda::wgmma_wait<0>();
    cuda::wgmma_hold(dv[0]);
    cuda::wgmma_hold(dk[0]);
    if (lane == 0) cuda::barrier_arrive(&shared.empty[turn.stage]);
  }
  const int rows = static_cast<int>(span.keys) - group_key;
  const float scale = static_cast<float>(p.scale);
  store_rows<T, kDim, kRows>(
      dk, scale, scale, shared.k + group * kConsumerRows * cuda::kSliceRowBytes,
      token_of<T>(p.dk, block.place.sequence, block.place.head, span.first_key + group_key),
      p.dk.token_stride, static_cast<int>(p.k_dim), rows, 2 + group);
  store_rows<T, kDim, kRows>(
      dv, 1.0F, 1.0F, shared.v + group * kConsumerRows * cuda::kSliceRowBytes,
      token_of<T>(p.dv, block.place.sequence, block.place.head, span.first_key + group_key),
      p.dv.token_stride, static_cast<int>(p.v_dim), rows, 2 + group);
}

template <class T, int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    key_gradient_kernel(const __grid_constant__ Work work) {
  if constexpr (cuda::kWgmma) {
    using Side = KeySide<kDim>;
    auto& shared = shared_memory<typename Side::Shared>();
    const Block block = block_of(work, work.p.key_starts);
    if (block.first >= block.span.keys) return;
    const int2 tiles = query_tiles(work.p, block.span, block.first, kRows, Side::kQueries);
    if (threadIdx.x == 0) {
      cuda::barrier_init(&shared.own_full, 2);
      for (int i = 0; i < kStages; ++i) {
        cuda::barrier_init(&shared.q_full[i], 2);
        cuda::barrier_init(&shared.doutput_full[i], 1);
        cuda::barrier_init(&shared.empty[i], kConsumers * 4);
      }
      cuda::fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < cuda::kWarpgroup) {
      cuda::give_registers_back<kProducerRegisters>();
      if (threadIdx.x < 32) produce_for_keys<kDim>(work, block, tiles, shared);
    } else {
      cuda::take_registers<kConsumerRegisters>();
      consume_for_keys<T, kDim>(work, block, tiles, shared);
    }
  }
}

// ---- dq -----------------------------------------------------------------------------------------

constexpr int kKeys = 128;  // of a tile

template <int kDim>
struct QuerySide {
  struct Shared {
    alignas(1024) std::byte q[kTileBytes<kRows, kDim>];
    alignas(1024) std::byte doutput[kTileBytes<kRows, kDim>];
    alignas(1024) std::byte k[kStages][kTileBytes<kKeys, kDim>];
    alignas(1024) std::byte v[kStages][kTileBytes<kKeys, kDim>];
    alignas(8) std::uint64_t own_full;
    std::uint64_t k_full[kStages], v_full[kStages], k_empty[kStages], v_empty[kStages];
  };
};

template <int kDim>
__device__ void produce_for_queries(const Work& work, const Block& block, const KeyTiles& tiles,
                                    typename QuerySide<kDim>::Shared& shared) {
  const AttentionBackward& p = work.p;
  const bool packed = p.query_starts != nullptr;
  const SequenceSpan& span = block.span;
  const std::int64_t query = span.first_query + block.first;
  const std::int64_t query_end = span.first_query + span.queries;
  load_tile<kRows, kDim>(shared.q, work.q, query, query_end, block.place.head, block.batch, packed,
                         &shared.own_full);
  load_tile<kRows, kDim>(shared.doutput, work.doutput, query, query_end, block.place.head,
                         block.batch, packed, &shared.own_full);
  const int kv_head = block.place.head / static_cast<int>(p.heads_per_kv);
  const std::int64_t key_end = span.first_key + span.keys;
  Turn<kStages> turn;
  for (int i = 0; i < tiles.count; ++i, turn.next()) {
    const std::int64_t key = span.first_key + static_cast<std::int64_t>(tiles.tile(i)) * kKeys;
    cuda::barrier_wait(&shared.k_empty[turn.stage], turn.parity ^ 1);
    load_tile<kKeys, kDim>(shared.k[turn.stage], work.k, key, key_end, kv_head, block.batch, packed,
                           &shared.k_full[turn.stage]);
    cuda::barrier_wait(&shared.v_empty[turn.stage], turn.parity ^ 1);
    load_tile<kKeys, kDim>(shared.v[turn.stage], work.v, key, key_end, kv_head, block.batch, packed,
                           &shared.v_full[turn.stage]);
  }
}

template <class T, int kDim>
__device__ void consume_for_queries(const Work& work, const Block& block, const KeyTiles& tiles,
                                    typename QuerySide<kDim>::Shared& shared) {
  const AttentionBackward& p = work.p;
  const SequenceSpan& span = block.span;
  const int group = static_cast<int>(threadIdx.x) / cuda::kWarpgroup - 1;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int group_row = block.first + group * kConsumerRows;
  const int row = group_row + static_cast<int>(threadIdx.x % cuda::kWarpgroup) / 32 * 16 + lane / 4;
  const std::byte* const q = shared.q + group * kConsumerRows * cuda::kSliceRowBytes;
  const std::byte* const doutput = shared.doutput + group * kConsumerRows * cuda::kSliceRowBytes;
  const std::int64_t rows = row_place(work, block.place.sequence, block.place.head) + row;
  RowSight sight[2];
  float log[2], delta[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sight[r] = RowSight(sight_of(p, span, row + 8 * r));
    log[r] = work.rows_log[rows + 8 * r];
    delta[r] = work.rows_delta[rows + 8 * r];
  }
  const RowSight first(sight_of(p, span, group_row));
  const RowSight last(sight_of(p, span, group_row + kConsumerRows - 1));
  float dq[1][kDim / 2];
#pragma unroll
  for (float& x : dq[0]) x = 0;
  cuda::barrier_wait(&shared.own_full, 0);
  Turn<kStages> turn;
  for (int n = 0; n < tiles.count; ++n, turn.next()) {
    const int first_key = tiles.tile(n) * kKeys;
    float weights[kKeys / 2], dweights[kKeys / 2];
    cuda::barrier_wait(&shared.k_full[turn.stage], turn.parity);
    multiply_columns<T, kDim, kRows, kKeys>(weights, q, shared.k[turn.stage]);
    cuda::barrier_wait(&shared.v_full[turn.stage], turn.parity);
    multiply_columns<T, kDim, kRows, kKeys>(dweights, doutput, shared.v[turn.stage]);
    cuda::wgmma_wait<1>();
    cuda::wgmma_hold(weights);
    if (first_key + kKeys > first.end || first_key < last.begin) {
      const int column = first_key + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        if (!sight[i / 2 % 2].sees(column + i / 4 * 8 + i % 2)) weights[i] = minus_infinity();
      }
    }
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      weights[i] = cuda::exp2_flushed(fmaf(weights[i], work.scale, -log[i / 2 % 2]));
    }
    cuda::wgmma_wait<0>();
    cuda::wgmma_hold(dweights);
    if (lane == 0) cuda::barrier_arrive(&shared.v_empty[turn.stage]);
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      weights[i] = score_gradient(weights[i], dweights[i], delta[i / 2 % 2]);
    }
    std::uint32_t words[kKeys / 16][4];
    pack<T>(weights, words);
    add_rows<T, kDim, kKeys>(dq[0], words, shared.k[turn.stage]);
    cuda::wgmma_wait<0>();
    cuda::wgmma_hold(dq[0]);
    if (lane == 0) cuda::barrier_arrive(&shared.k_empty[turn.stage]);
  }
  const float scale = static_cast<float>(p.scale);
  store_rows<T, kDim, kRows>(
      dq, scale, scale, shared.q + group * kConsumerRows * cuda::kSliceRowBytes,
      token_of<T>(p.dq, block.place.sequence, block.place.head, span.first_query + group_row),
      p.dq.token_stride, static_cast<int>(p.k_dim), static_cast<int>(span.queries) - group_row,
      2 + group);
}

template <class T, int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    query_gradient_kernel(const __grid_constant__ Work work) {
  if constexpr (cuda::kWgmma) {
    auto& shared = shared_memory<typename QuerySide<kDim>::Shared>();
    const Block block = block_of(work, work.p.query_starts);
    if (block.first >= block.span.queries) return;
    const std::int64_t last = smaller(block.first + kRows, block.span.queries) - 1;
    const KeyTiles tiles = key_tiles(sight_of(work.p, block.span, block.first),
                                     sight_of(work.p, block.span, last), kKeys);
    if (threadIdx.x == 0) {
      cuda::barrier_init(&shared.own_full, 2);
      for (int i = 0; i < kStages; ++i) {
        cuda::barrier_init(&shared.k_full[i], 1);
        cuda::barrier_init(&shared.v_full[i], 1);
        cuda::barrier_init(&shared.k_empty[i], kConsumers * 4);
        cuda::barrier_init(&shared.v_empty[i], kConsumers * 4);
      }
      cuda::fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < cuda::kWarpgroup) {
      cuda::give_registers_back<kProducerRegisters>();
      if (threadIdx.x < 32) produce_for_queries<kDim>(work, block, tiles, shared);
    } else {
      cuda::take_registers<kConsumerRegisters>();
      consume_for_queries<T, kDim>(work, block, tiles, shared);
    }
  }
}

// ---- the host's side ----------------------------------------------------------------------------

template <class Shared, class Kernel>
void launch(Context& context, const char* name, Kernel* kernel, const Work& work) {
  cuda::allow_shared(context, kernel);
  cuda::launch(context, name, kernel,
               {.blocks = static_cast<unsigned>(work.deal.lanes * work.deal.tiles),
                .threads = kThreads,
                .shared_bytes = sizeof(Shared) + 1024},
               work);
}

template <class T, int kDim>
void key_gradient(Context& context, Work work) {
  const AttentionBackward& p = work.p;
  constexpr int kQueries = KeySide<kDim>::kQueries;
  work.q = source_of(p, p.q, p.query_heads, p.queries, p.k_dim, kQueries);
  work.doutput = source_of(p, p.doutput, p.query_heads, p.queries, p.v_dim, kQueries);
  work.k = source_of(p, p.k, p.kv_heads, p.keys, p.k_dim, kRows);
  work.v = source_of(p, p.v, p.kv_heads, p.keys, p.v_dim, kRows);
  work.deal =
      deal_of(p, p.keys, p.kv_heads, p.key_starts != nullptr, kRows, p.queries * p.heads_per_kv);
  work.deal.last_first = false;
  launch<typename KeySide<kDim>::Shared>(context, "attention key gradient",
                                         key_gradient_kernel<T, kDim>, work);
}

template <class T, int kDim>
void query_gradient(Context& context, Work work) {
  const AttentionBackward& p = work.p;
  work.q = source_of(p, p.q, p.query_heads, p.queries, p.k_dim, kRows);
  work.doutput = source_of(p, p.doutput, p.query_heads, p.queries, p.v_dim, kRows);
  work.k = source_of(p, p.k, p.kv_heads, p.keys, p.k_dim, kKeys);
  work.v = source_of(p, p.v, p.kv_heads, p.keys, p.v_dim, kKeys);
  work.deal = deal_of(p, p.queries, p.query_heads, p.query_starts != nullptr, kRows, p.keys);
  launch<typename QuerySide<kDim>::Shared>(context, "attention query gradient",
                                           query_gradient_kernel<T, kDim>, work);
}

template <class T, int kDim>
void backward(Context& context, const AttentionBackward& p) {
  const bool packed = p.query_starts != nullptr;
  const std::int64_t lanes = (packed ? 1 : p.batch) * p.query_heads;
  Work work;
  work.p = p;
  work.scale = static_cast<float>(p.scale * 1.4426950408889634);
  work.padded_queries = pieces(p.queries, p.batch, packed, kPad) * kPad;
  const std::int64_t padded = lanes * work.padded_queries;
  auto* const memory = static_cast<float*>(
      context.workspace(static_cast<std::int64_t>(sizeof(float)) * (2 * padded + row_count(p))));
  work.rows_log = memory;
  work.rows_delta = memory + padded;
  float* const delta = memory + 2 * padded;
  attention_delta(context, p, delta);
  attention_sink_gradient(context, p, delta);
  cuda::launch(context, "attention rows", pad_kernel,
               {.blocks = static_cast<unsigned>(padded / kPad), .threads = kPad},
               PadWork{work, delta});
  key_gradient<T, kDim>(context, work);
  query_gradient<T, kDim>(context, work);
}

template <class T>
void backward_type(Context& context, const AttentionBackward& p) {
  larger(p.k_dim, p.v_dim) <= 64 ? backward<T, 64>(context, p) : backward<T, 128>(context, p);
}

}  // namespace

std::string attention_backward_wgmma_refuses(const Context& context, const AttentionBackward& p) {
  if (cuda::device_attribute(context, cudaDevAttrComputeCapabilityMajor) != 9) {
    return "needs a Hopper GPU";
  }
  if (p.dtype != DType::bf16 && p.dtype != DType::f16) return "needs bf16 or f16";
  if (row_count(p) == 0 || p.keys == 0) return "nothing to multiply";
  if (larger(p.k_dim, p.v_dim) > 128) return "head dimensions above 128";
  if (p.k_dim % 8 != 0 || p.v_dim % 8 != 0) return "head dimensions must be multiples of 8";
  if (p.soft_cap > 0) return "a soft cap";
  if (p.alibi_slopes != nullptr) return "ALiBi";
  if (p.bias != nullptr) return "a bias";
  const struct {
    const char* name;
    cuda::HeadsShape shape;
  } tensors[] = {
      {"q", heads_shape(p, p.q, p.query_heads, p.queries, p.k_dim)},
      {"k", heads_shape(p, p.k, p.kv_heads, p.keys, p.k_dim)},
      {"v", heads_shape(p, p.v, p.kv_heads, p.keys, p.v_dim)},
      {"doutput", heads_shape(p, p.doutput, p.query_heads, p.queries, p.v_dim)},
      {"dq", heads_shape(p, p.dq, p.query_heads, p.queries, p.k_dim)},
      {"dk", heads_shape(p, p.dk, p.kv_heads, p.keys, p.k_dim)},
      {"dv", heads_shape(p, p.dv, p.kv_heads, p.keys, p.v_dim)},
  };
  for (const auto& tensor : tensors) {
    if (!cuda::can_map(tensor.shape)) {
      return std::string(tensor.name) + " does not lie at multiples of 16 bytes";
    }
  }
  return "";
}

void attention_backward_wgmma(Context& context, const AttentionBackward& p) {
  p.dtype == DType::bf16 ? backward_type<Bf16>(context, p) : backward_type<F16>(context, p);
}

}  // namespace touchstone::attend
