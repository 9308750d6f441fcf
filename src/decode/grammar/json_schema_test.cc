// Texts made under the schemas of testdata/schemas.json are valid; what is outside the subset is
// refused by its name.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "decode/grammar/grammar_test_support.h"
#include "decode/grammar/json_test_support.h"
#include "json/json.h"
#include "touchstone/decode/grammar.h"

namespace touchstone::decode {
namespace {

TEST(JsonSchema, RandomTextsAreValid) {
  const TestVocabulary vocabulary(
      {"\": ", "\", \"", "true", "null", "{\"", "\\\"", "\\u00", "10", "}]", "ab", "2026-"});
  std::mt19937 random(5);
  for (const Json& entry : schemas()) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const Json& schema = entry["schema"];
    for (const JsonWhitespace whitespace :
         {JsonWhitespace::none, JsonWhitespace::single, JsonWhitespace::any}) {
      const GrammarConstraint constraint(
          Grammar::from_json_schema(schema.dump(), {.whitespace = whitespace}), vocabulary.get());
      for (int run = 0; run < 6; ++run) {
        const std::string text = random_text(constraint, vocabulary, random, 40);
        Json value;
        ASSERT_NO_THROW(value = Json::parse(text)) << text;
        ASSERT_TRUE(Validator(schema).valid(schema, value)) << text;
      }
    }
  }
}

// What the schemas allow is not only what random walks find.
TEST(JsonSchema, AcceptsTheTextsThatItShould) {
  const auto accepts = [](const char* schema, const char* text) {
    return Grammar::from_json_schema(schema).matches(text);
  };
  const char* const person =
      R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0}},"required":["name"]})";
  EXPECT_TRUE(accepts(person, R"({"name": "J\u00fcrgen \"x\"", "age": 42})"));
  EXPECT_TRUE(accepts(person, R"({"name": ""})"));
  EXPECT_FALSE(accepts(person, R"({"age": 42})"));
  EXPECT_FALSE(accepts(person, R"({"name": "", "age": -1})"));
  EXPECT_FALSE(accepts(person, R"({"name": "", "other": 1})"));
  for (int low = -120; low <= 120; low += 17) {
    for (int high = low; high <= 230; high += 23) {
      const Grammar grammar =
          Grammar::from_json_schema(R"({"type":"integer","minimum":)" + std::to_string(low) +
                                    R"(,"maximum":)" + std::to_string(high) + "}");
      for (int value = low - 30; value <= high + 30; ++value) {
        ASSERT_EQ(grammar.matches(std::to_string(value)), low <= value && value <= high)
            << low << ' ' << high << ' ' << value;
      }
      EXPECT_FALSE(grammar.matches("-0"));
    }
  }
  const char* const between = R"({"type":"number","exclusiveMinimum":-1,"maximum":10})";
  for (const char* text : {"-0.5", "0", "0.0", "9.99", "10", "10.0", "-0.001"})
    EXPECT_TRUE(accepts(between, text)) << text;
  for (const char* text : {"-1", "-1.0", "10.1", "11", "-1.5", "1e1"})
    EXPECT_FALSE(accepts(between, text)) << text;
}

// A double holds neither of these numbers; JSON does.
TEST(JsonSchema, WritesNumbersOfConstantsAsTheSchemaDoes) {
  for (const std::string number : {"12345678901234567890", "0.1000000000000000055", "1e400"}) {
    const Grammar grammar = Grammar::from_json_schema(R"({"enum":[[)" + number + "]]}");
    EXPECT_TRUE(grammar.matches("[" + number + "]")) << number;
    EXPECT_FALSE(grammar.matches("[1.2345678901234567e+19]"));
  }
}

TEST(JsonSchema, ReferencesAreJsonPointersInUriFragments) {
  const auto accepts = [](const char* schema, const char* text) {
    return Grammar::from_json_schema(schema).matches(text);
  };
  EXPECT_TRUE(accepts(R"({"$defs":{"x y":{"type":"null"}},"$ref":"#/$defs/x%20y"})", "null"));
  EXPECT_TRUE(accepts(R"({"$defs":{"a/b~":{"type":"null"}},"$ref":"#/$defs/a~1b~0"})", "null"));
  EXPECT_TRUE(accepts(
      R"({"type":"array","prefixItems":[{"const":7},{"$ref":"#/prefixItems/0"}],"items":false})",
      "[7, 7]"));
  EXPECT_THROW(Grammar::from_json_schema(R"({"anyOf":[{"$ref":"#/anyOf/2"}]})"), CorruptData);
  EXPECT_THROW(Grammar::from_json_schema(R"({"anyOf":[{"$ref":"#/anyOf/-1"}]})"), CorruptData);
}

// As Pydantic writes a union with a discriminator.
TEST(JsonSchema, OneOfReferencesThatAPropertyTellsApart) {
  const Grammar grammar = Grammar::from_json_schema(R"({
      "$defs": {"Cat": {"properties": {"kind": {"const": "cat", "type": "string"},
                                       "lives": {"type": "integer", "x-unit": "1"}},
                        "required": ["kind", "lives"], "type": "object"},
                "Dog": {"properties": {"kind": {"enum": ["dog", "wolf"]}},
                        "required": ["kind"], "type": "object"}},
      "discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"},
                        "propertyName": "kind"},
      "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}, {"enum": [null, 3, true]},
                {"enum": [4, false]}]})");
  for (const char* text : {R"({"kind": "cat", "lives": 9})", R"({"kind": "wolf"})", "null", "3",
                           "4", "true", "false"}) {
    EXPECT_TRUE(grammar.matches(text)) << text;
  }
  EXPECT_FALSE(grammar.matches(R"({"kind": "cat"})"));
}

// What JSON escapes never stands in a string as it is.
TEST(JsonSchema, PatternsWriteJsonStrings) {
  const auto grammar = [](const std::string& pattern) {
    return Grammar::from_json_schema(Json{{"type", "string"}, {"pattern", pattern}}.dump());
  };
  const Grammar control = grammar("^a\nb\x01$");
  EXPECT_TRUE(control.matches(R"("a\u000ab\u0001")"));
  EXPECT_FALSE(control.matches("\"a\nb\x01\""));
  EXPECT_TRUE(grammar("^[\u00e0-\u00ff]$").matches("\"\u00e9\""));
  // Ranges from ASCII to beyond it have quotes and backslashes in them.
  for (const char* const set : {"^[ -\u00ff]$", "^[!-\u00e9]$", "^[[-\U0001f600]$"}) {
    EXPECT_THROW(grammar(set), Unsupported) << set;
  }
}

TEST(JsonSchema, HostileSchemasAreRefusedSoon) {
  const auto begin = std::chrono::steady_clock::now();
  std::string chain = R"({"$ref":"#/$defs/a0","$defs":{)";
  for (int i = 0; i < 20000; ++i)
    chain += fmt::format(R"("a{}":{{"$ref":"#/$defs/a{}"}},)", i, i + 1);
  EXPECT_THROW(Grammar::from_json_schema(chain + R"("a20000":{}}})"), Unsupported);
  // Names of rules that are cut to the same beginning.
  std::string names = R"({"properties":{")" + std::string(60, 'a') + R"(":{"properties":{)";
  for (int i = 0; i < 40000; ++i) names += fmt::format(R"("{}":{{}},)", i);
  EXPECT_THROW(Grammar::from_json_schema(names + R"("z":{}}}}})"), CorruptData);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(JsonSchema, RefusesByName) {
  const auto refusal = [](const char* schema) -> std::string {
    try {
      json_schema_to_gbnf(schema);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(R"({"type":"array","contains":{}})"),
            "JSON schema: the keyword 'contains' is not supported");
  EXPECT_EQ(refusal(R"({"properties":{"a":{"not":{}}}})"),
            "JSON schema: properties.a: the keyword 'not' is not supported");
  EXPECT_EQ(refusal(R"({"type":"number","multipleOf":2})"),
            "JSON schema: the keyword 'multipleOf' is not supported");
  EXPECT_EQ(refusal(R"({"type":"string","format":"email"})"),
            "JSON schema: format: the format 'email' is not supported");
  EXPECT_EQ(refusal(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})"),
            "JSON schema: oneOf: alternatives 0 and 1 may both fit a value");
  // A schema without a type allows values of all types, whichever its keywords are about.
  for (const char* schema :
       {R"({"oneOf":[{"type":"integer"},{"minLength":2}]})",
        R"({"oneOf":[{"maxItems":1},{"const":"z"}]})",
        R"({"oneOf":[{"properties":{"a":{"const":1}},"required":["a"]},{"type":"null"}]})",
        R"({"oneOf":[{"enum":["a",1]},{"enum":[2,1.0]}]})",
        R"({"oneOf":[{"$ref":"#/$defs/a"},{"type":"string"}],"$defs":{"a":{"$ref":"#/$defs/a"}}})",
        R"({"oneOf":[{"anyOf":[{"type":"null"},{"type":"string"}]},{"const":"z"}]})"}) {
    EXPECT_EQ(refusal(schema), "JSON schema: oneOf: alternatives 0 and 1 may both fit a value")
        << schema;
  }
  EXPECT_EQ(refusal(R"({"$ref":"http://x"})"),
            "JSON schema: $ref: 'http://x' is outside of the schema");
  EXPECT_EQ(refusal(R"({"$ref":"#/$defs/x"})"), "JSON schema: $ref: '#/$defs/x' is not there");
  EXPECT_EQ(
      refusal("{\"type\":\"string\",\"pattern\":\"(?=a)\"}"),
      "JSON schema: pattern: pattern: a group that looks around or has a name is not supported");
  EXPECT_EQ(refusal(R"({"type":"strin"})"), "JSON schema: type: 'strin' is no type");
  EXPECT_EQ(refusal(R"({"type":"array","uniqueItems":true})"),
            "JSON schema: uniqueItems: the keyword 'uniqueItems' is not supported");
  EXPECT_EQ(refusal(R"({"uniqueItems":true})"),
            "JSON schema: uniqueItems: the keyword 'uniqueItems' is not supported");
  EXPECT_EQ(refusal("false"), "JSON schema: false allows no value");
  EXPECT_EQ(refusal("[1]"), "JSON schema: expected an object, true or false");
  EXPECT_NE(refusal(R"({"type":"object","type":"array"})").find("twice"), std::string::npos);
  EXPECT_THROW(Grammar::from_json_schema(R"({"$ref":"#"})"), GrammarError);
  EXPECT_THROW(Grammar::from_json_schema(R"({"type":"string","minLength":1000000})"), GrammarError);
}

}  // namespace
}  // namespace touchstone::decode
