// Sources of linear_source.cuh for ternary weights: a group is a unit of 128 elements.
//
// A code beside a magic number is that number plus the code; less the number plus 1 it is -1, 0, 1 (or 2),
// and times the scale, rounded to T, it is the weight rounded to T, exactly.
#pragma once

#include "ops/linear/cuda/linear_source.cuh"

namespace touchstone::linear_layer {

template <class T>
struct TernaryScale {
  static constexpr std::uint32_t kMagic = NibbleScale<T>::kMagic;
  std::uint32_t scale;

  explicit __device__ TernaryScale(std::uint32_t bits) {
    const float value = half_float(bits);
    scale = packed<T>(value, value);
  }
  // Codes in bits 0 and 16.
  __device__ std::uint32_t times(std::uint32_t codes) const {
    const std::uint32_t one_more = kMagic + 0x00010001U;
    const Pair<T> c = __hsub2(as_pair<T>((codes & 0x00030003U) | kMagic), as_pair<T>(one_more));
    return as_bits(__hmul2(c, as_pair<T>(scale)));
  }
};

// ternary_g128: block i of 32 elements is plane i of 32 bytes.
template <class T>
struct TernaryPlaneSource {
  static constexpr StepOrder kOrder = StepOrder::interleaved;
  static constexpr int kUnitBytes = 34;
  struct Raw {
    Halves codes[2];
    std::uint32_t scale;
  };
  static __device__ __forceinline__ Raw load(const std::uint8_t* p, int /*half*/, int q) {
    return {{load_halves(p + q * 4), load_halves(p + 16 + q * 4)}, load_2(p + 32)};
  }
  static __device__ __forceinline__ Fragment decode(const Raw& raw, int i) {
    const TernaryScale<T> scale(raw.scale);
    const std::uint32_t a = raw.codes[0].word() >> (2 * i);
    const std::uint32_t b = raw.codes[1].word() >> (2 * i);
    return {{{scale.times(a), scale.times(a >> 8)}, {scale.times(b), scale.times(b >> 8)}}};
  }
};

// pq2_0: a byte holds the four elements of a lane.
template <class T>
struct TernaryPairSource {
  static constexpr StepOrder kOrder = StepOrder::interleaved;
  static constexpr int kUnitBytes = 34;
  struct Raw {
    std::uint32_t codes[8];
    std::uint32_t scale;
  };
  static __device__ __forceinline__ Raw load(const std::uint8_t* p, int /*half*/, int q) {
    Raw raw;
    raw.scale = load_2(p);
#pragma unroll
    for (int step = 0; step < 8; ++step) raw.codes[step] = p[2 + step * 4 + q];
    return raw;
  }
  static __device__ __forceinline__ Fragment decode(const Raw& raw, int i) {
    const TernaryScale<T> scale(raw.scale);
    Fragment f;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      // Bits 4 to 7 also from bit 16 on.
      const std::uint32_t w = raw.codes[2 * i + step] | raw.codes[2 * i + step] << 12;
      f.step[step][0] = scale.times(w);
      f.step[step][1] = scale.times(w >> 2);
    }
    return f;
  }
};

}  // namespace touchstone::linear_layer
