// f32 to blocks of weights. q8_0, q4_0, q4_1, q5_0 and q5_1 give the bytes of the PyPI package `gguf`
// (which are those of the reference code of ggml); q4_k, q5_k and q6_k are fitted here, because no
// two tools agree on theirs: what is fixed is the layout. Everything is scalar and in a fixed order,
// so that the same values give the same bytes on every machine.
#include <algorithm>
#include <array>
#include <cmath>

#include "cpu/weight_codec.h"

namespace touchstone::inline v0::weights {
namespace {

void store_f16(float value, std::byte* to) {
  const std::uint16_t bits = F16(value).bits;
  std::memcpy(to, &bits, 2);
}

// `value` as it is read back.
float rounded_f16(float value) { return static_cast<float>(F16(value)); }

std::byte to_byte(int value) { return static_cast<std::byte>(value & 0xff); }

// 0 for what f16 stores as 0, with an inverse that may not be finite: the codes then mean nothing.
float inverse(float d) { return std::abs(d) < 0x1p-126F ? 0.0F : 1.0F / d; }

// The value of largest magnitude, with its sign; the first of equals.
float extreme(const float* x, int n) {
  float best = x[0];
  for (int i = 1; i < n; ++i) {
    if (std::abs(x[i]) > std::abs(best)) best = x[i];
  }
  return best;
}

// Codes 0..top of 32 values to nibbles, the second half above the first; bits beyond the fourth to
// `fifth`, one per value.
void store_nibbles(const std::array<std::uint8_t, kBlock>& codes, std::byte* to,
                   std::byte* fifth = nullptr) {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < 16; ++i) {
    to[i] = to_byte((codes[i] & 15) | ((codes[i + 16] & 15) << 4));
  }
  for (std::size_t i = 0; i < kBlock; ++i) bits |= static_cast<std::uint32_t>(codes[i] >> 4) << i;
  if (fifth != nullptr) std::memcpy(fifth, &bits, 4);
}

// q4_0, q5_0: the extreme value becomes code 0, so that the side that needs it has one step more.
void encode_signed(const float* x, int levels, std::byte* to) {
  const float d = extreme(x, kBlock) / static_cast<float>(-levels);
  const float id = inverse(d);
  std::array<std::uint8_t, kBlock> codes{};
  for (std::size_t i = 0; i < kBlock; ++i) {
    const int code = static_cast<int>(x[i] * id + (static_cast<float>(levels) + 0.5F));
    codes[i] = static_cast<std::uint8_t>(std::clamp(code, 0, 2 * levels - 1));
  }
  store_f16(d, to);
  store_nibbles(codes, to + (levels == 8 ? 2 : 6), levels == 8 ? nullptr : to + 2);
}

// q4_1, q5_1: from the least value to the largest.
void encode_ranged(const float* x, int top, std::byte* to) {
  const auto [least, largest] = std::minmax_element(x, x + kBlock);
  const float d = (*largest - *least) / static_cast<float>(top);
  const float id = inverse(d);
  std::array<std::uint8_t, kBlock> codes{};
  for (std::size_t i = 0; i < kBlock; ++i) {
    // The rounding of the format's own encoder, whose bytes these are.
    const int code =
        static_cast<int>((x[i] - *least) * id + 0.5F);  // NOLINT(bugprone-incorrect-roundings)
    codes[i] = static_cast<std::uint8_t>(std::clamp(code, 0, top));
  }
  store_f16(d, to);
  store_f16(*least, to + 2);
  store_nibbles(codes, to + (top == 15 ? 4 : 8), top == 15 ? nullptr : to + 4);
}

template <int kGroup, int kTop>
void encode_group(const float* x, std::byte* to) {
  // The scale as it will be read, so that the codes fit it.
  const float d = rounded_f16(std::abs(extreme(x, kGroup)) / static_cast<float>(kTop));
  const float id = inverse(d);
  std::array<int, kGroup> codes{};
  for (std::size_t i = 0; i < kGroup; ++i) {
    codes[i] = static_cast<int>(
        std::clamp(std::nearbyint(x[i] * id), -static_cast<float>(kTop), static_cast<float>(kTop)));
  }
  store_f16(d, to);
  for (std::size_t i = 0; i < (kTop == 7 ? kGroup / 2 : kGroup); ++i) {
    to[2 + i] =
        kTop == 7 ? to_byte((codes[2 * i] + 8) | ((codes[2 * i + 1] + 8) << 4)) : to_byte(codes[i]);
  }
}

template <int kGroup, int kTop>
void encode_groups(const float* from, std::int64_t n, std::byte* to) {
  constexpr int kBytes = 2 + (kTop == 7 ? kGroup / 2 : kGroup);
  for (std::int64_t b = 0; b < n; ++b)
    encode_group<kGroup, kTop>(from + b * kGroup, to + b * kBytes);
}

// ---- q4_k, q5_k ----------------------------------------------------------------------------------

int nearest_code(double value, int top) {
  return static_cast<int>(std::clamp(std::nearbyint(value), 0.0, static_cast<double>(top)));
}

struct Fit {
  double scale = 0;
  double min = 0;  // value = scale * code - min
};

// Codes for a given fit; then scale and minimum that are best for these codes, by least squares,
// with a minimum that is not negative, as the format requires. The squared error is the result.
double refine(const float* x, int top, Fit& fit) {
  double sum_q = 0, sum_qq = 0, sum_x = 0, sum_qx = 0;
  for (int i = 0; i < kBlock; ++i) {
    const double value = x[i];
    const double q = nearest_code(fit.scale > 0 ? (value + fit.min) / fit.scale : 0, top);
    sum_q += q;
    sum_qq += q * q;
    sum_x += value;
    sum_qx += q * value;
  }
  const double determinant = kBlock * sum_qq - sum_q * sum_q;
  if (determinant > 0) {
    fit.scale = (kBlock * sum_qx - sum_q * sum_x) / determinant;
    fit.min = (sum_q * sum_qx - sum_qq * sum_x) / determinant;
  }
  if (fit.min < 0) {
    fit.min = 0;
    fit.scale = sum_qq > 0 ? sum_qx / sum_qq : 0;
  }
  if (!(fit.scale > 0)) fit.scale = 0;
  double error = 0;
  for (int i = 0; i < kBlock; ++i) {
    const double value = x[i];
    const double q = nearest_code(fit.scale > 0 ? (value + fit.min) / fit.scale : 0, top);
    const double difference = fit.scale * q - fit.min - value;
    error += difference * difference;
  }
  return error;
}

// Scale and minimum of 32 values with codes 0..top: a few spans around the full range, each refined.
Fit fit_ranged(const float* x, int top) {
  const auto [least, largest] = std::minmax_element(x, x + kBlock);
  const double min = std::max(0.0, -static_cast<double>(*least));
  const double range = static_cast<double>(*largest) + min;
  Fit best{.scale = std::max(0.0, range / top), .min = min};
  if (range <= 0) return best;
  double best_error = -1;
  for (int step = -3; step <= 6; ++step) {
    Fit fit{.scale = range / (top + 0.25 * step), .min = min};
    const double error = refine(x, top, fit);
    if (best_error < 0 || error < best_error) {
      best = fit;
      best_error = error;
    }
  }
  return best;
}

void pack_scale_min(const std::array<ScaleMin, 8>& scales, std::byte* to) {
  for (std::size_t i = 0; i < 4; ++i) {
    const ScaleMin first = scales[i];
    const ScaleMin second = scales[i + 4];
    to[i] = to_byte(first.scale | ((second.scale >> 4) << 6));
    to[i + 4] = to_byte(first.min | ((second.min >> 4) << 6));
    to[i + 8] = to_byte((second.scale & 15) | ((second.min & 15) << 4));
  }
}

void encode_k_block(const float* x, int top, std::byte* to) {
  std::array<Fit, 8> fits{};
  double largest_scale = 0;
  double largest_min = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    fits[i] = fit_ranged(x + kBlock * i, top);
    largest_scale = std::max(largest_scale, fits[i].scale);
    largest_min = std::max(largest_min, fits[i].min);
  }
  const float d = rounded_f16(static_cast<float>(largest_scale / 63));
  const float dmin = rounded_f16(static_cast<float>(largest_min / 63));
  std::array<ScaleMin, 8> packed{};
  const bool fifth = top == 31;
  std::byte* const upper = to + 4 + kScaleBytes;
  std::byte* const codes = upper + (fifth ? 32 : 0);
  std::memset(upper, 0, fifth ? 32 + 128 : 128);
  for (std::size_t i = 0; i < 8; ++i) {
    packed[i] = {static_cast<std::uint8_t>(
                     nearest_code(d > 0 ? fits[i].scale / static_cast<double>(d) : 0, 63)),
                 static_cast<std::uint8_t>(
                     nearest_code(dmin > 0 ? fits[i].min / static_cast<double>(dmin) : 0, 63))};
    // Codes for scale and minimum as they will be read.
    const double scale = static_cast<double>(d) * packed[i].scale;
    const double min = static_cast<double>(dmin) * packed[i].min;
    for (std::size_t j = 0; j < kBlock; ++j) {
      const double value = static_cast<double>(x[kBlock * i + j]);
      const int q = nearest_code(scale > 0 ? (value + min) / scale : 0, top);
      codes[32 * (i / 2) + j] |= to_byte((q & 15) << (i % 2 == 0 ? 0 : 4));
      if (fifth) upper[j] |= to_byte((q >> 4) << i);
    }
  }
  store_f16(d, to);
  store_f16(dmin, to + 2);
  pack_scale_min(packed, to + 4);
}

// ---- q6_k ----------------------------------------------------------------------------------------

// The scale s of 16 values for codes -32..31, signed: the extreme value takes -32.
double fit_signed(const float* x) {
  const double most = static_cast<double>(extreme(x, 16));
  if (most == 0) return 0;
  double best = most / -32;
  double best_error = -1;
  for (int step = -4; step <= 4; ++step) {
    const double trial = most / (-32 + 0.25 * step);
    double sum_qq = 0, sum_qx = 0;
    for (int i = 0; i < 16; ++i) {
      const double q = nearest_code(static_cast<double>(x[i]) / trial + 32, 63) - 32;
      sum_qq += q * q;
      sum_qx += q * static_cast<double>(x[i]);
    }
    const double scale = sum_qq > 0 ? sum_qx / sum_qq : 0;
    double error = 0;
    for (int i = 0; i < 16; ++i) {
      const double value = static_cast<double>(x[i]);
      const double q = scale != 0 ? nearest_code(value / scale + 32, 63) - 32 : 0;
      error += (scale * q - value) * (scale * q - value);
    }
    if (best_error < 0 || error < best_error) {
      best = scale;
      best_error = error;
    }
  }
  return best;
}

void encode_q6_block(const float* x, std::byte* to) {
  std::array<double, 16> fits{};
  double most = 0;
  for (std::size_t i = 0; i < 16; ++i) {
    fits[i] = fit_signed(x + 16 * i);
    if (std::abs(fits[i]) > std::abs(most)) most = fits[i];
  }
  const float d = rounded_f16(static_cast<float>(most / -128));
  std::memset(to, 0, 192);
  for (std::size_t i = 0; i < 16; ++i) {
    const int scale = d != 0 ? static_cast<int>(std::clamp(
                                   std::nearbyint(fits[i] / static_cast<double>(d)), -128.0, 127.0))
                             : 0;
    to[192 + i] = to_byte(scale);
    const double step = static_cast<double>(d) * scale;
    for (std::size_t j = 0; j < 16; ++j) {
      const std::size_t index = 16 * i + j;
      const double value = static_cast<double>(x[index]);
      const int q = step != 0 ? nearest_code(value / step + 32, 63) : 32;
      const std::size_t half = index / 128;
      const std::size_t group = index % 128 / 32;
      const std::size_t column = index % 32;
      to[64 * half + 32 * (group % 2) + column] |= to_byte((q & 15) << (group < 2 ? 0 : 4));
      to[128 + 32 * half + column] |= to_byte((q >> 4) << (2 * group));
    }
  }
  store_f16(d, to + 208);
}

}  // namespace

void encode_f64(const float* from, std::int64_t n, std::byte* to) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<double>(from[i]);
    std::memcpy(to + 8 * i, &value, 8);
  }
}
void encode_f32(const float* from, std::int64_t n, std::byte* to) {
  if (n > 0) std::memcpy(to, from, static_cast<std::size_t>(n) * 4);
}
void encode_bf16(const float* from, std::int64_t n, std::byte* to) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint16_t bits = Bf16(from[i]).bits;
    std::memcpy(to + 2 * i, &bits, 2);
  }
}
void encode_f16(const float* from, std::int64_t n, std::byte* to) {
  for (std::int64_t i = 0; i < n; ++i) store_f16(from[i], to + 2 * i);
}

void encode_int8_g32(const float* from, std::int64_t n, std::byte* to) {
  encode_groups<32, 127>(from, n, to);
}
void encode_int8_g64(const float* from, std::int64_t n, std::byte* to) {
  encode_groups<64, 127>(from, n, to);
}
void encode_int8_g128(const float* from, std::int64_t n, std::byte* to) {
  encode_groups<128, 127>(from, n, to);
}
void encode_int4_g32(const float* from, std::int64_t n, std::byte* to) {
  encode_groups<32, 7>(from, n, to);
}
void encode_int4_g64(const float* from, std::int64_t n, std::byte* to) {
  encode_groups<64, 7>(from, n, to);
}
void encode_int4_g128(const float* from, std::int64_t n, std::byte* to) {
  encode_groups<128, 7>(from, n, to);
}

// Unlike int8_g32 the codes are for the scale before it is rounded, and halves round away from 0.
void encode_q8_0(const float* from, std::int64_t n, std::byte* to) {
  for (std::int64_t b = 0; b < n; ++b, from += kBlock, to += 34) {
    const float d = std::abs(extreme(from, kBlock)) / 127.0F;
    const float id = inverse(d);
    store_f16(d, to);
    for (std::size_t i = 0; i < kBlock; ++i) {
      to[2 + i] = to_byte(static_cast<int>(std::round(from[i] * id)));
    }
  }
}
void encode_q4_0(const float* from, std::int64_t n, std::byte* to) {
  for (std::int64_t b = 0; b < n; ++b) encode_signed(from + b * kBlock, 8, to + b * 18);
}
void encode_q4_1(const float* from, std::int64_t n, std::byte* to) {
  for (std::int64_t b = 0; b < n; ++b) encode_ranged(from + b * kBlock, 15, to + b * 20);
}
void encode_q5_0(const float* from, std::int64_t n, std::byte* to) {
  for (std::int64_t b = 0; b < n; ++b) encode_signed(from + b * kBlock, 16, to + b * 22);
}
void encode_q5_1(const float* from, std::int64_t n, std::byte* to) {
  for (std::int64_t b = 0; b < n; ++b) encode_ranged(from + b * kBlock, 31, to + b * 24);
}
void encode_q4_k(const float* from, std::int64_t n, std::byte* to) {
  for (std::int64_t b = 0; b < n; ++b) encode_k_block(from + b * kSuper, 15, to + b * 144);
}
void encode_q5_k(const float* from, std::int64_t n, std::byte* to) {
  for (std::int64_t b = 0; b < n; ++b) encode_k_block(from + b * kSuper, 31, to + b * 176);
}
void encode_q6_k(const float* from, std::int64_t n, std::byte* to) {
  for (std::int64_t b = 0; b < n; ++b) encode_q6_block(from + b * kSuper, to + b * 210);
}

}  // namespace touchstone::inline v0::weights
