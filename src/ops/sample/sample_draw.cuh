// The draw of a row, by the block that finishes it: from the sorted candidates when the row asks
// for a cut, from the sums of its segments when it does not.
#pragma once

#include "ops/sample/philox.h"
#include "ops/sample/sample_search.cuh"
#include "ops/sample/sample_wide.cuh"

namespace touchstone::sampling {

// The sum of a scan is right to a few roundings of f32, and to one of the scale of its exponents.
// Where a cut is closer than this, the sum is made again of masses.
inline constexpr double kSumError = 2e-6;

// A stretch of tokens that the block holds at once, in order: a few for each thread.
template <int kThreads>
struct Piece {
  static constexpr int kEach = 4;
  static constexpr int kTokens = kEach * kThreads;

  Mass sums[kEach];  // running, from the start of the piece
  Mass total;
};

// The draw from up to 64 sorted tokens in f32, by every warp for itself: no barriers, and none of
// the latencies of f64. `row` is the weight that top_p is of, or 0 where it is of these tokens. The
// key of the token, or 0 where the cut is not among them, or anything is too close to call: weights
// and their sums are right to 64 * 6.4e-8 of the largest weight and six roundings.
inline constexpr int kWarpTokens = 64;
inline constexpr float kWarpError = 1e-5F;

__device__ inline Key draw_by_warp(const Key* sorted, int limit, float row,
                                   const RowControls& controls, const Weights& weights, double u) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float weight[2];  // of two neighbours
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float value =
        2 * lane + i < limit ? topk::value_of(sorted[2 * lane + i]) : -topk::infinity();
    weight[i] = topk::exp2_fast((value - weights.largest) * weights.scale);
  }
  float sum = weight[0] + weight[1];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float before = __shfl_up_sync(~0U, sum, step);
    if (lane >= step) sum += before;
  }
  float first = __shfl_up_sync(~0U, sum, 1);
  first = (lane > 0 ? first : 0) + weight[0];
  const float sums[2] = {first, sum};
  const float all = __shfl_sync(~0U, sum, 31);
  const float base = row > 0 ? row : all;
  const float error = kWarpError * fmaxf(base, all);
  const float needed = controls.top_p * base;
  // How many tokens stay: all before the first that ends the set.
  int kept = row > 0 ? limit + 1 : limit;
  bool close = false;
#pragma unroll
  for (int i = 1; i >= 0; --i) {
    const int place = 2 * lane + i;
    if (place >= limit) continue;
    if (controls.top_p < 1) {
      if (sums[i] >= needed) kept = min(kept, place + 1);
      close = close || fabsf(sums[i] - needed) <= error;
    }
    if (controls.min_p > 0) {
      if (weight[i] < controls.min_p) kept = min(kept, place);
      close = close || fabsf(weight[i] - controls.min_p) <= kWarpError;
    }
  }
  kept = __reduce_min_sync(~0U, kept);
  if (kept > limit || kept < 1) return 0;
  const float odd = __shfl_sync(~0U, sums[0], (kept - 1) / 2);
  const float even = __shfl_sync(~0U, sums[1], (kept - 1) / 2);
  const float target = static_cast<float>(u) * (kept % 2 == 0 ? even : odd);
  int drawn = kept - 1;
#pragma unroll
  for (int i = 1; i >= 0; --i) {
    const int place = 2 * lane + i;
    if (place >= kept - 1) continue;
    if (sums[i] > target) drawn = min(drawn, place);
    close = close || fabsf(sums[i] - target) <= error;
  }
  if (__any_sync(~0U, close)) return 0;
  return sorted[__reduce_min_sync(~0U, drawn)];
}

template <class Memory>
class RowDraw {
 public:
  using Shape = typename Memory::Shape;
  using Draw = DrawShared<Memory::kThreads>;
  using Piece = sampling::Piece<Memory::kThreads>;
  static constexpr int kThreads = Memory::kThreads;

  __device__ RowDraw(const Shape& scan_shape, int places, Memory& scan_memory, const AnyValues& row,
                     int tokens_of_segment, const RowControls& row_controls,
                     const Weights& row_weights, int tokens_above)
      : shape(scan_shape),
        k(places),
        shared(scan_memory),
        draw(draw_shared(scan_memory)),
        values(row),
        segment_tokens(tokens_of_segment),
        controls(row_controls),
        weights(row_weights),
        distribution{row_weights.largest, row_weights.inverse},
        above(tokens_above),
        prefix{reinterpret_cast<Mass*>(scan_memory.candidates(scan_shape)), nullptr} {}

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
    if (limit <= kWarpTokens && !weights.huge) {
      const Key key =
          draw_by_warp(sorted, limit, whole ? 0.0F : scanned_weight(), controls, weights, u);
      if (key != 0) return key;
    }
    prefix.masses = prefix.sums + limit;
    const auto mass_at = [&](int i) { return distribution.mass(topk::value_of(sorted[i])); };
    add_up(limit, mass_at, prefix, draw);
    bool doubtful = false;
    int kept =
        whole ? cut(limit, needed_mass(controls.top_p, prefix.sums[limit - 1]), doubtful)
              : cut(limit, static_cast<Mass>(static_cast<double>(controls.top_p) * scanned_total()),
                    doubtful);
    if (!whole && doubtful) {
      read_again = true;
      kept = cut(limit, needed_mass(controls.top_p, exact_total()), doubtful);
    }
    if (kept > limit && !whole) return search(u, read_again);
    kept = min(kept, limit);
    return sorted[pick(kept, drawn_mass(u, prefix.sums[kept - 1]), prefix, draw)];
  }

  // How many of the first `limit` tokens top_p, which needs this mass, and min_p keep; more than
  // `limit` when neither ends there.
  __device__ int cut(int limit, Mass needed, bool& doubtful) {
    const auto min_p = static_cast<double>(controls.min_p);
    const bool by_mass = controls.top_p < 1;
    const double error = kSumError * static_cast<double>(needed);
    int kept = limit + 1;
    bool close = false;
    for (int i = static_cast<int>(threadIdx.x); i < limit; i += kThreads) {
      if (min_p > 0 && distribution.weight(topk::value_of(shared.sorted()[i])) < min_p) {
        kept = min(kept, i);  // never the first one, which weighs 1
      } else if (by_mass) {
        if (prefix.sums[i] >= needed) kept = min(kept, i + 1);
        const double distance = static_cast<double>(prefix.sums[i]) - static_cast<double>(needed);
        close = close || fabs(distance) <= error;
      }
    }
    doubtful = __syncthreads_or(close ? 1 : 0) != 0;
    return static_cast<int>(block_min(static_cast<std::uint32_t>(kept), draw));
  }

  // What the row weighs against its largest value, from the scan's sum.
  __device__ float scanned_weight() const {
    if (weights.huge) return weights.row.sum;
    return weights.row.sum * exp2f(fmaf(-weights.largest, weights.scale, weights.row.reference));
  }
  __device__ double scanned_total() const {
    return static_cast<double>(scanned_weight()) * kMassOfOne;
  }

  __device__ __noinline__ Mass exact_total() {
    Mass own = 0;
    for_each_value<kThreads>(values, shape.vocabulary,
                             [&](float value, std::int64_t) { own += distribution.mass(value); });
    Mass total = 0;
    block_prefix(own, draw.masses, total);
    return total;
  }

  __device__ __noinline__ Key search(double u, bool& read_again) {
    read_again = true;
    __syncthreads();  // the room of the candidates is used again
    if (!weights.huge) {
      WideSearch<Memory> wide(shape, shared, values, distribution, controls, scanned_total(),
                              kSumError);
      const Key found = wide.run(u);
      if (found != 0) return found;
    }
    OrderedSearch<Memory> ordered(shape, shared, values, distribution);
    return ordered.run(controls, u);
  }

  // ---- no cut ----------------------------------------------------------------------------------

  // The segment by the sums of the scan, then the token in it.
  __device__ std::int64_t by_segment(double u) {
    const float2* const segment_sums = shared.sums(shape);
    const auto reference = static_cast<double>(weights.row.reference);
    prefix.masses = prefix.sums + shape.segments;
    const auto mass_at = [&](int i) {
      const float2 sum = segment_sums[i];
      return mass_of(static_cast<double>(sum.y) * exp2(static_cast<double>(sum.x) - reference));
    };
    add_up(shape.segments, mass_at, prefix, draw);
    const Mass target = drawn_mass(u, prefix.sums[shape.segments - 1]);
    const int segment = pick(shape.segments, target, prefix, draw);
    const Mass mass = prefix.masses[segment];
    const Mass within = target - (prefix.sums[segment] - mass);
    const std::int64_t first = static_cast<std::int64_t>(segment) * segment_tokens;
    return walk(first, min(first + segment_tokens, shape.vocabulary),
                (static_cast<double>(within) + 0.5) / static_cast<double>(mass));
  }

  // The token of [begin, end) at which a fraction of their sum points.
  __device__ __noinline__ std::int64_t walk(std::int64_t begin, std::int64_t end, double fraction) {
    Piece piece = piece_at(begin, end);
    Mass total = piece.total;
    for (std::int64_t first = begin + Piece::kTokens; first < end; first += Piece::kTokens) {
      total += piece_at(first, end).total;
    }
    // Weights that vanish beside the largest did not in the sum of a segment.
    if (total == 0) return topk::token_of(shared.sorted()[0]);
    const Mass target = drawn_mass(fraction, total);
    Mass before = 0;
    for (std::int64_t first = begin;; first += Piece::kTokens) {
      // A segment may be one piece, which is still here.
      if (end - begin > Piece::kTokens) piece = piece_at(first, end);
      if (before + piece.total > target) {
        std::uint32_t found = Piece::kTokens;
#pragma unroll
        for (int i = Piece::kEach - 1; i >= 0; --i) {
          if (before + piece.sums[i] > target) {
            found = threadIdx.x * Piece::kEach + static_cast<unsigned>(i);
          }
        }
        return first + block_min(found, draw);
      }
      before += piece.total;
    }
  }

  __device__ Piece piece_at(std::int64_t first, std::int64_t end) {
    Piece piece;
    float value[Piece::kEach];
#pragma unroll
    for (int i = 0; i < Piece::kEach; ++i) {
      const std::int64_t token = first + threadIdx.x * Piece::kEach + i;
      value[i] = token < end ? values(token) : -topk::infinity();
    }
    Mass own = 0;
#pragma unroll
    for (int i = 0; i < Piece::kEach; ++i) {
      own += distribution.mass(value[i]);
      piece.sums[i] = own;
    }
    const Mass before = block_prefix(own, draw.masses, piece.total) - own;
#pragma unroll
    for (int i = 0; i < Piece::kEach; ++i) piece.sums[i] += before;
    return piece;
  }

  const Shape& shape;
  int k;  // tokens that were put in order
  Memory& shared;
  Draw& draw;
  const AnyValues& values;
  int segment_tokens;
  const RowControls& controls;
  const Weights& weights;
  Distribution distribution;
  int above;  // candidates above -inf
  Prefix prefix;
};

}  // namespace touchstone::sampling
