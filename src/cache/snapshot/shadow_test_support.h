// A sequence of a cache, as the shadow model of cache_shadow_test.cc has it.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/snapshot/snapshot_test_support.h"
#include "core/index.h"
#include "touchstone/cache/kv_cache.h"

namespace touchstone::inline v0::cache::test {

// A sequence as it should be: what each position holds follows from the tokens up to it.
struct Shadow {
  SequenceId id{};
  std::vector<std::int32_t> tokens{};
  std::vector<std::uint64_t> history{};
  std::int64_t reserved = 0;
  std::int64_t kept_from[2] = {};  // first page after the sinks that the window has not passed

  std::int64_t length() const { return std::ssize(tokens); }
  void push(std::int32_t token) {
    const std::uint64_t before = history.empty() ? 1 : history.back();
    tokens.push_back(token);
    history.push_back(mix(before ^ mix(static_cast<std::uint64_t>(token))));
  }
  void cut(std::int64_t length) {
    tokens.resize(at(length));
    history.resize(at(length));
  }
};

}  // namespace touchstone::inline v0::cache::test
