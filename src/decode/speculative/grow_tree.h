// The likeliest paths from a state that knows what may follow it: of an automaton, of a table of
// contexts.
#pragma once

#include <cmath>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "touchstone/decode/draft.h"

namespace touchstone::inline v0::decode {

template <class State>
struct Successor {
  TokenCandidate candidate{};
  State state{};
};

struct GrowLimits {
  DraftLimits draft{};
  double min_probability = 0;  // of a path
  std::int32_t source = 0;
};

// `follow(state, list)` appends the successors of a state.
template <class State, class Follow>
TokenTree grow_tree(const State& start, const GrowLimits& limits, const Follow& follow) {
  struct Path {
    double log_probability = 0;
    std::int32_t order = 0;
    std::int32_t parent = kNoNode;
    Successor<State> next{};
    bool operator<(const Path& other) const {
      if (log_probability != other.log_probability) return log_probability < other.log_probability;
      return order > other.order;
    }
  };
  const double least = std::log(limits.min_probability);
  TokenTree tree;
  std::priority_queue<Path> open;
  std::vector<Successor<State>> list;
  std::int32_t order = 0;
  const auto push = [&](const State& state, std::int32_t parent) {
    const std::int64_t depth = parent == kNoNode ? 1 : tree[parent].depth + 1;
    if (depth > limits.draft.max_depth) return;
    const double before = parent == kNoNode ? 0 : tree[parent].path_log_probability;
    list.clear();
    follow(state, list);
    for (const Successor<State>& next : list) {
      const double path = before + static_cast<double>(next.candidate.log_probability);
      if (path >= least) open.push({path, order++, parent, next});
    }
  };
  push(start, kNoNode);
  while (!open.empty() && tree.size() < limits.draft.max_nodes) {
    const Path path = open.top();
    open.pop();
    const std::int32_t node = tree.add({.parent = path.parent,
                                        .token = path.next.candidate.token,
                                        .log_probability = path.next.candidate.log_probability,
                                        .source = limits.source});
    push(path.next.state, node);
  }
  return trim_tree(tree, limits.draft);
}

}  // namespace touchstone::inline v0::decode
