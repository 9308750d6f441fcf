// Element types on the device, and the 16-byte vectors they travel in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "touchstone/core/dtype.h"

namespace touchstone::cuda {

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(Bf16 value) {
  return __uint_as_float(static_cast<std::uint32_t>(value.bits) << 16);
}
__device__ inline float widen(F16 value) { return __half2float(__ushort_as_half(value.bits)); }

template <class T>
__device__ T narrow(float value);
template <>
__device__ inline float narrow<float>(float value) {
  return value;
}
template <>
__device__ inline Bf16 narrow<Bf16>(float value) {
  return Bf16::from_bits(__bfloat16_as_ushort(__float2bfloat16_rn(value)));
}
template <>
__device__ inline F16 narrow<F16>(float value) {
  return F16::from_bits(__half_as_ushort(__float2half_rn(value)));
}

// The value as it would be after a store and a load.
template <class T>
__device__ float rounded(float value) {
  return widen(narrow<T>(value));
}

// One element of a tensor whose dtype is known at run time only (weights: read once per block).
__device__ inline float load_any(const void* data, DType dtype, std::int64_t index) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[index];
  if (dtype == DType::bf16) return widen(static_cast<const Bf16*>(data)[index]);
  return widen(static_cast<const F16*>(data)[index]);
}

__device__ inline void store_any(void* data, DType dtype, std::int64_t index, double value) {
  // Straight from double, so that the result is rounded once.
  if (dtype == DType::f32) {
    static_cast<float*>(data)[index] = static_cast<float>(value);
  } else if (dtype == DType::bf16) {
    static_cast<Bf16*>(data)[index] = Bf16(value);
  } else {
    static_cast<F16*>(data)[index] = F16(value);
  }
}

template <class T>
inline constexpr int kPerVector = 16 / static_cast<int>(sizeof(T));

__device__ inline void unpack(const uint4& vector, float (&out)[4], float /*type*/) {
  out[0] = __uint_as_float(vector.x);
  out[1] = __uint_as_float(vector.y);
  out[2] = __uint_as_float(vector.z);
  out[3] = __uint_as_float(vector.w);
}
__device__ inline void unpack(const uint4& vector, float (&out)[8], Bf16 /*type*/) {
  const std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __uint_as_float(words[i] << 16);
    out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
  }
}
__device__ inline void unpack(const uint4& vector, float (&out)[8], F16 /*type*/) {
  const std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
    out[2 * i] = pair.x;
    out[2 * i + 1] = pair.y;
  }
}

__device__ inline uint4 pack(const float (&in)[4], float /*type*/) {
  return {__float_as_uint(in[0]), __float_as_uint(in[1]), __float_as_uint(in[2]),
          __float_as_uint(in[3])};
}
__device__ inline uint4 pack(const float (&in)[8], Bf16 /*type*/) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(in[2 * i], in[2 * i + 1]);
    words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  return {words[0], words[1], words[2], words[3]};
}
__device__ inline uint4 pack(const float (&in)[8], F16 /*type*/) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __half2 pair = __floats2half2_rn(in[2 * i], in[2 * i + 1]);
    words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  return {words[0], words[1], words[2], words[3]};
}

template <class T>
__device__ void unpack_as(const uint4& vector, float (&out)[kPerVector<T>]) {
  unpack(vector, out, T{});
}
template <class T>
__device__ uint4 pack_as(const float (&in)[kPerVector<T>]) {
  return pack(in, T{});
}

// kCount consecutive values that no kernel in flight changes, on a 16-byte boundary.
template <class T, int kCount>
__device__ void load_floats(const T* from, float (&out)[kCount]) {
  constexpr int kN = kPerVector<T>;
  static_assert(kCount % kN == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += kN) {
    float part[kN];
    unpack_as<T>(__ldg(reinterpret_cast<const uint4*>(from + i)), part);
#pragma unroll
    for (int k = 0; k < kN; ++k) out[i + k] = part[k];
  }
}

}  // namespace touchstone::cuda
