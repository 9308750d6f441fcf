// The full Jacobian by coloring.
// Part of touchstone/gradcheck.h; include that one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "touchstone/gradcheck/check.h"

namespace touchstone::inline v0::gradcheck {
namespace detail {

class JacobianComparison {
 public:
  JacobianComparison(const Problem& problem, const DualForward& forward, const Backward& backward)
      : problem_(problem), forward_(forward), rows_(problem.independent_rows) {
    for (size_t o = 0; o < problem.outputs.size(); ++o) {
      for (int64_t column = 0; column < row_size(problem.outputs[o].shape); ++column) {
        columns_.push_back({o, column});
        run_backward(backward);
      }
    }
  }

  // Compares all entries and keeps the worst; an input passes on its own largest entry.
  JacobianReport run(double tolerance) {
    report_.ok = true;
    report_.max_abs_difference = 0.0;
    for (size_t a = 0; a < problem_.inputs.size(); ++a) {
      const Input& in = problem_.inputs[a];
      const int64_t columns = in.per_row ? row_size(in.shape) : count_of(in.shape);
      largest_entry_ = 0.0;
      largest_difference_ = 0.0;
      for (int64_t column = 0; column < columns; column += kLanes) {
        const int64_t lanes = std::min<int64_t>(kLanes, columns - column);
        compare(a, column, lanes, run_forward(a, column, lanes));
      }
      const double allowed = tolerance * largest_entry_;
      report_.ok = report_.ok && largest_difference_ <= allowed;
      report_.max_abs_entry = worse(report_.max_abs_entry, largest_entry_);
    }
    return report_;
  }

 private:
  struct Column {
    size_t output;
    int64_t index;
    std::vector<std::vector<double>> grads = {};  // of all inputs, for a unit cotangent here
  };

  int64_t row_size(const std::vector<int64_t>& shape) const { return count_of(shape) / rows_; }

  void run_backward(const Backward& backward) {
    Column& column = columns_.back();
    std::vector<std::vector<double>> cotangents;
    std::vector<std::span<const double>> in;
    std::vector<std::span<double>> out;
    for (const Output& output : problem_.outputs) {
      cotangents.emplace_back(to_size(count_of(output.shape)), 0.0);
    }
    const int64_t stride = row_size(problem_.outputs[column.output].shape);
    for (int64_t r = 0; r < rows_; ++r) {
      cotangents[column.output][to_size(r * stride + column.index)] = 1.0;
    }
    in.reserve(cotangents.size());
    for (const std::vector<double>& cotangent : cotangents) in.emplace_back(cotangent);
    for (const Input& input : problem_.inputs) column.grads.emplace_back(input.value.size());
    for (std::vector<double>& grad : column.grads) out.emplace_back(grad);
    backward(in, out);
  }

  // All rows at once, lane k with column `first + k` of input `a` displaced by one in every row.
  std::vector<std::vector<DualScalar>> run_forward(size_t a, int64_t first, int64_t lanes) const {
    std::vector<std::vector<DualScalar>> in;
    std::vector<std::vector<DualScalar>> out;
    DualSlice slice{.first_row = 0, .rows = rows_};
    in.reserve(problem_.inputs.size());
    out.reserve(problem_.outputs.size());
    for (const Input& input : problem_.inputs) {
      in.emplace_back(input.value.begin(), input.value.end());
    }
    const Input& moved = problem_.inputs[a];
    const int64_t stride = moved.per_row ? row_size(moved.shape) : count_of(moved.shape);
    for (int64_t i = 0; i < std::ssize(in[a]); i += stride) {
      for (int64_t k = 0; k < lanes; ++k) in[a][to_size(i + first + k)].d[k] = 1.0;
    }
    for (const Output& output : problem_.outputs) out.emplace_back(to_size(count_of(output.shape)));
    for (const std::vector<DualScalar>& array : in) slice.in.emplace_back(array);
    for (std::vector<DualScalar>& array : out) slice.out.emplace_back(array);
    forward_(slice);
    return out;
  }

  void compare(size_t a, int64_t first, int64_t lanes,
               const std::vector<std::vector<DualScalar>>& out) {
    const Input& in = problem_.inputs[a];
    for (const Column& column : columns_) {
      const int64_t out_stride = row_size(problem_.outputs[column.output].shape);
      const DualScalar* y = out[column.output].data() + column.index;
      const double* grad = column.grads[a].data();
      for (int64_t k = 0; k < lanes; ++k) {
        double sum = 0.0;
        for (int64_t r = 0; r < rows_; ++r) {
          const double entry = y[r * out_stride].d[k];
          const int64_t at = r * row_size(in.shape) + first + k;
          if (in.per_row) keep_worst(a, column, r, at, grad[at], entry);
          sum += entry;
        }
        if (!in.per_row) keep_worst(a, column, 0, first + k, grad[first + k], sum);
      }
    }
  }

  void keep_worst(size_t a, const Column& column, int64_t row, int64_t at, double claimed,
                  double expected) {
    const double difference = std::fabs(claimed - expected);
    largest_entry_ = worse(largest_entry_, std::fabs(expected));
    largest_difference_ = worse(largest_difference_, difference);
    // The first NaN stays: no difference is larger.
    if (difference <= report_.max_abs_difference || std::isnan(report_.max_abs_difference)) return;
    const Input& in = problem_.inputs[a];
    const Output& out = problem_.outputs[column.output];
    report_.max_abs_difference = difference;
    report_.claimed = claimed;
    report_.expected = expected;
    report_.where = "d" + out.name + "/d" + in.name + ": " + out.name + " " +
                    (in.per_row ? "" : "summed over ") +
                    element_text(out.shape, out.dims, row * row_size(out.shape) + column.index) +
                    "; " + in.name + " " + element_text(in.shape, in.dims, at);
  }

  const Problem& problem_;      // NOLINT: lives inside one call
  const DualForward& forward_;  // NOLINT
  int64_t rows_;
  std::vector<Column> columns_;
  JacobianReport report_;
  double largest_entry_ = 0.0;
  double largest_difference_ = 0.0;
};

}  // namespace detail

inline JacobianReport check_jacobian(const Problem& problem, const DualForward& forward,
                                     const Backward& backward, const Options& options) {
  detail::check_problem(problem, false);
  if (problem.independent_rows == 0) detail::refuse("check_jacobian needs independent_rows");
  if (!(options.tolerance >= 0)) detail::refuse("tolerance: expected a number >= 0");
  return detail::JacobianComparison(problem, forward, backward).run(options.tolerance);
}

}  // namespace touchstone::inline v0::gradcheck
