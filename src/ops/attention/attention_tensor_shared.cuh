// What a block of cached_attention on the tensor cores has in shared memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "ops/attention/attention_source.cuh"

namespace touchstone::attend {

inline constexpr int kVectors = 8;
inline constexpr int kParts = 3;  // of a query

template <class Keys_, class Values_, int kDim_>
struct alignas(128) TensorShared {
  using Keys = Keys_;
  using Values = Values_;
  static constexpr int kDim = kDim_;
  static constexpr int kMostVectors = kVectors;
  static constexpr int kRowBytes = std::max(Keys::kRowBytes, Values::kRowBytes);
  static constexpr int kScaleBytes = std::max(Keys::kScaleBytes, Values::kScaleBytes);
  static constexpr int kChunk = tokens_of_chunk(kRowBytes);
  // A split of short vectors has more of them: what it costs besides is the same.
  static constexpr int kSplit = std::min(attend::kSplit * 256 / kRowBytes, 2048);
  static constexpr bool kRunList = true;

  // Keys or values of a chunk and their scales.
  struct alignas(128) Slot {
    std::byte rows[kChunk * kRowBytes];
    std::byte scales[kChunk * std::max(kScaleBytes, 1)];
  };
  // Four blocks shall have room on a multiprocessor.
  static constexpr int kSlots = std::clamp(12672 / static_cast<int>(sizeof(Slot)), 3, 8);

  // What a warp copies ahead: in turns keys and values.
  struct alignas(128) Ring {
    Slot slots[kSlots];
  };

  // Four registers that are an operand as they are, where there is room for it.
  static constexpr bool kWholeOperands = Keys::kRowBytes < 128;
  using QueryPart = std::conditional_t<kWholeOperands, uint4, uint2>;

  // Scales and minima of a chunk as floats.
  static constexpr int kScratch =
      kChunk * std::max(Keys::kScaling == Scaling::kGrouped ? Keys::kGroups : 0,
                        Values::kScaling == Scaling::kGrouped ? 2 * Values::kGroups : 0);
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
    return static_cast<std::int64_t>(exact ? offsetof(TensorShared, rest) : sizeof(TensorShared));
  }

  union {
    Ring ring[kWarps];
    float query[kVectors][kDim];  // before anything is copied
  };
  union {
    ShortPlace runs[kSplit / kRun];
    std::uint16_t positions[kSplit];
  };
  SectionBase bases[2];  // of keys and values
  TokenList list;
  int counts[4 * kWarps];
  Scratch scratch;
  float query_sums[kVectors][Keys::kGroups];
  // Of every lane: what scales and minima of a key are multiplied with, two f16 parts.
  uint2 key_offsets[Keys::kScaling == Scaling::kGrouped ? 32 : 1];
  float shrinks[kVectors];      // powers of two that the query was multiplied with
  float multipliers[kVectors];  // of scores, to undo it and for `scale`
  float factors[kVectors];
  std::int64_t targets[kVectors];
  Known known;
  QueryPart first_part[kDim / 16][32];  // of the query, as operands
  uint2 rest[kParts - 1][kDim / 16][32];
};

// Whether the query has one part.
TOUCHSTONE_HOST_DEVICE inline bool is_exact(const CachedAttention& p) {
  return p.query_dtype == DType::bf16 && !p.layers.rotate_keys;
}

__device__ inline std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}
__device__ inline float low_bf16(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_bf16(std::uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000U);
}

// Two numbers as bf16, and what is left of them.
__device__ inline std::uint32_t take_bf16(float& low, float& high) {
  const std::uint32_t pair = pack_bf16(low, high);
  low = __fsub_rn(low, low_bf16(pair));
  high = __fsub_rn(high, high_bf16(pair));
  return pair;
}

}  // namespace touchstone::attend
