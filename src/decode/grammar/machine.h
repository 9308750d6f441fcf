// Runs the automata of a grammar deterministically: a state is a set of configurations (leaf and
// call stack) of the pushdown automaton, numbered and computed when it is first reached.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "decode/grammar/automaton.h"

namespace touchstone::inline v0::decode::grammar {

// A reading of the text so far, one configuration of the automaton: a leaf, which accepts the next
// byte, above a frame of the call stack.
struct Reading {
  std::int32_t frame = 0;
  std::int32_t leaf = 0;
  friend auto operator<=>(const Reading&, const Reading&) = default;
};

inline constexpr std::int32_t kDead = -1;   // no reading is left
inline constexpr std::int32_t kBottom = 0;  // the frame below all calls

class Machine {
 public:
  explicit Machine(std::shared_ptr<const Automaton> automaton);

  const Automaton& automaton() const { return *automaton_; }
  std::int32_t start() const { return start_; }
  // InvalidArgument for more readings or states than the limits.
  std::int32_t step(std::int32_t state, std::uint8_t byte) {
    const std::uint8_t to = automaton_->class_of(byte);
    const std::int32_t known = table_[static_cast<std::size_t>(state) * classes_ + to];
    return known != kUnknown ? known : compute_step(state, to);
  }
  std::int32_t run(std::int32_t state, std::string_view bytes) {
    for (const char c : bytes) {
      if (state == kDead) return kDead;
      state = step(state, static_cast<std::uint8_t>(c));
    }
    return state;
  }
  // The text may end here; of a state made by at_leaf(): the call that the leaf stands in may end.
  bool finished(std::int32_t state) const {
    return states_[static_cast<std::size_t>(state)].finished;
  }
  const std::vector<Reading>& readings(std::int32_t state) const {
    return states_[static_cast<std::size_t>(state)].readings;
  }
  // Of the deepest frame of its readings.
  std::int32_t depth(std::int32_t state) const {
    return states_[static_cast<std::size_t>(state)].depth;
  }
  std::int32_t frame_depth(std::int32_t frame) const {
    return frames_[static_cast<std::size_t>(frame)].depth;
  }
  // The state of one leaf alone, with nothing below it.
  std::int32_t at_leaf(std::int32_t leaf);
  // The state after the call of `frame` has ended; frame is not kBottom.
  std::int32_t after(std::int32_t frame);

  std::size_t bytes() const { return bytes_; }  // of memory, about
  // So many states or frames that a token more may find no place.
  bool crowded() const {
    constexpr std::size_t kMost = std::size_t{kMaxStates} / 4 * 3;
    return states_.size() > kMost || frames_.size() > kMost;
  }

 private:
  static constexpr std::int32_t kUnknown = -2;
  static constexpr std::int32_t kMaxStates = 1 << 17;

  struct State {
    std::vector<Reading> readings;
    bool finished = false;
    std::int32_t depth = 0;
  };
  // A frame of the call stack: the nodes at which the call returns, above `parent`.
  struct Frame {
    std::int32_t returns = -1;
    std::int32_t parent = -1;
    std::int32_t depth = 0;
  };
  using Nodes = std::vector<std::int32_t>;
  // Nodes to go on from, by frame, the deepest first.
  using Levels = std::vector<std::pair<std::int32_t, Nodes>>;
  using Calls = std::unordered_set<std::uint64_t>;  // frame and rule

  std::int32_t compute_step(std::int32_t state, std::uint8_t to);
  std::int32_t close(Levels levels);
  void enter(std::int32_t frame, std::vector<std::pair<std::int32_t, std::int32_t>> calls,
             Calls& entered, State& out);
  std::int32_t intern(State state);
  std::int32_t intern_frame(const Nodes& returns, std::int32_t parent);
  std::uint32_t next_stamp();
  void check_readings(const State& state) const;

  struct VectorHash {
    std::size_t operator()(const Nodes& nodes) const {
      std::size_t hash = 1469598103934665603U;
      for (const std::int32_t node : nodes) {
        hash = (hash ^ static_cast<std::size_t>(node)) * 1099511628211U;
      }
      return hash;
    }
  };

  std::shared_ptr<const Automaton> automaton_;
  std::size_t classes_ = 0;
  std::vector<State> states_;
  std::vector<std::int32_t> table_;  // [state][byte class]
  std::unordered_map<Nodes, std::int32_t, VectorHash> state_ids_;
  std::vector<Frame> frames_;
  std::unordered_map<std::uint64_t, std::int32_t> frame_ids_;
  std::vector<Nodes> sets_;
  std::unordered_map<Nodes, std::int32_t, VectorHash> set_ids_;
  std::vector<std::uint32_t> seen_;
  std::uint32_t stamp_ = 0;
  std::size_t bytes_ = 0;
  std::int32_t start_ = kDead;
};

}  // namespace touchstone::inline v0::decode::grammar
