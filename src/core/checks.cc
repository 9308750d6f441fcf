#include "core/checks.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "touchstone/core/checked.h"

namespace touchstone::inline v0 {
namespace {

// The bytes of a view: runs of `run` bytes, repeated `count` times every `step` bytes, and that
// again, smallest step first. The order of the dimensions is forgotten.
struct Pattern {
  struct Level {
    std::int64_t step = 0;
    std::int64_t count = 1;
  };
  std::int64_t start = 0;
  std::int64_t run = 0;
  std::vector<Level> levels;

  // From the first byte to one past the last, counting the first `depth` levels only.
  std::int64_t span(std::size_t depth) const {
    std::int64_t bytes = run;
    for (std::size_t i = 0; i < depth; ++i) bytes += levels[i].step * (levels[i].count - 1);
    return bytes;
  }
};

Pattern pattern_of(const ConstTensorView& view) {
  Pattern pattern;
  const std::int64_t size = size_of(view.dtype);
  pattern.start = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.data));
  pattern.run = size;
  std::vector<Pattern::Level> dims;
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.rank); ++i) {
    const std::int64_t step = view.stride[i] * size;
    if (view.shape[i] <= 1 || step == 0) continue;
    if (step < 0) pattern.start += step * (view.shape[i] - 1);
    dims.push_back({std::abs(step), view.shape[i]});
  }
  std::ranges::sort(dims, {}, &Pattern::Level::step);
  for (const Pattern::Level& dim : dims) {
    std::vector<Pattern::Level>& levels = pattern.levels;
    if (levels.empty() && dim.step == pattern.run) {
      pattern.run *= dim.count;
    } else if (!levels.empty() && levels.back().step * levels.back().count == dim.step) {
      levels.back().count *= dim.count;
    } else {
      levels.push_back(dim);
    }
  }
  return pattern;
}

// Gives both patterns the same steps; a step that one does not have is taken once.
void align_levels(Pattern& a, Pattern& b) {
  std::vector<std::int64_t> steps;
  for (const Pattern* p : {&a, &b}) {
    for (const Pattern::Level& level : p->levels) steps.push_back(level.step);
  }
  std::ranges::sort(steps);
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  for (Pattern* p : {&a, &b}) {
    std::vector<Pattern::Level> all;
    for (const std::int64_t step : steps) {
      const auto found = std::ranges::find(p->levels, step, &Pattern::Level::step);
      all.push_back(found == p->levels.end() ? Pattern::Level{step, 1} : *found);
    }
    p->levels = std::move(all);
  }
}

// Whether the patterns of the first `depth` levels share a byte when b begins `shift` bytes after
// a. Interleaved views, such as the q, k and v of one tensor [B, S, 3, H, D], do not.
bool overlap(const Pattern& a, const Pattern& b, std::size_t depth, std::int64_t shift) {
  if (shift >= a.span(depth) || -shift >= b.span(depth)) return false;
  if (depth == 0) return true;
  const Pattern::Level& outer_a = a.levels[depth - 1];
  const Pattern::Level& outer_b = b.levels[depth - 1];
  // Repetition i of a and j of b can overlap only for these values of j - i.
  const std::int64_t step = outer_a.step;
  const std::int64_t low = std::max(1 - outer_a.count, (-shift - b.span(depth - 1)) / step - 1);
  const std::int64_t high = std::min(outer_b.count - 1, (a.span(depth - 1) - shift) / step + 1);
  constexpr std::int64_t kMax = 8;  // more only where views overlap themselves
  if (high - low > kMax) return true;
  for (std::int64_t difference = low; difference <= high; ++difference) {
    if (overlap(a, b, depth - 1, shift + difference * step)) return true;
  }
  return false;
}

// From the first byte to one past the last.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

Range range_of(const ConstTensorView& view) {
  const auto start = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.data));
  const std::int64_t size = size_of(view.dtype);
  Range range{start, start + size};
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.rank); ++i) {
    const std::int64_t reach = view.stride[i] * (view.shape[i] - 1) * size;
    (reach < 0 ? range.begin : range.end) += reach;
  }
  return range;
}

bool overlap(const ConstTensorView& x, const ConstTensorView& y) {
  // The usual case, decided without building anything: tensors lie apart.
  const Range range_x = range_of(x);
  const Range range_y = range_of(y);
  if (range_x.end <= range_y.begin || range_y.end <= range_x.begin) return false;
  Pattern a = pattern_of(x);
  Pattern b = pattern_of(y);
  align_levels(a, b);
  return overlap(a, b, a.levels.size(), b.start - a.start);
}

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

bool same_elements(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.data != b.data || a.dtype != b.dtype) return false;
  const auto rank = static_cast<std::size_t>(a.rank);
  if (a.rank == b.rank && std::ranges::equal(a.sizes(), b.sizes()) &&
      std::equal(a.stride.begin(), a.stride.begin() + static_cast<std::ptrdiff_t>(rank),
                 b.stride.begin())) {
    return true;
  }
  std::int64_t step_a = 0;
  std::int64_t step_b = 0;
  if (!collapse(a, step_a) || !collapse(b, step_b)) return false;
  const auto cols = [](const ConstTensorView& view) {
    return view.rank == 0 ? 1 : view.shape[static_cast<std::size_t>(view.rank - 1)];
  };
  if (cols(a) != cols(b) || a.elements() != b.elements()) return false;
  return step_a == step_b || a.elements() == cols(a);
}

// The shortest decimal that reads back as `value`.
std::string shortest(double value) {
  char text[32];
  const auto end = std::to_chars(std::begin(text), std::end(text), value).ptr;
  return {text, end};
}

}  // namespace

void Checks::fail(const char* argument, const std::string& expected, const std::string& got) const {
  throw InvalidArgument(std::string(op_) + ": " + argument + ": expected " + expected + ", got " +
                        got);
}

void Checks::present(const Argument& a) const {
  if (!a.view.defined()) fail(a.name, "a tensor", "none");
  // First of all: the other members of a view read as many extents as its rank says.
  if (a.view.rank < 0 || a.view.rank > kMaxRank) {
    fail(a.name, "a rank of 0 to " + std::to_string(kMaxRank), std::to_string(a.view.rank));
  }
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
  std::int64_t bytes = size_of(a.view.dtype);
  for (const std::int64_t extent : a.view.sizes()) {
    if (extent < 0) fail(a.name, "extents of at least 0", shape_string(a.view.sizes()));
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes)) {
      fail(a.name, "a size that fits in 64 bits", shape_string(a.view.sizes()));
    }
  }
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
  fail(argument, "a finite number" + bound, shortest(value));
}

void Checks::soft_cap(double value, DType dtype) const {
  finite_at_least("soft_cap", value, 0);
  if (value == 0 || dtype == DType::f64) return;
  using Limits = std::numeric_limits<float>;
  if (value >= static_cast<double>(Limits::min()) && value <= static_cast<double>(Limits::max())) {
    return;
  }
  fail("soft_cap", "0 or a normal number of f32", shortest(value));
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
  // Rows may be expanded (stride 0), so neither product implies the other.
  for (const std::int64_t elements : {checked_mul(layout.rows, layout.stride, what.c_str()),
                                      checked_mul(layout.rows, layout.cols, what.c_str())}) {
    checked_mul(elements, size_of(v.dtype), what.c_str());
  }
  return layout;
}

void Checks::strides(const Argument& a, bool writable) const {
  const ConstTensorView& v = a.view;
  const std::string what = std::string(op_) + ": " + a.name;  // for sizes beyond 64 bits
  std::int64_t elements = 1;
  for (const std::int64_t extent : v.sizes()) {
    if (extent < 0) fail(a.name, "extents of at least 0", shape_string(v.sizes()));
    elements = checked_mul(elements, extent, what.c_str());
  }
  if (elements == 0) return;
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, extent
  for (std::size_t i = 0; i < static_cast<std::size_t>(v.rank); ++i) {
    if (v.shape[i] <= 1) continue;
    if (v.stride[i] < 0) refuse_strides(a, "strides of at least 0");
    dims.emplace_back(v.stride[i], v.shape[i]);
  }
  std::ranges::sort(dims);
  std::int64_t reach = 0;  // of the dimensions so far, from their first element to their last
  for (const auto& [stride, extent] : dims) {
    if (writable && stride <= reach) refuse_strides(a, "every element at an address of its own");
    reach = checked_add(reach, checked_mul(stride, extent - 1, what.c_str()), what.c_str());
  }
  checked_mul(checked_add(reach, 1, what.c_str()), size_of(v.dtype), what.c_str());
}

void Checks::dense_last(const Argument& a, bool writable) const {
  const ConstTensorView& v = a.view;
  const auto last = static_cast<std::size_t>(v.rank - 1);
  strides(a, writable);
  if (v.shape[last] > 1 && v.elements() > 0 && v.stride[last] != 1) {
    fail(a.name, "a last dimension of stride 1", "stride " + std::to_string(v.stride[last]));
  }
}

const void* Checks::array(const Argument& a, DType type, std::span<const std::int64_t> expected,
                          bool needed) const {
  if (!a.view.defined() && !needed) return nullptr;
  present(a);
  dtype(a, {type});
  shape(a, expected);
  contiguous(a);
  return a.view.data;
}

void Checks::refuse_strides(const Argument& a, const char* expected) const {
  const auto rank = static_cast<std::size_t>(a.view.rank);
  fail(a.name, expected, "strides " + shape_string({a.view.stride.data(), rank}));
}

void Checks::disjoint(const Argument& output, const Argument& other, bool same_allowed) const {
  if (!output.view.defined() || !other.view.defined()) return;
  if (output.view.elements() == 0 || other.view.elements() == 0) return;
  if (same_allowed && same_elements(output.view, other.view)) return;
  if (overlap(output.view, other.view)) {
    fail(output.name, std::string("no overlap with ") + other.name,
         same_allowed ? "a partial overlap" : "shared memory");
  }
}

}  // namespace touchstone::inline v0
