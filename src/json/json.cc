#include "json/json.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>

namespace touchstone::inline v0 {
namespace {

using Library = nlohmann::ordered_json;

Json from_library(const Library& value) {
  switch (value.type()) {
    case Library::value_t::boolean:
      return Json(value.get<bool>());
    case Library::value_t::number_integer:
      return Json(value.get<std::int64_t>());
    case Library::value_t::number_unsigned:
      return Json(value.get<std::uint64_t>());
    case Library::value_t::number_float:
      return Json(value.get<double>());
    case Library::value_t::string:
      return Json(value.get_ref<const std::string&>());
    case Library::value_t::array: {
      Json array = Json::array();
      for (const Library& element : value) array.push_back(from_library(element));
      return array;
    }
    case Library::value_t::object: {
      Json object = Json::object();
      for (const auto& item : value.items()) object[item.key()] = from_library(item.value());
      return object;
    }
    default:
      return Json();
  }
}

Library to_library(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_unsigned()) return value.get<std::uint64_t>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    Library array = Library::array();
    for (const Json& element : value) array.push_back(to_library(element));
    return array;
  }
  if (value.is_object()) {
    Library object = Library::object();
    // Keys are unique here already, and the library's own insertion looks for each one again.
    for (const auto& [key, member] : value.items()) object.emplace(key, to_library(member));
    return object;
  }
  return nullptr;
}

bool is_pair(const Json& value) {
  return value.is_array() && value.size() == 2 && value.at(std::size_t{0}).is_string();
}

}  // namespace

Json::Json() : value_(nullptr) {}
Json::Json(std::nullptr_t) : Json() {}
Json::Json(double value) : value_(value) {}
Json::Json(const char* value) : value_(std::string(value)) {}
Json::Json(std::string_view value) : value_(std::string(value)) {}
Json::Json(std::string value) : value_(std::move(value)) {}
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

Json::Json(std::initializer_list<Json> values) : value_(Array()) {
  if (!std::ranges::all_of(values, is_pair)) {
    value_ = Array(values);
    return;
  }
  value_ = Object();
  for (const Json& pair : values) {
    (*this)[pair.at(std::size_t{0}).as_string()] = pair.at(std::size_t{1});
  }
}

Json Json::array() {
  Json value;
  value.value_ = Array();
  return value;
}

Json Json::object() {
  Json value;
  value.value_ = Object();
  return value;
}

namespace {

// Values in values, more than anybody writes and far fewer than a stack has room for: converting,
// copying and destroying them recurses.
constexpr int kMaxDepth = 1000;

// The first byte that lies deeper; the size of the text where there is none.
std::size_t too_deep(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return i;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return text.size();
}

}  // namespace

Json Json::parse(std::string_view text) {
  if (const std::size_t at = too_deep(text); at < text.size()) {
    throw exception("more than 1000 values in each other", at + 1);
  }
  try {
    return from_library(Library::parse(text));
  } catch (const Library::parse_error& error) {
    throw exception(error.what(), error.byte);
  } catch (const Library::exception& error) {
    throw exception(error.what());
  }
}

Json Json::parse_or_null(std::string_view text) {
  if (too_deep(text) < text.size()) return nullptr;
  return from_library(Library::parse(text, nullptr, false));
}

bool Json::is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
bool Json::is_boolean() const { return std::holds_alternative<bool>(value_); }
bool Json::is_number() const {
  return is_number_integer() || std::holds_alternative<double>(value_);
}
bool Json::is_number_integer() const {
  return std::holds_alternative<std::int64_t>(value_) || is_number_unsigned();
}
bool Json::is_number_unsigned() const { return std::holds_alternative<std::uint64_t>(value_); }
bool Json::is_string() const { return std::holds_alternative<std::string>(value_); }
bool Json::is_array() const { return std::holds_alternative<Array>(value_); }
bool Json::is_object() const { return std::holds_alternative<Object>(value_); }

const char* Json::type_name() const {
  if (is_null()) return "null";
  if (is_boolean()) return "boolean";
  if (is_number()) return "number";
  if (is_string()) return "string";
  return is_array() ? "array" : "object";
}

void Json::expected(const char* what) const {
  throw exception(std::string("expected ") + what + ", got " + type_name());
}

bool Json::as_bool() const {
  if (const bool* value = std::get_if<bool>(&value_)) return *value;
  expected("true or false");
}

double Json::as_double() const {
  if (const double* value = std::get_if<double>(&value_)) return *value;
  if (const auto* value = std::get_if<std::int64_t>(&value_)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<std::uint64_t>(&value_)) return static_cast<double>(*value);
  expected("a number");
}

std::int64_t Json::as_int64() const {
  if (const auto* value = std::get_if<std::int64_t>(&value_)) return *value;
  if (const auto* value = std::get_if<std::uint64_t>(&value_)) {
    return static_cast<std::int64_t>(*value);
  }
  if (const double* value = std::get_if<double>(&value_)) return static_cast<std::int64_t>(*value);
  expected("a number");
}

const std::string& Json::as_string() const {
  if (const auto* value = std::get_if<std::string>(&value_)) return *value;
  expected("a string");
}

const Json::Array& Json::as_array() const {
  if (const auto* value = std::get_if<Array>(&value_)) return *value;
  expected("an array");
}

std::size_t Json::size() const {
  if (is_null()) return 0;
  if (const auto* values = std::get_if<Array>(&value_)) return values->size();
  if (const auto* members = std::get_if<Object>(&value_)) return members->size();
  return 1;
}

Json* Json::find(std::string_view key) {
  auto* members = std::get_if<Object>(&value_);
  if (members == nullptr) return nullptr;
  const auto found = std::ranges::find(*members, key, &Member::first);
  return found == members->end() ? nullptr : &found->second;
}

bool Json::contains(std::string_view key) const {
  return const_cast<Json*>(this)->find(key) != nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (!is_object()) expected("an object");
  if (const Json* value = const_cast<Json*>(this)->find(key)) return *value;
  throw exception("key '" + std::string(key) + "' is missing");
}

const Json& Json::at(std::size_t index) const {
  const Array& values = as_array();
  if (index >= values.size()) {
    throw exception("there is no element " + std::to_string(index) + " of " +
                    std::to_string(values.size()));
  }
  return values[index];
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = Object();
  if (!is_object()) expected("an object");
  if (Json* value = find(key)) return *value;
  auto& members = std::get<Object>(value_);
  members.push_back({std::string(key), Json()});
  return members.back().second;
}

Json& Json::operator[](std::size_t index) {
  return const_cast<Json&>(std::as_const(*this).at(index));
}

void Json::push_back(Json value) {
  if (is_null()) value_ = Array();
  if (!is_array()) expected("an array");
  std::get<Array>(value_).push_back(std::move(value));
}

void Json::erase(std::string_view key) {
  if (!is_object()) expected("an object");
  std::erase_if(std::get<Object>(value_),
                [&](const Member& member) { return member.first == key; });
}

void Json::update(const Json& other) {
  for (const auto& [key, value] : other.items()) (*this)[key] = value;
}

Json::Array::const_iterator Json::begin() const {
  static const Array kNone;
  const auto* values = std::get_if<Array>(&value_);
  return values == nullptr ? kNone.begin() : values->begin();
}

Json::Array::const_iterator Json::end() const {
  return begin() + static_cast<std::ptrdiff_t>(is_array() ? size() : 0);
}

const Json::Object& Json::items() const {
  static const Object kNone;
  const auto* members = std::get_if<Object>(&value_);
  return members == nullptr ? kNone : *members;
}

std::string Json::dump(int indent) const {
  return to_library(*this).dump(indent, ' ', false, Library::error_handler_t::replace);
}

std::ostream& operator<<(std::ostream& out, const Json& json) { return out << json.dump(); }

bool operator==(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_number_integer() && b.is_number_integer()
               ? a.get<std::int64_t>() == b.get<std::int64_t>()
               : a.get<double>() == b.get<double>();
  }
  return a.value_ == b.value_;
}

}  // namespace touchstone::inline v0
