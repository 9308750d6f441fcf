// The draw of a row by the block that finishes it, where one warp could not: from the sorted
// candidates when the row asks for a cut, from the sums of its segments when it does not.
#pragma once

#include "ops/sample/sample_search.cuh"
#include "ops/sample/sample_warp.cuh"
#include "ops/sample/sample_wide.cuh"

namespace touchstone::sampling {

// A stretch of tokens that the block holds at once, in order: at least as many as a segment has.
template <int kThreads>
struct Piece {
  static constexpr int kEach = kThreads > 256 ? 1024 / kThreads : 4;
  static constexpr int kTokens = kEach * kThreads;

  Mass sums[kEach];  // running, from the start of the piece
  Mass total;
};

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
        sums(reinterpret_cast<Mass*>(scan_memory.candidates(scan_shape))) {}

  // Not for greedy rows. The key of the token, for the first warp; sets `read_again` where the row
  // was.
  __device__ Key run(double u, bool& read_again) {
    return controls.cuts(shape.vocabulary) ? by_value(u, read_again) : by_token(u);
  }

  // The same for rows that cut nothing.
  __device__ Key by_token(double u) {
    const std::int64_t token = weights.huge ? walk(0, shape.vocabulary, u) : by_segment(u);
    return topk::key_of(values(token), static_cast<std::uint32_t>(token));
  }

 private:
  // ---- a cut -----------------------------------------------------------------------------------

  __device__ Key by_value(double u, bool& read_again) {
    const CutFacts facts = cut_facts(controls, k, above, shape.vocabulary);
    if (facts.beyond) return search(u, read_again);
    const bool whole = facts.whole;
    const int limit = facts.limit;
    const Key* const sorted = shared.sorted();
    if (limit > kWarpTokens && !weights.huge) {
      const Key key = by_value_in_f32(limit, whole ? 0.0F : scanned_weight(weights), u);
      if (key != 0) return key;
    }
    const auto mass_at = [&](int i) { return distribution.mass(topk::value_of(sorted[i])); };
    add_up(limit, mass_at, sums, draw);
    bool doubtful = false;
    int kept =
        whole ? cut(limit, needed_mass(controls.top_p, sums[limit - 1]), doubtful)
              : cut(limit, static_cast<Mass>(static_cast<double>(controls.top_p) * scanned_total()),
                    doubtful);
    if (!whole && doubtful) {
      read_again = true;
      kept = cut(limit, needed_mass(controls.top_p, exact_total()), doubtful);
    }
    if (kept > limit && !whole) return search(u, read_again);
    kept = min(kept, limit);
    return sorted[pick(kept, drawn_mass(u, sums[kept - 1]), sums, draw)];
  }

  // As draw_by_warp(), for more tokens: exponents have a mean of up to 7, and sums 14 roundings
  // more.
  __device__ Key by_value_in_f32(int limit, float row, double u) {
    const int each = (limit + kThreads - 1) / kThreads;
    const int first = static_cast<int>(threadIdx.x) * each;
    const int end = min(first + each, limit);
    const auto weight_at = [&](int i) {
      return topk::exp2_fast((topk::value_of(shared.sorted()[i]) - weights.largest) *
                             weights.scale);
    };
    float own = 0;
    for (int i = first; i < end; ++i) own += weight_at(i);
    float all = 0;
    const float before = block_prefix(own, draw.sums, all) - own;
    const float base = row > 0 ? row : all;
    const float error = 6e-6F * fmaxf(base, all);
    const float needed = controls.top_p * base;
    bool close = false;
    auto kept = static_cast<std::uint32_t>(row > 0 ? limit + 1 : limit);
    float sum = before;
    for (int i = first; i < end; ++i) {
      const float weight = weight_at(i);
      sum += weight;
      if (controls.top_p < 1) {
        if (sum >= needed) kept = min(kept, static_cast<std::uint32_t>(i + 1));
        close = close || fabsf(sum - needed) <= error;
      }
      if (controls.min_p > 0) {
        if (weight < controls.min_p) kept = min(kept, static_cast<std::uint32_t>(i));
        close = close || fabsf(weight - controls.min_p) <= kWarpError;
      }
    }
    kept = block_min(kept, draw);
    if (kept < 1 || kept > static_cast<std::uint32_t>(limit)) return 0;
    const int last = static_cast<int>(kept) - 1;
    sum = before;
    for (int i = first; i < min(end, last + 1); ++i) sum += weight_at(i);
    if (first <= last && last < end) draw.kept_sum = sum;
    __syncthreads();
    const float target = static_cast<float>(u) * draw.kept_sum;
    auto drawn = static_cast<std::uint32_t>(last);
    sum = before;
    for (int i = first; i < min(end, last); ++i) {
      sum += weight_at(i);
      if (sum > target) drawn = min(drawn, static_cast<std::uint32_t>(i));
      close = close || fabsf(sum - target) <= error;
    }
    drawn = block_min(drawn, draw);
    return __syncthreads_or(close ? 1 : 0) != 0 ? 0 : shared.sorted()[drawn];
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
        if (sums[i] >= needed) kept = min(kept, i + 1);
        const double distance = static_cast<double>(sums[i]) - static_cast<double>(needed);
        close = close || fabs(distance) <= error;
      }
    }
    doubtful = __syncthreads_or(close ? 1 : 0) != 0;
    return static_cast<int>(block_min(static_cast<std::uint32_t>(kept), draw));
  }

  __device__ double scanned_total() const {
    return static_cast<double>(scanned_weight(weights)) * kMassOfOne;
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
    const auto mass_at = [&](int i) {
      const float2 sum = segment_sums[i];
      return mass_of(static_cast<double>(sum.y) * exp2(static_cast<double>(sum.x) - reference));
    };
    add_up(shape.segments, mass_at, sums, draw);
    const Mass target = drawn_mass(u, sums[shape.segments - 1]);
    const int segment = pick(shape.segments, target, sums, draw);
    const Mass before = segment > 0 ? sums[segment - 1] : 0;
    const Mass mass = sums[segment] - before;
    const Mass within = target - before;
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
  int above;   // candidates above -inf
  Mass* sums;  // running ones, in the room of the candidates
};

}  // namespace touchstone::sampling
