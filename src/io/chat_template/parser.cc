#include "io/chat_template/parser.h"

#include <algorithm>
#include <array>

#include "io/chat_template/text.h"

namespace touchstone::inline v0::io::chat {
namespace {

// Tags that jinja2 or its extensions know and this subset does not.
constexpr std::array<std::string_view, 10> kRefusedTags = {
    "include", "import", "from", "extends", "block", "autoescape", "do", "trans", "debug", "raw"};

// A body within a body takes a dozen frames.
constexpr int kMaxNesting = 200;

std::unique_ptr<Statement> make_statement(Action action, Offset at) {
  auto statement = std::make_unique<Statement>();
  statement->action = action;
  statement->at = at;
  return statement;
}

}  // namespace

Program parse(std::string_view source, int max_depth) { return Parser(source, max_depth).run(); }

Parser::Nesting::Nesting(Parser& parser) : parser_(parser) {
  if (++parser_.nesting_ > kMaxNesting) {
    --parser_.nesting_;
    parser_.fail(parser_.current().at,
                 "nested deeper than " + std::to_string(kMaxNesting) + " levels",
                 TemplateFault::limit);
  }
}

Program Parser::run() {
  program_.body = parse_body({});
  program_.symbols.resize(symbols_.size());
  for (const auto& [name, number] : symbols_) program_.symbols[number] = name;
  return std::move(program_);
}

void Parser::fail(Offset at, const std::string& problem, TemplateFault fault) const {
  const Place place = place_of(source_, at);
  throw TemplateError(fault, place.line, place.column, problem);
}

std::string Parser::describe(const Token& token) const {
  switch (token.kind) {
    case TokenKind::end:
      return "the end of the template";
    case TokenKind::data:
      return "text";
    default:
      return python_repr(token.text.substr(0, offset_of(token.text, 40)));
  }
}

bool Parser::skip_op(std::string_view text) {
  if (!at_op(text)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view text) {
  if (!at_name(text)) return false;
  take();
  return true;
}

void Parser::expect_op(std::string_view text) {
  if (!skip_op(text)) {
    fail(current().at, "expected '" + std::string(text) + "', got " + describe(current()));
  }
}

void Parser::expect_name(std::string_view text) {
  if (!skip_name(text)) {
    fail(current().at, "expected '" + std::string(text) + "', got " + describe(current()));
  }
}

std::string Parser::expect_identifier(const char* what) {
  if (current().kind != TokenKind::name) {
    fail(current().at, std::string("expected ") + what + ", got " + describe(current()));
  }
  return std::string(take().text);
}

void Parser::expect_kind(TokenKind kind, const char* what) {
  if (current().kind != kind) {
    fail(current().at, std::string("expected ") + what + ", got " + describe(current()));
  }
  take();
}

Symbol Parser::symbol(std::string_view name) {
  const auto found = symbols_.find(name);
  if (found != symbols_.end()) return found->second;
  const auto number = static_cast<Symbol>(symbols_.size());
  symbols_.emplace(std::string(name), number);
  return number;
}

// Up to a tag of one of the names `ends`, whose begin is taken and whose name is not.
Body Parser::parse_body(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(*this);
  Body body;
  const Offset begin = current().at;
  while (true) {
    const Token& token = current();
    if (token.kind == TokenKind::end) {
      if (ends.size() == 0) return body;
      fail(token.at, "the template ends before '" + std::string(*(ends.end() - 1)) +
                         "' of the block that begins in line " +
                         std::to_string(place_of(source_, begin).line));
    }
    if (token.kind == TokenKind::data) {
      auto statement = make_statement(Action::text, token.at);
      statement->text = take().text;
      body.push_back(std::move(statement));
    } else if (token.kind == TokenKind::variable_begin) {
      auto statement = make_statement(Action::output, take().at);
      statement->expressions.push_back(parse_tuple({}));
      expect_kind(TokenKind::variable_end, "'}}'");
      body.push_back(std::move(statement));
    } else {
      take();
      const std::string_view name = current().text;
      if (current().kind == TokenKind::name && std::ranges::find(ends, name) != ends.end()) {
        return body;
      }
      body.push_back(parse_statement());
      expect_kind(TokenKind::block_end, "'%}'");
    }
  }
}

std::unique_ptr<Statement> Parser::parse_statement() {
  if (current().kind != TokenKind::name) {
    fail(current().at, "expected the name of a tag, got " + describe(current()));
  }
  const std::string_view name = current().text;
  if (name == "if") return parse_if();
  if (name == "for") return parse_for();
  if (name == "set") return parse_set();
  if (name == "macro") return parse_macro();
  if (name == "call") return parse_call_block();
  if (name == "filter") return parse_filter_block();
  if (name == "with") return parse_with();
  if (name == "print") return parse_print();
  if (name == "generation") return parse_generation();
  if (name == "break") return parse_loop_control(Action::leave_loop);
  if (name == "continue") return parse_loop_control(Action::next_round);
  const bool known = std::ranges::find(kRefusedTags, name) != kRefusedTags.end();
  fail(current().at,
       (known ? "the tag '" : "unknown tag '") + std::string(name) +
           (known ? "' is not supported" : "'"),
       known ? TemplateFault::unsupported : TemplateFault::syntax);
}

std::unique_ptr<Statement> Parser::parse_if() {
  auto statement = make_statement(Action::choose, take().at);
  statement->expressions.push_back(parse_tuple({.conditional = false}));
  while (true) {
    expect_kind(TokenKind::block_end, "'%}'");
    statement->bodies.push_back(parse_body({"elif", "else", "endif"}));
    if (skip_name("elif")) {
      statement->expressions.push_back(parse_tuple({.conditional = false}));
    } else if (skip_name("else")) {
      expect_kind(TokenKind::block_end, "'%}'");
      statement->bodies.push_back(parse_body({"endif"}));
      break;
    } else {
      break;
    }
  }
  expect_name("endif");
  return statement;
}

std::unique_ptr<Statement> Parser::parse_for() {
  auto statement = make_statement(Action::loop, take().at);
  statement->targets.push_back(parse_target(false, true));
  expect_name("in");
  statement->expressions.push_back(parse_tuple({.conditional = false, .end_word = "recursive"}));
  statement->expressions.push_back(skip_name("if") ? parse_expression() : nullptr);
  statement->recursive = skip_name("recursive");
  expect_kind(TokenKind::block_end, "'%}'");
  ++loops_;
  statement->bodies.push_back(parse_body({"else", "endfor"}));
  --loops_;
  if (skip_name("else")) {
    expect_kind(TokenKind::block_end, "'%}'");
    statement->bodies.push_back(parse_body({"endfor"}));
  }
  expect_name("endfor");
  return statement;
}

std::unique_ptr<Statement> Parser::parse_set() {
  auto statement = make_statement(Action::assign, take().at);
  statement->targets.push_back(parse_target(true, true));
  if (skip_op("=")) {
    statement->expressions.push_back(parse_tuple({}));
    return statement;
  }
  statement->action = Action::assign_block;
  statement->expressions.push_back(at_op("|") ? parse_filters(nullptr, false) : nullptr);
  expect_kind(TokenKind::block_end, "'%}'");
  statement->bodies.push_back(parse_body({"endset"}));
  expect_name("endset");
  return statement;
}

// The parameters of a macro or of a call block.
void Parser::parse_signature(Statement& macro) {
  expect_op("(");
  while (!at_op(")")) {
    if (!macro.parameters.empty()) expect_op(",");
    if (at_op(")")) break;
    const Offset at = current().at;
    const std::string name = expect_identifier("the name of a parameter");
    if (name == "caller" || name == "varargs" || name == "kwargs") {
      fail(at, "a parameter named '" + name + "' is not supported", TemplateFault::unsupported);
    }
    macro.parameters.emplace_back(name, symbol(name));
    if (skip_op("=")) {
      macro.defaults.push_back(parse_expression());
    } else if (!macro.defaults.empty()) {
      fail(at, "the parameter '" + name + "' has no default and follows one that has");
    }
  }
  expect_op(")");
}

void Parser::parse_macro_body(Statement& macro, std::string_view end) {
  expect_kind(TokenKind::block_end, "'%}'");
  const int loops = std::exchange(loops_, 0);
  macros_.push_back(&macro);
  macro.bodies.push_back(parse_body({end}));
  macros_.pop_back();
  loops_ = loops;
  expect_name(end);
}

std::unique_ptr<Statement> Parser::parse_macro() {
  auto statement = make_statement(Action::macro, take().at);
  statement->text = expect_identifier("the name of the macro");
  statement->symbol = symbol(statement->text);
  parse_signature(*statement);
  parse_macro_body(*statement, "endmacro");
  return statement;
}

std::unique_ptr<Statement> Parser::parse_call_block() {
  auto statement = make_statement(Action::call_block, take().at);
  statement->text = "caller";
  if (at_op("(")) parse_signature(*statement);
  const Offset at = current().at;
  statement->expressions.push_back(parse_expression());
  if (statement->expressions[0]->operation != Operation::call) fail(at, "expected a call");
  parse_macro_body(*statement, "endcall");
  return statement;
}

std::unique_ptr<Statement> Parser::parse_filter_block() {
  auto statement = make_statement(Action::filter_block, take().at);
  statement->expressions.push_back(parse_filters(nullptr, true));
  expect_kind(TokenKind::block_end, "'%}'");
  statement->bodies.push_back(parse_body({"endfilter"}));
  expect_name("endfilter");
  return statement;
}

std::unique_ptr<Statement> Parser::parse_with() {
  auto statement = make_statement(Action::with, take().at);
  while (current().kind != TokenKind::block_end) {
    if (!statement->targets.empty()) expect_op(",");
    statement->targets.push_back(parse_target(false, false));
    expect_op("=");
    statement->expressions.push_back(parse_expression());
  }
  take();
  statement->bodies.push_back(parse_body({"endwith"}));
  expect_name("endwith");
  return statement;
}

std::unique_ptr<Statement> Parser::parse_print() {
  auto statement = make_statement(Action::output, take().at);
  while (current().kind != TokenKind::block_end) {
    if (!statement->expressions.empty()) expect_op(",");
    statement->expressions.push_back(parse_expression());
  }
  return statement;
}

std::unique_ptr<Statement> Parser::parse_generation() {
  auto statement = make_statement(Action::generation, take().at);
  expect_kind(TokenKind::block_end, "'%}'");
  const int loops = std::exchange(loops_, 0);
  statement->bodies.push_back(parse_body({"endgeneration"}));
  loops_ = loops;
  expect_name("endgeneration");
  return statement;
}

std::unique_ptr<Statement> Parser::parse_loop_control(Action action) {
  const Token& token = take();
  if (loops_ == 0) fail(token.at, "'" + std::string(token.text) + "' outside of a loop");
  return make_statement(action, token.at);
}

Target Parser::parse_target_element(bool with_namespace) {
  Target target;
  target.at = current().at;
  if (skip_op("(")) {
    target = parse_target(false, true);
    expect_op(")");
    return target;
  }
  const std::string name = expect_identifier("a name to assign to");
  constexpr std::array<std::string_view, 6> kConstants = {"true", "false", "none",
                                                          "True", "False", "None"};
  if (std::ranges::find(kConstants, name) != kConstants.end()) {
    fail(target.at, "cannot assign to '" + name + "'");
  }
  target.symbol = symbol(name);
  if (with_namespace && skip_op(".")) {
    target.form = Target::Form::attribute;
    target.attribute = expect_identifier("an attribute of the namespace");
  }
  return target;
}

Target Parser::parse_target(bool with_namespace, bool with_tuple) {
  const Nesting nesting(*this);
  Target first = parse_target_element(with_namespace);
  if (!with_tuple || !at_op(",")) return first;
  Target tuple;
  tuple.form = Target::Form::tuple;
  tuple.at = first.at;
  tuple.elements.push_back(std::move(first));
  while (skip_op(",")) {
    if (current().kind != TokenKind::name && !at_op("(")) break;
    if (at_name("in")) break;
    tuple.elements.push_back(parse_target_element(with_namespace));
  }
  return tuple;
}

}  // namespace touchstone::inline v0::io::chat
