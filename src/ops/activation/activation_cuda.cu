// Activations on CUDA: `vectorized` in vectors of 16 bytes, `portable` one element per thread, with the
// same arithmetic.
#include <algorithm>
#include <string>

#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "cuda/visit_dtype.h"
#include "ops/activation/activation_math.cuh"
#include "ops/activation/activation_problem.h"
#include "ops/activation/activation_tuning.h"
#include "touchstone/core/checked.h"

namespace touchstone::activation_op {
namespace {

template <Function kFunction, Activation kKind>
__device__ void apply_one(const float* in, float* out) {
  if constexpr (kFunction == Function::activation) {
    out[0] = act<kKind>(in[0]).value;
  } else if constexpr (kFunction == Function::activation_backward) {
    out[0] = __fmul_rn(in[0], act<kKind>(in[1]).slope);
  } else if constexpr (kFunction == Function::gate) {
    out[0] = __fmul_rn(act<kKind>(in[0]).value, in[1]);
  } else {
    const DeviceSlope both = act<kKind>(in[1]);
    out[0] = __fmul_rn(__fmul_rn(in[0], in[2]), both.slope);
    out[1] = __fmul_rn(in[0], both.value);
  }
}

// kVectors vectors of 16 bytes per thread, all loads before the first use.
template <class T, Function kFunction>
__global__ void __launch_bounds__(kThreads)
    activation_vectorized_kernel(const __grid_constant__ Problem p) {
  constexpr int kN = cuda::kPerVector<T>;
  constexpr int kIn = inputs_of(kFunction);
  constexpr int kOut = outputs_of(kFunction);
  const auto per_row = static_cast<unsigned>(p.cols / kN);
  const auto all = static_cast<unsigned>(p.rows) * per_row;
  const unsigned step = gridDim.x * kThreads;
  const unsigned first = blockIdx.x * kThreads + threadIdx.x;
  uint4 held[kVectors][kIn];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const unsigned at = first + static_cast<unsigned>(v) * step;
    if (at >= all) break;
    const std::int64_t row = at / per_row;
    const unsigned column = at % per_row * kN;
#pragma unroll
    for (int i = 0; i < kIn; ++i) {
      held[v][i] = *reinterpret_cast<const uint4*>(static_cast<const T*>(p.in[i].data) +
                                                   row * p.in[i].stride + column);
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const unsigned at = first + static_cast<unsigned>(v) * step;
    if (at >= all) break;
    const std::int64_t row = at / per_row;
    const unsigned column = at % per_row * kN;
    float in[kIn][kN];
    float out[kOut][kN];
#pragma unroll
    for (int i = 0; i < kIn; ++i) cuda::unpack_as<T>(held[v][i], in[i]);
    visit_kind(p.kind, [&]<Activation kKind>() {
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        float one[kIn];
        float result[kOut];
#pragma unroll
        for (int i = 0; i < kIn; ++i) one[i] = in[i][k];
        apply_one<kFunction, kKind>(one, result);
#pragma unroll
        for (int i = 0; i < kOut; ++i) out[i][k] = result[i];
      }
    });
#pragma unroll
    for (int i = 0; i < kOut; ++i) {
      *reinterpret_cast<uint4*>(static_cast<T*>(p.out[i].data) + row * p.out[i].stride + column) =
          cuda::pack_as<T>(out[i]);
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
    visit_kind(p.kind, [&]<Activation kKind>() { apply_one<kFunction, kKind>(in, out); });
#pragma unroll
    for (int i = 0; i < kOut; ++i) {
      static_cast<T*>(p.out[i].data)[at / p.cols * p.out[i].stride + at % p.cols] =
          cuda::narrow<T>(out[i]);
    }
  }
}

template <class F>
void visit(const Problem& p, const F& f) {
  cuda::visit_dtype(p.dtype, [&]<class T>() {
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
      std::clamp<std::int64_t>(ceil_div(threads, std::int64_t{kThreads}), 1, 1 << 24));
}

}  // namespace

std::string vectorized_refuses(const Context& /*context*/, const Problem& p) {
  const std::int64_t per_vector = 16 / size_of(p.dtype);
  if (checked_mul(p.rows, p.cols, "activation") / per_vector >= std::int64_t{1} << 31) {
    return "2^31 vectors or more";
  }
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
