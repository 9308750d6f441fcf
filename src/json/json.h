// A JSON value, for reports and configurations. Objects keep the order in which keys were added.
// Only json.cc includes nlohmann/json, which takes seconds to compile in every file that includes
// it; names and behavior follow it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace touchstone::inline v0 {

class Json {
 public:
  // Text that is not JSON or is nested deeper than 64, a key that is missing, a value of another type.
  class exception : public std::runtime_error {
   public:
    explicit exception(const std::string& what, std::size_t at_byte = 0)
        : std::runtime_error(what), byte(at_byte) {}
    std::size_t byte;  // of the text, where it stopped being JSON; 0 for other errors
  };
  struct Member;
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;

  Json();
  Json(std::nullptr_t);  // NOLINT(google-explicit-constructor): values convert, as in literals
  template <std::same_as<bool> T>
  Json(T value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  template <std::signed_integral T>
  Json(T value) : value_(std::int64_t{value}) {}  // NOLINT(google-explicit-constructor)
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) Json(T value)
      : value_(std::uint64_t{value}) {}  // NOLINT(google-explicit-constructor)
  Json(double value);                    // NOLINT(google-explicit-constructor)
  Json(const char* value);               // NOLINT(google-explicit-constructor)
  Json(std::string_view value);          // NOLINT(google-explicit-constructor)
  Json(std::string value);               // NOLINT(google-explicit-constructor)
  template <class T>
  Json(const std::vector<T>& values);  // NOLINT(google-explicit-constructor)
  template <class T>
  Json(const std::map<std::string, T>& values);  // NOLINT(google-explicit-constructor)
  template <class T>
  Json(const std::optional<T>& value)  // NOLINT(google-explicit-constructor)
      : Json(value ? Json(*value) : Json()) {}
  // {{"key", value}, ...} is an object, anything else in braces an array.
  Json(std::initializer_list<Json> values);
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();

  static Json array();
  static Json object();
  static Json parse(std::string_view text);          // throws Json::exception
  static Json parse_or_null(std::string_view text);  // null where parse throws

  bool is_null() const;
  bool is_boolean() const;
  bool is_number() const;
  bool is_number_integer() const;
  bool is_number_unsigned() const;  // a whole number that is not negative
  bool is_string() const;
  bool is_array() const;
  bool is_object() const;
  const char* type_name() const;

  // The value as bool, a number, std::string, or a std::vector or std::map<std::string> of these.
  template <class T>
  T get() const;

  std::size_t size() const;
  bool empty() const { return size() == 0; }
  bool contains(std::string_view key) const;
  const Json& at(std::string_view key) const;
  const Json& at(std::size_t index) const;
  const Json& operator[](std::string_view key) const { return at(key); }
  const Json& operator[](const char* key) const { return at(std::string_view(key)); }
  const Json& operator[](std::size_t index) const { return at(index); }
  Json& operator[](std::string_view key);  // adds the key, with null, where it is missing
  Json& operator[](const char* key) { return (*this)[std::string_view(key)]; }
  Json& operator[](std::size_t index);
  const Json& operator[](int index) const { return at(static_cast<std::size_t>(index)); }
  Json& operator[](int index) { return (*this)[static_cast<std::size_t>(index)]; }
  template <class T>
  T value(std::string_view key, T otherwise) const {
    return contains(key) ? at(key).get<T>() : otherwise;
  }
  std::string value(std::string_view key, const char* otherwise) const {
    return contains(key) ? at(key).get<std::string>() : otherwise;
  }

  const Json& back() const { return at(size() - 1); }
  Json& back() { return (*this)[size() - 1]; }
  void push_back(Json value);
  void erase(std::string_view key);
  void update(const Json& other);  // adds or replaces the keys of `other`

  // The elements of an array; those of anything else are none.
  Array::const_iterator begin() const;
  Array::const_iterator end() const;
  // The members of an object; those of anything else are none.
  const Object& items() const;

  // indent < 0: on one line. Bytes that are not UTF-8 become U+FFFD.
  std::string dump(int indent = -1) const;

  friend bool operator==(const Json& a, const Json& b);
  friend std::ostream& operator<<(std::ostream& out, const Json& json);

 private:
  using Value = std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string,
                             Array, Object>;
  [[noreturn]] void expected(const char* what) const;
  bool as_bool() const;
  double as_double() const;
  std::int64_t as_int64() const;
  const std::string& as_string() const;
  const Array& as_array() const;
  Json* find(std::string_view key);

  Value value_;
};

struct Json::Member {
  std::string first;
  Json second;
  const std::string& key() const { return first; }
  const Json& value() const { return second; }
  bool operator==(const Member&) const = default;
};

template <class T>
Json::Json(const std::vector<T>& values) : Json(array()) {
  for (const auto& value : values) push_back(Json(T(value)));
}

template <class T>
Json::Json(const std::map<std::string, T>& values) : Json(object()) {
  for (const auto& [key, value] : values) (*this)[key] = Json(value);
}

namespace detail {
template <class T>
struct JsonElement;
template <class T>
struct JsonElement<std::vector<T>> {
  using Type = T;
};
template <class T>
inline constexpr bool kIsJsonMap = false;
template <class T>
inline constexpr bool kIsJsonMap<std::map<std::string, T>> = true;
}  // namespace detail

template <class T>
T Json::get() const {
  if constexpr (std::same_as<T, bool>) {
    return as_bool();
  } else if constexpr (std::floating_point<T>) {
    return static_cast<T>(as_double());
  } else if constexpr (std::integral<T>) {
    return static_cast<T>(as_int64());
  } else if constexpr (std::same_as<T, std::string>) {
    return as_string();
  } else if constexpr (detail::kIsJsonMap<T>) {
    if (!is_object()) expected("an object");
    T values;
    for (const auto& [key, value] : items()) {
      values.emplace(key, value.template get<typename T::mapped_type>());
    }
    return values;
  } else {
    T values;
    for (const Json& value : as_array()) {
      values.push_back(value.get<typename detail::JsonElement<T>::Type>());
    }
    return values;
  }
}

}  // namespace touchstone::inline v0
