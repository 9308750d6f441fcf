// Shared by layer norm and RMS norm: one problem description, checked already, and the
// implementations that take it. RMS norm is layer norm with the mean held at zero and no bias.
#pragma once

#include <cstdint>
#include <string>

#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"

namespace touchstone::norm {

enum class Kind : std::uint8_t { layer, rms };

// A matrix [rows, cols] of known dtype: element (r, c) at data[r * stride + c]. Null = absent.
struct ConstRows {
  const void* data = nullptr;
  std::int64_t stride = 0;
};
struct Rows {
  void* data = nullptr;
  std::int64_t stride = 0;
};

// Statistics are f64 when dtype is f64, else f32. `rows` and `cols` are positive.
struct Forward {
  Kind kind = Kind::layer;
  DType dtype = DType::f32;         // of x, residual, y, sum
  DType weight_dtype = DType::f32;  // of weight and bias
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  ConstRows x;
  ConstRows residual;
  const void* weight = nullptr;
  const void* bias = nullptr;
  Rows y;
  Rows sum;
  void* mean = nullptr;
  void* rstd = nullptr;
  double eps = 0;
  double weight_offset = 0;          // added to weight where weight is present
  bool round_before_weight = false;  // RMS only
};

struct Backward {
  Kind kind = Kind::layer;
  DType dtype = DType::f32;              // of dy, x, dsum, dx
  DType weight_dtype = DType::f32;       // of weight
  DType weight_grad_dtype = DType::f32;  // of dweight and dbias
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  ConstRows dy;
  ConstRows x;
  const void* mean = nullptr;  // null for RMS
  const void* rstd = nullptr;
  const void* weight = nullptr;
  ConstRows dsum;
  Rows dx;
  void* dweight = nullptr;
  void* dbias = nullptr;
  double weight_offset = 0;
};

// CPU, Highway, every SIMD target: norm_cpu.cc.
void forward_simd(Context& context, const Forward& p);
void backward_simd(Context& context, const Backward& p);

// CPU, plain loops, one thread, no intrinsics: norm_plain.cc.
void forward_plain(Context& context, const Forward& p);
void backward_plain(Context& context, const Backward& p);

// CUDA. `persistent` and `registers` move rows as vectors of 16 bytes; `portable` takes anything on
// any GPU. norm_cuda_*.cu, or src/no_cuda in a CPU-only build.
std::string persistent_refuses_forward(const Context& context, const Forward& p);
std::string registers_refuses_forward(const Context& context, const Forward& p);
std::string persistent_refuses_backward(const Context& context, const Backward& p);
void forward_persistent(Context& context, const Forward& p);
void forward_registers(Context& context, const Forward& p);
void backward_persistent(Context& context, const Backward& p);
void forward_portable(Context& context, const Forward& p);
void backward_portable(Context& context, const Backward& p);

// A row whose mean square (+ eps) is not finite, or is below this, is redone on scaled data:
// above it, squares lost to underflow are below 2^-36 of the sum; below it they may not be.
inline constexpr double kSmallMeanSquare = 0x1p-90;

}  // namespace touchstone::norm
