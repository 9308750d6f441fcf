// One row, normalized by plain scalar code in f64. norm_plain.cc is made of it, and the SIMD
// implementation uses it for the rare rows whose squares leave the range of its own arithmetic.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "ops/norm/norm.h"

namespace touchstone::norm {

// The type of statistics, and of weights once widened.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

// weight + offset or bias + 0, in the type of arithmetic; empty when absent.
template <class C>
std::vector<C> widened(const void* weights, DType dtype, std::int64_t cols, double offset) {
  std::vector<C> result;
  if (weights == nullptr) return result;
  result.resize(static_cast<std::size_t>(cols));
  visit_float_dtype(dtype, [&]<class W>() {
    const auto* w = static_cast<const W*>(weights);
    for (std::size_t c = 0; c < result.size(); ++c) {
      result[c] = convert<C>(w[c]) + static_cast<C>(offset);
    }
  });
  return result;
}

template <class C>
const C* data_or_null(const std::vector<C>& v) {
  return v.empty() ? nullptr : v.data();
}

// Writes y[0 .. p.cols), and *mean and *rstd where not null. weight (weight offset included) and
// bias may be null. y may be h.
template <class T>
void normalize_row(const Forward& p, const T* h, const Compute<T>* weight, const Compute<T>* bias,
                   T* y, Compute<T>* mean, Compute<T>* rstd);

}  // namespace touchstone::norm
