// The linear layer in float64: the specification the kernels are held to.
//
//   v = x W^T + bias,  v = cap * tanh(v / cap),  v = act(v[: out / 2]) * v[out / 2 :]
//   y = v + residual
//
// Deliberately naive and templated on the scalar; see norm.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace touchstone::oracle {

enum class LinearGate { none, silu, gelu, gelu_tanh };

template <class S>
S linear_activation(LinearGate gate, const S& v) {
  using std::erf;
  using std::exp;
  using std::sqrt;
  using std::tanh;
  constexpr double kPi = 3.14159265358979323846;
  switch (gate) {
    case LinearGate::silu:
      return v / (1.0 + exp(0.0 - v));
    case LinearGate::gelu:
      return 0.5 * v * (1.0 + erf(v * sqrt(0.5)));
    case LinearGate::gelu_tanh:
      return 0.5 * v * (1.0 + tanh(sqrt(2.0 / kPi) * (v + 0.044715 * v * v * v)));
    case LinearGate::none:
      break;
  }
  return v;
}

template <class S>
struct LinearForward {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
  const S* x = nullptr;       // [rows, in]
  const S* weight = nullptr;  // [out, in]
  const S* bias = nullptr;    // [out] or absent
  S* y = nullptr;             // [rows, out]
};

// The product and the bias: what the backward is the gradient of.
template <class S>
void linear_forward(const LinearForward<S>& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t o = 0; o < a.out; ++o) {
      S sum = 0.0;
      for (int64_t i = 0; i < a.in; ++i) sum += a.x[r * a.in + i] * a.weight[o * a.in + i];
      if (a.bias) sum += a.bias[o];
      a.y[r * a.out + o] = sum;
    }
  }
}

struct LinearBackward {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
  const double* dy = nullptr;      // [rows, out]
  const double* x = nullptr;       // [rows, in]
  const double* weight = nullptr;  // [out, in]
  double* dx = nullptr;            // [rows, in], optional
  double* dweight = nullptr;       // [out, in], optional
  double* dbias = nullptr;         // [out], optional
};

inline void linear_backward(const LinearBackward& a) {
  for (int64_t i = 0; i < a.rows * a.in && a.dx; ++i) a.dx[i] = 0.0;
  for (int64_t i = 0; i < a.out * a.in && a.dweight; ++i) a.dweight[i] = 0.0;
  for (int64_t i = 0; i < a.out && a.dbias; ++i) a.dbias[i] = 0.0;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t o = 0; o < a.out; ++o) {
      const double dy = a.dy[r * a.out + o];
      if (a.dbias) a.dbias[o] += dy;
      for (int64_t i = 0; i < a.in; ++i) {
        if (a.dx) a.dx[r * a.in + i] += dy * a.weight[o * a.in + i];
        if (a.dweight) a.dweight[o * a.in + i] += dy * a.x[r * a.in + i];
      }
    }
  }
}

}  // namespace touchstone::oracle
