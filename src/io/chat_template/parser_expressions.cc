#include <algorithm>
#include <array>
#include <charconv>

#include "io/chat_template/functions.h"
#include "io/chat_template/parser.h"
#include "io/chat_template/text.h"

namespace touchstone::inline v0::io::chat {

ExpressionPtr Parser::make(Operation operation, Offset at) const {
  auto node = std::make_unique<Expression>();
  node->operation = operation;
  node->at = at;
  return node;
}

ExpressionPtr Parser::make(Operation operation, Offset at, ExpressionPtr a, ExpressionPtr b) {
  ExpressionPtr node = make(operation, at);
  adopt(*node, std::move(a));
  if (b != nullptr) adopt(*node, std::move(b));
  return node;
}

// A chain of operators is as deep as it is long, without any nesting of the parser.
void Parser::deepen(Expression& parent, const Expression* child) const {
  if (child == nullptr) return;
  parent.depth = std::max(parent.depth, child->depth + 1);
  if (parent.depth > max_depth_ / 2) {
    fail(parent.at,
         "an expression of more than " + std::to_string(max_depth_ / 2) + " nested operations",
         TemplateFault::limit);
  }
}

void Parser::deepen_by_arguments(Expression& parent) const {
  for (const ExpressionPtr& argument : parent.arguments.positional) deepen(parent, argument.get());
  for (const auto& [name, argument] : parent.arguments.keywords) deepen(parent, argument.get());
  deepen(parent, parent.arguments.star.get());
  deepen(parent, parent.arguments.double_star.get());
}

void Parser::adopt(Expression& parent, ExpressionPtr child) {
  deepen(parent, child.get());
  parent.operands.push_back(std::move(child));
}

ExpressionPtr Parser::parse_expression() {
  const Nesting nesting(*this);
  ExpressionPtr node = parse_or();
  while (at_name("if")) {
    const Offset at = take().at;
    ExpressionPtr condition = parse_or();
    ExpressionPtr chosen = make(Operation::conditional, at, std::move(node), std::move(condition));
    adopt(*chosen, skip_name("else") ? parse_expression() : nullptr);
    node = std::move(chosen);
  }
  return node;
}

ExpressionPtr Parser::parse_or() {
  ExpressionPtr node = parse_and();
  while (at_name("or")) {
    const Offset at = take().at;
    node = make(Operation::logical_or, at, std::move(node), parse_and());
  }
  return node;
}

ExpressionPtr Parser::parse_and() {
  ExpressionPtr node = parse_not();
  while (at_name("and")) {
    const Offset at = take().at;
    node = make(Operation::logical_and, at, std::move(node), parse_not());
  }
  return node;
}

ExpressionPtr Parser::parse_not() {
  if (!at_name("not")) return parse_compare();
  const Nesting nesting(*this);
  const Offset at = take().at;
  return make(Operation::logical_not, at, parse_not());
}

ExpressionPtr Parser::parse_compare() {
  constexpr std::array<std::pair<std::string_view, Comparison>, 6> kOperators = {
      {{"==", Comparison::eq},
       {"!=", Comparison::ne},
       {"<", Comparison::lt},
       {"<=", Comparison::le},
       {">", Comparison::gt},
       {">=", Comparison::ge}}};
  const Offset at = current().at;
  ExpressionPtr node = parse_sum();
  ExpressionPtr chain;
  while (true) {
    Comparison comparison;
    const auto found = std::ranges::find_if(
        kOperators, [&](const auto& candidate) { return at_op(candidate.first); });
    if (found != kOperators.end()) {
      comparison = found->second;
      take();
    } else if (skip_name("in")) {
      comparison = Comparison::in;
    } else if (at_name("not") && tokens_[next_ + 1].kind == TokenKind::name &&
               tokens_[next_ + 1].text == "in") {
      take();
      take();
      comparison = Comparison::not_in;
    } else {
      return chain == nullptr ? std::move(node) : std::move(chain);
    }
    if (chain == nullptr) chain = make(Operation::compare, at, std::move(node));
    chain->comparisons.push_back(comparison);
    adopt(*chain, parse_sum());
  }
}

ExpressionPtr Parser::parse_sum() {
  ExpressionPtr node = parse_concatenation();
  while (at_op("+") || at_op("-")) {
    const Token& token = take();
    node = make(token.text == "+" ? Operation::add : Operation::subtract, token.at, std::move(node),
                parse_concatenation());
  }
  return node;
}

ExpressionPtr Parser::parse_concatenation() {
  ExpressionPtr node = parse_product();
  if (!at_op("~")) return node;
  ExpressionPtr all = make(Operation::concatenate, current().at, std::move(node));
  while (skip_op("~")) adopt(*all, parse_product());
  return all;
}

ExpressionPtr Parser::parse_product() {
  ExpressionPtr node = parse_power();
  while (at_op("*") || at_op("/") || at_op("//") || at_op("%")) {
    const Token& token = take();
    const Operation operation = token.text == "*"    ? Operation::multiply
                                : token.text == "/"  ? Operation::divide
                                : token.text == "//" ? Operation::floor_divide
                                                     : Operation::modulo;
    node = make(operation, token.at, std::move(node), parse_power());
  }
  return node;
}

ExpressionPtr Parser::parse_power() {
  ExpressionPtr node = parse_unary(true);
  while (at_op("**")) {
    const Offset at = take().at;
    node = make(Operation::power, at, std::move(node), parse_unary(true));
  }
  return node;
}

ExpressionPtr Parser::parse_unary(bool with_filter) {
  ExpressionPtr node;
  if (at_op("-") || at_op("+")) {
    const Nesting nesting(*this);
    const Token& token = take();
    node =
        make(token.text == "-" ? Operation::negate : Operation::plus, token.at, parse_unary(false));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPtr Parser::parse_name() {
  const Token& token = take();
  const std::string_view name = token.text;
  ExpressionPtr node = make(Operation::constant, token.at);
  if (name == "true" || name == "True") {
    node->value = Value::of(true);
  } else if (name == "false" || name == "False") {
    node->value = Value::of(false);
  } else if (name == "none" || name == "None") {
    node->value = Value::none();
  } else {
    node->operation = Operation::name;
    node->symbol = symbol(name);
    for (Statement* macro : macros_) {
      macro->uses_caller |= name == "caller";
      macro->uses_varargs |= name == "varargs";
      macro->uses_kwargs |= name == "kwargs";
    }
  }
  return node;
}

ExpressionPtr Parser::parse_primary() {
  switch (current().kind) {
    case TokenKind::name:
      return parse_name();
    case TokenKind::string:
      return parse_strings();
    case TokenKind::integer:
    case TokenKind::floating:
      return parse_number();
    default:
      break;
  }
  if (skip_op("(")) {
    ExpressionPtr node = parse_tuple({.in_parentheses = true});
    expect_op(")");
    return node;
  }
  if (at_op("[")) return parse_list();
  if (at_op("{")) return parse_dict();
  fail(current().at, "expected an expression, got " + describe(current()));
}

ExpressionPtr Parser::parse_strings() {
  ExpressionPtr node = make(Operation::constant, current().at);
  std::string text;
  while (current().kind == TokenKind::string) text += unescape(source_, take());
  node->value = Value::of_text(std::move(text));
  return node;
}

ExpressionPtr Parser::parse_number() {
  const Token& token = take();
  ExpressionPtr node = make(Operation::constant, token.at);
  std::string digits(token.text);
  std::erase(digits, '_');
  const char* const end = digits.data() + digits.size();
  if (token.kind == TokenKind::floating) {
    double value = 0;
    const auto read = std::from_chars(digits.data(), end, value);
    if (read.ec == std::errc::result_out_of_range) {
      fail(token.at, "the number " + digits + " is out of range", TemplateFault::unsupported);
    }
    node->value = Value::of(value);
    return node;
  }
  const char mark = digits.size() > 2 ? static_cast<char>(digits[1] | 0x20) : '\0';
  const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
  std::int64_t value = 0;
  const auto read = std::from_chars(digits.data() + (base == 10 ? 0 : 2), end, value, base);
  if (read.ec != std::errc()) {
    fail(token.at, "the number " + digits + " needs more than 64 bits", TemplateFault::unsupported);
  }
  node->value = Value::of(value);
  return node;
}

bool Parser::is_tuple_end(std::string_view end_word) const {
  return current().kind == TokenKind::variable_end || current().kind == TokenKind::block_end ||
         at_op(")") || (!end_word.empty() && at_name(end_word));
}

ExpressionPtr Parser::parse_tuple(TupleRules rules) {
  const Nesting nesting(*this);
  const Offset at = current().at;
  ExpressionPtr tuple = make(Operation::tuple, at);
  bool comma = false;
  while (!is_tuple_end(rules.end_word)) {
    adopt(*tuple, rules.conditional ? parse_expression() : parse_or());
    if (!at_op(",")) break;
    take();
    comma = true;
  }
  if (comma) return tuple;
  if (!tuple->operands.empty()) return std::move(tuple->operands[0]);
  if (!rules.in_parentheses) {
    fail(at, "expected an expression, got " + describe(current()));
  }
  return tuple;
}

ExpressionPtr Parser::parse_list() {
  ExpressionPtr node = make(Operation::list, take().at);
  while (!at_op("]")) {
    if (!node->operands.empty()) expect_op(",");
    if (at_op("]")) break;
    adopt(*node, parse_expression());
  }
  expect_op("]");
  return node;
}

ExpressionPtr Parser::parse_dict() {
  ExpressionPtr node = make(Operation::dict, take().at);
  while (!at_op("}")) {
    if (!node->operands.empty()) expect_op(",");
    if (at_op("}")) break;
    adopt(*node, parse_expression());
    expect_op(":");
    adopt(*node, parse_expression());
  }
  expect_op("}");
  return node;
}

ExpressionPtr Parser::parse_postfix(ExpressionPtr node) {
  while (true) {
    if (at_op(".") || at_op("[")) {
      node = parse_subscript(std::move(node));
    } else if (at_op("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::parse_subscript(ExpressionPtr node) {
  const Token& token = take();
  if (token.text == ".") {
    if (current().kind == TokenKind::name) {
      ExpressionPtr attribute = make(Operation::attribute, current().at, std::move(node));
      attribute->text = take().text;
      return attribute;
    }
    if (current().kind != TokenKind::integer) {
      fail(current().at, "expected the name of an attribute, got " + describe(current()));
    }
    return make(Operation::item, token.at, std::move(node), parse_number());
  }
  ExpressionPtr index = parse_slice();
  if (at_op(",")) {
    const Offset at = index->at;
    index = make(Operation::tuple, at, std::move(index));
    while (skip_op(",")) adopt(*index, parse_slice());
  }
  expect_op("]");
  return make(Operation::item, token.at, std::move(node), std::move(index));
}

ExpressionPtr Parser::parse_slice() {
  const Offset at = current().at;
  ExpressionPtr start;
  if (!at_op(":")) {
    start = parse_expression();
    if (!at_op(":")) return start;
  }
  ExpressionPtr slice = make(Operation::slice, at);
  adopt(*slice, std::move(start));
  for (int i = 0; i < 2; ++i) {
    const bool given = skip_op(":") && !at_op(":") && !at_op("]") && !at_op(",");
    adopt(*slice, given ? parse_expression() : nullptr);
  }
  return slice;
}

ExpressionPtr Parser::parse_filters_and_tests(ExpressionPtr node) {
  while (true) {
    if (at_op("|")) {
      node = parse_filters(std::move(node), false);
    } else if (at_name("is")) {
      node = parse_test(std::move(node));
    } else if (at_op("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::parse_filters(ExpressionPtr node, bool first) {
  while (first || at_op("|")) {
    if (!first) take();
    first = false;
    const Offset at = current().at;
    std::string name = expect_identifier("the name of a filter");
    while (skip_op(".")) name.append(".").append(expect_identifier("the name of a filter"));
    ExpressionPtr filter = make(Operation::filter, at);
    filter->filter = find_filter(name);
    if (filter->filter == nullptr) {
      fail(at, "unknown filter '" + name + "'", TemplateFault::unsupported);
    }
    filter->text = std::move(name);
    adopt(*filter, std::move(node));
    if (at_op("(")) parse_arguments(filter->arguments);
    deepen_by_arguments(*filter);
    check_named_function(*filter);
    node = std::move(filter);
  }
  return node;
}

// The filters that take the name of another one, or of a test: a name that is written down is
// checked here and not when it is called.
void Parser::check_named_function(const Expression& node) {
  const bool of_test = node.text == "select" || node.text == "reject";
  const bool of_attribute_test = node.text == "selectattr" || node.text == "rejectattr";
  const std::size_t index = of_attribute_test ? 1 : 0;
  if (!of_test && !of_attribute_test && node.text != "map") return;
  if (node.arguments.positional.size() <= index) return;
  const Expression& argument = *node.arguments.positional[index];
  if (argument.operation != Operation::constant || !argument.value.is_string()) return;
  const std::string& name = argument.value.text();
  const bool known = node.text == "map" ? find_filter(name) != nullptr : find_test(name) != nullptr;
  if (!known) {
    fail(argument.at,
         (node.text == "map" ? "unknown filter " : "unknown test ") + python_repr(name),
         TemplateFault::unsupported);
  }
}

ExpressionPtr Parser::parse_test(ExpressionPtr node) {
  take();
  const bool negated = skip_name("not");
  const Offset at = current().at;
  std::string name = expect_identifier("the name of a test");
  while (skip_op(".")) name.append(".").append(expect_identifier("the name of a test"));
  ExpressionPtr test = make(Operation::test, at, std::move(node));
  test->test = find_test(name);
  if (test->test == nullptr) fail(at, "unknown test '" + name + "'", TemplateFault::unsupported);
  test->text = std::move(name);
  const TokenKind kind = current().kind;
  if (at_op("(")) {
    parse_arguments(test->arguments);
  } else if ((kind == TokenKind::name || kind == TokenKind::string || kind == TokenKind::integer ||
              kind == TokenKind::floating || at_op("[") || at_op("{")) &&
             !at_name("else") && !at_name("or") && !at_name("and")) {
    if (at_name("is")) fail(current().at, "tests cannot be chained with 'is'");
    test->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  deepen_by_arguments(*test);
  return negated ? make(Operation::logical_not, at, std::move(test)) : std::move(test);
}

ExpressionPtr Parser::parse_call(ExpressionPtr node) {
  ExpressionPtr call = make(Operation::call, current().at, std::move(node));
  parse_arguments(call->arguments);
  deepen_by_arguments(*call);
  return call;
}

void Parser::parse_arguments(ArgumentNodes& arguments) {
  const Nesting nesting(*this);
  expect_op("(");
  bool any = false;
  while (!at_op(")")) {
    if (any) expect_op(",");
    if (at_op(")")) break;
    any = true;
    const Token& token = current();
    if (skip_op("**")) {
      if (arguments.double_star != nullptr) fail(token.at, "a second '**' argument");
      arguments.double_star = parse_expression();
    } else if (skip_op("*")) {
      if (arguments.star != nullptr || arguments.double_star != nullptr) {
        fail(token.at, "a '*' argument after another one");
      }
      arguments.star = parse_expression();
    } else if (token.kind == TokenKind::name && tokens_[next_ + 1].kind == TokenKind::op &&
               tokens_[next_ + 1].text == "=") {
      if (arguments.double_star != nullptr) fail(token.at, "an argument after '**'");
      take();
      take();
      arguments.keywords.emplace_back(std::string(token.text), parse_expression());
    } else {
      if (arguments.star != nullptr || arguments.double_star != nullptr ||
          !arguments.keywords.empty()) {
        fail(token.at, "a positional argument after a keyword argument");
      }
      arguments.positional.push_back(parse_expression());
    }
  }
  expect_op(")");
}

}  // namespace touchstone::inline v0::io::chat
