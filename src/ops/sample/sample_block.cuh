// Sums and searches by a whole block, for draws. Masses are integers: their sums are the same in
// any order, so that neither the way a row takes nor the size of its block shows.
#pragma once

#include <type_traits>

#include "ops/sample/sample_values.cuh"
#include "ops/softmax_topk/topk_finish.cuh"

namespace touchstone::sampling {

using topk::Key;
using topk::RowSum;
using topk::ScanShape;
using topk::ScanShared;
using topk::Weights;

// Of a row, from before its scan until its end: in shared memory behind the scan's.
struct alignas(16) RowState {
  RowControls controls;
  double inverse;  // 1 / T
  double uniform;
  Weights weights;       // for draws that take the block
  std::int32_t settled;  // whether the first warp has drawn
  std::int32_t places;   // that are put in order
};

// A weight of 1 is 2^42. The sum of as many weights as a scan takes tokens, 2^21, fits.
using Mass = unsigned long long;
inline constexpr double kMassOfOne = 0x1p42;

// What draws need in shared memory, in the place where the scan's selection had its counts.
template <int kBlockThreads>
struct alignas(16) DrawShared {
  static constexpr int kThreads = kBlockThreads;
  static constexpr int kWarps = kThreads / 32;

  // Of each warp.
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
  // A histogram of keys, and the bin that a search goes on in.
  std::uint32_t chosen;
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

template <class Memory>
__device__ DrawShared<Memory::kThreads>& draw_shared(Memory& shared) {
  static_assert(sizeof(DrawShared<Memory::kThreads>) <= sizeof(shared.select));
  return *reinterpret_cast<DrawShared<Memory::kThreads>*>(&shared.select);
}

// The sum of the values of this lane and all before it.
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

// The sum of the values of this thread and all before it; `total` is that of all threads.
template <int kWarps, class Number>
__device__ Number block_prefix(Number value, Number (&warp_sums)[kWarps], Number& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  value = warp_prefix(value);
  __syncthreads();  // everyone is done with the last use
  if (lane == 31) warp_sums[warp] = value;
  __syncthreads();
  if constexpr (kWarps > 8) {  // a lane for each
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

// The distribution that draws are made from: the largest value weighs 1.
struct Distribution {
  float largest;
  double inverse;  // 1 / T

  // Out of line where it is not waited for.
  __device__ double weight_at_once(float value) const {
    // Also where the largest is infinite.
    if (value == largest) return 1;
    return exp((static_cast<double>(value) - static_cast<double>(largest)) * inverse);
  }
  __device__ __noinline__ double weight(float value) const { return weight_at_once(value); }
  __device__ Mass mass(float value) const { return mass_of(weight(value)); }
};

// The mass that a prefix must have to be the share `top_p` of `base`.
__device__ inline Mass needed_mass(float top_p, Mass base) {
  const auto needed =
      static_cast<Mass>(ceil(static_cast<double>(top_p) * static_cast<double>(base)));
  return min(max(needed, Mass{1}), base);
}

// The mass that the running sum has to exceed at the token that is drawn.
__device__ inline Mass drawn_mass(double u, Mass kept) {
  return min(static_cast<Mass>(u * static_cast<double>(kept)), kept - 1);
}

// Tokens that a thread loads before it looks at the first.
inline constexpr int kLoadedTogether = 16;

// The values of the tokens first, first + step, .., which are -inf behind the end. Out of line and
// for any dtype: what reads rows again is rare, and there is much of it.
__device__ __noinline__ inline void load_values(const AnyValues& values, int first, int step,
                                                int end, float (&to)[kLoadedTogether]) {
  const auto load_all = [&]<class T>(const T* logits) {
#pragma unroll
    for (int i = 0; i < kLoadedTogether; ++i) {
      const int token = first + i * step;
      to[i] = token < end ? cuda::widen(logits[token]) : -topk::infinity();
    }
  };
  if (values.dtype == DType::f32) {
    load_all(static_cast<const float*>(values.logits));
  } else if (values.dtype == DType::bf16) {
    load_all(static_cast<const Bf16*>(values.logits));
  } else {
    load_all(static_cast<const F16*>(values.logits));
  }
  if (values.bias == nullptr && values.allowed == nullptr && values.table == nullptr) return;
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
      if (loaded[i] > -topk::infinity()) visit(loaded[i], first + i * kThreads);
    }
  }
}

// Leaves the running sums of masses at `sums`.
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

// The first of `count` places where the running sum exceeds `target`, which is less than the last.
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
