// Words that were encoded before, and their ids. One cache belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "io/tokenizer/model/token_table.h"

namespace touchstone::inline v0::io {

class WordCache {
 public:
  // A word of at most kMaxBytes is its own key: its bytes, and their number in the last byte.
  static constexpr std::size_t kMaxBytes = 15;
  struct Key {
    std::uint64_t low = 0;
    std::uint64_t high = 0;  // never 0 for a word
  };
  // `end`: of the memory that may be read, at or behind the end of the word.
  static Key key_of(const char* word, std::size_t bytes, const char* end) {
    Key key;
    if (end - word >= 16) {
      std::memcpy(&key, word, 16);
      if (bytes < 8) {
        key.low &= (std::uint64_t{1} << 8 * bytes) - 1;
        key.high = 0;
      } else {
        key.high &= (std::uint64_t{1} << 8 * (bytes - 8)) - 1;
      }
    } else {
      std::memcpy(&key, word, bytes);
    }
    key.high |= static_cast<std::uint64_t>(bytes) << 56;
    return key;
  }

  // Appends the ids of the word; false when it is not in the cache.
  bool find(const Key& key, std::vector<TokenId>& out) const {
    std::size_t at = slot_of(key);
    while (true) {
      const Slot& slot = slots_[at];
      if (slot.key.low == key.low && slot.key.high == key.high) {
        if (slot.count == 1) {
          out.push_back(slot.first);
        } else {
          const TokenId* ids = more_.data() + slot.first;
          out.insert(out.end(), ids, ids + slot.count);
        }
        return true;
      }
      if (slot.key.high == 0) return false;
      at = (at + 1) & mask_;
    }
  }

  void add(const Key& key, std::span<const TokenId> ids) {
    if (2 * used_ >= slots_.size()) grow();
    Slot slot{key, static_cast<std::uint32_t>(ids.size()), 0};
    if (ids.size() == 1) {
      slot.first = ids[0];
    } else {
      slot.first = static_cast<TokenId>(more_.size());
      more_.insert(more_.end(), ids.begin(), ids.end());
    }
    put(slot);
    ++used_;
  }

 private:
  struct Slot {
    Key key;
    std::uint32_t count = 0;
    TokenId first = 0;  // the one id, or where several begin in more_
  };
  static constexpr std::size_t kMinSlots = std::size_t{1} << 12;
  static constexpr std::size_t kMaxSlots = std::size_t{1} << 18;  // 6 MB

  std::size_t slot_of(const Key& key) const {
    return static_cast<std::size_t>(
               mixed(key.low ^ 0x9e3779b97f4a7c15U, key.high ^ 0xd6e8feb86659fd93U)) &
           mask_;
  }
  void put(const Slot& slot) {
    std::size_t at = slot_of(slot.key);
    while (slots_[at].key.high != 0) at = (at + 1) & mask_;
    slots_[at] = slot;
  }
  // Twice as many slots, or, where that would be too many, none of the words.
  void grow() {
    std::vector<Slot> old(slots_.size() == kMaxSlots ? kMinSlots : 2 * slots_.size());
    const bool keep = old.size() > slots_.size();
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    if (!keep) {
      more_.clear();
      used_ = 0;
      return;
    }
    for (const Slot& slot : old) {
      if (slot.key.high != 0) put(slot);
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(kMinSlots);
  std::size_t mask_ = kMinSlots - 1;
  std::size_t used_ = 0;
  std::vector<TokenId> more_;
};

}  // namespace touchstone::inline v0::io
