// Training operators after their checks, and the arithmetic that CPU and CUDA share.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"
#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"
#include "touchstone/core/random.h"

namespace touchstone::inline v0::train {

// Elements that one task (CPU) or block (CUDA) of a sum of squares adds.
inline constexpr std::int64_t kNormChunk = 16384;
// Columns of dropout that share one draw of 128 bits.
inline constexpr std::int64_t kDropoutColumns = 8;

struct MatrixRows {
  void* data = nullptr;
  std::int64_t stride = 0;  // elements from row to row
};

struct CastProblem {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  MatrixRows x{};
  MatrixRows y{};
  DType from{};
  DType to{};
};

struct AddProblem {
  const void* x = nullptr;
  void* y = nullptr;
  std::int64_t count = 0;
  DType dtype{};
};

struct DropoutProblem {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  MatrixRows x{};
  MatrixRows y{};
  DType dtype{};
  std::int64_t seed = 0;
  std::int64_t first_position = 0;     // of row 0, column 0
  std::int64_t positions_per_row = 0;  // ceil(cols / kDropoutColumns)
  std::uint32_t draw = 0;
  std::uint32_t threshold = 0;  // of 16 bits
  double scale = 1;
};

struct NormProblem {
  const void* gradient = nullptr;
  double* norm = nullptr;
  std::int64_t count = 0;
  DType dtype{};
};

struct AdamWProblem {
  const void* gradient = nullptr;
  const double* norm = nullptr;
  void* weight = nullptr;
  void* m = nullptr;
  void* v = nullptr;
  void* average = nullptr;
  std::int64_t count = 0;
  DType dtype{};
  double decay = 1;      // 1 - learning_rate * weight_decay
  double step_size = 0;  // learning_rate / (1 - beta1^step)
  double root = 1;       // 1 / sqrt(1 - beta2^step)
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double clip = 0;
  double average_decay = 0;
};

// The bits of column c of a row whose draw for these kDropoutColumns columns is `words`.
TOUCHSTONE_HOST_DEVICE inline std::uint32_t dropout_bits(const PhiloxWords& words,
                                                         std::int64_t column) {
  const auto lane = static_cast<unsigned>(column % kDropoutColumns);
  return words.word[lane / 2] >> (16 * (lane % 2)) & 0xffffU;
}

// The factor of the gradient; 0 marks a step that must change nothing.
TOUCHSTONE_HOST_DEVICE inline double clip_factor(const double* norm, double clip) {
  if (norm == nullptr) return 1;
  const double value = *norm;
  if (!(value <= 1.7976931348623157e308)) return 0;
  const double factor = clip > 0 ? clip / (value + 1e-6) : 1;
  return factor < 1 ? factor : 1;
}

template <class T>
struct AdamWElement {
  T weight;
  T m;
  T v;
};

// The coefficients of a step in the type of its arithmetic.
template <class T>
struct AdamWCoefficients {
  T factor, decay, step_size, root, keep1, keep2, epsilon, beta2, average_decay;
};

template <class T>
TOUCHSTONE_HOST_DEVICE AdamWCoefficients<T> adamw_coefficients(const AdamWProblem& p,
                                                               double factor) {
  return {static_cast<T>(factor),    static_cast<T>(p.decay),     static_cast<T>(p.step_size),
          static_cast<T>(p.root),    static_cast<T>(1 - p.beta1), static_cast<T>(1 - p.beta2),
          static_cast<T>(p.epsilon), static_cast<T>(p.beta2),     static_cast<T>(p.average_decay)};
}

template <class T>
TOUCHSTONE_HOST_DEVICE AdamWElement<T> adamw_element(const AdamWCoefficients<T>& c, T gradient,
                                                     AdamWElement<T> e) {
  using std::sqrt;
  const T g = gradient * c.factor;
  e.m = e.m + c.keep1 * (g - e.m);
  e.v = c.beta2 * e.v + c.keep2 * (g * g);
  e.weight = e.weight * c.decay - c.step_size * (e.m / (sqrt(e.v) * c.root + c.epsilon));
  return e;
}

// CPU: operators_cpu.cc. CUDA: operators_cuda.cu, or src/no_cuda in a CPU-only build.
void cast_cpu(Context& context, const CastProblem& p);
void add_cpu(Context& context, const AddProblem& p);
void dropout_cpu(Context& context, const DropoutProblem& p);
void norm_cpu(Context& context, const NormProblem& p);
void adamw_cpu(Context& context, const AdamWProblem& p);
void cast_cuda(Context& context, const CastProblem& p);
void add_cuda(Context& context, const AddProblem& p);
void dropout_cuda(Context& context, const DropoutProblem& p);
void norm_cuda(Context& context, const NormProblem& p);
void adamw_cuda(Context& context, const AdamWProblem& p);

}  // namespace touchstone::inline v0::train
