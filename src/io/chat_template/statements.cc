// Statements, scopes, macros and loops.
#include <algorithm>
#include <limits>

#include "io/chat_template/runtime.h"
#include "io/chat_template/text.h"

namespace touchstone::inline v0::io::chat {
namespace {

// A name that no template uses has no symbol; this one is never looked up.
Symbol symbol_of(const Program& program, std::string_view name) {
  const auto found = std::ranges::find(program.symbols, name);
  return static_cast<Symbol>(found - program.symbols.begin());
}

}  // namespace

Value* Runtime::find_variable(Scope& scope, Symbol symbol) {
  charge(scope.variables.size() / 8);
  for (auto& [name, value] : scope.variables) {
    if (name == symbol) return &value;
  }
  return nullptr;
}

void Runtime::set_variable(Scope& scope, Symbol symbol, Value value) {
  if (Value* known = find_variable(scope, symbol)) {
    *known = std::move(value);
  } else {
    charge(4);
    scope.variables.emplace_back(symbol, std::move(value));
  }
}

Runtime::Runtime(const Program& program, std::string_view source, const TemplateLimits& limits,
                 std::optional<std::int64_t> now)
    : program_(program),
      source_(source),
      limits_(limits),
      now_(now),
      steps_left_(std::numeric_limits<std::int64_t>::max()),
      root_(std::make_shared<Scope>()),
      context_(program.symbols.size()),
      loop_symbol_(symbol_of(program, "loop")),
      caller_symbol_(symbol_of(program, "caller")),
      varargs_symbol_(symbol_of(program, "varargs")),
      kwargs_symbol_(symbol_of(program, "kwargs")) {
  define("range", Value::of(Function::range));
  define("namespace", Value::of(Function::name_space));
  define("dict", Value::of(Function::dict));
  define("raise_exception", Value::of(Function::raise_exception));
  define("strftime_now", Value::of(Function::strftime_now));
}

void Runtime::define(std::string_view name, Value value) {
  const Symbol symbol = symbol_of(program_, name);
  if (symbol == context_.size()) return;
  context_[symbol] = std::move(value);
}

std::string Runtime::render() {
  // The variables are the caller's; what is done with them counts.
  steps_left_ = limits_.max_steps;
  execute(program_.body, root_);
  return std::move(output_);
}

void Runtime::write(std::string_view text) {
  charge_bytes(text.size());
  if (output_.size() + text.size() > limits_.max_output_bytes) {
    fail(TemplateFault::limit,
         "the output exceeds " + std::to_string(limits_.max_output_bytes) + " bytes");
  }
  output_ += text;
}

template <class Run>
std::string Runtime::capture(Run run) {
  std::string outer = std::exchange(output_, {});
  run();
  std::swap(outer, output_);
  return outer;
}

Runtime::Flow Runtime::execute(const Body& body, const ScopePtr& scope) {
  const Depth depth(*this);
  for (const auto& statement : body) {
    charge(1);
    const Flow flow = execute(*statement, scope);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Runtime::Flow Runtime::execute(const Statement& statement, const ScopePtr& scope) {
  switch (statement.action) {
    case Action::text:
      write(statement.text);
      return Flow::normal;
    case Action::output:
      for (const ExpressionPtr& expression : statement.expressions) {
        const Value value = evaluate(*expression, scope);
        at_ = expression->at;
        value.is_string() ? write(value.text()) : write(str(value));
      }
      return Flow::normal;
    case Action::choose:
      for (std::size_t i = 0; i < statement.expressions.size(); ++i) {
        if (is_true(evaluate(*statement.expressions[i], scope))) {
          return execute(statement.bodies[i], scope);
        }
      }
      return statement.bodies.size() > statement.expressions.size()
                 ? execute(statement.bodies.back(), scope)
                 : Flow::normal;
    case Action::loop:
      return execute_loop(statement, scope);
    case Action::assign:
      assign(statement.targets[0], evaluate(*statement.expressions[0], scope), scope);
      return Flow::normal;
    case Action::macro:
      set_variable(*scope, statement.symbol, define_macro(statement, scope));
      return Flow::normal;
    case Action::call_block:
      execute_call_block(statement, scope);
      return Flow::normal;
    case Action::assign_block:
    case Action::filter_block:
    case Action::with:
    case Action::generation:
      return execute_in_scope(statement, scope);
    case Action::leave_loop:
      return Flow::leave;
    case Action::next_round:
      return Flow::next;
  }
  return Flow::normal;
}

// The blocks whose variables end with them.
Runtime::Flow Runtime::execute_in_scope(const Statement& statement, const ScopePtr& scope) {
  const auto inner = std::make_shared<Scope>();
  inner->parent = scope;
  Flow flow = Flow::normal;
  if (statement.action == Action::with) {
    for (std::size_t i = 0; i < statement.targets.size(); ++i) {
      // Every value is computed outside of the block.
      assign(statement.targets[i], evaluate(*statement.expressions[i], scope), inner);
    }
  }
  if (statement.action == Action::with || statement.action == Action::generation) {
    return execute(statement.bodies[0], inner);
  }
  std::string captured = capture([&] { flow = execute(statement.bodies[0], inner); });
  if (flow != Flow::normal) return flow;
  at_ = statement.at;
  Value value = text(std::move(captured));
  const Expression* filters = statement.expressions[0].get();
  if (filters != nullptr) value = apply_filters(*filters, scope, std::move(value));
  if (statement.action == Action::filter_block) {
    write(str(value));
  } else {
    assign(statement.targets[0], std::move(value), scope);
  }
  return flow;
}

void Runtime::assign(const Target& target, Value value, const ScopePtr& scope) {
  at_ = target.at;
  switch (target.form) {
    case Target::Form::name:
      return set_variable(*scope, target.symbol, std::move(value));
    case Target::Form::attribute: {
      const Value object = evaluate_name(target.symbol, target.at, scope);
      if (!object.is(Kind::name_space)) {
        fail("cannot assign an attribute on " + python_repr(program_.symbols[target.symbol]) +
             ", which is not a namespace");
      }
      auto& attributes = object.name_space().attributes;
      charge(attributes.size() / 8 + 1);
      for (auto& [name, old] : attributes) {
        if (equal_text(name, target.attribute)) {
          old = std::move(value);
          return;
        }
      }
      charge_values(4);
      charge_bytes(target.attribute.size());
      attributes.emplace_back(target.attribute, std::move(value));
      return;
    }
    case Target::Form::tuple: {
      std::vector<Value> values = elements(value);
      if (values.size() != target.elements.size()) {
        fail("expected " + std::to_string(target.elements.size()) + " values to unpack, got " +
             std::to_string(values.size()));
      }
      for (std::size_t i = 0; i < values.size(); ++i) {
        assign(target.elements[i], std::move(values[i]), scope);
      }
    }
  }
}

Runtime::Flow Runtime::execute_loop(const Statement& statement, const ScopePtr& scope) {
  const Value iterable = evaluate(*statement.expressions[0], scope);
  at_ = statement.at;
  charge_values(16);
  Loop& loop = loops_.emplace_back();
  loop.statement = &statement;
  loop.scope = scope;
  run_loop(loop, iterable);
  return Flow::normal;
}

// The elements of `source` for which the condition of the statement holds. Where they are unpacked
// into several names, jinja2 makes tuples of them.
Iterator Runtime::filtered(const Statement& statement, const ScopePtr& scope, Iterator source) {
  return [this, &statement, scope, source = std::move(source)](Runtime&, Value& element) {
    const auto inner = std::make_shared<Scope>();
    inner->parent = scope;
    const Target& target = statement.targets[0];
    while (source(*this, element)) {
      inner->variables.clear();
      if (target.form == Target::Form::tuple) element = tuple(elements(element));
      assign(target, element, inner);
      if (is_true(evaluate(*statement.expressions[1], inner))) return true;
    }
    return false;
  };
}

void Runtime::run_loop(Loop& loop, const Value& iterable) {
  const Statement& statement = *loop.statement;
  loop.source = iterate(iterable);
  if (statement.expressions[1] != nullptr) {
    loop.source = filtered(statement, loop.scope, std::move(loop.source));
  }
  ScopePtr scope;
  bool completed = false;
  for (loop.index = 0; has_item(loop, loop.index); ++loop.index) {
    charge(4);
    if (scope == nullptr || scope.use_count() > 1) {  // a macro holds on to the last one
      scope = std::make_shared<Scope>();
      scope->parent = loop.scope;
    }
    scope->variables.clear();
    if (loop_symbol_ < context_.size()) set_variable(*scope, loop_symbol_, Value::of(&loop));
    assign(statement.targets[0], loop.items[loop.index], scope);
    const Flow flow = execute(statement.bodies[0], scope);
    if (flow == Flow::leave) break;
    completed = completed || flow == Flow::normal;
  }
  // What jinja2 does, too: a round that ends early does not count.
  if (!completed && statement.bodies.size() > 1) {
    scope = std::make_shared<Scope>();
    scope->parent = loop.scope;
    execute(statement.bodies[1], scope);
  }
  loop.scope.reset();
  loop.source = nullptr;
  loop.items = {};
}

bool Runtime::has_item(Loop& loop, std::size_t index) {
  while (loop.items.size() <= index) {
    Value element;
    if (loop.source == nullptr || !loop.source(*this, element)) return false;
    charge_values(1);
    loop.items.push_back(std::move(element));
  }
  return true;
}

std::size_t Runtime::loop_length(Loop& loop) {
  while (has_item(loop, loop.items.size())) {
  }
  return loop.items.size();
}

Value Runtime::call_loop(Loop& loop, const Arguments& arguments) {
  if (!loop.statement->recursive) {
    fail("this loop is not recursive: 'recursive' is missing at its 'for'");
  }
  if (loop.scope == nullptr) fail("this loop has ended");
  const auto bound = arguments.bind(*this, {"iterable"}, 1);
  const Depth depth(*this);
  charge_values(16);
  Loop& inner = loops_.emplace_back();
  inner.statement = loop.statement;
  inner.scope = loop.scope;
  inner.depth = loop.depth + 1;
  return text(capture([&] { run_loop(inner, *bound[0]); }));
}

Value Runtime::define_macro(const Statement& statement, const ScopePtr& scope) {
  charge_values(8);
  Macro& macro = macros_.emplace_back();
  macro.statement = &statement;
  macro.scope = scope;
  return Value::of(&macro);
}

void Runtime::execute_call_block(const Statement& statement, const ScopePtr& scope) {
  const Value caller = define_macro(statement, scope);
  const Expression& node = *statement.expressions[0];
  const Value callee = evaluate(*node.operands[0], scope);
  Arguments arguments = evaluate_arguments(node.arguments, scope);
  arguments.keywords.emplace_back("caller", caller);
  at_ = node.at;
  if (callee.is_undefined()) fail(describe(*node.operands[0]) + " is undefined");
  write(str(call(callee, arguments)));
}

void Runtime::bind_parameters(const Macro& macro, const Arguments& arguments,
                              const ScopePtr& scope) {
  const Statement& statement = *macro.statement;
  const auto& parameters = statement.parameters;
  const std::size_t count = parameters.size();
  const std::size_t given = arguments.positional.size();
  const auto name = [&] { return "macro " + python_repr(statement.text); };
  if (given > count && !statement.uses_varargs) {
    fail(name() + " takes at most " + std::to_string(count) + " arguments, got " +
         std::to_string(given));
  }
  std::vector<bool> is_set(count, false);
  for (std::size_t i = 0; i < std::min(count, given); ++i) {
    set_variable(*scope, parameters[i].second, arguments.positional[i]);
    is_set[i] = true;
  }
  std::vector<std::pair<Value, Value>> others;
  Value caller = Value::none();
  for (const auto& [keyword, value] : arguments.keywords) {
    charge(count / 4);
    const auto found =
        std::ranges::find_if(parameters, [&, &wanted = keyword](const auto& parameter) {
          return equal_text(parameter.first, wanted);
        });
    const auto index = static_cast<std::size_t>(found - parameters.begin());
    if (index < count && !is_set[index]) {
      set_variable(*scope, parameters[index].second, value);
      is_set[index] = true;
    } else if (index < count) {
      fail(name() + " got more than one value for the argument " + python_repr(keyword));
    } else if (keyword == "caller" && statement.uses_caller) {
      caller = value;
    } else if (statement.uses_kwargs) {
      insert_member(others, text(keyword), value);
    } else {
      fail(name() + " takes no keyword argument " + python_repr(keyword));
    }
  }
  const std::size_t first_default = count - statement.defaults.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (is_set[i]) continue;
    set_variable(
        *scope, parameters[i].second,
        i < first_default ? Value() : evaluate(*statement.defaults[i - first_default], scope));
  }
  if (statement.uses_caller)
    set_variable(*scope, caller_symbol_, caller.is(Kind::none) ? Value() : caller);
  if (statement.uses_kwargs) set_variable(*scope, kwargs_symbol_, dict(std::move(others)));
  if (statement.uses_varargs) {
    const auto begin =
        arguments.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, given));
    set_variable(*scope, varargs_symbol_, tuple({begin, arguments.positional.end()}));
  }
}

Value Runtime::call_macro(const Macro& macro, const Arguments& arguments) {
  const Depth depth(*this);
  charge_values(8);
  const auto scope = std::make_shared<Scope>();
  scope->parent = macro.scope;
  bind_parameters(macro, arguments, scope);
  return text(capture([&] { execute(macro.statement->bodies[0], scope); }));
}

}  // namespace touchstone::inline v0::io::chat
