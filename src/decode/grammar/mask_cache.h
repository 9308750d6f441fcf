// Token masks of the states of a machine.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "decode/grammar/machine.h"
#include "decode/grammar/token_trie.h"

namespace touchstone::inline v0::decode::grammar {

// The tokens that a leaf allows do not depend on the stack below it, as long as the call that
// contains the leaf does not end. So masks are cached per leaf, with the nodes of the trie at which
// the call may end; only below these nodes the stack is read. Masks of whole states are cached,
// too.
class MaskCache {
 public:
  MaskCache(std::shared_ptr<const Automaton> automaton, std::shared_ptr<const TokenTrie> trie);

  // A state is a number of one generation; the next begins when the memory is used up.
  struct CachedState {
    std::int64_t generation = -1;
    std::int32_t state = kDead;
  };
  std::mutex& mutex() { return mutex_; }
  const TokenTrie& trie() const { return *trie_; }

  // With the mutex held:
  // Replaces a state of an earlier generation by its equal in this one, by reading `text` again.
  void refresh(CachedState& cached, std::string_view text);
  Machine& machine() { return *machine_; }
  // Without the end tokens.
  std::span<const std::int32_t> mask_of(std::int32_t state);

 private:
  using Mask = std::vector<std::int32_t>;
  struct LeafMask {
    Mask mask;
    std::vector<std::int32_t> exits;  // nodes with children, at which the call may have ended
    std::int32_t depth = 0;           // of the calls on the way
  };

  const LeafMask& leaf_mask(std::int32_t leaf);
  bool too_deep(std::int32_t state);
  // From the children of `node` (-1: the root), at which the machine is in `state`.
  template <class Visit>
  void walk(std::int32_t node, std::int32_t state, Visit visit);
  Mask compute(std::int32_t state);
  std::size_t bytes() const { return machine_->bytes() + mask_bytes_; }

  std::mutex mutex_;
  std::shared_ptr<const Automaton> automaton_;
  std::shared_ptr<const TokenTrie> trie_;
  std::optional<Machine> machine_;
  std::int64_t generation_ = 0;
  std::unordered_map<std::int32_t, LeafMask> leaves_;
  std::unordered_map<std::int32_t, Mask> masks_;
  std::size_t mask_bytes_ = 0;
  std::vector<std::int32_t> path_;  // of the walk: the state at each depth
};

}  // namespace touchstone::inline v0::decode::grammar
