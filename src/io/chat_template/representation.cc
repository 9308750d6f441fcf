// str() and repr() of Python.
#include "io/chat_template/runtime.h"
#include "io/chat_template/text.h"

namespace touchstone::inline v0::io::chat {

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

void Runtime::append_repr(std::string& out, const Value& value) {
  charge(2);
  // The values within one are told apart by commas; a view puts its own name around them.
  const auto all = [&](const char* open, const char* close) {
    out += open;
    bool first = true;
    for (const Value& item : value.items()) {
      if (!first) out += ", ";
      first = false;
      append_repr(out, item);
    }
    out += close;
  };
  switch (value.kind()) {
    case Kind::undefined:
      out += "Undefined";
      return;
    case Kind::none:
      out += "None";
      return;
    case Kind::boolean:
      out += value.boolean() ? "True" : "False";
      return;
    case Kind::integer:
      out += std::to_string(value.integer());
      return;
    case Kind::floating:
      out += format_double(value.floating());
      return;
    case Kind::string: {
      const std::string text = quoted(value.text());
      charge_bytes(text.size());
      out += value.is_markup() ? "Markup(" + text + ")" : text;
      return;
    }
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
      out += "range(" + std::to_string(range.start) + ", " + std::to_string(range.stop);
      out += range.step == 1 ? ")" : ", " + std::to_string(range.step) + ")";
      return;
    }
    case Kind::dict: {
      const char* separator = "{";
      for (const auto& [key, member] : value.members()) {
        out += separator;
        separator = ", ";
        append_repr(out, key);
        out += ": ";
        append_repr(out, member);
      }
      out += value.members().empty() ? "{}" : "}";
      return;
    }
    case Kind::macro:
      out += "<Macro " + quoted(value.macro().statement->text) + ">";
      return;
    case Kind::loop:
      out += "<LoopContext " + std::to_string(value.loop().index + 1) + "/" +
             std::to_string(value.loop().items.size()) + ">";
      return;
    default:
      unsupported(std::string("a value of type ") + type_name(value) + " cannot be printed");
  }
}

}  // namespace touchstone::inline v0::io::chat
