// Tests: what stands behind `is`.
#include <algorithm>
#include <array>

#include "io/chat_template/functions.h"
#include "io/chat_template/runtime.h"
#include "io/chat_template/text.h"

namespace touchstone::inline v0::io::chat {
namespace {

using Apply = bool (*)(Runtime&, const Value&, const Arguments&);

// A test of the kind of a value, which takes no argument.
template <bool (*Holds)(const Value&)>
bool kind_test(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  return Holds(value);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is(Kind::none); }
bool is_boolean(const Value& value) { return value.is(Kind::boolean); }
bool is_true_value(const Value& value) { return value.is(Kind::boolean) && value.boolean(); }
bool is_false_value(const Value& value) { return value.is(Kind::boolean) && !value.boolean(); }
bool is_integer(const Value& value) { return value.is(Kind::integer); }
bool is_float(const Value& value) { return value.is(Kind::floating); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_text(const Value& value) { return value.is_string(); }
bool is_mapping(const Value& value) { return value.is(Kind::dict); }
bool is_escaped(const Value& value) { return value.is_markup(); }

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.is_string() || value.is_sequence() || value.is(Kind::dict) ||
         value.is(Kind::generator) || value.is(Kind::loop);
}

// Has a length and takes subscripts, which an undefined value has, too.
bool is_sequence_value(const Value& value) {
  return value.is_undefined() || value.is_string() || value.is(Kind::list) ||
         value.is(Kind::tuple) || value.is(Kind::range) || value.is(Kind::dict);
}

bool is_callable(const Value& value) {
  return value.is_undefined() || value.is(Kind::macro) || value.is(Kind::function) ||
         value.is(Kind::method) || value.is(Kind::loop);
}

bool lower_test(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  const std::string text = runtime.str(value);
  runtime.charge_bytes(text.size() * 4);
  return is_lower(text);
}

bool upper_test(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  const std::string text = runtime.str(value);
  runtime.charge_bytes(text.size() * 4);
  return is_upper(text);
}

bool has_remainder(Runtime& runtime, const Value& value, const Value& divisor,
                   std::int64_t remainder) {
  return runtime.equal(runtime.arithmetic(Operation::modulo, value, divisor), Value::of(remainder));
}

bool odd(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  return has_remainder(runtime, value, Value::of(std::int64_t{2}), 1);
}

bool even(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  return has_remainder(runtime, value, Value::of(std::int64_t{2}), 0);
}

bool divisible_by(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return has_remainder(runtime, value, *arguments.bind(runtime, {"num"}, 1)[0], 0);
}

bool same_as(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Value& other = *arguments.bind(runtime, {"other"}, 1)[0];
  if (value.is_string()) runtime.charge_bytes(value.text().size());
  return value.same_as(other);
}

bool in(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return runtime.contains(*arguments.bind(runtime, {"seq"}, 1)[0], value);
}

// The operators of Python take no keywords.
const Value& operand(Runtime& runtime, const Arguments& arguments) {
  if (!arguments.keywords.empty()) runtime.fail("takes no keyword arguments");
  return *arguments.bind(runtime, {"b"}, 1)[0];
}

bool eq(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return runtime.equal(value, operand(runtime, arguments));
}

bool ne(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return !runtime.equal(value, operand(runtime, arguments));
}

bool lt(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return runtime.less(value, operand(runtime, arguments));
}

bool gt(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return runtime.less(operand(runtime, arguments), value);
}

bool le(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return lt(runtime, value, arguments) || eq(runtime, value, arguments);
}

bool ge(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return gt(runtime, value, arguments) || eq(runtime, value, arguments);
}

bool filter(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  return value.is_string() && find_filter(value.text()) != nullptr;
}

bool test(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  return value.is_string() && find_test(value.text()) != nullptr;
}

constexpr std::array<Test, 39> kTests = {{{"boolean", kind_test<is_boolean>},
                                          {"callable", kind_test<is_callable>},
                                          {"defined", kind_test<is_defined>},
                                          {"divisibleby", divisible_by},
                                          {"eq", eq},
                                          {"equalto", eq},
                                          {"==", eq},
                                          {"escaped", kind_test<is_escaped>},
                                          {"even", even},
                                          {"false", kind_test<is_false_value>},
                                          {"filter", filter},
                                          {"float", kind_test<is_float>},
                                          {"ge", ge},
                                          {">=", ge},
                                          {"greaterthan", gt},
                                          {"gt", gt},
                                          {">", gt},
                                          {"in", in},
                                          {"integer", kind_test<is_integer>},
                                          {"iterable", kind_test<is_iterable>},
                                          {"le", le},
                                          {"<=", le},
                                          {"lessthan", lt},
                                          {"lower", lower_test},
                                          {"lt", lt},
                                          {"<", lt},
                                          {"mapping", kind_test<is_mapping>},
                                          {"ne", ne},
                                          {"!=", ne},
                                          {"none", kind_test<is_none>},
                                          {"number", kind_test<is_number>},
                                          {"odd", odd},
                                          {"sameas", same_as},
                                          {"sequence", kind_test<is_sequence_value>},
                                          {"string", kind_test<is_text>},
                                          {"test", test},
                                          {"true", kind_test<is_true_value>},
                                          {"undefined", kind_test<is_undefined>},
                                          {"upper", upper_test}}};

}  // namespace

const Test* find_test(std::string_view name) {
  const auto found = std::ranges::find(kTests, name, &Test::name);
  return found == kTests.end() || name.empty() ? nullptr : &*found;
}

}  // namespace touchstone::inline v0::io::chat
