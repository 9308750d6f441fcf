// Random numbers, sums, blocks of arrays and the checks of arguments.
// Part of touchstone/gradcheck.h; include that one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "touchstone/core/error.h"
#include "touchstone/gradcheck/problem.h"

namespace touchstone::inline v0::gradcheck::detail {

inline size_t to_size(int64_t n) { return static_cast<size_t>(n); }

// ---- random numbers -------------------------------------------------------------------------

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

// The finalizer of splitmix64. As a function of a counter it is a generator without state: element
// i of stream s needs no other element, so any slice of a direction can be made on its own.
inline uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

inline uint64_t stream_of(uint64_t seed, uint64_t number) {
  return mix(mix(seed + kGolden) + (number + 1) * kGolden);
}

inline double uniform(uint64_t stream, int64_t index) {
  constexpr double kScale = 1.7320508075688772935 / 4503599627370496.0;  // sqrt(3) 2^-52
  const uint64_t bits = mix(stream + static_cast<uint64_t>(index) * kGolden);
  return static_cast<double>(static_cast<int64_t>(bits) >> 11) * kScale;
}

// ---- sums -----------------------------------------------------------------------------------

// The larger of two, where a NaN is larger than anything and stays.
inline double worse(double a, double b) { return a >= b || std::isnan(a) ? a : b; }

// Neumaier's compensated sum. Callers add short plain sums, which keeps the cost out of inner
// loops.
struct Sum {
  double total = 0.0;
  double lost = 0.0;

  void add(double x) {
    const double t = total + x;
    lost += std::fabs(total) >= std::fabs(x) ? (total - t) + x : (x - t) + total;
    total = t;
  }
  // A sum that has left the finite range has a meaningless correction.
  double value() const { return std::isfinite(total) ? total + lost : total; }
};

constexpr int64_t kChunk = 128;

template <class Term>
double sum_over(int64_t count, const Term& term) {
  Sum sum;
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t end = std::min(count, begin + kChunk);
    double part = 0.0;
    for (int64_t i = begin; i < end; ++i) part += term(i);
    sum.add(part);
  }
  return sum.value();
}

// The 2-norm, scaled so that squares neither overflow nor underflow.
inline double norm(std::span<const double> x) {
  double largest = 0.0;
  for (double element : x) largest = std::max(largest, std::fabs(element));
  if (!(largest > 0)) return 0.0;
  return largest * std::sqrt(sum_over(std::ssize(x), [&](int64_t i) {
           const double scaled = x[to_size(i)] / largest;
           return scaled * scaled;
         }));
}

// ---- shapes and blocks ----------------------------------------------------------------------

inline int64_t count_of(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

inline std::string format(const char* pattern, double a) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, a);
  return text;
}

inline std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) text += (d ? ", " : "") + std::to_string(shape[d]);
  return text + "]";
}

inline std::string dim_name(const std::vector<std::string>& names, size_t rank, size_t d) {
  if (d < names.size()) return names[d];
  if (rank == 1) return "index";
  if (rank == 2) return d == 0 ? "row" : "col";
  return "dim" + std::to_string(d);
}

// "row 17, col 5" for an element given by its position in the flat array.
inline std::string element_text(const std::vector<int64_t>& shape,
                                const std::vector<std::string>& names, int64_t index) {
  std::string text;
  int64_t stride = count_of(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    stride /= shape[d];
    text += (d ? ", " : "") + dim_name(names, shape.size(), d) + " " +
            std::to_string(index / stride % shape[d]);
  }
  return shape.empty() ? "scalar" : text;
}

struct Block {
  std::vector<int64_t> begin;
  std::vector<int64_t> end;

  int64_t count() const {
    int64_t n = 1;
    for (size_t d = 0; d < begin.size(); ++d) n *= end[d] - begin[d];
    return n;
  }
};

inline Block whole(const std::vector<int64_t>& shape) {
  return {std::vector<int64_t>(shape.size(), 0), shape};
}

// Calls f(offset, length) for the contiguous runs of the block, in order. `first` and `last` bound
// the leading dimension.
template <class F>
void for_each_run(const std::vector<int64_t>& shape, const Block& block, int64_t first,
                  int64_t last, const F& f) {
  if (shape.empty()) return f(int64_t{0}, int64_t{1});
  const size_t rank = shape.size();
  std::vector<int64_t> begin = block.begin;
  std::vector<int64_t> end = block.end;
  begin[0] = std::max(begin[0], first);
  end[0] = std::min(end[0], last);
  for (size_t d = 0; d < rank; ++d) {
    if (begin[d] >= end[d]) return;
  }
  std::vector<int64_t> at = begin;
  while (true) {
    int64_t offset = 0;
    for (size_t d = 0; d < rank; ++d) offset = offset * shape[d] + at[d];
    f(offset, end[rank - 1] - begin[rank - 1]);
    size_t d = rank - 1;
    while (d > 0 && ++at[d - 1] == end[d - 1]) {
      at[d - 1] = begin[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

constexpr int64_t kAllRows = std::numeric_limits<int64_t>::max();

// ---- checking the arguments -----------------------------------------------------------------

[[noreturn]] inline void refuse(const std::string& what) {
  throw InvalidArgument("gradcheck: " + what);
}

inline void check_array(const std::string& name, const char* what,
                        const std::vector<int64_t>& shape, std::span<const double> data) {
  if (std::ssize(data) != count_of(shape)) {
    refuse(name + ": " + what + ": expected " + std::to_string(count_of(shape)) +
           " elements for shape " + shape_text(shape) + ", got " + std::to_string(data.size()));
  }
}

inline void check_rows(const std::string& name, const std::vector<int64_t>& shape, int64_t rows) {
  if (shape.empty() || shape[0] != rows) {
    refuse(name + ": expected a leading dimension of " + std::to_string(rows) +
           " independent rows, got shape " + shape_text(shape));
  }
}

inline void check_shape(const std::string& name, const std::vector<int64_t>& shape) {
  if (name.empty()) refuse("an input or output without a name");
  int64_t left = std::numeric_limits<int64_t>::max();
  for (int64_t extent : shape) {
    if (extent <= 0) refuse(name + ": empty shape " + shape_text(shape));
    left /= extent;
    if (left == 0) refuse(name + ": more elements than can be counted: " + shape_text(shape));
  }
}

inline void check_problem(const Problem& p, bool with_gradients) {
  if (p.inputs.empty()) refuse("no inputs");
  if (p.outputs.empty()) refuse("no outputs");
  if (p.independent_rows < 0) refuse("independent_rows is negative");
  for (const Input& in : p.inputs) {
    check_shape(in.name, in.shape);
    check_array(in.name, "value", in.shape, in.value);
    if (with_gradients) check_array(in.name, "grad", in.shape, in.grad);
    if (in.per_row && p.independent_rows == 0) {
      refuse(in.name + ": per_row, but the problem has no independent_rows");
    }
    if (in.per_row) check_rows(in.name, in.shape, p.independent_rows);
    if (!in.tile.empty() && in.tile.size() != in.shape.size()) {
      refuse(in.name + ": tile: expected " + std::to_string(in.shape.size()) + " extents, got " +
             std::to_string(in.tile.size()));
    }
    for (int64_t extent : in.tile) {
      if (extent <= 0) refuse(in.name + ": tile extents must be positive");
    }
  }
  for (const Output& out : p.outputs) {
    check_shape(out.name, out.shape);
    if (with_gradients) check_array(out.name, "cotangent", out.shape, out.cotangent);
    if (p.independent_rows > 0) check_rows(out.name, out.shape, p.independent_rows);
  }
}

}  // namespace touchstone::inline v0::gradcheck::detail
