// What the CUDA kernels of softmax_topk and sample share: keys, the values of a row, its outputs.
#pragma once

#include <cstdint>

#include "cuda/hopper.cuh"
#include "cuda/vector.cuh"
#include "ops/softmax_topk/topk.h"
#include "touchstone/ops/softmax_topk.h"

namespace touchstone::topk {

inline constexpr float kLn2 = 0.693147180559945309F;
inline constexpr double kLn2InDouble = 0.693147180559945309417;
inline constexpr double kLog2E = 1.44269504088896340736;

__device__ inline float infinity() { return __int_as_float(0x7f800000); }
__device__ inline float not_a_number() { return __int_as_float(0x7fffffff); }

// A word that grows with the value; -0 and +0 give one word. Not for NaN.
__device__ inline std::uint32_t ordered(float value) {
  const std::uint32_t bits = __float_as_uint(value + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float unordered(std::uint32_t word) {
  return __uint_as_float((word & 0x80000000U) != 0 ? word & 0x7fffffffU : ~word);
}

// Larger keys come first in (value descending, token ascending). No key is 0.
using Key = unsigned long long;
__device__ inline Key key_of(float value, std::uint32_t token) {
  return static_cast<Key>(ordered(value)) << 32 | static_cast<std::uint32_t>(~token);
}
__device__ inline float value_of(Key key) {
  return unordered(static_cast<std::uint32_t>(key >> 32));
}
__device__ inline std::uint32_t token_of(Key key) { return ~static_cast<std::uint32_t>(key); }

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// NaN when either is.
__device__ inline float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// Of the lanes of a warp; not for NaN.
__device__ inline float warp_max(float value) {
  const auto flipped = [](int bits) { return bits ^ (bits >> 31 & 0x7fffffff); };
  return __int_as_float(flipped(__reduce_max_sync(~0U, flipped(__float_as_int(value)))));
}

// Blocks that start together read together and end together, and nothing is read while they do. Of
// many rows, those of the first half of the first wave start some time before the others.
struct HeadStart {
  unsigned blocks = 0;       // that have one
  unsigned late_blocks = 0;  // after them
  unsigned nanoseconds = 0;
};
__device__ inline void give_head_start(const HeadStart& head_start) {
  if (blockIdx.x - head_start.blocks >= head_start.late_blocks) return;
  const auto now = [] {
    unsigned long long time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
  };
  const unsigned long long start = now();
  while (now() - start < head_start.nanoseconds) __nanosleep(100);
}

// One row: logits + bias in f32, -inf where the token is not allowed. Scans take any such type.
template <class T>
struct RowValues {
  using Logit = T;
  const T* logits;
  const float* bias;             // null = none
  const std::uint32_t* allowed;  // null = all

  __device__ float adjusted(float logit, std::int64_t token) const {
    if (bias != nullptr) logit += __ldg(bias + token);
    if (allowed != nullptr && (__ldg(allowed + token / 32) >> (token % 32) & 1U) == 0) {
      return -infinity();
    }
    return logit;
  }
  __device__ float operator()(std::int64_t token) const {
    return adjusted(cuda::widen(logits[token]), token);
  }

  // The same for kN tokens from this one on, which is a multiple of kN. Those past the end are -inf
  // and stay so.
  template <int kN>
  __device__ void adjust(float (&values)[kN], int token, int vocabulary) const {
    if (bias != nullptr) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        if (token + i < vocabulary) values[i] += __ldg(bias + token + i);
      }
    }
    if (allowed != nullptr && token < vocabulary) {
      const std::uint32_t bits = __ldg(allowed + token / 32) >> (token % 32);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        if ((bits >> i & 1U) == 0) values[i] = -infinity();
      }
    }
  }
};

template <class T>
__device__ RowValues<T> values_of(const Topk& p, std::int64_t row) {
  return {static_cast<const T*>(p.logits) + row * p.logits_stride,
          p.bias == nullptr ? nullptr : p.bias + row * p.bias_stride,
          p.allowed == nullptr ? nullptr : p.allowed + row * p.allowed_stride};
}

// 1 / T of a row, or 0 where its temperature is none.
__device__ inline double inverse_temperature(const Topk& p, std::int64_t row) {
  double temperature = p.temperature_scale;
  if (p.temperature != nullptr) {
    const float own = p.temperature[row];
    temperature *= static_cast<double>(own);
    if (!(own > 0 && own < infinity() && temperature > 0)) return 0;
  }
  return 1 / temperature;
}

// log2(e) / T, or 0.
__device__ inline float exponent_scale(double inverse) {
  if (inverse == 0) return 0;
  const auto scale = static_cast<float>(kLog2E * inverse);
  return fminf(fmaxf(scale, 1.175494351e-38F), 3.402823466e38F);
}

// v * scale - reference is a difference of numbers that f32 holds to half a unit up to here.
inline constexpr float kLargeExponent = 0x1p24F;

// The sum of a row: sum of 2^(v * scale - reference).
struct RowSum {
  float reference;
  float sum;
};

__device__ inline void put_index(const Topk& p, std::int64_t at, std::int64_t token) {
  if (p.wide_indices) {
    static_cast<std::int64_t*>(p.indices)[at] = token;
  } else {
    static_cast<std::int32_t*>(p.indices)[at] = static_cast<std::int32_t>(token);
  }
}

// Place j of a row without an answer.
__device__ inline void put_nothing(const Topk& p, std::int64_t row, std::int64_t j) {
  const std::int64_t at = row * p.k + j;
  put_index(p, at, -1);
  p.probabilities[at] = not_a_number();
  if (p.log_probabilities != nullptr) p.log_probabilities[at] = not_a_number();
}

// What tokens weigh against the row's reference.
struct Weights {
  double inverse;  // 1 / T
  float scale;     // log2(e) / T
  float largest;   // value of the row
  RowSum row;
  bool huge;  // largest * scale is too large to be a reference: `row.reference` is `largest`

  // +inf tokens share the row: `row.sum` counts them.
  __device__ bool infinite() const { return largest == infinity(); }
  __device__ bool masked() const { return largest == -infinity(); }

  __device__ float exponent(float v) const {
    if (v == -infinity()) return v;
    if (infinite()) return v == infinity() ? 0.0F : -infinity();
    return huge ? (v - largest) * scale : fmaf(v, scale, -row.reference);
  }
  __device__ float weight(float v) const { return exp2f(exponent(v)); }

  // The logarithm of a sum of weights, as if they were against the largest value. In f64 like all
  // logarithms here: what they are added to may be large.
  __device__ double log_of_sum(float sum) const {
    const double against_largest =
        huge ? 0.0
             : static_cast<double>(row.reference) -
                   static_cast<double>(largest) * static_cast<double>(scale);
    return static_cast<double>(logf(sum)) + against_largest * kLn2InDouble;
  }
  __device__ float log_sum_exp() const {
    if (masked() || infinite()) return largest;
    return static_cast<float>(static_cast<double>(largest) * inverse + log_of_sum(row.sum));
  }
  // Of a token's share of `total`.
  __device__ float log_probability(float v, float total) const {
    if (v == -infinity() || (infinite() && v != infinity())) return -infinity();
    const double distance =
        v == largest ? 0.0 : (static_cast<double>(v) - static_cast<double>(largest)) * inverse;
    return static_cast<float>(distance -
                              (infinite() ? static_cast<double>(logf(total)) : log_of_sum(total)));
  }
};

// Place j of a row: `total` is the sum that its weights are divided by.
__device__ inline void put_place(const Topk& p, std::int64_t row, std::int64_t j, float value,
                                 std::uint32_t token, const Weights& weights, float total) {
  const std::int64_t at = row * p.k + j;
  put_index(p, at, token);
  p.probabilities[at] = weights.masked() ? 0.0F : weights.weight(value) / total;
  if (p.log_probabilities != nullptr) {
    p.log_probabilities[at] = weights.log_probability(value, total);
  }
}
__device__ inline void put_place(const Topk& p, std::int64_t row, std::int64_t j, Key key,
                                 const Weights& weights, float total) {
  put_place(p, row, j, value_of(key), token_of(key), weights, total);
}

}  // namespace touchstone::topk
