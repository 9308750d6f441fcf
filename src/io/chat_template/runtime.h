// One rendering: its variables, its output, its limits, and the operations on values.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/chat_template/ast.h"
#include "io/chat_template/functions.h"
#include "io/chat_template/value.h"
#include "touchstone/io/chat_template.h"

namespace touchstone::inline v0::io::chat {

// Variables of a block, by symbol; what is not found here is looked for in the parent.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<Symbol, Value>> variables;
};

struct Macro {
  const Statement* statement = nullptr;
  std::shared_ptr<Scope> scope;  // where it was defined
};

struct Loop {
  const Statement* statement = nullptr;
  std::shared_ptr<Scope> scope;  // around the loop; null once it has ended
  // The members below are computed when they are needed, as in Python: a loop that is left early
  // leaves the rest of a generator alone.
  std::function<bool(Runtime&, Value&)> source;
  std::vector<Value> items;  // those that were needed so far
  std::size_t index = 0;
  int depth = 0;
  std::optional<Value> changed;
};

using Iterator = std::function<bool(Runtime&, Value&)>;

class Runtime {
 public:
  Runtime(const Program& program, std::string_view source, const TemplateLimits& limits,
          std::optional<std::int64_t> now);

  // Before render.
  void define(std::string_view name, Value value);
  std::string render();

  // Errors, at the place of what is being evaluated.
  [[noreturn]] void fail(const std::string& problem) const {
    fail(TemplateFault::runtime, problem);
  }
  [[noreturn]] void unsupported(const std::string& problem) const {
    fail(TemplateFault::unsupported, problem);
  }
  [[noreturn]] void fail(TemplateFault fault, const std::string& problem) const;

  // Counts steps; refuses work beyond the limit.
  void charge(std::size_t steps) {
    steps_left_ -= static_cast<std::int64_t>(steps);
    if (steps_left_ < 0) [[unlikely]]
      out_of_steps();
  }
  void charge_bytes(std::size_t bytes) { charge(bytes / 16 + 1); }
  // Before `count` values are made.
  void charge_values(std::size_t count) { charge(count * 4 + 4); }
  // out += piece, charged before it is built.
  void append(std::string& out, std::string_view piece) {
    charge_bytes(piece.size());
    check_size(out.size() + piece.size());
    out += piece;
  }

  // New values.
  Value text(std::string text, bool markup = false);
  Value sequence(Kind kind, std::vector<Value> items);
  Value list(std::vector<Value> items) { return sequence(Kind::list, std::move(items)); }
  Value tuple(std::vector<Value> items) { return sequence(Kind::tuple, std::move(items)); }
  Value dict(std::vector<std::pair<Value, Value>> members);
  // `source`: what it draws from.
  Value generator(const Value& source, Iterator next);
  Value range(std::int64_t start, std::int64_t stop, std::int64_t step);

  // Python's operations. They fail where Python raises.
  std::string str(const Value& value);
  std::string repr(const Value& value);
  bool equal(const Value& a, const Value& b);
  bool equal_text(std::string_view a, std::string_view b) {
    if (a.size() != b.size()) return false;
    charge_bytes(a.size());
    return a == b;
  }
  bool less(const Value& a, const Value& b);
  bool is_hashable(const Value& value);
  bool contains(const Value& container, const Value& element);
  std::size_t length(const Value& value);
  Iterator iterate(const Value& value);
  std::vector<Value> elements(const Value& value);
  const Value* find_member(const Value& dict, const Value& key);
  void insert_member(std::vector<std::pair<Value, Value>>& members, Value key, Value value);
  Value arithmetic(Operation operation, const Value& a, const Value& b);
  Value unary(Operation operation, const Value& value);
  Value slice(const Value& value, const Value& start, const Value& stop, const Value& step);
  std::int64_t to_index(const Value& value, const char* what);

  // jinja2's: a.name, a[key], a(...).
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  // "a.b.0", an integer or none, as the filters with `attribute` take it.
  Value path_item(const Value& object, const Value& path);
  Value call(const Value& callee, const Arguments& arguments);

 private:
  enum class Flow : std::uint8_t { normal, leave, next };
  class Depth;
  using ScopePtr = std::shared_ptr<Scope>;

  // evaluator.cc
  Value evaluate(const Expression& node, const ScopePtr& scope);
  Value evaluate_name(Symbol symbol, Offset at, const ScopePtr& scope);
  Value evaluate_operands(const Expression& node, const ScopePtr& scope);
  Value evaluate_dict(const Expression& node, const ScopePtr& scope);
  Value evaluate_item(const Expression& node, const ScopePtr& scope);
  Value evaluate_attribute(const Expression& node, const Value& object);
  Value evaluate_call(const Expression& node, const ScopePtr& scope);
  Value evaluate_compare(const Expression& node, const ScopePtr& scope);
  Value evaluate_concatenation(const Expression& node, const ScopePtr& scope);
  Value evaluate_filter(const Expression& node, const ScopePtr& scope);
  bool compare(Comparison comparison, const Value& a, const Value& b);
  Arguments evaluate_arguments(const ArgumentNodes& nodes, const ScopePtr& scope);
  std::string describe(const Expression& node) const;
  // Filters of a block: the innermost has no operand and takes `text`.
  Value apply_filters(const Expression& node, const ScopePtr& scope, Value text);

  // statements.cc
  Flow execute(const Body& body, const ScopePtr& scope);
  Flow execute(const Statement& statement, const ScopePtr& scope);
  Flow execute_loop(const Statement& statement, const ScopePtr& scope);
  void run_loop(Loop& loop, const Value& iterable);
  Iterator filtered(const Statement& statement, const ScopePtr& scope, Iterator source);
  void assign(const Target& target, Value value, const ScopePtr& scope);
  void execute_call_block(const Statement& statement, const ScopePtr& scope);
  Flow execute_in_scope(const Statement& statement, const ScopePtr& scope);
  template <class Run>
  std::string capture(Run run);
  Value define_macro(const Statement& statement, const ScopePtr& scope);
  Value call_macro(const Macro& macro, const Arguments& arguments);
  Value call_loop(Loop& loop, const Arguments& arguments);
  // Of one block. The search is linear: blocks have a few variables, and more are charged as steps.
  Value* find_variable(Scope& scope, Symbol symbol);
  void set_variable(Scope& scope, Symbol symbol, Value value);
  void bind_parameters(const Macro& macro, const Arguments& arguments, const ScopePtr& scope);
  void write(std::string_view text);

  // access.cc
  Value call_function(Function function, const Arguments& arguments);
  Value loop_attribute(Loop& loop, std::string_view name);
  bool has_item(Loop& loop, std::size_t index);
  std::size_t loop_length(Loop& loop);

  [[noreturn]] void out_of_steps() const;
  void check_size(std::size_t bytes) const;
  [[noreturn]] void bad_operands(const char* sign, const Value& a, const Value& b) const;
  Value add(const Value& a, const Value& b);
  Value multiply(const Value& a, const Value& b);
  Value repeat(const Value& value, std::int64_t count);
  Value divide(Operation operation, const Value& a, const Value& b);
  Value power(const Value& a, const Value& b);
  void append_repr(std::string& out, const Value& value);
  void append_quoted(std::string& out, std::string_view text);
  void append_namespace(std::string& out, Namespace& object);

  const Program& program_;
  std::string_view source_;
  const TemplateLimits& limits_;
  std::optional<std::int64_t> now_;
  std::int64_t steps_left_;
  int depth_ = 0;
  Offset at_ = 0;
  std::string output_;
  ScopePtr root_;
  std::vector<Value> context_;  // by symbol
  Symbol loop_symbol_;
  Symbol caller_symbol_;
  Symbol varargs_symbol_;
  Symbol kwargs_symbol_;
  // Objects that values point to.
  std::deque<Namespace> namespaces_;
  std::deque<Macro> macros_;
  std::deque<Loop> loops_;
};

// Counts the levels of a rendering's recursion, while it lives.
class Runtime::Depth {
 public:
  explicit Depth(Runtime& runtime) : runtime_(runtime) {
    if (runtime_.depth_ >= runtime_.limits_.max_depth) {
      runtime_.fail(TemplateFault::limit,
                    "nested deeper than " + std::to_string(runtime_.limits_.max_depth) + " levels");
    }
    ++runtime_.depth_;
  }
  ~Depth() { --runtime_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  Runtime& runtime_;
};

}  // namespace touchstone::inline v0::io::chat
