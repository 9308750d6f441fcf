#include "cache/snapshot/snapshot_format.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

// The format of a vector, with the one spelling of what can be said in several ways.
QuantFormat canonical(const QuantFormat& format, std::int64_t dim) {
  if (!is_quantized(format.dtype)) return {.dtype = format.dtype};
  QuantFormat result = format;
  if (result.group_size == 0) result.group_size = dim;
  return result;
}

// The number that stands for a format in a file: fixed, whatever DType's own numbers are.
std::int64_t format_number(DType dtype) {
  return std::ranges::find(kFormatDTypes, dtype) - std::begin(kFormatDTypes);
}

}  // namespace

GroupDescription describe(const LayerGroup& group) {
  // Names every member, so that a new one does not compile before it is handled here.
  const auto& [layers, kv_heads, k_dim, v_dim, k_given, v_given, page_tokens, window, sinks, k_is_v,
               rotate_keys] = group;
  const QuantFormat k = canonical(k_given, k_dim);
  const QuantFormat v = k_is_v ? QuantFormat{} : canonical(v_given, v_dim);
  return {layers,
          kv_heads,
          k_dim,
          v_dim,
          format_number(k.dtype),
          k.group_size,
          k.asymmetric ? 1 : 0,
          static_cast<std::int64_t>(k.scale_dtype),
          format_number(v.dtype),
          v.group_size,
          v.asymmetric ? 1 : 0,
          static_cast<std::int64_t>(v.scale_dtype),
          page_tokens,
          window,
          sinks,
          k_is_v ? 1 : 0,
          rotate_keys ? 1 : 0,
          page_bytes(group)};
}

void check_same_layout(const char* what, const Layout& layout,
                       std::span<const GroupDescription> got) {
  const auto refuse = [&](const std::string& field, std::int64_t expected, std::int64_t value) {
    throw InvalidArgument(std::string(what) + ": " + field + ": expected " +
                          std::to_string(expected) + ", got " + std::to_string(value));
  };
  if (got.size() != layout.groups.size()) {
    refuse("groups", std::ssize(layout.groups), std::ssize(got));
  }
  for (std::size_t g = 0; g < got.size(); ++g) {
    const GroupDescription expected = describe(layout.groups[g]);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (got[g][i] == expected[i]) continue;
      refuse("group " + std::to_string(g) + ": " + kGroupFieldNames[i], expected[i], got[g][i]);
    }
  }
}

}  // namespace touchstone::inline v0::cache
