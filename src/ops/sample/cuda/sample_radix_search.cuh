// Kept sets of any size, exactly: for rows whose cut lies beyond the candidates of the selection.
//
// Nothing is sorted. A bound (a count or a mass) is located digit by digit of the keys: a histogram
// of counts and masses over as many parts of an interval as there are threads, then the part that
// holds the bound. The row is read once per step until the rest fits shared memory. All sums are
// integers, so their order does not matter.
#pragma once

#include <bit>

#include "ops/sample/cuda/sample_block.cuh"

namespace touchstone::sampling {

template <class Smem>
class RadixSearch {
 public:
  using Params = typename Smem::Params;
  using Draw = DrawSmem<Smem::kThreads>;
  static constexpr int kThreads = Smem::kThreads;
  static constexpr int kBinBits = std::bit_width(unsigned{kThreads}) - 1;  // one bin per thread
  static_assert(1 << kBinBits == kThreads);

  __device__ RadixSearch(const Params& streaming_params, Smem& scan_memory, const AnyValues& row,
                         const Distribution& weigh)
      : params(streaming_params),
        smem(scan_memory),
        draw(draw_smem(scan_memory)),
        values(row),
        distribution(weigh) {}

  // The kept token at which the uniform points.
  __device__ Key run(const RowControls& controls, double u) {
    read_totals(controls);
    Mass kept = kept_by_min_p;
    Mass base = all;
    if (controls.top_k < static_cast<std::int64_t>(count)) {
      base = find(true, static_cast<Mass>(controls.top_k)).mass;
      kept = min(kept, base);
    }
    if (controls.top_p < 1) {
      kept = min(kept, find(false, needed_mass(controls.top_p, base)).mass);
    }
    return find(false, drawn_mass(u, kept) + 1).key;
  }

 private:
  struct Found {
    Key key;
    Mass mass;  // of this token and all before it
  };

  // One read for all totals.
  __device__ void read_totals(const RowControls& controls) {
    const auto min_p = static_cast<double>(controls.min_p);
    Mass own = 0;
    Mass own_kept = 0;
    Mass own_count = 0;
    std::uint32_t smallest = 0xffffffffU;
    for_each_value<kThreads>(values, params.vocabulary, [&](float value, std::int64_t) {
      const double weight = distribution.weight(value);
      const Mass mass = mass_of(weight);
      own += mass;
      if (weight >= min_p) own_kept += mass;
      ++own_count;
      smallest = min(smallest, selection::ordered(value));
    });
    block_prefix(own, draw.masses, all);
    block_prefix(own_kept, draw.masses, kept_by_min_p);
    block_prefix(own_count, draw.masses, count);
    const auto last_token = static_cast<std::uint32_t>(params.vocabulary - 1);
    lowest =
        static_cast<Key>(block_min(smallest, draw)) << 32 | static_cast<std::uint32_t>(~last_token);
    highest = selection::key_of(distribution.largest, 0);
  }

  // The first key in order at which the count, or the mass, reaches `needed`, between 1 and that of
  // all.
  __device__ __noinline__ Found find(bool by_count, Mass needed) {
    Key low = lowest;
    Key high = highest;
    Mass above = 0;  // mass of the tokens above `high`
    int held = -1;   // keys in shared memory; -1 = not yet
    for (;;) {
      const int bits = 64 - __clzll(static_cast<long long>(high - low));
      const int shift = bits > kBinBits ? bits - kBinBits : 0;
      fill_bins(low, high, shift, held);
      choose_bin(by_count, needed);
      low += static_cast<Key>(draw.selected) << shift;
      if (shift == 0) return {low, above + draw.above_mass + draw.bin_mass[draw.selected]};
      high = low + min(high - low, (Key{1} << shift) - 1);  // cannot overflow
      above += draw.above_mass;
      needed -= by_count ? draw.above_count : draw.above_mass;
      if (held < 0 && static_cast<int>(draw.within) <= params.candidates) held = hold(low, high);
    }
  }

  __device__ void fill_bins(Key low, Key high, int shift, int held) {
    const int thread = static_cast<int>(threadIdx.x);
    __syncthreads();  // the previous step has been read
    draw.bin_mass[thread] = 0;
    draw.bin_count[thread] = 0;
    __syncthreads();
    const auto add = [&](Key key) {
      if (key < low || key > high) return;
      const auto bin = static_cast<std::uint32_t>((key - low) >> shift);
      atomicAdd(&draw.bin_mass[bin], distribution.mass(selection::value_of(key)));
      atomicAdd(&draw.bin_count[bin], 1U);
    };
    if (held < 0) {
      for_each_value<kThreads>(values, params.vocabulary, [&](float value, std::int64_t token) {
        add(selection::key_of(value, static_cast<std::uint32_t>(token)));
      });
    } else {
      const Key* const keys = smem.candidates(params);
      for (int i = thread; i < held; i += kThreads) add(keys[i]);
    }
    __syncthreads();
  }

  // From the top: thread 0 owns the highest bin.
  __device__ void choose_bin(bool by_count, Mass needed) {
    const unsigned bin = kThreads - 1 - threadIdx.x;
    const Mass own_mass = draw.bin_mass[bin];
    const Mass own_count = draw.bin_count[bin];
    Mass total = 0;
    const Mass masses = block_prefix(own_mass, draw.masses, total);
    const Mass counts = block_prefix(own_count, draw.masses, total);
    const Mass reached = by_count ? counts : masses;
    const Mass before = by_count ? counts - own_count : masses - own_mass;
    if (before < needed && reached >= needed) {
      draw.selected = bin;
      draw.within = static_cast<std::uint32_t>(own_count);
      draw.above_count = counts - own_count;
      draw.above_mass = masses - own_mass;
    }
    __syncthreads();
  }

  // Collects the keys of an interval in shared memory; returns their number.
  __device__ int hold(Key low, Key high) {
    Key* const keys = smem.candidates(params);
    if (threadIdx.x == 0) smem.taken = 0;
    __syncthreads();
    for_each_value<kThreads>(values, params.vocabulary, [&](float value, std::int64_t token) {
      const Key key = selection::key_of(value, static_cast<std::uint32_t>(token));
      if (key >= low && key <= high) keys[atomicAdd(&smem.taken, 1U)] = key;
    });
    __syncthreads();
    return static_cast<int>(smem.taken);
  }

  const Params& params;
  Smem& smem;
  Draw& draw;
  const AnyValues& values;
  Distribution distribution;
  Mass all = 0;
  Mass kept_by_min_p = 0;
  Mass count = 0;  // tokens above -inf
  Key lowest = 0;
  Key highest = 0;
};

}  // namespace touchstone::sampling
