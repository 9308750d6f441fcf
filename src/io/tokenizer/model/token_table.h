// A vocabulary: texts of tokens and their ids, both ways.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace touchstone::inline v0::io {

using TokenId = std::uint32_t;
inline constexpr TokenId kNoToken = 0xffffffffU;

inline std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline std::uint64_t hash_of(std::string_view text) {
  constexpr std::uint64_t kA = 0x9e3779b97f4a7c15U;
  constexpr std::uint64_t kB = 0xd6e8feb86659fd93U;
  std::uint64_t hash = kA ^ text.size();
  const char* p = text.data();
  std::size_t left = text.size();
  for (; left >= 8; p += 8, left -= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, p, 8);
    hash = mixed(hash ^ word, kB);
  }
  std::uint64_t word = 0;
  if (left != 0) std::memcpy(&word, p, left);
  return mixed(hash ^ word, kA);
}

class TokenTable {
 public:
  // Ids below `id_limit` only, so that a small file cannot cause a large allocation.
  explicit TokenTable(std::size_t tokens = 0, std::size_t id_limit = 0);

  // False, and nothing added, when the id is at or above the limit, or is taken.
  bool add(std::string_view token, TokenId id);

  // Of a token that was added twice, the id that came last. kNoToken when it is not there.
  TokenId find(std::string_view token) const;
  std::optional<std::string_view> text(TokenId id) const;

  std::size_t size() const { return entries_.size(); }
  std::size_t distinct() const { return distinct_; }
  std::size_t id_end() const { return by_id_.size(); }  // one more than the largest id
  std::size_t longest() const { return longest_; }

 private:
  struct Entry {
    std::size_t begin;
    std::uint32_t length;
    TokenId id;
  };
  void grow();
  std::string_view text_of(const Entry& entry) const {
    return std::string_view(text_).substr(entry.begin, entry.length);
  }

  std::size_t id_limit_;
  std::string text_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> slots_;  // entry + 1; 0 = free
  std::vector<std::uint32_t> by_id_;  // entry + 1; 0 = no such token
  std::size_t longest_ = 0;
  std::size_t distinct_ = 0;
};

// Pairs of tokens and what they merge into.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank;
    TokenId merged;
  };
  static constexpr std::uint32_t kNoRank = 0xffffffffU;

  explicit MergeTable(std::size_t pairs = 0);
  void set(TokenId left, TokenId right, Merge merge);  // replaces
  Merge find(TokenId left, TokenId right) const {
    const std::uint64_t key = std::uint64_t{left} << 32 | right;
    std::size_t at = slot_of(key);
    while (true) {
      const Slot& slot = slots_[at];
      if (slot.key == key) return slot.merge;
      if (slot.key == kFree) return {kNoRank, kNoToken};
      at = (at + 1) & mask_;
    }
  }
  std::size_t size() const { return size_; }
  // Calls body(left, right) for every pair.
  template <class Body>
  void for_each(Body&& body) const {
    for (const Slot& slot : slots_) {
      if (slot.key == kFree) continue;
      body(static_cast<TokenId>(slot.key >> 32), static_cast<TokenId>(slot.key));
    }
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kFree;
    Merge merge{kNoRank, kNoToken};
  };
  std::size_t slot_of(std::uint64_t key) const {
    return static_cast<std::size_t>(mixed(key, 0x9e3779b97f4a7c15U)) & mask_;
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  std::size_t size_ = 0;
};

// Texts by their beginnings.
class Trie {
 public:
  static constexpr std::uint32_t kRoot = 0;
  static constexpr std::uint32_t kNone = 0xffffffffU;
  // Of one text. Searches follow it from every position of what they look through, so that a long one
  // would make them quadratic.
  static constexpr std::size_t kMaxBytes = 1024;

  Trie();
  // The value of a text that is added twice is the one that came last. Unsupported for a longer one.
  void add(std::string_view text, std::uint32_t value);
  // The node behind `node` by one byte; kNone when there is none.
  std::uint32_t step(std::uint32_t node, char byte) const {
    const std::uint64_t key = key_of(node, byte);
    std::size_t at = static_cast<std::size_t>(mixed(key, 0x9e3779b97f4a7c15U)) & mask_;
    while (true) {
      const Slot& slot = slots_[at];
      if (slot.key == key) return slot.node;
      if (slot.key == 0) return kNone;
      at = (at + 1) & mask_;
    }
  }
  std::uint32_t value(std::uint32_t node) const {
    return values_[node];
  }  // kNone: no text ends here

 private:
  struct Slot {
    std::uint64_t key = 0;
    std::uint32_t node = 0;
  };
  static std::uint64_t key_of(std::uint32_t node, char byte) {
    return (std::uint64_t{node} << 8 | static_cast<unsigned char>(byte)) + 1;
  }
  void grow();

  std::vector<Slot> slots_;
  std::size_t mask_;
  std::vector<std::uint32_t> values_;
};

}  // namespace touchstone::inline v0::io
