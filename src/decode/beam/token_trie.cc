#include "touchstone/decode/token_trie.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode {

namespace {

void check_sequence(const std::vector<std::int32_t>& sequence, std::size_t index,
                    std::int64_t vocabulary) {
  if (sequence.empty()) {
    throw InvalidArgument(fmt::format("trie: sequence {}: expected at least one token", index));
  }
  for (const std::int32_t token : sequence) {
    if (token < 0 || token >= vocabulary) {
      throw InvalidArgument(fmt::format("trie: sequence {}: expected a token in [0, {}), got {}",
                                        index, vocabulary, token));
    }
  }
}

// Sorted sequences that share their first `depth` tokens, those of `node`.
struct Range {
  std::size_t begin;
  std::size_t end;
  std::size_t depth;
  std::int32_t node;
};

}  // namespace

TokenTrie TokenTrie::from_sequences(std::span<const std::vector<std::int32_t>> sequences,
                                    std::int64_t vocabulary) {
  std::vector<const std::vector<std::int32_t>*> sorted;
  sorted.reserve(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    check_sequence(sequences[i], i, vocabulary);
    sorted.push_back(&sequences[i]);
  }
  std::ranges::sort(sorted, [](const auto* a, const auto* b) { return *a < *b; });
  TokenTrie trie;
  trie.vocabulary_ = vocabulary;
  // Breadth first, so that the children of a node are neighbors.
  std::deque<Range> open{{0, sorted.size(), 0, kRoot}};
  for (; !open.empty(); open.pop_front()) {
    Range range = open.front();
    while (range.begin < range.end && sorted[range.begin]->size() == range.depth) {
      trie.nodes_[static_cast<std::size_t>(range.node)].ends = true;
      ++range.begin;
    }
    const std::int32_t first = trie.size();
    for (std::size_t i = range.begin; i < range.end;) {
      const std::int32_t token = (*sorted[i])[range.depth];
      std::size_t end = i;
      while (end < range.end && (*sorted[end])[range.depth] == token) ++end;
      if (trie.nodes_.size() >= std::size_t{std::numeric_limits<std::int32_t>::max()}) {
        throw InvalidArgument("trie: more than 2^31 - 1 nodes");
      }
      open.push_back({i, end, range.depth + 1, trie.size()});
      trie.nodes_.push_back({});
      trie.token_of_.push_back(token);
      i = end;
    }
    Node& node = trie.nodes_[static_cast<std::size_t>(range.node)];
    node.first_child = first;
    node.children = trie.size() - first;
  }
  return trie;
}

std::span<const std::int32_t> TokenTrie::tokens(std::int32_t node) const {
  const Node& n = nodes_[static_cast<std::size_t>(node)];
  return std::span(token_of_).subspan(static_cast<std::size_t>(n.first_child),
                                      static_cast<std::size_t>(n.children));
}

std::int32_t TokenTrie::child(std::int32_t node, std::int32_t token) const {
  const std::span<const std::int32_t> list = tokens(node);
  const auto found = std::ranges::lower_bound(list, token);
  if (found == list.end() || *found != token) return kNoNode;
  return nodes_[static_cast<std::size_t>(node)].first_child +
         static_cast<std::int32_t>(found - list.begin());
}

}  // namespace touchstone::inline v0::decode
