// Scores of int8 keys in whole numbers, where the processor sums four products of bytes at once
// (AVX-512 VNNI). No #pragma once: read once per target, after cpu/simd.h.
//
// The query vector becomes whole numbers of 24 bits times one scale, q = scale * i, and these three
// digits to base 256, each from -128 to 127, so |i| <= 127 * 65536 + 127 * 256 + 127:
//
//   i = 65536 d2 + 256 d1 + d0        dot(i, codes) = 65536 dot(d2, codes) + ...
//
// Sums of digits times codes are exact: at most 1024 * 128 * 128 = 2^24, which a float holds too.
// What is lost is the rounding of q, at most 2^-24 of its largest number in each product:
//
//   |error of the score| <= 2^-24 * max|q| * sum|k| + the last roundings, some 2^-22 of the score
//
// A sum in f32 of 128 numbers loses up to 12 * 2^-24 * sum|q k| (8 additions in each of 16 lanes,
// then 4). Two digits, 2^-16 * max|q| * sum|k|, would not keep what the header promises. Queries
// with max|q| > 32 mean|q|, where the former may be much more than the latter, and those with NaN,
// infinity or next to nothing are left to the kernel for floats. That is a property of the query
// alone, as its bits must be.
//
// The instruction wants one factor without a sign. The codes are it, 128 too high; the sums begin
// with what that will add, negated. Lanes are tokens, so that no sum runs over lanes: tokens are
// transposed in units of four codes, once for all queries, while those before are multiplied.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cache/codec.h"
#include "cpu/simd.h"
#include "ops/attention/attention_cpu.h"
#include "ops/attention/attention_cpu_tile.h"

#if defined(TOUCHSTONE_ATTENTION_CPU_DIGITS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_ATTENTION_CPU_DIGITS_H_
#undef TOUCHSTONE_ATTENTION_CPU_DIGITS_H_
#else
#define TOUCHSTONE_ATTENTION_CPU_DIGITS_H_
#endif

#undef TOUCHSTONE_ATTENTION_DIGITS
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#include <immintrin.h>
#define TOUCHSTONE_ATTENTION_DIGITS 1
#else
#define TOUCHSTONE_ATTENTION_DIGITS 0
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::attend::HWY_NAMESPACE {

#if TOUCHSTONE_ATTENTION_DIGITS

// Highway's target for this processor does not name the instruction.
#define TOUCHSTONE_VNNI __attribute__((target(HWY_TARGET_STR ",avx512vnni")))

constexpr std::size_t kDigits = 3;
// Codes of a token in a unit of the transposed keys.
constexpr std::size_t kUnit = 4;
// Dims must be multiples of this.
constexpr std::size_t kRow = 4 * kUnit;

// What is known of a query vector beside its floats; then kDigits integers for each unit.
struct DigitsHead {
  float scale;
  std::int32_t usable;
  std::int32_t start[kDigits];  // of a sum, for codes that are 128 too high
  std::int32_t unused[11];
};
static_assert(sizeof(DigitsHead) == 64);

inline bool uses_digits(const cache::Format& format, std::int64_t dim) {
  static const bool has_vnni = __builtin_cpu_supports("avx512vnni") != 0;
  return has_vnni && format.encoding == cache::Encoding::int8 && !format.asymmetric &&
         dim % static_cast<std::int64_t>(kRow) == 0 && cache::group_length(format, dim) == dim;
}

// Floats that a query vector takes beside its own.
inline std::size_t digits_floats(std::size_t dim) {
  return sizeof(DigitsHead) / sizeof(float) + kDigits * dim / kUnit;
}

// Writes digits_floats(dim) of them.
inline void make_digits(const float* query, std::size_t dim, float* to) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::int8_t, D> d8;
  auto* const head = reinterpret_cast<DigitsHead*>(to);
  auto* const digits = reinterpret_cast<std::int32_t*>(head + 1);
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
  constexpr float kMost = 0x7f7f7e;  // 127 * 65536 + 127 * 256 + 126
  head->usable = 1;
  head->scale = most / kMost;
  const V factor = hn::Set(d, kMost / most);
  hn::Vec<decltype(di)> sums[kDigits] = {hn::Zero(di), hn::Zero(di), hn::Zero(di)};
  for (std::size_t i = 0; i < dim; i += kLanes) {
    auto rest = hn::NearestInt(hn::Mul(hn::LoadU(d, query + i), factor));
    for (std::size_t n = 0; n < kDigits; ++n) {
      const auto digit = hn::ShiftRight<24>(hn::ShiftLeft<24>(rest));
      rest = hn::ShiftRight<8>(hn::Sub(rest, digit));
      sums[n] = hn::Sub(sums[n], digit);
      alignas(16) std::int32_t units[kLanes / kUnit];
      hn::StoreU(hn::DemoteTo(d8, digit), d8, reinterpret_cast<std::int8_t*>(units));
      for (std::size_t u = 0; u < kLanes / kUnit; ++u) {
        digits[(i / kUnit + u) * kDigits + n] = units[u];
      }
    }
  }
  for (std::size_t n = 0; n < kDigits; ++n) {
    head->start[n] = 128 * hn::GetLane(hn::SumOfLanes(di, sums[n]));
  }
}

// Whether the vector, with its digits after it, is given as whole numbers.
inline bool has_digits(const float* query, std::size_t dim) {
  return reinterpret_cast<const DigitsHead*>(query + dim)->usable != 0;
}

// Four units of 16 tokens from byte `i` of their keys on: to[n][t] = unit n of token t, 128 added
// to its codes.
HWY_INLINE void transpose_units(const std::byte* const* keys, std::int64_t i, __m512i* to,
                                std::size_t stride) {
  const auto piece = [&](int t) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(keys[t] + i));
  };
  // Block b of rows[t] is of token 4 b + t.
  __m512i rows[4];
  for (int t = 0; t < 4; ++t) {
    rows[t] = _mm512_castsi128_si512(piece(t));
    rows[t] = _mm512_inserti32x4(rows[t], piece(t + 4), 1);
    rows[t] = _mm512_inserti32x4(rows[t], piece(t + 8), 2);
    rows[t] = _mm512_inserti32x4(rows[t], piece(t + 12), 3);
  }
  const __m512i low01 = _mm512_unpacklo_epi32(rows[0], rows[1]);
  const __m512i high01 = _mm512_unpackhi_epi32(rows[0], rows[1]);
  const __m512i low23 = _mm512_unpacklo_epi32(rows[2], rows[3]);
  const __m512i high23 = _mm512_unpackhi_epi32(rows[2], rows[3]);
  const __m512i sign = _mm512_set1_epi8(-128);
  _mm512_store_si512(to, _mm512_xor_si512(_mm512_unpacklo_epi64(low01, low23), sign));
  _mm512_store_si512(to + stride, _mm512_xor_si512(_mm512_unpackhi_epi64(low01, low23), sign));
  _mm512_store_si512(to + 2 * stride,
                     _mm512_xor_si512(_mm512_unpacklo_epi64(high01, high23), sign));
  _mm512_store_si512(to + 3 * stride,
                     _mm512_xor_si512(_mm512_unpackhi_epi64(high01, high23), sign));
}

// Not __m512i, whose lanes are of 64 bits to the compiler: it would keep each sum twice.
using Sums = std::int32_t __attribute__((vector_size(64)));

TOUCHSTONE_VNNI HWY_INLINE Sums add_products(Sums sums, __m512i codes, __m512i digit) {
  return reinterpret_cast<Sums>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), codes, digit));
}

HWY_INLINE __m512 as_floats(Sums sums) {
  return _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(sums));
}

// Tokens whose keys are transposed, kGroups vectors of them.
constexpr std::size_t kGroups = 2;
constexpr std::size_t kTransposed = kGroups * 16;
using Units = __m512i[kMostDim / kUnit][kGroups];

// Units [unit, unit + 4) of the tokens whose keys are `offset` bytes after these places.
HWY_INLINE void transpose(const std::byte* const* places, std::int64_t offset, std::size_t unit,
                          Units& to) {
  const std::int64_t i = offset + static_cast<std::int64_t>(unit * kUnit);
  for (std::size_t g = 0; g < kGroups; ++g) {
    transpose_units(places + 16 * g, i, &to[unit][g], kGroups);
  }
}

// What the first block of queries does beside its own work: transposes the keys of the next tokens,
// and asks for what comes after the tile.
struct Beside {
  const std::byte* const* places = nullptr;  // null: there are none
  std::int64_t offset = 0;
  Units* units = nullptr;
  const std::byte* const* wanted = nullptr;
  std::int64_t wanted_offset = 0;
  std::size_t wanted_tokens = 0;  // kTransposed at most
  std::size_t wanted_bytes = 0;   // of each
  std::size_t at_once = 0;        // tokens for four units

  // The part of it that goes with units [unit, unit + 4) of a vector.
  HWY_INLINE void work(std::size_t unit) const {
    if (places != nullptr) transpose(places, offset, unit, *units);
    const std::size_t end = std::min((unit / 4 + 1) * at_once, wanted_tokens);
    for (std::size_t t = unit / 4 * at_once; t < end; ++t) {
      const std::byte* const from = wanted[t] + wanted_offset;
      for (std::size_t i = 0; i < wanted_bytes; i += 64) sd::prefetch(from + i);
    }
  }
};

// scores[q * stride + t] = scales[t] * dot(queries[q], key t) for the tokens in `units`.
template <std::size_t kQueries, bool kFirst>
TOUCHSTONE_VNNI HWY_NOINLINE void score_units(const Units& units, std::size_t dim,
                                              const float* const* queries, const float* scales,
                                              float* scores, std::size_t stride,
                                              const Beside& beside) {
  const DigitsHead* heads[kQueries];
  const std::int32_t* digits[kQueries];
  Sums sums[kQueries][kDigits][kGroups];
  for (std::size_t j = 0; j < kQueries; ++j) {
    heads[j] = reinterpret_cast<const DigitsHead*>(queries[j] + dim);
    digits[j] = reinterpret_cast<const std::int32_t*>(heads[j] + 1);
    for (std::size_t n = 0; n < kDigits; ++n) {
      for (Sums& sum : sums[j][n]) sum = Sums{} + heads[j]->start[n];
    }
  }
  for (std::size_t u = 0; u < dim / kUnit; u += 4) {
    if constexpr (kFirst) beside.work(u);
    for (std::size_t k = u; k < u + 4; ++k) {
      for (std::size_t j = 0; j < kQueries; ++j) {
        for (std::size_t n = 0; n < kDigits; ++n) {
          const __m512i digit = _mm512_set1_epi32(digits[j][k * kDigits + n]);
          for (std::size_t g = 0; g < kGroups; ++g) {
            sums[j][n][g] = add_products(sums[j][n][g], units[k][g], digit);
          }
        }
      }
    }
  }
  for (std::size_t j = 0; j < kQueries; ++j) {
    for (std::size_t g = 0; g < kGroups; ++g) {
      __m512 sum = as_floats(sums[j][2][g]);
      sum = _mm512_fmadd_ps(sum, _mm512_set1_ps(256), as_floats(sums[j][1][g]));
      sum = _mm512_fmadd_ps(sum, _mm512_set1_ps(256), as_floats(sums[j][0][g]));
      sum = _mm512_mul_ps(sum, _mm512_set1_ps(heads[j]->scale));
      sum = _mm512_mul_ps(sum, _mm512_loadu_ps(scales + 16 * g));
      _mm512_storeu_ps(scores + j * stride + 16 * g, sum);
    }
  }
}

// Scores of a tile for `vectors` queries, `stride` floats apart. Writes whole vectors.
HWY_NOINLINE void score_digits(const Tile& tile, const float* const* queries, std::size_t vectors,
                               float* scores, std::size_t stride) {
  alignas(64) Units units[2];
  // A few tokens at the end are filled up with the last.
  const std::byte* last[kTransposed];
  const auto places_from = [&](std::size_t first) {
    if (first + kTransposed <= tile.tokens) return tile.values + first;
    for (std::size_t t = 0; t < kTransposed; ++t) {
      last[t] = tile.values[std::min(first + t, tile.tokens - 1)];
    }
    return static_cast<const std::byte* const*>(last);
  };
  const std::byte* const* const places = places_from(0);
  for (std::size_t u = 0; u < tile.dim / kUnit; u += 4) {
    transpose(places, tile.offset, u, units[0]);
  }
  for (std::size_t first = 0; first < tile.tokens; first += kTransposed) {
    const Units& these = units[first / kTransposed % 2];
    Beside beside{.offset = tile.offset, .units = &units[(first / kTransposed + 1) % 2]};
    if (first + kTransposed < tile.tokens) beside.places = places_from(first + kTransposed);
    if (tile.next.bytes != 0) {
      beside.wanted = tile.next.values + first;
      beside.wanted_offset = tile.next.offset;
      beside.wanted_tokens = std::min(kTransposed, tile.tokens - first);
      beside.wanted_bytes = tile.next.bytes;
      beside.at_once = (kTransposed * kRow + tile.dim - 1) / tile.dim;
    }
    for (std::size_t v = 0; v < vectors;) {
      const std::size_t count = std::min<std::size_t>(4, vectors - v);
      const auto score = [&]<std::size_t kQueries>() {
        const auto units_of = v == 0 ? score_units<kQueries, true> : score_units<kQueries, false>;
        units_of(these, tile.dim, queries + v, tile.scales + first, scores + v * stride + first,
                 stride, beside);
      };
      if (count == 1) score.template operator()<1>();
      if (count == 2) score.template operator()<2>();
      if (count == 3) score.template operator()<3>();
      if (count == 4) score.template operator()<4>();
      v += count;
    }
  }
}

#else

inline bool uses_digits(const cache::Format& /*format*/, std::int64_t /*dim*/) { return false; }
inline std::size_t digits_floats(std::size_t /*dim*/) { return 0; }
inline void make_digits(const float* /*query*/, std::size_t /*dim*/, float* /*to*/) {}
inline bool has_digits(const float* /*query*/, std::size_t /*dim*/) { return false; }
inline void score_digits(const Tile& /*tile*/, const float* const* /*queries*/,
                         std::size_t /*vectors*/, float* /*scores*/, std::size_t /*stride*/) {}

#endif  // TOUCHSTONE_ATTENTION_DIGITS

}  // namespace touchstone::attend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
