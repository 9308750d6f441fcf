// What a block of cached_attention on the tensor cores has in shared memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <type_traits>

#include "ops/attention_paged/cuda/paged_section_loader.cuh"

namespace touchstone::paged_attention {

inline constexpr int kVectors = 8;
inline constexpr int kParts = 3;  // of a query

// The same, but as an address that is kept in a register. Otherwise it is found out anew wherever
// it is used, from what takes long to read.
template <class T>
__device__ T& keep_address(T& x) {
  std::uint32_t address = cuda::shared_address(&x);
  asm volatile("" : "+r"(address));
  return *static_cast<T*>(__cvta_shared_to_generic(address));
}

template <class Keys_, class Values_, int kDim_>
struct alignas(128) TensorCoreShared {
  using Keys = Keys_;
  using Values = Values_;
  static constexpr int kDim = kDim_;
  static constexpr int kMaxVectors = kVectors;
  static constexpr int kRowBytes = std::max(Keys::kRowBytes, Values::kRowBytes);
  static constexpr int kScaleBytes = std::max(Keys::kScaleBytes, Values::kScaleBytes);
  static constexpr int kChunk = tokens_of_chunk(kRowBytes);
  // A split of short vectors has more of them: what it costs besides is the same.
  static constexpr int kSplit =
      Keys::kHalf ? tuning::kQuantizedSplit : paged_attention::kSplit * 256 / kRowBytes;
  static constexpr bool kRunList = true;

  // Keys or values of a chunk and their scales.
  struct alignas(128) Slot {
    std::byte rows[kChunk * kRowBytes];
    std::byte scales[kChunk * std::max(kScaleBytes, 1)];
  };
  // Four CTAs fit on an SM.
  static constexpr int kSlots =
      std::clamp(tuning::kPipelineBytes / static_cast<int>(sizeof(Slot)), 3, 8);

  // What a warp copies ahead: in turns keys and values.
  struct alignas(128) Ring {
    Slot slots[kSlots];
  };

  // The query as operands of four registers where shared memory allows it: otherwise two operands
  // share them (QueryPair).
  static constexpr bool kWholeOperands = Keys::kRowBytes < 128;

  // Scales of a chunk, of keys as floats, of values and their minima as f16.
  static constexpr int kScratch =
      kChunk * std::max(Keys::kScaling == Scaling::kGrouped ? Keys::kGroups : 0,
                        Values::kScaling == Scaling::kGrouped ? 4 : 0);
  struct alignas(16) Scratch {
    float of_warp[kWarps][std::max(kScratch, 1)];
  };

  // What a warp leaves in its ring in the end.
  struct Sums {
    float values[kVectors][kDim];
    float largest[kVectors];
    float weights[kVectors];
    float factor[kVectors];  // that brings it under the largest of all warps
  };
  static_assert(sizeof(Ring) >= sizeof(Sums));
  __device__ Sums& sums(int warp) { return reinterpret_cast<Sums&>(ring[warp]); }

  // A query that is bf16 has one part.
  static constexpr std::int64_t bytes(bool exact) {
    return static_cast<std::int64_t>(exact ? offsetof(TensorCoreShared, rest)
                                           : sizeof(TensorCoreShared));
  }

  union {
    Ring ring[kWarps];
    float query[kVectors][kDim];  // before anything is copied
  };
  union {
    CompactPageSlot runs[kSplit / kRun];
    std::uint16_t positions[kSplit];
  };
  SectionBase bases[2];  // of keys and values
  TokenList list;
  int counts[4 * kWarps];
  Scratch scratch;
  float query_sums[kVectors][kWarps];  // over each kGroup numbers
  float maxima[kVectors][kWarps];      // of magnitudes of parts of the query
  // Of every lane: what scales and minima of a key are multiplied with, two f16 parts.
  uint2 key_offsets[Keys::kScaling == Scaling::kGrouped ? 32 : 1];
  float multipliers[kVectors];  // of scores
  float factors[kVectors];
  std::int64_t targets[kVectors];
  QueryInfo info;
  uint4 first_part[kDim / (kWholeOperands ? 16 : 32)][32];  // of the query, as operands
  uint2 rest[kParts - 1][kDim / 16][32];
};

// Scores of keys with groups are kept times 2^-kScoreExponent, beside what is to be multiplied with
// a key's scales and minima in f16.
template <class Shared>
inline constexpr int kScoreExponent = Shared::Keys::kScaling == Scaling::kGrouped ? 11 : 0;

// Whether the query has one part.
TOUCHSTONE_HOST_DEVICE inline bool is_exact(const PagedAttentionProblem& p) {
  return p.q_dtype == DType::bf16 && !p.layers.rotate_keys;
}

__device__ inline std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}
__device__ inline float low_bf16(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_bf16(std::uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000U);
}

__device__ inline std::uint32_t pack_f16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

// Two numbers as bf16 or f16.
template <bool kHalf>
__device__ std::uint32_t pack_pair(float low, float high) {
  return kHalf ? pack_f16(low, high) : pack_bf16(low, high);
}
// And what is left of them.
template <bool kHalf>
__device__ std::uint32_t take_pair(float& low, float& high) {
  const std::uint32_t pair = pack_pair<kHalf>(low, high);
  low = __fsub_rn(low, kHalf ? low_f16(pair) : low_bf16(pair));
  high = __fsub_rn(high, kHalf ? high_f16(pair) : high_bf16(pair));
  return pair;
}

TOUCHSTONE_HOST_DEVICE constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(127 + exponent) << 23);
}

}  // namespace touchstone::paged_attention
