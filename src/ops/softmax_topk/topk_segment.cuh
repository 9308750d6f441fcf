// A segment of a row in the registers of a warp, 16 or 32 tokens per lane: lane l has the vectors
// l, l + 32, .. of it, by token and not by address, so that nothing depends on alignment.
//
// Loads fill registers that nothing looks at before the data is wanted: rows off the 16-byte grid
// are loaded on the grid and put right by shuffles then.
#pragma once

#include <type_traits>

#include "ops/softmax_topk/topk_cuda.cuh"

namespace touchstone::topk {

// -inf: one of f32, two of the others.
template <class T>
__device__ constexpr std::uint32_t lowest_pair() {
  if constexpr (sizeof(T) == 4) return 0xff800000U;
  return std::is_same_v<T, Bf16> ? 0xff80ff80U : 0xfc00fc00U;
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

// A bound rounded up, so that an element reaches it when it reaches the bound; twice.
template <class T>
__device__ std::uint32_t least_pair(float least) {
  if constexpr (sizeof(T) == 4) {
    return __float_as_uint(least);
  } else if constexpr (std::is_same_v<T, Bf16>) {
    return __bfloat16_as_ushort(__float2bfloat16_ru(least)) * 0x10001U;
  } else {
    return __half_as_ushort(__float2half_ru(least)) * 0x10001U;
  }
}

// Ones in the half of each element that reaches the bound; f32: in the lower half.
template <class T>
__device__ std::uint32_t reached_pair(std::uint32_t pair, std::uint32_t bound) {
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

// What a lane has asked for. Off the grid, lane 31 needs the 16 bytes behind the segment too.
template <int kVectors, bool kOnGrid>
struct RawSegment {
  uint4 vectors[kVectors];
};
template <int kVectors>
struct RawSegment<kVectors, false> {
  uint4 vectors[kVectors];
  uint4 behind;
};

// Loads the part of a lane of the segment that starts at token `first`: its j-th vector starts at
// token first + (j * 32 + lane) * kN. Tokens past the end are -inf. kOnGrid: all rows start on 16
// bytes.
template <class T, int kVectors, bool kOnGrid>
class SegmentLoader {
 public:
  using Raw = RawSegment<kVectors, kOnGrid>;

  // Rows of a scan are not long: their bytes are counted in 32 bits.
  __device__ SegmentLoader(const T* row_start, std::int64_t tokens)
      : row(reinterpret_cast<const unsigned char*>(row_start)),
        bytes(static_cast<int>(tokens) * static_cast<int>(sizeof(T))),
        off_grid(kOnGrid ? 0 : static_cast<int>(reinterpret_cast<std::uintptr_t>(row_start) % 16)) {
  }

  // Followed by settle() when the data is wanted.
  __device__ void load(int first, int lane, Raw& raw) const {
    const int segment = first * static_cast<int>(sizeof(T)) - off_grid;
    const int begin = segment + lane * 16;
    // With a vector more on both sides for rows off the grid.
    const bool inside =
        kOnGrid ? segment + kSpan <= bytes : segment >= 0 && segment + kSpan + 16 <= bytes;
    if (inside) {
      const unsigned char* const from = row + begin;
#pragma unroll
      for (int j = 0; j < kVectors; ++j) raw.vectors[j] = fetch(from + j * 512);
      if constexpr (!kOnGrid) {
        if (lane == 31) raw.behind = fetch(from + (kVectors - 1) * 512 + 16);
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) raw.vectors[j] = whole(begin + j * 512);
    if constexpr (!kOnGrid) raw.behind = whole(begin + (kVectors - 1) * 512 + 16);
      // The two vectors of a row that it has a part of.
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (is_part(begin + j * 512)) raw.vectors[j] = part(begin + j * 512);
    }
    if constexpr (!kOnGrid) {
      const int at = begin + (kVectors - 1) * 512 + 16;
      if (is_part(at)) raw.behind = part(at);
    }
  }

  // Has the segment brought to the L2 cache.
  __device__ void prefetch(int first, int lane) const {
    constexpr int kLine = 128;
    const int at = first * static_cast<int>(sizeof(T)) + lane * kLine;
    if (lane < kSpan / kLine && at < bytes) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(row + at));
    }
  }

  // The vector of the tokens from `first` on, which is a multiple of their number, at once.
  __device__ uint4 vector(int first) const {
    const int at = first * static_cast<int>(sizeof(T)) - off_grid;
    if (kOnGrid || off_grid == 0) return any(at);
    const bool inside = at >= 0 && at + 32 <= bytes;
    const uint4 own = inside ? fetch(row + at) : any(at);
    const uint4 next = inside ? fetch(row + at + 16) : any(at + 16);
    switch (off_grid / 4) {
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

  // Puts vectors off the grid right.
  __device__ void settle(Raw& raw, int lane) const {
    if constexpr (!kOnGrid) {
      switch (off_grid / 4) {
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

  // Not to be kept in the L1 cache: where shared memory leaves little of that, less would be on its
  // way at once.
  __device__ static uint4 fetch(const unsigned char* at) {
    uint4 loaded;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w)
                 : "l"(at));
    return loaded;
  }

  // The vector at a byte of the row, or -inf where the row does not have all of it.
  __device__ uint4 whole(int at) const {
    constexpr std::uint32_t kLowest = lowest_pair<T>();
    return at >= 0 && at + 16 <= bytes ? fetch(row + at)
                                       : uint4{kLowest, kLowest, kLowest, kLowest};
  }
  __device__ uint4 any(int at) const { return is_part(at) ? part(at) : whole(at); }
  __device__ bool is_part(int at) const {
    return (at < 0 && at > -16) || (at < bytes && at + 16 > bytes);
  }
  __device__ uint4 part(int at) const { return part_of(row, bytes, at); }

  // Not of the object: one whose address is taken lies in memory.
  __device__ static __noinline__ uint4 part_of(const unsigned char* row, int bytes, int at) {
    return {word_at(row, bytes, at), word_at(row, bytes, at + 4), word_at(row, bytes, at + 8),
            word_at(row, bytes, at + 12)};
  }
  // The aligned word at byte `at` of the row, with -inf for what is not of the row.
  __device__ static std::uint32_t word_at(const unsigned char* row, int bytes, int at) {
    if (at >= 0 && at + 4 <= bytes) return *reinterpret_cast<const std::uint32_t*>(row + at);
    std::uint32_t word = lowest_pair<T>();
    if constexpr (sizeof(T) == 2) {
      const auto half = [&](int byte) -> std::uint32_t {
        return *reinterpret_cast<const std::uint16_t*>(row + byte);
      };
      if (at >= 0 && at + 2 <= bytes) word = (word & 0xffff0000U) | half(at);
      if (at + 2 >= 0 && at + 4 <= bytes) word = (word & 0xffffU) | half(at + 2) << 16;
    }
    return word;
  }

  // A vector off the grid lies in two of the grid: its lane's, of which kWord words are not of it,
  // and the next lane's.
  template <int kWord>
  __device__ void shift(Raw& raw, int lane) const {
    const unsigned bits = static_cast<unsigned>(off_grid % 4) * 8;
    const int next = (lane + 1) % 32;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const uint4 own = raw.vectors[j];
      // Behind lane 31 comes the first lane's next vector.
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

  // The same where both are the lane's.
  template <int kWord>
  __device__ uint4 joined(const uint4& own, const uint4& next) const {
    const unsigned bits = static_cast<unsigned>(off_grid % 4) * 8;
    const std::uint32_t words[8] = {own.x, own.y, own.z, own.w, next.x, next.y, next.z, next.w};
    return {__funnelshift_r(words[kWord], words[kWord + 1], bits),
            __funnelshift_r(words[kWord + 1], words[kWord + 2], bits),
            __funnelshift_r(words[kWord + 2], words[kWord + 3], bits),
            __funnelshift_r(words[kWord + 3], words[kWord + 4], bits)};
  }

  const unsigned char* row;
  int bytes;
  int off_grid;  // bytes
};

// The values of a settled segment. kPlain: they are the logits, held as they come. Else they are
// f32, with bias and mask.
//
// Tokens that reach a bound are bits of a word; stage() leaves the lane's values in shared memory,
// from where those of single bits are fetched, since registers have no addresses.
template <class T, bool kPlain>
class Segment;

template <class T>
class Segment<T, true> {
 public:
  static constexpr int kN = cuda::kPerVector<T>;
  static constexpr int kVectors = 4;
  static constexpr int kTokens = 32 * kVectors * kN;
  static constexpr int kEach = kVectors * kN;  // of a lane
  // The ordered words of these values differ in their upper bits only.
  static constexpr int kEqualBits = sizeof(T) == 4 ? 0 : std::is_same_v<T, Bf16> ? 16 : 13;

  template <class Raw, class Values>
  __device__ Segment(const Raw& raw, const Values& /*row*/, int /*first*/, int /*vocabulary*/,
                     int /*lane*/)
      : packed(raw.vectors) {}

  // Of the lane's tokens. NaN when one of them is.
  __device__ float largest() const {
    std::uint32_t m = lowest_pair<T>();
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      m = packed_max<T>(m, packed_max<T>(packed_max<T>(packed[j].x, packed[j].y),
                                         packed_max<T>(packed[j].z, packed[j].w)));
    }
    float pair[kN];
    cuda::unpack_as<T>({m, m, m, m}, pair);
    return sizeof(T) == 4 ? pair[0] : max_nan(pair[0], pair[1]);
  }

  // What a lane leaves of its tokens: of 16-bit ones the maxima of its four vectors, of others that
  // of all of them. Not for NaN.
  using Maximum = std::conditional_t<sizeof(T) == 4, float, uint2>;
  __device__ static Maximum no_maximum() {
    if constexpr (sizeof(T) == 4) {
      return -infinity();
    } else {
      return {lowest_pair<T>(), lowest_pair<T>()};
    }
  }
  // The larger of this one's and another. `largest` is this one's largest value.
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
  __device__ static std::uint32_t bound_of(float least) { return least_pair<T>(least); }
  // A bit for each vector that may reach the bound.
  __device__ static unsigned vectors_reaching(const Maximum& maximum, std::uint32_t bound) {
    static_assert(kVectors == 4);
    if constexpr (sizeof(T) == 4) {
      return maximum >= __uint_as_float(bound) ? 15 : 0;
    } else {
      const std::uint32_t first = reached_pair<T>(maximum.x, bound);
      const std::uint32_t second = reached_pair<T>(maximum.y, bound);
      return (first & 1U) | (first >> 15 & 2U) | (second << 2 & 4U) | (second >> 13 & 8U);
    }
  }

  __device__ const uint4& vector(int j) const { return packed[j]; }
  __device__ bool vector_reaches(int j, std::uint32_t bound) const {
    const std::uint32_t largest = packed_max<T>(packed_max<T>(packed[j].x, packed[j].y),
                                                packed_max<T>(packed[j].z, packed[j].w));
    return reached_pair<T>(largest, bound) != 0;
  }
  // The same bits as below, for a vector.
  __device__ static std::uint32_t reaching(const uint4& vector, std::uint32_t bound) {
    const std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
    std::uint32_t bits = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) bits |= reached_pair<T>(words[w], bound) & (0x10001U << w);
    return bits;
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

  // Bit w is the first token of word w of the lane's 16, bit 16 + w its second.
  __device__ std::uint32_t reaching(float least) const {
    const std::uint32_t bound = least_pair<T>(least);
    std::uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const std::uint32_t words[4] = {packed[j].x, packed[j].y, packed[j].z, packed[j].w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        bits |= reached_pair<T>(words[w], bound) & (0x10001U << (4 * j + w));
      }
    }
    return bits;
  }
  __device__ void stage(uint4* room) const {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) room[j * 32] = packed[j];
  }
  // `room` is that of the lane.
  __device__ static float staged(const uint4* room, unsigned bit) {
    return cuda::widen(reinterpret_cast<const T*>(room)[token_of_bit(bit)]);
  }
  // From the lane's first, in the row as in shared memory.
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

  // Bit i is value i of the lane's.
  __device__ std::uint32_t reaching(float least) const {
    std::uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) bits |= v[i] >= least ? 1U << i : 0U;
    return bits;
  }
  __device__ void stage(uint4* room) const {
#pragma unroll
    for (int j = 0; j < kValues / 4; ++j) {
      room[j * 32] = {__float_as_uint(v[4 * j]), __float_as_uint(v[4 * j + 1]),
                      __float_as_uint(v[4 * j + 2]), __float_as_uint(v[4 * j + 3])};
    }
  }
  __device__ static float staged(const uint4* room, unsigned bit) {
    const unsigned i = bit % kValues;
    return reinterpret_cast<const float*>(room)[i / 4 * 128 + i % 4];
  }
  __device__ static unsigned token_of_bit(unsigned bit) { return bit / kN * (32 * kN) + bit % kN; }

 private:
  float v[kValues];
};

}  // namespace touchstone::topk
