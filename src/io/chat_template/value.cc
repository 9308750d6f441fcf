#include "io/chat_template/value.h"

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

}  // namespace touchstone::inline v0::io::chat
