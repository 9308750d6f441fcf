// What the CUDA kernels of kv_append share.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cache/codec.h"
#include "cuda/vector.cuh"
#include "ops/kv_append/kv_append_problem.h"
#include "ops/kv_append/kv_append_tuning.h"

namespace touchstone::inline v0::cache {

using tuning::kThreads;
inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffff;

// What one launch does: some of the tokens, so that counts fit in 32 bits.
struct Slice {
  KvAppendProblem p;
  std::int64_t first_token;
  unsigned tokens;
};

// Tokens per launch, where a token takes `per_token` threads or warps.
inline std::int64_t tokens_per_launch(std::int64_t per_token) {
  return tuning::kMaxThreadsPerLaunch / per_token;
}

__device__ inline void join(GroupExtremes& of, const GroupExtremes& by) {
  of.magnitude_bits = max(of.magnitude_bits, by.magnitude_bits);
  of.least = fminf(of.least, by.least);
  of.most = fmaxf(of.most, by.most);
}

// Over lanes whose numbers differ in the bits below `lanes`, a power of two.
__device__ inline void join_lanes(GroupExtremes& of, unsigned lanes) {
  for (unsigned offset = lanes / 2; offset > 0; offset /= 2) {
    const GroupExtremes other{__shfl_xor_sync(kAllLanes, of.magnitude_bits, offset),
                              __shfl_xor_sync(kAllLanes, of.least, offset),
                              __shfl_xor_sync(kAllLanes, of.most, offset)};
    join(of, other);
  }
}

// CUDA's own conversions have another NaN than the format.
template <class T>
__device__ std::uint32_t stored_bits(float x) {
  constexpr std::uint32_t kNan = std::is_same_v<T, Bf16> ? 0x7fc0 : 0x7e00;
  return x == x ? cuda::narrow<T>(x).bits : kNan;
}

}  // namespace touchstone::inline v0::cache
