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

__device__ inline float distance(float a, float b) { return fabsf(a - b); }
__device__ inline Mass distance(Mass a, Mass b) { return a > b ? a - b : b - a; }

// The first `limit` of a row's tokens in order, spread over a block: a thread has some neighbors.
// Running sums that come as close to a border as an error are reported.
template <class Number, int kThreads>
class OrderedDraw {
 public:
  // `room` is for as many sums.
  __device__ OrderedDraw(int tokens, const Key* sorted_keys, Number* room,
                         DrawShared<kThreads>& memory)
      : limit(tokens), sorted(sorted_keys), sums(room), draw(memory) {
    // An odd number of neighbors: the lanes of a warp find theirs in different banks.
    const int each = (limit + kThreads - 1) / kThreads | 1;
    first = min(static_cast<int>(threadIdx.x) * each, limit);
    end = min(first + each, limit);
  }

  // weigh(value, dropped, close) gives what a token weighs, and may say that min_p drops it, or
  // almost does.
  template <class Weigh>
  __device__ void add_up(const Weigh& weigh) {
    Number own = 0;
    for (int i = first; i < end; ++i) {
      bool drops = false;
      bool is_close = false;
      own += weigh(topk::value_of(sorted[i]), drops, is_close);
      sums[i] = own;
      if (drops) dropped = min(dropped, i);
      close = close || is_close;
    }
    Number* const warp_sums = draw.template of_warps<Number>().sums;
    const Number prefix = warp_prefix(own);
    if (lane() == 31) warp_sums[warp()] = prefix;
    __syncthreads();
    Number base = 0;
    all = 0;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w == warp()) base = all;
      all += warp_sums[w];
    }
    before = base + (prefix - own);
  }

  struct Kept {
    int count;   // more than there are where nothing is cut
    Number sum;  // of those, or of all
    bool close;
  };

  // The tokens before the first that min_p drops, and by_mass no more than are needed for a sum.
  __device__ Kept cut(bool by_mass, Number needed, Number error) {
    int count = min(dropped, limit + 1);
    bool is_close = close;
    for (int i = first; by_mass && i < min(end, dropped); ++i) {
      const Number sum = before + sums[i];
      if (sum >= needed) count = min(count, i + 1);
      is_close = is_close || distance(sum, needed) < error;
    }
    auto& of_warps = draw.template of_warps<Number>();
    const unsigned cuts = __ballot_sync(~0U, count <= limit);
    if (cuts == 0) {
      if (lane() == 0) draw.least[warp()] = static_cast<std::uint32_t>(count);
    } else if (lane() == __ffs(static_cast<int>(cuts)) - 1) {
      draw.least[warp()] = static_cast<std::uint32_t>(count);
      of_warps.kept[warp()] = count > first ? before + sums[count - 1] : before;
    }
    if (threadIdx.x == 0) draw.drawn = 0;
    Kept kept{limit + 1, all, __syncthreads_or(is_close ? 1 : 0) != 0};
#pragma unroll
    for (int w = kThreads / 32 - 1; w >= 0; --w) {
      if (draw.least[w] > static_cast<unsigned>(limit)) continue;
      kept.count = static_cast<int>(draw.least[w]);
      kept.sum = of_warps.kept[w];
    }
    return kept;
  }

  // The first of the kept tokens at which the running sum exceeds the target; 0 where that is too
  // close to call.
  __device__ Key token_at(const Kept& kept, Number target, Number error) {
    const int last = min(kept.count, limit) - 1;
    Number sum = before;
    for (int i = first; i < min(end, last + 1) && sum <= target; ++i) {
      const Number next = before + sums[i];
      if (next > target || i == last) {
        const bool is_close = (i > 0 && distance(sum, target) < error) ||
                              (i < last && distance(next, target) < error);
        draw.drawn = is_close ? 0 : sorted[i];
        break;
      }
      sum = next;
    }
    __syncthreads();
    return draw.drawn;
  }

  Number all = 0;  // the sum of all tokens

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }

  int limit;
  const Key* sorted;
  Number* sums;  // of a thread's tokens up to this one
  DrawShared<kThreads>& draw;
  int first, end;         // the thread's tokens
  Number before = 0;      // the sum of those before
  int dropped = 1 << 30;  // the first that min_p drops
  bool close = false;
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
    const Key quick = weights.huge || facts.limit <= kWarpTokens ? 0 : draw_in_f32(facts, u);
    return quick != 0 ? quick : draw_exactly(facts, u, read_again);
  }

  // As draw_by_warp(), for more tokens: exponents have a mean of up to 7, and sums 15 roundings
  // more.
  __device__ Key draw_in_f32(const CutFacts& facts, double u) {
    OrderedDraw<float, kThreads> in_order(facts.limit, shared.sorted(),
                                          reinterpret_cast<float*>(sums), draw);
    in_order.add_up([&](float value, bool& dropped, bool& close) {
      const float weight = topk::exp2_fast((value - weights.largest) * weights.scale);
      dropped = weight < controls.min_p;
      close = controls.min_p > 0 && fabsf(weight - controls.min_p) <= kWarpError;
      return weight;
    });
    const float base = facts.whole ? in_order.all : scanned_weight(weights);
    const float error = 6e-6F * fmaxf(base, in_order.all);
    const auto kept = in_order.cut(controls.top_p < 1, controls.top_p * base, error);
    if (kept.close || (kept.count > facts.limit && !facts.whole)) return 0;
    return in_order.token_at(kept, static_cast<float>(u) * kept.sum, error);
  }

  // The same in whole numbers.
  __device__ Key draw_exactly(const CutFacts& facts, double u, bool& read_again) {
    OrderedDraw<Mass, kThreads> in_order(facts.limit, shared.sorted(), sums, draw);
    in_order.add_up([&](float value, bool& dropped, bool& /*close*/) {
      const double weight = distribution.weight(value);
      dropped = weight < static_cast<double>(controls.min_p);
      return mass_of(weight);
    });
    const bool by_mass = controls.top_p < 1;
    auto needed = needed_mass(controls.top_p, in_order.all);
    Mass error = 0;
    if (!facts.whole) {
      const double share = static_cast<double>(controls.top_p) * scanned_total();
      needed = static_cast<Mass>(share);
      error = static_cast<Mass>(kSumError * share) + 1;
    }
    auto kept = in_order.cut(by_mass, needed, error);
    if (kept.close) {
      read_again = true;
      kept = in_order.cut(by_mass, needed_mass(controls.top_p, exact_total()), 0);
    }
    if (kept.count > facts.limit && !facts.whole) return search(u, read_again);
    return in_order.token_at(kept, drawn_mass(u, kept.sum), 0);
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
