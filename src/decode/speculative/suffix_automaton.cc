#include "decode/speculative/suffix_automaton.h"

#include <utility>

namespace touchstone::inline v0::decode {

void SuffixAutomaton::clear() {
  states_.assign(1, {});
  edges_.clear();
  owner_.clear();
  table_.assign(64, kNone);
  last_ = kRoot;
  tokens_ = 0;
}

std::int64_t SuffixAutomaton::bytes() const {
  return static_cast<std::int64_t>(states_.capacity() * sizeof(State) +
                                   edges_.capacity() * sizeof(Edge) +
                                   (owner_.capacity() + table_.capacity()) * sizeof(std::int32_t));
}

std::int32_t SuffixAutomaton::add_state(std::int32_t length) {
  states_.push_back({.length = length});
  return static_cast<std::int32_t>(states_.size()) - 1;
}

std::size_t SuffixAutomaton::slot(std::int32_t state, std::int32_t token) const {
  std::uint64_t key =
      std::uint64_t{static_cast<std::uint32_t>(state)} << 32 | static_cast<std::uint32_t>(token);
  key *= 0x9E3779B97F4A7C15U;
  key ^= key >> 29;
  key *= 0xBF58476D1CE4E5B9U;
  std::size_t at = static_cast<std::size_t>(key >> 32) & (table_.size() - 1);
  while (table_[at] != kNone &&
         (owner_[index(table_[at])] != state || edges_[index(table_[at])].token != token)) {
    at = (at + 1) & (table_.size() - 1);
  }
  return at;
}

std::int32_t SuffixAutomaton::find_edge(std::int32_t state, std::int32_t token) const {
  return table_[slot(state, token)];
}

std::int32_t SuffixAutomaton::next(std::int32_t state, std::int32_t token) const {
  const std::int32_t found = find_edge(state, token);
  return found == kNone ? kNone : edges_[index(found)].target;
}

void SuffixAutomaton::insert(std::int32_t edge, std::int32_t state) {
  table_[slot(state, edges_[index(edge)].token)] = edge;
}

void SuffixAutomaton::add_edge(std::int32_t state, std::int32_t token, std::int32_t target) {
  if (2 * (edges_.size() + 1) > table_.size()) {
    table_.assign(2 * table_.size(), kNone);
    for (std::size_t i = 0; i < edges_.size(); ++i) {
      insert(static_cast<std::int32_t>(i), owner_[i]);
    }
  }
  edges_.push_back({token, target, states_[index(state)].edge});
  owner_.push_back(state);
  const auto edge = static_cast<std::int32_t>(edges_.size()) - 1;
  states_[index(state)].edge = edge;
  insert(edge, state);
}

// The shorter substrings of `state`, up to those that end at `parent` and `token`, become a state
// of their own.
std::int32_t SuffixAutomaton::split(std::int32_t parent, std::int32_t token, std::int32_t state) {
  const std::int32_t clone = add_state(states_[index(parent)].length + 1);
  states_[index(clone)].link = states_[index(state)].link;
  states_[index(clone)].count = states_[index(state)].count;
  std::vector<std::pair<std::int32_t, std::int32_t>> copied;
  for (std::int32_t e = states_[index(state)].edge; e != kNone; e = edges_[index(e)].next) {
    copied.emplace_back(edges_[index(e)].token, edges_[index(e)].target);
  }
  for (auto edge = copied.rbegin(); edge != copied.rend(); ++edge) {
    add_edge(clone, edge->first, edge->second);
  }
  states_[index(state)].link = clone;
  for (std::int32_t p = parent; p != kNone; p = states_[index(p)].link) {
    const std::int32_t found = find_edge(p, token);
    if (found == kNone || edges_[index(found)].target != state) break;
    edges_[index(found)].target = clone;
  }
  return clone;
}

void SuffixAutomaton::extend(std::int32_t token) {
  ++tokens_;
  const std::int32_t known = next(last_, token);
  if (known != kNone) {
    // Only after end_text(): the text so far stands in an earlier one.
    const bool whole = states_[index(known)].length == states_[index(last_)].length + 1;
    last_ = whole ? known : split(last_, token, known);
  } else {
    const std::int32_t added = add_state(states_[index(last_)].length + 1);
    std::int32_t p = last_;
    for (; p != kNone && next(p, token) == kNone; p = states_[index(p)].link) {
      add_edge(p, token, added);
    }
    std::int32_t link = kRoot;
    if (p != kNone) {
      const std::int32_t target = next(p, token);
      const bool whole = states_[index(target)].length == states_[index(p)].length + 1;
      link = whole ? target : split(p, token, target);
    }
    states_[index(added)].link = link;
    last_ = added;
  }
  std::int32_t state = last_;
  for (int i = 0; i < kMaxLinks && state != kRoot; ++i) {
    ++states_[index(state)].count;
    state = states_[index(state)].link;
  }
}

}  // namespace touchstone::inline v0::decode
