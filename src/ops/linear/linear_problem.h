// A checked problem of linear and the implementations that take it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/host_device.h"
#include "core/index.h"
#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"
#include "touchstone/core/weight_format.h"
#include "touchstone/ops/activation.h"
#include "touchstone/ops/linear.h"

namespace touchstone::linear_layer {

// `in` is summed in segments of this many, each from zero, their sums added in order: short sums
// have smaller errors, and a cache holds a segment of a few rows. Decides the bits of a row.
inline constexpr std::int64_t kSegment = 1024;

// A matrix of known dtype: element (r, c) at data[r * stride + c]. Null = absent.
struct ConstRows {
  const void* data = nullptr;
  std::int64_t stride = 0;
};
struct Rows {
  void* data = nullptr;
  std::int64_t stride = 0;
};

// W as it is stored: row o starts at data + o * row_bytes.
struct Weight {
  const std::byte* data = nullptr;
  std::int64_t row_bytes = 0;
  const WeightFormat* format = nullptr;

  const std::byte* row(std::int64_t o) const { return data + o * row_bytes; }
};

// Forward: rows and out are positive, in may be 0. Backward: all may be 0.
struct Forward {
  DType dtype = DType::f32;    // of x and residual
  DType y_dtype = DType::f32;  // that of x, or f32
  std::int64_t rows = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;  // rows of W; y has half as many columns where there is a gate
  ConstRows x;
  Weight weight;
  const void* bias = nullptr;  // [out]
  DType bias_dtype = DType::f32;
  ConstRows residual;
  Rows y;
  LinearGate gate = LinearGate::none;
  double soft_cap = 0;
  bool int8_activations = false;
  bool bits_may_depend_on_batch = false;
  bool constant_weight = false;

  std::int64_t columns() const { return gate == LinearGate::none ? out : out / 2; }
};

struct Backward {
  DType dtype = DType::f32;     // of dy and x
  DType dx_dtype = DType::f32;  // that of dy; on AMX f32, too
  DType dweight_dtype = DType::f32;
  DType dbias_dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  ConstRows dy;
  ConstRows x;
  Weight weight;  // for dx
  Rows dx;
  Rows dweight;
  void* dbias = nullptr;
  bool accumulate = false;
  bool bits_may_depend_on_batch = false;
};

// Of a gate that there is.
TOUCHSTONE_HOST_DEVICE constexpr Activation activation_of(LinearGate gate) {
  return gate == LinearGate::silu   ? Activation::silu
         : gate == LinearGate::gelu ? Activation::gelu
                                    : Activation::gelu_tanh;
}

// CPU, Highway, every SIMD target: linear_cpu*.cc.
void forward_simd(Context& context, const Forward& p);
void backward_simd(Context& context, const Backward& p);

// CPU, bf16 by bf16 on the tiles of AMX: linear_amx.cc.
std::string amx_refuses_forward(const Context& context, const Forward& p);
std::string amx_refuses_backward(const Context& context, const Backward& p);
void forward_amx(Context& context, const Forward& p);
void backward_amx(Context& context, const Backward& p);

// CPU, plain loops, one thread, f64 sums: linear_plain.cc.
void forward_plain(Context& context, const Forward& p);
void backward_plain(Context& context, const Backward& p);

// Ternary weights with int8 activations: the same bits on the CPU (linear_ternary.cc) and on CUDA
// (linear_ternary.cu), but for gates and soft caps.
std::string ternary_refuses_cpu(const Context& context, const Forward& p);
void forward_ternary_cpu(Context& context, const Forward& p);
std::string ternary_stream_refuses(const Context& context, const Forward& p);
void forward_ternary_stream(Context& context, const Forward& p);  // up to 16 rows
std::string ternary_tiles_refuses(const Context& context, const Forward& p);
void forward_ternary_tiles(Context& context, const Forward& p);  // linear_ternary_tiles.cu
std::string ternary_portable_refuses(const Context& context, const Forward& p);
void forward_ternary_portable(Context& context, const Forward& p);  // any format and alignment

// CUDA: any strides and formats; linear_portable.cu, or src/no_cuda in a CPU-only build.
void forward_portable(Context& context, const Forward& p);
void backward_portable(Context& context, const Backward& p);
// CUDA, up to 16 rows of bf16 or f16, W of most formats: linear_stream.cu.
std::string stream_refuses(const Context& context, const Forward& p);
void forward_stream(Context& context, const Forward& p);
// CUDA, Hopper tensor cores, any number of rows: linear_wgmma.cu.
std::string wgmma_refuses_forward(const Context& context, const Forward& p);
std::string wgmma_refuses_backward(const Context& context, const Backward& p);
void forward_wgmma(Context& context, const Forward& p);
void backward_wgmma(Context& context, const Backward& p);

// CUDA, cuBLASLt where it is installed: linear_cublaslt.cu.
std::string cublaslt_refuses_forward(const Context& context, const Forward& p);
std::string cublaslt_refuses_backward(const Context& context, const Backward& p);
void forward_cublaslt(Context& context, const Forward& p);
void backward_cublaslt(Context& context, const Backward& p);

// CPU, OpenBLAS where it is installed: linear_openblas.cc.
std::string openblas_refuses_forward(const Context& context, const Forward& p);
std::string openblas_refuses_backward(const Context& context, const Backward& p);
void forward_openblas(Context& context, const Forward& p);
void backward_openblas(Context& context, const Backward& p);

}  // namespace touchstone::linear_layer
