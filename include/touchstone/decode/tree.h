// A tree of tokens that may follow a sequence: drafts to verify, or beams. One arena of nodes in
// topological order, so a parent is always an earlier node and a chain is a tree without branches.
//
//   sequence:  t0 t1 t2          nodes   0: a  (parent -1, depth 1)
//                     \                  1: b  (parent  0, depth 2)
//                      a - b             2: c  (parent  0, depth 2)
//                      | \ c             3: d  (parent -1, depth 1)
//                      d
//
// A node's position is the length of the sequence + depth - 1, whatever its index: siblings share a
// position. A node is verified with the logits of its parent, a root with those of the last token
// of the sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "touchstone/core/export.h"
#include "touchstone/core/language.h"  // IWYU pragma: keep: before everything that needs C++20

namespace touchstone::inline v0::decode {

inline constexpr std::int32_t kNoNode = -1;

struct TreeNode {
  std::int32_t token = 0;
  std::int32_t parent = kNoNode;    // kNoNode: follows the sequence
  std::int32_t depth = 1;           // roots have 1
  std::int32_t source = 0;          // the proposer, by the caller's numbering
  float log_probability = 0;        // of the token after its path, by the proposer
  double path_log_probability = 0;  // the sum from the root to here
  std::int32_t first_child = kNoNode;
  std::int32_t next_sibling = kNoNode;  // in the order of insertion
};

// The fields of a node that the caller of add() sets.
struct NewNode {
  std::int32_t parent = kNoNode;
  std::int32_t token = 0;
  float log_probability = 0;
  std::int32_t source = 0;
};

class TOUCHSTONE_API TokenTree {
 public:
  TokenTree() = default;
  // Nodes by parent, each after its own; parents[i] < i. InvalidArgument, naming the node, for a
  // parent that is not an earlier node, a token outside [0, vocabulary), or more than max_nodes.
  static TokenTree from_parents(std::span<const std::int32_t> tokens,
                                std::span<const std::int32_t> parents, std::int64_t vocabulary,
                                std::int64_t max_nodes);

  // Appends a node and returns its index. InvalidArgument for a parent that does not exist.
  std::int32_t add(const NewNode& node);
  // The same, but an existing child of that parent with that token is returned, unchanged.
  std::int32_t add_or_find(const NewNode& node);
  std::int32_t find_child(std::int32_t parent, std::int32_t token) const;  // or kNoNode
  void clear();
  void reserve(std::int64_t nodes);

  std::int32_t size() const { return static_cast<std::int32_t>(nodes_.size()); }
  bool empty() const { return nodes_.empty(); }
  std::span<const TreeNode> nodes() const { return nodes_; }
  const TreeNode& operator[](std::int32_t node) const {
    return nodes_[static_cast<std::size_t>(node)];
  }
  std::int32_t first_root() const { return first_root_; }  // siblings of roots are roots
  std::int32_t max_depth() const { return max_depth_; }

  // Nodes, and tokens, from the root to `node`; empty for kNoNode. These and find_child() throw
  // InvalidArgument for a node that is not there.
  std::vector<std::int32_t> path(std::int32_t node) const;
  std::vector<std::int32_t> path_tokens(std::int32_t node) const;
  // length + depth - 1 of every node.
  std::vector<std::int64_t> positions(std::int64_t length) const;
  // Words of attention_bits() per node.
  std::int64_t attention_words() const { return (std::int64_t{size()} + 63) / 64; }
  // [size, attention_words]: bit j of node i says that i attends to j: its ancestors and itself.
  // The argument `tree` of cached_attention, for nodes stored in the order of the arena.
  std::vector<std::int64_t> attention_bits() const;

  // Drops every node that is no ancestor of `live` and not in it. Returns the new index of each old
  // node, kNoNode for those that are gone. Order and links are kept. Memory stays bounded by the
  // live nodes.
  std::vector<std::int32_t> compact(std::span<const std::int32_t> live);

 private:
  void link(std::int32_t node);

  std::vector<TreeNode> nodes_;
  std::vector<std::int32_t> last_child_;  // per node, so that appending a child is O(1)
  std::int32_t first_root_ = kNoNode;
  std::int32_t last_root_ = kNoNode;
  std::int32_t max_depth_ = 0;
};

}  // namespace touchstone::inline v0::decode
