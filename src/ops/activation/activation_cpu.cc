// Activations in vectors. f64 uses the C library, element by element.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "core/context_access.h"
#include "core/thread_pool.h"
#include "ops/activation/activation_problem.h"
#include "ops/activation/activation_tuning.h"
#include "touchstone/core/checked.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/activation/activation_cpu.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cpu/exp2.h"
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::activation_op::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = simd::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;
using Vector = hn::Vec<Tag>;

constexpr float kLog2E = 1.44269504088896340736F;

struct VectorSlope {
  Vector value;
  Vector slope;
};

// 1 / (1 + e^-x) by e^-|x|, which cannot overflow; NaN for NaN.
HWY_INLINE Vector sigmoid(Tag d, Vector x) {
  const auto one = hn::Set(d, 1.0F);
  const auto e = sd::exp2_not_positive(d, hn::Mul(hn::Abs(x), hn::Set(d, -kLog2E)));
  const auto small = hn::Div(e, hn::Add(one, e));
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), small, hn::Sub(one, small));
}

// The cumulative normal distribution, small relative errors in its lower tail, too. erfc(z) = t
// q(t) e^(-z^2) with t = 1 / (1 + z / 2): q has the least largest relative error for z in [0, 10],
// 4.3e-8. `gauss` is e^(-x^2 / 2).
HWY_INLINE Vector normal_cdf(Tag d, Vector x, Vector gauss) {
  constexpr float kQ[] = {-0.05906790867F, 0.28457024693F,  -0.48719102144F,
                          0.27805793285F,  -0.02661990188F, 0.20268467068F,
                          0.24310426414F,  0.28237524628F,  0.28208643198F};
  const auto z = hn::Mul(hn::Abs(x), hn::Set(d, 0.70710678118654752440F));
  const auto t = hn::Div(hn::Set(d, 1.0F), hn::MulAdd(hn::Set(d, 0.5F), z, hn::Set(d, 1.0F)));
  auto p = hn::Set(d, kQ[0]);
  for (std::size_t i = 1; i < std::size(kQ); ++i) p = hn::MulAdd(p, t, hn::Set(d, kQ[i]));
  const auto tail = hn::Mul(hn::Mul(hn::Mul(p, t), gauss), hn::Set(d, 0.5F));
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(hn::Set(d, 1.0F), tail));
}

template <Activation kKind>
HWY_INLINE VectorSlope act(Tag d, Vector x) {
  const auto one = hn::Set(d, 1.0F);
  if constexpr (kKind == Activation::silu) {
    const auto s = sigmoid(d, x);
    return {hn::Mul(x, s), hn::Mul(s, hn::MulAdd(x, hn::Sub(one, s), one))};
  } else if constexpr (kKind == Activation::gelu) {
    const auto gauss = sd::exp2_not_positive(d, hn::Mul(hn::Mul(x, x), hn::Set(d, -0.5F * kLog2E)));
    const auto phi = normal_cdf(d, x, gauss);
    const auto density = hn::Mul(hn::Set(d, 0.39894228040143267794F), gauss);
    return {hn::Mul(x, phi), hn::MulAdd(x, density, phi)};
  } else if constexpr (kKind == Activation::gelu_tanh) {
    constexpr float kScale = 0.79788456080286535588F;
    const auto half = hn::Set(d, 0.5F);
    const auto x2 = hn::Min(hn::Mul(x, x), hn::Set(d, 1e30F));  // 0 * infinity below
    const auto inner =
        hn::Mul(hn::Mul(hn::Set(d, kScale), x), hn::MulAdd(hn::Set(d, 0.044715F), x2, one));
    const auto t = sd::tanh(d, inner);
    const auto rise = hn::Mul(hn::Set(d, kScale), hn::MulAdd(hn::Set(d, 3 * 0.044715F), x2, one));
    const auto open = hn::Mul(half, hn::Add(one, t));
    const auto bend = hn::Mul(hn::Mul(hn::Mul(half, x), hn::NegMulAdd(t, t, one)), rise);
    return {hn::Mul(x, open), hn::Add(open, bend)};
  } else {
    const auto positive = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
    return {hn::Mul(positive, positive), hn::Add(positive, positive)};
  }
}

// Lanes [0, n) of a row, from column c on.
template <Function kFunction, Activation kKind, class T>
HWY_INLINE void apply_vector(const T* const (&in)[kMaxInputs], T* const (&out)[kMaxOutputs],
                             std::size_t c, std::size_t n) {
  const Tag d;
  const auto load = [&](std::size_t i) { return sd::load_some(d, in[i] + c, n); };
  if constexpr (kFunction == Function::activation) {
    sd::store_some(act<kKind>(d, load(0)).value, d, out[0] + c, n);
  } else if constexpr (kFunction == Function::activation_backward) {
    sd::store_some(hn::Mul(load(0), act<kKind>(d, load(1)).slope), d, out[0] + c, n);
  } else if constexpr (kFunction == Function::gate) {
    sd::store_some(hn::Mul(act<kKind>(d, load(0)).value, load(1)), d, out[0] + c, n);
  } else {
    const auto dy = load(0);
    const auto both = act<kKind>(d, load(1));
    const auto dgate = hn::Mul(hn::Mul(dy, load(2)), both.slope);
    sd::store_some(hn::Mul(dy, both.value), d, out[1] + c, n);
    sd::store_some(dgate, d, out[0] + c, n);
  }
}

template <Function kFunction, Activation kKind, class T>
void apply_rows(const Problem& p, std::int64_t begin, std::int64_t end) {
  const std::size_t lanes = hn::Lanes(Tag());
  const auto cols = static_cast<std::size_t>(p.cols);
  for (std::int64_t r = begin; r < end; ++r) {
    const T* in[kMaxInputs] = {};
    T* out[kMaxOutputs] = {};
    for (std::size_t i = 0; i < kMaxInputs; ++i) {
      in[i] = static_cast<const T*>(p.in[i].data) + r * p.in[i].stride;
    }
    for (std::size_t i = 0; i < kMaxOutputs; ++i) {
      out[i] = static_cast<T*>(p.out[i].data) + r * p.out[i].stride;
    }
    for (std::size_t c = 0; c < cols; c += lanes) {
      apply_vector<kFunction, kKind>(in, out, c, std::min(lanes, cols - c));
    }
  }
}

template <Function kFunction, class T>
void apply_kind(const Problem& p, std::int64_t begin, std::int64_t end) {
  switch (p.kind) {
    case Activation::silu:
      return apply_rows<kFunction, Activation::silu, T>(p, begin, end);
    case Activation::gelu:
      return apply_rows<kFunction, Activation::gelu, T>(p, begin, end);
    case Activation::gelu_tanh:
      return apply_rows<kFunction, Activation::gelu_tanh, T>(p, begin, end);
    case Activation::relu_squared:
      return apply_rows<kFunction, Activation::relu_squared, T>(p, begin, end);
  }
}

template <class T>
void apply_function(const Problem& p, std::int64_t begin, std::int64_t end) {
  switch (p.function) {
    case Function::activation:
      return apply_kind<Function::activation, T>(p, begin, end);
    case Function::activation_backward:
      return apply_kind<Function::activation_backward, T>(p, begin, end);
    case Function::gate:
      return apply_kind<Function::gate, T>(p, begin, end);
    case Function::gate_backward:
      return apply_kind<Function::gate_backward, T>(p, begin, end);
  }
}

void apply_any(const Problem& p, std::int64_t begin, std::int64_t end) {
  if (p.dtype == DType::f32) return apply_function<float>(p, begin, end);
  if (p.dtype == DType::bf16) return apply_function<Bf16>(p, begin, end);
  return apply_function<F16>(p, begin, end);
}

}  // namespace touchstone::activation_op::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::activation_op {
namespace {

HWY_EXPORT(apply_any);

void apply_f64(const Problem& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t c = 0; c < p.cols; ++c) {
      double in[kMaxInputs] = {};
      double out[kMaxOutputs];
      for (std::size_t i = 0; i < static_cast<std::size_t>(inputs_of(p.function)); ++i) {
        in[i] = static_cast<const double*>(p.in[i].data)[r * p.in[i].stride + c];
      }
      apply(p.function, p.kind, in, out);
      for (std::size_t i = 0; i < static_cast<std::size_t>(outputs_of(p.function)); ++i) {
        static_cast<double*>(p.out[i].data)[r * p.out[i].stride + c] = out[i];
      }
    }
  }
}

// A piece of work: rows, or columns of one row where rows are few and long.
Problem columns_of(const Problem& p, std::int64_t first, std::int64_t count) {
  Problem part = p;
  part.cols = count;
  const std::int64_t bytes = first * size_of(p.dtype);
  for (Rows& rows : part.in) {
    if (rows.data != nullptr) rows.data = static_cast<std::byte*>(rows.data) + bytes;
  }
  for (Rows& rows : part.out) {
    if (rows.data != nullptr) rows.data = static_cast<std::byte*>(rows.data) + bytes;
  }
  return part;
}

}  // namespace

void run_simd(Context& context, const Problem& p) {
  const auto run_rows = [](const Problem& part, std::int64_t begin, std::int64_t end) {
    if (part.dtype == DType::f64) {
      apply_f64(part, begin, end);
    } else {
      HWY_DYNAMIC_DISPATCH(apply_any)(part, begin, end);
    }
  };
  ThreadPool& pool = detail::ContextAccess::pool(context);
  const std::int64_t per_task = kCpuElementsPerTask;
  if (p.cols >= per_task) {
    const std::int64_t pieces = ceil_div(p.cols, per_task);
    pool.run(p.rows * pieces, [&](std::int64_t task) {
      const std::int64_t first = task % pieces * per_task;
      const std::int64_t row = task / pieces;
      run_rows(columns_of(p, first, std::min(per_task, p.cols - first)), row, row + 1);
    });
    return;
  }
  const std::int64_t rows = std::max<std::int64_t>(per_task / p.cols, 1);
  pool.run(ceil_div(p.rows, rows), [&](std::int64_t task) {
    run_rows(p, task * rows, std::min(p.rows, (task + 1) * rows));
  });
}

}  // namespace touchstone::activation_op
#endif
