// 32-bit keys for bf16 tokens that reach a threshold.
#pragma once

#include "ops/selection/key.cuh"

namespace touchstone::selection {

// The distance of the value from the threshold, counted in bf16 values, above the complement of the
// token. Values with |v| < 2^-24 and below -2^24 are not numbered, so that the others up to 2^24
// need at most 14 bits; their keys are `is_unknown`.
class PackedKey32 {
 public:
  __device__ PackedKey32(float threshold, int bits_of_token)
      : lowest(max(number_of(threshold), number_of(-0x1p24F))), token_bits(bits_of_token) {}

  __device__ std::uint32_t operator()(float value, std::uint32_t token) const {
    // With a positive threshold, the common case, all values are positive.
    const int number = lowest > 0 ? positive_number_of(value) : known_number_of(value);
    // A value below the lowest wraps around to a large number.
    const std::uint32_t above =
        min(static_cast<std::uint32_t>(number) - static_cast<std::uint32_t>(lowest), no_number());
    return above << token_bits | (~token & token_mask());
  }
  // The value is not representable.
  __device__ bool is_unknown(std::uint32_t key) const { return key >> token_bits == no_number(); }

  __device__ float value(std::uint32_t key) const {
    const int number = static_cast<int>(key >> token_bits) + lowest;
    if (number > 0) return __int_as_float((number + kFirstNumbered) << 16);
    return number == 0 ? 0 : -__int_as_float((kFirstNumbered - 1 - number) << 16);
  }
  __device__ std::uint32_t token(std::uint32_t key) const { return ~key & token_mask(); }

 private:
  static constexpr float kTiny = 0x1p-24F;
  static constexpr int kFirstNumbered = 0x3380;  // upper half of 2^-24

  __device__ static int positive_number_of(float value) {
    return (__float_as_int(value) >> 16) - kFirstNumbered;
  }
  // 0 for 0; values that are not numbered get the number of a neighbor.
  __device__ static int number_of(float value) {
    const int word = static_cast<int>(ordered(value) >> 16) - 0x8000;
    return word >= 0 ? max(word - kFirstNumbered, 0) : min(word + kFirstNumbered, -1);
  }
  // Values that are not numbered get one below all others.
  __device__ int known_number_of(float value) const {
    return fabsf(value) <= kTiny && value != 0 ? lowest - 1 : number_of(value);
  }
  // The largest number that fits.
  __device__ std::uint32_t no_number() const { return ~0U >> token_bits; }
  __device__ std::uint32_t token_mask() const { return (1U << token_bits) - 1; }

  int lowest;
  int token_bits;
};

}  // namespace touchstone::selection
