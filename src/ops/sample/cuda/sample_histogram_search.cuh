// Kept sets beyond the sorted candidates, in two more reads of the row.
//
// The first read builds a histogram of counts and masses over a few hundred bins of equal width in
// value, without the tokens that certainly are not kept. The bins tell where top_k and top_p cut
// and where the draw falls, up to the content of a bin; the second read collects the tokens of
// those bins, which are then sorted. Masses are integers, so their order of arrival does not
// matter. If the bins do not fit, RadixSearch takes over.
#pragma once

#include "ops/sample/cuda/sample_block.cuh"

namespace touchstone::sampling {

// Aliases the scratch of the selection.
struct HistogramSmem {
  static constexpr int kEach = 12;  // bins per lane
  static constexpr int kBins = 32 * kEach;

  // Per bin; later running sums.
  Mass mass[kBins];
  std::uint32_t count[kBins];
  std::uint32_t marks[kBins / 32];  // bins whose tokens are collected
  std::uint32_t held;               // collected tokens
  std::uint32_t fits;
  std::uint32_t known;  // the total was accurate enough
  Mass kept_by_min_p;
  Mass total;  // of the row
  Key drawn;
};

// 64-bit addition in shared memory by two native 32-bit atomics.
__device__ inline void add_mass(Mass* to, Mass mass) {
  auto* const halves = reinterpret_cast<std::uint32_t*>(to);
  const auto low = static_cast<std::uint32_t>(mass);
  const std::uint32_t before = atomicAdd(&halves[0], low);
  const std::uint32_t high =
      static_cast<std::uint32_t>(mass >> 32) + (before + low < before ? 1U : 0U);
  if (high != 0) atomicAdd(&halves[1], high);
}

template <class Smem>
class HistogramSearch {
 public:
  using Params = typename Smem::Params;
  static constexpr int kThreads = Smem::kThreads;

  // `approximate` is the mass of the row, with relative error `error`.
  __device__ HistogramSearch(const Params& streaming_params, Smem& scan_memory,
                             const AnyValues& row, const Distribution& weigh,
                             const RowControls& row_controls, double approximate, double error)
      : params(streaming_params),
        smem(scan_memory),
        wide(*reinterpret_cast<HistogramSmem*>(&scan_memory.select)),
        values(row),
        distribution(weigh),
        controls(row_controls),
        least_total(static_cast<Mass>(approximate * (1 - error))),
        most_total(static_cast<Mass>(approximate * (1 + error))) {
    static_assert(sizeof(HistogramSmem) <= sizeof(scan_memory.select));
    const double range = useful_range(approximate);
    step = static_cast<float>(HistogramSmem::kBins / range);
    bound = static_cast<float>(static_cast<double>(distribution.largest) - range * 1.0001);
  }

  // The drawn key in every thread, or 0 if the bins do not fit.
  __device__ Key run(double u) {
    fill();
    if (threadIdx.x < 32) plan(u);
    __syncthreads();
    if (wide.fits == 0) return 0;
    hold();
    selection::sort_keys<kThreads>(smem.candidates(params), static_cast<int>(wide.held));
    if (threadIdx.x < 32) resolve(u);
    __syncthreads();
    if (wide.known == 0) {
      add_up_all();
      least_total = most_total = wide.total;
      if (threadIdx.x < 32) resolve(u);
      __syncthreads();
    }
    return wide.drawn;
  }

 private:
  static constexpr int kEach = HistogramSmem::kEach;
  static constexpr int kBins = HistogramSmem::kBins;

  // How far below the largest value a token can matter. Without top_k, the tokens that weigh less
  // than (1 - top_p) of the mean hold less than 1 - top_p of the mass together, so the set is
  // complete without them. Tokens that min_p drops still count where top_p is relative to what
  // top_k keeps.
  __device__ double useful_range(double approximate) const {
    double nats = 30.5;  // beyond, masses round to 0
    if (!cuts_by_count() && controls.top_p < 1) {
      const double mean = approximate / kMassOfOne / static_cast<double>(params.vocabulary);
      const double share = 1 - static_cast<double>(controls.top_p);
      nats = fmin(nats, 0.01 - log(share * mean));
    }
    if (controls.min_p > 0 && !(cuts_by_count() && controls.top_p < 1)) {
      nats = fmin(nats, 0.01 - log(static_cast<double>(controls.min_p)));
    }
    return nats / distribution.inverse;
  }

  // Increases as values decrease.
  __device__ int bin_of(float value) const {
    return min(static_cast<int>((distribution.largest - value) * step), kBins - 1);
  }

  __device__ void fill() {
    __syncthreads();
    auto* const words = reinterpret_cast<std::uint32_t*>(&wide);
    for (unsigned i = threadIdx.x; i < sizeof(HistogramSmem) / 4; i += kThreads) words[i] = 0;
    __syncthreads();
    const auto min_p = static_cast<double>(controls.min_p);
    Mass own_kept = 0;
    for_each_value<kThreads>(values, params.vocabulary, [&](float value, std::int64_t) {
      if (value < bound) return;
      const double weight = distribution.weight(value);
      const Mass mass = mass_of(weight);
      const int bin = bin_of(value);
      atomicAdd(&wide.count[bin], 1U);
      if (mass == 0) return;
      add_mass(&wide.mass[bin], mass);
      if (min_p > 0 && weight >= min_p) own_kept += mass;
    });
    if (own_kept > 0) add_mass(&wide.kept_by_min_p, own_kept);
    __syncthreads();
  }

  // ---- by the first warp ------------------------------------------------------------------------

  // The first bin whose running mass, or count, reaches `needed`; kBins if none does.
  __device__ int bin_reaching(bool by_count, Mass needed) const {
    const int lane = static_cast<int>(threadIdx.x);
    int found = kBins;
    for (int i = kEach - 1; i >= 0; --i) {
      const int bin = lane * kEach + i;
      if ((by_count ? wide.count[bin] : wide.mass[bin]) >= needed) found = bin;
    }
    return __reduce_min_sync(~0U, found);
  }
  __device__ Mass mass_before(int bin) const { return bin > 0 ? wide.mass[bin - 1] : 0; }
  __device__ std::uint32_t count_before(int bin) const { return bin > 0 ? wide.count[bin - 1] : 0; }

  // The mass that top_p needs of `base`, clamped to the histogram.
  __device__ Mass needed_of(Mass base) const {
    return min(needed_mass(controls.top_p, base), wide.mass[kBins - 1]);
  }

  __device__ void mark(int first, int last) {
    const int lane = static_cast<int>(threadIdx.x);
    if (lane >= kBins / 32) return;
    std::uint32_t bits = 0;
    for (int b = 0; b < 32; ++b) {
      const int bin = lane * 32 + b;
      if (bin >= first && bin <= last) bits |= 1U << b;
    }
    wide.marks[lane] |= bits;
  }

  __device__ void make_running_sums() {
    const int first = static_cast<int>(threadIdx.x) * kEach;
    Mass mass = 0;
    std::uint32_t count = 0;
    for (int i = 0; i < kEach; ++i) {
      wide.mass[first + i] = mass += wide.mass[first + i];
      wide.count[first + i] = count += wide.count[first + i];
    }
    Mass masses = mass;
    std::uint32_t counts = count;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const Mass other = __shfl_up_sync(~0U, masses, offset);
      const std::uint32_t others = __shfl_up_sync(~0U, counts, offset);
      if (static_cast<int>(threadIdx.x) < offset) continue;
      masses += other;
      counts += others;
    }
    for (int i = 0; i < kEach; ++i) {
      wide.mass[first + i] += masses - mass;
      wide.count[first + i] += counts - count;
    }
    __syncwarp();
  }

  // Marks the bins that may hold a cut or the draw.
  __device__ void plan(double u) {
    make_running_sums();
    Mass least_kept = wide.mass[kBins - 1];
    Mass most_kept = least_kept;
    Mass least_base = least_total;
    Mass most_base = most_total;
    if (cuts_by_count()) {
      const int bin = bin_reaching(true, static_cast<Mass>(controls.top_k));
      if (bin < kBins) {
        mark(bin, bin);
        least_kept = mass_before(bin);
        most_kept = wide.mass[bin];
      }
      least_base = least_kept;
      most_base = most_kept;
    }
    if (controls.top_p < 1) {
      const int first = bin_reaching(false, needed_of(least_base));
      const int last = bin_reaching(false, needed_of(most_base));
      mark(first, last);
      least_kept = min(least_kept, mass_before(first));
      most_kept = min(most_kept, wide.mass[last]);
    }
    if (controls.min_p > 0) {
      least_kept = min(least_kept, wide.kept_by_min_p);
      most_kept = min(most_kept, wide.kept_by_min_p);
    }
    mark(bin_reaching(false, drawn_mass(u, max(least_kept, Mass{1})) + 1),
         bin_reaching(false, drawn_mass(u, most_kept) + 1));
    __syncwarp();
    // Whether they fit the candidate memory.
    std::uint32_t wanted = 0;
    const int first = static_cast<int>(threadIdx.x) * kEach;
    for (int bin = first; bin < first + kEach; ++bin) {
      if (is_marked(bin)) wanted += wide.count[bin] - count_before(bin);
    }
    wanted = __reduce_add_sync(~0U, wanted);
    if (threadIdx.x == 0) wide.fits = wanted <= static_cast<unsigned>(params.capacity()) ? 1 : 0;
  }

  __device__ bool cuts_by_count() const { return controls.top_k < params.vocabulary; }
  __device__ bool is_marked(int bin) const {
    return (wide.marks[bin / 32] >> (bin % 32) & 1U) != 0;
  }

  struct Found {
    Key key;
    Mass mass;  // of this token and all before it
  };

  // The first token at which the mass, or the count, reaches `needed`. Its bin was collected.
  __device__ Found find(bool by_count, Mass needed) const {
    const Key* const keys = smem.candidates(params);
    const auto held = static_cast<int>(wide.held);
    const int lane = static_cast<int>(threadIdx.x);
    const int bin = bin_reaching(by_count, needed);
    int before = 0;  // collected keys of earlier bins
    for (int i = lane; i < held; i += 32) {
      before += bin_of(selection::value_of(keys[i])) < bin ? 1 : 0;
    }
    before = __reduce_add_sync(~0U, before);
    Mass mass = mass_before(bin);
    Mass reached = by_count ? count_before(bin) : mass;
    for (int first = before; first < held; first += 32) {
      const int i = first + lane;
      const Mass own = i < held ? distribution.mass(selection::value_of(keys[i])) : 0;
      Mass sum = own;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const Mass other = __shfl_up_sync(~0U, sum, offset);
        if (lane >= offset) sum += other;
      }
      const Mass here = by_count ? reached + static_cast<Mass>(lane) + 1 : mass + sum;
      const unsigned votes = __ballot_sync(~0U, i < held && here >= needed);
      if (votes != 0) {
        const int at = __ffs(static_cast<int>(votes)) - 1;
        return {keys[first + at], mass + __shfl_sync(~0U, sum, at)};
      }
      mass += __shfl_sync(~0U, sum, 31);
      reached += 32;
    }
    return {0, mass};
  }

  // Resolves the cuts and the draw from the collected tokens. Sets known = 0 if the total of the
  // row is not accurate enough.
  __device__ void resolve(double u) {
    Mass kept = wide.mass[kBins - 1];
    Mass least_base = least_total;
    Mass most_base = most_total;
    if (cuts_by_count()) {
      if (controls.top_k <= static_cast<std::int64_t>(wide.count[kBins - 1])) {
        kept = find(true, static_cast<Mass>(controls.top_k)).mass;
      }
      least_base = kept;
      most_base = kept;
    }
    bool known = true;
    if (controls.top_p < 1) {
      const Found first = find(false, needed_of(least_base));
      const Found last = find(false, needed_of(most_base));
      known = first.key == last.key;
      kept = min(kept, first.mass);
    }
    if (controls.min_p > 0) kept = min(kept, wide.kept_by_min_p);
    const Found drawn = find(false, drawn_mass(u, kept) + 1);
    if (threadIdx.x == 0) {
      wide.drawn = drawn.key;
      wide.known = known ? 1 : 0;
    }
  }

  // ---- by the block -----------------------------------------------------------------------------

  __device__ void hold() {
    Key* const keys = smem.candidates(params);
    for_each_value<kThreads>(values, params.vocabulary, [&](float value, std::int64_t token) {
      if (value < bound || !is_marked(bin_of(value))) return;
      const std::uint32_t at = atomicAdd(&wide.held, 1U);
      keys[at] = selection::key_of(value, static_cast<std::uint32_t>(token));
    });
    __syncthreads();
  }

  __device__ void add_up_all() {
    Mass own = 0;
    for_each_value<kThreads>(values, params.vocabulary,
                             [&](float value, std::int64_t) { own += distribution.mass(value); });
    if (own > 0) add_mass(&wide.total, own);
    __syncthreads();
  }

  const Params& params;
  Smem& smem;
  HistogramSmem& wide;
  const AnyValues& values;
  Distribution distribution;
  const RowControls& controls;
  Mass least_total, most_total;
  float step;
  float bound;
};

}  // namespace touchstone::sampling
