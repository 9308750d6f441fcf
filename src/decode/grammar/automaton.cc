#include "decode/grammar/automaton.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

namespace touchstone::inline v0::decode::grammar {
namespace {

using Kind = Expression::Kind;

const Expression& at(const Syntax& syntax, std::int32_t id) {
  return syntax.expressions[static_cast<std::size_t>(id)];
}

// The least solution of a monotone fact of rules that follows from facts of other rules: begins with
// "no" and repeats until nothing changes. Expressions come after their parts, so one pass over them in order is enough each time.
template <class Fact>
std::vector<bool> least_fixed_point(const Syntax& syntax, Fact fact) {
  std::vector<bool> rules(syntax.rules.size(), false);
  std::vector<bool> expressions(syntax.expressions.size(), false);
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = 0; i < expressions.size(); ++i) {
      if (!expressions[i]) expressions[i] = fact(syntax.expressions[i], expressions, rules);
    }
    for (std::size_t i = 0; i < rules.size(); ++i) {
      if (rules[i] || !expressions[static_cast<std::size_t>(syntax.rules[i].body)]) continue;
      rules[i] = true;
      changed = true;
    }
  }
  return rules;
}

bool may_be_empty(const Expression& e, const std::vector<bool>& parts,
                  const std::vector<bool>& rules) {
  const auto empty = [&](std::int32_t id) { return parts[static_cast<std::size_t>(id)]; };
  switch (e.kind) {
    case Kind::literal:
      return e.text.empty();
    case Kind::set:
      return false;
    case Kind::sequence:
      return std::ranges::all_of(e.parts, empty);
    case Kind::choice:
      return std::ranges::any_of(e.parts, empty);
    case Kind::repeat:
      return e.min == 0 || empty(e.parts[0]);
    case Kind::rule:
      return rules[static_cast<std::size_t>(e.rule)];
  }
  return false;
}

bool ends(const Expression& e, const std::vector<bool>& parts, const std::vector<bool>& rules) {
  const auto part_ends = [&](std::int32_t id) { return parts[static_cast<std::size_t>(id)]; };
  switch (e.kind) {
    case Kind::literal:
      return true;
    case Kind::set:
      return !utf8_sequences(e.ranges).empty();
    case Kind::sequence:
      return std::ranges::all_of(e.parts, part_ends);
    case Kind::choice:
      return std::ranges::any_of(e.parts, part_ends);
    case Kind::repeat:
      return e.min == 0 || part_ends(e.parts[0]);
    case Kind::rule:
      return rules[static_cast<std::size_t>(e.rule)];
  }
  return false;
}

// Rules that a rule calls, each once.
std::vector<std::vector<std::int32_t>> called_rules(const Syntax& syntax) {
  std::vector<std::vector<std::int32_t>> calls(syntax.rules.size());
  for (std::size_t rule = 0; rule < calls.size(); ++rule) {
    std::vector<std::int32_t> open = {syntax.rules[rule].body};
    while (!open.empty()) {
      const Expression& e = at(syntax, open.back());
      open.pop_back();
      if (e.kind == Kind::rule) calls[rule].push_back(e.rule);
      open.insert(open.end(), e.parts.begin(), e.parts.end());
    }
    std::ranges::sort(calls[rule]);
    calls[rule].erase(std::unique(calls[rule].begin(), calls[rule].end()), calls[rule].end());
  }
  return calls;
}

// Rules in an order in which those that a rule calls come first, and whether each can reach itself.
struct RuleOrder {
  std::vector<std::int32_t> order;
  std::vector<bool> recursive;
};

// Tarjan's components, without recursion.
RuleOrder order_of(const std::vector<std::vector<std::int32_t>>& calls) {
  const std::size_t count = calls.size();
  RuleOrder out;
  out.recursive.assign(count, false);
  std::vector<std::int32_t> index(count, -1);
  std::vector<std::int32_t> low(count, 0);
  std::vector<bool> open(count, false);
  std::vector<std::int32_t> stack;
  std::vector<std::pair<std::int32_t, std::size_t>> path;
  std::int32_t next = 0;
  for (std::size_t root = 0; root < count; ++root) {
    if (index[root] >= 0) continue;
    path.emplace_back(static_cast<std::int32_t>(root), 0);
    while (!path.empty()) {
      const auto v = static_cast<std::size_t>(path.back().first);
      if (path.back().second == 0) {
        index[v] = low[v] = next++;
        stack.push_back(path.back().first);
        open[v] = true;
      }
      if (path.back().second < calls[v].size()) {
        const std::int32_t w = calls[v][path.back().second++];
        const auto to = static_cast<std::size_t>(w);
        if (w == path.back().first) out.recursive[v] = true;
        if (index[to] < 0) {
          path.emplace_back(w, 0);
        } else if (open[to]) {
          low[v] = std::min(low[v], index[to]);
        }
        continue;
      }
      path.pop_back();
      if (!path.empty()) {
        const auto parent = static_cast<std::size_t>(path.back().first);
        low[parent] = std::min(low[parent], low[v]);
      }
      if (low[v] != index[v]) continue;
      const bool alone = stack.back() == static_cast<std::int32_t>(v);
      while (true) {
        const std::int32_t w = stack.back();
        stack.pop_back();
        open[static_cast<std::size_t>(w)] = false;
        if (!alone) out.recursive[static_cast<std::size_t>(w)] = true;
        out.order.push_back(w);
        if (w == static_cast<std::int32_t>(v)) break;
      }
    }
  }
  return out;
}

}  // namespace

class AutomatonBuilder {
 public:
  AutomatonBuilder(const Syntax& syntax, Automaton& out)
      : syntax_(syntax), out_(out), starts_(out.starts_) {}

  void build() {
    const auto calls = called_rules(syntax_);
    const RuleOrder rules = order_of(calls);
    std::vector<std::int32_t> uses(syntax_.rules.size(), 0);
    for (const Expression& e : syntax_.expressions) {
      if (e.kind == Kind::rule) ++uses[static_cast<std::size_t>(e.rule)];
    }
    // A rule that never calls itself is written out where it is used, while that is short: what
    // needs no stack is quick.
    inlined_.assign(syntax_.rules.size(), false);
    std::vector<Size> sizes(syntax_.rules.size());
    for (const std::int32_t id : rules.order) {
      const auto rule = static_cast<std::size_t>(id);
      sizes[rule] = size_of(syntax_.rules[rule].body, sizes);
      inlined_[rule] = !rules.recursive[rule] && sizes[rule].height <= kMaxInlinedHeight &&
                       (sizes[rule].nodes <= kMaxInlined || uses[rule] == 1);
    }
    starts_.assign(syntax_.rules.size(), -1);
    std::vector<std::int32_t> wanted = {syntax_.root};
    std::vector<bool> known(syntax_.rules.size(), false);
    known[static_cast<std::size_t>(syntax_.root)] = true;
    while (!wanted.empty()) {
      const std::int32_t rule = wanted.back();
      wanted.pop_back();
      const auto first = static_cast<std::size_t>(out_.size());
      const std::int32_t end = add({}, syntax_.expressions[0]);
      starts_[static_cast<std::size_t>(rule)] =
          emit(syntax_.rules[static_cast<std::size_t>(rule)].body, end);
      for (std::size_t i = first; i < out_.nodes_.size(); ++i) {
        if (out_.nodes_[i].kind != AutomatonNode::Kind::call) continue;
        const std::int32_t called = out_.nodes_[i].other;
        if (known[static_cast<std::size_t>(called)]) continue;
        known[static_cast<std::size_t>(called)] = true;
        wanted.push_back(called);
      }
    }
  }

 private:
  static constexpr std::int64_t kMaxInlined = 64;  // nodes
  static constexpr int kMaxInlinedHeight = 200;
  static constexpr std::int64_t kHuge = std::int64_t{1} << 40;

  // What an expression takes, about: nodes, and recursion to write it out.
  struct Size {
    std::int64_t nodes = 1;
    int height = 1;
  };
  Size size_of(std::int32_t root, const std::vector<Size>& rules) {
    const Expression& e = at(syntax_, root);
    Size sum;
    switch (e.kind) {
      case Kind::literal:
        return {static_cast<std::int64_t>(e.text.size()), 1};
      case Kind::set:
        return {1 + 2 * static_cast<std::int64_t>(e.ranges.size()), 1};
      case Kind::rule:
        return inlined_[static_cast<std::size_t>(e.rule)] ? rules[static_cast<std::size_t>(e.rule)]
                                                          : sum;
      default:
        for (const std::int32_t part : e.parts) {
          const Size size = size_of(part, rules);
          sum.nodes = std::min(sum.nodes + size.nodes + (e.kind == Kind::choice ? 1 : 0), kHuge);
          sum.height = std::max(sum.height, size.height + 1);
        }
    }
    if (e.kind != Kind::repeat) return sum;
    const std::int64_t copies = std::max(e.min, e.max) + (e.max < 0 ? 1 : 0);
    sum.nodes = std::min(sum.nodes * std::max<std::int64_t>(copies, 1), kHuge);
    return sum;
  }

  std::int32_t add(const AutomatonNode& node, const Expression& e) {
    if (out_.size() >= out_.limits_.max_nodes) {
      throw GrammarError(e.line, e.column,
                         fmt::format("the grammar takes more than {} nodes with its repetitions "
                                     "written out",
                                     out_.limits_.max_nodes));
    }
    out_.nodes_.push_back(node);
    return out_.size() - 1;
  }

  std::int32_t set_id(const ByteSet& set) {
    const auto [found, added] = set_ids_.emplace(set, static_cast<std::int32_t>(out_.sets_.size()));
    if (added) out_.sets_.push_back(set);
    return found->second;
  }

  std::int32_t bytes(const ByteSet& set, std::int32_t next, const Expression& e) {
    return add({AutomatonNode::Kind::bytes, next, -1, set_id(set)}, e);
  }

  // The first node of `id` followed by `next`.
  std::int32_t emit(std::int32_t id, std::int32_t next) {
    const Expression& e = at(syntax_, id);
    switch (e.kind) {
      case Kind::literal:
        for (auto c = e.text.rbegin(); c != e.text.rend(); ++c) {
          ByteSet one;
          one.set(static_cast<unsigned char>(*c));
          next = bytes(one, next, e);
        }
        return next;
      case Kind::set:
        return emit_set(e, next);
      case Kind::sequence:
        for (auto part = e.parts.rbegin(); part != e.parts.rend(); ++part) next = emit(*part, next);
        return next;
      case Kind::choice: {
        std::int32_t all = emit(e.parts.back(), next);
        for (auto part = e.parts.rbegin() + 1; part != e.parts.rend(); ++part) {
          const std::int32_t one = emit(*part, next);
          all = add({AutomatonNode::Kind::split, one, all, -1}, e);
        }
        return all;
      }
      case Kind::repeat:
        return emit_repeat(e, next);
      case Kind::rule:
        if (inlined_[static_cast<std::size_t>(e.rule)]) {
          return emit(syntax_.rules[static_cast<std::size_t>(e.rule)].body, next);
        }
        return add({AutomatonNode::Kind::call, next, e.rule, -1}, e);
    }
    return next;
  }

  std::int32_t emit_repeat(const Expression& e, std::int32_t next) {
    const std::int32_t part = e.parts[0];
    if (e.max < 0) {
      const std::int32_t loop = add({AutomatonNode::Kind::split, -1, next, -1}, e);
      const std::int32_t body = emit(part, loop);
      out_.nodes_[static_cast<std::size_t>(loop)].next = body;
      next = loop;
    } else {
      const std::int32_t end = next;
      for (std::int32_t i = e.min; i < e.max; ++i) {
        const std::int32_t one = emit(part, next);
        next = add({AutomatonNode::Kind::split, one, end, -1}, e);
      }
    }
    for (std::int32_t i = 0; i < e.min; ++i) {
      const std::int32_t before = out_.size();
      next = emit(part, next);
      if (out_.size() == before) break;  // of nothing, any number is nothing
    }
    return next;
  }

  std::int32_t emit_set(const Expression& e, std::int32_t next) {
    std::int32_t all = -1;
    // Equal tails are one chain: most sets share them.
    std::map<std::vector<std::int32_t>, std::int32_t> tails;
    for (const ByteSequence& sequence : utf8_sequences(e.ranges)) {
      std::int32_t node = next;
      std::vector<std::int32_t> key;
      for (std::size_t i = sequence.sets.size() - 1; i > 0; --i) {
        key.push_back(set_id(sequence.sets[i]));
        const auto known = tails.find(key);
        node = known != tails.end()
                   ? known->second
                   : tails.emplace(key, bytes(sequence.sets[i], node, e)).first->second;
      }
      node = bytes(sequence.sets[0], node, e);
      all = all < 0 ? node : add({AutomatonNode::Kind::split, node, all, -1}, e);
    }
    return all;  // not empty: an empty set never ends
  }

  struct SetHash {
    std::size_t operator()(const ByteSet& set) const { return std::hash<ByteSet>()(set); }
  };

  const Syntax& syntax_;
  Automaton& out_;
  std::vector<std::int32_t>& starts_;
  std::vector<bool> inlined_;
  std::unordered_map<ByteSet, std::int32_t, SetHash> set_ids_;
};

Automaton::Automaton(const Syntax& syntax, const GrammarLimits& limits)
    : limits_(limits), root_(syntax.root) {
  const std::vector<bool> ending = least_fixed_point(syntax, ends);
  for (std::size_t i = 0; i < ending.size(); ++i) {
    const Rule& rule = syntax.rules[i];
    if (!ending[i]) {
      throw GrammarError(rule.line, rule.column,
                         fmt::format("the rule '{}' has no text that ends", rule.name));
    }
  }
  nullable_ = least_fixed_point(syntax, may_be_empty);
  AutomatonBuilder(syntax, *this).build();
  check_left_recursion(syntax);
  make_classes();
}

void Automaton::close(std::int32_t node, std::vector<std::uint32_t>& seen, std::uint32_t stamp,
                      NodeClosure& out) const {
  std::vector<std::int32_t> open = {node};
  while (!open.empty()) {
    const std::int32_t id = open.back();
    open.pop_back();
    if (seen[static_cast<std::size_t>(id)] == stamp) continue;
    seen[static_cast<std::size_t>(id)] = stamp;
    const AutomatonNode& here = nodes_[static_cast<std::size_t>(id)];
    switch (here.kind) {
      case AutomatonNode::Kind::accept:
        out.accepts = true;
        break;
      case AutomatonNode::Kind::bytes:
        out.leaves.push_back(id);
        break;
      case AutomatonNode::Kind::split:
        open.push_back(here.other);
        open.push_back(here.next);
        break;
      case AutomatonNode::Kind::call:
        out.calls.emplace_back(here.other, here.next);
        if (nullable_[static_cast<std::size_t>(here.other)]) open.push_back(here.next);
        break;
    }
  }
}

void Automaton::check_left_recursion(const Syntax& syntax) const {
  // Which rules a rule calls before its first byte.
  std::vector<std::vector<std::int32_t>> first(starts_.size());
  std::vector<std::uint32_t> seen(nodes_.size(), 0);
  for (std::size_t rule = 0; rule < starts_.size(); ++rule) {
    if (starts_[rule] < 0) continue;
    NodeClosure closure;
    close(starts_[rule], seen, static_cast<std::uint32_t>(rule) + 1, closure);
    for (const auto& [called, behind] : closure.calls) first[rule].push_back(called);
  }
  const RuleOrder order = order_of(first);
  for (std::size_t rule = 0; rule < first.size(); ++rule) {
    if (!order.recursive[rule]) continue;
    throw GrammarError(
        syntax.rules[rule].line, syntax.rules[rule].column,
        fmt::format("the rule '{}' begins with itself (left recursion)", syntax.rules[rule].name));
  }
}

void Automaton::make_classes() {
  class_count_ = 1;
  for (const ByteSet& set : sets_) {
    std::map<std::pair<std::uint8_t, bool>, std::uint8_t> renamed;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const auto key = std::pair(classes_[byte], set.test(byte));
      const auto id = static_cast<std::uint8_t>(renamed.size());
      classes_[byte] = renamed.emplace(key, id).first->second;
    }
    class_count_ = static_cast<std::int32_t>(renamed.size());
  }
  for (const ByteSet& set : sets_) {
    ByteSet& in_classes = class_sets_.emplace_back();
    for (std::size_t byte = 0; byte < 256; ++byte) {
      if (set.test(byte)) in_classes.set(classes_[byte]);
    }
  }
}

}  // namespace touchstone::inline v0::decode::grammar
