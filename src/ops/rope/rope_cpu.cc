// Rope in vectors: the sines and cosines of a token once, then all of its heads. Tokens are spread
// over the threads.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/context_access.h"
#include "core/index.h"
#include "core/thread_pool.h"
#include "ops/rope/rope_problem.h"
#include "ops/rope/rope_tuning.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rope/rope_cpu.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::rope_op::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = simd::HWY_NAMESPACE;

// Cosines and sines of the pairs of one token, times the scale.
template <class C>
struct Angles {
  const C* cosines;
  const C* sines;
};

// Pairs (i, i + pairs) of one head.
template <class T, class C>
HWY_INLINE void rotate_halves(const T* x, T* y, std::size_t pairs, const Angles<C>& angles) {
  const hn::ScalableTag<C> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < pairs; i += lanes) {
    const std::size_t n = std::min(lanes, pairs - i);
    const auto a = sd::load_some(d, x + i, n);
    const auto b = sd::load_some(d, x + pairs + i, n);
    const auto cosine = sd::load_some(d, angles.cosines + i, n);
    const auto sine = sd::load_some(d, angles.sines + i, n);
    sd::store_some(hn::Sub(hn::Mul(a, cosine), hn::Mul(b, sine)), d, y + i, n);
    sd::store_some(hn::Add(hn::Mul(b, cosine), hn::Mul(a, sine)), d, y + pairs + i, n);
  }
}

// Pairs (2 i, 2 i + 1): the numbers as they lie, times cosines, plus their neighbors times sines of
// alternating sign. The arrays hold two entries per pair.
template <class T, class C>
HWY_INLINE void rotate_adjacent(const T* x, T* y, std::size_t pairs, const Angles<C>& angles) {
  const hn::ScalableTag<C> d;
  const std::size_t lanes = hn::Lanes(d);
  if (lanes == 1) {
    for (std::size_t i = 0; i < 2 * pairs; i += 2) {
      const C a = convert<C>(x[i]);
      const C b = convert<C>(x[i + 1]);
      y[i] = convert<T>(a * angles.cosines[i] + b * angles.sines[i]);
      y[i + 1] = convert<T>(b * angles.cosines[i + 1] + a * angles.sines[i + 1]);
    }
    return;
  }
  for (std::size_t i = 0; i < 2 * pairs; i += lanes) {
    const std::size_t n = std::min(lanes, 2 * pairs - i);
    const auto own = sd::load_some(d, x + i, n);
#if HWY_TARGET == HWY_SCALAR
    const auto other = own;
#else
    const auto other = [&] {
      if constexpr (sizeof(C) == 4) {
        return hn::Shuffle2301(own);
      } else {
        return hn::Shuffle01(own);
      }
    }();
#endif
    const auto cosine = sd::load_some(d, angles.cosines + i, n);
    const auto sine = sd::load_some(d, angles.sines + i, n);
    sd::store_some(hn::Add(hn::Mul(own, cosine), hn::Mul(other, sine)), d, y + i, n);
  }
}

template <class T, class C>
void rotate_tokens_as(const Problem& p, std::int64_t begin, std::int64_t end) {
  const auto pairs = at(p.pairs);
  const std::size_t entries = p.adjacent ? 2 * pairs : pairs;
  std::vector<C> table(2 * entries + 1);
  C* const cosines = table.data();
  C* const sines = cosines + entries;
  const C scale = static_cast<C>(p.scale);
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::size_t i = 0; i < pairs; ++i) {
      C sine;
      C cosine;
      if constexpr (sizeof(C) == 8) {
        const double angle = static_cast<double>(p.positions[n]) * p.frequencies[i];
        sine = std::sin(angle);
        cosine = std::cos(angle);
      } else {
        const SinCos both = sin_cos_turns(turns_of(p.positions[n], p.frequencies[i]));
        sine = both.sin;
        cosine = both.cos;
      }
      sine *= p.inverse ? -scale : scale;
      cosine *= scale;
      if (p.adjacent) {
        cosines[2 * i] = cosines[2 * i + 1] = cosine;
        sines[2 * i] = -sine;
        sines[2 * i + 1] = sine;
      } else {
        cosines[i] = cosine;
        sines[i] = sine;
      }
    }
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const T* const x = static_cast<const T*>(p.x) + n * p.x_token + h * p.x_head;
      T* const y = static_cast<T*>(p.y) + n * p.y_token + h * p.y_head;
      if (p.adjacent) {
        rotate_adjacent<T, C>(x, y, pairs, {cosines, sines});
      } else {
        rotate_halves<T, C>(x, y, pairs, {cosines, sines});
      }
      if (!p.in_place()) std::copy(x + 2 * p.pairs, x + p.dim, y + 2 * p.pairs);
    }
  }
}

void rotate_tokens(const Problem& p, std::int64_t begin, std::int64_t end) {
  switch (p.dtype) {
    case DType::f64:
      return rotate_tokens_as<double, double>(p, begin, end);
    case DType::f32:
      return rotate_tokens_as<float, float>(p, begin, end);
    case DType::bf16:
      return rotate_tokens_as<Bf16, float>(p, begin, end);
    default:
      return rotate_tokens_as<F16, float>(p, begin, end);
  }
}

}  // namespace touchstone::rope_op::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::rope_op {
namespace {

HWY_EXPORT(rotate_tokens);

}  // namespace

void rope_simd(Context& context, const Problem& p) {
  const std::int64_t bytes = std::max<std::int64_t>(p.heads * p.dim * size_of(p.dtype), 1);
  const std::int64_t tokens = std::max<std::int64_t>(kCpuBytesPerTask / bytes, 1);
  detail::ContextAccess::pool(context).run(ceil_div(p.tokens, tokens), [&](std::int64_t task) {
    HWY_DYNAMIC_DISPATCH(rotate_tokens)
    (p, task * tokens, std::min(p.tokens, (task + 1) * tokens));
  });
}

}  // namespace touchstone::rope_op
#endif
