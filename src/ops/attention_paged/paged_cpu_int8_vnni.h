// Scores of int8 keys in whole numbers, where the processor sums four products of bytes at once
// (AVX-512 VNNI). No #pragma once: read once per target, after cpu/simd.h.
//
// The query vector becomes whole numbers of 24 bits times one scale, q = scale * i, and these three
// limbs to base 256, each from -128 to 127, so |i| <= 127 * 65536 + 127 * 256 + 127:
//
//   i = 65536 d2 + 256 d1 + d0        dot(i, codes) = 65536 dot(d2, codes) + ...
//
// Sums of limbs times codes are exact: at most 1024 * 128 * 128 = 2^24, which a float holds too.
// The only error is the rounding of q, at most 2^-24 of its largest number in each product:
//
//   |error of the score| <= 2^-24 * max|q| * sum|k| + the last roundings, some 2^-22 of the score
//
// A sum in f32 of 128 numbers loses up to 12 * 2^-24 * sum|q k| (8 additions in each of 16 lanes,
// then 4). Two limbs, 2^-16 * max|q| * sum|k|, would not keep what the header promises. Queries
// with max|q| > 32 mean|q|, where the former may be much more than the latter, and those with NaN,
// infinity or next to nothing are left to the kernel for floats. That is a property of the query
// alone, as its bits must be.
//
// The instruction requires one unsigned factor: the codes plus 128. The sums begin with the negated
// product of that offset. Lanes are tokens, so that no sum runs over lanes: tokens are
// transposed in units of four codes. That is done again for every four queries, in registers: other
// parts of the processor do it while those before are multiplied, where a copy in memory would take
// longer to write.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cache/codec.h"
#include "cpu/simd.h"
#include "cpu/vnni.h"
#include "ops/attention_paged/paged_cpu.h"
#include "ops/attention_paged/paged_cpu_tile.h"

#if defined(TOUCHSTONE_PAGED_CPU_INT8_VNNI_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_PAGED_CPU_INT8_VNNI_H_
#undef TOUCHSTONE_PAGED_CPU_INT8_VNNI_H_
#else
#define TOUCHSTONE_PAGED_CPU_INT8_VNNI_H_
#endif

#undef TOUCHSTONE_PAGED_LIMBS
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#include <immintrin.h>
#define TOUCHSTONE_PAGED_LIMBS 1
#else
#define TOUCHSTONE_PAGED_LIMBS 0
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::paged_attention::HWY_NAMESPACE {

#if TOUCHSTONE_PAGED_LIMBS

constexpr std::size_t kLimbs = 3;
// Codes of a token in a unit of the transposed keys.
constexpr std::size_t kUnit = 4;
// Dims must be multiples of this.
constexpr std::size_t kRow = 4 * kUnit;

// A query vector in integers: its scales, then kLimbs integers for each unit.
struct LimbsHead {
  float scale;
  std::int32_t usable;
  std::int32_t start[kLimbs];  // of a sum, for codes that are 128 too high
  std::int32_t unused[11];
};
static_assert(sizeof(LimbsHead) == 64);

inline bool uses_limbs(const QuantFormat& format, std::int64_t dim) {
  return uses_vnni() && format.dtype == DType::i8 && !format.asymmetric &&
         dim % static_cast<std::int64_t>(kRow) == 0 && cache::group_length(format, dim) == dim;
}

// Floats that a query vector takes beside its own.
inline std::size_t limbs_floats(std::size_t dim) {
  return sizeof(LimbsHead) / sizeof(float) + kLimbs * dim / kUnit;
}

// Writes limbs_floats(dim) of them.
inline void make_limbs(const float* query, std::size_t dim, float* to) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::int8_t, D> d8;
  auto* const head = reinterpret_cast<LimbsHead*>(to);
  auto* const limbs = reinterpret_cast<std::int32_t*>(head + 1);
  V largest = hn::Zero(d);
  V total = hn::Zero(d);
  for (std::size_t i = 0; i < dim; i += kLanes) {
    const V magnitude = hn::Abs(hn::LoadU(d, query + i));
    largest = hn::Max(largest, magnitude);
    total = hn::Add(total, magnitude);
  }
  const float most = hn::GetLane(hn::MaxOfLanes(d, largest));
  const float sum = sd::sum_lanes(d, total);
  *head = {};
  // A NaN or an infinity is in `sum`, if not in `most`.
  if (!(sum < 0x1p80F && most > 0x1p-80F && most * static_cast<float>(dim) <= 32 * sum)) return;
  constexpr float kMax = 0x7f7f7e;  // 127 * 65536 + 127 * 256 + 126
  head->usable = 1;
  head->scale = most / kMax;
  const V factor = hn::Set(d, kMax / most);
  hn::Vec<decltype(di)> sums[kLimbs] = {hn::Zero(di), hn::Zero(di), hn::Zero(di)};
  for (std::size_t i = 0; i < dim; i += kLanes) {
    auto rest = hn::NearestInt(hn::Mul(hn::LoadU(d, query + i), factor));
    for (std::size_t n = 0; n < kLimbs; ++n) {
      const auto limb = hn::ShiftRight<24>(hn::ShiftLeft<24>(rest));
      rest = hn::ShiftRight<8>(hn::Sub(rest, limb));
      sums[n] = hn::Sub(sums[n], limb);
      alignas(16) std::int32_t units[kLanes / kUnit];
      hn::StoreU(hn::DemoteTo(d8, limb), d8, reinterpret_cast<std::int8_t*>(units));
      for (std::size_t u = 0; u < kLanes / kUnit; ++u) {
        limbs[(i / kUnit + u) * kLimbs + n] = units[u];
      }
    }
  }
  for (std::size_t n = 0; n < kLimbs; ++n) {
    head->start[n] = 128 * hn::GetLane(hn::SumOfLanes(di, sums[n]));
  }
}

// Whether the vector, with its limbs after it, is given as whole numbers.
inline bool has_limbs(const float* query, std::size_t dim) {
  return reinterpret_cast<const LimbsHead*>(query + dim)->usable != 0;
}

// No arrays in what follows: compilers that unroll loops late would leave them in memory.

// Four units of 16 tokens: in lane t those of token t, 128 added to their codes.
struct Units {
  __m512i unit0, unit1, unit2, unit3;
};

// From byte `i` of the tokens' keys on.
HWY_INLINE Units transpose_units(const std::byte* const* keys, std::int64_t i) {
  const auto piece = [&](int t) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(keys[t] + i));
  };
  // Block b of a row is of token 4 b + t.
  const auto row = [&](int t) {
    __m512i x = _mm512_castsi128_si512(piece(t));
    x = _mm512_inserti32x4(x, piece(t + 4), 1);
    x = _mm512_inserti32x4(x, piece(t + 8), 2);
    return _mm512_inserti32x4(x, piece(t + 12), 3);
  };
  const __m512i row0 = row(0);
  const __m512i row1 = row(1);
  const __m512i row2 = row(2);
  const __m512i row3 = row(3);
  const __m512i low01 = _mm512_unpacklo_epi32(row0, row1);
  const __m512i high01 = _mm512_unpackhi_epi32(row0, row1);
  const __m512i low23 = _mm512_unpacklo_epi32(row2, row3);
  const __m512i high23 = _mm512_unpackhi_epi32(row2, row3);
  const __m512i sign = _mm512_set1_epi8(-128);
  return {_mm512_xor_si512(_mm512_unpacklo_epi64(low01, low23), sign),
          _mm512_xor_si512(_mm512_unpackhi_epi64(low01, low23), sign),
          _mm512_xor_si512(_mm512_unpacklo_epi64(high01, high23), sign),
          _mm512_xor_si512(_mm512_unpackhi_epi64(high01, high23), sign)};
}

// Adds to each lane the four products of its codes with a limb of each. As an instruction:
// Highway's target for this processor does not name it, and a function of another target could not
// be inlined.
HWY_INLINE void add_products(__m512i& sum, __m512i codes, const std::int32_t* limb) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*limb));
}

// The scores of one query vector and 16 tokens, by limbs.
struct LimbSums {
  __m512i sum0, sum1, sum2;

  HWY_INLINE explicit LimbSums(const LimbsHead& head)
      : sum0(_mm512_set1_epi32(head.start[0])),
        sum1(_mm512_set1_epi32(head.start[1])),
        sum2(_mm512_set1_epi32(head.start[2])) {}

  // Of numbers [i, i + kRow) of the vectors.
  HWY_INLINE void add(const Units& units, const LimbsHead& head, std::size_t i) {
    const auto* const all = reinterpret_cast<const std::int32_t*>(&head + 1);
    const std::int32_t* const limbs = all + i / kUnit * kLimbs;
    add_unit(units.unit0, limbs);
    add_unit(units.unit1, limbs + kLimbs);
    add_unit(units.unit2, limbs + 2 * kLimbs);
    add_unit(units.unit3, limbs + 3 * kLimbs);
  }

  HWY_INLINE void add_unit(__m512i codes, const std::int32_t* limbs) {
    add_products(sum0, codes, limbs);
    add_products(sum1, codes, limbs + 1);
    add_products(sum2, codes, limbs + 2);
  }

  HWY_INLINE __m512 result(const LimbsHead& head) const {
    const __m512 base = _mm512_set1_ps(256);
    __m512 sum = _mm512_cvtepi32_ps(sum2);
    sum = _mm512_fmadd_ps(sum, base, _mm512_cvtepi32_ps(sum1));
    sum = _mm512_fmadd_ps(sum, base, _mm512_cvtepi32_ps(sum0));
    return _mm512_mul_ps(sum, _mm512_set1_ps(head.scale));
  }
};

// scores[q * stride + t] = scale of t * dot(queries[q], key t) for the tokens of a tile and up to
// four queries. Writes whole vectors.
template <std::size_t kQueries>
HWY_NOINLINE void score_units(const Tile& tile, const float* const* queries, float* scores,
                              std::size_t stride) {
  const std::size_t dim = tile.dim;
  const auto head_of = [&](std::size_t j) {
    return reinterpret_cast<const LimbsHead*>(queries[std::min(j, kQueries - 1)] + dim);
  };
  const LimbsHead& head0 = *head_of(0);
  const LimbsHead& head1 = *head_of(1);
  const LimbsHead& head2 = *head_of(2);
  const LimbsHead& head3 = *head_of(3);
  // Tokens of what comes next that are prefetched beside four units.
  const std::size_t at_once = tile.next.bytes == 0 ? 0 : (16 * kRow + dim - 1) / dim;
  for (std::size_t first = 0; first < tile.tokens; first += 16) {
    const std::size_t end = std::min(first + 16, tile.tokens);
    // A few tokens at the end are filled up with the last.
    const std::byte* filled[16];
    const std::byte* const* addresses = tile.values + first;
    if (first + 16 > end) {
      for (std::size_t t = 0; t < 16; ++t) filled[t] = tile.values[std::min(first + t, end - 1)];
      addresses = filled;
    }
    LimbSums sums0(head0);
    LimbSums sums1(head1);
    LimbSums sums2(head2);
    LimbSums sums3(head3);
    // Units are transposed while those before are multiplied.
    Units units = transpose_units(addresses, tile.offset);
    for (std::size_t i = 0; i < dim; i += kRow) {
      const std::size_t wanted = first + i / kRow * at_once;
      for (std::size_t t = wanted; t < std::min(wanted + at_once, end); ++t) fetch_next(tile, t);
      // Hides from the compiler that these are the addresses of the last iteration: it would keep
      // all of them, in vector registers.
      asm("" : "+r"(addresses));
      const std::size_t after = std::min(i + kRow, dim - kRow);
      const Units next = transpose_units(addresses, tile.offset + static_cast<std::int64_t>(after));
      sums0.add(units, head0, i);
      if constexpr (kQueries > 1) sums1.add(units, head1, i);
      if constexpr (kQueries > 2) sums2.add(units, head2, i);
      if constexpr (kQueries > 3) sums3.add(units, head3, i);
      units = next;
    }
    const __m512 scale = _mm512_loadu_ps(tile.scales + first);
    float* const to = scores + first;
    _mm512_storeu_ps(to, _mm512_mul_ps(sums0.result(head0), scale));
    if constexpr (kQueries > 1) {
      _mm512_storeu_ps(to + stride, _mm512_mul_ps(sums1.result(head1), scale));
    }
    if constexpr (kQueries > 2) {
      _mm512_storeu_ps(to + 2 * stride, _mm512_mul_ps(sums2.result(head2), scale));
    }
    if constexpr (kQueries > 3) {
      _mm512_storeu_ps(to + 3 * stride, _mm512_mul_ps(sums3.result(head3), scale));
    }
  }
}

// Scores of a tile for `vectors` queries, `stride` floats apart.
inline void score_limbs(Tile tile, const float* const* queries, std::size_t vectors, float* scores,
                        std::size_t stride) {
  for (std::size_t v = 0; v < vectors; v += 4) {
    const std::size_t count = std::min<std::size_t>(4, vectors - v);
    float* const rows = scores + v * stride;
    if (count == 1) score_units<1>(tile, queries + v, rows, stride);
    if (count == 2) score_units<2>(tile, queries + v, rows, stride);
    if (count == 3) score_units<3>(tile, queries + v, rows, stride);
    if (count == 4) score_units<4>(tile, queries + v, rows, stride);
    tile.next.bytes = 0;  // prefetched already
  }
}

#else

inline bool uses_limbs(const QuantFormat& /*format*/, std::int64_t /*dim*/) { return false; }
inline std::size_t limbs_floats(std::size_t /*dim*/) { return 0; }
inline void make_limbs(const float* /*query*/, std::size_t /*dim*/, float* /*to*/) {}
inline bool has_limbs(const float* /*query*/, std::size_t /*dim*/) { return false; }
inline void score_limbs(const Tile& /*tile*/, const float* const* /*queries*/,
                        std::size_t /*vectors*/, float* /*scores*/, std::size_t /*stride*/) {}

#endif  // TOUCHSTONE_PAGED_LIMBS

}  // namespace touchstone::paged_attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
