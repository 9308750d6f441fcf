#include "io/tokenizer/model/token_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {

TokenTable::TokenTable(std::size_t tokens, std::size_t id_limit)
    : id_limit_(id_limit), slots_(std::bit_ceil(2 * tokens + 2)) {
  entries_.reserve(tokens);
}

bool TokenTable::add(std::string_view token, TokenId id) {
  if (id >= id_limit_) return false;
  if (id >= by_id_.size()) by_id_.resize(std::size_t{id} + 1);
  if (by_id_[id] != 0) return false;
  if (2 * entries_.size() >= slots_.size()) grow();
  entries_.push_back({text_.size(), static_cast<std::uint32_t>(token.size()), id});
  text_ += token;
  longest_ = std::max(longest_, token.size());
  const auto entry = static_cast<std::uint32_t>(entries_.size());
  by_id_[id] = entry;
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash_of(token) & mask;
  while (slots_[at] != 0 && text_of(entries_[slots_[at] - 1]) != token) at = (at + 1) & mask;
  if (slots_[at] == 0) ++distinct_;
  slots_[at] = entry;
  return true;
}

void TokenTable::grow() {
  std::vector<std::uint32_t> slots(2 * slots_.size());
  const std::size_t mask = slots.size() - 1;
  for (const std::uint32_t entry : slots_) {
    if (entry == 0) continue;
    std::size_t at = hash_of(text_of(entries_[entry - 1])) & mask;
    while (slots[at] != 0) at = (at + 1) & mask;
    slots[at] = entry;
  }
  slots_ = std::move(slots);
}

TokenId TokenTable::find(std::string_view token) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash_of(token) & mask;
  while (slots_[at] != 0) {
    const Entry& entry = entries_[slots_[at] - 1];
    if (text_of(entry) == token) return entry.id;
    at = (at + 1) & mask;
  }
  return kNoToken;
}

std::optional<std::string_view> TokenTable::text(TokenId id) const {
  if (id >= by_id_.size() || by_id_[id] == 0) return std::nullopt;
  return text_of(entries_[by_id_[id] - 1]);
}

MergeTable::MergeTable(std::size_t pairs)
    : slots_(std::bit_ceil(2 * pairs + 2)), mask_(slots_.size() - 1) {}

void MergeTable::set(TokenId left, TokenId right, Merge merge) {
  const std::uint64_t key = std::uint64_t{left} << 32 | right;
  std::size_t at = slot_of(key);
  while (slots_[at].key != key && slots_[at].key != kFree) at = (at + 1) & mask_;
  if (slots_[at].key == kFree) ++size_;
  slots_[at] = {key, merge};
}

Trie::Trie() : slots_(64), mask_(63), values_{kNone} {}

void Trie::add(std::string_view text, std::uint32_t value) {
  if (text.size() > kMaxBytes) {
    throw Unsupported(
        fmt::format("tokenizer: a token of {} bytes, at most {}", text.size(), kMaxBytes));
  }
  std::uint32_t node = kRoot;
  for (const char byte : text) {
    std::uint32_t next = step(node, byte);
    if (next == kNone) {
      if (2 * values_.size() >= slots_.size()) grow();
      next = static_cast<std::uint32_t>(values_.size());
      values_.push_back(kNone);
      const std::uint64_t key = key_of(node, byte);
      std::size_t at = static_cast<std::size_t>(mixed(key, 0x9e3779b97f4a7c15U)) & mask_;
      while (slots_[at].key != 0) at = (at + 1) & mask_;
      slots_[at] = {key, next};
    }
    node = next;
  }
  values_[node] = value;
}

void Trie::grow() {
  std::vector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  mask_ = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.key == 0) continue;
    std::size_t at = static_cast<std::size_t>(mixed(slot.key, 0x9e3779b97f4a7c15U)) & mask_;
    while (slots_[at].key != 0) at = (at + 1) & mask_;
    slots_[at] = slot;
  }
}

}  // namespace touchstone::inline v0::io
