// The schemas of the tests, and a validator: a second, independent reading of JSON Schema.
#pragma once

#include <gtest/gtest.h>
#include <regex.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>

#include "json/json.h"

namespace touchstone::inline v0::decode {

// {"name", "schema"} of every case of testdata/schemas.json.
inline Json schemas() {
  std::ifstream file(TOUCHSTONE_GRAMMAR_TESTDATA "/schemas.json");
  return Json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
}

// Searches by the expressions of the C library (std::regex takes seconds to compile), which know all
// that the schemas use but \d.
inline bool matches_pattern(const std::string& text, const std::string& pattern) {
  std::string expression;
  bool in_set = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\' && pattern[i + 1] == 'd') {
      expression += in_set ? "0-9" : "[0-9]";
      ++i;
      continue;
    }
    expression += pattern[i];
    if (pattern[i] == '\\')
      expression += pattern[++i];
    else if (pattern[i] == '[' || pattern[i] == ']')
      in_set = pattern[i] == '[';
  }
  regex_t compiled;
  if (regcomp(&compiled, expression.c_str(), REG_EXTENDED | REG_NOSUB) != 0) {
    ADD_FAILURE() << "not an expression: " << expression;
    return false;
  }
  const bool found = regexec(&compiled, text.c_str(), 0, nullptr, 0) == 0;
  regfree(&compiled);
  return found;
}

inline std::size_t characters_in(const std::string& text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1U : 0U;
  return count;
}

class Validator {
 public:
  explicit Validator(const Json& root) : root_(root) {}

  bool valid(const Json& schema, const Json& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    if (schema.contains("$ref")) return valid(resolve(schema["$ref"].get<std::string>()), value);
    if (schema.contains("const") && schema["const"] != value) return false;
    if (schema.contains("enum")) {
      const Json& list = schema["enum"];
      if (std::find(list.begin(), list.end(), value) == list.end()) return false;
    }
    if (schema.contains("anyOf") && fitting(schema["anyOf"], value) == 0) return false;
    if (schema.contains("oneOf") && fitting(schema["oneOf"], value) != 1) return false;
    if (schema.contains("allOf") && fitting(schema["allOf"], value) != schema["allOf"].size())
      return false;
    if (schema.contains("type") && !has_type(schema["type"], value)) return false;
    if (value.is_string()) return valid_string(schema, value.get<std::string>());
    if (value.is_number()) return valid_number(schema, value.get<double>());
    if (value.is_array()) return valid_array(schema, value);
    return !value.is_object() || valid_object(schema, value);
  }

 private:
  std::size_t fitting(const Json& list, const Json& value) const {
    std::size_t count = 0;
    for (const Json& schema : list) count += valid(schema, value) ? 1U : 0U;
    return count;
  }
  const Json& resolve(const std::string& reference) const {
    const Json* at = &root_;
    for (std::size_t begin = reference.find('/'); begin != std::string::npos;) {
      const std::size_t end = reference.find('/', begin + 1);
      std::string key = reference.substr(begin + 1, end - begin - 1);
      if (const std::size_t slash = key.find("~1"); slash != std::string::npos) {
        key.replace(slash, 2, "/");
      }
      at = &at->at(key);
      begin = end;
    }
    return *at;
  }
  static bool has_type(const Json& type, const Json& value) {
    if (type.is_array()) {
      return std::any_of(type.begin(), type.end(),
                         [&](const Json& one) { return has_type(one, value); });
    }
    if (type == Json("integer")) {
      return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
    }
    return type == Json(value.is_number() ? "number" : value.type_name());
  }
  static bool valid_string(const Json& schema, const std::string& text) {
    if (characters_in(text) < schema.value("minLength", std::size_t{0})) return false;
    if (schema.contains("maxLength") &&
        characters_in(text) > schema["maxLength"].get<std::size_t>())
      return false;
    if (!schema.contains("pattern")) return true;
    return matches_pattern(text, schema["pattern"].get<std::string>());
  }
  static bool valid_number(const Json& schema, double number) {
    return !(schema.contains("minimum") && number < schema["minimum"].get<double>()) &&
           !(schema.contains("maximum") && number > schema["maximum"].get<double>()) &&
           !(schema.contains("exclusiveMinimum") &&
             number <= schema["exclusiveMinimum"].get<double>()) &&
           !(schema.contains("exclusiveMaximum") &&
             number >= schema["exclusiveMaximum"].get<double>());
  }
  bool valid_array(const Json& schema, const Json& array) const {
    if (array.size() < schema.value("minItems", std::size_t{0})) return false;
    if (schema.contains("maxItems") && array.size() > schema["maxItems"].get<std::size_t>())
      return false;
    const Json prefix = schema.contains("prefixItems") ? schema["prefixItems"] : Json::array();
    for (std::size_t i = 0; i < array.size(); ++i) {
      if (i < prefix.size() ? !valid(prefix[i], array[i])
                            : schema.contains("items") && !valid(schema["items"], array[i])) {
        return false;
      }
    }
    return true;
  }
  bool valid_object(const Json& schema, const Json& object) const {
    const Json required = schema.contains("required") ? schema["required"] : Json::array();
    for (const Json& name : required) {
      if (!object.contains(name.get<std::string>())) return false;
    }
    const Json properties = schema.contains("properties") ? schema["properties"] : Json::object();
    for (const auto& [name, value] : object.items()) {
      if (properties.contains(name)) {
        if (!valid(properties[name], value)) return false;
      } else if (schema.contains("additionalProperties") &&
                 !valid(schema["additionalProperties"], value)) {
        return false;
      }
    }
    return true;
  }

  const Json& root_;
};

}  // namespace touchstone::inline v0::decode
