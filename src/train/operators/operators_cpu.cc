// The training operators on the CPU: plain loops over fixed chunks, shared by the threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/context_access.h"
#include "core/index.h"
#include "core/thread_pool.h"
#include "touchstone/core/checked.h"
#include "train/operators/problem.h"

namespace touchstone::inline v0::train {
namespace {

constexpr std::int64_t kElementsPerTask = 1 << 15;

// body(begin, end) for consecutive chunks of [0, count).
template <class Body>
void in_chunks(Context& context, std::int64_t count, std::int64_t chunk, const Body& body) {
  detail::ContextAccess::pool(context).run(ceil_div(count, chunk), [&](std::int64_t task) {
    body(task * chunk, std::min(count, (task + 1) * chunk));
  });
}

template <class Body>
void in_rows(Context& context, std::int64_t rows, std::int64_t cols, const Body& body) {
  in_chunks(context, rows, std::max<std::int64_t>(1, kElementsPerTask / cols), body);
}

template <class T>
T* row_of(const MatrixRows& matrix, std::int64_t row) {
  return static_cast<T*>(matrix.data) + row * matrix.stride;
}

template <class T>
using Arithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
void dropout_row(const DropoutProblem& p, std::int64_t row) {
  using A = Arithmetic<T>;
  const T* const x = row_of<const T>(p.x, row);
  T* const y = row_of<T>(p.y, row);
  const A scale = static_cast<A>(p.scale);
  for (std::int64_t c = 0; c < p.cols; c += kDropoutColumns) {
    const std::int64_t position =
        p.first_position + row * p.positions_per_row + c / kDropoutColumns;
    const PhiloxWords words = random_words(p.seed, position, RandomPurpose::dropout, p.draw);
    const std::int64_t end = std::min(p.cols, c + kDropoutColumns);
    for (std::int64_t i = c; i < end; ++i) {
      const A value = convert<A>(x[i]);
      y[i] = convert<T>(dropout_bits(words, i) < p.threshold ? A{0} : value * scale);
    }
  }
}

}  // namespace

void cast_cpu(Context& context, const CastProblem& p) {
  visit_float_dtype(p.from, [&]<class From>() {
    visit_float_dtype(p.to, [&]<class To>() {
      in_rows(context, p.rows, p.cols, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const From* const x = row_of<const From>(p.x, row);
          To* const y = row_of<To>(p.y, row);
          for (std::int64_t c = 0; c < p.cols; ++c) y[c] = convert<To>(x[c]);
        }
      });
    });
  });
}

void add_cpu(Context& context, const AddProblem& p) {
  const auto run = [&]<class T>() {
    in_chunks(context, p.count, kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
      const T* const x = static_cast<const T*>(p.x);
      T* const y = static_cast<T*>(p.y);
      for (std::int64_t i = begin; i < end; ++i) y[i] += x[i];
    });
  };
  p.dtype == DType::f64 ? run.operator()<double>() : run.operator()<float>();
}

void dropout_cpu(Context& context, const DropoutProblem& p) {
  visit_float_dtype(p.dtype, [&]<class T>() {
    in_rows(context, p.rows, p.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) dropout_row<T>(p, row);
    });
  });
}

void norm_cpu(Context& context, const NormProblem& p) {
  std::vector<double> sums(at(ceil_div(p.count, kNormChunk)));
  const auto run = [&]<class T>() {
    in_chunks(context, p.count, kNormChunk, [&](std::int64_t begin, std::int64_t end) {
      const T* const gradient = static_cast<const T*>(p.gradient);
      double sum = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        const auto value = static_cast<double>(gradient[i]);
        sum += value * value;
      }
      sums[at(begin / kNormChunk)] = sum;
    });
  };
  p.dtype == DType::f64 ? run.operator()<double>() : run.operator()<float>();
  double sum = 0;
  for (const double part : sums) sum += part;
  *p.norm = std::sqrt(sum);
}

void adamw_cpu(Context& context, const AdamWProblem& p) {
  const double factor = clip_factor(p.norm, p.clip);
  if (p.norm != nullptr && factor == 0) return;
  const auto run = [&]<class T>() {
    const AdamWCoefficients<T> c = adamw_coefficients<T>(p, factor);
    in_chunks(context, p.count, kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
      T* const weight = static_cast<T*>(p.weight);
      T* const m = static_cast<T*>(p.m);
      T* const v = static_cast<T*>(p.v);
      T* const average = static_cast<T*>(p.average);
      for (std::int64_t i = begin; i < end; ++i) {
        const AdamWElement<T> e =
            adamw_element<T>(c, static_cast<const T*>(p.gradient)[i], {weight[i], m[i], v[i]});
        weight[i] = e.weight;
        m[i] = e.m;
        v[i] = e.v;
        if (average != nullptr) {
          average[i] = e.weight + c.average_decay * (average[i] - e.weight);
        }
      }
    });
  };
  p.dtype == DType::f64 ? run.operator()<double>() : run.operator()<float>();
}

}  // namespace touchstone::inline v0::train
