// Attributes, elements and calls, as the sandboxed environment of jinja2 looks them up.
#include <algorithm>
#include <charconv>

#include "io/chat_template/lexer.h"
#include "io/chat_template/runtime.h"
#include "io/chat_template/text.h"

namespace touchstone::inline v0::io::chat {
namespace {

Value element_at(const std::vector<Value>& items, std::int64_t index) {
  const auto count = static_cast<std::int64_t>(items.size());
  if (index < 0) index += count;
  return index < 0 || index >= count ? Value() : items[static_cast<std::size_t>(index)];
}

}  // namespace

std::vector<const Value*> Arguments::bind(Runtime& runtime,
                                          std::initializer_list<std::string_view> names,
                                          std::size_t required) const {
  if (positional.size() > names.size()) {
    runtime.fail("takes at most " + std::to_string(names.size()) + " arguments, got " +
                 std::to_string(positional.size()));
  }
  std::vector<const Value*> bound(names.size(), nullptr);
  for (std::size_t i = 0; i < positional.size(); ++i) bound[i] = &positional[i];
  for (const auto& [name, value] : keywords) {
    const auto* const found = std::ranges::find(names, name);
    if (found == names.end()) runtime.fail("unexpected keyword argument " + python_repr(name));
    const Value*& place = bound[static_cast<std::size_t>(found - names.begin())];
    if (place != nullptr) runtime.fail("more than one value for the argument " + python_repr(name));
    place = &value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (bound[i] == nullptr) {
      runtime.fail("the argument " + python_repr(*(names.begin() + i)) + " is missing");
    }
  }
  return bound;
}

Value Runtime::attribute(const Value& object, std::string_view name) {
  if (object.is_undefined()) {
    fail("an undefined value has no attribute " + python_repr(name));
  }
  switch (find_method(object, name)) {
    case MethodState::callable: {
      charge_values(4);
      auto method = std::make_shared<Method>();
      method->self = object;
      method->name = name;
      method->depth = object.depth() + 1;
      return Value::of_object(Kind::method, std::move(method));
    }
    case MethodState::refused:
      unsupported("the attribute " + python_repr(name) + " of " + type_name(object) +
                  " is not supported");
    case MethodState::forbidden:
      return {};
    case MethodState::none:
      break;
  }
  if (object.is(Kind::dict)) {
    charge(object.members().size() / 4 + 1);
    for (const auto& [key, value] : object.members()) {
      if (key.is_string() && equal_text(key.text(), name)) return value;
    }
  }
  if (object.is(Kind::name_space)) {
    charge(object.name_space().attributes.size() / 4 + 1);
    for (const auto& [key, value] : object.name_space().attributes) {
      if (equal_text(key, name)) return value;
    }
  }
  if (object.is(Kind::loop)) return loop_attribute(object.loop(), name);
  if (object.is(Kind::macro) && name == "name") return text(object.macro().statement->text);
  return {};
}

Value Runtime::item(const Value& object, const Value& key) {
  if (object.is_undefined()) fail("an undefined value has no elements");
  if (object.is(Kind::dict)) {
    if (const Value* value = find_member(object, key)) return *value;
  } else if (key.is_integral()) {
    if (object.is_string()) {
      const std::string& all = object.text();
      auto index = key.integer();
      charge_bytes(all.size());
      if (index < 0) index += static_cast<std::int64_t>(count_code_points(all));
      if (index < 0) return {};
      const std::size_t begin = offset_of(all, static_cast<std::size_t>(index));
      if (begin >= all.size()) return {};
      std::size_t end = begin;
      next_code_point(all, end);
      return text(all.substr(begin, end - begin), object.is_markup());
    }
    if (object.is(Kind::list) || object.is(Kind::tuple) || object.is(Kind::range)) {
      return element_at(object.items(), key.integer());
    }
  }
  return key.is_string() ? attribute(object, key.text()) : Value();
}

Value Runtime::path_item(const Value& object, const Value& path) {
  if (path.is(Kind::none)) return object;
  if (!path.is_string()) return item(object, path);
  Value value = object;
  charge(path.text().size());  // for the parts
  for (const std::string_view part : split(path.text(), ".", -1)) {
    const bool digits =
        !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    std::int64_t index = 0;
    if (digits) {
      const auto read = std::from_chars(part.data(), part.data() + part.size(), index);
      if (read.ec != std::errc()) unsupported("whole numbers beyond 64 bits are not supported");
    }
    value = item(value, digits ? Value::of(index) : text(std::string(part)));
  }
  return value;
}

Value Runtime::call(const Value& callee, const Arguments& arguments) {
  switch (callee.kind()) {
    case Kind::macro:
      return call_macro(callee.macro(), arguments);
    case Kind::loop:
      return call_loop(callee.loop(), arguments);
    case Kind::function:
      return call_function(callee.function(), arguments);
    case Kind::method: {
      const auto& method = *static_cast<const Method*>(callee.object());
      return call_method(*this, method.self, method.name, arguments);
    }
    case Kind::undefined:
      fail("an undefined value cannot be called");
    default:
      fail(std::string("a value of type ") + type_name(callee) + " cannot be called");
  }
}

Value Runtime::call_function(Function function, const Arguments& arguments) {
  switch (function) {
    case Function::range: {
      const auto bound = arguments.bind(*this, {"start", "stop", "step"}, 1);
      if (!arguments.keywords.empty()) fail("range takes no keyword arguments");
      const std::int64_t first = to_index(*bound[0], "an argument of range");
      if (bound[1] == nullptr) return range(0, first, 1);
      return range(first, to_index(*bound[1], "an argument of range"),
                   bound[2] == nullptr ? 1 : to_index(*bound[2], "an argument of range"));
    }
    case Function::name_space:
    case Function::dict: {
      std::vector<std::pair<Value, Value>> members;
      if (arguments.positional.size() > 1) fail("takes at most 1 positional argument");
      if (arguments.positional.size() == 1) {
        const Value& source = arguments.positional[0];
        if (!source.is(Kind::dict)) unsupported("only a mapping can be made into a mapping");
        charge_values(source.members().size() * 2);
        members = source.members();
      }
      for (const auto& [name, value] : arguments.keywords) {
        insert_member(members, text(name), value);
      }
      if (function == Function::dict) return dict(std::move(members));
      charge_values(8 + members.size() * 4);
      Namespace& made = namespaces_.emplace_back();
      for (auto& [key, value] : members) {
        if (!key.is_string()) unsupported("attributes of a namespace must have names");
        charge_bytes(key.text().size());
        made.attributes.emplace_back(key.text(), std::move(value));
      }
      return Value::of(&made);
    }
    case Function::raise_exception: {
      const auto bound = arguments.bind(*this, {"message"}, 1);
      fail(TemplateFault::raised, str(*bound[0]));
    }
    case Function::strftime_now: {
      const auto bound = arguments.bind(*this, {"format"}, 1);
      if (!bound[0]->is_string()) fail("strftime_now: the format must be a string");
      if (!now_) fail("strftime_now: the time was not given");
      return text(format_time(*this, bound[0]->text(), *now_));
    }
  }
  return {};
}

Value Runtime::loop_attribute(Loop& loop, std::string_view name) {
  const auto index = static_cast<std::int64_t>(loop.index);
  const auto count = [&] { return static_cast<std::int64_t>(loop_length(loop)); };
  if (name == "index") return Value::of(index + 1);
  if (name == "index0") return Value::of(index);
  if (name == "first") return Value::of(index == 0);
  if (name == "last") return Value::of(!has_item(loop, loop.index + 1));
  if (name == "length") return Value::of(count());
  if (name == "revindex") return Value::of(count() - index);
  if (name == "revindex0") return Value::of(count() - index - 1);
  if (name == "depth") return Value::of(std::int64_t{loop.depth} + 1);
  if (name == "depth0") return Value::of(std::int64_t{loop.depth});
  if (name == "previtem") return index == 0 ? Value() : element_at(loop.items, index - 1);
  if (name == "nextitem") {
    return has_item(loop, loop.index + 1) ? loop.items[loop.index + 1] : Value();
  }
  return {};
}

}  // namespace touchstone::inline v0::io::chat
