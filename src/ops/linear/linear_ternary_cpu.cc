// The sums of linear from ternary weights with int8 activations: see linear_ternary.h.
//
// Formats with planes of 32 bytes are multiplied from their storage: a byte of codes gives, shifted
// and masked, four operands of an unsigned by signed product. Codes are stored plus 1; the sum of
// the integers takes that back. Other formats come here where has_int8_kernel() is false, and are
// unpacked, a segment of a panel at a time, for all rows of x.
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
constexpr std::int64_t kLine = 64;  // bytes of cache

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

// ---- planes of 32 bytes -------------------------------------------------------------------------

// Byte offsets in a block, constexpr for addressing in the innermost loop.
template <std::int64_t kBytes, std::int64_t kFirstCode, std::int64_t kScaleAt, std::int64_t kUnits>
struct PlaneFormat {
  static constexpr std::int64_t kBlockBytes = kBytes;
  static constexpr std::int64_t kCodes = kFirstCode;
  static constexpr std::int64_t kScale = kScaleAt;
  static constexpr std::int64_t kUnitsOfBlock = kUnits;  // 2 for blocks of 256 columns
};
using TernaryG128 = PlaneFormat<34, 0, 32, 1>;
using Pq2 = PlaneFormat<34, 2, 0, 1>;
using Tq2 = PlaneFormat<66, 0, 64, 2>;

// Rows of W in a tile: their sums are the lanes of a vector.
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
constexpr std::size_t kPlaneTile = HWY_TARGET <= HWY_AVX3 ? 16 : 8;
#else
constexpr std::size_t kPlaneTile = 1;
#endif

// The rows of a tile at some column, `stride` bytes apart: every fourth as a pointer, which leaves
// addresses that an instruction can form. Sixteen pointers do not fit in registers.
struct PlaneRows {
  const std::byte* fourth[(kPlaneTile + 3) / 4];
  std::int64_t stride;

  HWY_INLINE PlaneRows(const std::byte* first, std::int64_t bytes) : stride(bytes) {
    for (const std::byte*& row : fourth) {
      row = first;
      first += 4 * stride;
    }
  }
  HWY_INLINE const std::byte* operator[](std::size_t o) const {
    return fourth[o / 4] + static_cast<std::int64_t>(o % 4) * stride;
  }
  HWY_INLINE PlaneRows at(std::int64_t offset) const {
    PlaneRows rows = *this;
    for (const std::byte*& row : rows.fourth) row += offset;
    return rows;
  }
};

#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR

HWY_INLINE __m256i load_32(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

#if HWY_TARGET <= HWY_AVX3

using Ints = __m512i;
using Floats = __m512;

// A unit of row i in the low half, one of row i + 4 in the high half.
HWY_INLINE Ints load_codes(PlaneRows rows, std::size_t i) {
  // Under a mask rather than inserted: that would wait for the units that shuffle.
  return _mm512_mask_broadcast_i64x4(_mm512_castsi256_si512(load_32(rows[i])), 0xf0,
                                     load_32(rows[i + 4]));
}
HWY_INLINE Ints load_x(const std::int8_t* x) { return _mm512_broadcast_i64x4(load_32(x)); }
HWY_INLINE Ints bits_of_bytes(Ints v, char bits) {
  return _mm512_and_si512(v, _mm512_set1_epi8(bits));
}
HWY_INLINE Ints high_halves(Ints v) { return _mm512_srli_epi16(v, 4); }
template <bool kVnni>
HWY_INLINE Ints dot_products(const Ints* codes, const std::int8_t* x) {
  if constexpr (kVnni) {
    Ints sum = vnni_dot4(_mm512_setzero_si512(), codes[1], load_x(x + 32));
    sum = _mm512_srai_epi32(vnni_dot4(sum, codes[3], load_x(x + 96)), 2);
    return vnni_dot4(vnni_dot4(sum, codes[0], load_x(x)), codes[2], load_x(x + 64));
  }
  const auto product = [&](std::size_t plane) HWY_ATTR {
    return _mm512_maddubs_epi16(codes[plane], load_x(x + 32 * plane));
  };
  const Ints odd = _mm512_srai_epi16(_mm512_add_epi16(product(1), product(3)), 2);
  return _mm512_madd_epi16(_mm512_add_epi16(_mm512_add_epi16(product(0), product(2)), odd),
                           _mm512_set1_epi16(1));
}
HWY_INLINE Ints add_neighbors(Ints a, Ints b) {
  return _mm512_madd_epi16(_mm512_packs_epi32(a, b), _mm512_set1_epi16(1));
}
// Of the rows in the low and the high halves of four vectors, and of four others.
HWY_INLINE Ints add_quarters(Ints a, Ints b) {
  return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
}
HWY_INLINE Ints subtract(Ints a, std::int32_t b) {
  return _mm512_sub_epi32(a, _mm512_set1_epi32(b));
}
HWY_INLINE Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
HWY_INLINE Floats zero_floats() { return _mm512_setzero_ps(); }
HWY_INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
// Sums of 256 columns are below 2^24: exact in f32.
HWY_INLINE Floats add_scaled(Floats scale, Ints sum, Floats acc) {
  return _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum), acc);
}
HWY_INLINE void store(Floats v, float* to) { _mm512_storeu_ps(to, v); }

#else

using Ints = __m256i;
using Floats = __m256;

HWY_INLINE Ints load_codes(PlaneRows rows, std::size_t i) { return load_32(rows[i]); }
HWY_INLINE Ints bits_of_bytes(Ints v, char bits) {
  return _mm256_and_si256(v, _mm256_set1_epi8(bits));
}
HWY_INLINE Ints high_halves(Ints v) { return _mm256_srli_epi16(v, 4); }
template <bool kVnni>
HWY_INLINE Ints dot_products(const Ints* codes, const std::int8_t* x) {
  const auto product = [&](std::size_t plane) HWY_ATTR {
    return _mm256_maddubs_epi16(codes[plane], load_32(x + 32 * plane));
  };
  const Ints odd = _mm256_srai_epi16(_mm256_add_epi16(product(1), product(3)), 2);
  return _mm256_madd_epi16(_mm256_add_epi16(_mm256_add_epi16(product(0), product(2)), odd),
                           _mm256_set1_epi16(1));
}
HWY_INLINE Ints add_neighbors(Ints a, Ints b) {
  return _mm256_madd_epi16(_mm256_packs_epi32(a, b), _mm256_set1_epi16(1));
}
HWY_INLINE Ints add_quarters(Ints a, Ints b) {
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                          _mm256_permute2x128_si256(a, b, 0x31));
}
HWY_INLINE Ints subtract(Ints a, std::int32_t b) {
  return _mm256_sub_epi32(a, _mm256_set1_epi32(b));
}
HWY_INLINE Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
HWY_INLINE Floats zero_floats() { return _mm256_setzero_ps(); }
HWY_INLINE Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
HWY_INLINE Floats add_scaled(Floats scale, Ints sum, Floats acc) {
  return _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum), acc);
}
HWY_INLINE void store(Floats v, float* to) { _mm256_storeu_ps(to, v); }

#endif

// The codes of four planes; those of the odd ones times 4, which saves two shifts.
struct Planes {
  Ints at[4];
  HWY_INLINE explicit Planes(Ints v)
      : at{bits_of_bytes(v, 3), bits_of_bytes(v, 12), bits_of_bytes(high_halves(v), 3),
           bits_of_bytes(high_halves(v), 12)} {}
};

// The sums of a unit of the rows of a tile, by kX rows of x. What is added in 16 bits is below
// 2^15: 128 products of a code of at most 3.
template <std::size_t kX, bool kVnni>
HWY_INLINE void unit_sums(PlaneRows rows, const std::int8_t* const* x, Ints* sums) {
  Ints half[kX][2];
  for (std::size_t h = 0; h < 2; ++h) {
    Ints products[kX][4];
    for (std::size_t i = 0; i < 4; ++i) {
      const Planes planes(load_codes(rows, h * kPlaneTile / 2 + i));
      for (std::size_t r = 0; r < kX; ++r) products[r][i] = dot_products<kVnni>(planes.at, x[r]);
    }
    for (std::size_t r = 0; r < kX; ++r) {
      half[r][h] = add_neighbors(add_neighbors(products[r][0], products[r][1]),
                                 add_neighbors(products[r][2], products[r][3]));
    }
  }
  for (std::size_t r = 0; r < kX; ++r) sums[r] = add_quarters(half[r][0], half[r][1]);
}

// The f16 of every row of a tile, put together by the units of integers: those of vectors are busy.
HWY_INLINE Floats load_scales(PlaneRows rows) {
  const auto four = [&](std::size_t o) HWY_ATTR {
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      std::uint16_t half = 0;
      std::memcpy(&half, rows[o + i], sizeof(half));
      bits |= std::uint64_t{half} << (16 * i);
    }
    return static_cast<long long>(bits);
  };
  const auto eight = [&](std::size_t o) HWY_ATTR {
    return _mm_insert_epi64(_mm_cvtsi64_si128(four(o)), four(o + 4), 1);
  };
#if HWY_TARGET <= HWY_AVX3
  return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(eight(0)), eight(8), 1));
#else
  return _mm256_cvtph_ps(eight(0));
#endif
}

#else

using Ints = std::int32_t;
using Floats = float;

template <std::size_t kX, bool kVnni>
HWY_INLINE void unit_sums(PlaneRows rows, const std::int8_t* const* x, Ints* sums) {
  for (std::size_t r = 0; r < kX; ++r) {
    sums[r] = 0;
    for (std::int64_t i = 0; i < 32; ++i) {
      const auto byte = static_cast<unsigned>(rows[0][i]);
      for (unsigned k = 0; k < 4; ++k) {
        sums[r] += static_cast<std::int32_t>(byte >> (2 * k) & 3U) * x[r][32 * k + i];
      }
    }
  }
}
HWY_INLINE Floats load_scales(PlaneRows rows) { return f16_at(rows[0]); }
HWY_INLINE Ints subtract(Ints a, std::int32_t b) { return a - b; }
HWY_INLINE Ints add(Ints a, Ints b) { return a + b; }
HWY_INLINE Floats zero_floats() { return 0; }
HWY_INLINE Floats add(Floats a, Floats b) { return a + b; }
HWY_INLINE Floats add_scaled(Floats scale, Ints sum, Floats acc) {
  return fused(scale, static_cast<float>(sum), acc);
}
HWY_INLINE void store(Floats v, float* to) { *to = v; }

#endif

// kX rows of x by a tile, of which the first `valid` rows are W's: totals[r * kTernaryPanel + o].
// What lies from `ahead` on is prefetched, unless that is null.
template <class Format, std::size_t kX, bool kVnni>
HWY_NOINLINE void plane_tile(const std::byte* w, std::int64_t valid, const Forward& p,
                             const std::byte* const* x, const std::byte* ahead, float* totals) {
  constexpr auto kRows = static_cast<std::int64_t>(kPlaneTile);
  constexpr std::int64_t kSegmentBytes =
      kUnitsOfSegment / Format::kUnitsOfBlock * Format::kBlockBytes;
  const std::int64_t row_bytes = p.weight.row_bytes;
  const std::int64_t units = p.in / kUnit;
  const std::int64_t sums_offset = ternary_sums_offset(p);
  std::byte copies[kRows * kSegmentBytes];
  Floats total[kX];
  for (std::size_t r = 0; r < kX; ++r) total[r] = zero_floats();
  for (std::int64_t first = 0; first < units; first += kUnitsOfSegment) {
    const std::int64_t offset = first / Format::kUnitsOfBlock * Format::kBlockBytes;
    PlaneRows block(w + offset, row_bytes);
    if (valid < kRows) {
      for (std::int64_t o = 0; o < kRows; ++o) {
        std::memcpy(copies + o * kSegmentBytes, w + std::min(o, valid - 1) * row_bytes + offset,
                    static_cast<std::size_t>(std::min(kSegmentBytes, row_bytes - offset)));
      }
      block = PlaneRows(copies, kSegmentBytes);
    }
    Floats acc[kX];
    for (std::size_t r = 0; r < kX; ++r) acc[r] = zero_floats();
    for (std::int64_t u = first; u < std::min(first + kUnitsOfSegment, units);
         u += Format::kUnitsOfBlock, block = block.at(Format::kBlockBytes)) {
      if (ahead != nullptr) {
        for (std::int64_t i = 0; i < kRows * Format::kBlockBytes; i += kLine)
          sd::prefetch(ahead + i);
        ahead += kRows * Format::kBlockBytes;
      }
      Ints sums[kX];
      for (std::int64_t i = 0; i < Format::kUnitsOfBlock; ++i) {
        const std::int8_t* q[kX];
        for (std::size_t r = 0; r < kX; ++r) {
          q[r] = reinterpret_cast<const std::int8_t*>(x[r]) + (u + i) * kUnit;
        }
        Ints of_unit[kX];
        unit_sums<kX, kVnni>(block.at(Format::kCodes + i * kUnit / 4), q, of_unit);
        for (std::size_t r = 0; r < kX; ++r) {
          std::int32_t of_x = 0;
          std::memcpy(&of_x, x[r] + sums_offset + (u + i) * 4, sizeof(of_x));
          of_unit[r] = subtract(of_unit[r], of_x);
          sums[r] = i == 0 ? of_unit[r] : add(sums[r], of_unit[r]);
        }
      }
      const Floats scales = load_scales(block.at(Format::kScale));
      for (std::size_t r = 0; r < kX; ++r) acc[r] = add_scaled(scales, sums[r], acc[r]);
    }
    for (std::size_t r = 0; r < kX; ++r) total[r] = add(total[r], acc[r]);
  }
  for (std::size_t r = 0; r < kX; ++r) store(total[r], totals + r * kTernaryPanel);
}

template <class Format, bool kVnni>
HWY_INLINE void plane_panel_as(const TernaryJob& job, std::int64_t panel, float* totals) {
  const Forward& p = *job.p;
  constexpr auto kRows = static_cast<std::int64_t>(kPlaneTile);
  // Rows of W some kilobytes further on, whole tiles of them.
  const std::int64_t tile = kRows * p.weight.row_bytes;
  const std::int64_t next = tile > 0 ? (tuning::kTernaryPrefetchBytes + tile - 1) / tile * tile : 0;
  const std::int64_t width = job.panel_columns();
  for (std::int64_t o = 0; o < kTernaryPanel; o += kRows) {
    const std::int64_t valid = std::min(kRows, p.columns() - panel * width - o % width);
    if (valid <= 0) continue;
    const std::byte* const w = ternary_panel_row(job, panel, o);
    for (std::int64_t r = 0; r < job.rows;) {
      const std::byte* x[4];
      for (std::int64_t i = 0; i < 4; ++i) {
        x[i] = job.x + std::min(r + i, job.rows - 1) * job.x_stride;
      }
      const std::byte* const ahead = r == 0 ? w + next : nullptr;
      float* const to = totals + r * kTernaryPanel + o;
      if (job.rows - r >= 4) {
        plane_tile<Format, 4, kVnni>(w, valid, p, x, ahead, to);
        r += 4;
      } else {
        plane_tile<Format, 1, kVnni>(w, valid, p, x, ahead, to);
        r += 1;
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

// ---- other formats ------------------------------------------------------------------------------

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

// ---- x ------------------------------------------------------------------------------------------

// The planes of every 128 columns, and their sums.
HWY_INLINE void store_planes(const Forward& p, const std::int8_t* q, std::byte* to) {
  auto* const planes = reinterpret_cast<std::int8_t*>(to);
  auto* const sums = reinterpret_cast<std::int32_t*>(to + ternary_sums_offset(p));
  const bool fours = p.weight.format->id == WeightFormatId::pq2_0;  // four neighbors in a byte
  for (std::int64_t first = 0; first < p.in; first += kUnit) {
    std::int32_t sum = 0;
    for (std::int64_t c = 0; c < kUnit; ++c) sum += q[first + c];
    sums[first / kUnit] = sum;
    if (!fours) {
      std::memcpy(planes + first, q + first, kUnit);
      continue;
    }
    for (std::int64_t k = 0; k < 4; ++k) {
      for (std::int64_t i = 0; i < 32; ++i) planes[first + 32 * k + i] = q[first + 4 * i + k];
    }
  }
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
    std::fill_n(q, in, std::int8_t{0});
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
