#include "io/json_document.h"

#include <gtest/gtest.h>

#include <string>

#include "touchstone/core/error.h"

namespace touchstone::io {
namespace {

std::string error_of(const std::string& text, const JsonLimits& limits = {}) {
  try {
    const JsonDocument document("t.json", text, limits);
  } catch (const CorruptData& error) {
    return error.what();
  }
  return "";
}

TEST(JsonDocument, ReadsEveryKind) {
  const JsonDocument document(
      "t.json",
      R"( {"a": [1, -2.5e3, true, false, null], "b": {"c": "x\n\u00e9\ud83d\ude00\/"}, "": {}} )");
  const JsonValue root = document.root();
  EXPECT_EQ(root.size(), 3U);
  const JsonValue a = root.at("a");
  std::string kinds;
  for (const JsonValue value : a) kinds += std::string(json_kind_name(value.kind())) + ";";
  EXPECT_EQ(kinds, "a number;a number;a boolean;a boolean;null;");
  EXPECT_EQ((*a.begin()).as_int(), 1);
  EXPECT_EQ((*++a.begin()).as_double(), -2500);
  EXPECT_FALSE((*++a.begin()).is_integer());
  EXPECT_EQ(root.at("b").at("c").as_string(), "x\n\xc3\xa9\xf0\x9f\x98\x80/");
  EXPECT_TRUE(root.at("").is_object());
  EXPECT_FALSE(root.find("d").has_value());
}

TEST(JsonDocument, NamesThePathOfAWrongKind) {
  const JsonDocument document("t.json", R"({"x": [{"y": 1}, {"y": "two"}]})");
  const JsonValue second = *++document.root().at("x").begin();
  try {
    second.at("y").as_int();
    FAIL();
  } catch (const CorruptData& error) {
    EXPECT_STREQ(error.what(), "t.json: x[1].y: expected a number, got a string");
  }
}

TEST(JsonDocument, RefusesWhatIsNotJson) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[",
                           "[1,]",
                           "{\"a\":1,}",
                           "[1 2]",
                           "{\"a\" 1}",
                           "{a:1}",
                           "01",
                           "-",
                           "1.",
                           "1e",
                           "+1",
                           "nul",
                           "\"",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\ud800\"",
                           "\"\\udc00\"",
                           "\"\\ud800\\u0041\"",
                           "\"\xff\"",
                           "\"\xc0\x80\"",
                           "\"\xed\xa0\x80\"",
                           "\"\xf4\x90\x80\x80\"",
                           "\"\n\"",
                           "1 2",
                           "[]]",
                           "{\"a\":1 \"b\":2}",
                           "[,1]",
                           "{,}",
                           "NaN",
                           "Infinity",
                           "\xef\xbb\xbf{}"}) {
    EXPECT_NE(error_of(text), "") << text;
  }
}

TEST(JsonDocument, RefusesDuplicatesDepthAndSize) {
  EXPECT_EQ(error_of(R"({"a": 1, "b": {"a": 1}, "a": 2})"),
            "t.json: byte 31: the key \"a\" twice in one object");
  EXPECT_EQ(error_of(R"({"a": 1, "\u0061": 2})"),
            "t.json: byte 21: the key \"a\" twice in one object");
  const std::string deep = std::string(64, '[') + std::string(64, ']');
  EXPECT_EQ(error_of(deep), "");
  EXPECT_EQ(error_of('[' + deep + ']'), "t.json: byte 64: nested deeper than 64");
  EXPECT_EQ(error_of("[1,2,3]", {.max_bytes = 6}), "t.json: byte 0: 7 bytes, at most 6");
  EXPECT_NE(error_of(std::string(1 << 20, '[')), "");
}

TEST(JsonDocument, Quotes) {
  EXPECT_EQ(json_quote("a\"b\\c\n\xff\xc3\xa9"), "\"a\\\"b\\\\c\\u000a\xef\xbf\xbd\xc3\xa9\"");
}

}  // namespace
}  // namespace touchstone::io
