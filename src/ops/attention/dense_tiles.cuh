// Dense attention on tensor cores: which tile a block has, which tiles of the other side it goes
// through and what is seen of them, and the numbers of a tile as lanes hold them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/attention/dense_cuda.cuh"

namespace touchstone::attend {

// ---- places of a block --------------------------------------------------------------------------

// A tile of rows of one sequence and head.
struct Place {
  std::int64_t sequence = 0;
  int head = 0;
  int tile = 0;  // within the sequence
};

// How blocks are dealt out: `lanes` (sequence and head, or head) of `tiles` each, lanes in groups
// whose other side stays in the cache together. In a group the tiles that have the most to do when
// causal come first: the last of all lanes, or the first.
struct Deal {
  std::int64_t lanes = 1;
  std::int64_t tiles = 1;
  std::int64_t group = 1;
  int heads = 1;
  int rows = 64;  // of a tile
  bool last_first = true;
};

__device__ inline Place place_of(const Deal& deal, std::int64_t index, std::int64_t batch,
                                 const std::int64_t* starts) {
  const std::int64_t per_group = deal.group * deal.tiles;
  const std::int64_t first_lane = index / per_group * deal.group;
  const std::int64_t lanes = smaller(deal.group, deal.lanes - first_lane);
  const std::int64_t within = index % per_group;
  const std::int64_t lane = first_lane + within % lanes;
  const std::int64_t piece = deal.last_first ? deal.tiles - 1 - within / lanes : within / lanes;
  if (starts == nullptr) {
    return {lane / deal.heads, static_cast<int>(lane % deal.heads), static_cast<int>(piece)};
  }
  const std::int64_t sequence = sequence_of_piece(starts, batch, piece, deal.rows);
  return {sequence, static_cast<int>(lane),
          static_cast<int>(piece - first_piece(starts, sequence, deal.rows))};
}

// Tiles for all rows of all sequences and heads.
inline Deal deal_of(const DenseAttention& p, std::int64_t tokens, std::int64_t heads, bool packed,
                    int rows, std::int64_t other_tokens) {
  Deal deal;
  deal.rows = rows;
  deal.heads = static_cast<int>(heads);
  deal.lanes = packed ? heads : heads * p.batch;
  deal.tiles = pieces(tokens, p.batch, packed, rows);
  // Half of a large cache.
  constexpr std::int64_t kTogether = std::int64_t{24} << 20;
  const std::int64_t bytes = other_tokens * (p.k_dim + p.v_dim) * 2;
  deal.group = smaller(larger(kTogether / larger(bytes, 1), 1), deal.lanes);
  return deal;
}

// ---- which keys ---------------------------------------------------------------------------------

// Tiles of keys that some row of a block sees, from the last to the first: number i is
// last - 1 - i, from `count` - `sink_tiles` on the tiles of the sinks.
struct KeyTiles {
  int count = 0;
  int last = 0;
  int sink_tiles = 0;
  __device__ int tile(int i) const { return i < count - sink_tiles ? last - 1 - i : count - 1 - i; }
};

__device__ inline KeyTiles key_tiles(const Sight& first_row, const Sight& last_row, int keys) {
  KeyTiles tiles;
  tiles.last = static_cast<int>((last_row.end + keys - 1) / keys);
  const int first = static_cast<int>(first_row.begin / keys);
  const int sink_end = static_cast<int>((last_row.sinks + keys - 1) / keys);
  tiles.sink_tiles = static_cast<int>(smaller(sink_end, first));
  tiles.count = static_cast<int>(larger(tiles.last - first, 0)) + tiles.sink_tiles;
  return tiles;
}

// What one row sees, in 32 bits.
struct RowSight {
  int sinks = 0, begin = 0, end = 0;
  RowSight() = default;
  __device__ explicit RowSight(const Sight& s)
      : sinks(static_cast<int>(s.sinks)),
        begin(static_cast<int>(s.begin)),
        end(static_cast<int>(s.end)) {}
  __device__ bool sees(int key) const { return key < end && (key >= begin || key < sinks); }
};

// Whether a query sees a key, in 32 bits.
struct PairSight {
  int keys, offset, window, sinks;
  bool causal;
  __device__ PairSight(const DenseAttention& p, const SequenceSpan& span)
      : keys(static_cast<int>(span.keys)),
        offset(static_cast<int>(span.keys - span.queries)),
        window(static_cast<int>(smaller(p.window, 1 << 30))),
        sinks(static_cast<int>(smaller(p.sinks, 1 << 30))),
        causal(p.causal) {}
  __device__ bool sees(int query, int key) const {
    const int position = query + offset;
    if (key >= keys || (causal && key > position)) return false;
    if (window == 0) return true;
    return (key > position - window || key < sinks) && (causal || key < position + window);
  }
};

// The tiles of queries of which some may see a key of [first, first + keys): [begin, end), and all
// from `begin` on for keys that are sinks.
__device__ inline int2 query_tiles(const DenseAttention& p, const SequenceSpan& span, int first,
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

}  // namespace touchstone::attend
