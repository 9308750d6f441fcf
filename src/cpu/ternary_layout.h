// Where the ternary formats of core/weight_format.h keep their codes and scales: one definition for
// decoders on every device. A block is a group: one f16 scale, value = scale * code.
//
// 2-bit forms store code + 1. A stored 3 is no ternary code; it decodes to 2, as other tools decode
// it. Base-3 forms of GGUF keep five digits d0..d4 (code + 1, the first the most significant) as
// ceil(v * 256 / 243) of v = 81 d0 + 27 d1 + 9 d2 + 3 d3 + d4, so that digit n is the integer part
// of 3 * frac(byte * 3^n / 256). Ours keeps v itself: the bytes from 243 on are unused, and reveal
// damage.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "touchstone/core/weight_format.h"

namespace touchstone::inline v0::ternary {

// How the codes of a format are packed.
enum class Packing : std::uint8_t {
  planes,  // four values in a byte, a quarter of the plane apart; the planes of a block in order
  pairs,   // four neighbors in a byte
  base3,   // GGUF: bytes of five digits, sections of one stride
  digits,  // five neighbors in a byte as a number below 243
  sparse,  // four neighbors in five bits: three signs and where the zero is
};

// Bytes of codes with a stride: value i of the section is digit i / bytes of byte i % bytes.
struct Section {
  int first = 0;  // value
  int byte = 0;
  int bytes = 1;
};

struct Layout {
  Packing packing = Packing::planes;
  int elements = 0;
  int codes = 0;  // first byte
  int scale = 0;  // byte of the f16
  int plane = 0;  // planes: bytes of one
  Section sections[3] = {};
};

TOUCHSTONE_HOST_DEVICE constexpr Layout own_layout(int elements) {
  return {Packing::planes, elements, 0, elements / 4, elements / 4, {}};
}

// elements = 0 for a format that is not ternary.
TOUCHSTONE_HOST_DEVICE constexpr Layout layout_of(WeightFormatId id) {
  using Id = WeightFormatId;
  switch (id) {
    case Id::ternary_g32:
      return own_layout(32);
    case Id::ternary_g64:
      return own_layout(64);
    case Id::ternary_g128:
      return own_layout(128);
    case Id::ternary_g256:
      return own_layout(256);
    case Id::base3_g128:
      return {Packing::digits, 128, 0, 26, 0, {}};
    case Id::sherry_g128:
      return {Packing::sparse, 128, 0, 20, 0, {}};
    case Id::tq1_0:
      return {Packing::base3, 256, 0, 52, 0, {{0, 0, 32}, {160, 32, 16}, {240, 48, 4}}};
    case Id::tq2_0:
      return {Packing::planes, 256, 0, 64, 32, {}};
    case Id::q2_0:
      return {Packing::pairs, 64, 2, 0, 0, {}};
    case Id::pq2_0:
      return {Packing::pairs, 128, 2, 0, 0, {}};
    case Id::ptq1_0:
      return {Packing::base3, 128, 0, 26, 0, {{0, 0, 16}, {80, 16, 8}, {120, 24, 2}}};
    default:
      return {};
  }
}

// The scale is the first or the last of a block.
TOUCHSTONE_HOST_DEVICE constexpr int block_bytes(const Layout& layout) {
  return layout.scale > 0 ? layout.scale + 2 : layout.codes + layout.elements / 4;
}

TOUCHSTONE_HOST_DEVICE constexpr int power_of_3(int n) {
  return n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
}

// Digit n of a byte of GGUF.
TOUCHSTONE_HOST_DEVICE constexpr int base3_digit(unsigned byte, int n) {
  const unsigned fraction = (byte * static_cast<unsigned>(power_of_3(n))) & 0xffU;
  return static_cast<int>(fraction * 3U >> 8);
}

// The five bits of values 4 k .. 4 k + 3: the position of the zero, then a bit for each of the
// others, set where it is negative.
TOUCHSTONE_HOST_DEVICE constexpr unsigned sparse_index(const std::uint8_t* codes, int k) {
  const int bit = 5 * k;
  const unsigned low = codes[bit / 8];
  // The last five bits end with the last byte.
  const unsigned high = bit % 8 > 3 ? codes[bit / 8 + 1] : 0U;
  return (low | high << 8) >> (bit % 8) & 31U;
}
TOUCHSTONE_HOST_DEVICE constexpr int sparse_code(unsigned index, int place) {
  const int zero = static_cast<int>(index >> 3);
  if (place == zero) return 0;
  return (index >> (place - (place > zero ? 1 : 0)) & 1U) != 0 ? -1 : 1;
}

// Code i of a block: -1, 0, 1, or 2 where a stored code is 3.
TOUCHSTONE_HOST_DEVICE constexpr int code_at(const Layout& layout, const std::uint8_t* block,
                                             int i) {
  const std::uint8_t* const codes = block + layout.codes;
  switch (layout.packing) {
    case Packing::planes: {
      const int values = 4 * layout.plane;
      const int within = i % values;
      const unsigned byte = codes[i / values * layout.plane + within % layout.plane];
      return static_cast<int>(byte >> (2 * (within / layout.plane)) & 3U) - 1;
    }
    case Packing::pairs:
      return static_cast<int>(static_cast<unsigned>(codes[i / 4]) >> (2 * (i % 4)) & 3U) - 1;
    case Packing::base3: {
      const Section& s = layout.sections[i < layout.sections[1].first   ? 0
                                         : i < layout.sections[2].first ? 1
                                                                        : 2];
      const int t = i - s.first;
      return base3_digit(codes[s.byte + t % s.bytes], t / s.bytes) - 1;
    }
    case Packing::digits: {
      const int quotient = codes[i / 5] / power_of_3(4 - i % 5);
      return (i % 5 == 0 ? quotient : quotient % 3) - 1;
    }
    case Packing::sparse:
      return sparse_code(sparse_index(codes, i / 4), i % 4);
  }
  return 0;
}

}  // namespace touchstone::inline v0::ternary
