#include "touchstone/decode/tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode {

namespace {

void check_node(std::int32_t node, std::int32_t size) {
  if (node >= kNoNode && node < size) return;
  throw InvalidArgument(fmt::format("tree: node {} is not one of {} nodes", node, size));
}

}  // namespace

TokenTree TokenTree::from_parents(std::span<const std::int32_t> tokens,
                                  std::span<const std::int32_t> parents, std::int64_t vocabulary,
                                  std::int64_t max_nodes) {
  if (tokens.size() != parents.size()) {
    throw InvalidArgument(fmt::format("tree: parents: expected {} entries, one per token, got {}",
                                      tokens.size(), parents.size()));
  }
  if (static_cast<std::int64_t>(tokens.size()) > max_nodes) {
    throw InvalidArgument(
        fmt::format("tree: {} nodes exceed the budget of {}", tokens.size(), max_nodes));
  }
  TokenTree tree;
  tree.reserve(static_cast<std::int64_t>(tokens.size()));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocabulary) {
      throw InvalidArgument(
          fmt::format("tree: node {}: token {} is outside [0, {})", i, tokens[i], vocabulary));
    }
    // A cycle would need a parent that is not earlier.
    if (parents[i] < kNoNode || parents[i] >= static_cast<std::int32_t>(i)) {
      throw InvalidArgument(fmt::format(
          "tree: node {}: parent {} is not an earlier node and not {}", i, parents[i], kNoNode));
    }
    tree.add({.parent = parents[i], .token = tokens[i]});
  }
  return tree;
}

std::int32_t TokenTree::add(const NewNode& node) {
  if (node.parent < kNoNode || node.parent >= size()) {
    throw InvalidArgument(
        fmt::format("tree: parent {} is not one of {} nodes", node.parent, nodes_.size()));
  }
  if (nodes_.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw InvalidArgument("tree: more than 2^31 - 1 nodes");
  }
  const bool root = node.parent == kNoNode;
  nodes_.push_back(
      {.token = node.token,
       .parent = node.parent,
       .depth = root ? 1 : (*this)[node.parent].depth + 1,
       .source = node.source,
       .log_probability = node.log_probability,
       .path_log_probability = static_cast<double>(node.log_probability) +
                               (root ? 0 : (*this)[node.parent].path_log_probability)});
  last_child_.push_back(kNoNode);
  link(size() - 1);
  return size() - 1;
}

void TokenTree::link(std::int32_t node) {
  const std::int32_t parent = (*this)[node].parent;
  const auto at = [&](std::int32_t i) -> TreeNode& { return nodes_[static_cast<std::size_t>(i)]; };
  std::int32_t& first = parent == kNoNode ? first_root_ : at(parent).first_child;
  std::int32_t& last =
      parent == kNoNode ? last_root_ : last_child_[static_cast<std::size_t>(parent)];
  if (first == kNoNode) {
    first = node;
  } else {
    at(last).next_sibling = node;
  }
  last = node;
  max_depth_ = std::max(max_depth_, at(node).depth);
}

std::int32_t TokenTree::find_child(std::int32_t parent, std::int32_t token) const {
  check_node(parent, size());
  std::int32_t child = parent == kNoNode ? first_root_ : (*this)[parent].first_child;
  while (child != kNoNode && (*this)[child].token != token) child = (*this)[child].next_sibling;
  return child;
}

std::int32_t TokenTree::add_or_find(const NewNode& node) {
  const bool known_parent = node.parent >= kNoNode && node.parent < size();
  const std::int32_t found = known_parent ? find_child(node.parent, node.token) : kNoNode;
  return found == kNoNode ? add(node) : found;
}

void TokenTree::clear() { *this = TokenTree(); }

void TokenTree::reserve(std::int64_t nodes) {
  nodes_.reserve(static_cast<std::size_t>(nodes));
  last_child_.reserve(static_cast<std::size_t>(nodes));
}

std::vector<std::int32_t> TokenTree::path(std::int32_t node) const {
  check_node(node, size());
  std::vector<std::int32_t> result;
  for (; node != kNoNode; node = (*this)[node].parent) result.push_back(node);
  std::ranges::reverse(result);
  return result;
}

std::vector<std::int32_t> TokenTree::path_tokens(std::int32_t node) const {
  std::vector<std::int32_t> result = path(node);
  for (std::int32_t& entry : result) entry = (*this)[entry].token;
  return result;
}

std::vector<std::int64_t> TokenTree::positions(std::int64_t length) const {
  std::vector<std::int64_t> result;
  result.reserve(nodes_.size());
  for (const TreeNode& node : nodes_) result.push_back(length + node.depth - 1);
  return result;
}

std::vector<std::int64_t> TokenTree::attention_bits() const {
  const auto words = static_cast<std::size_t>(attention_words());
  std::vector<std::int64_t> bits(nodes_.size() * words, 0);
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    std::int64_t* const own = bits.data() + i * words;
    if (nodes_[i].parent != kNoNode) {
      const auto parent = static_cast<std::size_t>(nodes_[i].parent);
      std::copy_n(bits.data() + parent * words, words, own);
    }
    own[i / 64] |= static_cast<std::int64_t>(std::uint64_t{1} << (i % 64));
  }
  return bits;
}

std::vector<std::int32_t> TokenTree::compact(std::span<const std::int32_t> live) {
  std::vector<std::int32_t> moved(nodes_.size(), kNoNode);
  for (std::int32_t node : live) {
    if (node < 0 || node >= size()) {
      throw InvalidArgument(
          fmt::format("tree: live node {} is not one of {} nodes", node, nodes_.size()));
    }
  }
  for (std::int32_t node : live) {
    for (; node != kNoNode && moved[static_cast<std::size_t>(node)] == kNoNode;
         node = (*this)[node].parent) {
      moved[static_cast<std::size_t>(node)] = 0;  // marked
    }
  }
  TokenTree kept;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (moved[i] == kNoNode) continue;
    const TreeNode& old = nodes_[i];
    moved[i] = kept.add(
        {.parent = old.parent == kNoNode ? kNoNode : moved[static_cast<std::size_t>(old.parent)],
         .token = old.token,
         .log_probability = old.log_probability,
         .source = old.source});
  }
  *this = std::move(kept);
  return moved;
}

}  // namespace touchstone::inline v0::decode
