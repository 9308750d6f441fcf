// Methods of values. Text has a file of its own.
#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "io/chat_template/functions.h"
#include "io/chat_template/runtime.h"
#include "io/chat_template/text.h"

namespace touchstone::inline v0::io::chat {
namespace {

using Names = std::span<const std::string_view>;

constexpr std::array<std::string_view, 37> kTextMethods = {
    "capitalize", "count",        "endswith",     "find",      "format",  "index",
    "isalnum",    "isalpha",      "isascii",      "isdecimal", "isdigit", "islower",
    "isspace",    "isupper",      "join",         "ljust",     "lower",   "lstrip",
    "partition",  "removeprefix", "removesuffix", "replace",   "rfind",   "rindex",
    "rjust",      "rpartition",   "rsplit",       "rstrip",    "split",   "splitlines",
    "startswith", "strip",        "title",        "upper",     "zfill",   "center",
    "swapcase"};
constexpr std::array<std::string_view, 10> kRefusedTextMethods = {
    "casefold",  "encode",      "expandtabs", "format_map", "isidentifier",
    "isnumeric", "isprintable", "istitle",    "maketrans",  "translate"};
constexpr std::array<std::string_view, 3> kListMethods = {"copy", "count", "index"};
constexpr std::array<std::string_view, 8> kListChanges = {"append", "clear",  "extend",  "insert",
                                                          "pop",    "remove", "reverse", "sort"};
constexpr std::array<std::string_view, 2> kTupleMethods = {"count", "index"};
constexpr std::array<std::string_view, 5> kDictMethods = {"copy", "get", "items", "keys", "values"};
constexpr std::array<std::string_view, 5> kDictChanges = {"clear", "pop", "popitem", "setdefault",
                                                          "update"};
constexpr std::array<std::string_view, 1> kRefusedDictMethods = {"fromkeys"};
constexpr std::array<std::string_view, 2> kLoopMethods = {"changed", "cycle"};
constexpr std::array<std::string_view, 13> kRefusedNumberMethods = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes", "imag",
    "is_integer",       "numerator", "real",       "to_bytes",  "hex",         "fromhex"};
constexpr std::array<std::string_view, 5> kRefusedMacroAttributes = {
    "arguments", "caller", "catch_kwargs", "catch_varargs", "explicit_caller"};
constexpr std::array<std::string_view, 8> kRefusedViewMethods = {
    "isdisjoint", "mapping", "start", "stop", "step", "count", "index", "send"};

struct Table {
  Names callable;
  Names forbidden;
  Names refused;
};

Table table_of(const Value& value) {
  switch (value.kind()) {
    case Kind::string:
      return {kTextMethods, {}, kRefusedTextMethods};
    case Kind::list:
      return {kListMethods, kListChanges, {}};
    case Kind::tuple:
      return {kTupleMethods, {}, {}};
    case Kind::dict:
      return {kDictMethods, kDictChanges, kRefusedDictMethods};
    case Kind::loop:
      return {kLoopMethods, {}, {}};
    case Kind::boolean:
    case Kind::integer:
    case Kind::floating:
      return {{}, {}, kRefusedNumberMethods};
    case Kind::macro:
      return {{}, {}, kRefusedMacroAttributes};
    case Kind::keys:
    case Kind::values:
    case Kind::items:
    case Kind::range:
    case Kind::generator:
      return {{}, {}, kRefusedViewMethods};
    default:
      return {};
  }
}

bool holds(Names names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

Value count_or_index(Runtime& runtime, const Value& self, std::string_view name,
                     const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"value"}, 1);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < self.items().size(); ++i) {
    if (!runtime.equal(self.items()[i], *bound[0])) continue;
    if (name == "index") return Value::of(static_cast<std::int64_t>(i));
    ++count;
  }
  if (name == "index") runtime.fail("the value is not in the list");
  return Value::of(count);
}

Value call_dict_method(Runtime& runtime, const Value& self, std::string_view name,
                       const Arguments& arguments) {
  if (name == "get") {
    if (!arguments.keywords.empty()) runtime.fail("get takes no keyword arguments");
    const auto bound = arguments.bind(runtime, {"key", "default"}, 1);
    if (bound[0]->is(Kind::list) || bound[0]->is(Kind::dict)) {
      runtime.fail(std::string("unhashable type: ") + type_name(*bound[0]));
    }
    if (const Value* found = runtime.find_member(self, *bound[0])) return *found;
    return bound[1] == nullptr ? Value::none() : *bound[1];
  }
  arguments.bind(runtime, {});
  if (name == "copy") return self;  // neither can be changed
  std::vector<Value> parts;
  runtime.charge_values(self.members().size());
  for (const auto& [key, value] : self.members()) {
    parts.push_back(name == "keys" ? key : name == "values" ? value : runtime.tuple({key, value}));
  }
  return runtime.sequence(name == "keys"     ? Kind::keys
                          : name == "values" ? Kind::values
                                             : Kind::items,
                          std::move(parts));
}

Value call_loop_method(Runtime& runtime, Loop& loop, std::string_view name,
                       const Arguments& arguments) {
  if (!arguments.keywords.empty()) runtime.fail("takes no keyword arguments");
  if (name == "cycle") {
    if (arguments.positional.empty()) runtime.fail("cycle: no values given");
    return arguments.positional[loop.index % arguments.positional.size()];
  }
  const Value now = runtime.tuple(arguments.positional);
  const bool changed = !loop.changed || !runtime.equal(*loop.changed, now);
  loop.changed = now;
  return Value::of(changed);
}

}  // namespace

MethodState find_method(const Value& self, std::string_view name) {
  const Table table = table_of(self);
  if (holds(table.callable, name)) return MethodState::callable;
  if (holds(table.forbidden, name)) return MethodState::forbidden;
  return holds(table.refused, name) ? MethodState::refused : MethodState::none;
}

Value call_method(Runtime& runtime, const Value& self, std::string_view name,
                  const Arguments& arguments) {
  switch (self.kind()) {
    case Kind::string:
      return call_text_method(runtime, self, name, arguments);
    case Kind::dict:
      return call_dict_method(runtime, self, name, arguments);
    case Kind::loop:
      return call_loop_method(runtime, self.loop(), name, arguments);
    default:
      arguments.bind(runtime, {"value"});
      return name == "copy" ? self : count_or_index(runtime, self, name, arguments);
  }
}

}  // namespace touchstone::inline v0::io::chat
