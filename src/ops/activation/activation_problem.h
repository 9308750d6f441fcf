// The checked problem of activation, gate and their backwards: elementwise functions of one to three
// inputs with one or two outputs.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include "core/host_device.h"
#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"
#include "touchstone/ops/activation.h"

namespace touchstone::activation_op {

enum class Function : std::uint8_t {
  activation,           // x -> y
  activation_backward,  // dy, x -> dx
  gate,                 // gate, up -> y
  gate_backward,        // dy, gate, up -> dgate, dup
};
inline constexpr int kMaxInputs = 3;
inline constexpr int kMaxOutputs = 2;

TOUCHSTONE_HOST_DEVICE constexpr int inputs_of(Function f) {
  return f == Function::activation ? 1 : f == Function::gate_backward ? 3 : 2;
}
TOUCHSTONE_HOST_DEVICE constexpr int outputs_of(Function f) {
  return f == Function::gate_backward ? 2 : 1;
}

struct Rows {
  void* data = nullptr;
  std::int64_t stride = 0;  // elements from row to row
};

struct Problem {
  Function function = Function::activation;
  Activation kind = Activation::silu;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::array<Rows, kMaxInputs> in{};  // only read
  std::array<Rows, kMaxOutputs> out{};
};

// act(x) and act'(x) by the C library, in the type of x.
template <class C>
struct Slope {
  C value;
  C slope;
};
template <class C>
Slope<C> activate(Activation kind, C x) {
  switch (kind) {
    case Activation::silu: {
      const C sigmoid = C{1} / (C{1} + std::exp(-x));
      return {x * sigmoid, sigmoid * (C{1} + x * (C{1} - sigmoid))};
    }
    case Activation::gelu: {
      const C phi = C{0.5} * std::erfc(x * static_cast<C>(-0.70710678118654752440));
      const C density = static_cast<C>(0.39894228040143267794) * std::exp(C{-0.5} * x * x);
      return {x * phi, phi + x * density};
    }
    case Activation::gelu_tanh: {
      constexpr double kSqrt2OverPi = 0.79788456080286535588;
      const C inner = static_cast<C>(kSqrt2OverPi) * (x + static_cast<C>(0.044715) * x * x * x);
      const C t = std::tanh(inner);
      const C slope = static_cast<C>(kSqrt2OverPi) * (C{1} + static_cast<C>(3 * 0.044715) * x * x);
      return {C{0.5} * x * (C{1} + t), C{0.5} * (C{1} + t) + C{0.5} * x * (C{1} - t * t) * slope};
    }
    case Activation::relu_squared:
      break;
  }
  // Written so that NaN stays.
  const C positive = x < C{0} ? C{0} : x;
  return {positive * positive, C{2} * positive};
}

// The outputs of one element.
template <class C>
void apply(Function function, Activation kind, const C* in, C* out) {
  switch (function) {
    case Function::activation:
      out[0] = activate(kind, in[0]).value;
      return;
    case Function::activation_backward:
      out[0] = in[0] * activate(kind, in[1]).slope;
      return;
    case Function::gate:
      out[0] = activate(kind, in[0]).value * in[1];
      return;
    case Function::gate_backward: {
      const Slope<C> act = activate(kind, in[1]);
      out[0] = in[0] * in[2] * act.slope;
      out[1] = in[0] * act.value;
      return;
    }
  }
}

// CPU, plain loops in f64: activation_plain.cc.
void run_plain(Context& context, const Problem& p);
// CPU, Highway, every SIMD target: activation_cpu.cc.
void run_simd(Context& context, const Problem& p);
// CUDA: activation_cuda.cu, or src/no_cuda in a CPU-only build. `vectorized`: 16-byte accesses.
std::string vectorized_refuses(const Context& context, const Problem& p);
void run_vectorized(Context& context, const Problem& p);
void run_portable(Context& context, const Problem& p);

}  // namespace touchstone::activation_op
