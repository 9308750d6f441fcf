// The checked problem of activation, gate and their backwards: elementwise functions of one to
// three inputs with one or two outputs.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/host_device.h"
#include "ops/activation/activation_math.h"
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
