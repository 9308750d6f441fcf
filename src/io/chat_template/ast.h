// The tree of a parsed template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/chat_template/value.h"

namespace touchstone::inline v0::io::chat {

struct Filter;
struct Test;
struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

// Where something begins in the source, whose line breaks are normalized.
using Offset = std::uint32_t;
// Number of a variable's name, the same everywhere in a template.
using Symbol = std::uint32_t;

enum class Operation : std::uint8_t {
  constant,
  name,
  list,
  tuple,
  dict,         // operands: key, value, key, value, ...
  attribute,    // operands[0].text
  item,         // operands[0][operands[1]]
  slice,        // operands: start, stop, step, each may be null
  call,         // operands[0](arguments)
  filter,       // operands[0]|text(arguments); no operand in a filter block
  test,         // operands[0] is text(arguments)
  conditional,  // operands[0] if operands[1] else operands[2], which may be null
  logical_and,
  logical_or,
  logical_not,
  compare,  // operands[0] comparisons[0] operands[1] comparisons[1] ...
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  concatenate,
  negate,
  plus,
};

enum class Comparison : std::uint8_t { eq, ne, lt, le, gt, ge, in, not_in };

struct ArgumentNodes {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  ExpressionPtr star;
  ExpressionPtr double_star;
};

struct Expression {
  Operation operation;
  Offset at = 0;
  int depth = 1;
  Symbol symbol = 0;  // of a name
  std::string text;   // of an attribute, a filter, a test
  Value value;        // of a constant
  std::vector<ExpressionPtr> operands;
  std::vector<Comparison> comparisons;
  ArgumentNodes arguments;
  const Filter* filter = nullptr;
  const Test* test = nullptr;
};

// The target of `set` and `for`.
struct Target {
  enum class Form : std::uint8_t { name, attribute, tuple };
  Form form = Form::name;
  Offset at = 0;
  Symbol symbol = 0;
  std::string attribute;  // of the namespace `symbol`
  std::vector<Target> elements;
};

enum class Action : std::uint8_t {
  text,
  output,        // expressions, one after the other
  choose,        // if; expressions: the conditions; bodies: one each, and the else branch
  loop,          // for; expressions: iterable, filter or null; bodies: body, else branch
  assign,        // set target = expressions[0]
  assign_block,  // set target; expressions[0]: the filters or null; bodies[0]
  macro,         // name, parameters, defaults; bodies[0]
  call_block,    // expressions[0]: the call; parameters, defaults; bodies[0]
  filter_block,  // expressions[0]: the filters; bodies[0]
  with,          // targets = expressions; bodies[0]
  generation,    // bodies[0], in a scope of its own
  leave_loop,    // break
  next_round,    // continue
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct Statement {
  Action action;
  Offset at = 0;
  std::string text;  // also the name of a macro
  std::vector<ExpressionPtr> expressions;
  std::vector<Body> bodies;
  std::vector<Target> targets;
  Symbol symbol = 0;  // of a macro
  std::vector<std::pair<std::string, Symbol>> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  bool recursive = false;
  // Names that the body of a macro uses beside its parameters.
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

struct Program {
  Body body;
  std::vector<std::string> symbols;  // the name of each
};

}  // namespace touchstone::inline v0::io::chat
