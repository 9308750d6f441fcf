// Embedding as one would write it down: plain loops, one thread. The reference to read first. Sums
// are those of the contract, so that the bits are too.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/index.h"
#include "ops/embedding/embedding_problem.h"
#include "touchstone/core/convert.h"

namespace touchstone::embedding_op {
namespace {

template <class T, class C>
void forward_as(const Forward& p) {
  std::vector<C> row(at(p.dim));
  for (std::int64_t n = 0; n < p.tokens.count; ++n) {
    const std::byte* const from = p.weight + p.tokens[n] * p.row_bytes;
    if constexpr (std::is_same_v<C, double>) {
      std::memcpy(row.data(), from, at(p.dim) * sizeof(double));
    } else {
      p.format->decode(from, p.dim / p.format->block_elements, row.data());
    }
    T* const y = static_cast<T*>(p.y) + n * p.y_stride;
    for (std::int64_t d = 0; d < p.dim; ++d) {
      y[d] = convert<T>(static_cast<C>(p.scale) * row[at(d)]);
    }
  }
}

template <class T, class G, class C>
void backward_as(const Backward& p) {
  std::vector<C> sums(at(p.dim));
  for (std::int64_t v = 0; v < p.vocabulary; ++v) {
    bool occurs = false;
    std::fill(sums.begin(), sums.end(), C{0});
    for (std::int64_t n = 0; n < p.tokens.count; ++n) {
      if (p.tokens[n] != v) continue;
      occurs = true;
      const T* const dy = static_cast<const T*>(p.dy) + n * p.dy_stride;
      for (std::int64_t d = 0; d < p.dim; ++d) sums[at(d)] += convert<C>(dy[d]);
    }
    if (p.accumulate && !occurs) continue;
    G* const to = static_cast<G*>(p.dweight) + v * p.dweight_stride;
    for (std::int64_t d = 0; d < p.dim; ++d) {
      const C sum = static_cast<C>(p.scale) * sums[at(d)];
      to[d] = convert<G>(p.accumulate ? convert<C>(to[d]) + sum : sum);
    }
  }
}

}  // namespace

void forward_plain(Context& /*context*/, const Forward& p) {
  visit_float_dtype(p.dtype, [&]<class T>() {
    forward_as<T, std::conditional_t<std::is_same_v<T, double>, double, float>>(p);
  });
}

void backward_plain(Context& /*context*/, const Backward& p) {
  visit_float_dtype(p.dtype, [&]<class T>() {
    using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
    if (p.dweight_dtype == p.dtype) {
      backward_as<T, T, C>(p);
    } else {
      backward_as<T, C, C>(p);
    }
  });
}

}  // namespace touchstone::embedding_op
