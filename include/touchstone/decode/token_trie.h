// A set of token sequences as a trie: what a constrained search may produce, for example the item
// identifiers of a catalog. Immutable; children of a node are sorted by token and stored side by
// side.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "touchstone/core/export.h"
#include "touchstone/core/language.h"  // IWYU pragma: keep: before everything that needs C++20
#include "touchstone/decode/tree.h"

namespace touchstone::inline v0::decode {

class TOUCHSTONE_API TokenTrie {
 public:
  static constexpr std::int32_t kRoot = 0;

  // InvalidArgument, naming the sequence, for one that is empty or has a token outside
  // [0, vocabulary). Repeated sequences count once.
  static TokenTrie from_sequences(std::span<const std::vector<std::int32_t>> sequences,
                                  std::int64_t vocabulary);

  std::int32_t size() const { return static_cast<std::int32_t>(nodes_.size()); }
  // Tokens that may follow a node, ascending.
  std::span<const std::int32_t> tokens(std::int32_t node) const;
  std::int32_t child(std::int32_t node, std::int32_t token) const;  // or kNoNode
  // Whether a sequence of the set ends at the node.
  bool ends(std::int32_t node) const { return nodes_[static_cast<std::size_t>(node)].ends; }
  std::int64_t vocabulary() const { return vocabulary_; }

 private:
  struct Node {
    std::int32_t first_child = 0;  // children are nodes first_child, first_child + 1, ..
    std::int32_t children = 0;
    bool ends = false;
  };
  std::vector<Node> nodes_{Node{}};
  std::vector<std::int32_t> token_of_{0};  // of each node; the root's is not used
  std::int64_t vocabulary_ = 0;
};

}  // namespace touchstone::inline v0::decode
