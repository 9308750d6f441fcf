// A segment of a row in the registers of a warp, 16 or 32 tokens per lane: lane l has the vectors
// l, l + 32, .. of it, by token and not by address, so that nothing depends on alignment.
#pragma once

#include <type_traits>

#include "ops/softmax_topk/topk_cuda.cuh"

namespace touchstone::topk {

template <class T>
__device__ std::uint32_t lowest_pair();
template <>
__device__ inline std::uint32_t lowest_pair<float>() {
  return 0xff800000U;
}
template <>
__device__ inline std::uint32_t lowest_pair<Bf16>() {
  return 0xff80ff80U;
}
template <>
__device__ inline std::uint32_t lowest_pair<F16>() {
  return 0xfc00fc00U;
}

// The larger of each element of two words; NaN when either is.
template <class T>
__device__ std::uint32_t packed_max(std::uint32_t a, std::uint32_t b) {
  std::uint32_t y;
  if constexpr (sizeof(T) == 4) {
    y = __float_as_uint(max_nan(__uint_as_float(a), __uint_as_float(b)));
  } else if constexpr (std::is_same_v<T, Bf16>) {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  }
  return y;
}

// Loads the part of a lane of the segment that starts at token `first`: its j-th vector starts at
// token first + (j * 32 + lane) * kN. Tokens past the end are -inf.
template <class T, int kVectors>
class SegmentLoader {
 public:
  static constexpr int kN = cuda::kPerVector<T>;

  __device__ SegmentLoader(const T* row_start, std::int64_t tokens)
      : row(reinterpret_cast<const unsigned char*>(row_start)),
        bytes(tokens * static_cast<std::int64_t>(sizeof(T))),
        misaligned(static_cast<int>(reinterpret_cast<std::uintptr_t>(row_start) % 16)) {}

  __device__ void load(std::int64_t first, int lane, uint4 (&out)[kVectors]) const {
    const std::int64_t begin = first * static_cast<std::int64_t>(sizeof(T)) + lane * 16;
    constexpr std::int64_t kSpan = kVectors * 512;
    const std::int64_t segment = begin - lane * 16;
    // With a margin of a vector on both sides for rows off the 16-byte grid.
    const bool inside =
        misaligned == 0 ? segment + kSpan <= bytes : segment >= 16 && segment + kSpan + 16 <= bytes;
    if (inside) {
      if (misaligned == 0) return load_aligned(begin, out);
      switch (misaligned / 4) {
        case 0:
          return load_shifted<0>(begin, out);
        case 1:
          return load_shifted<1>(begin, out);
        case 2:
          return load_shifted<2>(begin, out);
        default:
          return load_shifted<3>(begin, out);
      }
    }
    load_edge(begin, out);
  }

 private:
  __device__ static uint4 fetch(const unsigned char* at) {
    return __ldcs(reinterpret_cast<const uint4*>(at));
  }

  __device__ void load_aligned(std::int64_t begin, uint4 (&out)[kVectors]) const {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) out[j] = fetch(row + begin + j * 512);
  }

  // A vector off the grid is put together from the two that it lies in; kWord of the first one's
  // words are not of it.
  template <int kWord>
  __device__ void load_shifted(std::int64_t begin, uint4 (&out)[kVectors]) const {
    const unsigned char* at = row + begin - misaligned;
    const unsigned bits = static_cast<unsigned>(misaligned % 4) * 8;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const uint4 a = __ldg(reinterpret_cast<const uint4*>(at + j * 512));
      const uint4 b = __ldg(reinterpret_cast<const uint4*>(at + j * 512 + 16));
      const std::uint32_t words[9] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, 0};
      out[j] = {__funnelshift_r(words[kWord], words[kWord + 1], bits),
                __funnelshift_r(words[kWord + 1], words[kWord + 2], bits),
                __funnelshift_r(words[kWord + 2], words[kWord + 3], bits),
                __funnelshift_r(words[kWord + 3], words[kWord + 4], bits)};
    }
  }

  // Word by word, and at the ends element by element, where a vector is not wholly in the row.
  __device__ void load_edge(std::int64_t begin, uint4 (&out)[kVectors]) const {
    const unsigned bits = static_cast<unsigned>(misaligned % 4) * 8;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const std::int64_t at = begin + j * 512;
      if (misaligned == 0 && at + 16 <= bytes) {
        out[j] = fetch(row + at);
        continue;
      }
      std::uint32_t words[5];
#pragma unroll
      for (int w = 0; w < 5; ++w) words[w] = word_at(at - misaligned % 4 + 4 * w);
      out[j] = {
          __funnelshift_r(words[0], words[1], bits), __funnelshift_r(words[1], words[2], bits),
          __funnelshift_r(words[2], words[3], bits), __funnelshift_r(words[3], words[4], bits)};
    }
  }

  // The aligned word at byte `at` of the row, with -inf for what is not of the row.
  __device__ std::uint32_t word_at(std::int64_t at) const {
    if (at >= 0 && at + 4 <= bytes) return *reinterpret_cast<const std::uint32_t*>(row + at);
    std::uint32_t word = lowest_pair<T>();
    if constexpr (sizeof(T) == 2) {
      const auto half = [&](std::int64_t byte) -> std::uint32_t {
        return *reinterpret_cast<const std::uint16_t*>(row + byte);
      };
      if (at >= 0 && at + 2 <= bytes) word = (word & 0xffff0000U) | half(at);
      if (at + 2 >= 0 && at + 4 <= bytes) word = (word & 0xffffU) | half(at + 2) << 16;
    }
    return word;
  }

  const unsigned char* row;
  std::int64_t bytes;
  int misaligned;
};

// kPlain: the values are the logits, held as they come. Else they are f32, with bias and mask.
template <class T, bool kPlain>
struct Segment;

template <class T>
struct Segment<T, true> {
  static constexpr int kN = cuda::kPerVector<T>;
  static constexpr int kVectors = 4;
  static constexpr int kTokens = 32 * kVectors * kN;
  using Loader = SegmentLoader<T, kVectors>;

  uint4 packed[kVectors];

  template <class Values>
  __device__ void load(const Loader& loader, const Values& /*row*/, std::int64_t first,
                       std::int64_t /*vocabulary*/, int lane) {
    loader.load(first, lane, packed);
  }

  // Of one of kParts parts of the lane's tokens. NaN when one of them is.
  template <int kParts>
  __device__ float largest(int part) const {
    constexpr int kEach = kVectors / kParts;
    std::uint32_t m = lowest_pair<T>();
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (j / kEach != part) continue;
      m = packed_max<T>(m, packed_max<T>(packed_max<T>(packed[j].x, packed[j].y),
                                         packed_max<T>(packed[j].z, packed[j].w)));
    }
    float pair[kN];
    cuda::unpack_as<T>({m, m, m, m}, pair);
    return sizeof(T) == 4 ? pair[0] : max_nan(pair[0], pair[1]);
  }

  // Of 2^(v * scale - reference).
  __device__ float sum(float scale, float reference) const {
    float sums[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      float v[kN];
      cuda::unpack_as<T>(packed[j], v);
#pragma unroll
      for (int i = 0; i < kN; ++i) sums[i % 2] += exp2_fast(fmaf(v[i], scale, -reference));
    }
    return sums[0] + sums[1];
  }
};

template <class T>
struct Segment<T, false> {
  static constexpr int kN = cuda::kPerVector<T>;
  static constexpr int kValues = 16;
  static constexpr int kVectors = kValues / kN;
  static constexpr int kTokens = 32 * kValues;
  using Loader = SegmentLoader<T, kVectors>;

  float v[kValues];

  template <class Values>
  __device__ void load(const Loader& loader, const Values& row, std::int64_t first,
                       std::int64_t vocabulary, int lane) {
    uint4 packed[kVectors];
    loader.load(first, lane, packed);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      float part[kN];
      cuda::unpack_as<T>(packed[j], part);
      const std::int64_t token = first + static_cast<std::int64_t>(j * 32 + lane) * kN;
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        v[j * kN + i] = token + i < vocabulary ? row.adjusted(part[i], token + i) : -infinity();
      }
    }
  }

  template <int kParts>
  __device__ float largest(int part) const {
    float m = -infinity();
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      if (i / (kValues / kParts) == part) m = max_nan(m, v[i]);
    }
    return m;
  }

  __device__ float sum(float scale, float reference) const {
    float sums[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kValues; ++i) sums[i % 2] += exp2_fast(fmaf(v[i], scale, -reference));
    return sums[0] + sums[1];
  }
};

}  // namespace touchstone::topk
