// A tensor for tests, on any device, in memory that shows stray writes: guard bands lie before and after it (and
// between its rows where they are spaced out), outputs start as poison, and what was there before a
// call can be compared with what is there after it. Under AddressSanitizer the bands are fenced as
// well, so that reading them fails too.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "touchstone/core/tensor.h"

namespace touchstone::test {

// How a tensor lies in memory, in elements.
struct Layout {
  std::int64_t row_gap = 0;  // between the end of a row and the start of the next
  std::int64_t offset = 0;   // of the first element from a 256-byte boundary
};

class Guarded {
 public:
  Guarded() = default;  // absent: an undefined view, and every check passes
  // Poisoned: every element is NaN (floating point) or all ones.
  Guarded(Device device, DType dtype, const std::vector<std::int64_t>& shape, Layout layout = {});
  // Holds `values`, row-major, each rounded to the dtype.
  Guarded(Device device, DType dtype, const std::vector<std::int64_t>& shape,
          std::span<const double> values, Layout layout = {});
  ~Guarded();
  Guarded(Guarded&& other) noexcept;
  Guarded& operator=(Guarded&& other) noexcept;

  bool defined() const { return view_.defined(); }
  const TensorView& view() const { return view_; }
  // NOLINTBEGIN(google-explicit-constructor): passed where a view is expected.
  operator TensorView() const { return view_; }
  operator ConstTensorView() const { return view_; }
  // NOLINTEND(google-explicit-constructor)
  DType dtype() const { return view_.dtype; }
  std::int64_t elements() const { return view_.elements(); }

  void poison();
  void set(std::span<const double> values);

  // The elements as they are now, row-major: as numbers (exact for every dtype but i64 beyond
  // 2^53) and as bytes, which also tell -0 from 0 and one NaN from another.
  std::vector<double> values() const;
  std::vector<std::byte> bytes() const;

  // Nothing outside the elements was written since the last poison() or set().
  testing::AssertionResult outside_intact() const;
  // Nothing at all was written since then.
  testing::AssertionResult unchanged() const;

 private:
  void allocate(Device device, DType dtype, const std::vector<std::int64_t>& shape, Layout layout);
  template <class Body>
  void for_each_row(Body&& body) const;
  template <class Body>
  auto with_memory(Body&& body) const;
  testing::AssertionResult same(std::span<const std::byte> now, std::size_t begin, std::size_t end,
                                const char* what) const;
  std::size_t element_size() const { return static_cast<std::size_t>(size_of(view_.dtype)); }
  void upload();
  void fence(bool up) const;

  Tensor memory_;                 // u8, on the device
  std::vector<std::byte> image_;  // what upload() last put into memory_
  std::size_t start_ = 0;         // of the first element, in bytes
  TensorView view_;
};

// Columns [begin, begin + count) of every row.
TensorView columns(TensorView view, std::int64_t begin, std::int64_t count);

// Bitwise equality, with the first difference named.
testing::AssertionResult same_bits(const Guarded& actual, std::span<const std::byte> expected);

}  // namespace touchstone::test
