#include "decode/grammar/machine.h"

#include <fmt/format.h>

#include <algorithm>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode::grammar {

Machine::Machine(std::shared_ptr<const Automaton> automaton)
    : automaton_(std::move(automaton)),
      classes_(static_cast<std::size_t>(automaton_->class_count())),
      seen_(static_cast<std::size_t>(automaton_->size()), 0) {
  frames_.push_back({});
  start_ = close({{kBottom, {automaton_->start_of(automaton_->root())}}});
}

std::uint32_t Machine::next_stamp() {
  if (++stamp_ == 0) {
    std::ranges::fill(seen_, 0);
    stamp_ = 1;
  }
  return stamp_;
}

void Machine::check_readings(const State& state) const {
  if (static_cast<std::int64_t>(state.readings.size()) > automaton_->limits().max_readings) {
    throw InvalidArgument(fmt::format("grammar: more than {} readings of one text: too ambiguous",
                                      automaton_->limits().max_readings));
  }
}

std::int32_t Machine::at_leaf(std::int32_t leaf) {
  State state;
  state.readings.push_back({kBottom, leaf});
  return intern(std::move(state));
}

std::int32_t Machine::after(std::int32_t frame) {
  const Frame& top = frames_[static_cast<std::size_t>(frame)];
  return close({{top.parent, sets_[static_cast<std::size_t>(top.returns)]}});
}

std::int32_t Machine::compute_step(std::int32_t state, std::uint8_t to) {
  Levels levels;
  // Readings are in the order of their frames.
  for (const Reading& reading : states_[static_cast<std::size_t>(state)].readings) {
    if (!automaton_->accepts_byte(reading.leaf, to)) continue;
    if (levels.empty() || levels.back().first != reading.frame) {
      levels.push_back({reading.frame, {}});
    }
    levels.back().second.push_back(automaton_->node(reading.leaf).next);
  }
  const std::int32_t result = levels.empty() ? kDead : close(std::move(levels));
  table_[static_cast<std::size_t>(state) * classes_ + to] = result;
  return result;
}

// Calls that end are left first, from the deepest frame up, because that adds to the frames below;
// then calls are entered. A rule that may be empty is passed where it is called (Automaton::close),
// so that nothing that was entered has to be left again.
std::int32_t Machine::close(Levels levels) {
  State out;
  Calls entered;
  while (!levels.empty()) {
    const auto deepest = std::ranges::max_element(levels, {}, [&](const auto& level) {
      return std::pair(frame_depth(level.first), level.first);
    });
    const std::int32_t frame = deepest->first;
    const Nodes nodes = std::move(deepest->second);
    levels.erase(deepest);
    NodeClosure closure;
    const std::uint32_t stamp = next_stamp();
    for (const std::int32_t node : nodes) automaton_->close(node, seen_, stamp, closure);
    for (const std::int32_t leaf : closure.leaves) out.readings.push_back({frame, leaf});
    check_readings(out);
    if (closure.accepts) {
      if (frame == kBottom) {
        out.finished = true;
      } else {
        const Frame& top = frames_[static_cast<std::size_t>(frame)];
        auto below = std::ranges::find(levels, top.parent, &Levels::value_type::first);
        if (below == levels.end()) {
          levels.push_back({top.parent, {}});
          below = levels.end() - 1;
        }
        const Nodes& returns = sets_[static_cast<std::size_t>(top.returns)];
        below->second.insert(below->second.end(), returns.begin(), returns.end());
      }
    }
    enter(frame, std::move(closure.calls), entered, out);
  }
  if (out.readings.empty() && !out.finished) return kDead;
  std::ranges::sort(out.readings);
  out.readings.erase(std::unique(out.readings.begin(), out.readings.end()), out.readings.end());
  return intern(std::move(out));
}

// One frame for all calls of a rule from one frame: readings that differ behind the call only are
// one until it ends. What was entered by another way already adds nothing: rules that call two
// others, which call the next one, are 2^n ways to the same place.
void Machine::enter(std::int32_t frame, std::vector<std::pair<std::int32_t, std::int32_t>> calls,
                    Calls& entered, State& out) {
  std::ranges::sort(calls);
  for (std::size_t i = 0; i < calls.size();) {
    const std::int32_t rule = calls[i].first;
    Nodes returns;
    for (; i < calls.size() && calls[i].first == rule; ++i) {
      if (returns.empty() || returns.back() != calls[i].second) returns.push_back(calls[i].second);
    }
    // What ends where its call ends needs no frame of its own.
    const bool tail = std::ranges::all_of(
        returns, [&](std::int32_t node) { return automaton_->only_accepts(node); });
    const std::int32_t inner = tail ? frame : intern_frame(returns, frame);
    if (inner < 0) continue;  // too deep
    const std::uint64_t place =
        std::uint64_t{static_cast<std::uint32_t>(inner)} << 32 | static_cast<std::uint32_t>(rule);
    if (!entered.insert(place).second) continue;
    NodeClosure closure;
    automaton_->close(automaton_->start_of(rule), seen_, next_stamp(), closure);
    for (const std::int32_t leaf : closure.leaves) out.readings.push_back({inner, leaf});
    check_readings(out);
    enter(inner, std::move(closure.calls), entered, out);
  }
}

std::int32_t Machine::intern_frame(const Nodes& returns, std::int32_t parent) {
  const std::int32_t depth = frames_[static_cast<std::size_t>(parent)].depth + 1;
  if (depth > automaton_->limits().max_depth) return -1;
  const auto set = set_ids_.emplace(returns, static_cast<std::int32_t>(sets_.size()));
  if (set.second) {
    sets_.push_back(returns);
    bytes_ += 128 + 8 * returns.size();
  }
  const std::uint64_t key =
      static_cast<std::uint64_t>(set.first->second) << 32 | static_cast<std::uint32_t>(parent);
  const auto found = frame_ids_.emplace(key, static_cast<std::int32_t>(frames_.size()));
  if (found.second) {
    if (frames_.size() >= std::size_t{kMaxStates}) {
      throw InvalidArgument("grammar: too many states for one token: too ambiguous");
    }
    frames_.push_back({set.first->second, parent, depth});
    bytes_ += 64;
  }
  return found.first->second;
}

std::int32_t Machine::intern(State state) {
  Nodes key;
  key.reserve(2 * state.readings.size() + 1);
  key.push_back(state.finished ? 1 : 0);
  for (const Reading& reading : state.readings) {
    key.push_back(reading.frame);
    key.push_back(reading.leaf);
  }
  const auto [found, added] =
      state_ids_.emplace(std::move(key), static_cast<std::int32_t>(states_.size()));
  if (!added) return found->second;
  if (states_.size() >= std::size_t{kMaxStates}) {
    state_ids_.erase(found);
    throw InvalidArgument("grammar: too many states for one token: too ambiguous");
  }
  for (const Reading& reading : state.readings) {
    state.depth = std::max(state.depth, frame_depth(reading.frame));
  }
  bytes_ += 160 + 16 * state.readings.size() + 4 * classes_;
  states_.push_back(std::move(state));
  table_.resize(states_.size() * classes_, kUnknown);
  return static_cast<std::int32_t>(states_.size()) - 1;
}

}  // namespace touchstone::inline v0::decode::grammar
