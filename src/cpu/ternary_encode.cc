// Ternary blocks from codes and from f32.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "cpu/ternary_codec.h"
#include "cpu/ternary_group.h"
#include "cpu/ternary_layout.h"
#include "touchstone/core/half.h"

namespace touchstone::inline v0::ternary {
namespace {

constexpr std::size_t kMaxGroup = 256;

const std::uint8_t* bytes_of(const std::byte* p) {
  return reinterpret_cast<const std::uint8_t*>(p);
}

std::byte base3_byte(unsigned value) { return static_cast<std::byte>((value * 256 + 242) / 243); }

// Five digits, the first the most significant; those that are missing are 0.
unsigned digits_value(const std::int8_t* codes, int stride, int count) {
  unsigned value = 0;
  for (int n = 0; n < 5; ++n) {
    value = value * 3 + (n < count ? static_cast<unsigned>(codes[n * stride] + 1) : 0U);
  }
  return value;
}

void pack_base3(const Layout& layout, const std::int8_t* codes, std::byte* to) {
  for (int k = 0; k < 3; ++k) {
    const Section& s = layout.sections[k];
    for (int i = 0; i < s.bytes; ++i) {
      to[s.byte + i] = base3_byte(digits_value(codes + s.first + i, s.bytes, k < 2 ? 5 : 4));
    }
  }
}

void set_bits(std::byte* to, int shift, unsigned bits) {
  *to |= static_cast<std::byte>(bits << shift);
}

bool pack_sparse(const std::int8_t* codes, int elements, std::byte* to) {
  for (int i = 0; i < elements; i += 4) {
    if (std::count(codes + i, codes + i + 4, 0) != 1) return false;
  }
  std::memset(to, 0, static_cast<std::size_t>(elements / 4 * 5 / 8));
  for (int k = 0; k < elements / 4; ++k) {
    unsigned index = 0;
    int sign = 0;
    for (int place = 0; place < 4; ++place) {
      const std::int8_t code = codes[4 * k + place];
      if (code == 0) {
        index |= static_cast<unsigned>(place) << 3;
      } else {
        index |= (code < 0 ? 1U : 0U) << sign++;
      }
    }
    const int bit = 5 * k;
    set_bits(to + bit / 8, bit % 8, index);
    if (bit % 8 > 3) set_bits(to + bit / 8 + 1, 0, index >> (8 - bit % 8));
  }
  return true;
}

// The projection that a format's own tools apply to values that are not ternary.
struct Projected {
  std::array<std::int8_t, kMaxGroup> codes;
  float scale = 0;
};

// GGUF: the largest magnitude, halves away from 0, as PyPI `gguf` computes it. Where f16 rounds
// that to 0 the tools keep codes, whose values are all 0 and whose reciprocal scale may be
// infinite; here the codes are 0 as well, the one encoding of such a block.
Projected project_largest(const float* x, std::size_t n) {
  Projected result;
  float most = 0;
  for (std::size_t i = 0; i < n; ++i) most = std::max(most, std::abs(x[i]));
  const bool vanishes = static_cast<float>(F16(most)) == 0;
  const float inverse = vanishes ? 0 : 1 / most;
  for (std::size_t i = 0; i < n; ++i) {
    result.codes[i] = static_cast<std::int8_t>(std::round(x[i] * inverse));
  }
  result.scale = vanishes ? 0 : most;
  return result;
}

Projected project_mean(const float* x, std::size_t n) {
  Projected result;
  TernarySummary summary;
  project_group({}, {x, n}, result.codes.data(), &result.scale, nullptr, summary);
  return result;
}

// Of every four the smallest magnitude (the first of several) becomes 0; the scale is the mean of
// the others.
Projected project_sparse(const float* x, std::size_t n) {
  Projected result;
  double sum = 0;
  for (std::size_t i = 0; i < n; i += 4) {
    std::size_t least = 0;
    for (std::size_t k = 1; k < 4; ++k) {
      if (std::abs(x[i + k]) < std::abs(x[i + least])) least = k;
    }
    for (std::size_t k = 0; k < 4; ++k) {
      result.codes[i + k] = static_cast<std::int8_t>(k == least ? 0 : x[i + k] < 0 ? -1 : 1);
      if (k != least) sum += static_cast<double>(std::abs(x[i + k]));
    }
  }
  result.scale = ternary_stored_scale(sum / (0.75 * static_cast<double>(n)), TernaryScaleType::f16);
  return result;
}

void store_scale(float scale, std::byte* to) {
  const std::uint16_t bits = F16(scale).bits;
  std::memcpy(to, &bits, 2);
}

void encode_block(WeightFormatId id, const Layout& layout, const float* x, std::byte* to) {
  const auto n = static_cast<std::size_t>(layout.elements);
  Projected group;
  const ExactGroup exact = exact_group(TernaryScaleType::f16, {x, n}, group.codes.data());
  group.scale = exact.scale;
  if (exact.reason.empty() && pack_block(id, group.codes.data(), group.scale, to)) return;
  if (layout.packing == Packing::sparse) {
    group = project_sparse(x, n);
  } else if (layout.packing == Packing::digits ||
             (layout.packing == Packing::planes && id != WeightFormatId::tq2_0)) {
    group = project_mean(x, n);
  } else {
    group = project_largest(x, n);
  }
  pack_block(id, group.codes.data(), group.scale, to);
}

}  // namespace

float block_scale(WeightFormatId id, const std::byte* block) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, block + layout_of(id).scale, 2);
  return static_cast<float>(F16::from_bits(bits));
}

void unpack_codes(WeightFormatId id, const std::byte* block, std::int8_t* codes) {
  const Layout layout = layout_of(id);
  for (int i = 0; i < layout.elements; ++i) {
    codes[i] = static_cast<std::int8_t>(code_at(layout, bytes_of(block), i));
  }
}

bool pack_block(WeightFormatId id, const std::int8_t* codes, float scale, std::byte* block) {
  const Layout layout = layout_of(id);
  std::byte* const to = block + layout.codes;
  switch (layout.packing) {
    case Packing::planes:
    case Packing::pairs: {
      std::memset(to, 0, static_cast<std::size_t>(layout.elements / 4));
      const int plane = layout.packing == Packing::planes ? layout.plane : 1;
      for (int i = 0; i < layout.elements; ++i) {
        const int within = i % (4 * plane);
        set_bits(to + i / (4 * plane) * plane + within % plane, 2 * (within / plane),
                 static_cast<unsigned>(codes[i] + 1));
      }
      break;
    }
    case Packing::base3:
      pack_base3(layout, codes, to);
      break;
    case Packing::digits:
      for (int i = 0; i < layout.elements; i += 5) {
        to[i / 5] =
            static_cast<std::byte>(digits_value(codes + i, 1, std::min(5, layout.elements - i)));
      }
      break;
    case Packing::sparse:
      // A group of zeros has no signs; which place is the zero does not matter.
      if (scale == 0) {
        std::memset(to, 0, static_cast<std::size_t>(layout.elements / 4 * 5 / 8));
      } else if (!pack_sparse(codes, layout.elements, to)) {
        return false;
      }
      break;
  }
  store_scale(scale, block + layout.scale);
  return true;
}

template <WeightFormatId kId>
void encode_blocks(const float* from, std::int64_t n, std::byte* to) {
  const Layout layout = layout_of(kId);
  const WeightFormat& format = weight_format(kId);
  for (std::int64_t b = 0; b < n; ++b) {
    encode_block(kId, layout, from, to);
    from += layout.elements;
    to += format.block_bytes;
  }
}

template void encode_blocks<WeightFormatId::ternary_g32>(const float*, std::int64_t, std::byte*);
template void encode_blocks<WeightFormatId::ternary_g64>(const float*, std::int64_t, std::byte*);
template void encode_blocks<WeightFormatId::ternary_g128>(const float*, std::int64_t, std::byte*);
template void encode_blocks<WeightFormatId::ternary_g256>(const float*, std::int64_t, std::byte*);
template void encode_blocks<WeightFormatId::base3_g128>(const float*, std::int64_t, std::byte*);
template void encode_blocks<WeightFormatId::sherry_g128>(const float*, std::int64_t, std::byte*);
template void encode_blocks<WeightFormatId::tq1_0>(const float*, std::int64_t, std::byte*);
template void encode_blocks<WeightFormatId::tq2_0>(const float*, std::int64_t, std::byte*);
template void encode_blocks<WeightFormatId::q2_0>(const float*, std::int64_t, std::byte*);
template void encode_blocks<WeightFormatId::pq2_0>(const float*, std::int64_t, std::byte*);
template void encode_blocks<WeightFormatId::ptq1_0>(const float*, std::int64_t, std::byte*);

std::string block_fault(WeightFormatId id, const std::byte* block) {
  const WeightFormat& format = weight_format(id);
  const float scale = block_scale(id, block);
  if (std::isnan(scale)) return "a scale of NaN";
  if (std::isinf(scale)) return "an infinite scale";
  if (std::signbit(scale)) return "a scale of " + std::to_string(scale);
  std::array<std::int8_t, kMaxGroup> codes{};
  unpack_codes(id, block, codes.data());
  bool nonzero = false;
  for (std::int64_t i = 0; i < format.block_elements; ++i) {
    const std::int8_t code = codes[static_cast<std::size_t>(i)];
    if (code > 1) return "a code of 2 at value " + std::to_string(i);
    nonzero = nonzero || code != 0;
  }
  const bool sparse = layout_of(id).packing == Packing::sparse;
  if (scale == 0 && nonzero && !sparse) return "codes other than 0 with a scale of 0";
  std::array<std::byte, kMaxGroup / 4 + 2> again{};
  pack_block(id, codes.data(), scale, again.data());
  const auto bytes = static_cast<std::size_t>(format.block_bytes);
  const auto differ = std::mismatch(again.begin(), again.begin() + bytes, block);
  if (differ.second == block + bytes) return "";
  return "byte " + std::to_string(differ.second - block) + " of a block holds no codes";
}

}  // namespace touchstone::inline v0::ternary
