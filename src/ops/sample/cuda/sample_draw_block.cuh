// The draw of a row by the whole block, where one warp cannot: from the sorted candidates if the
// row has a cut, from the segment sums if it has none.
#pragma once

#include "ops/sample/cuda/sample_draw_warp.cuh"
#include "ops/sample/cuda/sample_histogram_search.cuh"
#include "ops/sample/cuda/sample_radix_search.cuh"

namespace touchstone::sampling {

// Consecutive tokens that the block holds at once, at least a segment.
template <int kThreads>
struct Piece {
  static constexpr int kEach = kThreads > 256 ? 1024 / kThreads : 4;
  static constexpr int kTokens = kEach * kThreads;

  Mass sums[kEach];  // running sums from the start of the piece
  Mass total;
};

__device__ inline float distance(float a, float b) { return fabsf(a - b); }
__device__ inline Mass distance(Mass a, Mass b) { return a > b ? a - b : b - a; }

// Prefix sums over the first `limit` sorted tokens, blocked over the threads. Running sums within
// `error` of a bound are reported as close.
template <class Number, int kThreads>
class OrderedDraw {
 public:
  // `buffer` holds `limit` sums.
  __device__ OrderedDraw(int tokens, const Key* sorted_keys, Number* buffer,
                         DrawSmem<kThreads>& memory)
      : limit(tokens), sorted(sorted_keys), sums(buffer), draw(memory) {
    // An odd number per thread avoids bank conflicts.
    const int each = (limit + kThreads - 1) / kThreads | 1;
    first = min(static_cast<int>(threadIdx.x) * each, limit);
    end = min(first + each, limit);
  }

  // weigh(value, dropped, close) returns the weight of a token and sets whether min_p drops it, or
  // almost does.
  template <class Weigh>
  __device__ void add_up(const Weigh& weigh) {
    Number own = 0;
    for (int i = first; i < end; ++i) {
      bool drops = false;
      bool is_close = false;
      own += weigh(selection::value_of(sorted[i]), drops, is_close);
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
    int count;   // limit + 1 if nothing is cut
    Number sum;  // of the kept tokens
    bool close;
  };

  // The tokens before the first that min_p drops and, if by_mass, up to the one that reaches
  // `needed`.
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

  // The first kept token at which the running sum exceeds the target; 0 if too close to call.
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

  Number all = 0;  // sum of all tokens

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }

  int limit;
  const Key* sorted;
  Number* sums;  // running, per thread
  DrawSmem<kThreads>& draw;
  int first, end;         // tokens of the thread
  Number before = 0;      // sum of the tokens before
  int dropped = 1 << 30;  // the first that min_p drops
  bool close = false;
};

template <class Smem>
class RowDraw {
 public:
  using Params = typename Smem::Params;
  using Draw = DrawSmem<Smem::kThreads>;
  using Piece = sampling::Piece<Smem::kThreads>;
  static constexpr int kThreads = Smem::kThreads;

  __device__ RowDraw(const Params& streaming_params, int slots, Smem& scan_memory,
                     const AnyValues& row, int tokens_of_segment, const RowControls& row_controls,
                     const Weights& row_weights, int tokens_above)
      : params(streaming_params),
        k(slots),
        smem(scan_memory),
        draw(draw_smem(scan_memory)),
        values(row),
        segment_tokens(tokens_of_segment),
        controls(row_controls),
        weights(row_weights),
        distribution{row_weights.largest, row_weights.inverse},
        above(tokens_above),
        sums(reinterpret_cast<Mass*>(scan_memory.candidates(streaming_params))) {}

  // The drawn key, for the first warp; sets `read_again` if the row was read again. Not for greedy
  // rows.
  __device__ Key run(double u, bool& read_again) {
    return controls.cuts(params.vocabulary) ? by_value(u, read_again) : by_token(u);
  }

  // The same for rows without a cut.
  __device__ Key by_token(double u) {
    const std::int64_t token = weights.huge ? walk(0, params.vocabulary, u) : by_segment(u);
    return selection::key_of(values(token), static_cast<std::uint32_t>(token));
  }

 private:
  // ---- with a cut ------------------------------------------------------------------------------

  __device__ Key by_value(double u, bool& read_again) {
    const CutBounds bounds = cut_bounds(controls, k, above, params.vocabulary);
    if (bounds.beyond) return search(u, read_again);
    const Key quick = weights.huge || bounds.limit <= kWarpTokens ? 0 : draw_in_f32(bounds, u);
    return quick != 0 ? quick : draw_exactly(bounds, u, read_again);
  }

  // As draw_by_warp_f32() for more tokens: the mean exponent is up to 7, and sums have 15 roundings
  // more.
  __device__ Key draw_in_f32(const CutBounds& bounds, double u) {
    OrderedDraw<float, kThreads> in_order(bounds.limit, smem.sorted(),
                                          reinterpret_cast<float*>(sums), draw);
    in_order.add_up([&](float value, bool& dropped, bool& close) {
      const float weight = selection::exp2_fast((value - weights.largest) * weights.scale);
      dropped = weight < controls.min_p;
      close = controls.min_p > 0 && fabsf(weight - controls.min_p) <= kWarpError;
      return weight;
    });
    const float base = bounds.whole ? in_order.all : scanned_weight(weights);
    const float error = 6e-6F * fmaxf(base, in_order.all);
    const auto kept = in_order.cut(controls.top_p < 1, controls.top_p * base, error);
    if (kept.close || (kept.count > bounds.limit && !bounds.whole)) return 0;
    return in_order.token_at(kept, static_cast<float>(u) * kept.sum, error);
  }

  // The same in integer masses.
  __device__ Key draw_exactly(const CutBounds& bounds, double u, bool& read_again) {
    OrderedDraw<Mass, kThreads> in_order(bounds.limit, smem.sorted(), sums, draw);
    in_order.add_up([&](float value, bool& dropped, bool& /*close*/) {
      const double weight = distribution.weight(value);
      dropped = weight < static_cast<double>(controls.min_p);
      return mass_of(weight);
    });
    const bool by_mass = controls.top_p < 1;
    auto needed = needed_mass(controls.top_p, in_order.all);
    Mass error = 0;
    if (!bounds.whole) {
      const double share = static_cast<double>(controls.top_p) * scanned_total();
      needed = static_cast<Mass>(share);
      error = static_cast<Mass>(kSumError * share) + 1;
    }
    auto kept = in_order.cut(by_mass, needed, error);
    if (kept.close) {
      read_again = true;
      kept = in_order.cut(by_mass, needed_mass(controls.top_p, exact_total()), 0);
    }
    if (kept.count > bounds.limit && !bounds.whole) return search(u, read_again);
    return in_order.token_at(kept, drawn_mass(u, kept.sum), 0);
  }

  __device__ double scanned_total() const {
    return static_cast<double>(scanned_weight(weights)) * kMassOfOne;
  }

  __device__ __noinline__ Mass exact_total() {
    Mass own = 0;
    for_each_value<kThreads>(values, params.vocabulary,
                             [&](float value, std::int64_t) { own += distribution.mass(value); });
    Mass total = 0;
    block_prefix(own, draw.masses, total);
    return total;
  }

  __device__ __noinline__ Key search(double u, bool& read_again) {
    read_again = true;
    __syncthreads();  // the candidates' memory is reused
    if (!weights.huge) {
      HistogramSearch<Smem> wide(params, smem, values, distribution, controls, scanned_total(),
                                 kSumError);
      const Key found = wide.run(u);
      if (found != 0) return found;
    }
    RadixSearch<Smem> ordered(params, smem, values, distribution);
    return ordered.run(controls, u);
  }

  // ---- without a cut ---------------------------------------------------------------------------

  // Picks the segment by the segment sums, then the token in it.
  __device__ std::int64_t by_segment(double u) {
    const float2* const segment_sums = smem.sums(params);
    const auto reference = static_cast<double>(weights.row.reference);
    const auto mass_at = [&](int i) {
      const float2 sum = segment_sums[i];
      return mass_of(static_cast<double>(sum.y) * exp2(static_cast<double>(sum.x) - reference));
    };
    add_up(params.segments, mass_at, sums, draw);
    const Mass target = drawn_mass(u, sums[params.segments - 1]);
    const int segment = pick(params.segments, target, sums, draw);
    const Mass before = segment > 0 ? sums[segment - 1] : 0;
    const Mass mass = sums[segment] - before;
    const Mass within = target - before;
    const std::int64_t first = static_cast<std::int64_t>(segment) * segment_tokens;
    return walk(first, min(first + segment_tokens, params.vocabulary),
                (static_cast<double>(within) + 0.5) / static_cast<double>(mass));
  }

  // The token of [begin, end) at the given fraction of their mass.
  __device__ __noinline__ std::int64_t walk(std::int64_t begin, std::int64_t end, double fraction) {
    Piece piece = piece_at(begin, end);
    Mass total = piece.total;
    for (std::int64_t first = begin + Piece::kTokens; first < end; first += Piece::kTokens) {
      total += piece_at(first, end).total;
    }
    // The masses may all round to 0 although the segment sum did not.
    if (total == 0) return selection::token_of(smem.sorted()[0]);
    const Mass target = drawn_mass(fraction, total);
    Mass before = 0;
    for (std::int64_t first = begin;; first += Piece::kTokens) {
      // A segment of one piece is still in registers.
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
      value[i] = token < end ? values(token) : -selection::infinity();
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

  const Params& params;
  int k;  // sorted tokens
  Smem& smem;
  Draw& draw;
  const AnyValues& values;
  int segment_tokens;
  const RowControls& controls;
  const Weights& weights;
  Distribution distribution;
  int above;   // candidates above -inf
  Mass* sums;  // running sums, in the memory of the candidates
};

}  // namespace touchstone::sampling
