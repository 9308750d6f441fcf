// Dense attention on tensor cores: tile scheduling, the key or query tiles a CTA iterates over,
// masks, and the softmax of a tile in registers.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "cuda/tensor_core.cuh"
#include "ops/attention_common/refusal.h"
#include "ops/attention_dense/attention_tuning.h"
#include "ops/attention_dense/cuda/dense_cuda.cuh"

namespace touchstone::dense_attention {

// ---- tiles of rows ------------------------------------------------------------------------------

// A tile of rows of one sequence and head.
struct TileCoord {
  std::int64_t sequence = 0;
  int head = 0;
  int tile = 0;  // within the sequence
};

// Tile scheduler: `lanes` (sequence and head, or head) of `tiles` each, lanes in groups whose other
// side fits in L2 together. Within a group the longest tiles of a causal mask come first: the last
// of all lanes, or the first. There are fewer than 2^31 in all.
struct TileSchedule {
  unsigned lanes = 1;
  unsigned tiles = 1;
  unsigned group = 1;
  unsigned heads = 1;
  int rows = 64;  // of a tile
  bool last_first = true;
  TOUCHSTONE_HOST_DEVICE unsigned count() const { return lanes * tiles; }
};

__device__ inline TileCoord tile_coord(const TileSchedule& schedule, unsigned index,
                                       std::int64_t batch, const std::int64_t* starts) {
  const unsigned per_group = schedule.group * schedule.tiles;
  const unsigned group = index / per_group;
  const unsigned within = index - group * per_group;
  const unsigned first_lane = group * schedule.group;
  const unsigned lanes = min(schedule.group, schedule.lanes - first_lane);
  const unsigned rank = within / lanes;
  const unsigned lane = first_lane + within - rank * lanes;
  const unsigned piece = schedule.last_first ? schedule.tiles - 1 - rank : rank;
  if (starts == nullptr) {
    const unsigned sequence = lane / schedule.heads;
    return {sequence, static_cast<int>(lane - sequence * schedule.heads), static_cast<int>(piece)};
  }
  const std::int64_t sequence = sequence_of_piece(starts, batch, piece, schedule.rows);
  return {sequence, static_cast<int>(lane),
          static_cast<int>(piece - first_piece(starts, sequence, schedule.rows))};
}

// Tiles for all rows of all sequences and heads.
inline TileSchedule make_tile_schedule(const DenseProblem& p, std::int64_t tokens,
                                       std::int64_t heads, bool packed, int rows,
                                       std::int64_t other_tokens) {
  const std::int64_t bytes = other_tokens * (p.k_dim + p.v_dim) * 2;
  const std::int64_t lanes = packed ? heads : heads * p.batch;
  TileSchedule schedule;
  schedule.rows = rows;
  schedule.heads = static_cast<unsigned>(heads);
  schedule.lanes = static_cast<unsigned>(lanes);
  schedule.tiles = static_cast<unsigned>(pieces(tokens, p.batch, packed, rows));
  schedule.group =
      static_cast<unsigned>(smaller(larger(tuning::kL2GroupBytes / larger(bytes, 1), 1), lanes));
  return schedule;
}

// What no kernel on tensor cores takes, or nothing.
inline std::string refuses_heads(const DenseProblem& p) {
  constexpr std::int64_t kMaxDim = 256;
  if (p.dtype != DType::bf16 && p.dtype != DType::f16) {
    return attention_common::needs("dtype", "bf16 or f16", name_of(p.dtype));
  }
  if (row_count(p) == 0) return "no queries";
  if (p.keys == 0) return "no keys";
  const struct {
    const char* name;
    std::int64_t dim;
  } dims[] = {{"k_dim", p.k_dim}, {"v_dim", p.v_dim}};
  for (const auto& [name, dim] : dims) {
    if (dim > kMaxDim) return attention_common::above(name, dim, kMaxDim);
    if (dim % 8 != 0) return attention_common::no_multiple(name, dim, 8);
  }
  return {};
}

// Why tokens and tiles of 64 of them cannot be counted in 32 bits, or nothing.
inline std::string refuses_count(const DenseProblem& p) {
  const bool packed = p.query_offsets != nullptr;
  const std::int64_t tiles = pieces(larger(p.queries, p.keys), p.batch, packed, 64);
  const std::int64_t lanes = p.query_heads * (packed ? 1 : p.batch);
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;
  if (p.queries > kMaxTokens) return attention_common::above("queries", p.queries, kMaxTokens);
  if (p.keys > kMaxTokens) return attention_common::above("keys", p.keys, kMaxTokens);
  const bool fits = tiles < (std::int64_t{1} << 31) / larger(lanes, 1);
  return fits ? "" : std::to_string(tiles) + " tiles x " + std::to_string(lanes) + " heads >= 2^31";
}

// ---- which keys ---------------------------------------------------------------------------------

// The keys one row attends to, in 32 bits.
struct RowMask {
  int sinks = 0, begin = 0, end = 0;
  RowMask() = default;
  __device__ explicit RowMask(const VisibleRange& s)
      : sinks(static_cast<int>(s.sinks)),
        begin(static_cast<int>(s.begin)),
        end(static_cast<int>(s.end)) {}
  // Branch-free: evaluated for every element of a tile.
  __device__ bool attends(int key) const {
    const bool late = key >= begin;
    return (key < end) & (late | (key < sinks));
  }
};

// Tiles of keys that some row of a block attends to, from the last to the first: number i is
// last - 1 - i, from `count` - `sink_tiles` on the tiles of the sinks.
struct KeyTiles {
  int count = 0;
  int last = 0;
  int sink_tiles = 0;
  __device__ int tile(int i) const { return i < count - sink_tiles ? last - 1 - i : count - 1 - i; }
};

template <class RowSees>
__device__ KeyTiles key_tiles(const RowSees& first_row, const RowSees& last_row, int keys) {
  KeyTiles tiles;
  tiles.last = static_cast<int>((last_row.end + keys - 1) / keys);
  const int first = static_cast<int>(first_row.begin / keys);
  const int sink_end = static_cast<int>((last_row.sinks + keys - 1) / keys);
  tiles.sink_tiles = min(sink_end, first);
  tiles.count = max(tiles.last - first, 0) + tiles.sink_tiles;
  return tiles;
}

// The mask of a sequence, in 32 bits.
struct TileMask {
  static constexpr int kNowhere = -std::numeric_limits<int>::max();
  int keys, offset, window, sinks;
  bool causal;
  TileMask() = default;
  __device__ TileMask(const DenseProblem& p, const SequenceSpan& span)
      : keys(static_cast<int>(span.keys)),
        offset(static_cast<int>(span.keys - span.queries)),
        window(static_cast<int>(smaller(p.window, 1 << 30))),
        sinks(static_cast<int>(smaller(p.sinks, 1 << 30))),
        causal(p.causal) {}
  __device__ bool attends(int query, int key) const {
    const int position = query + offset;
    const bool there = (key < keys) & (!causal | (key <= position));
    if (window == 0) return there;
    return there & ((key > position - window) | (key < sinks)) &
           (causal | (key < position + window));
  }
  // As visible_range.
  __device__ RowMask row(int query) const {
    const int position = query + offset;
    RowMask row;
    row.end = keys;
    if (causal) {
      row.end = min(max(position + 1, 0), keys);
    } else if (window > 0 && position < keys - window) {
      row.end = max(position + window, 0);
    }
    if (window > 0 && position >= window) {
      row.begin = min(position - window + 1, row.end);
      row.sinks = min(sinks, row.begin);
    }
    return row;
  }
  // The queries that attend to a key.
  __device__ RowMask of_key(int key) const {
    const int own = key - offset;  // the query at the position of the key
    RowMask row;
    row.sinks = kNowhere;
    row.begin = causal ? own : (window > 0 ? own - window + 1 : kNowhere);
    row.end = window > 0 && key >= sinks ? own + window : -kNowhere;
    if (key >= keys) row.end = kNowhere;
    return row;
  }
  // Whether all of the queries certainly attend to all of the keys.
  __device__ bool attends_all(int first_query, int last_query, int first_key, int last_key) const {
    const int first = first_query + offset;
    if (last_key >= keys || (causal && last_key > first)) return false;
    if (window == 0) return true;
    return first_key > last_query + offset - window && (causal || last_key < first + window);
  }
};

// The tiles of queries of which some may attend to a key of [first, first + keys): [begin, end),
// and all from `begin` on for keys that are sinks.
__device__ inline int2 query_tiles(const DenseProblem& p, const SequenceSpan& span, int first,
                                   int keys, int queries) {
  const std::int64_t offset = span.keys - span.queries;
  std::int64_t begin = 0;
  std::int64_t end = span.queries;
  if (p.causal) begin = first - offset;
  if (p.window > 0) {
    if (!p.causal) begin = first - offset - p.window + 1;
    if (first >= p.sinks) end = smaller(end, first + keys - 1 - offset + p.window);
  }
  begin = larger(begin, 0);
  const auto low = static_cast<int>(begin / queries);
  const auto high = static_cast<int>((larger(end, begin) + queries - 1) / queries);
  return {low, begin < end ? high : low};
}

// ---- numbers ------------------------------------------------------------------------------------

template <class T>
__device__ std::uint32_t packed_pair(float low, float high) {
  std::uint32_t word;
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

// Over the four lanes that hold a row.
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// The softmax of two rows, 8 apart, as the tiles of keys come: `shrink` is what sums made before
// the last tile are to be multiplied by. Lanes of four share the rows; each has a part of `total`.
struct RowSoftmax {
  float largest[2] = {minus_infinity(), minus_infinity()};
  float total[2] = {};
  float shrink[2] = {};

  // Scores, which times `scale` are to base 2, become weights relative to the largest so far.
  template <int kBlocks>
  __device__ void take(float (&scores)[kBlocks][4], float scale) {
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = largest[r];
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        top = fmaxf(top, fmaxf(scores[j][2 * r], scores[j][2 * r + 1]));
      }
      top = row_max(top);
      // Fully masked so far: any finite number will do, since every score is -inf.
      base[r] = top == minus_infinity() ? 0 : top * scale;
      shrink[r] = cuda::exp2_flushed(largest[r] * scale - base[r]);
      largest[r] = top;
    }
    float sums[2] = {};
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[j][i] = cuda::exp2_flushed(fmaf(scores[j][i], scale, -base[i / 2]));
        sums[i / 2] += scores[j][i];
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) total[r] = total[r] * shrink[r] + sums[r];
  }
};

}  // namespace touchstone::dense_attention
