#include "touchstone/decode/draft.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>

#include "core/index.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode {
namespace {

// A node that may be taken next: the likeliest first, then the one that was found first.
struct Open {
  double log_probability = 0;
  std::int32_t order = 0;
  std::int32_t node = 0;

  bool operator<(const Open& other) const {
    if (log_probability != other.log_probability) return log_probability < other.log_probability;
    return order > other.order;
  }
};

// Depth first, the child with the likeliest path first. `taken` lists nodes by path probability.
TokenTree likeliest_path_first(const TokenTree& tree, std::span<const std::int32_t> taken) {
  std::vector<std::vector<std::int32_t>> children(at(tree.size()) + 1);  // [0] the roots
  for (const std::int32_t node : taken) children[at(tree[node].parent + 1)].push_back(node);
  TokenTree result;
  result.reserve(std::ssize(taken));
  std::vector<std::pair<std::int32_t, std::int32_t>> stack;  // old node, new parent
  const auto push_children = [&](std::int32_t old, std::int32_t parent) {
    const auto& list = children[at(old + 1)];
    for (auto child = list.rbegin(); child != list.rend(); ++child) {
      stack.emplace_back(*child, parent);
    }
  };
  push_children(kNoNode, kNoNode);
  while (!stack.empty()) {
    const auto [old, parent] = stack.back();
    stack.pop_back();
    const TreeNode& node = tree[old];
    push_children(old, result.add({.parent = parent,
                                   .token = node.token,
                                   .log_probability = node.log_probability,
                                   .source = node.source}));
  }
  return result;
}

std::vector<std::int32_t> taken_nodes(const TokenTree& tree, const DraftLimits& limits) {
  std::vector<std::int32_t> taken;
  std::priority_queue<Open> open;
  const auto push = [&](std::int32_t first) {
    for (std::int32_t node = first; node != kNoNode; node = tree[node].next_sibling) {
      if (tree[node].depth <= limits.max_depth) {
        open.push({tree[node].path_log_probability, node, node});
      }
    }
  };
  push(tree.first_root());
  while (!open.empty() && std::ssize(taken) < limits.max_nodes) {
    const std::int32_t node = open.top().node;
    open.pop();
    taken.push_back(node);
    push(tree[node].first_child);
  }
  return taken;
}

}  // namespace

double TokenDistribution::probability(std::int32_t token) const {
  const auto found = std::ranges::lower_bound(tokens, token);
  if (found == tokens.end() || *found != token) return 0;
  return probabilities[at(found - tokens.begin())];
}

void check_draft(const Draft& draft, std::int64_t vocabulary, const DraftLimits& limits) {
  const TokenTree& tree = draft.tree;
  if (tree.size() > limits.max_nodes) {
    throw InvalidArgument(
        fmt::format("draft: {} nodes exceed the budget of {}", tree.size(), limits.max_nodes));
  }
  for (std::int32_t i = 0; i < tree.size(); ++i) {
    const TreeNode& node = tree[i];
    if (node.token < 0 || node.token >= vocabulary) {
      throw InvalidArgument(
          fmt::format("draft: node {}: token {} is outside [0, {})", i, node.token, vocabulary));
    }
    if (node.parent < kNoNode || node.parent >= i) {
      throw InvalidArgument(
          fmt::format("draft: node {}: parent {} is not an earlier node", i, node.parent));
    }
    if (node.depth > limits.max_depth) {
      throw InvalidArgument(fmt::format("draft: node {}: depth {} exceeds the limit of {}", i,
                                        node.depth, limits.max_depth));
    }
    if (!(node.log_probability <= 0)) {
      throw InvalidArgument(
          fmt::format("draft: node {}: expected a log-probability of at most 0, got {}", i,
                      node.log_probability));
    }
  }
  const std::size_t places = at(tree.size()) + 1;
  if (!draft.proposals.empty() && draft.proposals.size() != places) {
    throw InvalidArgument(fmt::format("draft: proposals: expected none or {}, got {}", places,
                                      draft.proposals.size()));
  }
  const std::size_t words = places * at((vocabulary + 31) / 32);
  if (!draft.token_masks.empty() && draft.token_masks.size() != words) {
    throw InvalidArgument(fmt::format("draft: token_masks: expected none or {} words, got {}",
                                      words, draft.token_masks.size()));
  }
}

std::vector<std::int32_t> likeliest_nodes(const TokenTree& tree) { return taken_nodes(tree, {}); }

TokenTree trim_tree(const TokenTree& tree, const DraftLimits& limits) {
  return likeliest_path_first(tree, taken_nodes(tree, limits));
}

bool is_drawn(const Draft& draft) {
  return std::ranges::any_of(draft.proposals,
                             [](const Proposal& p) { return p.kind != ProposalKind::chosen; });
}

void cut_draft(Draft& draft, std::int64_t max_nodes, std::int64_t vocabulary) {
  const TokenTree& tree = draft.tree;
  if (is_drawn(draft)) throw InvalidArgument("draft: a draft that was drawn cannot be cut");
  std::vector<std::int32_t> taken = taken_nodes(tree, {.max_nodes = max_nodes});
  std::ranges::sort(taken);
  Draft kept;
  const std::size_t words = at((vocabulary + 31) / 32);
  const auto copy_place = [&](std::int32_t node) {
    if (!draft.proposals.empty()) kept.proposals.push_back(draft.proposals[at(node + 1)]);
    if (draft.token_masks.empty()) return;
    const auto from = std::span(draft.token_masks).subspan(at(node + 1) * words, words);
    kept.token_masks.insert(kept.token_masks.end(), from.begin(), from.end());
  };
  copy_place(kNoNode);
  std::vector<std::int32_t> moved(at(tree.size()), kNoNode);
  for (const std::int32_t node : taken) {
    moved[at(node)] = kept.tree.add(
        {.parent = tree[node].parent == kNoNode ? kNoNode : moved[at(tree[node].parent)],
         .token = tree[node].token,
         .log_probability = tree[node].log_probability,
         .source = tree[node].source});
    copy_place(node);
  }
  draft = std::move(kept);
}

TokenTree chain_tree(const ChainArgs& args, const DraftLimits& limits) {
  if (!args.log_probabilities.empty() && args.log_probabilities.size() != args.tokens.size()) {
    throw InvalidArgument(
        fmt::format("draft: log_probabilities: expected none or {}, one per token, got {}",
                    args.tokens.size(), args.log_probabilities.size()));
  }
  TokenTree tree;
  const std::int64_t length =
      std::min({std::ssize(args.tokens), limits.max_nodes, limits.max_depth});
  for (std::int64_t i = 0; i < length; ++i) {
    tree.add({.parent = static_cast<std::int32_t>(i) - 1,
              .token = args.tokens[at(i)],
              .log_probability = args.log_probabilities.empty() ? 0 : args.log_probabilities[at(i)],
              .source = args.source});
  }
  return tree;
}

TokenTree best_first_tree(std::span<const std::vector<TokenCandidate>> positions,
                          const DraftLimits& limits, std::int32_t source) {
  std::vector<std::vector<TokenCandidate>> sorted(positions.begin(), positions.end());
  for (auto& candidates : sorted) {
    std::ranges::stable_sort(candidates, [](const TokenCandidate& a, const TokenCandidate& b) {
      return a.log_probability > b.log_probability;
    });
  }
  // A path is opened when its parent or its better sibling is taken: what the budget leaves out is
  // never built, whatever the width of the positions.
  struct Path {
    double log_probability = 0;
    std::int32_t order = 0;
    std::int32_t parent = kNoNode;
    std::int64_t depth = 1;
    std::size_t rank = 0;

    bool operator<(const Path& other) const {
      if (log_probability != other.log_probability) return log_probability < other.log_probability;
      return order > other.order;
    }
  };
  TokenTree tree;
  std::priority_queue<Path> open;
  std::int32_t order = 0;
  const auto push = [&](std::int32_t parent, std::int64_t depth, std::size_t rank) {
    if (depth > limits.max_depth || depth > std::ssize(sorted)) return;
    const auto& candidates = sorted[at(depth - 1)];
    if (rank >= candidates.size()) return;
    const double before = parent == kNoNode ? 0 : tree[parent].path_log_probability;
    open.push({before + static_cast<double>(candidates[rank].log_probability), order++, parent,
               depth, rank});
  };
  push(kNoNode, 1, 0);
  while (!open.empty() && tree.size() < limits.max_nodes) {
    const Path path = open.top();
    open.pop();
    const TokenCandidate& candidate = sorted[at(path.depth - 1)][path.rank];
    const std::int32_t node = tree.add({.parent = path.parent,
                                        .token = candidate.token,
                                        .log_probability = candidate.log_probability,
                                        .source = source});
    push(path.parent, path.depth, path.rank + 1);
    push(node, path.depth + 1, 0);
  }
  return trim_tree(tree, limits);
}

TokenTree beam_tree(const BeamTreeArgs& args, const ExpandNodes& expand,
                    const DraftLimits& limits) {
  TokenTree tree;
  if (limits.max_nodes < 1) return tree;
  std::vector<std::int32_t> level = {kNoNode};
  for (std::int64_t depth = 1; depth <= limits.max_depth && !level.empty(); ++depth) {
    const std::vector<std::vector<TokenCandidate>> found = expand(tree, level);
    if (found.size() != level.size()) {
      throw InvalidArgument(fmt::format("draft: expand: expected candidates of {} nodes, got {}",
                                        level.size(), found.size()));
    }
    std::vector<std::int32_t> next;
    for (std::size_t i = 0; i < level.size(); ++i) {
      std::vector<TokenCandidate> best = found[i];
      std::ranges::stable_sort(best, [](const TokenCandidate& a, const TokenCandidate& b) {
        return a.log_probability > b.log_probability;
      });
      best.resize(std::min(best.size(), at(std::max<std::int64_t>(args.branch, 0))));
      for (const TokenCandidate& candidate : best) {
        next.push_back(tree.add({.parent = level[i],
                                 .token = candidate.token,
                                 .log_probability = candidate.log_probability,
                                 .source = args.source}));
      }
    }
    std::ranges::stable_sort(next, [&](std::int32_t a, std::int32_t b) {
      return tree[a].path_log_probability > tree[b].path_log_probability;
    });
    next.resize(std::min(next.size(), at(std::max<std::int64_t>(args.width, 0))));
    // What could not enter the budget even alone has no children in it either.
    if (tree.size() >= limits.max_nodes && !next.empty()) {
      std::vector<double> paths;
      for (const TreeNode& node : tree.nodes()) paths.push_back(node.path_log_probability);
      std::ranges::nth_element(paths, paths.begin() + (limits.max_nodes - 1), std::greater<>());
      const double worst = paths[at(limits.max_nodes - 1)];
      std::erase_if(next, [&](std::int32_t n) { return tree[n].path_log_probability < worst; });
    }
    level = std::move(next);
  }
  return trim_tree(tree, limits);
}

TokenTree merge_trees(std::span<const TokenTree* const> trees, const DraftLimits& limits) {
  TokenTree merged;
  // Of two sources with the same path the likelier one names it: the trees are walked side by side,
  // so a node is added with the best of its log-probabilities.
  struct Level {
    std::vector<std::pair<const TokenTree*, std::int32_t>> members;  // tree, first child
    std::int32_t parent = kNoNode;
  };
  std::vector<Level> levels(1);
  for (const TokenTree* tree : trees) levels[0].members.emplace_back(tree, tree->first_root());
  while (!levels.empty()) {
    const Level level = std::move(levels.back());
    levels.pop_back();
    std::vector<std::pair<NewNode, Level>> children;
    for (const auto& [tree, first] : level.members) {
      for (std::int32_t node = first; node != kNoNode; node = (*tree)[node].next_sibling) {
        const TreeNode& from = (*tree)[node];
        auto found = std::ranges::find_if(
            children, [&](const auto& child) { return child.first.token == from.token; });
        if (found == children.end()) {
          children.push_back({{.parent = level.parent,
                               .token = from.token,
                               .log_probability = from.log_probability,
                               .source = from.source},
                              {}});
          found = std::prev(children.end());
        } else if (from.log_probability > found->first.log_probability) {
          found->first.log_probability = from.log_probability;
          found->first.source = from.source;
        }
        if (from.first_child != kNoNode) found->second.members.emplace_back(tree, from.first_child);
      }
    }
    for (auto& [node, below] : children) {
      below.parent = merged.add(node);
      if (!below.members.empty()) levels.push_back(std::move(below));
    }
  }
  return trim_tree(merged, limits);
}

}  // namespace touchstone::inline v0::decode
