// The sums of linear from ternary weights with int8 activations: see linear_ternary.h.
//
// Formats with planes of 32 bytes are multiplied from their storage: a byte of codes gives, shifted and
// masked, four operands of an unsigned by signed product. Codes are stored plus 1; the sum of the integers
// takes that back. Other formats are unpacked, a segment of a panel at a time, for all rows of x.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/ternary_layout.h"
#include "cpu/ternary_unpack.h"
#include "ops/linear/linear_ternary.h"
#include "ops/linear/linear_tuning.h"
#include "touchstone/core/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/linear_ternary_cpu.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cpu/simd.h"
#include "ops/linear/linear_cpu_dot.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::linear_layer::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = simd::HWY_NAMESPACE;

constexpr std::int64_t kUnit = 128;  // columns to 32 bytes of codes
constexpr std::int64_t kUnitsOfSegment = kSegment / kUnit;

HWY_INLINE float f16_at(const std::byte* p) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, p, 2);
#if TOUCHSTONE_SIMD_F16C
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
#else
  return static_cast<float>(F16::from_bits(bits));
#endif
}

HWY_INLINE float fused(float a, float b, float c) {
#if HWY_TARGET != HWY_SCALAR && HWY_ARCH_X86
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
#else
  return std::fma(a, b, c);
#endif
}

// ---- planes of 32 bytes ----------------------------------------------------------------------------

// Byte offsets in a block, constexpr for addressing in the innermost loop.
template <std::int64_t kBytes, std::int64_t kCodes, std::int64_t kScale, std::int64_t kUnits>
struct PlaneFormat {
  static constexpr std::int64_t kBlockBytes = kBytes;
  static constexpr std::int64_t kUnitsOfBlock = kUnits;  // 2 for blocks of 256 columns

  static HWY_INLINE const std::byte* unit(const std::byte* segment, std::int64_t u) {
    return segment + u / kUnits * kBytes + kCodes + u % kUnits * 32;
  }
  static HWY_INLINE const std::byte* scale(const std::byte* segment, std::int64_t group) {
    return segment + group * kBytes + kScale;
  }
};
using TernaryG128 = PlaneFormat<34, 0, 32, 1>;
using Pq2 = PlaneFormat<34, 2, 0, 1>;
using Tq2 = PlaneFormat<66, 0, 64, 2>;

#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR

HWY_INLINE __m256i load_32(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

// Adds the four lanes of each 128 bits of four vectors: lane i of the result is vector i's.
HWY_INLINE __m256i add_lanes(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  const __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
  return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
}

// Products of the four planes of two bytes each, added: at most 4 * 2 * 3 * 127 fit 16 bits.
HWY_INLINE __m256i unit_products(__m256i v, const std::int8_t* x, std::int64_t step) {
  const __m256i three = _mm256_set1_epi8(3);
  __m256i sum = _mm256_maddubs_epi16(_mm256_and_si256(v, three), load_32(x));
  sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(v, 2), three),
                                                   load_32(x + step)));
  sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(v, 4), three),
                                                   load_32(x + 2 * step)));
  sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(v, 6), three),
                                                   load_32(x + 3 * step)));
  return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

// The sums of the eight units of a segment.
template <class Format, std::size_t kX, bool kVnni>
HWY_INLINE void eight_units(const std::byte* w, const std::int8_t* const* x,
                            std::int32_t* const* sums) {
#if HWY_TARGET <= HWY_AVX3
  const __m512i three = _mm512_set1_epi8(3);
  const __m512i ones = _mm512_set1_epi16(1);
  __m512i acc[kX][4];
  for (std::size_t pair = 0; pair < 4; ++pair) {
    const auto u = static_cast<std::int64_t>(2 * pair);
    const __m512i v = _mm512_inserti64x4(_mm512_castsi256_si512(load_32(Format::unit(w, u))),
                                         load_32(Format::unit(w, u + 1)), 1);
    const __m512i c0 = _mm512_and_si512(v, three);
    const __m512i c1 = _mm512_and_si512(_mm512_srli_epi16(v, 2), three);
    const __m512i c2 = _mm512_and_si512(_mm512_srli_epi16(v, 4), three);
    const __m512i c3 = _mm512_and_si512(_mm512_srli_epi16(v, 6), three);
    for (std::size_t r = 0; r < kX; ++r) {
      const std::int8_t* const q = x[r] + 256 * pair;
      if constexpr (kVnni) {
        const __m512i zero = _mm512_setzero_si512();
        acc[r][pair] = _mm512_add_epi32(vnni_dot4(vnni_dot4(zero, c0, q), c1, q + 64),
                                        vnni_dot4(vnni_dot4(zero, c2, q + 128), c3, q + 192));
        continue;
      }
      const __m512i a = _mm512_add_epi16(_mm512_maddubs_epi16(c0, _mm512_loadu_si512(q)),
                                         _mm512_maddubs_epi16(c1, _mm512_loadu_si512(q + 64)));
      const __m512i b = _mm512_add_epi16(_mm512_maddubs_epi16(c2, _mm512_loadu_si512(q + 128)),
                                         _mm512_maddubs_epi16(c3, _mm512_loadu_si512(q + 192)));
      acc[r][pair] = _mm512_madd_epi16(_mm512_add_epi16(a, b), ones);
    }
  }
  for (std::size_t r = 0; r < kX; ++r) {
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(acc[r][0], acc[r][1]),
                                        _mm512_unpackhi_epi32(acc[r][0], acc[r][1]));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(acc[r][2], acc[r][3]),
                                        _mm512_unpackhi_epi32(acc[r][2], acc[r][3]));
    const __m512i all =
        _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    // Quarters 0 and 1 are the first of each pair, 2 and 3 the second.
    const __m256i low = _mm512_castsi512_si256(all);
    const __m256i high = _mm512_extracti64x4_epi64(all, 1);
    const __m128i even =
        _mm_add_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    const __m128i odd =
        _mm_add_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm256_store_si256(
        reinterpret_cast<__m256i*>(sums[r]),
        _mm256_set_m128i(_mm_unpackhi_epi32(even, odd), _mm_unpacklo_epi32(even, odd)));
  }
#else
  for (std::size_t half = 0; half < 8; half += 4) {
    for (std::size_t r = 0; r < kX; ++r) {
      __m256i acc[4];
      for (std::size_t i = 0; i < 4; ++i) {
        const std::size_t u = half + i;
        acc[i] = unit_products(load_32(Format::unit(w, static_cast<std::int64_t>(u))),
                               x[r] + u / 2 * 256 + u % 2 * 32, 64);
      }
      const __m256i all = add_lanes(acc[0], acc[1], acc[2], acc[3]);
      _mm_storeu_si128(
          reinterpret_cast<__m128i*>(sums[r] + half),
          _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
    }
  }
#endif
}

// One unit.
HWY_INLINE std::int32_t one_unit(const std::byte* codes, const std::int8_t* x) {
  const __m256i sums = unit_products(load_32(codes), x, 64);
  const __m128i four =
      _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 1);
}

#else

HWY_INLINE std::int32_t one_unit(const std::byte* codes, const std::int8_t* x) {
  std::int32_t sum = 0;
  for (std::int64_t i = 0; i < 32; ++i) {
    const auto byte = static_cast<unsigned>(codes[i]);
    for (unsigned k = 0; k < 4; ++k) {
      sum += static_cast<std::int32_t>(byte >> (2 * k) & 3U) * x[64 * k + i];
    }
  }
  return sum;
}

template <class Format, std::size_t kX, bool kVnni>
HWY_INLINE void eight_units(const std::byte* w, const std::int8_t* const* x,
                            std::int32_t* const* sums) {
  for (std::size_t r = 0; r < kX; ++r) {
    for (std::size_t u = 0; u < 8; ++u) {
      sums[r][u] =
          one_unit(Format::unit(w, static_cast<std::int64_t>(u)), x[r] + u / 2 * 256 + u % 2 * 32);
    }
  }
}

#endif

// Rows of W whose sums are added side by side, in the lanes of vectors.
constexpr std::size_t kRowBlock = 8;

// Sums of units, or scales of groups: [row of W][unit or group], zeros after the last.
template <class T>
struct RowBlock {
  alignas(32) T at[kRowBlock][8];
};

template <class Format>
HWY_INLINE void load_scales(const std::byte* w, std::int64_t groups, float* to) {
#if TOUCHSTONE_SIMD_F16C
  constexpr std::int64_t kGroups = kUnitsOfSegment / Format::kUnitsOfBlock;
  if (groups == kGroups) {
    // One conversion for all: the halves are put together from memory.
    const auto at = [&](std::int64_t g) HWY_ATTR {
      std::uint16_t half = 0;
      std::memcpy(&half, Format::scale(w, g), 2);
      return static_cast<int>(half);
    };
    __m128i bits = _mm_insert_epi16(_mm_cvtsi32_si128(at(0)), at(1), 1);
    bits = _mm_insert_epi16(_mm_insert_epi16(bits, at(2), 2), at(3), 3);
    if constexpr (kGroups == 8) {
      bits = _mm_insert_epi16(_mm_insert_epi16(bits, at(4), 4), at(5), 5);
      bits = _mm_insert_epi16(_mm_insert_epi16(bits, at(6), 6), at(7), 7);
    }
    _mm256_store_ps(to, _mm256_cvtph_ps(bits));
    return;
  }
#endif
  for (std::int64_t g = 0; g < 8; ++g) to[g] = g < groups ? f16_at(Format::scale(w, g)) : 0.0F;
}

#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR

HWY_INLINE void transpose(__m256 (&v)[8]) {
  __m256 t[8];
  for (std::size_t i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
  }
  __m256 u[8];
  for (std::size_t i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    v[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

// Adds the groups of a segment to the totals of eight rows of W. Sums of 256 columns are below 2^24: exact
// in f32.
template <class Format>
HWY_INLINE void add_groups(const RowBlock<std::int32_t>& sums, const std::int32_t* of_x,
                           const RowBlock<float>& scales, float* totals) {
  const __m256i minus = load_32(of_x);
  __m256 s[8];
  __m256 v[8];
  for (std::size_t o = 0; o < kRowBlock; ++o) {
    s[o] = _mm256_load_ps(scales.at[o]);
    v[o] = _mm256_cvtepi32_ps(_mm256_sub_epi32(load_32(sums.at[o]), minus));
  }
  transpose(s);
  transpose(v);
  __m256 acc = _mm256_setzero_ps();
  for (std::size_t u = 0; u < 8; u += Format::kUnitsOfBlock) {
    const __m256 value = Format::kUnitsOfBlock == 1 ? v[u] : _mm256_add_ps(v[u], v[u + 1]);
    acc = _mm256_fmadd_ps(s[u / Format::kUnitsOfBlock], value, acc);
  }
  _mm256_storeu_ps(totals, _mm256_add_ps(_mm256_loadu_ps(totals), acc));
}

#else

template <class Format>
HWY_INLINE void add_groups(const RowBlock<std::int32_t>& sums, const std::int32_t* of_x,
                           const RowBlock<float>& scales, float* totals) {
  for (std::size_t o = 0; o < kRowBlock; ++o) {
    float acc = 0;
    for (std::size_t u = 0; u < 8; u += Format::kUnitsOfBlock) {
      std::int32_t sum = 0;
      for (std::size_t i = u; i < u + Format::kUnitsOfBlock; ++i) sum += sums.at[o][i] - of_x[i];
      acc = fused(scales.at[o][u / Format::kUnitsOfBlock], static_cast<float>(sum), acc);
    }
    totals[o] += acc;
  }
}

#endif

// kX rows of x by kRowBlock rows of W: totals[r * kTernaryPanel + o]. What lies `ahead` bytes further is
// prefetched, unless that is 0.
template <class Format, std::size_t kX, bool kVnni>
HWY_INLINE void plane_rows(const std::byte* const* rows, const Forward& p,
                           const std::byte* const* x, std::int64_t ahead, float* totals) {
  constexpr std::int64_t kLine = 64;  // bytes
  constexpr std::int64_t kSegmentBytes =
      kUnitsOfSegment / Format::kUnitsOfBlock * Format::kBlockBytes;
  const std::int64_t units = p.in / kUnit;
  const std::int64_t sums_offset = ternary_sums_offset(p);
  for (std::size_t r = 0; r < kX; ++r) std::fill_n(totals + r * kTernaryPanel, kRowBlock, 0.0F);
  for (std::int64_t first = 0; first < units; first += kUnitsOfSegment) {
    const std::int64_t count = std::min(kUnitsOfSegment, units - first);
    const std::int64_t offset = first / Format::kUnitsOfBlock * Format::kBlockBytes;
    const std::int8_t* q[kX];
    for (std::size_t r = 0; r < kX; ++r) {
      q[r] = reinterpret_cast<const std::int8_t*>(x[r]) + first * kUnit;
    }
    RowBlock<float> scales;
    RowBlock<std::int32_t> sums[kX];
    for (std::size_t o = 0; o < kRowBlock; ++o) {
      const std::byte* const w = rows[o] + offset;
      if (ahead != 0) {
        for (std::int64_t i = 0; i < kSegmentBytes; i += kLine) sd::prefetch(w + ahead + i);
      }
      load_scales<Format>(w, count / Format::kUnitsOfBlock, scales.at[o]);
      std::int32_t* to[kX];
      for (std::size_t r = 0; r < kX; ++r) to[r] = sums[r].at[o];
      if (count == kUnitsOfSegment) {
        eight_units<Format, kX, kVnni>(w, q, to);
        continue;
      }
      for (std::size_t r = 0; r < kX; ++r) {
        for (std::int64_t u = 0; u < 8; ++u) {
          to[r][u] = u < count ? one_unit(Format::unit(w, u), q[r] + u / 2 * 256 + u % 2 * 32) : 0;
        }
      }
    }
    for (std::size_t r = 0; r < kX; ++r) {
      const auto* const of_x = reinterpret_cast<const std::int32_t*>(x[r] + sums_offset) + first;
      add_groups<Format>(sums[r], of_x, scales, totals + r * kTernaryPanel);
    }
  }
}

template <class Format, bool kVnni>
HWY_NOINLINE void plane_panel_as(const TernaryJob& job, std::int64_t panel, float* totals) {
  const Forward& p = *job.p;
  constexpr std::size_t kMax = 4;
  for (std::int64_t r = 0; r < job.rows; r += kMax) {
    const std::byte* x[kMax];
    for (std::size_t i = 0; i < kMax; ++i) {
      x[i] = job.x + std::min(r + static_cast<std::int64_t>(i), job.rows - 1) * job.x_stride;
    }
    for (std::int64_t o = 0; o < kTernaryPanel; o += kRowBlock) {
      const std::byte* rows[kRowBlock];
      for (std::size_t i = 0; i < kRowBlock; ++i) {
        rows[i] = ternary_panel_row(job, panel, o + static_cast<std::int64_t>(i));
      }
      float* const to = totals + r * kTernaryPanel + o;
      // Rows of W some kilobytes further on, once.
      const std::int64_t block = kRowBlock * p.weight.row_bytes;
      const std::int64_t next =
          block > 0 ? (tuning::kTernaryPrefetchBytes + block - 1) / block * block : 0;
      if (job.rows - r >= 4) {
        plane_rows<Format, 4, kVnni>(rows, p, x, r == 0 ? next : 0, to);
      } else {
        for (std::int64_t i = 0; i < job.rows - r; ++i) {
          const std::int64_t ahead = r + i == 0 ? next : 0;
          plane_rows<Format, 1, kVnni>(rows, p, x + i, ahead, to + i * kTernaryPanel);
        }
      }
    }
  }
}

template <class Format>
HWY_INLINE void plane_panel(const TernaryJob& job, std::int64_t panel, float* totals) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if (has_vnni()) return plane_panel_as<Format, true>(job, panel, totals);
#endif
  plane_panel_as<Format, false>(job, panel, totals);
}

// ---- other formats ---------------------------------------------------------------------------------

template <int kCount>
HWY_INLINE std::int32_t dot(const std::int8_t* a, const std::int8_t* b) {
  std::int32_t sum = 0;
  for (int i = 0; i < kCount; ++i) sum += a[i] * b[i];
  return sum;
}

template <WeightFormatId kId>
HWY_NOINLINE void unpacked_panel(const TernaryJob& job, std::int64_t panel, float* totals) {
  constexpr ternary::Layout kLayout = ternary::layout_of(kId);
  const Forward& p = *job.p;
  const std::int64_t block_bytes = p.weight.format->block_bytes;
  std::int8_t codes[kSegment];
  float scales[kSegment / kLayout.elements];
  std::fill_n(totals, job.rows * kTernaryPanel, 0.0F);
  for (std::int64_t o = 0; o < kTernaryPanel; ++o) {
    const std::byte* const row = ternary_panel_row(job, panel, o);
    for (std::int64_t first = 0; first < p.in; first += kSegment) {
      const std::int64_t groups = std::min(kSegment, p.in - first) / kLayout.elements;
      const std::byte* const blocks = row + first / kLayout.elements * block_bytes;
      for (std::int64_t g = 0; g < groups; ++g) {
        const std::byte* const block = blocks + g * block_bytes;
        ternary::unpack_block<kId>(reinterpret_cast<const std::uint8_t*>(block),
                                   codes + g * kLayout.elements);
        scales[g] = f16_at(block + kLayout.scale);
      }
      for (std::int64_t r = 0; r < job.rows; ++r) {
        const auto* const q =
            reinterpret_cast<const std::int8_t*>(job.x + r * job.x_stride) + first;
        float acc = 0;
        for (std::int64_t g = 0; g < groups; ++g) {
          const std::int64_t at = g * kLayout.elements;
          acc =
              fused(scales[g], static_cast<float>(dot<kLayout.elements>(codes + at, q + at)), acc);
        }
        totals[r * kTernaryPanel + o] += acc;
      }
    }
  }
}

// ---- x ---------------------------------------------------------------------------------------------

// Sums of every 128 columns, and the planes of pairs of them side by side.
HWY_INLINE void store_planes(const Forward& p, const std::int8_t* q, std::byte* to) {
  auto* const planes = reinterpret_cast<std::int8_t*>(to);
  auto* const sums = reinterpret_cast<std::int32_t*>(to + ternary_sums_offset(p));
  const bool pairs = p.weight.format->id == WeightFormatId::pq2_0;
  std::memset(to + p.in / 256 * 256, 0,
              static_cast<std::size_t>(ternary_sums_offset(p) - p.in / 256 * 256));
  for (std::int64_t first = 0; first < p.in; first += kUnit) {
    std::int32_t sum = 0;
    for (std::int64_t c = 0; c < kUnit; ++c) sum += q[first + c];
    sums[first / kUnit] = sum;
    std::int8_t* const pair = planes + first / 256 * 256 + first % 256 / kUnit * 32;
    for (std::int64_t k = 0; k < 4; ++k) {
      if (pairs) {
        for (std::int64_t i = 0; i < 32; ++i) pair[64 * k + i] = q[first + 4 * i + k];
      } else {
        std::memcpy(pair + 64 * k, q + first + 32 * k, 32);
      }
    }
  }
  std::fill(sums + p.in / kUnit, sums + (p.in / kUnit + 15) / 16 * 16, 0);
}

// round_to_int8 in vectors, and the order of the format. `values`: in floats; `q`: in bytes.
float round_row(const Forward& p, std::int64_t row, float* values, std::int8_t* q, std::byte* to) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const std::size_t lanes = hn::Lanes(d);
  const auto in = static_cast<std::size_t>(p.in);
  auto largest = hn::Zero(d);
  auto poison = hn::Zero(d);  // NaN where a value is NaN or infinite
  visit_float_dtype(p.dtype, [&]<class T>() HWY_ATTR {
    if constexpr (!std::is_same_v<T, double>) {
      const T* const from = static_cast<const T*>(p.x.data) + row * p.x.stride;
      for (std::size_t i = 0; i < in; i += lanes) {
        const auto v = sd::load_some(d, from + i, std::min(lanes, in - i));
        sd::store_some(v, d, values + i, std::min(lanes, in - i));
        largest = hn::Max(largest, hn::Abs(v));
        poison = hn::MulAdd(v, hn::Zero(d), poison);
      }
    }
  });
  float most = 0;
  float bad = 0;
  alignas(64) float parts[2][16] = {};
  hn::StoreU(largest, d, parts[0]);
  hn::StoreU(poison, d, parts[1]);
  for (std::size_t i = 0; i < lanes; ++i) {
    most = std::max(most, parts[0][i]);
    bad += parts[1][i];
  }
  const float scale = most / 127.0F + bad;
  if (!(scale > 0)) {
    std::memset(q, 0, in);
  } else {
    // With a subnormal scale a quotient can pass 127.
    const auto by = hn::Set(d, scale);
    const hn::Rebind<std::int8_t, decltype(d)> d8;
    std::size_t i = 0;
    for (; i + lanes <= in; i += lanes) {
      const auto quotient = hn::Round(hn::Div(hn::LoadU(d, values + i), by));
      const auto kept = hn::Min(hn::Max(quotient, hn::Set(d, -127.0F)), hn::Set(d, 127.0F));
      hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(di, kept)), d8, q + i);
    }
    for (; i < in; ++i) {
      q[i] =
          static_cast<std::int8_t>(std::clamp(std::nearbyint(values[i] / scale), -127.0F, 127.0F));
    }
  }
  if (ternary_order(*p.weight.format) == TernaryOrder::planes) {
    store_planes(p, q, to);
  } else if (in > 0) {
    std::memcpy(to, q, in);
  }
  return scale;
}

void ternary_panel(const TernaryJob& job, std::int64_t panel, float* totals) {
  using Id = WeightFormatId;
  switch (job.p->weight.format->id) {
    case Id::ternary_g128:
      return plane_panel<TernaryG128>(job, panel, totals);
    case Id::pq2_0:
      return plane_panel<Pq2>(job, panel, totals);
    case Id::tq2_0:
      return plane_panel<Tq2>(job, panel, totals);
    case Id::ternary_g32:
      return unpacked_panel<Id::ternary_g32>(job, panel, totals);
    case Id::ternary_g64:
      return unpacked_panel<Id::ternary_g64>(job, panel, totals);
    case Id::ternary_g256:
      return unpacked_panel<Id::ternary_g256>(job, panel, totals);
    case Id::base3_g128:
      return unpacked_panel<Id::base3_g128>(job, panel, totals);
    case Id::sherry_g128:
      return unpacked_panel<Id::sherry_g128>(job, panel, totals);
    case Id::tq1_0:
      return unpacked_panel<Id::tq1_0>(job, panel, totals);
    case Id::q2_0:
      return unpacked_panel<Id::q2_0>(job, panel, totals);
    case Id::ptq1_0:
      return unpacked_panel<Id::ptq1_0>(job, panel, totals);
    default:
      return;
  }
}

}  // namespace touchstone::linear_layer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::linear_layer {

HWY_EXPORT(ternary_panel);
HWY_EXPORT(round_row);

float round_ternary_row(const Forward& p, std::int64_t row, float* values, std::int8_t* q,
                        std::byte* to) {
  return HWY_DYNAMIC_DISPATCH(round_row)(p, row, values, q, to);
}

void run_ternary_panel(const TernaryJob& job, std::int64_t panel, float* totals) {
  HWY_DYNAMIC_DISPATCH(ternary_panel)(job, panel, totals);
}

}  // namespace touchstone::linear_layer
#endif
