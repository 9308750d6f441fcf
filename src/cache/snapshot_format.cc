#include "cache/snapshot_format.h"

#include <string>

#include "touchstone/core/error.h"

namespace touchstone::cache {
namespace {

// The format of a vector, with the one spelling of what can be said in several ways.
Format canonical(const Format& format, std::int64_t dim) {
  if (!is_quantized(format.encoding)) return {.encoding = format.encoding};
  Format result = format;
  if (result.group == 0) result.group = dim;
  return result;
}

}  // namespace

GroupDescription describe(const LayerGroup& group) {
  // Names every member: a new one does not compile before somebody decides about it here.
  const auto& [layers, kv_heads, k_dim, v_dim, k_given, v_given, page_tokens, window, sinks, k_is_v,
               rotate_keys] = group;
  const Format k = canonical(k_given, k_dim);
  const Format v = k_is_v ? Format{} : canonical(v_given, v_dim);
  return {layers,
          kv_heads,
          k_dim,
          v_dim,
          static_cast<std::int64_t>(k.encoding),
          k.group,
          k.asymmetric ? 1 : 0,
          static_cast<std::int64_t>(k.scale),
          static_cast<std::int64_t>(v.encoding),
          v.group,
          v.asymmetric ? 1 : 0,
          static_cast<std::int64_t>(v.scale),
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

}  // namespace touchstone::cache
