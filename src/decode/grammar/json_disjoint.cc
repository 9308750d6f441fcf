// Analysis of a schema for `oneOf` and `$ref`: its types, its constants and the targets of
// references.
#include <algorithm>
#include <charconv>

#include "decode/grammar/json_schema.h"

namespace touchstone::inline v0::decode::grammar {
namespace {

using io::JsonKind;
using io::JsonValue;

// References in a chain, and schemas under a list of alternatives, that are looked at; beyond, nothing
// is known of a schema. Lists of references to lists would grow as a power of their depth.
constexpr int kMaxReferences = 32;
constexpr int kMaxSchemas = 256;
// Of two lists of constants; longer ones count as overlapping.
constexpr std::size_t kMaxComparisons = 4096;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 &&
        hex_digit(text[i + 2]) >= 0) {
      out += static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::optional<JsonValue> child(const JsonValue& value, const std::string& key) {
  if (value.is_object()) return value.find(key);
  if (!value.is_array()) return std::nullopt;
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
  if (error != std::errc() || end != key.data() + key.size()) return std::nullopt;
  for (const JsonValue item : value) {
    if (index-- == 0) return item;
  }
  return std::nullopt;
}

// The schema that a chain of references ends at; none for a chain that does not end.
std::optional<JsonValue> resolved(const JsonValue& root, JsonValue schema) {
  for (int step = 0; step < kMaxReferences; ++step) {
    if (!schema.is_object()) return schema;
    const auto reference = schema.find("$ref");
    if (!reference) return schema;
    const auto target = resolve_pointer(root, reference->as_string());
    if (!target) return std::nullopt;
    schema = *target;
  }
  return std::nullopt;
}

// The values of `const` or `enum`.
std::optional<std::vector<JsonValue>> constants(const JsonValue& schema) {
  if (!schema.is_object()) return std::nullopt;
  if (const auto value = schema.find("const")) return std::vector{*value};
  const auto list = schema.find("enum");
  if (!list || !list->is_array()) return std::nullopt;
  std::vector<JsonValue> values;
  for (const JsonValue value : *list) values.push_back(value);
  return values;
}

bool may_be_equal(const JsonValue& a, const JsonValue& b) {
  if (a.kind() != b.kind()) return false;
  if (a.is_string()) return a.as_string() == b.as_string();
  if (a.is_bool()) return a.as_bool() == b.as_bool();
  if (a.is_integer() && b.is_integer()) return a.as_int() == b.as_int();
  return true;
}

bool are_disjoint_values(const std::vector<JsonValue>& a, const std::vector<JsonValue>& b) {
  if (a.size() * b.size() > kMaxComparisons) return false;
  return std::ranges::none_of(a, [&](const JsonValue& x) {
    return std::ranges::any_of(b, [&](const JsonValue& y) { return may_be_equal(x, y); });
  });
}

using Types = SchemaSummary::Types;

// The types of the values that a schema allows or, with `written`, of the texts that are written for
// it, which are fewer: {"minLength": 2} allows every number, and strings are written. None: any.
std::optional<Types> types_in(const JsonValue& root, const JsonValue& given, bool written,
                              int& schemas) {
  const auto schema = resolved(root, given);
  if (!schema || !schema->is_object() || ++schemas > kMaxSchemas) return std::nullopt;
  Types types;
  if (const auto values = constants(*schema)) {
    for (const JsonValue& value : *values) types.emplace(type_name(value));
  } else if (schema->find("type") || (written && !types_of(*schema).empty())) {
    for (const std::string& type : types_of(*schema)) types.insert(type);
  } else {
    std::optional<JsonValue> list;
    for (const char* key : {"anyOf", "oneOf", "allOf"}) {
      if (!list) list = schema->find(key);
    }
    if (!list || !list->is_array() || list->size() == 0) return std::nullopt;
    for (const JsonValue one : *list) {
      const auto more = types_in(root, one, written, schemas);
      if (!more) return std::nullopt;
      types.insert(more->begin(), more->end());
    }
  }
  if (types.erase("integer") != 0) types.insert("number");
  return types;
}

std::optional<Types> types_in(const JsonValue& root, const JsonValue& schema, bool written) {
  int schemas = 0;
  return types_in(root, schema, written, schemas);
}

bool have_no_common_type(const std::optional<Types>& a, const std::optional<Types>& b) {
  return a && b &&
         std::ranges::none_of(*a, [&](const std::string& type) { return b->contains(type); });
}

bool requires_property(const JsonValue& schema, std::string_view name) {
  const auto required = schema.find("required");
  if (!required || !required->is_array()) return false;
  for (const JsonValue one : *required) {
    if (one.is_string() && one.as_string() == name) return true;
  }
  return false;
}

// Objects with a required property whose constants differ.
bool differ_in_a_property(const JsonValue& root, const JsonValue& a, const JsonValue& b) {
  const auto left = a.find("properties");
  const auto right = b.find("properties");
  if (!left || !right || !left->is_object() || !right->is_object()) return false;
  for (const JsonValue property : *left) {
    const auto other = right->find(property.key());
    if (!other || !requires_property(a, property.key()) || !requires_property(b, property.key())) {
      continue;
    }
    const auto x = resolved(root, property);
    const auto y = resolved(root, *other);
    const auto x_values = x ? constants(*x) : std::nullopt;
    const auto y_values = y ? constants(*y) : std::nullopt;
    if (x_values && y_values && are_disjoint_values(*x_values, *y_values)) return true;
  }
  return false;
}

}  // namespace

std::optional<JsonValue> resolve_pointer(const JsonValue& root, std::string_view fragment) {
  if (fragment == "#") return root;
  if (!fragment.starts_with("#/")) return std::nullopt;
  std::optional<JsonValue> found = root;
  const std::string path = percent_decoded(fragment.substr(2));
  std::string_view rest = path;
  while (found) {
    const std::size_t slash = rest.find('/');
    std::string key(rest.substr(0, slash));
    for (const auto& [escaped, meant] : {std::pair("~1", "/"), std::pair("~0", "~")}) {
      for (std::size_t at = key.find(escaped); at != std::string::npos;
           at = key.find(escaped, at + 1)) {
        key.replace(at, 2, meant);
      }
    }
    found = child(*found, key);
    if (slash == std::string_view::npos) break;
    rest.remove_prefix(slash + 1);
  }
  return found;
}

std::string_view type_name(const JsonValue& value) {
  switch (value.kind()) {
    case JsonKind::null:
      return "null";
    case JsonKind::boolean:
      return "boolean";
    case JsonKind::number:
      return value.is_integer() ? "integer" : "number";
    case JsonKind::string:
      return "string";
    case JsonKind::array:
      return "array";
    case JsonKind::object:
      return "object";
  }
  return "";
}

std::vector<std::string> types_of(const JsonValue& schema) {
  const auto type = schema.find("type");
  std::vector<std::string> types;
  if (type && type->is_array()) {
    for (const JsonValue one : *type) types.emplace_back(one.as_string());
  } else if (type) {
    types.emplace_back(type->as_string());
  } else if (schema.find("properties") || schema.find("required") ||
             schema.find("additionalProperties")) {
    types.emplace_back("object");
  } else if (schema.find("items") || schema.find("prefixItems") || schema.find("minItems") ||
             schema.find("maxItems")) {
    types.emplace_back("array");
  } else if (schema.find("pattern") || schema.find("format") || schema.find("minLength") ||
             schema.find("maxLength")) {
    types.emplace_back("string");
  } else if (schema.find("minimum") || schema.find("maximum") || schema.find("exclusiveMinimum") ||
             schema.find("exclusiveMaximum")) {
    types.emplace_back("number");
  }
  return types;
}

SchemaSummary summarize(const JsonValue& root, const JsonValue& schema) {
  SchemaSummary summary;
  summary.schema = resolved(root, schema);
  if (!summary.schema || !summary.schema->is_object()) return summary;
  summary.written = types_in(root, *summary.schema, true);
  summary.allowed = types_in(root, *summary.schema, false);
  summary.constants = constants(*summary.schema);
  return summary;
}

bool are_disjoint(const JsonValue& root, const SchemaSummary& a, const SchemaSummary& b) {
  if (have_no_common_type(a.written, b.allowed) && have_no_common_type(a.allowed, b.written)) {
    return true;
  }
  if (a.constants && b.constants) return are_disjoint_values(*a.constants, *b.constants);
  const Types object = {"object"};
  return a.written == object && b.written == object &&
         differ_in_a_property(root, *a.schema, *b.schema);
}

}  // namespace touchstone::inline v0::decode::grammar
