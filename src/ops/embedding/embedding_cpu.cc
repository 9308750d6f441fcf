// Embedding in vectors: rows are spread over the threads. The backward sorts the tokens, so that
// every task sums the rows of one token, in their order.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/context_access.h"
#include "core/index.h"
#include "core/thread_pool.h"
#include "ops/embedding/embedding_problem.h"
#include "ops/embedding/embedding_tuning.h"
#include "touchstone/core/checked.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/embedding/embedding_cpu.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::embedding_op::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = simd::HWY_NAMESPACE;

// to[i] = scale * from[i].
template <class C, class T>
HWY_INLINE void scale_row(const C* from, std::size_t count, C scale, T* to) {
  const hn::ScalableTag<C> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, scale);
  for (std::size_t i = 0; i < count; i += lanes) {
    const std::size_t n = std::min(lanes, count - i);
    sd::store_some(hn::Mul(factor, sd::load_some(d, from + i, n)), d, to + i, n);
  }
}

template <class T>
void scale_as(const void* from, std::size_t count, double scale, void* to) {
  scale_row(static_cast<const float*>(from), count, static_cast<float>(scale), static_cast<T*>(to));
}

// A decoded row: f32, or f64 for f64.
void store_row(const void* from, std::size_t count, double scale, DType dtype, void* to) {
  if (dtype == DType::f64) {
    return scale_row(static_cast<const double*>(from), count, scale, static_cast<double*>(to));
  }
  if (dtype == DType::f32) return scale_as<float>(from, count, scale, to);
  if (dtype == DType::bf16) return scale_as<Bf16>(from, count, scale, to);
  return scale_as<F16>(from, count, scale, to);
}

// Columns [first, first + count) of one row of dweight, from the rows `order` of dy.
template <class T, class G, class C>
HWY_INLINE void add_rows_as(const Backward& p, const std::int64_t* order, std::int64_t rows,
                            std::int64_t token, std::int64_t first, std::size_t count) {
  const hn::ScalableTag<C> d;
  const std::size_t lanes = hn::Lanes(d);
  C sums[kCpuColumnsPerTask] = {};
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* const dy = static_cast<const T*>(p.dy) + order[r] * p.dy_stride + first;
    for (std::size_t i = 0; i < count; i += lanes) {
      const std::size_t n = std::min(lanes, count - i);
      const auto sum = hn::Add(sd::load_some(d, sums + i, n), sd::load_some(d, dy + i, n));
      sd::store_some(sum, d, sums + i, n);
    }
  }
  G* const to = static_cast<G*>(p.dweight) + token * p.dweight_stride + first;
  const auto factor = hn::Set(d, static_cast<C>(p.scale));
  for (std::size_t i = 0; i < count; i += lanes) {
    const std::size_t n = std::min(lanes, count - i);
    auto sum = hn::Mul(factor, sd::load_some(d, sums + i, n));
    if (p.accumulate) sum = hn::Add(sd::load_some(d, to + i, n), sum);
    sd::store_some(sum, d, to + i, n);
  }
}

template <class T>
void add_rows_of(const Backward& p, const std::int64_t* order, std::int64_t rows,
                 std::int64_t token, std::int64_t first, std::size_t count) {
  if (p.dweight_dtype == DType::f32) {
    add_rows_as<T, float, float>(p, order, rows, token, first, count);
  } else {
    add_rows_as<T, T, float>(p, order, rows, token, first, count);
  }
}

void add_rows(const Backward& p, const std::int64_t* order, std::int64_t rows, std::int64_t token,
              std::int64_t first, std::size_t count) {
  switch (p.dtype) {
    case DType::f64:
      return add_rows_as<double, double, double>(p, order, rows, token, first, count);
    case DType::f32:
      return add_rows_as<float, float, float>(p, order, rows, token, first, count);
    case DType::bf16:
      return add_rows_of<Bf16>(p, order, rows, token, first, count);
    default:
      return add_rows_of<F16>(p, order, rows, token, first, count);
  }
}

}  // namespace touchstone::embedding_op::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::embedding_op {
namespace {

HWY_EXPORT(store_row);
HWY_EXPORT(add_rows);

void embed_rows(const Forward& p, std::int64_t begin, std::int64_t end) {
  const auto count = at(p.dim);
  const std::int64_t y_size = size_of(p.dtype);
  const bool copies = p.format->dtype == p.dtype && p.scale == 1;
  // f32 and f64 rows are read where they lie.
  const bool decoded = p.format->dtype == DType::f64 || p.format->dtype == DType::f32;
  std::vector<float> row(copies || decoded ? 0 : count);
  for (std::int64_t n = begin; n < end; ++n) {
    const std::byte* const from = p.weight + p.tokens[n] * p.row_bytes;
    std::byte* const to = static_cast<std::byte*>(p.y) + n * p.y_stride * y_size;
    if (copies) {
      std::memcpy(to, from, count * static_cast<std::size_t>(y_size));
      continue;
    }
    if (!decoded) p.format->decode(from, p.dim / p.format->block_elements, row.data());
    const void* const values = decoded ? static_cast<const void*>(from) : row.data();
    HWY_DYNAMIC_DISPATCH(store_row)(values, count, p.scale, p.dtype, to);
  }
}

// Rows of dy that belong to one token: order[begin, end).
struct Segment {
  std::int64_t token;
  std::int64_t begin;
  std::int64_t end;
};

std::vector<Segment> segments_of(const Tokens& tokens, const std::vector<std::int64_t>& order) {
  std::vector<Segment> segments;
  for (std::int64_t i = 0; i < tokens.count; ++i) {
    const std::int64_t token = tokens[order[at(i)]];
    if (segments.empty() || segments.back().token != token) segments.push_back({token, i, i});
    segments.back().end = i + 1;
  }
  return segments;
}

void clear(ThreadPool& pool, const Backward& p) {
  const std::int64_t row = p.dim * size_of(p.dweight_dtype);
  const std::int64_t rows = std::max<std::int64_t>(kCpuBytesPerTask / row, 1);
  const std::int64_t stride = p.dweight_stride * size_of(p.dweight_dtype);
  pool.run(ceil_div(p.vocabulary, rows), [&](std::int64_t task) {
    for (std::int64_t v = task * rows; v < std::min(p.vocabulary, (task + 1) * rows); ++v) {
      std::memset(static_cast<std::byte*>(p.dweight) + v * stride, 0,
                  static_cast<std::size_t>(row));
    }
  });
}

}  // namespace

void forward_simd(Context& context, const Forward& p) {
  const std::int64_t bytes = p.dim * size_of(p.dtype);
  const std::int64_t rows = std::max<std::int64_t>(kCpuBytesPerTask / bytes, 1);
  detail::ContextAccess::pool(context).run(ceil_div(p.tokens.count, rows), [&](std::int64_t task) {
    embed_rows(p, task * rows, std::min(p.tokens.count, (task + 1) * rows));
  });
}

void backward_simd(Context& context, const Backward& p) {
  ThreadPool& pool = detail::ContextAccess::pool(context);
  if (!p.accumulate) clear(pool, p);
  std::vector<std::int64_t> order(at(p.tokens.count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return p.tokens[a] < p.tokens[b]; });
  const std::vector<Segment> segments = segments_of(p.tokens, order);
  const std::int64_t pieces = ceil_div(p.dim, kCpuColumnsPerTask);
  pool.run(std::ssize(segments) * pieces, [&](std::int64_t task) {
    const Segment& s = segments[at(task / pieces)];
    const std::int64_t first = task % pieces * kCpuColumnsPerTask;
    HWY_DYNAMIC_DISPATCH(add_rows)
    (p, order.data() + s.begin, s.end - s.begin, s.token, first,
     at(std::min(kCpuColumnsPerTask, p.dim - first)));
  });
}

}  // namespace touchstone::embedding_op
#endif
