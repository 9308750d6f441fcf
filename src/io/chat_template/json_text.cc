// tojson: the text of json.dumps.
#include <algorithm>
#include <cmath>

#include "io/chat_template/functions.h"
#include "io/chat_template/runtime.h"
#include "io/chat_template/text.h"

namespace touchstone::inline v0::io::chat {
namespace {

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style) {}

  std::string run(const Value& value) {
    write(value, 0);
    return std::move(out_);
  }

 private:
  void escape(char32_t unit) {
    constexpr char kHex[] = "0123456789abcdef";
    out_ += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out_ += kHex[(unit >> shift) & 15u];
  }

  void quote(const std::string& text) {
    runtime_.charge_bytes(text.size() * 6);  // \u001f for one byte
    out_ += '"';
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      const char32_t code = next_code_point(text, at);
      constexpr std::u32string_view kNamed = U"\"\\\n\r\t\b\f";
      const std::size_t named = kNamed.find(code);
      if (named != std::u32string_view::npos) {
        out_ += '\\';
        out_ += "\"\\nrtbf"[named];
      } else if (code < 0x20 || (style_.ascii && code > 0x7e && code < 0x10000)) {
        escape(code);
      } else if (style_.ascii && code >= 0x10000) {
        escape(0xd800 + ((code - 0x10000) >> 10));
        escape(0xdc00 + ((code - 0x10000) & 0x3ffu));
      } else {
        out_.append(text, begin, at - begin);
      }
    }
    out_ += '"';
  }

  std::string number(double value) const {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return format_double(value);
  }

  // Keys become strings, as JSON has no others.
  std::string key_text(const Value& key) {
    switch (key.kind()) {
      case Kind::string:
        runtime_.charge_bytes(key.text().size());
        return key.text();
      case Kind::none:
        return "null";
      case Kind::boolean:
        return key.boolean() ? "true" : "false";
      case Kind::integer:
        return std::to_string(key.integer());
      case Kind::floating:
        return number(key.floating());
      default:
        runtime_.fail(std::string("tojson: a key of type ") + type_name(key));
    }
  }

  void append(std::string_view piece) { runtime_.append(out_, piece); }

  void new_line(int depth) {
    if (!style_.pretty) return;
    append("\n");
    for (int i = 0; i < depth; ++i) append(style_.indent);
  }

  void write_list(const Value& value, int depth) {
    if (value.items().empty()) {
      append("[]");
      return;
    }
    append("[");
    bool later = false;
    for (const Value& item : value.items()) {
      if (later) append(style_.item_separator);
      later = true;
      new_line(depth + 1);
      write(item, depth + 1);
    }
    new_line(depth);
    append("]");
  }

  void write_dict(const Value& value, int depth) {
    if (value.members().empty()) {
      append("{}");
      return;
    }
    runtime_.charge_values(value.members().size() * 2);
    std::vector<std::pair<Value, Value>> members = value.members();
    if (style_.sort_keys) {
      std::ranges::stable_sort(
          members, [&](const auto& a, const auto& b) { return runtime_.less(a.first, b.first); });
    }
    append("{");
    bool later = false;
    for (const auto& [key, member] : members) {
      if (later) append(style_.item_separator);
      later = true;
      new_line(depth + 1);
      quote(key_text(key));
      append(style_.key_separator);
      write(member, depth + 1);
    }
    new_line(depth);
    append("}");
  }

  void write(const Value& value, int depth) {
    runtime_.charge(2);
    switch (value.kind()) {
      case Kind::none:
        append("null");
        return;
      case Kind::boolean:
        append(value.boolean() ? "true" : "false");
        return;
      case Kind::integer:
        append(std::to_string(value.integer()));
        return;
      case Kind::floating:
        append(number(value.floating()));
        return;
      case Kind::string:
        return quote(value.text());
      case Kind::list:
      case Kind::tuple:
        return write_list(value, depth);
      case Kind::dict:
        return write_dict(value, depth);
      default:
        runtime_.fail(std::string("tojson: a value of type ") + type_name(value) +
                      " has no form in JSON");
    }
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

std::string to_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  return JsonWriter(runtime, style).run(value);
}

}  // namespace touchstone::inline v0::io::chat
