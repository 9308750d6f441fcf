// Sums and searches by a whole block, for draws. Masses are integers: their sums are the same in
// any order, so that neither the way a row takes nor the size of its block shows.
#pragma once

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
};

// A weight of 1 is 2^42. The sum of as many weights as a scan takes tokens, 2^21, fits.
using Mass = unsigned long long;
inline constexpr double kMassOfOne = 0x1p42;

// What draws need in shared memory, in the place where the scan's selection had its counts.
template <int kBlockThreads>
struct alignas(16) DrawShared {
  static constexpr int kThreads = kBlockThreads;
  static constexpr int kWarps = kThreads / 32;

  Mass masses[kWarps];
  std::uint32_t least[kWarps];
  // A histogram of keys, and the bin that a search goes on in.
  std::uint32_t chosen;
  std::uint32_t within;
  Mass above_count;
  Mass above_mass;
  Mass bin_mass[kThreads];
  std::uint32_t bin_count[kThreads];
};

template <class Memory>
__device__ DrawShared<Memory::kThreads>& draw_shared(Memory& shared) {
  static_assert(sizeof(DrawShared<Memory::kThreads>) <= sizeof(shared.select));
  return *reinterpret_cast<DrawShared<Memory::kThreads>*>(&shared.select);
}

// The sum of the values of this thread and all before it; `total` is that of all threads.
template <int kWarps, class Number>
__device__ Number block_prefix(Number value, Number (&warp_sums)[kWarps], Number& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Number before = __shfl_up_sync(~0U, value, step);
    if (lane >= step) value += before;
  }
  __syncthreads();  // everyone is done with the last use
  if (lane == 31) warp_sums[warp] = value;
  __syncthreads();
  Number base = 0;
  total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    if (i == warp) base = total;
    total += warp_sums[i];
  }
  return base + value;
}

template <class Draw>
__device__ std::uint32_t block_min(std::uint32_t value, Draw& draw) {
  value = __reduce_min_sync(~0U, value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) draw.least[threadIdx.x / 32] = value;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < Draw::kWarps; ++i) value = min(value, draw.least[i]);
  return value;
}

__device__ inline Mass mass_of(double weight) { return __double2ull_rn(weight * kMassOfOne); }

// The distribution that draws are made from: the largest value weighs 1.
struct Distribution {
  float largest;
  double inverse;  // 1 / T

  __device__ __noinline__ double weight(float value) const {
    // Also where the largest is infinite.
    if (value == largest) return 1;
    return exp((static_cast<double>(value) - static_cast<double>(largest)) * inverse);
  }
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

// Sixteen bytes of a row, of which elements are taken off one by one. A loop over elements that is
// not unrolled: what is done with each may be long.
struct Elements {
  uint4 words;

  __device__ float pop(DType dtype) {
    const std::uint32_t word = words.x;
    if (dtype == DType::f32) {
      words = {words.y, words.z, words.w, 0};
      return __uint_as_float(word);
    }
    words = {__funnelshift_r(words.x, words.y, 16), __funnelshift_r(words.y, words.z, 16),
             __funnelshift_r(words.z, words.w, 16), words.w >> 16};
    const auto bits = static_cast<std::uint16_t>(word);
    return dtype == DType::bf16 ? cuda::widen(Bf16::from_bits(bits))
                                : cuda::widen(F16::from_bits(bits));
  }
};

// Calls visit(value, token) for the tokens above -inf, in any order, with a few vectors of each
// thread on their way.
template <int kThreads, class Visit>
__device__ void for_each_value(const AnyValues& values, std::int64_t vocabulary,
                               const Visit& visit) {
  constexpr int kBatch = 4;
  const int size = values.dtype == DType::f32 ? 4 : 2;
  const int each = 16 / size;
  const auto tokens = static_cast<int>(vocabulary);
  // Vectors on the grid: the first and the last may have elements that are not of the row.
  const auto* const row = static_cast<const unsigned char*>(values.logits);
  const int off = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) % 16) / size;
  const auto* const grid = reinterpret_cast<const uint4*>(row - off * size);
  const int vectors = (off + tokens + each - 1) / each;
  for (int first = static_cast<int>(threadIdx.x); first < vectors; first += kBatch * kThreads) {
    Elements batch[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int vector = first + b * kThreads;
      const int token = vector * each - off;
      if (token >= 0 && token + each <= tokens) batch[b].words = __ldcs(grid + vector);
    }
#pragma unroll 1
    for (int b = 0; b < kBatch; ++b) {
      Elements elements = b == 0 ? batch[0] : b == 1 ? batch[1] : b == 2 ? batch[2] : batch[3];
      const int begin = (first + b * kThreads) * each - off;
      const bool whole = begin >= 0 && begin + each <= tokens;
#pragma unroll 1
      for (int token = max(begin, 0); token < min(begin + each, tokens); ++token) {
        const float logit =
            whole ? elements.pop(values.dtype) : cuda::load_any(row, values.dtype, token);
        const float value = values.adjusted(logit, token);
        if (value > -topk::infinity()) visit(value, token);
      }
    }
  }
}

// Masses and their running sums, in the scan's room for candidates.
struct Prefix {
  Mass* sums;
  Mass* masses;
};

template <class MassAt, class Draw>
__device__ void add_up(int count, const MassAt& mass_at, const Prefix& prefix, Draw& draw) {
  Mass before = 0;
  for (int first = 0; first < count; first += Draw::kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const Mass mass = i < count ? mass_at(i) : 0;
    Mass total = 0;
    const Mass sum = block_prefix(mass, draw.masses, total);
    if (i < count) {
      prefix.sums[i] = before + sum;
      prefix.masses[i] = mass;
    }
    before += total;
  }
  __syncthreads();
}

// The first of `count` places where the running sum exceeds `target`, which is less than the last.
template <class Draw>
__device__ int pick(int count, Mass target, const Prefix& prefix, Draw& draw) {
  auto first = static_cast<std::uint32_t>(count - 1);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += Draw::kThreads) {
    if (prefix.sums[i] > target) {
      first = min(first, static_cast<std::uint32_t>(i));
      break;
    }
  }
  return static_cast<int>(block_min(first, draw));
}

}  // namespace touchstone::sampling
