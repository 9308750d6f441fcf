// JSON from files that may be hostile: read once, without recursion, into one array of nodes and one
// of text. Refused with the byte where it happens (CorruptData): anything that is not JSON, invalid
// UTF-8, lone surrogates, a key that occurs twice in an object, more bytes or a deeper nesting than
// the limits. Memory: at most kJsonMemoryFactor bytes per byte of text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace touchstone::inline v0::io {

struct JsonLimits {
  std::size_t max_bytes = std::size_t{256} << 20;
  int max_depth = 64;
};

// A value takes at least two bytes of text and a node of 24 bytes in a vector that doubles; the keys
// of the object that is being closed are sorted beside it.
inline constexpr std::size_t kJsonMemoryFactor = 64;

enum class JsonKind : std::uint8_t { null, boolean, number, string, array, object };

class JsonDocument;

// A value of a document, which must outlive it. Members and elements are in the order of the text.
// Accessors of another kind throw CorruptData with the path of the value: "config.json: rope.theta:
// expected a number, got a string".
class JsonValue {
 public:
  JsonKind kind() const;
  bool is_null() const { return kind() == JsonKind::null; }
  bool is_bool() const { return kind() == JsonKind::boolean; }
  bool is_number() const { return kind() == JsonKind::number; }
  bool is_string() const { return kind() == JsonKind::string; }
  bool is_array() const { return kind() == JsonKind::array; }
  bool is_object() const { return kind() == JsonKind::object; }
  // Whether the number is written without fraction and exponent and fits in int64.
  bool is_integer() const;

  bool as_bool() const;
  std::int64_t as_int() const;
  double as_double() const;
  std::string_view number_text() const;  // a number as it is written
  std::string_view as_string() const;    // escapes resolved; valid as long as the document

  // Elements of an array or members of an object; 0 for anything else.
  std::size_t size() const;
  // for (JsonValue value : array), for (JsonValue member : object): member.key() is the name.
  class Iterator {
   public:
    Iterator(const JsonDocument* document, std::uint32_t index, std::size_t left)
        : document_(document), index_(index), left_(left) {}
    JsonValue operator*() const;
    Iterator& operator++();
    bool operator!=(const Iterator& other) const { return left_ != other.left_; }

   private:
    const JsonDocument* document_;
    std::uint32_t index_;
    std::size_t left_;
  };
  Iterator begin() const;
  Iterator end() const;
  std::string_view key() const;  // empty for what is not a member

  // The member of that name, by a linear search; null where there is none.
  std::optional<JsonValue> find(std::string_view key) const;
  // The same; CorruptData names the missing key.
  JsonValue at(std::string_view key) const;

  // Where it stands: "model.merges[3]"; for messages.
  std::string path() const;
  // CorruptData "<document>: <path>: <problem>".
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  friend class JsonDocument;
  JsonValue(const JsonDocument* document, std::uint32_t index)
      : document_(document), index_(index) {}
  void expect(JsonKind kind) const;

  const JsonDocument* document_;
  std::uint32_t index_;
};

class JsonDocument {
 public:
  // `name` stands at the front of messages: "config.json".
  JsonDocument(std::string name, std::string_view text, const JsonLimits& limits = {});
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;
  JsonValue root() const { return {this, 0}; }
  const std::string& name() const { return name_; }

 private:
  friend class JsonValue;
  friend class JsonParser;
  struct Node {
    std::uint32_t kind : 3;
    std::uint32_t flag : 1;     // of a boolean
    std::uint32_t length : 28;  // of the string or the number's text
    std::uint32_t text;         // where that begins in text_
    std::uint32_t key_length;
    std::uint32_t key;   // where the member's name begins in text_
    std::uint32_t end;   // the node after the last descendant
    std::uint32_t size;  // elements or members
  };
  static_assert(sizeof(Node) == 24);

  std::string_view text_of(const Node& node) const {
    return std::string_view(text_).substr(node.text, node.length);
  }
  std::string_view key_of(const Node& node) const {
    return std::string_view(text_).substr(node.key, node.key_length);
  }

  std::string name_;
  std::string text_;  // reserved once: views into it stay valid
  std::vector<Node> nodes_;
};

// "an object", ...
const char* json_kind_name(JsonKind kind);

// `text` between quotes, escaped as JSON: control characters, quotes, backslashes; what is not UTF-8
// becomes U+FFFD.
std::string json_quote(std::string_view text);

}  // namespace touchstone::inline v0::io
