// One read of a row by a block, or by the blocks of a cluster: its sum of exponentials, and every
// token that may be among the k largest.
//
// The row is cut into segments of 4 KB. A warp holds a segment in registers, 128 bytes per lane:
// lane l has the vectors l, l + 32, .. of it, by token and not by address, so that sums do not
// depend on alignment. A lane takes the maximum of its tokens first. It is the reference of the
// lane's exponentials, one per token, and it says whether the lane has any candidate at all.
// Lane sums are merged by a fixed butterfly and segment sums in index order: the bits depend on the
// row alone.
#pragma once

#include <type_traits>

#include "ops/softmax_topk/topk_select.cuh"

namespace touchstone::topk {

inline constexpr int kScanWarps = kScanThreads / 32;
inline constexpr int kLaneVectors = 8;
inline constexpr int kMaxUnits = 1024;  // sums kept per row; a unit is one segment or several
inline constexpr int kMaxScanCluster = 8;
inline constexpr int kSamples = kScanThreads * 4;

// Up to here the threshold is one that k tokens of the sample reach, so that it cannot be too high.
// For more, it is a guess: the scan counts, and what falls short is done again. Blocks that share a
// row cannot count alone, so that clusters never guess.
inline constexpr int kCertainK = 128;
inline constexpr int kCertainKInCluster = 256;

template <class T>
inline constexpr int kSegmentTokens = 32 * kLaneVectors* cuda::kPerVector<T>;

struct ScanShape {
  std::int64_t vocabulary = 0;
  int k = 0;
  int capacity = 0;  // candidates that fit; at least k and a segment
  int sorted = 0;    // keys that the sort has room for: a power of two, at least k
  int units = 0;
  int segments_per_unit = 1;
  int cluster = 1;  // blocks that share a row
};

// Dynamic shared memory: this, then sums, candidates and sorted keys.
struct ScanShared {
  SelectScratch select;
  std::uint32_t samples[kSamples];
  std::uint32_t count;      // candidates found, also where they did not fit
  std::uint32_t threshold;  // ordered word: tokens below cannot be of the k largest
  std::uint32_t flags;
  alignas(16) float reduction[2 * kScanWarps];
  alignas(16) unsigned char rest[16];

  static constexpr std::uint32_t kNan = 1;
  static constexpr std::uint32_t kHuge = 2;  // +inf, or v * scale overflows
  static constexpr std::uint32_t kReadTwice = 4;

  __host__ __device__ static std::int64_t bytes(const ScanShape& shape) {
    return static_cast<std::int64_t>(sizeof(ScanShared)) +
           8 * (std::int64_t{shape.units} + shape.capacity + shape.sorted);
  }
  __device__ float2* sums() { return reinterpret_cast<float2*>(rest); }
  __device__ Key* candidates(const ScanShape& shape) {
    return reinterpret_cast<Key*>(rest) + shape.units;
  }
  __device__ Key* sorted(const ScanShape& shape) { return candidates(shape) + shape.capacity; }
};

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

// All ones in the halves of `a` that are at least those of `b`.
template <class T>
__device__ std::uint32_t packed_at_least(std::uint32_t a, std::uint32_t b) {
  std::uint32_t y;
  if constexpr (std::is_same_v<T, Bf16>) {
    const __nv_bfloat162 x = *reinterpret_cast<const __nv_bfloat162*>(&a);
    y = __hge2_mask(x, *reinterpret_cast<const __nv_bfloat162*>(&b));
  } else {
    const __half2 x = *reinterpret_cast<const __half2*>(&a);
    y = __hge2_mask(x, *reinterpret_cast<const __half2*>(&b));
  }
  return y;
}

// Loads the part of a lane of the segment that starts at token `first`: its j-th vector starts at
// token first + (j * 32 + lane) * kN. Tokens past the end are -inf.
template <class T>
class SegmentLoader {
 public:
  static constexpr int kN = cuda::kPerVector<T>;

  __device__ SegmentLoader(const T* row_start, std::int64_t tokens)
      : row(reinterpret_cast<const unsigned char*>(row_start)),
        bytes(tokens * static_cast<std::int64_t>(sizeof(T))),
        misaligned(static_cast<int>(reinterpret_cast<std::uintptr_t>(row_start) % 16)) {}

  __device__ void load(std::int64_t first, int lane, uint4 (&out)[kLaneVectors]) const {
    const std::int64_t begin = first * static_cast<std::int64_t>(sizeof(T)) + lane * 16;
    constexpr std::int64_t kSpan = kLaneVectors * 512;
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

  __device__ void load_aligned(std::int64_t begin, uint4 (&out)[kLaneVectors]) const {
#pragma unroll
    for (int j = 0; j < kLaneVectors; ++j) out[j] = fetch(row + begin + j * 512);
  }

  // A vector off the grid is put together from the two that it lies in; kWord of the first one's
  // words are not of it.
  template <int kWord>
  __device__ void load_shifted(std::int64_t begin, uint4 (&out)[kLaneVectors]) const {
    const unsigned char* at = row + begin - misaligned;
    const unsigned bits = static_cast<unsigned>(misaligned % 4) * 8;
#pragma unroll
    for (int j = 0; j < kLaneVectors; ++j) {
      const uint4 a = __ldg(reinterpret_cast<const uint4*>(at + j * 512));
      const uint4 b = __ldg(reinterpret_cast<const uint4*>(at + j * 512 + 16));
      const std::uint32_t words[9] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, 0};
      out[j] = {__funnelshift_r(words[kWord], words[kWord + 1], bits),
                __funnelshift_r(words[kWord + 1], words[kWord + 2], bits),
                __funnelshift_r(words[kWord + 2], words[kWord + 3], bits),
                __funnelshift_r(words[kWord + 3], words[kWord + 4], bits)};
    }
  }

  // Element by element where a vector is not wholly in the row.
  __device__ void load_edge(std::int64_t begin, uint4 (&out)[kLaneVectors]) const {
#pragma unroll
    for (int j = 0; j < kLaneVectors; ++j) {
      const std::int64_t at = begin + j * 512;
      if (misaligned == 0 && at + 16 <= bytes) {
        out[j] = fetch(row + at);
        continue;
      }
      std::uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        words[w] = lowest_pair<T>();
        if constexpr (sizeof(T) == 4) {
          if (at + 4 * w < bytes) {
            words[w] = *reinterpret_cast<const std::uint32_t*>(row + at + 4 * w);
          }
        } else {
          if (at + 4 * w < bytes) {
            words[w] = (words[w] & 0xffff0000U) |
                       *reinterpret_cast<const std::uint16_t*>(row + at + 4 * w);
          }
          if (at + 4 * w + 2 < bytes) {
            words[w] = (words[w] & 0xffffU) |
                       static_cast<std::uint32_t>(
                           *reinterpret_cast<const std::uint16_t*>(row + at + 4 * w + 2))
                           << 16;
          }
        }
      }
      out[j] = {words[0], words[1], words[2], words[3]};
    }
  }

  const unsigned char* row;
  std::int64_t bytes;
  int misaligned;
};

// kPlain: the values are the logits themselves.
template <class T, bool kPlain>
class RowScan {
 public:
  static constexpr int kN = cuda::kPerVector<T>;

  __device__ RowScan(const ScanShape& scan_shape, ScanShared& memory, const RowValues<T>& row,
                     float exponent_scale)
      : shape(scan_shape),
        shared(memory),
        candidates(memory.candidates(scan_shape)),
        values(row),
        loader(row.logits, scan_shape.vocabulary),
        scale(exponent_scale),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        rank(scan_shape.cluster > 1 ? static_cast<int>(cluster_block()) : 0) {}

  // Reads this block's part of the row. Afterwards the block's candidates are complete: count of
  // them, at most the capacity; all tokens above -inf where that is fewer than k.
  __device__ void run() {
    if (threadIdx.x == 0) {
      shared.count = 0;
      shared.flags = 0;
      shared.threshold = 0;
    }
    __syncthreads();
    // Runs of units, so that the first ones of the warps are a sample of the whole row.
    const int own = own_units();
    int unit = own * warp / kScanWarps;
    const int end = own * (warp + 1) / kScanWarps;
    const bool any = unit < end;
    uint4 packed[kLaneVectors];
    float largest = -infinity();
    if (any) largest = read_unit(unit, packed);
    sample(packed, largest, any);
    __syncthreads();
    if (warp == 0) choose_threshold();
    __syncthreads();
    const std::uint32_t threshold = shared.threshold;
    const float least = unordered(threshold);
    if (any && shape.segments_per_unit == 1) {
      collect(first_token(unit, 0), packed, largest, least);
      ++unit;
    }
    for (; unit < end; ++unit) {
      const bool again = shape.segments_per_unit > 1;
      largest = read_unit(unit, packed, again, least);
      if (!again) collect(first_token(unit, 0), packed, largest, least);
    }
    __syncthreads();
    const int found = static_cast<int>(shared.count);
    const bool guessed = shape.cluster == 1 && shape.k > kCertainK;
    if (found <= shape.capacity && (found >= shape.k || !guessed)) return;
    if (threadIdx.x == 0) shared.flags |= ScanShared::kReadTwice;
    read_in_order(found >= shape.k ? threshold : kAboveNothing);
  }

 private:
  // The ordered word after that of -inf: masked tokens are never candidates.
  static constexpr std::uint32_t kAboveNothing = 0x00800000U;

  __device__ static unsigned cluster_block() {
    if constexpr (cuda::kHopper) return cuda::cluster_rank();
    return 0;
  }

  // The cluster's blocks take the units in turn.
  __device__ int own_units() const {
    return (shape.units - rank + shape.cluster - 1) / shape.cluster;
  }
  __device__ std::int64_t first_token(int own_unit, int segment) const {
    const std::int64_t unit = static_cast<std::int64_t>(own_unit) * shape.cluster + rank;
    return (unit * shape.segments_per_unit + segment) * kSegmentTokens<T>;
  }

  __device__ float value(const uint4& vector, int i, std::int64_t token) const {
    float all[kN];
    cuda::unpack_as<T>(vector, all);
    if constexpr (kPlain) return all[i];
    return token < shape.vocabulary ? values.adjusted(all[i], token) : -infinity();
  }

  __device__ std::int64_t token_at(std::int64_t first, int j) const {
    return first + static_cast<std::int64_t>(j * 32 + lane) * kN;
  }

  // NaN when one of them is.
  __device__ float lane_max(std::int64_t first, const uint4 (&packed)[kLaneVectors], int begin,
                            int end) const {
    if constexpr (kPlain) {
      std::uint32_t m = packed[begin].x;
#pragma unroll
      for (int j = begin; j < end; ++j) {
        m = packed_max<T>(m, packed_max<T>(packed_max<T>(packed[j].x, packed[j].y),
                                           packed_max<T>(packed[j].z, packed[j].w)));
      }
      float pair[kN];
      cuda::unpack_as<T>({m, m, m, m}, pair);
      return sizeof(T) == 4 ? pair[0] : max_nan(pair[0], pair[1]);
    } else {
      float m = -infinity();
#pragma unroll
      for (int j = begin; j < end; ++j) {
#pragma unroll
        for (int i = 0; i < kN; ++i) m = max_nan(m, value(packed[j], i, token_at(first, j) + i));
      }
      return m;
    }
  }

  // The lane's sum of exponentials; `largest` is its largest value.
  __device__ RowSum lane_sum(std::int64_t first, const uint4 (&packed)[kLaneVectors],
                             float largest) const {
    const float reference = largest * scale;
    if (!(fabsf(reference) < 1e38F)) {
      // NaN, infinities, and products that overflow. What is far below 0 is nothing, unless the
      // whole row is; then, and above, the row is summed another way when all is known.
      if (!(largest < 0)) atomicOr(&shared.flags, isnan(largest) ? shared.kNan : shared.kHuge);
      return {-infinity(), 0};
    }
    float sums[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < kLaneVectors; ++j) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const float v = value(packed[j], i, token_at(first, j) + i);
        sums[i % 2] += exp2_fast(fmaf(v, scale, -reference));
      }
    }
    return {reference, sums[0] + sums[1]};
  }

  __device__ static RowSum merged(const RowSum& a, const RowSum& b) {
    const float reference = fmaxf(a.reference, b.reference);
    if (reference == -infinity()) return a;
    return {reference, a.sum * exp2_fast(a.reference - reference) +
                           b.sum * exp2_fast(b.reference - reference)};
  }

  // Reads a unit and leaves its sum. Returns the lane's maximum of its last segment, which `packed`
  // then holds; the candidates of all its segments are collected on the way if asked.
  __device__ float read_unit(int unit, uint4 (&packed)[kLaneVectors], bool collecting = false,
                             float least = 0) {
    RowSum sum{-infinity(), 0};
    float largest = 0;
    for (int segment = 0; segment < shape.segments_per_unit; ++segment) {
      const std::int64_t first = first_token(unit, segment);
      if (segment > 0 && first >= shape.vocabulary) break;
      loader.load(first, lane, packed);
      held_first = first;
      largest = lane_max(first, packed, 0, kLaneVectors);
      const RowSum own = lane_sum(first, packed, largest);
      sum = segment == 0 ? own : merged(sum, own);
      if (collecting) collect(first, packed, largest, least);
    }
    float reference = sum.reference;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      reference = fmaxf(reference, __shfl_xor_sync(~0U, reference, offset));
    }
    float total = reference == -infinity() ? 0 : sum.sum * exp2_fast(sum.reference - reference);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(~0U, total, offset);
    if (lane == 0) shared.sums()[unit * shape.cluster + rank] = {reference, total};
    return largest;
  }

  // Maxima of parts of the sampled segments: with few to find, one per lane, else four.
  __device__ void sample(const uint4 (&packed)[kLaneVectors], float largest, bool any) {
    const int thread = static_cast<int>(threadIdx.x);
    if (one_per_lane()) {
      shared.samples[thread] = any && !isnan(largest) ? ordered(largest) : 0;
      return;
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const float m = lane_max(held_first, packed, part * 2, part * 2 + 2);
      shared.samples[part * kScanThreads + thread] = any && !isnan(m) ? ordered(m) : 0;
    }
  }

  __device__ bool one_per_lane() const { return shape.k <= 64; }

  // How far down the sample to go. A sample of n of the V tokens has n * k / V of the k largest on
  // average; five standard deviations more are almost certainly enough.
  __device__ int sample_rank() const {
    if (shape.cluster > 1 || shape.k <= kCertainK) return shape.k;
    const auto tokens = static_cast<float>(kScanWarps * kSegmentTokens<T>);
    const float mean =
        static_cast<float>(shape.k) * fminf(1.0F, tokens / static_cast<float>(shape.vocabulary));
    return static_cast<int>(mean + 5 * sqrtf(mean)) + 8;
  }

  // For one warp: the largest sample that is reached by as many as wanted.
  __device__ void choose_threshold() {
    const int n = one_per_lane() ? kScanThreads : kSamples;
    const int wanted = sample_rank();
    std::uint32_t threshold = 0;
    // The upper bits do: a threshold that is a little low costs a few candidates.
    for (int bit = 31; bit >= 12; --bit) {
      const std::uint32_t tried = threshold | 1U << bit;
      int reached = 0;
      for (int i = lane; i < n; i += 32) reached += shared.samples[i] >= tried ? 1 : 0;
      if (__reduce_add_sync(~0U, reached) >= wanted) threshold = tried;
    }
    // A value that occurs, which 16-bit comparisons can hold.
    std::uint32_t least = 0xffffffffU;
    for (int i = lane; i < n; i += 32) {
      if (shared.samples[i] >= threshold) least = min(least, shared.samples[i]);
    }
    least = __reduce_min_sync(~0U, least);
    if (lane == 0) shared.threshold = max(least, kAboveNothing);
  }

  // A bit for each of the lane's tokens that reaches `least`.
  __device__ std::uint64_t reaching(std::int64_t first, const uint4 (&packed)[kLaneVectors],
                                    float least) const {
    if constexpr (kPlain && sizeof(T) == 2) {
      // `least` is one of the values, so that 16 bits hold it.
      const std::uint32_t one = least_bits(least);
      std::uint32_t halves[2] = {0, 0};
#pragma unroll
      for (int j = 0; j < kLaneVectors; ++j) {
        const std::uint32_t words[4] = {packed[j].x, packed[j].y, packed[j].z, packed[j].w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          halves[j / 4] |= packed_at_least<T>(words[w], one) & (0x00010001U << (j % 4 * 4 + w));
        }
      }
      return static_cast<std::uint64_t>(halves[1]) << 32 | halves[0];
    } else {
      std::uint64_t bits = 0;
#pragma unroll
      for (int j = 0; j < kLaneVectors; ++j) {
#pragma unroll
        for (int i = 0; i < kN; ++i) {
          const float v = value(packed[j], i, token_at(first, j) + i);
          if (v >= least) bits |= std::uint64_t{1} << (j * kN + i);
        }
      }
      return bits;
    }
  }

  __device__ static std::uint32_t least_bits(float least) {
    const std::uint32_t bits = cuda::narrow<T>(least).bits;
    return bits << 16 | bits;
  }

  // The lane's element that a bit of reaching() stands for.
  __device__ static int element_of(int bit) {
    if constexpr (kPlain && sizeof(T) == 2) {
      // Bit 0 .. 15 of a half are first elements of words, 16 .. 31 second ones.
      return bit / 32 * 32 + bit % 16 * 2 + bit % 32 / 16;
    }
    return bit;
  }

  // Adds the candidates of a segment. Those that do not fit are counted all the same.
  __device__ void collect(std::int64_t first, const uint4 (&packed)[kLaneVectors], float largest,
                          float least) {
    const bool some = largest >= least;
    if (!__any_sync(~0U, some)) return;
    std::uint64_t bits = reaching(first, packed, least);
    if (!some) return;
    const int count = __popcll(bits);
    auto place = static_cast<int>(atomicAdd(&shared.count, static_cast<std::uint32_t>(count)));
    if (place + count > shape.capacity) return;
    while (bits != 0) {
      const int element = element_of(__ffsll(static_cast<long long>(bits)) - 1);
      bits &= bits - 1;
      const std::int64_t token = token_at(first, element / kN) + element % kN;
      candidates[place++] = key_of(values(token), static_cast<std::uint32_t>(token));
    }
  }

  // The exact way, for rows with more candidates than fit or with a threshold that was too high:
  // the whole block goes through its part once more, keeps what beats the k-th so far, and throws
  // out the rest whenever the room is used up.
  __device__ void read_in_order(std::uint32_t least) {
    Key* const spare = shared.sorted(shape);
    const int thread = static_cast<int>(threadIdx.x);
    Key bound = static_cast<Key>(least) << 32;
    int held = 0;
    __syncthreads();
    if (thread == 0) shared.count = 0;
    __syncthreads();
    const int own = own_units();
    for (int i = 0; i < own * shape.segments_per_unit; ++i) {
      const std::int64_t first =
          first_token(i / shape.segments_per_unit, i % shape.segments_per_unit);
      const std::int64_t end = min(first + kSegmentTokens<T>, shape.vocabulary);
      for (std::int64_t token = first + thread; token < end; token += kScanThreads) {
        const float v = values(token);
        if (!(v > -infinity())) continue;
        const Key key = key_of(v, static_cast<std::uint32_t>(token));
        if (key >= bound) candidates[atomicAdd(&shared.count, 1U)] = key;
      }
      __syncthreads();
      held = static_cast<int>(shared.count);
      if (held + kSegmentTokens<T> <= shape.capacity) continue;
      bound = lower_end(candidates, held, shape.k, shape.k, shared.select);
      const int kept = gather(candidates, held, bound, spare, shared.select);
      for (int j = thread; j < kept; j += kScanThreads) candidates[j] = spare[j];
      if (thread == 0) shared.count = static_cast<std::uint32_t>(kept);
      __syncthreads();
    }
  }

  const ScanShape& shape;
  ScanShared& shared;
  Key* candidates;
  RowValues<T> values;
  SegmentLoader<T> loader;
  float scale;
  int lane, warp;
  int rank;                     // of this block in its cluster
  std::int64_t held_first = 0;  // first token of the segment in registers
};

}  // namespace touchstone::topk
