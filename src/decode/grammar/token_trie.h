// The tokens of a vocabulary as a trie, in the order of a walk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace touchstone::inline v0::decode::grammar {

class TokenTrie {
 public:
  // Nodes in preorder: the children of a node follow it, and `end` is the node behind all of them.
  // A node is the bytes from the root to it.
  struct Node {
    std::uint8_t byte = 0;
    std::int32_t depth = 0;  // bytes
    std::int32_t end = 0;
    std::int32_t token = -1;  // index into tokens() of the first that ends here; -1: none
  };

  // As GrammarVocabulary.
  TokenTrie(std::span<const std::string> bytes, std::span<const std::int32_t> end_tokens);

  std::span<const Node> nodes() const { return nodes_; }  // without the root
  std::int32_t max_depth() const { return max_depth_; }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size()); }
  std::size_t words() const { return (bytes_.size() + 31) / 32; }
  const std::string& bytes(std::int32_t token) const {
    return bytes_[static_cast<std::size_t>(token)];
  }
  std::span<const std::int32_t> end_tokens() const { return end_tokens_; }
  bool is_end(std::int32_t token) const { return ends_[static_cast<std::size_t>(token)]; }

  // Sets the bits of the tokens that end at a node.
  void set_bits(const Node& node, std::span<std::int32_t> mask) const {
    for (std::int32_t i = node.token; i >= 0; i = same_[static_cast<std::size_t>(i)]) {
      set_bit(i, mask);
    }
  }
  static void set_bit(std::int32_t token, std::span<std::int32_t> mask) {
    const auto bit = static_cast<std::uint32_t>(token);
    auto& word = mask[bit / 32];
    word = static_cast<std::int32_t>(static_cast<std::uint32_t>(word) | 1U << (bit % 32));
  }

 private:
  std::vector<std::string> bytes_;
  std::vector<std::int32_t> end_tokens_;
  std::vector<bool> ends_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> same_;  // the next token with the same bytes; -1: none
  std::int32_t max_depth_ = 0;
};

}  // namespace touchstone::inline v0::decode::grammar
