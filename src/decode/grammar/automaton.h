// A grammar as one nondeterministic automaton per rule, over bytes and calls of rules.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <vector>

#include "decode/grammar/syntax.h"

namespace touchstone::inline v0::decode::grammar {

using ByteSet = std::bitset<256>;

struct AutomatonNode {
  enum class Kind : std::uint8_t {
    accept,  // the end of the rule
    bytes,   // one byte of a set, then `next`
    split,   // `next` or `other`
    call,    // the rule `other`, then `next`
  };
  Kind kind = Kind::accept;
  std::int32_t next = -1;
  std::int32_t other = -1;
  std::int32_t set = -1;  // bytes: index into sets()
};

// The nodes that a node reaches without a byte, through calls of rules that may be empty too.
struct NodeClosure {
  std::vector<std::int32_t> leaves;                          // nodes of kind bytes
  std::vector<std::pair<std::int32_t, std::int32_t>> calls;  // rule, node behind it
  bool accepts = false;
};

class Automaton {
 public:
  // GrammarError for left recursion, rules that never end, more nodes than the limit.
  Automaton(const Syntax& syntax, const GrammarLimits& limits);

  const GrammarLimits& limits() const { return limits_; }
  std::int32_t size() const { return static_cast<std::int32_t>(nodes_.size()); }
  const AutomatonNode& node(std::int32_t id) const { return nodes_[static_cast<std::size_t>(id)]; }
  bool accepts_byte(std::int32_t leaf, std::uint8_t byte_class) const {
    return class_sets_[static_cast<std::size_t>(node(leaf).set)][byte_class];
  }
  std::int32_t start_of(std::int32_t rule) const { return starts_[static_cast<std::size_t>(rule)]; }
  std::int32_t root() const { return root_; }

  // Bytes that are in the same sets are one class.
  std::uint8_t class_of(std::uint8_t byte) const { return classes_[byte]; }
  std::int32_t class_count() const { return class_count_; }

  // Adds the closure of `node` to `out`; `seen` has one stamp per node.
  void close(std::int32_t node, std::vector<std::uint32_t>& seen, std::uint32_t stamp,
             NodeClosure& out) const;
  // Whether the node reaches the end of its rule and nothing else.
  bool only_accepts(std::int32_t node) const {
    return nodes_[static_cast<std::size_t>(node)].kind == AutomatonNode::Kind::accept;
  }

 private:
  friend class AutomatonBuilder;
  void make_classes();
  void check_left_recursion(const Syntax& syntax) const;

  GrammarLimits limits_;
  std::vector<AutomatonNode> nodes_;
  std::vector<ByteSet> sets_;
  std::vector<ByteSet> class_sets_;  // the same in classes
  std::vector<std::int32_t> starts_;
  std::vector<bool> nullable_;
  std::int32_t root_ = -1;
  std::array<std::uint8_t, 256> classes_{};
  std::int32_t class_count_ = 0;
};

// The UTF-8 of the code points as sequences of byte sets, tails shared.
struct ByteSequence {
  std::vector<ByteSet> sets;
};
std::vector<ByteSequence> utf8_sequences(const std::vector<CodeRange>& ranges);

}  // namespace touchstone::inline v0::decode::grammar
