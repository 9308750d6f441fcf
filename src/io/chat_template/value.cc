#include "io/chat_template/value.h"

#include "io/chat_template/runtime.h"
#include "io/chat_template/text.h"

namespace touchstone::inline v0::io::chat {

Value Value::of_text(std::string text, bool markup) {
  auto object = std::make_shared<String>();
  object->text = std::move(text);
  object->markup = markup;
  return of_object(Kind::string, std::move(object));
}

const std::string& Value::text() const { return static_cast<const String*>(object())->text; }

bool Value::is_markup() const {
  return is_string() && static_cast<const String*>(object())->markup;
}

const std::vector<Value>& Value::items() const {
  return static_cast<const Sequence*>(object())->items;
}

const std::vector<std::pair<Value, Value>>& Value::members() const {
  return static_cast<const Dict*>(object())->members;
}

bool Value::same_as(const Value& other) const {
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::boolean:
      return number_.boolean == other.number_.boolean;
    case Kind::integer:
    case Kind::function:
      return number_.integer == other.number_.integer;
    case Kind::floating:
      return number_.floating == other.number_.floating;
    case Kind::name_space:
    case Kind::macro:
    case Kind::loop:
      return number_.pointer == other.number_.pointer;
    case Kind::string:
      return object_ == other.object_ || text() == other.text();
    default:
      return object_ == other.object_;
  }
}

const char* type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "NoneType";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
      return "int";
    case Kind::floating:
      return "float";
    case Kind::string:
      return value.is_markup() ? "Markup" : "str";
    case Kind::list:
      return "list";
    case Kind::tuple:
      return "tuple";
    case Kind::keys:
      return "dict_keys";
    case Kind::values:
      return "dict_values";
    case Kind::items:
      return "dict_items";
    case Kind::range:
      return "range";
    case Kind::dict:
      return "dict";
    case Kind::generator:
      return "generator";
    case Kind::name_space:
      return "Namespace";
    case Kind::macro:
      return "Macro";
    case Kind::loop:
      return "LoopContext";
    case Kind::function:
    case Kind::method:
      return "function";
  }
  return "object";
}

bool is_true(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
      return value.boolean();
    case Kind::integer:
      return value.integer() != 0;
    case Kind::floating:
      return value.floating() != 0;
    case Kind::string:
      return !value.text().empty();
    case Kind::dict:
      return !value.members().empty();
    default:
      return !value.is_sequence() || !value.items().empty();
  }
}

// ---- str() and repr() of Python -----------------------------------------------------------------

std::string Runtime::str(const Value& value) {
  if (value.is_undefined()) return "";
  if (value.is_string()) {
    charge_bytes(value.text().size());
    return value.text();
  }
  return repr(value);
}

std::string Runtime::repr(const Value& value) {
  std::string out;
  append_repr(out, value);
  return out;
}

// repr of a text can be 4 times as long: \xad for one byte of two.
void Runtime::append_quoted(std::string& out, std::string_view text) {
  charge_bytes(text.size() * 8);
  append(out, python_repr(text));
}

void Runtime::append_repr(std::string& out, const Value& value) {
  charge(2);
  // The values within one are separated by commas; a view puts its own name around them.
  const auto all = [&](const char* open, const char* close) {
    append(out, open);
    bool first = true;
    for (const Value& item : value.items()) {
      if (!first) append(out, ", ");
      first = false;
      append_repr(out, item);
    }
    append(out, close);
  };
  switch (value.kind()) {
    case Kind::undefined:
      append(out, "Undefined");
      return;
    case Kind::none:
      append(out, "None");
      return;
    case Kind::boolean:
      append(out, value.boolean() ? "True" : "False");
      return;
    case Kind::integer:
      append(out, std::to_string(value.integer()));
      return;
    case Kind::floating:
      append(out, format_double(value.floating()));
      return;
    case Kind::string:
      if (value.is_markup()) append(out, "Markup(");
      append_quoted(out, value.text());
      if (value.is_markup()) append(out, ")");
      return;
    case Kind::list:
      return all("[", "]");
    case Kind::tuple:
      return all("(", value.items().size() == 1 ? ",)" : ")");
    case Kind::keys:
      return all("dict_keys([", "])");
    case Kind::values:
      return all("dict_values([", "])");
    case Kind::items:
      return all("dict_items([", "])");
    case Kind::range: {
      const auto& range = *static_cast<const Range*>(value.object());
      append(out, "range(" + std::to_string(range.start) + ", " + std::to_string(range.stop));
      append(out, range.step == 1 ? ")" : ", " + std::to_string(range.step) + ")");
      return;
    }
    case Kind::dict: {
      const char* separator = "{";
      for (const auto& [key, member] : value.members()) {
        append(out, separator);
        separator = ", ";
        append_repr(out, key);
        append(out, ": ");
        append_repr(out, member);
      }
      append(out, value.members().empty() ? "{}" : "}");
      return;
    }
    case Kind::name_space:
      return append_namespace(out, value.name_space());
    case Kind::macro:
      append(out, "<Macro ");
      append_quoted(out, value.macro().statement->text);
      append(out, ">");
      return;
    case Kind::loop:
      append(out, "<LoopContext " + std::to_string(value.loop().index + 1) + "/" +
                      std::to_string(loop_length(value.loop())) + ">");
      return;
    default:
      unsupported(std::string("a value of type ") + type_name(value) + " cannot be printed");
  }
}

void Runtime::append_namespace(std::string& out, Namespace& object) {
  const Depth depth(*this);  // one can hold another, and itself
  append(out, "<Namespace {");
  if (object.being_printed) {
    append(out, "...}>");
    return;
  }
  object.being_printed = true;
  bool later = false;
  for (const auto& [name, value] : object.attributes) {
    if (later) append(out, ", ");
    later = true;
    append_quoted(out, name);
    append(out, ": ");
    append_repr(out, value);
  }
  object.being_printed = false;
  append(out, "}>");
}

}  // namespace touchstone::inline v0::io::chat
