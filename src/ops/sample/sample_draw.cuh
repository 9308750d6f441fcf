// The draw of a row, by the block that finishes it: from the sorted candidates when the row asks
// for a cut, from the sums of its segments when it does not. Weights are f64, against the largest
// value.
#pragma once

#include "ops/sample/philox.h"
#include "ops/sample/sample_search.cuh"

namespace touchstone::sampling {

// The sum of a scan is right to a few roundings of f32, and to one of the scale of its exponents.
// Where a cut is closer than this, the sum is made again in f64.
inline constexpr double kSumError = 2e-6;

// A stretch of tokens that the block holds at once, in order: a few for each thread.
struct Piece {
  static constexpr int kEach = 4;
  static constexpr int kTokens = kEach * kScanThreads;

  double weights[kEach];
  double sums[kEach];  // running, from the start of the piece
  double total;
};

template <class Values, int kSegmentTokens>
class RowDraw {
 public:
  __device__ RowDraw(const ScanShape& scan_shape, int places, ScanShared& scan_memory,
                     DrawShared& draw_memory, const Values& row, const RowControls& row_controls,
                     const Weights& row_weights, int tokens_above)
      : shape(scan_shape),
        k(places),
        shared(scan_memory),
        draw(draw_memory),
        values(row),
        controls(row_controls),
        weights(row_weights),
        distribution{row_weights.largest, static_cast<double>(row_controls.temperature)},
        above(tokens_above),
        prefix{reinterpret_cast<double*>(scan_memory.candidates(scan_shape)), nullptr} {}

  // Not for greedy rows. The key of the token, for the first warp; sets `read_again` where the row
  // was.
  __device__ Key run(double u, bool& read_again) {
    if (controls.cuts(shape.vocabulary)) return by_value(u, read_again);
    read_again = read_again || weights.huge;
    const std::int64_t token = weights.huge ? walk(0, shape.vocabulary, u) : by_segment(u);
    return topk::key_of(values(token), static_cast<std::uint32_t>(token));
  }

 private:
  // ---- a cut -----------------------------------------------------------------------------------

  __device__ Key by_value(double u, bool& read_again) {
    // Whether the candidates are all that top_k leaves, and their mass is the one that top_p is of.
    const bool complete = above < k || k == shape.vocabulary;
    const bool whole = complete || controls.top_k <= k;
    const bool top_k_cuts = controls.top_k < shape.vocabulary;
    if (!whole && top_k_cuts && controls.top_p < 1) return search(u, read_again);
    const auto limit = static_cast<int>(min(controls.top_k, static_cast<std::int64_t>(above)));
    const Key* const sorted = shared.sorted();
    if (whole && limit <= kFewTokens) return by_warp(limit, u);
    prefix.weights = prefix.sums + limit;
    const auto weight_at = [&](int i) { return distribution.weight(topk::value_of(sorted[i])); };
    add_up(limit, weight_at, prefix, draw);
    bool doubtful = false;
    int kept = cut(limit, whole ? prefix.sums[limit - 1] : scanned_total(), doubtful);
    if (!whole && doubtful) {
      read_again = true;
      kept = cut(limit, exact_total(), doubtful);
    }
    if (kept > limit && !whole) return search(u, read_again);
    kept = min(kept, limit);
    return sorted[pick(kept, u * prefix.sums[kept - 1], prefix, draw)];
  }

  // The same for few tokens that are all there is, by the first warp alone: no barriers. A lane has
  // two neighbours. The other warps get nothing.
  static constexpr int kFewTokens = 64;

  __device__ Key by_warp(int limit, double u) {
    if (threadIdx.x >= 32) return 0;
    const Key* const sorted = shared.sorted();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const Key keys[2] = {2 * lane < limit ? sorted[2 * lane] : 0,
                         2 * lane + 1 < limit ? sorted[2 * lane + 1] : 0};
    const double own[2] = {keys[0] != 0 ? distribution.weight(topk::value_of(keys[0])) : 0,
                           keys[1] != 0 ? distribution.weight(topk::value_of(keys[1])) : 0};
    double sum = own[0] + own[1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const double before = __shfl_up_sync(~0U, sum, step);
      if (lane >= step) sum += before;
    }
    const double sums[2] = {sum - own[1], sum};
    const double needed =
        static_cast<double>(controls.top_p) * __shfl_sync(~0U, sum, (limit - 1) / 2);
    const auto min_p = static_cast<double>(controls.min_p);
    // How many tokens stay: all before the first that ends the set.
    int kept = limit;
#pragma unroll
    for (int i = 1; i >= 0; --i) {
      const int place = 2 * lane + i;
      if (place >= limit) continue;
      if (controls.top_p < 1 && sums[i] >= needed) kept = min(kept, place + 1);
      if (own[i] < min_p) kept = min(kept, place);
    }
    kept = __reduce_min_sync(~0U, kept);
    const double last = __shfl_sync(~0U, sums[1], (kept - 1) / 2);
    const double last_but_one = __shfl_sync(~0U, sums[0], (kept - 1) / 2);
    const double target = u * (kept % 2 == 0 ? last : last_but_one);
    int drawn = kept - 1;
#pragma unroll
    for (int i = 1; i >= 0; --i) {
      const int place = 2 * lane + i;
      if (place < kept && own[i] > 0 && sums[i] > target) drawn = min(drawn, place);
    }
    return sorted[__reduce_min_sync(~0U, drawn)];
  }

  // How many of the first `limit` tokens top_p, of this mass, and min_p keep; more than `limit`
  // when neither ends there.
  __device__ int cut(int limit, double mass, bool& doubtful) {
    const auto min_p = static_cast<double>(controls.min_p);
    const double needed = static_cast<double>(controls.top_p) * mass;
    const bool by_mass = controls.top_p < 1;
    int kept = limit + 1;
    bool close = false;
    for (int i = static_cast<int>(threadIdx.x); i < limit; i += kScanThreads) {
      if (prefix.weights[i] < min_p) {
        kept = min(kept, i);  // never the first one, which weighs 1
      } else if (by_mass) {
        if (prefix.sums[i] >= needed) kept = min(kept, i + 1);
        close = close || fabs(prefix.sums[i] - needed) <= kSumError * needed;
      }
    }
    doubtful = __syncthreads_or(close ? 1 : 0) != 0;
    return static_cast<int>(block_min(static_cast<std::uint32_t>(kept), draw));
  }

  // The sum of all weights, from the scan's.
  __device__ double scanned_total() const {
    const auto sum = static_cast<double>(weights.row.sum);
    if (weights.huge) return sum;
    return sum * exp2(static_cast<double>(weights.row.reference) -
                      static_cast<double>(weights.largest) * static_cast<double>(weights.scale));
  }

  __device__ __noinline__ double exact_total() {
    double own = 0;
    for_each_value(values, shape.vocabulary,
                   [&](float value, std::int64_t) { own += distribution.weight(value); });
    double total = 0;
    block_prefix(own, draw.sums, total);
    return total;
  }

  __device__ __noinline__ Key search(double u, bool& read_again) {
    read_again = true;
    __syncthreads();  // the room of the candidates is used again
    OrderedSearch<Values> ordered(shape, shared, draw, values, distribution);
    return ordered.run(controls, u);
  }

  // ---- no cut ----------------------------------------------------------------------------------

  // The segment by the sums of the scan, then the token in it.
  __device__ std::int64_t by_segment(double u) {
    const float2* const segment_sums = shared.sums(shape);
    const auto reference = static_cast<double>(weights.row.reference);
    prefix.weights = prefix.sums + shape.segments;
    const auto weight_at = [&](int i) {
      const float2 sum = segment_sums[i];
      return static_cast<double>(sum.y) * exp2(static_cast<double>(sum.x) - reference);
    };
    add_up(shape.segments, weight_at, prefix, draw);
    const double target = u * prefix.sums[shape.segments - 1];
    const int segment = pick(shape.segments, target, prefix, draw);
    const double before = segment > 0 ? prefix.sums[segment - 1] : 0;
    // Below 1, as uniforms are.
    const double fraction =
        fmin(fmax((target - before) / prefix.weights[segment], 0.0), 1 - 0x1p-53);
    const std::int64_t first = static_cast<std::int64_t>(segment) * kSegmentTokens;
    return walk(first, min(first + kSegmentTokens, shape.vocabulary), fraction);
  }

  // The token of [begin, end) at which a fraction of their sum points.
  __device__ __noinline__ std::int64_t walk(std::int64_t begin, std::int64_t end, double fraction) {
    Piece piece = piece_at(begin, end);
    double total = piece.total;
    for (std::int64_t first = begin + Piece::kTokens; first < end; first += Piece::kTokens) {
      total += piece_at(first, end).total;
    }
    const double target = fraction * total;
    double before = 0;
    std::int64_t last = -1;  // token that weighs anything
    for (std::int64_t first = begin; first < end; first += Piece::kTokens) {
      // A segment is one piece, which is still here.
      if (end - begin > Piece::kTokens) piece = piece_at(first, end);
      std::uint32_t found = Piece::kTokens;
      std::uint32_t from_end = Piece::kTokens;
#pragma unroll
      for (int i = Piece::kEach - 1; i >= 0; --i) {
        if (!(piece.weights[i] > 0)) continue;
        const std::uint32_t at = threadIdx.x * Piece::kEach + static_cast<unsigned>(i);
        from_end = min(from_end, Piece::kTokens - 1 - at);
        if (before + piece.sums[i] > target) found = at;
      }
      found = block_min(found, draw);
      if (found < Piece::kTokens) return first + found;
      from_end = block_min(from_end, draw);
      if (from_end < Piece::kTokens) last = first + (Piece::kTokens - 1 - from_end);
      before += piece.total;
    }
    // Sums are rounded, so that the target may lie at their end; and weights that vanish in f64 did
    // not in the sum of a segment.
    return last >= 0 ? last : topk::token_of(shared.sorted()[0]);
  }

  __device__ Piece piece_at(std::int64_t first, std::int64_t end) {
    Piece piece;
    float value[Piece::kEach];
#pragma unroll
    for (int i = 0; i < Piece::kEach; ++i) {
      const std::int64_t token = first + threadIdx.x * Piece::kEach + i;
      value[i] = token < end ? values(token) : -topk::infinity();
    }
    double own = 0;
#pragma unroll
    for (int i = 0; i < Piece::kEach; ++i) {
      piece.weights[i] = distribution.weight(value[i]);
      own += piece.weights[i];
      piece.sums[i] = own;
    }
    const double before = block_prefix(own, draw.sums, piece.total) - own;
#pragma unroll
    for (int i = 0; i < Piece::kEach; ++i) piece.sums[i] += before;
    return piece;
  }

  const ScanShape& shape;
  int k;  // tokens that were put in order
  ScanShared& shared;
  DrawShared& draw;
  const Values& values;
  const RowControls& controls;
  const Weights& weights;
  Distribution distribution;
  int above;  // candidates above -inf
  Prefix prefix;
};

}  // namespace touchstone::sampling
