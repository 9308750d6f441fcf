#include "decode/grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode {
namespace grammar {
namespace {

using io::JsonKind;
using io::JsonValue;

constexpr int kMaxSchemaDepth = 500;  // some KB of stack each

// Keywords that say nothing about values.
constexpr std::array<std::string_view, 15> kAnnotations = {
    "$schema",      "$id",
    "$comment",     "$defs",
    "definitions",  "title",
    "description",  "default",
    "examples",     "deprecated",
    "readOnly",     "writeOnly",
    "$anchor",      "contentMediaType",
    "discriminator"};  // OpenAPI, Pydantic: the property that selects among `oneOf`
constexpr std::array<std::string_view, 23> kKeywords = {"$ref",
                                                        "const",
                                                        "enum",
                                                        "anyOf",
                                                        "oneOf",
                                                        "allOf",
                                                        "type",
                                                        "properties",
                                                        "required",
                                                        "additionalProperties",
                                                        "items",
                                                        "minItems",
                                                        "maxItems",
                                                        "minLength",
                                                        "maxLength",
                                                        "pattern",
                                                        "format",
                                                        "minimum",
                                                        "maximum",
                                                        "exclusiveMinimum",
                                                        "exclusiveMaximum",
                                                        "prefixItems",
                                                        "uniqueItems"};

bool is_annotation(std::string_view key) {
  return key.starts_with("x-") || std::ranges::count(kAnnotations, key) != 0;
}

[[noreturn]] void refuse(const JsonValue& schema, const std::string& problem) {
  const std::string path = schema.path();
  throw Unsupported(fmt::format("JSON schema: {}{}{}", path, path.empty() ? "" : ": ", problem));
}

void check_keywords(const JsonValue& schema) {
  for (const JsonValue member : schema) {
    const std::string_view key = member.key();
    if (is_annotation(key) || std::ranges::count(kKeywords, key) != 0) continue;
    refuse(schema, fmt::format("the keyword '{}' is not supported", shown_name(key)));
  }
}

// What decides alone leaves no say to its neighbors.
void expect_alone(const JsonValue& schema, std::string_view keyword,
                  std::initializer_list<std::string_view> fine) {
  for (const JsonValue member : schema) {
    const std::string_view key = member.key();
    if (key == keyword || is_annotation(key) || std::ranges::count(fine, key) != 0) continue;
    refuse(schema, fmt::format("'{}' beside '{}' is not supported", shown_name(key), keyword));
  }
}

void refuse_unique_items(const JsonValue& schema) {
  const auto unique = schema.find("uniqueItems");
  if (unique && unique->as_bool()) refuse(*unique, "the keyword 'uniqueItems' is not supported");
}

std::int64_t count_or(const JsonValue& schema, std::string_view key, std::int64_t otherwise) {
  const auto value = schema.find(key);
  if (!value) return otherwise;
  if (!value->is_integer() || value->as_int() < 0)
    value->fail("expected a whole number, 0 or more");
  return value->as_int();
}

std::string counts(std::int64_t min, std::int64_t max) {
  if (max < 0) return min == 0 ? "*" : fmt::format("{{{},}}", min);
  return fmt::format("{{{},{}}}", min, max);
}

constexpr std::pair<std::string_view, std::string_view> kShared[] = {
    {"json-hex", "[0-9a-fA-F]"},
    {"json-char",
     R"([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" ([0-9a-cA-Ce-fE-F] json-hex json-hex json-hex | [dD] [0-7] json-hex json-hex)))"},
    {"json-string", R"("\"" json-char* "\"")"},
    {"json-space", R"([ \t\n\r]{0,20})"},
    {"json-date",
     R"([1-9] [0-9]{3} "-" (("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01]) | ("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30") | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8])))"},
    {"json-time",
     R"(([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,6})? ("Z" | [-+] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9]))"},
    {"json-octet", R"("25" [0-5] | "2" [0-4] [0-9] | "1" [0-9] [0-9] | [1-9]? [0-9])"}};

}  // namespace

std::string shown_name(std::string_view name) {
  std::string out(name.substr(0, 60));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return out;
}

std::string gbnf_literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

SchemaWriter::SchemaWriter(const io::JsonDocument& document, const JsonSchemaOptions& options)
    : document_(document), options_(options) {
  if (options.max_digits < 1 || options.max_digits > 1000) {
    throw InvalidArgument(
        fmt::format("JSON schema: max_digits: expected 1 to 1000, got {}", options.max_digits));
  }
}

std::string SchemaWriter::write() {
  const std::string root = reserve("root");
  references_["#"] = root;
  const std::string body = visit(document_.root(), "value");
  rules_[names_.at(root)].second = body;
  std::string text;
  for (const auto& [name, rule] : rules_) text += fmt::format("{} ::= {}\n", name, rule);
  return text;
}

std::string SchemaWriter::reserve(const std::string& hint) {
  std::string name;
  for (const char c : hint.substr(0, 60)) {
    const bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    name += fine ? c : '-';
  }
  if (name.empty()) name = "value";
  std::string unique = name;
  if (names_.contains(name)) {
    int& suffix = suffixes_.try_emplace(name, 1).first->second;
    do {
      unique = fmt::format("{}-{}", name, ++suffix);
    } while (names_.contains(unique));
  }
  names_[unique] = rules_.size();
  rules_.emplace_back(unique, "");
  return unique;
}

std::string SchemaWriter::add_rule(const std::string& hint, const std::string& body) {
  const std::string name = reserve(hint);
  rules_[names_.at(name)].second = body;
  return name;
}

std::string SchemaWriter::shared(const char* name) {
  if (names_.contains(name)) return name;
  for (const auto& [known, body] : kShared) {
    if (known != name) continue;
    add_rule(name, std::string(body));
    for (const auto& [used, unused] : kShared) {
      if (used != known && body.find(used) != std::string_view::npos) {
        shared(std::string(used).c_str());
      }
    }
    return name;
  }
  // json-value: any JSON.
  const std::string value = reserve("json-value");
  const std::string string = shared("json-string");
  if (options_.whitespace == JsonWhitespace::any) shared("json-space");
  const std::string body =
      fmt::format(R"({0} | {1} | "true" | "false" | "null" | "[" {2} ({3} ({4} {3})* {2})? "]" | )"
                  R"("{{" {2} ({0} {5} {3} ({4} {0} {5} {3})* {2})? "}}")",
                  string, add_rule("json-number", number_expression({}, options_.max_digits)),
                  inside(), value, comma(), colon());
  rules_[names_.at(value)].second = body;
  return value;
}

std::string SchemaWriter::inside() const {
  return options_.whitespace == JsonWhitespace::any ? "json-space" : "";
}

std::string SchemaWriter::comma() const {
  if (options_.whitespace == JsonWhitespace::none) return R"(",")";
  return options_.whitespace == JsonWhitespace::single ? R"(", ")" : R"(json-space "," json-space)";
}

std::string SchemaWriter::colon() const {
  if (options_.whitespace == JsonWhitespace::none) return R"(":")";
  return options_.whitespace == JsonWhitespace::single ? R"(": ")" : R"(json-space ":" json-space)";
}

// The JSON of a value; of objects and arrays in the spacing of the options.
std::string SchemaWriter::literal_of(const Value& value) const {
  const char* const space = options_.whitespace == JsonWhitespace::none ? "" : " ";
  switch (value.kind()) {
    case JsonKind::null:
      return "null";
    case JsonKind::boolean:
      return value.as_bool() ? "true" : "false";
    case JsonKind::number:
      return std::string(value.number_text());  // as written: a double may not hold it
    case JsonKind::string:
      return io::json_quote(value.as_string());
    case JsonKind::array:
    case JsonKind::object:
      break;
  }
  std::string text;
  for (const JsonValue part : value) {
    const std::string key =
        value.is_object() ? fmt::format("{}:{}", io::json_quote(part.key()), space) : "";
    text +=
        fmt::format("{}{}{}", text.empty() ? "" : fmt::format(",{}", space), key, literal_of(part));
  }
  return value.is_object() ? fmt::format("{{{}}}", text) : fmt::format("[{}]", text);
}

// An expression for the values of a schema. A chain of references is as deep as the text is long.
std::string SchemaWriter::visit(const Value& schema, const std::string& hint) {
  if (depth_ == kMaxSchemaDepth) {
    refuse(schema,
           fmt::format("schemas nested deeper than {}, through references", kMaxSchemaDepth));
  }
  ++depth_;
  std::string expression = visit_here(schema, hint);
  --depth_;
  return expression;
}

std::string SchemaWriter::visit_here(const Value& schema, const std::string& hint) {
  if (schema.is_bool()) {
    if (!schema.as_bool()) refuse(schema, "false allows no value");
    return shared("json-value");
  }
  if (!schema.is_object()) schema.fail("expected an object, true or false");
  check_keywords(schema);
  return visit_object_schema(schema, hint);
}

std::string SchemaWriter::visit_object_schema(const Value& schema, const std::string& hint) {
  if (const auto reference = schema.find("$ref")) {
    expect_alone(schema, "$ref", {});
    return visit_reference(*reference);
  }
  if (const auto value = schema.find("const")) {
    expect_alone(schema, "const", {"type"});
    return visit_values(schema, std::nullopt);
  }
  if (const auto values = schema.find("enum")) {
    expect_alone(schema, "enum", {"type"});
    return visit_values(schema, *values);
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    if (const auto list = schema.find(key)) {
      expect_alone(schema, key, {});
      return visit_alternatives(*list, hint, std::string_view(key) == "oneOf");
    }
  }
  if (const auto list = schema.find("allOf")) {
    expect_alone(schema, "allOf", {});
    if (!list->is_array() || list->size() != 1) refuse(*list, "expected one schema");
    return visit(*list->begin(), hint);
  }
  const std::vector<std::string> types = types_of(schema);
  if (types.empty()) {
    if (schema.find("type")) schema.at("type").fail("expected one type or more");
    refuse_unique_items(schema);
    return shared("json-value");
  }
  if (types.size() == 1) return visit_type(schema, types[0], hint);
  std::vector<std::string> parts;
  for (const std::string& type : types)
    parts.push_back(visit_type(schema, type, hint + "-" + type));
  return fmt::format("({})", fmt::join(parts, " | "));
}

std::string SchemaWriter::visit_reference(const Value& reference) {
  const std::string target(reference.as_string());
  const auto known = references_.find(target);
  if (known != references_.end()) return known->second;
  if (!target.starts_with("#/")) {
    refuse(reference, fmt::format("'{}' is outside of the schema", shown_name(target)));
  }
  const std::optional<Value> found = resolve_pointer(document_.root(), target);
  if (!found) reference.fail(fmt::format("'{}' is not there", shown_name(target)));
  const std::string name = reserve(target.substr(target.rfind('/') + 1));
  references_[target] = name;
  const std::string body = visit(*found, name);
  rules_[names_.at(name)].second = body;
  return name;
}

std::string SchemaWriter::visit_alternatives(const Value& list, const std::string& hint,
                                             bool exclusive) {
  if (!list.is_array() || list.size() == 0) list.fail("expected a list of schemas");
  if (exclusive) expect_disjoint(list);
  std::vector<std::string> parts;
  for (const Value schema : list) {
    parts.push_back(visit(schema, fmt::format("{}-{}", hint, parts.size())));
  }
  return fmt::format("({})", fmt::join(parts, " | "));
}

void SchemaWriter::expect_disjoint(const Value& list) const {
  constexpr std::size_t kMaxAlternatives = 512;  // every pair is compared
  if (list.size() > kMaxAlternatives) {
    refuse(list, fmt::format("more than {} alternatives are not supported", kMaxAlternatives));
  }
  std::vector<SchemaSummary> summaries;
  for (const Value schema : list) {
    const std::size_t i = summaries.size();
    summaries.push_back(summarize(document_.root(), schema));
    for (std::size_t j = 0; j < i; ++j) {
      if (are_disjoint(document_.root(), summaries[i], summaries[j])) continue;
      refuse(list, fmt::format("alternatives {} and {} may both fit a value", j, i));
    }
  }
}

std::string SchemaWriter::visit_values(const Value& schema, std::optional<Value> list) {
  const std::vector<std::string> types = types_of(schema);
  std::vector<std::string> parts;
  const auto add = [&](const Value& value) {
    const std::string_view type = type_name(value);
    const bool fits = types.empty() || std::ranges::count(types, type) != 0 ||
                      (type == "integer" && std::ranges::count(types, "number") != 0);
    if (fits) parts.push_back(gbnf_literal(literal_of(value)));
  };
  if (list) {
    if (!list->is_array()) list->fail("expected a list");
    for (const Value value : *list) add(value);
  } else {
    add(schema.at("const"));
  }
  if (parts.empty()) refuse(schema, "no value is left");
  return fmt::format("({})", fmt::join(parts, " | "));
}

std::string SchemaWriter::visit_type(const Value& schema, std::string_view type,
                                     const std::string& hint) {
  if (type == "null") return "\"null\"";
  if (type == "boolean") return "(\"true\" | \"false\")";
  if (type == "string") return visit_string(schema);
  if (type == "integer") return visit_integer(schema);
  if (type == "number") return visit_number(schema);
  if (type == "array") return visit_array(schema, hint);
  if (type == "object") return visit_object(schema, hint);
  schema.at("type").fail(fmt::format("'{}' is no type", shown_name(type)));
}

std::string SchemaWriter::visit_string(const Value& schema) {
  const auto format = schema.find("format");
  const auto pattern = schema.find("pattern");
  const std::int64_t min = count_or(schema, "minLength", 0);
  const std::int64_t max = count_or(schema, "maxLength", -1);
  const bool counted = min > 0 || max >= 0;
  if ((format && pattern) || ((format || pattern) && counted)) {
    refuse(schema, "more than one of pattern, format and lengths is not supported");
  }
  if (pattern) {
    return fmt::format(R"("\"" ({}) "\"")",
                       pattern_expression(pattern->as_string(), pattern->path()));
  }
  if (format) {
    const std::string_view name = format->as_string();
    if (name == "date" || name == "time") {
      return fmt::format(R"("\"" {} "\"")", shared(name == "date" ? "json-date" : "json-time"));
    }
    if (name == "date-time") {
      return fmt::format(R"("\"" {} "T" {} "\"")", shared("json-date"), shared("json-time"));
    }
    if (name == "uuid") {
      const std::string hex = shared("json-hex");
      return fmt::format(R"("\"" {0}{{8}} ("-" {0}{{4}}){{3}} "-" {0}{{12}} "\"")", hex);
    }
    if (name == "ipv4") return fmt::format(R"("\"" {0} ("." {0}){{3}} "\"")", shared("json-octet"));
    refuse(*format, fmt::format("the format '{}' is not supported", shown_name(name)));
  }
  if (!counted) return shared("json-string");
  if (max >= 0 && max < min) refuse(schema, "maxLength is below minLength");
  return fmt::format(R"("\"" {}{} "\"")", shared("json-char"), counts(min, max));
}

NumberBounds SchemaWriter::bounds_of(const Value& schema, bool whole) const {
  NumberBounds bounds;
  const auto read = [&](const char* key, bool low, bool exclusive) {
    const auto value = schema.find(key);
    if (!value) return;
    if (!value->is_number()) value->fail("expected a number");
    const double number = value->as_double();
    if (!(std::abs(number) <= 1e15)) refuse(*value, "bounds beyond 1e15 are not supported");
    if (number != std::floor(number) && !whole) {
      refuse(*value, "bounds of numbers must be whole");
    }
    bool apart = exclusive && number == std::floor(number);
    auto bound = static_cast<std::int64_t>(low ? std::ceil(number) : std::floor(number));
    if (whole && apart) {
      bound += low ? 1 : -1;
      apart = false;
    }
    auto& kept = low ? bounds.low : bounds.high;
    auto& flag = low ? bounds.above_low : bounds.below_high;
    const bool tighter = !kept || (low ? bound > *kept : bound < *kept);
    if (tighter || (bound == *kept && apart)) {
      kept = bound;
      flag = apart;
    }
  };
  read("minimum", true, false);
  read("exclusiveMinimum", true, true);
  read("maximum", false, false);
  read("exclusiveMaximum", false, true);
  if (bounds.low && bounds.high && *bounds.low > *bounds.high) {
    refuse(schema, "the maximum is below the minimum");
  }
  return bounds;
}

std::string SchemaWriter::visit_integer(const Value& schema) {
  const NumberBounds bounds = bounds_of(schema, true);
  return integer_expression(bounds.low, bounds.high, options_.max_digits);
}

std::string SchemaWriter::visit_number(const Value& schema) {
  const std::string text = number_expression(bounds_of(schema, false), options_.max_digits);
  if (text.empty()) refuse(schema, "no number is left between the bounds");
  return text;
}

std::string SchemaWriter::visit_array(const Value& schema, const std::string& hint) {
  refuse_unique_items(schema);
  if (options_.whitespace == JsonWhitespace::any) shared("json-space");
  const std::int64_t min = count_or(schema, "minItems", 0);
  const std::int64_t max = count_or(schema, "maxItems", -1);
  if (max >= 0 && max < min) refuse(schema, "maxItems is below minItems");
  std::vector<std::string> first;
  if (const auto prefix = schema.find("prefixItems")) {
    if (!prefix->is_array()) prefix->fail("expected a list of schemas");
    for (const Value item : *prefix) {
      first.push_back(visit(item, fmt::format("{}-{}", hint, first.size())));
    }
  }
  const auto given = static_cast<std::int64_t>(first.size());
  if (max >= 0 && max < given) refuse(schema, "maxItems is below the number of prefixItems");
  const auto items = schema.find("items");
  const bool more = !(items && items->is_bool() && !items->as_bool()) && (max < 0 || max > given);
  if (!more && min > given) refuse(schema, "minItems is above what the items allow");
  std::string body = fmt::format("{}", fmt::join(first, " " + comma() + " "));
  if (more) {
    const std::string item =
        add_rule(hint + "-item", items ? visit(*items, hint + "-item") : shared("json-value"));
    const std::int64_t least = std::max<std::int64_t>(min - given, 0);
    const std::int64_t most = max < 0 ? -1 : max - given;
    if (given > 0) {
      body += fmt::format(" ({} {}){}", comma(), item, counts(least, most));
    } else {
      body = fmt::format("{} ({} {}){}", item, comma(), item,
                         counts(std::max<std::int64_t>(least - 1, 0), most < 0 ? -1 : most - 1));
      if (least == 0) body = fmt::format("({} {})?", body, inside());
    }
  }
  return add_rule(hint, fmt::format(R"("[" {} {} {} "]")", inside(), body, inside()));
}

}  // namespace grammar

std::string json_schema_to_gbnf(std::string_view schema, const JsonSchemaOptions& options) {
  const io::JsonDocument document("JSON schema", schema, {.max_bytes = std::size_t{1} << 20});
  return grammar::SchemaWriter(document, options).write();
}

}  // namespace touchstone::inline v0::decode
