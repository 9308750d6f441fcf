#include "core/checks.h"

#include <algorithm>
#include <cmath>

#include "touchstone/core/checked.h"

namespace touchstone {
namespace {

// Byte-level picture of a view whose leading dimensions collapse: `count` pieces of `length`
// bytes, `step` bytes apart.
struct Pieces {
  std::uintptr_t start = 0;
  std::uintptr_t length = 0;
  std::uintptr_t step = 0;
  std::uintptr_t count = 0;

  std::uintptr_t end() const { return start + step * (count - 1) + length; }
};

// Whether the leading dimensions are one run of rows; if so, their stride.
bool collapse(const ConstTensorView& view, std::int64_t& stride) {
  stride = 0;
  bool first = true;
  bool fits = true;       // in 64 bits: sizes are checked only after the shape is understood
  std::int64_t next = 0;  // the stride the next outer dimension must have
  for (int i = view.rank - 2; i >= 0; --i) {
    const auto d = static_cast<std::size_t>(i);
    if (view.shape[d] == 1) continue;
    if (first) {
      stride = view.stride[d];
      first = false;
    } else if (!fits || view.stride[d] != next) {
      return false;
    }
    fits = !__builtin_mul_overflow(view.stride[d], view.shape[d], &next);
  }
  return true;
}

bool pieces_of(const ConstTensorView& view, Pieces& pieces) {
  std::int64_t stride = 0;
  if (!collapse(view, stride)) return false;
  const auto size = static_cast<std::uintptr_t>(size_of(view.dtype));
  const std::int64_t cols =
      view.rank == 0 ? 1 : view.shape[static_cast<std::size_t>(view.rank - 1)];
  pieces.start = reinterpret_cast<std::uintptr_t>(view.data);
  pieces.length = static_cast<std::uintptr_t>(cols) * size;
  pieces.step = static_cast<std::uintptr_t>(stride) * size;
  pieces.count = static_cast<std::uintptr_t>(view.elements() / cols);
  return true;
}

bool overlap(const Pieces& a, const Pieces& b) {
  if (a.start >= b.end() || b.start >= a.end()) return false;
  // Equal steps: both patterns repeat together, so one period decides. This is what lets two
  // halves of the same wide rows be input and output.
  if (a.step == b.step && a.step != 0 && a.count > 1 && b.count > 1) {
    const std::uintptr_t shift =
        b.start >= a.start ? (b.start - a.start) % a.step : a.step - (a.start - b.start) % a.step;
    return shift % a.step < a.length || a.step - shift % a.step < b.length;
  }
  return true;
}

bool same_elements(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.data != b.data || a.dtype != b.dtype) return false;
  Pieces x;
  Pieces y;
  if (!pieces_of(a, x) || !pieces_of(b, y)) return false;
  return x.length == y.length && x.count == y.count && (x.step == y.step || x.count <= 1);
}

}  // namespace

void Checks::fail(const char* argument, const std::string& expected, const std::string& got) const {
  throw InvalidArgument(std::string(op_) + ": " + argument + ": expected " + expected + ", got " +
                        got);
}

void Checks::present(const Argument& a) const {
  if (!a.view.defined()) fail(a.name, "a tensor", "none");
  if (a.view.device != context_.device()) {
    fail(a.name, "a tensor on " + name_of(context_.device()), name_of(a.view.device));
  }
  if (a.view.data == nullptr && a.view.elements() > 0) fail(a.name, "data", "a null pointer");
}

void Checks::dtype(const Argument& a, std::initializer_list<DType> allowed) const {
  if (std::find(allowed.begin(), allowed.end(), a.view.dtype) != allowed.end()) return;
  std::string names;
  for (const DType dtype : allowed) {
    names += names.empty() ? "" : " or ";
    names += name_of(dtype);
  }
  fail(a.name, "dtype " + names, std::string(name_of(a.view.dtype)));
}

void Checks::shape(const Argument& a, std::span<const std::int64_t> expected) const {
  if (std::ranges::equal(a.view.sizes(), expected)) return;
  fail(a.name, "shape " + shape_string(expected), shape_string(a.view.sizes()));
}

void Checks::contiguous(const Argument& a) const {
  if (a.view.contiguous()) return;
  const std::span<const std::int64_t> strides(a.view.stride.data(),
                                              static_cast<std::size_t>(a.view.rank));
  fail(a.name, "a contiguous tensor", "strides " + shape_string(strides));
}

void Checks::finite_at_least(const char* argument, double value, double minimum) const {
  if (std::isfinite(value) && value >= minimum) return;
  const std::string bound = std::isfinite(minimum) && minimum > -1e300
                                ? " of at least " + std::to_string(static_cast<int>(minimum))
                                : "";
  fail(argument, "a finite number" + bound, std::to_string(value));
}

RowLayout Checks::rows(const Argument& a, bool writable) const {
  const ConstTensorView& v = a.view;
  if (v.rank < 1) fail(a.name, "a rank of at least 1", "rank 0");
  const auto last = static_cast<std::size_t>(v.rank - 1);
  for (int i = 0; i < v.rank; ++i) {
    if (v.shape[static_cast<std::size_t>(i)] < 0) {
      fail(a.name, "extents of at least 0", shape_string(v.sizes()));
    }
  }
  const std::string what = std::string(op_) + ": " + a.name;  // for sizes beyond 64 bits
  RowLayout layout;
  layout.cols = v.shape[last];
  layout.rows = 1;
  for (std::size_t i = 0; i < last; ++i) {
    layout.rows = checked_mul(layout.rows, v.shape[i], what.c_str());
  }
  if (layout.cols > 1 && v.stride[last] != 1) {
    fail(a.name, "a last dimension of stride 1", "stride " + std::to_string(v.stride[last]));
  }
  if (layout.rows == 0 || layout.cols == 0) return layout;
  if (!collapse(v, layout.stride)) {
    const std::span<const std::int64_t> strides(v.stride.data(), static_cast<std::size_t>(v.rank));
    fail(a.name, "leading dimensions that collapse to one row stride",
         "strides " + shape_string(strides));
  }
  const std::int64_t smallest = writable ? layout.cols : 0;
  if (layout.rows > 1 && layout.stride < smallest) {
    fail(a.name, "a row stride of at least " + std::to_string(smallest),
         std::to_string(layout.stride));
  }
  if (layout.rows == 1) layout.stride = layout.cols;
  checked_mul(checked_mul(layout.rows, layout.stride, what.c_str()), size_of(v.dtype),
              what.c_str());
  return layout;
}

void Checks::disjoint(const Argument& output, const Argument& other, bool same_allowed) const {
  if (!output.view.defined() || !other.view.defined()) return;
  if (output.view.elements() == 0 || other.view.elements() == 0) return;
  if (same_allowed && same_elements(output.view, other.view)) return;
  Pieces a;
  Pieces b;
  if (!pieces_of(output.view, a) || !pieces_of(other.view, b)) return;
  if (overlap(a, b)) {
    fail(output.name, std::string("no overlap with ") + other.name,
         same_allowed ? "a partial overlap" : "shared memory");
  }
}

}  // namespace touchstone
