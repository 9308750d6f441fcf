// 'text' % values and 'text'.format(values), without the parts of their languages that templates do
// not use: those are refused.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "io/chat_template/functions.h"
#include "io/chat_template/runtime.h"
#include "io/chat_template/text.h"

namespace touchstone::inline v0::io::chat {
namespace {

constexpr int kMaxWidth = 1000;

class PercentFormat {
 public:
  PercentFormat(Runtime& runtime, const std::string& format, const Value& arguments)
      : runtime_(runtime), format_(format), arguments_(arguments) {}

  std::string run() {
    while (at_ < format_.size()) {
      const char c = format_[at_++];
      c == '%' ? conversion() : void(out_ += c);
    }
    const std::size_t given = arguments_.is(Kind::tuple) ? arguments_.items().size() : 1;
    // What has elements may be a mapping for Python, from which not everything needs to be used.
    const bool mapping = arguments_.is(Kind::dict) || arguments_.is(Kind::list) ||
                         arguments_.is(Kind::range) || arguments_.is_undefined();
    if (!mapping && next_ < given) {
      runtime_.fail("not all arguments of '%' are used by the format");
    }
    return std::move(out_);
  }

 private:
  char peek() const {
    if (at_ >= format_.size()) runtime_.fail("the format of '%' is incomplete");
    return format_[at_];
  }

  Value argument(const Value* named) {
    if (named != nullptr) return *named;
    if (arguments_.is(Kind::tuple)) {
      if (next_ >= arguments_.items().size()) runtime_.fail("not enough arguments for '%'");
      return arguments_.items()[next_++];
    }
    if (next_++ > 0) runtime_.fail("not enough arguments for '%'");
    return arguments_;
  }

  int number() {
    int value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + (format_[at_++] - '0');
      if (value > kMaxWidth) runtime_.unsupported("a width beyond 1000 in a format");
    }
    return value;
  }

  void conversion() {
    if (peek() == '%') {
      out_ += '%';
      ++at_;
      return;
    }
    const Value* named = nullptr;
    if (peek() == '(') {
      const std::size_t end = format_.find(')', at_);
      if (end == std::string::npos) runtime_.fail("the format of '%' is incomplete");
      if (!arguments_.is(Kind::dict)) runtime_.fail("the format of '%' needs a mapping");
      const Value key = runtime_.text(format_.substr(at_ + 1, end - at_ - 1));
      named = runtime_.find_member(arguments_, key);
      if (named == nullptr) runtime_.fail("the mapping of '%' has no key " + runtime_.repr(key));
      at_ = end + 1;
    }
    std::string flags;
    while (std::string_view("-+ 0#").find(peek()) != std::string_view::npos)
      flags += format_[at_++];
    if (peek() == '*') runtime_.unsupported("'*' in a format");
    const int width = number();
    int precision = -1;
    if (peek() == '.') {
      ++at_;
      precision = number();
    }
    const char type = peek();
    ++at_;
    write(type, flags, width, precision, argument(named));
  }

  void write(char type, const std::string& flags, int width, int precision, const Value& value) {
    if (type == 's' || type == 'r') {
      std::string text = type == 's' ? runtime_.str(value) : runtime_.repr(value);
      if (precision >= 0) text.resize(offset_of(text, static_cast<std::size_t>(precision)));
      return pad(text, flags, width);
    }
    if (flags.find('#') != std::string::npos) runtime_.unsupported("'#' in a format");
    std::string digits;
    if (std::string_view("diuxXo").find(type) != std::string_view::npos) {
      digits = whole(type, precision, value);
    } else if (std::string_view("fFeEgG").find(type) != std::string_view::npos) {
      digits = fraction(type, precision < 0 ? 6 : precision, value);
    } else {
      runtime_.unsupported(std::string("'%") + type + "' in a format");
    }
    if (digits[0] != '-') {
      if (flags.find('+') != std::string::npos) {
        digits.insert(0, 1, '+');
      } else if (flags.find(' ') != std::string::npos) {
        digits.insert(0, 1, ' ');
      }
    }
    const bool zeros = flags.find('0') != std::string::npos && flags.find('-') == std::string::npos;
    if (zeros && static_cast<int>(digits.size()) < width) {
      const std::size_t sign = digits.find_first_not_of("+- ");
      digits.insert(sign, static_cast<std::size_t>(width) - digits.size(), '0');
    }
    pad(digits, flags, width);
  }

  void pad(const std::string& text, const std::string& flags, int width) {
    const std::int64_t missing =
        std::int64_t{width} - static_cast<std::int64_t>(count_code_points(text));
    const std::string space(static_cast<std::size_t>(std::max<std::int64_t>(missing, 0)), ' ');
    const bool left = flags.find('-') != std::string::npos;
    runtime_.append(out_, left ? text : space);
    runtime_.append(out_, left ? space : text);
  }

  std::string whole(char type, int precision, const Value& value) {
    const bool decimal = type == 'd' || type == 'i' || type == 'u';
    if (!value.is_integral() && !(decimal && value.is(Kind::floating))) {
      runtime_.fail(std::string("'%") + type + "' needs a number, not " + type_name(value));
    }
    if (precision >= 0) runtime_.unsupported("a precision of a whole number in a format");
    if (!value.is_integral() && !(std::abs(value.floating()) < 0x1p63)) {
      runtime_.unsupported("whole numbers beyond 64 bits are not supported");
    }
    const std::int64_t number =
        value.is_integral() ? value.integer() : static_cast<std::int64_t>(value.floating());
    char buffer[72];
    const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number,
                                   decimal       ? 10
                                   : type == 'o' ? 8
                                                 : 16);
    const std::string digits(buffer, end.ptr);
    return type == 'X' ? upper(digits) : digits;
  }

  std::string fraction(char type, int precision, const Value& value) {
    if (!value.is_number()) {
      runtime_.fail(std::string("'%") + type + "' needs a number, not " + type_name(value));
    }
    const char small = static_cast<char>(type | 0x20);
    const std::chars_format form = small == 'f'   ? std::chars_format::fixed
                                   : small == 'e' ? std::chars_format::scientific
                                                  : std::chars_format::general;
    char buffer[kMaxWidth + 400];
    const auto end =
        std::to_chars(buffer, buffer + sizeof(buffer), value.floating(), form, precision);
    const std::string digits(buffer, end.ptr);
    return type == small ? digits : upper(digits);
  }

  Runtime& runtime_;
  const std::string& format_;
  const Value& arguments_;
  std::size_t at_ = 0;
  std::size_t next_ = 0;
  std::string out_;
};

// The value of one replacement field, by its number, its name or the next one.
class BraceArguments {
 public:
  BraceArguments(Runtime& runtime, const Arguments& arguments)
      : runtime_(runtime), arguments_(arguments) {}

  const Value& find(const std::string& name) {
    if (name.find_first_of(".[") != std::string::npos) {
      runtime_.unsupported("attributes and elements in the fields of format");
    }
    const bool digits = name.find_first_not_of("0123456789") == std::string::npos;
    if (!digits) {
      runtime_.charge(arguments_.keywords.size() / 4);
      for (const auto& [keyword, value] : arguments_.keywords) {
        if (runtime_.equal_text(keyword, name)) return value;
      }
      runtime_.fail("format: no argument " + python_repr(name));
    }
    if (name.empty() ? numbered_ : counted_) {
      runtime_.fail("format: fields with and without numbers do not mix");
    }
    (name.empty() ? counted_ : numbered_) = true;
    std::size_t index = next_;
    if (name.empty()) {
      ++next_;
    } else {
      std::from_chars(name.data(), name.data() + name.size(), index);
    }
    if (index >= arguments_.positional.size()) runtime_.fail("format: not enough arguments");
    return arguments_.positional[index];
  }

 private:
  Runtime& runtime_;
  const Arguments& arguments_;
  std::size_t next_ = 0;
  bool counted_ = false;
  bool numbered_ = false;
};

}  // namespace

Value format_percent(Runtime& runtime, const std::string& format, const Value& arguments) {
  runtime.charge_bytes(format.size() * 4);
  return runtime.text(PercentFormat(runtime, format, arguments).run());
}

Value format_braces(Runtime& runtime, const std::string& format, const Arguments& arguments) {
  runtime.charge_bytes(format.size() * 4);
  BraceArguments values(runtime, arguments);
  std::string out;
  for (std::size_t at = 0; at < format.size();) {
    const char c = format[at++];
    if (c != '{' && c != '}') {
      out += c;
      continue;
    }
    if (at < format.size() && format[at] == c) {
      out += c;
      ++at;
      continue;
    }
    if (c == '}') runtime.fail("format: a single '}'");
    const std::size_t end = format.find('}', at);
    if (end == std::string::npos) runtime.fail("format: a field has no end");
    const std::string field = format.substr(at, end - at);
    if (field.find_first_of("{:!") != std::string::npos) {
      runtime.unsupported("format specifications and conversions in the fields of format");
    }
    runtime.append(out, runtime.str(values.find(field)));
    at = end + 1;
  }
  return runtime.text(std::move(out));
}

}  // namespace touchstone::inline v0::io::chat
