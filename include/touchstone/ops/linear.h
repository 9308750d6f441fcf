// The linear layer, forward and backward.
//
//   v = x W^T + bias                                [.., out]
//   v = soft_cap * tanh(v / soft_cap)               where soft_cap > 0
//   v = act(v[.., : out / 2]) * v[.., out / 2 :]    where there is a gate: W holds the rows of the
//                                                   gate projection, then those of the up
//                                                   projection
//   y = v + residual
//
// Backward, of the product and the bias (dy is the gradient of v; that of the residual is dy):
//   dx = dy W          dweight = dy^T x          dbias = sum over rows of dy
//
// Shapes      x, dx: [.., in]; y, residual: [.., out], with a gate [.., out / 2]; dy: [.., out].
//             Any leading shape, the same for all; the last dimension has stride 1 and the leading
//             ones collapse to one row stride. weight, dweight: [out, in], rows at any stride; of a
//             block format u8 [out, bytes of a row]. bias, dbias: [out].
// Dtypes      x: f64 (CPU), f32, bf16, f16; residual, dy and dx like x; y like x, or f32. weight:
//             f64 with x f64 only; else f32, bf16, f16, f8_e4m3, or bytes of a format of
//             weight_format.h. bias: like x, or f32. dweight and dbias: like x, or f32.
// Rounding    Sums are f32 (f64 for f64). On CUDA bf16 and f16 products run on tensor cores:
//             weights of another format are rounded to the dtype of x first, and x of f32 is
//             multiplied in f32, never in TF32. On CPUs with AMX bf16 by bf16 runs on tiles, which
//             take subnormal numbers as 0. y is rounded once.
// Accuracy    |y - exact| <= (1024 + in / 1024 + 8) 2^-24 sum |x w| (f64: 2^-53) before the
//             rounding to the dtype of y; on CUDA with x of bf16 or f16 (11 in / 16 + 8) 2^-24
//             where that is more, and what rounding W costs. In practice 20 times less.
// NaN and     As the formula says: NaN or infinity in a row of x reach that row of y and no other.
// infinity    A NaN in W, or in a scale of a block, reaches its column. An infinite scale is
//             multiplied like any other: infinite for codes other than 0, NaN for 0. On the CPU
//             every NaN of y is the positive quiet NaN.
// Aliasing    residual may be y exactly. dweight and dbias with `accumulate` are read and written.
//             Any other overlap with an output is refused.
// Empty       No rows: nothing is written but dweight = dbias = 0 (without accumulate). in = 0: the
//             product is 0. out = 0: nothing is written but dx = 0.
// Guarantees  A row of y has bits that depend on this row of x (and of residual) and on the
//             parameters alone: not on how many rows the call has, on the rows beside it, or on
//             threads; so for a row of dx. CPU and CUDA each with itself, on one kind of processor.
//             dweight and dbias are the same from run to run and for any number of threads: rows
//             are added in their order. No float atomics.
//             The implementations `openblas` and `cublaslt` give no such promise and refuse unless
//             bits_may_depend_on_batch is set; they are never chosen before ours without it.
// Cost        Bytes: W once, x and y once. Flops: 2 * rows * in * out forward, twice that backward.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"
#include "touchstone/core/weight_format.h"

namespace touchstone::inline v0 {

// The activation of a gate: v * sigmoid(v), v * Phi(v), and its usual approximation by tanh.
enum class LinearGate : std::uint8_t { none, silu, gelu, gelu_tanh };

struct LinearArgs {
  ConstTensorView x{};          // [.., in]
  ConstTensorView weight{};     // [out, in], or bytes [out, bytes of a row]
  std::string weight_format{};  // of bytes, as weight_format.h names it; "" = the dtype of weight
  ConstTensorView bias{};       // [out], optional
  ConstTensorView residual{};   // like y in the dtype of x, optional
  TensorView y{};               // [.., out], or [.., out / 2] with a gate
  LinearGate gate = LinearGate::none;
  double soft_cap = 0;  // finite, >= 0; 0 = none
  // Rounds each row of x to integers q of at most 127 times one scale, s = max |x| / 127, and
  // computes s * (q W^T): what a model quantized for int8 activations expects. On AVX2 and AVX-512
  // block formats are then multiplied as integers, which is faster; elsewhere it is not. Ternary
  // formats are so on every device, with W as it is stored and the same bits on the CPU and CUDA
  // but for gates and soft caps. A row with NaN or infinity becomes NaN.
  bool int8_activations = false;
  // Allows implementations whose rows change bits with the batch.
  bool bits_may_depend_on_batch = false;
  // States that no work queued on the stream writes `weight`: on CUDA it may then be read
  // while kernels launched earlier run, which closes the gap between two layers. Set it for weights
  // that were loaded before; never for weights that a kernel has just computed.
  bool constant_weight = false;
  std::string implementation{};  // "" = the first of explain() that accepts
};

struct LinearBackwardArgs {
  ConstTensorView dy{};         // [.., out]
  ConstTensorView x{};          // [.., in], for dweight
  ConstTensorView weight{};     // [out, in], for dx
  std::string weight_format{};  // as forward
  TensorView dx{};              // [.., in], optional
  TensorView dweight{};         // [out, in], optional
  TensorView dbias{};           // [out], optional
  // dweight and dbias, in f32 (f64 for f64), are added to what is there.
  bool accumulate = false;
  bool bits_may_depend_on_batch = false;
  std::string implementation{};  // "" = the first of explain() that accepts
};

TOUCHSTONE_API void linear(Context& context, const LinearArgs& args);
TOUCHSTONE_API void linear_backward(Context& context, const LinearBackwardArgs& args);

// See touchstone/core/implementation_report.h.
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context, const LinearArgs& args);
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const LinearBackwardArgs& args);

}  // namespace touchstone::inline v0
