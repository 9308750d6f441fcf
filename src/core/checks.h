// Argument checks that every operator shares. Each throws InvalidArgument (or Unsupported for a
// dtype) whose message reads `operator: argument: expected ..., got ...`.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"

namespace touchstone::inline v0 {

// A named argument, input or output.
struct Argument {
  const char* name;
  ConstTensorView view;
};

// A row-strided matrix: rows of contiguous columns.
struct RowLayout {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;  // in elements
};

class Checks {
 public:
  Checks(const char* op, const Context& context) : op_(op), context_(context) {}

  [[noreturn]] void fail(const char* argument, const std::string& expected,
                         const std::string& got) const;

  // Given, of a valid rank, on the context's device, with data unless it has no elements. Call it
  // before every other check of the argument.
  void present(const Argument& a) const;
  void dtype(const Argument& a, std::initializer_list<DType> allowed) const;
  void shape(const Argument& a, std::span<const std::int64_t> expected) const;
  // No extent below zero, nothing beyond 64 bits, strides of a dense array.
  void contiguous(const Argument& a) const;
  void finite_at_least(const char* argument, double value, double minimum) const;
  // 0, or a cap that the type of the sums holds: f32, or f64 for f64.
  void soft_cap(double value, DType dtype) const;

  // Views [.., D] as rows of D elements at one stride. `writable` rows must not overlap.
  RowLayout rows(const Argument& a, bool writable) const;

  // No stride below zero, nothing beyond 64 bits; with `writable` no element twice.
  void strides(const Argument& a, bool writable) const;

  // Likewise, and the last dimension has stride 1.
  void dense_last(const Argument& a, bool writable) const;

  // A contiguous array, optional unless `needed`; its data, or null.
  const void* array(const Argument& a, DType type, std::span<const std::int64_t> expected,
                    bool needed = false) const;

  // Refuses an output that shares memory with `other`, except, where `same_allowed`, when both
  // are exactly the same elements at the same addresses.
  void disjoint(const Argument& output, const Argument& other, bool same_allowed) const;

 private:
  [[noreturn]] void refuse_strides(const Argument& a, const char* expected) const;

  const char* op_;
  const Context& context_;
};

}  // namespace touchstone::inline v0
