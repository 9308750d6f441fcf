// Filters of text and numbers.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "io/chat_template/functions.h"
#include "io/chat_template/runtime.h"
#include "io/chat_template/text.h"

namespace touchstone::inline v0::io::chat {
namespace {

// soft_str: text stays what it is, everything else becomes str(value).
Value as_text(Runtime& runtime, const Value& value) {
  return value.is_string() ? value : runtime.text(runtime.str(value));
}

Value without_arguments(Runtime& runtime, const Value& value, const Arguments& arguments,
                        std::string (*change)(std::string_view)) {
  arguments.bind(runtime, {});
  const Value text = as_text(runtime, value);
  runtime.charge_bytes(text.text().size() * 8);
  return runtime.text(change(text.text()), text.is_markup());
}

Value upper_filter(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return without_arguments(runtime, value, arguments, upper);
}

Value lower_filter(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return without_arguments(runtime, value, arguments, lower);
}

Value capitalize_filter(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return without_arguments(runtime, value, arguments, capitalize);
}

Value title_words(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Value result = without_arguments(runtime, value, arguments, title_filter);
  return result.is_markup() ? runtime.text(result.text()) : result;
}

Value string_filter(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  return as_text(runtime, value);
}

Value safe(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  return runtime.text(runtime.str(value), true);
}

Value escape(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  if (value.is_markup()) return value;
  std::string text = runtime.str(value);
  runtime.charge_bytes(text.size() * 5);
  return runtime.text(escape_markup(text), true);
}

Value force_escape(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return escape(runtime, runtime.text(runtime.str(value)), arguments);
}

Value trim(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {"chars"});
  Arguments plain = arguments;
  for (auto& [name, chars] : plain.keywords) plain.positional.push_back(std::move(chars));
  plain.keywords.clear();
  return call_text_method(runtime, as_text(runtime, value), "strip", plain);
}

Value center(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"width"});
  const Value width = bound[0] == nullptr ? Value::of(std::int64_t{80}) : *bound[0];
  return call_text_method(runtime, as_text(runtime, value), "center", {{width}, {}});
}

Value replace_filter(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"old", "new", "count"}, 2);
  Arguments plain;
  for (std::size_t i = 0; i < 2; ++i) {
    plain.positional.push_back(runtime.text(runtime.str(*bound[i])));
  }
  if (bound[2] != nullptr && !bound[2]->is(Kind::none)) plain.positional.push_back(*bound[2]);
  return call_text_method(runtime, runtime.text(runtime.str(value)), "replace", plain);
}

Value indent(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"width", "first", "blank"});
  const bool first = bound[1] != nullptr && is_true(*bound[1]);
  const bool blank = bound[2] != nullptr && is_true(*bound[2]);
  if (!value.is_string()) {
    runtime.fail(std::string("indent needs a string, not ") + type_name(value));
  }
  if (value.is_markup()) runtime.unsupported("indent of text that is marked safe");
  std::string space(4, ' ');
  if (bound[0] != nullptr) {
    space = bound[0]->is_string()
                ? runtime.str(*bound[0])
                : runtime
                      .arithmetic(Operation::multiply, Value::of_text(" "),
                                  Value::of(runtime.to_index(*bound[0], "the width of indent")))
                      .text();
  }
  runtime.charge(value.text().size());  // for the lines
  const std::string with_end = value.text() + "\n";
  std::string out;
  if (first) runtime.append(out, space);
  bool later = false;
  for (const std::string_view line : split_lines(with_end, false)) {
    if (later) runtime.append(out, "\n");
    if (later && (blank || !line.empty())) runtime.append(out, space);
    later = true;
    runtime.append(out, line);
  }
  return runtime.text(std::move(out));
}

Value default_filter(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"default_value", "boolean"});
  const bool or_false = bound[1] != nullptr && is_true(*bound[1]);
  if (!value.is_undefined() && !(or_false && !is_true(value))) return value;
  return bound[0] == nullptr ? runtime.text("") : *bound[0];
}

Value tojson(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = bound[0] != nullptr && is_true(*bound[0]);
  style.sort_keys = bound[3] != nullptr && is_true(*bound[3]);
  if (bound[1] != nullptr && !bound[1]->is(Kind::none)) {
    style.pretty = true;
    style.item_separator.pop_back();  // no space at the end of a line
    constexpr std::int64_t kMaxIndent = 1000;
    if (bound[1]->is_string()) {
      style.indent = runtime.str(*bound[1]);
    } else {
      const std::int64_t width = runtime.to_index(*bound[1], "the indent of tojson");
      if (width > kMaxIndent) runtime.fail(TemplateFault::limit, "tojson: an indent beyond 1000");
      style.indent.assign(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
    }
  }
  if (bound[2] != nullptr && !bound[2]->is(Kind::none)) {
    const std::vector<Value> both = runtime.elements(*bound[2]);
    if (both.size() != 2 || !both[0].is_string() || !both[1].is_string()) {
      runtime.fail("tojson: separators must be two strings");
    }
    style.item_separator = runtime.str(both[0]);
    style.key_separator = runtime.str(both[1]);
  }
  return runtime.text(to_json(runtime, value, style));
}

Value format_filter(Runtime& runtime, const Value& value, const Arguments& arguments) {
  if (!arguments.keywords.empty() && !arguments.positional.empty()) {
    runtime.fail("format: positional and keyword arguments do not mix");
  }
  const std::string format = runtime.str(value);
  if (arguments.keywords.empty()) {
    return format_percent(runtime, format, runtime.tuple(arguments.positional));
  }
  std::vector<std::pair<Value, Value>> members;
  for (const auto& [name, member] : arguments.keywords) {
    members.emplace_back(runtime.text(name), member);
  }
  return format_percent(runtime, format, runtime.dict(std::move(members)));
}

// Without what int() and float() of Python allow around and within the digits.
std::optional<std::string> plain_digits(std::string_view text) {
  text = strip_right(strip_left(text));
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto alphanumeric = [&](std::size_t at) {
      return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
    };
    if (text[i] == '_') {
      if (i == 0 || !alphanumeric(i - 1) || !alphanumeric(i + 1)) return {};
    } else {
      plain += text[i];
    }
  }
  return plain;
}

std::optional<double> read_double(std::string_view text) {
  const std::optional<std::string> plain = plain_digits(text);
  if (!plain) return {};
  const char* begin = plain->data();
  const char* const end = begin + plain->size();
  if (begin != end && *begin == '+') ++begin;
  if (begin == end || (begin != plain->data() && *begin == '-')) return {};
  if (plain->find('(') != std::string::npos) return {};  // nan(...) is not Python's
  double value = 0;
  const auto read = std::from_chars(begin, end, value);
  if (read.ptr != end) return {};
  if (read.ec == std::errc::result_out_of_range) {
    const std::size_t mark = plain->find_first_of("eE");
    const bool tiny = mark != std::string::npos && plain->find('-', mark) != std::string::npos;
    value = tiny ? 0 : std::numeric_limits<double>::infinity();
    return *begin == '-' ? -value : value;
  }
  if (read.ec != std::errc()) return {};
  return value;
}

// int() and float() of Python read them as the digits they are.
void refuse_foreign_digits(Runtime& runtime, std::string_view text) {
  if (has_foreign_digit(text)) runtime.unsupported("numbers of digits beyond ASCII");
}

// nullopt: not a number of this base. A number of more than 64 bits is refused.
std::optional<std::int64_t> read_integer(Runtime& runtime, std::string_view text, int base) {
  const std::optional<std::string> plain = plain_digits(text);
  if (!plain) return {};
  std::string digits = *plain;
  const bool negative = !digits.empty() && digits[0] == '-';
  if (negative || (!digits.empty() && digits[0] == '+')) digits.erase(0, 1);
  if (base != 10 && digits.size() > 2 && digits[0] == '0') {
    const char mark = static_cast<char>(digits[1] | 0x20);
    if ((base == 16 && mark == 'x') || (base == 8 && mark == 'o') || (base == 2 && mark == 'b')) {
      digits.erase(0, 2);
    }
  }
  if (digits.empty() || digits[0] == '-') return {};
  if (negative) digits.insert(0, 1, '-');
  std::int64_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, value, base);
  if (read.ptr != end) return {};
  if (read.ec == std::errc::result_out_of_range) {
    runtime.unsupported("whole numbers beyond 64 bits are not supported");
  }
  if (read.ec != std::errc()) return {};
  return value;
}

std::int64_t truncated(Runtime& runtime, double value) {
  if (std::isinf(value)) runtime.fail("infinity has no whole number");
  if (std::abs(value) >= 0x1p63) {
    runtime.unsupported("whole numbers beyond 64 bits are not supported");
  }
  return static_cast<std::int64_t>(value);
}

Value int_filter(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"default", "base"});
  const Value otherwise = bound[0] == nullptr ? Value::of(std::int64_t{0}) : *bound[0];
  const std::int64_t base =
      bound[1] == nullptr ? 10 : runtime.to_index(*bound[1], "the base of int");
  if (base != 2 && base != 8 && base != 10 && base != 16) {
    runtime.unsupported("int: a base other than 2, 8, 10 and 16");
  }
  if (value.is_undefined()) runtime.fail("int of an undefined value");
  if (value.is_integral()) return Value::of(value.integer());
  if (value.is(Kind::floating)) {
    return std::isnan(value.floating()) ? otherwise
                                        : Value::of(truncated(runtime, value.floating()));
  }
  if (!value.is_string()) return otherwise;
  runtime.charge_bytes(value.text().size() * 4);
  if (const auto read = read_integer(runtime, value.text(), static_cast<int>(base))) {
    return Value::of(*read);
  }
  const auto read = read_double(value.text());
  if (!read) refuse_foreign_digits(runtime, value.text());
  if (!read || !std::isfinite(*read)) return otherwise;
  return Value::of(truncated(runtime, *read));
}

Value float_filter(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"default"});
  if (value.is_undefined()) runtime.fail("float of an undefined value");
  if (value.is_number()) return Value::of(value.floating());
  if (value.is_string()) {
    runtime.charge_bytes(value.text().size() * 4);
    if (const auto read = read_double(value.text())) return Value::of(*read);
    refuse_foreign_digits(runtime, value.text());
  }
  return bound[0] == nullptr ? Value::of(0.0) : *bound[0];
}

Value abs_filter(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  if (value.is(Kind::floating)) return Value::of(std::abs(value.floating()));
  const Value number = runtime.unary(Operation::plus, value);
  return number.integer() < 0 ? runtime.unary(Operation::negate, number) : number;
}

// round() of Python, which rounds the exact value: so does to_chars.
double round_decimal(double value, int digits) {
  if (!std::isfinite(value)) return value;
  char buffer[400];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed, digits);
  double rounded = 0;
  std::from_chars(buffer, end.ptr, rounded);
  return rounded;
}

Value round_filter(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"precision", "method"});
  const std::int64_t digits =
      bound[0] == nullptr ? 0 : runtime.to_index(*bound[0], "the precision of round");
  const std::string method = bound[1] == nullptr ? "common" : runtime.str(*bound[1]);
  if (method != "common" && method != "ceil" && method != "floor") {
    runtime.fail("round: the method must be common, ceil or floor");
  }
  if (!value.is_number()) runtime.fail(std::string("round of a value of type ") + type_name(value));
  constexpr int kMaxDigits = 20;
  if (digits < 0 || digits > kMaxDigits) {
    runtime.unsupported("round: a precision outside of 0 to " + std::to_string(kMaxDigits));
  }
  if (method == "common") {
    if (value.is_integral()) return Value::of(value.integer());
    return Value::of(round_decimal(value.floating(), static_cast<int>(digits)));
  }
  if (!std::isfinite(value.floating())) runtime.fail("round of infinity or of no number");
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = value.floating() * scale;
  return Value::of((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value wordcount(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  const std::string text = runtime.str(value);
  runtime.charge_bytes(text.size() * 4);
  std::int64_t words = 0;
  bool inside = false;
  for (const char c : text) {
    if ((c & 0x80) != 0) runtime.unsupported("wordcount of text beyond ASCII");
    const bool word = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    words += word && !inside ? 1 : 0;
    inside = word;
  }
  return Value::of(words);
}

constexpr std::array<Filter, 22> kTextFilters = {{{"abs", abs_filter},
                                                  {"capitalize", capitalize_filter},
                                                  {"center", center},
                                                  {"d", default_filter},
                                                  {"default", default_filter},
                                                  {"e", escape},
                                                  {"escape", escape},
                                                  {"float", float_filter},
                                                  {"forceescape", force_escape},
                                                  {"format", format_filter},
                                                  {"indent", indent},
                                                  {"int", int_filter},
                                                  {"lower", lower_filter},
                                                  {"replace", replace_filter},
                                                  {"round", round_filter},
                                                  {"safe", safe},
                                                  {"string", string_filter},
                                                  {"title", title_words},
                                                  {"tojson", tojson},
                                                  {"trim", trim},
                                                  {"upper", upper_filter},
                                                  {"wordcount", wordcount}}};

}  // namespace

const Filter* find_text_filter(std::string_view name) {
  const auto found = std::ranges::find(kTextFilters, name, &Filter::name);
  return found == kTextFilters.end() ? nullptr : &*found;
}

}  // namespace touchstone::inline v0::io::chat
