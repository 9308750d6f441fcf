#include "ops/attention_common/attention_checks.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "touchstone/core/checked.h"

namespace touchstone::attention_common {

void AttentionChecks::strides(const Argument& a, bool writable) const {
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

void AttentionChecks::dense_last(const Argument& a, bool writable) const {
  const ConstTensorView& v = a.view;
  const auto last = static_cast<std::size_t>(v.rank - 1);
  strides(a, writable);
  if (v.shape[last] > 1 && v.elements() > 0 && v.stride[last] != 1) {
    fail(a.name, "a last dimension of stride 1", "stride " + std::to_string(v.stride[last]));
  }
}

const void* AttentionChecks::array(const Argument& a, DType type,
                                   std::span<const std::int64_t> expected, bool needed) const {
  if (!a.view.defined() && !needed) return nullptr;
  present(a);
  dtype(a, {type});
  shape(a, expected);
  contiguous(a);
  return a.view.data;
}

void AttentionChecks::offsets(const char* name, const std::int64_t* offsets, std::int64_t count,
                              std::int64_t tokens) const {
  if (offsets[0] != 0) fail(name, "0 first", std::to_string(offsets[0]));
  for (std::int64_t i = 0; i < count; ++i) {
    if (offsets[i] <= offsets[i + 1] && offsets[i + 1] <= tokens) continue;
    fail(name, "ascending numbers up to " + std::to_string(tokens),
         std::to_string(offsets[i]) + " and then " + std::to_string(offsets[i + 1]));
  }
  if (offsets[count] != tokens) {
    fail(name, std::to_string(tokens) + " last", std::to_string(offsets[count]));
  }
}

void AttentionChecks::at_least_zero(const char* name, std::int64_t value) const {
  if (value < 0) fail(name, "at least 0", std::to_string(value));
}

void AttentionChecks::no_overlap(std::span<const Argument> outputs,
                                 std::span<const Argument> inputs) const {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (const Argument& input : inputs) disjoint(outputs[i], input, false);
    for (const Argument& other : outputs.subspan(i + 1)) disjoint(outputs[i], other, false);
  }
}

void AttentionChecks::refuse_strides(const Argument& a, const char* expected) const {
  const auto rank = static_cast<std::size_t>(a.view.rank);
  fail(a.name, expected, "strides " + shape_string({a.view.stride.data(), rank}));
}

}  // namespace touchstone::attention_common
