// Rotary position embedding: pairs of the first R numbers of every head are rotated by an angle
// that grows with the position of the token.
//
//   a = positions[n] * frequencies[i]
//   y[first(i)]  = scale * (x[first(i)] * cos a - x[second(i)] * sin a)
//   y[second(i)] = scale * (x[second(i)] * cos a + x[first(i)] * sin a)      i = 0 .. R / 2 - 1
//
// Pairs are (i, i + R / 2) with RopePairs::halves (Hugging Face, GPT-NeoX) and (2 i, 2 i + 1) with
// RopePairs::adjacent (GPT-J, GGUF files of the Llama family). R is twice the number of
// frequencies; the other D - R numbers are copied. The backward rotates by -a and scales alike: dx
// from dy.
//
// Shapes      x, y: [N, H, D], any strides of N and H, stride 1 of D. positions: [N]. frequencies:
//             [R / 2], R <= D, radians per position, from rope_frequencies or the caller's own.
// Dtypes      x f64 (CPU), f32, bf16, f16; y as x; positions i64; frequencies f64.
// Rounding    Angles in f64, reduced to one turn before they are rounded; sine and cosine, products
//             and the sum in f32 (f64 for f64), one rounding to the dtype at the end. The error
//             grows by 2^-51 of the angle: angles in f32, as most frameworks have them, lose
//             all digits of a frequency of 1 near position 10^7.
// Aliasing    y may be x itself. Any other overlap is refused.
// NaN and infinity   Follow the formula within their own pair; a position is any 64-bit integer.
// Empty       N = 0, H = 0 or D = 0: nothing is written.
// Guarantees  A token's bits depend on its numbers, its position and the frequencies alone. CUDA:
//             no allocation, no synchronization; can be captured in a graph.
// Cost        Reads x and writes y once: 2 N H D elements. 6 flops per pair, one sine and cosine
//             per token and frequency.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"

namespace touchstone::inline v0 {

enum class RopePairs : std::uint8_t { halves, adjacent };

struct RopeArgs {
  ConstTensorView x{};            // [N, H, D]
  ConstTensorView positions{};    // [N]
  ConstTensorView frequencies{};  // [R / 2]
  TensorView y{};                 // [N, H, D]
  RopePairs pairs = RopePairs::halves;
  double scale = 1;              // finite; RopeFrequencies::attention_factor
  std::string implementation{};  // "" = the first of explain() that accepts
};

struct RopeBackwardArgs {
  ConstTensorView dy{};           // [N, H, D]
  ConstTensorView positions{};    // [N]
  ConstTensorView frequencies{};  // [R / 2]
  TensorView dx{};                // [N, H, D]; may be dy itself
  RopePairs pairs = RopePairs::halves;
  double scale = 1;
  std::string implementation{};
};

TOUCHSTONE_API void rope(Context& context, const RopeArgs& args);
TOUCHSTONE_API void rope_backward(Context& context, const RopeBackwardArgs& args);

// See touchstone/core/implementation_report.h.
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context, const RopeArgs& args);
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const RopeBackwardArgs& args);

// How a model stretches its frequencies beyond the length it was trained with. Names and formulas
// are those of `rope_scaling` in config.json.
struct RopeScaling {
  enum class Kind : std::uint8_t {
    none,
    linear,  // every frequency / factor
    ntk,     // base * factor^(R / (R - 2)): low frequencies / factor, high ones as they are
    yarn,  // by parts: turns within original_length above beta_fast stay, below beta_slow / factor
    llama3,  // by parts: wavelengths below original_length / high_frequency_factor stay
  };
  Kind kind = Kind::none;
  double factor = 1;                // > 0
  double original_length = 0;       // yarn, llama3
  double beta_fast = 32;            // yarn
  double beta_slow = 1;             // yarn
  double attention_factor = 0;      // yarn; 0 = 0.1 log(factor) + 1 where factor > 1
  double low_frequency_factor = 1;  // llama3
  double high_frequency_factor = 4;
};

struct RopeFrequencies {
  std::vector<double> values{};  // [rotary_dim / 2]
  double attention_factor = 1;   // `scale` of rope, for q and for k
};

// base^(-2 i / rotary_dim), scaled. InvalidArgument, naming the field, for a rotary_dim that is odd
// or < 2 (< 4 with ntk), or numbers that are not finite and positive.
TOUCHSTONE_API RopeFrequencies rope_frequencies(std::int64_t rotary_dim, double base,
                                                const RopeScaling& scaling = {});

}  // namespace touchstone::inline v0
