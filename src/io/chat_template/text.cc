#include "io/chat_template/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "io/chat_template/special_casing.h"
#include "io/utf8.h"

namespace touchstone::inline v0::io::chat {
namespace {

utf8proc_int32_t number(char32_t code) { return static_cast<utf8proc_int32_t>(code); }

const SpecialCasing* special_casing(char32_t code) {
  if (code < 0xdf || code > 0xffff) return nullptr;
  const auto* found = std::ranges::lower_bound(kSpecialCasing, static_cast<char16_t>(code), {},
                                               &SpecialCasing::code);
  return found != std::end(kSpecialCasing) && found->code == code ? found : nullptr;
}

void append_all(std::string& out, const char16_t* codes) {
  for (; *codes != 0; ++codes) append_code(out, *codes);
}

void append_upper(std::string& out, char32_t code) {
  if (const SpecialCasing* special = special_casing(code)) return append_all(out, special->upper);
  append_code(out, static_cast<char32_t>(utf8proc_toupper(number(code))));
}

void append_title(std::string& out, char32_t code) {
  if (const SpecialCasing* special = special_casing(code)) return append_all(out, special->title);
  append_code(out, static_cast<char32_t>(utf8proc_totitle(number(code))));
}

constexpr char32_t kCapitalSigma = 0x3a3;
constexpr char32_t kFinalSigma = 0x3c2;
constexpr char32_t kSmallSigma = 0x3c3;

bool is_case_ignorable(char32_t code) {
  switch (utf8proc_category(number(code))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return code == '\'' || code == '.' || code == ':' || code == 0xb7 || code == 0x2019;
  }
}

bool is_cased(char32_t code) {
  return utf8proc_islower(number(code)) != 0 || utf8proc_isupper(number(code)) != 0 ||
         utf8proc_category(number(code)) == UTF8PROC_CATEGORY_LT;
}

// A capital sigma is a final one after a cased letter, unless another follows.
bool is_final_sigma(std::string_view text, std::size_t begin, std::size_t end) {
  bool before = false;
  std::size_t at = begin;
  while (at > 0) {
    do {
      --at;
    } while ((static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u);
    std::size_t next = at;
    const char32_t code = next_code_point(text, next);
    if (is_case_ignorable(code)) continue;
    before = is_cased(code);
    break;
  }
  if (!before) return false;
  while (end < text.size()) {
    const char32_t code = next_code_point(text, end);
    if (!is_case_ignorable(code)) return !is_cased(code);
  }
  return true;
}

void append_lower(std::string& out, char32_t code, std::string_view text, std::size_t begin,
                  std::size_t end) {
  if (code < 0x80) {
    out += static_cast<char>(code >= 'A' && code <= 'Z' ? code + 32 : code);
  } else if (code == kCapitalSigma) {
    append_code(out, is_final_sigma(text, begin, end) ? kFinalSigma : kSmallSigma);
  } else if (code == 0x130) {
    append_code(out, 'i');
    append_code(out, 0x307);
  } else {
    append_code(out, static_cast<char32_t>(utf8proc_tolower(number(code))));
  }
}

bool contains(std::string_view chars, char32_t code) {
  for (std::size_t at = 0; at < chars.size();) {
    if (next_code_point(chars, at) == code) return true;
  }
  return false;
}

bool is_stripped(char32_t code, const std::optional<std::string_view>& chars) {
  return chars ? contains(*chars, code) : is_space(code);
}

// Of split without a separator.
std::size_t skip(std::string_view text, std::size_t at, bool spaces) {
  while (at < text.size()) {
    std::size_t next = at;
    if (is_space(next_code_point(text, next)) != spaces) break;
    at = next;
  }
  return at;
}

}  // namespace

char32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[i]));
  };
  const char32_t first = byte(at);
  const std::size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (length == 1 || at + length > text.size()) {
    ++at;
    return first;
  }
  char32_t code = first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) code = (code << 6) | (byte(at + i) & 0x3fu);
  at += length;
  return code;
}

std::size_t count_code_points(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u; }));
}

std::size_t offset_of(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u) continue;
    if (index-- == 0) return at;
  }
  return at;
}

std::size_t find_text(std::string_view text, std::string_view wanted, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::size_t find_last_text(std::string_view text, std::string_view wanted) {
  const std::string backwards(text.rbegin(), text.rend());
  const std::size_t found = find_text(backwards, std::string(wanted.rbegin(), wanted.rend()), 0);
  return found == std::string_view::npos ? found : text.size() - found - wanted.size();
}

bool is_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
         code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool is_printable(char32_t code) {
  if (code < 0x80) return code >= 0x20 && code != 0x7f;
  switch (utf8proc_category(number(code))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool has_foreign_digit(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const char32_t code = next_code_point(text, at);
    if (code >= 0x80 && utf8proc_category(number(code)) == UTF8PROC_CATEGORY_ND) return true;
  }
  return false;
}

std::string_view strip_left(std::string_view text, std::optional<std::string_view> chars) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t next = at;
    if (!is_stripped(next_code_point(text, next), chars)) break;
    at = next;
  }
  return text.substr(at);
}

std::string_view strip_right(std::string_view text, std::optional<std::string_view> chars) {
  while (!text.empty()) {
    std::size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0u) == 0x80u) --begin;
    std::size_t at = begin;
    if (!is_stripped(next_code_point(text, at), chars)) break;
    text = text.substr(0, begin);
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, std::int64_t limit) {
  std::vector<std::string_view> parts;
  if (!separator) {
    std::size_t at = skip(text, 0, true);
    while (at < text.size()) {
      if (limit >= 0 && static_cast<std::int64_t>(parts.size()) >= limit) {
        parts.push_back(strip_right(text.substr(at)));
        break;
      }
      const std::size_t end = skip(text, at, false);
      parts.push_back(text.substr(at, end - at));
      at = skip(text, end, true);
    }
    return parts;
  }
  std::size_t at = 0;
  while (limit < 0 || static_cast<std::int64_t>(parts.size()) < limit) {
    const std::size_t found = find_text(text, *separator, at);
    if (found == std::string_view::npos) break;
    parts.push_back(text.substr(at, found - at));
    at = found + separator->size();
  }
  parts.push_back(text.substr(at));
  return parts;
}

std::vector<std::string_view> split_from_right(std::string_view text,
                                               std::optional<std::string_view> separator,
                                               std::int64_t limit) {
  std::vector<std::string_view> parts;
  if (!separator) {
    const std::vector<std::string_view> all = split(text, {}, -1);
    const std::size_t kept =
        limit < 0 ? all.size() : std::min(all.size(), static_cast<std::size_t>(limit));
    const std::size_t head = all.size() - kept;
    if (head > 0) {
      // What is not split keeps its white space at the left.
      const std::string_view last = all[head - 1];
      const std::size_t end = static_cast<std::size_t>(last.data() - text.data()) + last.size();
      parts.push_back(text.substr(0, end));
    }
    parts.insert(parts.end(), all.begin() + static_cast<std::ptrdiff_t>(head), all.end());
    return parts;
  }
  // From the right is from the left in the text backwards.
  const std::string backwards(text.rbegin(), text.rend());
  const std::string backwards_separator(separator->rbegin(), separator->rend());
  for (const std::string_view part : split(backwards, backwards_separator, limit)) {
    const auto begin = static_cast<std::size_t>(part.data() - backwards.data());
    parts.push_back(text.substr(text.size() - begin - part.size(), part.size()));
  }
  std::ranges::reverse(parts);
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t here = at;
    const char32_t code = next_code_point(text, at);
    const bool breaks = (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) ||
                        code == 0x85 || code == 0x2028 || code == 0x2029;
    if (!breaks) continue;
    if (code == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : here) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    std::int64_t count) {
  std::string out;
  std::int64_t done = 0;
  const auto more = [&] { return count < 0 || done < count; };
  if (from.empty()) {
    for (std::size_t at = 0; at <= text.size();) {
      if (more()) {
        out += to;
        ++done;
      }
      if (at == text.size()) break;
      const std::size_t begin = at;
      next_code_point(text, at);
      out += text.substr(begin, at - begin);
    }
    return out;
  }
  std::size_t at = 0;
  while (more()) {
    const std::size_t found = find_text(text, from, at);
    if (found == std::string_view::npos) break;
    out += text.substr(at, found - at);
    out += to;
    at = found + from.size();
    ++done;
  }
  out += text.substr(at);
  return out;
}

std::string upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) append_upper(out, next_code_point(text, at));
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t code = next_code_point(text, at);
    append_lower(out, code, text, begin, at);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t code = next_code_point(text, at);
    begin == 0 ? append_title(out, code) : append_lower(out, code, text, begin, at);
  }
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t code = next_code_point(text, at);
    inside ? append_lower(out, code, text, begin, at) : append_title(out, code);
    inside = is_cased(code);
  }
  return out;
}

std::string title_filter(std::string_view text) {
  const auto separates = [](char32_t code) {
    return code == '-' || code == '(' || code == '{' || code == '[' || code == '<' ||
           is_space(code);
  };
  std::string out;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t begin = at;
    const bool separator = separates(next_code_point(text, at));
    const std::size_t first = at;
    while (at < text.size()) {
      std::size_t next = at;
      if (separates(next_code_point(text, next)) != separator) break;
      at = next;
    }
    out += upper(text.substr(begin, first - begin));
    out += lower(text.substr(first, at - first));
  }
  return out;
}

bool is_lower(std::string_view text) {
  bool any = false;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t code = next_code_point(text, at);
    if (utf8proc_isupper(number(code)) != 0) return false;
    if (utf8proc_category(number(code)) == UTF8PROC_CATEGORY_LT) return false;
    any = any || utf8proc_islower(number(code)) != 0;
  }
  return any;
}

bool is_upper(std::string_view text) {
  bool any = false;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t code = next_code_point(text, at);
    if (utf8proc_islower(number(code)) != 0) return false;
    if (utf8proc_category(number(code)) == UTF8PROC_CATEGORY_LT) return false;
    any = any || utf8proc_isupper(number(code)) != 0;
  }
  return any;
}

namespace {

void append_escape(std::string& out, char32_t code) {
  constexpr char kHex[] = "0123456789abcdef";
  if (code == '\n' || code == '\r' || code == '\t') {
    out += code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t";
    return;
  }
  const int digits = code < 0x100 ? 2 : code < 0x10000 ? 4 : 8;
  out += digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
  for (int i = digits - 1; i >= 0; --i) out += kHex[(code >> (4 * i)) & 15u];
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t code = next_code_point(text, at);
    is_printable(code) ? void(out += text.substr(begin, at - begin)) : append_escape(out, code);
  }
  return out;
}

std::string python_repr(std::string_view text) {
  const bool double_quotes =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t code = next_code_point(text, at);
    if (code == static_cast<unsigned char>(quote) || code == '\\') {
      out += '\\';
      out += static_cast<char>(code);
    } else if (is_printable(code)) {
      out += text.substr(begin, at - begin);
    } else {
      append_escape(out, code);
    }
  }
  out += quote;
  return out;
}

std::string format_double(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64] = {};
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer) - 1, value, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<std::size_t>(end.ptr - buffer));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const std::size_t mark = text.find('e');
  const int exponent = std::atoi(buffer + (text.data() - buffer) + mark + 1);
  std::string digits(text.substr(0, mark));
  std::erase(digits, '.');
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out.append(".").append(digits, 1);
    const int size = std::abs(exponent);
    return out + (exponent < 0 ? "e-" : "e+") + (size < 10 ? "0" : "") + std::to_string(size);
  }
  if (exponent < 0)
    return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) {
    return out + digits + std::string(static_cast<std::size_t>(exponent + 1 - count), '0') + ".0";
  }
  return out + digits.substr(0, static_cast<std::size_t>(exponent + 1)) + "." +
         digits.substr(static_cast<std::size_t>(exponent + 1));
}

std::string escape_markup(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace touchstone::inline v0::io::chat
