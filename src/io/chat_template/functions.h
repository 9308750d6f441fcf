// The names that a template can call: filters, tests, methods of values, functions of the
// environment.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/chat_template/value.h"

namespace touchstone::inline v0::io::chat {

class Runtime;

// Of one call, evaluated.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;

  // The arguments in the order of the parameters `names`; null where one is not given. What Python
  // refuses is refused: too many, an unknown or a repeated name, less than `required`.
  std::vector<const Value*> bind(Runtime& runtime, std::initializer_list<std::string_view> names,
                                 std::size_t required = 0) const;
};

struct Filter {
  std::string_view name;
  Value (*apply)(Runtime& runtime, const Value& value, const Arguments& arguments);
};

struct Test {
  std::string_view name;
  bool (*apply)(Runtime& runtime, const Value& value, const Arguments& arguments);
};

// Null for an unknown name.
const Filter* find_filter(std::string_view name);
const Test* find_test(std::string_view name);
// Of the two files with filters, in the order of their names.
const Filter* find_text_filter(std::string_view name);
const Filter* find_sequence_filter(std::string_view name);

enum class MethodState {
  none,  // there is no such attribute
  callable,
  refused,    // Python has it, this subset does not
  forbidden,  // it would change the value: undefined in the sandbox
};
MethodState find_method(const Value& self, std::string_view name);
Value call_method(Runtime& runtime, const Value& self, std::string_view name,
                  const Arguments& arguments);
Value call_text_method(Runtime& runtime, const Value& self, std::string_view name,
                       const Arguments& arguments);

// value % arguments and value.format(...) of str.
Value format_percent(Runtime& runtime, const std::string& format, const Value& arguments);
Value format_braces(Runtime& runtime, const std::string& format, const Arguments& arguments);
// json.dumps; `separators` null: the default of Python.
struct JsonStyle {
  bool ascii = false;
  bool sort_keys = false;
  bool pretty = false;
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json(Runtime& runtime, const Value& value, const JsonStyle& style);
// strftime of the C locale. `seconds` since 1970.
std::string format_time(Runtime& runtime, std::string_view format, std::int64_t seconds);

}  // namespace touchstone::inline v0::io::chat
