// Activations on CUDA: `vectorized` in vectors of 16 bytes, `portable` one element per thread, with the
// same arithmetic.
#include <algorithm>
#include <string>

#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "ops/activation/activation_problem.h"
#include "ops/activation/activation_tuning.h"
#include "touchstone/core/checked.h"

namespace touchstone::activation_op {
namespace {

struct DeviceSlope {
  float value;
  float slope;
};

__device__ DeviceSlope act(Activation kind, float x) {
  switch (kind) {
    case Activation::silu: {
      const float sigmoid = __frcp_rn(__fadd_rn(1.0F, expf(-x)));
      return {__fmul_rn(x, sigmoid),
              __fmul_rn(sigmoid, __fmaf_rn(x, __fsub_rn(1.0F, sigmoid), 1.0F))};
    }
    case Activation::gelu: {
      const float phi = __fmul_rn(0.5F, erfcf(__fmul_rn(x, -0.70710678118654752440F)));
      const float density =
          __fmul_rn(0.39894228040143267794F, expf(__fmul_rn(-0.5F, __fmul_rn(x, x))));
      return {__fmul_rn(x, phi), __fmaf_rn(x, density, phi)};
    }
    case Activation::gelu_tanh: {
      constexpr float kScale = 0.79788456080286535588F;
      const float x2 = __fmul_rn(x, x);
      const float t = tanhf(__fmul_rn(__fmul_rn(kScale, x), __fmaf_rn(0.044715F, x2, 1.0F)));
      const float rise = __fmul_rn(kScale, __fmaf_rn(3 * 0.044715F, x2, 1.0F));
      const float open = __fmul_rn(0.5F, __fadd_rn(1.0F, t));
      const float bend = __fmul_rn(__fmul_rn(__fmul_rn(0.5F, x), __fmaf_rn(-t, t, 1.0F)), rise);
      return {__fmul_rn(x, open), __fadd_rn(open, bend)};
    }
    case Activation::relu_squared:
      break;
  }
  const float positive = x < 0 ? 0 : x;
  return {__fmul_rn(positive, positive), __fadd_rn(positive, positive)};
}

template <Function kFunction>
__device__ void apply_one(Activation kind, const float* in, float* out) {
  if constexpr (kFunction == Function::activation) {
    out[0] = act(kind, in[0]).value;
  } else if constexpr (kFunction == Function::activation_backward) {
    out[0] = __fmul_rn(in[0], act(kind, in[1]).slope);
  } else if constexpr (kFunction == Function::gate) {
    out[0] = __fmul_rn(act(kind, in[0]).value, in[1]);
  } else {
    const DeviceSlope both = act(kind, in[1]);
    out[0] = __fmul_rn(__fmul_rn(in[0], in[2]), both.slope);
    out[1] = __fmul_rn(in[0], both.value);
  }
}

// One to kVectors vectors of 16 bytes per thread and step, all loads before the first use.
template <class T, Function kFunction>
__global__ void __launch_bounds__(kThreads)
    activation_vectorized_kernel(const __grid_constant__ Problem p) {
  constexpr int kN = cuda::kPerVector<T>;
  constexpr int kIn = inputs_of(kFunction);
  constexpr int kOut = outputs_of(kFunction);
  const std::int64_t per_row = p.cols / kN;
  const std::int64_t all = p.rows * per_row;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; first < all;
       first += kVectors * step) {
    uint4 held[kVectors][kIn];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t at = first + v * step;
      if (at >= all) break;
#pragma unroll
      for (int i = 0; i < kIn; ++i) {
        held[v][i] =
            *reinterpret_cast<const uint4*>(static_cast<const T*>(p.in[i].data) +
                                            at / per_row * p.in[i].stride + at % per_row * kN);
      }
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t at = first + v * step;
      if (at >= all) break;
      float in[kIn][kN];
      float out[kOut][kN];
#pragma unroll
      for (int i = 0; i < kIn; ++i) cuda::unpack_as<T>(held[v][i], in[i]);
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        float one[kIn];
        float result[kOut];
#pragma unroll
        for (int i = 0; i < kIn; ++i) one[i] = in[i][k];
        apply_one<kFunction>(p.kind, one, result);
#pragma unroll
        for (int i = 0; i < kOut; ++i) out[i][k] = result[i];
      }
#pragma unroll
      for (int i = 0; i < kOut; ++i) {
        *reinterpret_cast<uint4*>(static_cast<T*>(p.out[i].data) + at / per_row * p.out[i].stride +
                                  at % per_row * kN) = cuda::pack_as<T>(out[i]);
      }
    }
  }
}

template <class T, Function kFunction>
__global__ void __launch_bounds__(kThreads)
    activation_portable_kernel(const __grid_constant__ Problem p) {
  constexpr int kIn = inputs_of(kFunction);
  constexpr int kOut = outputs_of(kFunction);
  const std::int64_t all = p.rows * p.cols;
  for (std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; at < all;
       at += std::int64_t{gridDim.x} * kThreads) {
    float in[kIn];
    float out[kOut];
#pragma unroll
    for (int i = 0; i < kIn; ++i) {
      in[i] = cuda::widen(
          static_cast<const T*>(p.in[i].data)[at / p.cols * p.in[i].stride + at % p.cols]);
    }
    apply_one<kFunction>(p.kind, in, out);
#pragma unroll
    for (int i = 0; i < kOut; ++i) {
      static_cast<T*>(p.out[i].data)[at / p.cols * p.out[i].stride + at % p.cols] =
          cuda::narrow<T>(out[i]);
    }
  }
}

template <class F>
void visit_element_type(DType dtype, const F& f) {
  if (dtype == DType::f32) return f.template operator()<float>();
  if (dtype == DType::bf16) return f.template operator()<Bf16>();
  return f.template operator()<F16>();
}

template <class F>
void visit(const Problem& p, const F& f) {
  visit_element_type(p.dtype, [&]<class T>() {
    switch (p.function) {
      case Function::activation:
        return f.template operator()<T, Function::activation>();
      case Function::activation_backward:
        return f.template operator()<T, Function::activation_backward>();
      case Function::gate:
        return f.template operator()<T, Function::gate>();
      case Function::gate_backward:
        return f.template operator()<T, Function::gate_backward>();
    }
  });
}

unsigned blocks_for(std::int64_t threads) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>(ceil_div(threads, std::int64_t{kThreads}), 1, 1 << 20));
}

}  // namespace

std::string vectorized_refuses(const Context& /*context*/, const Problem& p) {
  const std::int64_t per_vector = 16 / size_of(p.dtype);
  if (p.cols % per_vector != 0) {
    return "columns " + std::to_string(p.cols) + " are no whole vectors of 16 bytes";
  }
  const auto check = [&](const Rows& rows) -> std::string {
    if (reinterpret_cast<std::uintptr_t>(rows.data) % 16 != 0) return "data is not 16-byte aligned";
    if (rows.stride % per_vector != 0) {
      return "row stride " + std::to_string(rows.stride) + " is no multiple of 16 bytes";
    }
    return "";
  };
  for (const Rows& rows : p.in) {
    if (std::string refusal = check(rows); !refusal.empty()) return refusal;
  }
  for (const Rows& rows : p.out) {
    if (std::string refusal = check(rows); !refusal.empty()) return refusal;
  }
  return "";
}

void run_vectorized(Context& context, const Problem& p) {
  const cuda::DeviceScope scope(context.device().index);
  visit(p, [&]<class T, Function kFunction>() {
    const std::int64_t vectors = p.rows * (p.cols / cuda::kPerVector<T>);
    cuda::launch(
        context, "activation vectorized_kernel", activation_vectorized_kernel<T, kFunction>,
        {.blocks = blocks_for(ceil_div(vectors, std::int64_t{kVectors})), .threads = kThreads}, p);
  });
}

void run_portable(Context& context, const Problem& p) {
  const cuda::DeviceScope scope(context.device().index);
  visit(p, [&]<class T, Function kFunction>() {
    cuda::launch(context, "activation portable_kernel", activation_portable_kernel<T, kFunction>,
                 {.blocks = blocks_for(p.rows * p.cols), .threads = kThreads}, p);
  });
}

}  // namespace touchstone::activation_op
