// Translates a JSON Schema to GBNF, rule by rule.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/json_document.h"
#include "touchstone/decode/grammar.h"

namespace touchstone::inline v0::decode::grammar {

// A name of the schema for a message: short, without control characters.
std::string shown_name(std::string_view name);

// A text as a literal of GBNF, quotes included.
std::string gbnf_literal(std::string_view text);

// Whole numbers from `low` to `high` as an expression of GBNF; nothing: up to `digits` digits.
std::string integer_expression(std::optional<std::int64_t> low, std::optional<std::int64_t> high,
                               int digits);

// Numbers between whole bounds, which belong to them or not, without exponents.
struct NumberBounds {
  std::optional<std::int64_t> low;
  std::optional<std::int64_t> high;
  bool above_low = false;   // not low itself
  bool below_high = false;  // not high itself
};
std::string number_expression(const NumberBounds& bounds, int digits);

// The content of a string with `pattern`, an expression in the syntax of JSON Schema, between
// quotes. Unsupported, with `path`, for what is not regular or not understood.
std::string pattern_expression(std::string_view pattern, const std::string& path);

// "null", "integer", ...: an integer is what is written without fraction and exponent.
std::string_view type_name(const io::JsonValue& value);

// The types of `type`, or those that the keywords of a schema without it are about; empty: any.
std::vector<std::string> types_of(const io::JsonValue& schema);

// The value at a JSON pointer in a URI fragment ("#/$defs/a~1b", "#/prefixItems/0").
std::optional<io::JsonValue> resolve_pointer(const io::JsonValue& root, std::string_view fragment);

// The properties of an alternative that `oneOf` compares.
struct SchemaSummary {
  using Types = std::set<std::string, std::less<>>;  // "integer" is among "number"

  std::optional<io::JsonValue> schema;  // references followed
  std::optional<Types> written;         // of the texts that are written; none: any
  std::optional<Types> allowed;         // of the values that are valid; none: any
  std::optional<std::vector<io::JsonValue>> constants;
};
SchemaSummary summarize(const io::JsonValue& root, const io::JsonValue& schema);

// Whether no text that is written for one of two schemas is valid under the other, as far as types,
// constants and required properties with constants decide it.
bool are_disjoint(const io::JsonValue& root, const SchemaSummary& a, const SchemaSummary& b);

class SchemaWriter {
 public:
  SchemaWriter(const io::JsonDocument& document, const JsonSchemaOptions& options);
  std::string write();

 private:
  using Value = io::JsonValue;

  std::string visit(const Value& schema, const std::string& hint);
  std::string visit_here(const Value& schema, const std::string& hint);
  std::string visit_object_schema(const Value& schema, const std::string& hint);
  std::string visit_reference(const Value& reference);
  std::string visit_alternatives(const Value& list, const std::string& hint, bool exclusive);
  void expect_disjoint(const Value& list) const;
  std::string visit_type(const Value& schema, std::string_view type, const std::string& hint);
  std::string visit_string(const Value& schema);
  std::string visit_integer(const Value& schema);
  std::string visit_number(const Value& schema);
  std::string visit_array(const Value& schema, const std::string& hint);
  std::string visit_object(const Value& schema, const std::string& hint);
  std::string visit_values(const Value& schema, std::optional<Value> list);
  // The rule of an additional property; "" where none is generated.
  std::string additional_property(const Value& schema, const std::vector<std::string>& names,
                                  const std::string& hint);
  std::string other_keys(const std::vector<std::string>& names, const std::string& hint);

  std::string add_rule(const std::string& hint, const std::string& body);
  std::string reserve(const std::string& hint);
  std::string shared(const char* name);  // "json-value", "json-string", ...
  std::string literal_of(const Value& value) const;
  std::string comma() const;
  std::string colon() const;
  std::string inside() const;  // white space within brackets
  NumberBounds bounds_of(const Value& schema, bool whole) const;

  const io::JsonDocument& document_;
  JsonSchemaOptions options_;
  std::vector<std::pair<std::string, std::string>> rules_;
  std::map<std::string, std::size_t> names_;       // of rules, with the place in rules_
  std::map<std::string, int> suffixes_;            // the last one of a name that came again
  std::map<std::string, std::string> references_;  // rules by $ref
  int depth_ = 0;                                  // of schemas, through references too
};

}  // namespace touchstone::inline v0::decode::grammar
