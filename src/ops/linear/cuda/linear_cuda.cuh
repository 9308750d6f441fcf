// Linear on CUDA: what the kernels share.
//
// Every kernel adds the products of an output in the same way: `in` in segments, a segment in steps
// of 16 on tensor cores (bf16 and f16) or one by one (f32), each segment from zero, the sums of
// segments in their order. Nothing else enters an output's bits: docs/design/linear.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/launch.h"
#include "cuda/tensor_core.cuh"
#include "cuda/vector.cuh"
#include "ops/activation/activation_math.cuh"
#include "ops/linear/linear_problem.h"

namespace touchstone::linear_layer {

// ---- segments -----------------------------------------------------------------------------------

inline constexpr int kMaxSegments = 8;
inline constexpr int kSegmentUnit = 256;  // divides a segment: every block of every format does too

// Few rows are computed by as many warps as there are segments: eight fill the memory pipeline, and
// a segment below 512 would not pay for the sum of sums.
__host__ __device__ constexpr std::int64_t segment_length(std::int64_t n) {
  const std::int64_t wanted = n / 512 < 1 ? 1 : n / 512 > kMaxSegments ? kMaxSegments : n / 512;
  const std::int64_t length = (n + wanted - 1) / wanted;
  return (length + kSegmentUnit - 1) / kSegmentUnit * kSegmentUnit;
}
__host__ __device__ constexpr int segment_count(std::int64_t n) {
  const std::int64_t length = segment_length(n);
  return n == 0 ? 1 : static_cast<int>((n + length - 1) / length);
}

// ---- what becomes of a sum ----------------------------------------------------------------------

// The epilogue of the forward, or a gradient that is stored or added to.
struct Sink {
  void* y = nullptr;
  std::int64_t stride = 0;
  DType dtype = DType::f32;
  bool accumulate = false;
  LinearGate gate = LinearGate::none;
  float soft_cap = 0;
  std::int64_t columns = 0;  // of y; up rows of W lie as many after their gate rows
  const void* bias = nullptr;
  DType bias_dtype = DType::f32;
  const void* residual = nullptr;
  std::int64_t residual_stride = 0;
  DType residual_dtype = DType::f32;
  const float* scales = nullptr;  // of rows
};

__device__ inline float activate(LinearGate gate, float v) {
  return activation_op::visit_kind(
      activation_of(gate), [&]<Activation kKind>() { return activation_op::act<kKind>(v).value; });
}

// No product and sum may be merged in one kernel and not in another.
__device__ inline float before_gate(const Sink& sink, std::int64_t o, float v) {
  if (sink.bias != nullptr) v = __fadd_rn(v, cuda::load_any(sink.bias, sink.bias_dtype, o));
  if (sink.soft_cap > 0) {
    v = __fmul_rn(sink.soft_cap, tanhf(__fdiv_rn(v, sink.soft_cap)));
  }
  return v;
}

// Column c of row `row` from the sum of row c of W and, with a gate, of its up row.
__device__ inline float finish(const Sink& sink, std::int64_t row, std::int64_t c, float sum,
                               float up) {
  if (sink.scales != nullptr) {
    sum = __fmul_rn(sum, sink.scales[row]);
    up = __fmul_rn(up, sink.scales[row]);
  }
  float v = before_gate(sink, c, sum);
  if (sink.gate != LinearGate::none) {
    v = __fmul_rn(activate(sink.gate, v), before_gate(sink, c + sink.columns, up));
  }
  if (sink.residual != nullptr) {
    v = __fadd_rn(
        v, cuda::load_any(sink.residual, sink.residual_dtype, row * sink.residual_stride + c));
  }
  if (sink.accumulate) v = __fadd_rn(static_cast<const float*>(sink.y)[row * sink.stride + c], v);
  return v;
}

__device__ inline void store(const Sink& sink, std::int64_t row, std::int64_t c, float v) {
  const std::int64_t at = row * sink.stride + c;
  if (sink.dtype == DType::f32) {
    static_cast<float*>(sink.y)[at] = v;
  } else if (sink.dtype == DType::bf16) {
    static_cast<Bf16*>(sink.y)[at] = cuda::narrow<Bf16>(v);
  } else {
    static_cast<F16*>(sink.y)[at] = cuda::narrow<F16>(v);
  }
}

// ---- 16-bit types -------------------------------------------------------------------------------

template <class T>
__device__ std::uint32_t packed(float low, float high) {
  if constexpr (std::is_same_v<T, Bf16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}

template <class T>
__device__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                             std::uint32_t b1) {
  if constexpr (std::is_same_v<T, Bf16>) {
    cuda::multiply_add_bf16(c, a, b0, b1);
  } else {
    cuda::multiply_add_f16(c, a, b0, b1);
  }
}

// ---- host ---------------------------------------------------------------------------------------

// x rounded to int8 for problems with int8_activations: the rows then lie in the workspace.
struct Activations {
  ConstRows x;
  const float* scales = nullptr;
};
std::int64_t activation_bytes(const Forward& p);
Activations prepare_activations(Context& context, const Forward& p, std::byte* workspace);

// dbias, in any implementation: linear_portable.cu.
void bias_gradient(Context& context, const Backward& p);

inline Sink forward_sink(const Forward& p, const float* scales) {
  return {.y = p.y.data,
          .stride = p.y.stride,
          .dtype = p.y_dtype,
          .gate = p.gate,
          .soft_cap = static_cast<float>(p.soft_cap),
          .columns = p.columns(),
          .bias = p.bias,
          .bias_dtype = p.bias_dtype,
          .residual = p.residual.data,
          .residual_stride = p.residual.stride,
          .residual_dtype = p.dtype,
          .scales = scales};
}

// Whether the sum is the output.
inline bool is_identity_epilogue(const Sink& sink) {
  return !sink.accumulate && sink.gate == LinearGate::none && sink.soft_cap == 0 &&
         sink.bias == nullptr && sink.residual == nullptr && sink.scales == nullptr;
}

// Columns [first, first + count) of y, without a gate.
inline Sink part_of(Sink sink, std::int64_t first, std::int64_t count) {
  const auto moved = [&](const void* data, DType dtype) {
    return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + first * size_of(dtype);
  };
  sink.y = const_cast<std::byte*>(moved(sink.y, sink.dtype));
  sink.bias = moved(sink.bias, sink.bias_dtype);
  sink.residual = moved(sink.residual, sink.residual_dtype);
  sink.columns = count;
  return sink;
}

}  // namespace touchstone::linear_layer
