#include "io/json_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>

#include "io/utf8.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

constexpr std::size_t kMaxText = (std::size_t{1} << 28) - 1;  // the width of Node::length

// Bytes of the character at the front of `text`; 0 where it is not UTF-8.
std::size_t character_bytes(std::string_view text) {
  const Utf8Front front = utf8_front(text);
  return front.kind == Utf8Front::Kind::valid ? front.bytes : 0;
}

}  // namespace

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t length = character_bytes(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      out += kReplacementCharacter;
    } else if (byte == '"' || byte == '\\') {
      out += {'\\', static_cast<char>(byte)};
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out + '"';
}

const char* json_kind_name(JsonKind kind) {
  constexpr const char* kNames[] = {"null",     "a boolean", "a number",
                                    "a string", "an array",  "an object"};
  return kNames[static_cast<std::size_t>(kind)];
}

// Fills a document. Open containers are on a stack of our own, never on that of the machine.
class JsonParser {
 public:
  JsonParser(JsonDocument& document, std::string_view text, const JsonLimits& limits)
      : out_(document), in_(text), limits_(limits) {}

  void run() {
    if (in_.size() > std::min(limits_.max_bytes, kMaxText)) {
      fail(fmt::format("{} bytes, at most {}", in_.size(), std::min(limits_.max_bytes, kMaxText)));
    }
    out_.text_.reserve(in_.size());
    skip_space();
    begin_value();
    while (!open_.empty()) next();
    skip_space();
    if (at_ != in_.size()) fail("text after the value");
  }

 private:
  using Node = JsonDocument::Node;

  [[noreturn]] void fail(const std::string& problem) const {
    throw CorruptData(fmt::format("{}: byte {}: {}", out_.name_, at_, problem));
  }
  char peek() const {
    if (at_ == in_.size()) fail("unexpected end");
    return in_[at_];
  }
  void take(char c) {
    if (peek() != c) fail(fmt::format("expected '{}'", c));
    ++at_;
  }
  void skip_space() {
    while (at_ < in_.size() &&
           (in_[at_] == ' ' || in_[at_] == '\n' || in_[at_] == '\r' || in_[at_] == '\t')) {
      ++at_;
    }
  }

  // In an open container: its end, or one more value.
  void next() {
    const bool object = kind_of(open_.back()) == JsonKind::object;
    skip_space();
    const char closing = object ? '}' : ']';
    if (peek() == closing) {
      if (trailing_comma_) fail("a comma before the end");
      ++at_;
      close();
      return;
    }
    if (out_.nodes_[open_.back()].size != 0 && !trailing_comma_) {
      fail(fmt::format("expected ',' or '{}'", closing));
    }
    std::uint32_t key = 0;
    std::uint32_t key_length = 0;
    if (object) {
      key = static_cast<std::uint32_t>(out_.text_.size());
      read_string();
      key_length = static_cast<std::uint32_t>(out_.text_.size()) - key;
      skip_space();
      take(':');
      skip_space();
    }
    ++out_.nodes_[open_.back()].size;
    const auto node = static_cast<std::uint32_t>(out_.nodes_.size());
    begin_value();
    out_.nodes_[node].key = key;
    out_.nodes_[node].key_length = key_length;
  }

  // After a value: the comma that separates it from the next.
  void end_value() {
    skip_space();
    trailing_comma_ = !open_.empty() && at_ < in_.size() && in_[at_] == ',';
    if (trailing_comma_) ++at_;
  }

  void begin_value() {
    const auto index = static_cast<std::uint32_t>(out_.nodes_.size());
    Node node{};
    node.text = static_cast<std::uint32_t>(out_.text_.size());
    node.end = index + 1;
    const char c = peek();
    if (c == '{' || c == '[') {
      if (static_cast<int>(open_.size()) >= limits_.max_depth) {
        fail(fmt::format("nested deeper than {}", limits_.max_depth));
      }
      node.kind = static_cast<std::uint32_t>(c == '{' ? JsonKind::object : JsonKind::array);
      ++at_;
      out_.nodes_.push_back(node);
      open_.push_back(index);
      trailing_comma_ = false;
      return;
    }
    if (c == '"') {
      node.kind = static_cast<std::uint32_t>(JsonKind::string);
      read_string();
    } else if (c == '-' || (c >= '0' && c <= '9')) {
      node.kind = static_cast<std::uint32_t>(JsonKind::number);
      read_number();
    } else {
      read_word(node);
    }
    node.length = static_cast<std::uint32_t>(out_.text_.size() - node.text) & 0xfffffffU;
    out_.nodes_.push_back(node);
    end_value();
  }

  void read_word(Node& node) {
    constexpr std::pair<std::string_view, JsonKind> kWords[] = {
        {"null", JsonKind::null}, {"true", JsonKind::boolean}, {"false", JsonKind::boolean}};
    for (const auto& [word, kind] : kWords) {
      if (in_.substr(at_, word.size()) != word) continue;
      node.kind = static_cast<std::uint32_t>(kind) & 7U;
      node.flag = word == "true" ? 1 : 0;
      at_ += word.size();
      return;
    }
    fail("expected a value");
  }

  void digits() {
    if (peek() < '0' || peek() > '9') fail("expected a digit");
    while (at_ < in_.size() && in_[at_] >= '0' && in_[at_] <= '9') ++at_;
  }
  void read_number() {
    const std::size_t begin = at_;
    if (peek() == '-') ++at_;
    const bool zero = peek() == '0';
    const std::size_t first = at_;
    digits();
    if (zero && at_ != first + 1) fail("a number with a leading zero");
    if (at_ < in_.size() && in_[at_] == '.') {
      ++at_;
      digits();
    }
    if (at_ < in_.size() && (in_[at_] == 'e' || in_[at_] == 'E')) {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
    out_.text_ += in_.substr(begin, at_ - begin);
  }

  void read_string() {
    take('"');
    while (true) {
      const char c = peek();
      if (c == '"') break;
      if (static_cast<unsigned char>(c) < 0x20) fail("a control character in a string");
      if (c == '\\') {
        read_escape();
        continue;
      }
      const std::size_t length = character_bytes(in_.substr(at_));
      if (length == 0) fail("invalid UTF-8");
      out_.text_ += in_.substr(at_, length);
      at_ += length;
    }
    ++at_;
  }

  std::uint32_t read_hex4() {
    std::uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail("expected four hexadecimal digits");
      code = code * 16 + static_cast<std::uint32_t>(digit);
    }
    return code;
  }

  void read_escape() {
    ++at_;
    const char c = peek();
    ++at_;
    constexpr std::string_view kFrom = "\"\\/bfnrt";
    constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
    if (const std::size_t found = kFrom.find(c); found != std::string_view::npos) {
      out_.text_ += kTo[found];
      return;
    }
    if (c != 'u') fail("unknown escape");
    std::uint32_t code = read_hex4();
    if (code >= 0xd800 && code < 0xdc00) {
      if (in_.substr(at_, 2) != "\\u") fail("a lone surrogate");
      at_ += 2;
      const std::uint32_t low = read_hex4();
      if (low < 0xdc00 || low > 0xdfff) fail("a lone surrogate");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
      fail("a lone surrogate");
    }
    append_code(out_.text_, code);
  }

  void close() {
    const std::uint32_t index = open_.back();
    open_.pop_back();
    out_.nodes_[index].end = static_cast<std::uint32_t>(out_.nodes_.size());
    if (kind_of(index) == JsonKind::object) refuse_duplicates(index);
    end_value();
  }

  void refuse_duplicates(std::uint32_t index) {
    keys_.clear();
    const std::uint32_t end = out_.nodes_[index].end;
    for (std::uint32_t i = index + 1; i < end; i = out_.nodes_[i].end) {
      keys_.push_back(out_.key_of(out_.nodes_[i]));
    }
    std::sort(keys_.begin(), keys_.end());
    const auto twice = std::adjacent_find(keys_.begin(), keys_.end());
    if (twice != keys_.end()) {
      fail(fmt::format("the key {} twice in one object", json_quote(twice->substr(0, 100))));
    }
  }

  JsonKind kind_of(std::uint32_t index) const {
    return static_cast<JsonKind>(out_.nodes_[index].kind);
  }

  JsonDocument& out_;
  std::string_view in_;
  JsonLimits limits_;
  std::size_t at_ = 0;
  bool trailing_comma_ = false;
  std::vector<std::uint32_t> open_;
  std::vector<std::string_view> keys_;
};

JsonDocument::JsonDocument(std::string name, std::string_view text, const JsonLimits& limits)
    : name_(std::move(name)) {
  JsonParser(*this, text, limits).run();
}

JsonKind JsonValue::kind() const { return static_cast<JsonKind>(document_->nodes_[index_].kind); }

void JsonValue::expect(JsonKind wanted) const {
  if (kind() != wanted) {
    fail(fmt::format("expected {}, got {}", json_kind_name(wanted), json_kind_name(kind())));
  }
}

bool JsonValue::is_integer() const {
  if (!is_number()) return false;
  const std::string_view text = document_->text_of(document_->nodes_[index_]);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool JsonValue::as_bool() const {
  expect(JsonKind::boolean);
  return document_->nodes_[index_].flag != 0;
}

std::int64_t JsonValue::as_int() const {
  expect(JsonKind::number);
  if (!is_integer()) fail("expected a whole number that fits in 64 bits");
  const std::string_view text = document_->text_of(document_->nodes_[index_]);
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

double JsonValue::as_double() const {
  expect(JsonKind::number);
  const std::string_view text = document_->text_of(document_->nodes_[index_]);
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc()) fail("a number beyond the range of a double");
  return value;
}

std::string_view JsonValue::number_text() const {
  expect(JsonKind::number);
  return document_->text_of(document_->nodes_[index_]);
}

std::string_view JsonValue::as_string() const {
  expect(JsonKind::string);
  return document_->text_of(document_->nodes_[index_]);
}

std::size_t JsonValue::size() const { return document_->nodes_[index_].size; }

JsonValue JsonValue::Iterator::operator*() const { return {document_, index_}; }

JsonValue::Iterator& JsonValue::Iterator::operator++() {
  index_ = document_->nodes_[index_].end;
  --left_;
  return *this;
}

JsonValue::Iterator JsonValue::begin() const { return {document_, index_ + 1, size()}; }
JsonValue::Iterator JsonValue::end() const { return {document_, 0, 0}; }

std::string_view JsonValue::key() const { return document_->key_of(document_->nodes_[index_]); }

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  if (!is_object()) return std::nullopt;
  for (const JsonValue member : *this) {
    if (member.key() == key) return member;
  }
  return std::nullopt;
}

JsonValue JsonValue::at(std::string_view key) const {
  expect(JsonKind::object);
  const auto found = find(key);
  if (!found) fail(fmt::format("missing key {}", json_quote(key)));
  return *found;
}

std::string JsonValue::path() const {
  // From the root down: at each level the child whose range holds the node.
  std::string path;
  std::uint32_t at = 0;
  while (at != index_) {
    const bool object = JsonValue(document_, at).is_object();
    std::size_t position = 0;
    std::uint32_t child = at + 1;
    while (document_->nodes_[child].end <= index_) {
      child = document_->nodes_[child].end;
      ++position;
    }
    if (object) {
      if (!path.empty()) path += '.';
      const std::string_view key = document_->key_of(document_->nodes_[child]).substr(0, 100);
      // Messages are one line of text, whatever the keys hold.
      const bool plain = is_valid_utf8(key) && std::ranges::none_of(key, [](char c) {
                           return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
                         });
      path += plain ? std::string(key) : json_quote(key);
    } else {
      path += fmt::format("[{}]", position);
    }
    at = child;
  }
  return path;
}

void JsonValue::fail(const std::string& problem) const {
  const std::string where = path();
  throw CorruptData(
      fmt::format("{}: {}{}{}", document_->name(), where, where.empty() ? "" : ": ", problem));
}

}  // namespace touchstone::inline v0::io
