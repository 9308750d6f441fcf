// Expressions.
#include <algorithm>
#include <iterator>

#include "io/chat_template/runtime.h"
#include "io/chat_template/text.h"

namespace touchstone::inline v0::io::chat {

Value Runtime::evaluate(const Expression& node, const ScopePtr& scope) {
  const Depth depth(*this);
  charge(1);
  switch (node.operation) {
    case Operation::constant:
      return node.value;
    case Operation::name:
      return evaluate_name(node.symbol, node.at, scope);
    case Operation::list:
    case Operation::tuple:
      return evaluate_operands(node, scope);
    case Operation::dict:
      return evaluate_dict(node, scope);
    case Operation::attribute:
      return evaluate_attribute(node, evaluate(*node.operands[0], scope));
    case Operation::item:
      return evaluate_item(node, scope);
    case Operation::slice:
      at_ = node.at;
      unsupported("a slice within a tuple of subscripts is not supported");
    case Operation::call:
      return evaluate_call(node, scope);
    case Operation::filter:
      return evaluate_filter(node, scope);
    case Operation::test: {
      const Value value = evaluate(*node.operands[0], scope);
      const Arguments arguments = evaluate_arguments(node.arguments, scope);
      at_ = node.at;
      return Value::of(node.test->apply(*this, value, arguments));
    }
    case Operation::conditional:
      if (is_true(evaluate(*node.operands[1], scope))) return evaluate(*node.operands[0], scope);
      return node.operands[2] == nullptr ? Value() : evaluate(*node.operands[2], scope);
    case Operation::logical_and: {
      Value value = evaluate(*node.operands[0], scope);
      return is_true(value) ? evaluate(*node.operands[1], scope) : value;
    }
    case Operation::logical_or: {
      Value value = evaluate(*node.operands[0], scope);
      return is_true(value) ? value : evaluate(*node.operands[1], scope);
    }
    case Operation::logical_not:
      return Value::of(!is_true(evaluate(*node.operands[0], scope)));
    case Operation::compare:
      return evaluate_compare(node, scope);
    case Operation::concatenate:
      return evaluate_concatenation(node, scope);
    case Operation::negate:
    case Operation::plus: {
      const Value value = evaluate(*node.operands[0], scope);
      at_ = node.at;
      return unary(node.operation, value);
    }
    default: {
      const Value a = evaluate(*node.operands[0], scope);
      const Value b = evaluate(*node.operands[1], scope);
      at_ = node.at;
      return arithmetic(node.operation, a, b);
    }
  }
}

Value Runtime::evaluate_name(Symbol symbol, Offset at, const ScopePtr& scope) {
  std::size_t blocks = 0;
  for (Scope* block = scope.get(); block != nullptr; block = block->parent.get()) {
    if (const Value* value = find_variable(*block, symbol)) return *value;
    if (++blocks % 4 == 0) charge(1);
  }
  const Value& value = context_[symbol];
  // Globals of jinja2 that this subset leaves out: refused, because jinja2 defines them.
  if (value.is_undefined()) {
    constexpr std::string_view kRefused[] = {"cycler", "joiner", "lipsum", "self"};
    const std::string& name = program_.symbols[symbol];
    if (std::ranges::find(kRefused, name) != std::end(kRefused)) {
      at_ = at;
      unsupported("the name " + python_repr(name) + " is not supported");
    }
  }
  return value;
}

Value Runtime::evaluate_operands(const Expression& node, const ScopePtr& scope) {
  charge_values(node.operands.size());
  std::vector<Value> items;
  items.reserve(node.operands.size());
  for (const ExpressionPtr& operand : node.operands) items.push_back(evaluate(*operand, scope));
  at_ = node.at;
  return sequence(node.operation == Operation::list ? Kind::list : Kind::tuple, std::move(items));
}

Value Runtime::evaluate_dict(const Expression& node, const ScopePtr& scope) {
  std::vector<std::pair<Value, Value>> members;
  for (std::size_t i = 0; i < node.operands.size(); i += 2) {
    Value key = evaluate(*node.operands[i], scope);
    Value value = evaluate(*node.operands[i + 1], scope);
    at_ = node.at;
    insert_member(members, std::move(key), std::move(value));
  }
  return dict(std::move(members));
}

Value Runtime::evaluate_item(const Expression& node, const ScopePtr& scope) {
  const Value object = evaluate(*node.operands[0], scope);
  const Expression& index = *node.operands[1];
  if (index.operation == Operation::slice) {
    Value bounds[3];
    for (std::size_t i = 0; i < 3; ++i) {
      const ExpressionPtr& bound = index.operands[i];
      bounds[i] = bound == nullptr ? Value::none() : evaluate(*bound, scope);
    }
    at_ = node.at;
    return slice(object, bounds[0], bounds[1], bounds[2]);
  }
  const Value key = evaluate(index, scope);
  at_ = node.at;
  if (object.is_undefined()) {
    fail(describe(*node.operands[0]) + " is undefined, and has no elements");
  }
  return item(object, key);
}

Value Runtime::evaluate_attribute(const Expression& node, const Value& object) {
  at_ = node.at;
  if (object.is_undefined()) {
    fail(describe(*node.operands[0]) + " is undefined, and has no attribute " +
         python_repr(node.text));
  }
  return attribute(object, node.text);
}

Value Runtime::evaluate_call(const Expression& node, const ScopePtr& scope) {
  const Expression& target = *node.operands[0];
  Value callee;
  if (target.operation == Operation::attribute) {
    const Value object = evaluate(*target.operands[0], scope);
    if (find_method(object, target.text) == MethodState::callable) {
      const Arguments arguments = evaluate_arguments(node.arguments, scope);
      at_ = node.at;
      return call_method(*this, object, target.text, arguments);
    }
    callee = evaluate_attribute(target, object);
  } else {
    callee = evaluate(target, scope);
  }
  const Arguments arguments = evaluate_arguments(node.arguments, scope);
  at_ = node.at;
  if (callee.is_undefined()) fail(describe(target) + " is undefined and cannot be called");
  return call(callee, arguments);
}

Value Runtime::evaluate_compare(const Expression& node, const ScopePtr& scope) {
  Value left = evaluate(*node.operands[0], scope);
  for (std::size_t i = 0; i < node.comparisons.size(); ++i) {
    Value right = evaluate(*node.operands[i + 1], scope);
    at_ = node.at;
    if (!compare(node.comparisons[i], left, right)) return Value::of(false);
    left = std::move(right);
  }
  return Value::of(true);
}

bool Runtime::compare(Comparison comparison, const Value& a, const Value& b) {
  switch (comparison) {
    case Comparison::eq:
      return equal(a, b);
    case Comparison::ne:
      return !equal(a, b);
    case Comparison::lt:
      return less(a, b);
    case Comparison::gt:
      return less(b, a);
    case Comparison::le:
      return less(a, b) || equal(a, b);
    case Comparison::ge:
      return less(b, a) || equal(a, b);
    case Comparison::in:
      return contains(b, a);
    case Comparison::not_in:
      return !contains(b, a);
  }
  return false;
}

Value Runtime::evaluate_concatenation(const Expression& node, const ScopePtr& scope) {
  std::string joined;
  for (const ExpressionPtr& operand : node.operands) {
    const Value value = evaluate(*operand, scope);
    at_ = node.at;
    value.is_string() ? append(joined, value.text()) : append(joined, str(value));
  }
  return text(std::move(joined));
}

Value Runtime::evaluate_filter(const Expression& node, const ScopePtr& scope) {
  const Value value = evaluate(*node.operands[0], scope);
  const Arguments arguments = evaluate_arguments(node.arguments, scope);
  at_ = node.at;
  return node.filter->apply(*this, value, arguments);
}

Value Runtime::apply_filters(const Expression& node, const ScopePtr& scope, Value text) {
  const Depth depth(*this);
  const Value value = node.operands[0] == nullptr
                          ? std::move(text)
                          : apply_filters(*node.operands[0], scope, std::move(text));
  const Arguments arguments = evaluate_arguments(node.arguments, scope);
  at_ = node.at;
  return node.filter->apply(*this, value, arguments);
}

Arguments Runtime::evaluate_arguments(const ArgumentNodes& nodes, const ScopePtr& scope) {
  Arguments arguments;
  arguments.positional.reserve(nodes.positional.size());
  for (const ExpressionPtr& node : nodes.positional) {
    arguments.positional.push_back(evaluate(*node, scope));
  }
  if (nodes.star != nullptr) {
    const Value value = evaluate(*nodes.star, scope);
    for (Value& element : elements(value)) arguments.positional.push_back(std::move(element));
  }
  for (const auto& [name, node] : nodes.keywords) {
    charge_bytes(name.size());
    arguments.keywords.emplace_back(name, evaluate(*node, scope));
  }
  if (nodes.double_star != nullptr) {
    const Value value = evaluate(*nodes.double_star, scope);
    if (!value.is(Kind::dict)) {
      fail(std::string("the argument after ** must be a mapping, not ") + type_name(value));
    }
    charge_values(value.members().size());
    for (const auto& [key, member] : value.members()) {
      if (!key.is_string()) fail("keywords must be strings");
      charge_bytes(key.text().size());
      arguments.keywords.emplace_back(key.text(), member);
    }
  }
  return arguments;
}

std::string Runtime::describe(const Expression& node) const {
  switch (node.operation) {
    case Operation::name:
      return python_repr(program_.symbols[node.symbol]);
    case Operation::attribute:
      return "the attribute " + python_repr(node.text);
    case Operation::item:
      return node.operands[1]->operation == Operation::constant &&
                     node.operands[1]->value.is_string()
                 ? "the element " + python_repr(node.operands[1]->value.text())
                 : "this element";
    default:
      return "this value";
  }
}

}  // namespace touchstone::inline v0::io::chat
