// A segment of a row in the registers of a warp, 16 or 32 tokens per lane. Lane l owns the 16-byte
// vectors l, l + 32, .. counted from the row's first token, so nothing depends on alignment.
//
// Loads only issue: rows that are not 16-byte aligned are loaded at aligned addresses and realigned
// by shuffles when the data is needed.
#pragma once

#include <type_traits>

#include "ops/selection/row_values.cuh"

namespace touchstone::selection {

// -inf: one f32, or a pair of 16-bit values.
template <class T>
__device__ constexpr std::uint32_t minus_infinity_pair() {
  if constexpr (sizeof(T) == 4) return 0xff800000U;
  return std::is_same_v<T, Bf16> ? 0xff80ff80U : 0xfc00fc00U;
}

// Element-wise maximum; NaN if either operand is NaN.
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

// The bound rounded up to T in every element: v >= bound iff v >= the rounded bound.
template <class T>
__device__ std::uint32_t bound_pair(float least) {
  if constexpr (sizeof(T) == 4) {
    return __float_as_uint(least);
  } else if constexpr (std::is_same_v<T, Bf16>) {
    return __bfloat16_as_ushort(__float2bfloat16_ru(least)) * 0x10001U;
  } else {
    return __half_as_ushort(__float2half_ru(least)) * 0x10001U;
  }
}

// All ones in the half of each element that reaches the bound; f32: in the lower half.
template <class T>
__device__ std::uint32_t reaching_pair(std::uint32_t pair, std::uint32_t bound) {
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(pair) >= __uint_as_float(bound) ? 0xffffU : 0U;
  } else if constexpr (std::is_same_v<T, Bf16>) {
    return __hge2_mask(*reinterpret_cast<const __nv_bfloat162*>(&pair),
                       *reinterpret_cast<const __nv_bfloat162*>(&bound));
  } else {
    return __hge2_mask(*reinterpret_cast<const __half2*>(&pair),
                       *reinterpret_cast<const __half2*>(&bound));
  }
}

// Raw loads of a lane. Unaligned rows: lane 31 also needs the 16 bytes behind the segment.
template <int kVectors, bool kAligned16>
struct RawSegment {
  uint4 vectors[kVectors];
};
template <int kVectors>
struct RawSegment<kVectors, false> {
  uint4 vectors[kVectors];
  uint4 behind;
};

// Loads a lane's part of the segment that starts at token `first`: its j-th vector starts at token
// first + (j * 32 + lane) * kN. Tokens past the end are -inf. kAligned16: all rows start at
// multiples of 16 bytes.
template <class T, int kVectors, bool kAligned16>
class SegmentLoader {
 public:
  using Raw = RawSegment<kVectors, kAligned16>;

  // Row lengths in bytes fit 32 bits (kMaxSegments).
  __device__ SegmentLoader(const T* row_start, std::int64_t tokens)
      : row(reinterpret_cast<const unsigned char*>(row_start)),
        bytes(static_cast<int>(tokens) * static_cast<int>(sizeof(T))),
        misalignment(
            kAligned16 ? 0 : static_cast<int>(reinterpret_cast<std::uintptr_t>(row_start) % 16)) {}

  // Followed by realign() before the data is used.
  __device__ void load(int first, int lane, Raw& raw) const {
    const int segment = first * static_cast<int>(sizeof(T)) - misalignment;
    const int begin = segment + lane * 16;
    // Unaligned rows read one more vector on both sides.
    const bool inside =
        kAligned16 ? segment + kSpan <= bytes : segment >= 0 && segment + kSpan + 16 <= bytes;
    if (inside) {
      const unsigned char* const from = row + begin;
#pragma unroll
      for (int j = 0; j < kVectors; ++j) raw.vectors[j] = fetch(from + j * 512);
      if constexpr (!kAligned16) {
        if (lane == 31) raw.behind = fetch(from + (kVectors - 1) * 512 + 16);
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) raw.vectors[j] = whole(begin + j * 512);
    if constexpr (!kAligned16) raw.behind = whole(begin + (kVectors - 1) * 512 + 16);
      // The first and the last vector of a row may be partial.
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (is_part(begin + j * 512)) raw.vectors[j] = part(begin + j * 512);
    }
    if constexpr (!kAligned16) {
      const int at = begin + (kVectors - 1) * 512 + 16;
      if (is_part(at)) raw.behind = part(at);
    }
  }

  // Prefetches the segment to L2.
  __device__ void prefetch(int first, int lane) const {
    constexpr int kLine = 128;
    const int at = first * static_cast<int>(sizeof(T)) + lane * kLine;
    if (lane < kSpan / kLine && at < bytes) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(row + at));
    }
  }

  // The vector that starts at token `first`, a multiple of kN, realigned.
  __device__ uint4 vector(int first) const {
    const int at = first * static_cast<int>(sizeof(T)) - misalignment;
    if (kAligned16 || misalignment == 0) return any(at);
    const bool inside = at >= 0 && at + 32 <= bytes;
    const uint4 own = inside ? fetch(row + at) : any(at);
    const uint4 next = inside ? fetch(row + at + 16) : any(at + 16);
    switch (misalignment / 4) {
      case 0:
        return joined<0>(own, next);
      case 1:
        return joined<1>(own, next);
      case 2:
        return joined<2>(own, next);
      default:
        return joined<3>(own, next);
    }
  }

  // Realigns the vectors of an unaligned row.
  __device__ void realign(Raw& raw, int lane) const {
    if constexpr (!kAligned16) {
      switch (misalignment / 4) {
        case 0:
          return shift<0>(raw, lane);
        case 1:
          return shift<1>(raw, lane);
        case 2:
          return shift<2>(raw, lane);
        default:
          return shift<3>(raw, lane);
      }
    }
  }

 private:
  static constexpr int kSpan = kVectors * 512;

  // No L1 allocation: where shared memory leaves little L1, it would limit the loads in flight.
  __device__ static uint4 fetch(const unsigned char* at) {
    uint4 loaded;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w)
                 : "l"(at));
    return loaded;
  }

  // The vector at byte `at` of the row, or -inf if the row does not contain all of it.
  __device__ uint4 whole(int at) const {
    constexpr std::uint32_t kLowest = minus_infinity_pair<T>();
    return at >= 0 && at + 16 <= bytes ? fetch(row + at)
                                       : uint4{kLowest, kLowest, kLowest, kLowest};
  }
  __device__ uint4 any(int at) const { return is_part(at) ? part(at) : whole(at); }
  __device__ bool is_part(int at) const {
    return (at < 0 && at > -16) || (at < bytes && at + 16 > bytes);
  }
  __device__ uint4 part(int at) const { return part_of(row, bytes, at); }

  // Static: taking the address of the object would move it to local memory.
  __device__ static __noinline__ uint4 part_of(const unsigned char* row, int bytes, int at) {
    return {word_at(row, bytes, at), word_at(row, bytes, at + 4), word_at(row, bytes, at + 8),
            word_at(row, bytes, at + 12)};
  }
  // The aligned word at byte `at`, with -inf for bytes outside the row.
  __device__ static std::uint32_t word_at(const unsigned char* row, int bytes, int at) {
    if (at >= 0 && at + 4 <= bytes) return *reinterpret_cast<const std::uint32_t*>(row + at);
    std::uint32_t word = minus_infinity_pair<T>();
    if constexpr (sizeof(T) == 2) {
      const auto half = [&](int byte) -> std::uint32_t {
        return *reinterpret_cast<const std::uint16_t*>(row + byte);
      };
      if (at >= 0 && at + 2 <= bytes) word = (word & 0xffff0000U) | half(at);
      if (at + 2 >= 0 && at + 4 <= bytes) word = (word & 0xffffU) | half(at + 2) << 16;
    }
    return word;
  }

  // An unaligned vector spans two aligned ones: the lane's own, less its first kWord words, and the
  // next lane's.
  template <int kWord>
  __device__ void shift(Raw& raw, int lane) const {
    const unsigned bits = static_cast<unsigned>(misalignment % 4) * 8;
    const int next = (lane + 1) % 32;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const uint4 own = raw.vectors[j];
      // After lane 31 comes lane 0's next vector.
      const uint4 given = j + 1 < kVectors && lane == 0 ? raw.vectors[(j + 1) % kVectors] : own;
      std::uint32_t words[8] = {own.x, own.y, own.z, own.w, given.x, given.y, given.z, given.w};
#pragma unroll
      for (int w = 4; w < 5 + kWord; ++w) words[w] = __shfl_sync(~0U, words[w], next);
      if (j + 1 == kVectors && lane == 31) {
        words[4] = raw.behind.x;
        words[5] = raw.behind.y;
        words[6] = raw.behind.z;
        words[7] = raw.behind.w;
      }
      raw.vectors[j] = {__funnelshift_r(words[kWord], words[kWord + 1], bits),
                        __funnelshift_r(words[kWord + 1], words[kWord + 2], bits),
                        __funnelshift_r(words[kWord + 2], words[kWord + 3], bits),
                        __funnelshift_r(words[kWord + 3], words[kWord + 4], bits)};
    }
  }

  // The same where the lane holds both.
  template <int kWord>
  __device__ uint4 joined(const uint4& own, const uint4& next) const {
    const unsigned bits = static_cast<unsigned>(misalignment % 4) * 8;
    const std::uint32_t words[8] = {own.x, own.y, own.z, own.w, next.x, next.y, next.z, next.w};
    return {__funnelshift_r(words[kWord], words[kWord + 1], bits),
            __funnelshift_r(words[kWord + 1], words[kWord + 2], bits),
            __funnelshift_r(words[kWord + 2], words[kWord + 3], bits),
            __funnelshift_r(words[kWord + 3], words[kWord + 4], bits)};
  }

  const unsigned char* row;
  int bytes;
  int misalignment;  // bytes
};

// The values of a realigned segment. kRawLogits: the logits in their own type; else f32 with bias
// and mask applied.
//
// Tokens that reach a bound are bits of a word. stage() copies the lane's values to shared memory,
// where single tokens can be indexed (registers cannot).
template <class T, bool kRawLogits>
class Segment;

template <class T>
class Segment<T, true> {
 public:
  static constexpr int kN = cuda::kPerVector<T>;
  static constexpr int kVectors = 4;
  static constexpr int kTokens = 32 * kVectors * kN;
  static constexpr int kEach = kVectors * kN;  // per lane
  // Lower bits in which the ordered words of 16-bit values never differ.
  static constexpr int kEqualBits = sizeof(T) == 4 ? 0 : std::is_same_v<T, Bf16> ? 16 : 13;

  template <class Raw, class Values>
  __device__ Segment(const Raw& raw, const Values& /*row*/, int /*first*/, int /*vocabulary*/,
                     int /*lane*/)
      : packed(raw.vectors) {}

  // Maximum of the lane's tokens; NaN if one of them is NaN.
  __device__ float largest() const {
    std::uint32_t m = minus_infinity_pair<T>();
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      m = packed_max<T>(m, packed_max<T>(packed_max<T>(packed[j].x, packed[j].y),
                                         packed_max<T>(packed[j].z, packed[j].w)));
    }
    float pair[kN];
    cuda::unpack_as<T>({m, m, m, m}, pair);
    return sizeof(T) == 4 ? pair[0] : max_nan(pair[0], pair[1]);
  }

  // Summary of the lane's tokens: for 16-bit types the maxima of its four vectors, for f32 one
  // maximum. Undefined for NaN.
  using Maximum = std::conditional_t<sizeof(T) == 4, float, uint2>;
  __device__ static Maximum no_maximum() {
    if constexpr (sizeof(T) == 4) {
      return -infinity();
    } else {
      return {minus_infinity_pair<T>(), minus_infinity_pair<T>()};
    }
  }
  // Maximum of this summary and another. `largest` is this segment's maximum.
  __device__ Maximum larger_maximum(const Maximum& other, float largest) const {
    if constexpr (sizeof(T) == 4) {
      return fmaxf(other, largest);
    } else {
      const auto of_vector = [&](int j) {
        return packed_max<T>(packed_max<T>(packed[j].x, packed[j].y),
                             packed_max<T>(packed[j].z, packed[j].w));
      };
      const auto of_two = [&](std::uint32_t a, std::uint32_t b) {
        return packed_max<T>(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
      };
      return {packed_max<T>(other.x, of_two(of_vector(0), of_vector(1))),
              packed_max<T>(other.y, of_two(of_vector(2), of_vector(3)))};
    }
  }
  __device__ static std::uint32_t bound_of(float least) { return bound_pair<T>(least); }
  // One bit per vector that may reach the bound.
  __device__ static unsigned vectors_reaching(const Maximum& maximum, std::uint32_t bound) {
    static_assert(kVectors == 4);
    if constexpr (sizeof(T) == 4) {
      return maximum >= __uint_as_float(bound) ? 15 : 0;
    } else {
      const std::uint32_t first = reaching_pair<T>(maximum.x, bound);
      const std::uint32_t second = reaching_pair<T>(maximum.y, bound);
      return (first & 1U) | (first >> 15 & 2U) | (second << 2 & 4U) | (second >> 13 & 8U);
    }
  }

  __device__ const uint4& vector(int j) const { return packed[j]; }
  __device__ bool vector_reaches(int j, std::uint32_t bound) const {
    const std::uint32_t largest = packed_max<T>(packed_max<T>(packed[j].x, packed[j].y),
                                                packed_max<T>(packed[j].z, packed[j].w));
    return reaching_pair<T>(largest, bound) != 0;
  }
  // The same bits as below, for one vector.
  __device__ static std::uint32_t reaching(const uint4& vector, std::uint32_t bound) {
    const std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
    std::uint32_t bits = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) bits |= reaching_pair<T>(words[w], bound) & (0x10001U << w);
    return bits;
  }

  // Sum of 2^(v * scale - reference).
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

  // Bit w is the first token of word w of the lane's 16 words, bit 16 + w its second.
  __device__ std::uint32_t reaching(float least) const {
    const std::uint32_t bound = bound_pair<T>(least);
    std::uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const std::uint32_t words[4] = {packed[j].x, packed[j].y, packed[j].z, packed[j].w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        bits |= reaching_pair<T>(words[w], bound) & (0x10001U << (4 * j + w));
      }
    }
    return bits;
  }
  __device__ void stage(uint4* buffer) const {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) buffer[j * 32] = packed[j];
  }
  // `buffer` is the lane's.
  __device__ static float staged(const uint4* buffer, unsigned bit) {
    return cuda::widen(reinterpret_cast<const T*>(buffer)[token_of_bit(bit)]);
  }
  // Offset from the lane's first token, in the row as in shared memory.
  __device__ static unsigned token_of_bit(unsigned bit) {
    const unsigned w = bit % 16;
    return w / 4 * (32 * kN) + w % 4 * (kN / 4) + bit / 16;
  }

 private:
  const uint4 (&packed)[kVectors];
};

template <class T>
class Segment<T, false> {
 public:
  static constexpr int kN = cuda::kPerVector<T>;
  static constexpr int kValues = 16;
  static constexpr int kVectors = kValues / kN;
  static constexpr int kTokens = 32 * kValues;
  static constexpr int kEach = kValues;
  static constexpr int kEqualBits = 0;

  template <class Raw, class Values>
  __device__ Segment(const Raw& raw, const Values& row, int first, int vocabulary, int lane) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      float part[kN];
      cuda::unpack_as<T>(raw.vectors[j], part);
      row.adjust(part, first + (j * 32 + lane) * kN, vocabulary);
#pragma unroll
      for (int i = 0; i < kN; ++i) v[j * kN + i] = part[i];
    }
  }

  __device__ float largest() const {
    float m = -infinity();
#pragma unroll
    for (int i = 0; i < kValues; ++i) m = max_nan(m, v[i]);
    return m;
  }

  __device__ float sum(float scale, float reference) const {
    float sums[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kValues; ++i) sums[i % 2] += exp2_fast(fmaf(v[i], scale, -reference));
    return sums[0] + sums[1];
  }

  // Bit i is the lane's value i.
  __device__ std::uint32_t reaching(float least) const {
    std::uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) bits |= v[i] >= least ? 1U << i : 0U;
    return bits;
  }
  __device__ void stage(uint4* buffer) const {
#pragma unroll
    for (int j = 0; j < kValues / 4; ++j) {
      buffer[j * 32] = {__float_as_uint(v[4 * j]), __float_as_uint(v[4 * j + 1]),
                        __float_as_uint(v[4 * j + 2]), __float_as_uint(v[4 * j + 3])};
    }
  }
  __device__ static float staged(const uint4* buffer, unsigned bit) {
    const unsigned i = bit % kValues;
    return reinterpret_cast<const float*>(buffer)[i / 4 * 128 + i % 4];
  }
  __device__ static unsigned token_of_bit(unsigned bit) { return bit / kN * (32 * kN) + bit % kN; }

 private:
  float v[kValues];
};

}  // namespace touchstone::selection
