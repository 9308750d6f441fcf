// Operators of a training step beside those of touchstone/ops: conversion between dtypes,
// sums of gradients, dropout, the norm of a gradient and AdamW. Each runs on the device of the
// context.
//
// Shapes      Rows [.., C] of cast and dropout lie at any row stride; everything else is contiguous
//             and of any shape.
// Dtypes      As each struct says. f64 on the CPU only: it is there to check against.
// Rounding    Arithmetic in f32 (f64 for f64), one rounding to the dtype of the result.
// Aliasing    y of dropout may be x exactly; y of add_to, and weights, moments and average of adamw
//             are read and written. Any other overlap with an output is refused.
// Empty       Nothing is written, but the norm of no gradient, which is 0.
// Guarantees  The same bits from run to run and for any number of threads. No float atomics. CUDA:
//             no allocation, no synchronization; can be captured in a graph.
// Cost        Every tensor once.
#pragma once

#include <cstdint>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/tensor.h"

namespace touchstone::inline v0::train {

// y = x, rounded to the dtype of y.
struct CastArgs {
  ConstTensorView x{};  // [.., C] f64, f32, bf16, f16
  TensorView y{};       // [.., C], likewise; f64 with f64 only
};
TOUCHSTONE_API void cast(Context& context, const CastArgs& args);

// y += x.
struct AddArgs {
  ConstTensorView x{};  // f32, f64
  TensorView y{};       // as x
};
TOUCHSTONE_API void add_to(Context& context, const AddArgs& args);

// Which elements dropout keeps: a pure function of these numbers, the token and the column. The
// same for the forward and the backward pass, for any batch that the token is part of, and on any
// device.
//
// Element (n, c) takes 16 of the 128 bits random_words(seed, step * 2^40 + (first_token + n) *
// ceil(C / 8) + c / 8, RandomPurpose::dropout, draw), those of index c % 8. It is dropped where
// they are below round(probability * 65536), and else multiplied by 1 / (1 - that number / 65536).
struct DropoutMask {
  double probability = 0;  // 0 <= p < 1
  std::int64_t seed = 0;
  std::int64_t step = 0;         // 0 <= step < 2^23
  std::int64_t first_token = 0;  // of row 0, among the tokens of the step
  std::uint32_t draw = 0;        // layer and mask
};

struct DropoutArgs {
  ConstTensorView x{};  // [.., C] f64, f32, bf16, f16
  TensorView y{};       // as x
  DropoutMask mask{};
};
// The backward pass is the same call with the gradient of y as x.
TOUCHSTONE_API void dropout(Context& context, const DropoutArgs& args);

// norm = sqrt(sum of squares). Sums in f64, of chunks of 16384 elements one after another.
struct GradientNormArgs {
  ConstTensorView gradient{};  // f32, f64
  TensorView norm{};           // [1] f64
};
TOUCHSTONE_API void gradient_norm(Context& context, const GradientNormArgs& args);

// One step of AdamW (Loshchilov and Hutter, 2019), with g the gradient times
// min(1, clip / (norm + 1e-6)):
//   weight  = weight * (1 - learning_rate * weight_decay)
//   m       = m + (1 - beta1) (g - m)          v = beta2 v + (1 - beta2) g^2
//   weight -= learning_rate / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + epsilon)
//   average = average_decay * average + (1 - average_decay) * weight       where there is one
// Nothing is written where the norm is not finite: a step that failed leaves the last good weights.
struct AdamWArgs {
  ConstTensorView gradient{};  // f32, f64
  ConstTensorView norm{};      // [1] f64, optional: without it nothing is clipped
  TensorView weight{};         // as gradient, as are the next three
  TensorView m{};
  TensorView v{};
  TensorView average{};      // optional
  std::int64_t step = 1;     // of the bias correction, from 1
  double learning_rate = 0;  // finite, >= 0, as is what follows
  double beta1 = 0.9;        // < 1
  double beta2 = 0.95;       // < 1
  double epsilon = 1e-8;
  double weight_decay = 0;
  double clip = 0;  // 0 = none
  double average_decay = 0;
};
TOUCHSTONE_API void adamw(Context& context, const AdamWArgs& args);

}  // namespace touchstone::inline v0::train
