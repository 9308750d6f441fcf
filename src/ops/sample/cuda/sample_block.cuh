// Block-wide sums and searches for draws. Masses are integers: their sums do not depend on the
// order, so results do not depend on block size or code path.
#pragma once

#include <type_traits>

#include "ops/sample/cuda/sample_penalties.cuh"
#include "ops/selection/candidates.cuh"
#include "ops/selection/streaming.cuh"

namespace touchstone::sampling {

using selection::Key;
using selection::RowSum;
using selection::StreamingMode;
using selection::StreamingParams;
using selection::StreamingSmem;
using selection::Weights;

// State of a row in shared memory, from its controls to its outputs.
struct alignas(16) RowState {
  RowControls controls;
  double inverse;  // 1 / T
  double uniform;
  Weights weights;     // for draws by the block
  std::int32_t drawn;  // the first warp has drawn
  std::int32_t slots;  // sorted tokens
};

// A weight of 1 is 2^42: the sum of 2^21 weights, the most tokens of a row, fits 64 bits.
using Mass = unsigned long long;
inline constexpr double kMassOfOne = 0x1p42;

// Shared memory of draws; aliases the scratch of the selection.
template <int kBlockThreads>
struct alignas(16) DrawSmem {
  static constexpr int kThreads = kBlockThreads;
  static constexpr int kWarps = kThreads / 32;

  // Per warp.
  template <class Number>
  struct OfWarps {
    Number sums[kWarps];
    Number kept[kWarps];
  };
  OfWarps<Mass> whole;
  OfWarps<float> quick;
  Mass masses[kWarps];
  std::uint32_t least[kWarps];
  Key drawn;
  // Histogram of keys, and the bin that a search continues in.
  std::uint32_t selected;
  std::uint32_t within;
  Mass above_count;
  Mass above_mass;
  Mass bin_mass[kThreads];
  std::uint32_t bin_count[kThreads];

  template <class Number>
  __device__ OfWarps<Number>& of_warps() {
    if constexpr (std::is_same_v<Number, float>) {
      return quick;
    } else {
      return whole;
    }
  }
};

template <class Smem>
__device__ DrawSmem<Smem::kThreads>& draw_smem(Smem& smem) {
  static_assert(sizeof(DrawSmem<Smem::kThreads>) <= sizeof(smem.select));
  return *reinterpret_cast<DrawSmem<Smem::kThreads>*>(&smem.select);
}

// Inclusive prefix sum over a warp.
template <class Number>
__device__ Number warp_prefix(Number value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Number before = __shfl_up_sync(~0U, value, step);
    if (lane >= step) value += before;
  }
  return value;
}

// Inclusive prefix sum over the block; `total` is the sum of all threads.
template <int kWarps, class Number>
__device__ Number block_prefix(Number value, Number (&warp_sums)[kWarps], Number& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  value = warp_prefix(value);
  __syncthreads();  // the previous use is complete
  if (lane == 31) warp_sums[warp] = value;
  __syncthreads();
  if constexpr (kWarps > 8) {  // one lane per warp
    const Number own = lane < kWarps ? warp_sums[lane] : 0;
    const Number sums = warp_prefix(own);
    total = __shfl_sync(~0U, sums, 31);
    return __shfl_sync(~0U, sums - own, warp) + value;
  } else {
    Number base = 0;
    total = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      if (i == warp) base = total;
      total += warp_sums[i];
    }
    return base + value;
  }
}

template <class Draw>
__device__ std::uint32_t block_min(std::uint32_t value, Draw& draw) {
  value = __reduce_min_sync(~0U, value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) draw.least[threadIdx.x / 32] = value;
  __syncthreads();
  if constexpr (Draw::kWarps > 8) {
    value = __reduce_min_sync(~0U, draw.least[threadIdx.x % Draw::kWarps]);
  } else {
#pragma unroll
    for (int i = 0; i < Draw::kWarps; ++i) value = min(value, draw.least[i]);
  }
  return value;
}

__device__ inline Mass mass_of(double weight) { return __double2ull_rn(weight * kMassOfOne); }

// Weights relative to the largest value, which weighs 1.
struct Distribution {
  float largest;
  double inverse;  // 1 / T

  // weight() is __noinline__, for callers that do not wait for it.
  __device__ double weight_at_once(float value) const {
    // Also if the largest is infinite.
    if (value == largest) return 1;
    return exp((static_cast<double>(value) - static_cast<double>(largest)) * inverse);
  }
  __device__ __noinline__ double weight(float value) const { return weight_at_once(value); }
  __device__ Mass mass(float value) const { return mass_of(weight(value)); }
};

// The mass that a prefix needs to hold `top_p` of `base`.
__device__ inline Mass needed_mass(float top_p, Mass base) {
  const auto needed =
      static_cast<Mass>(ceil(static_cast<double>(top_p) * static_cast<double>(base)));
  return min(max(needed, Mass{1}), base);
}

// The mass that the running sum must exceed at the drawn token.
__device__ inline Mass drawn_mass(double u, Mass kept) {
  return min(static_cast<Mass>(u * static_cast<double>(kept)), kept - 1);
}

// Loads in flight per thread.
inline constexpr int kLoadedTogether = 16;

// The values of the tokens first, first + step, ..; -inf past the end. __noinline__ and for any
// dtype: rereading a row is rare, and its code is long.
__device__ __noinline__ inline void load_values(const AnyValues& values, int first, int step,
                                                int end, float (&to)[kLoadedTogether]) {
  const auto load_all = [&]<class T>(const T* logits) {
#pragma unroll
    for (int i = 0; i < kLoadedTogether; ++i) {
      const int token = first + i * step;
      to[i] = token < end ? cuda::widen(logits[token]) : -selection::infinity();
    }
  };
  if (values.dtype == DType::f32) {
    load_all(static_cast<const float*>(values.logits));
  } else if (values.dtype == DType::bf16) {
    load_all(static_cast<const Bf16*>(values.logits));
  } else {
    load_all(static_cast<const F16*>(values.logits));
  }
  if (values.bias == nullptr && values.token_mask == nullptr && values.table == nullptr) return;
#pragma unroll 1
  for (int i = 0; i < kLoadedTogether; ++i) {
    const int token = first + i * step;
    if (token < end) to[i] = values.adjusted(to[i], token);
  }
}

// Calls visit(value, token) for the tokens above -inf, in any order.
template <int kThreads, class Visit>
__device__ void for_each_value(const AnyValues& values, std::int64_t vocabulary,
                               const Visit& visit) {
  const auto tokens = static_cast<int>(vocabulary);
  for (int first = static_cast<int>(threadIdx.x); first < tokens;
       first += kLoadedTogether * kThreads) {
    float loaded[kLoadedTogether];
    load_values(values, first, kThreads, tokens, loaded);
#pragma unroll 1
    for (int i = 0; i < kLoadedTogether; ++i) {
      if (loaded[i] > -selection::infinity()) visit(loaded[i], first + i * kThreads);
    }
  }
}

// Stores the running sums of masses at `sums`.
template <class MassAt, class Draw>
__device__ void add_up(int count, const MassAt& mass_at, Mass* sums, Draw& draw) {
  Mass before = 0;
  for (int first = 0; first < count; first += Draw::kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const Mass mass = i < count ? mass_at(i) : 0;
    Mass total = 0;
    const Mass sum = block_prefix(mass, draw.masses, total);
    if (i < count) sums[i] = before + sum;
    before += total;
  }
  __syncthreads();
}

// The first of `count` entries whose running sum exceeds `target`, which is below the last sum.
template <class Draw>
__device__ int pick(int count, Mass target, const Mass* sums, Draw& draw) {
  auto first = static_cast<std::uint32_t>(count - 1);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += Draw::kThreads) {
    if (sums[i] > target) {
      first = min(first, static_cast<std::uint32_t>(i));
      break;
    }
  }
  return static_cast<int>(block_min(first, draw));
}

}  // namespace touchstone::sampling
