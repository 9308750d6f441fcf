// A suffix automaton over texts that grow token by token: every substring is a state, found in one
// step per token, with the number of its occurrences. (Blumer et al., "The smallest automaton
// recognizing the subwords of a text", 1985; several texts: the automaton starts anew at the root.)
#pragma once

#include <cstdint>
#include <vector>

namespace touchstone::inline v0::decode {

class SuffixAutomaton {
 public:
  static constexpr std::int32_t kRoot = 0;
  static constexpr std::int32_t kNone = -1;

  SuffixAutomaton() { clear(); }
  void clear();
  // The text goes on; after end_text() a new one begins.
  void extend(std::int32_t token);
  void end_text() { last_ = kRoot; }

  // The longest end of the current text that stands somewhere else too.
  std::int32_t repeated() const { return last_ == kRoot ? kRoot : states_[index(last_)].link; }
  std::int32_t length(std::int32_t state) const { return states_[index(state)].length; }
  std::int32_t link(std::int32_t state) const { return states_[index(state)].link; }
  // How often the substrings of a state occur. Exact while the chain of suffixes of a text is at
  // most kMaxLinks long; beyond that, in text that repeats itself, the short ones are counted less.
  std::int32_t count(std::int32_t state) const { return states_[index(state)].count; }
  std::int32_t next(std::int32_t state, std::int32_t token) const;  // or kNone

  struct Edge {
    std::int32_t token = 0;
    std::int32_t target = 0;
    std::int32_t next = kNone;  // of the same state
  };
  // Edges of a state, the newest first.
  std::int32_t first_edge(std::int32_t state) const { return states_[index(state)].edge; }
  const Edge& edge(std::int32_t i) const { return edges_[index(i)]; }

  std::int64_t tokens() const { return tokens_; }
  std::int64_t bytes() const;

 private:
  static constexpr int kMaxLinks = 64;
  struct State {
    std::int32_t length = 0;
    std::int32_t link = kNone;
    std::int32_t edge = kNone;
    std::int32_t count = 0;
  };
  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
  std::int32_t add_state(std::int32_t length);
  std::int32_t find_edge(std::int32_t state, std::int32_t token) const;
  void add_edge(std::int32_t state, std::int32_t token, std::int32_t target);
  void insert(std::int32_t edge, std::int32_t state);
  std::int32_t split(std::int32_t parent, std::int32_t token, std::int32_t state);
  std::size_t slot(std::int32_t state, std::int32_t token) const;

  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<std::int32_t> owner_;  // of each edge
  std::vector<std::int32_t> table_;  // open addressing: (owner, token) -> edge
  std::int32_t last_ = kRoot;
  std::int64_t tokens_ = 0;
};

}  // namespace touchstone::inline v0::decode
