// What Json adds to the library behind it: order, conversions, and one kind of exception.
#include "json/json.h"

#include <gtest/gtest.h>

#include <limits>

namespace touchstone::inline v0 {
namespace {

TEST(Json, WritesWhatBracesSay) {
  const Json json = {{"name", "x"},
                     {"list", {1, 2.5, "a", nullptr, true}},
                     {"nested", {{"b", std::int64_t{-3}}, {"a", std::uint64_t{7}}}},
                     {"none", Json::array()}};
  EXPECT_EQ(json.dump(),
            R"({"name":"x","list":[1,2.5,"a",null,true],"nested":{"b":-3,"a":7},"none":[]})");
}

TEST(Json, ReadsWhatItWrote) {
  const std::string text = R"({"z":[1,-2,3.0,1e+30],"a":{"k":"\u00e4\n","t":false},"n":null})";
  const Json json = Json::parse(text);
  EXPECT_EQ(Json::parse(json.dump()), json);
  EXPECT_EQ(json.items().front().key(), "z");
  EXPECT_TRUE(json["z"][0].is_number_unsigned());
  EXPECT_TRUE(json["z"][1].is_number_integer());
  EXPECT_FALSE(json["z"][2].is_number_integer());
  EXPECT_EQ(json["a"]["k"].get<std::string>(), "\u00e4\n");
  EXPECT_EQ(json["z"].get<std::vector<double>>(), (std::vector<double>{1, -2, 3, 1e30}));
}

TEST(Json, ManyValuesInEachOtherAreRefused) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(Json::parse(nested(1000)).is_array());
  EXPECT_THROW(Json::parse(nested(1001)), Json::exception);
  EXPECT_THROW(Json::parse(nested(1000000)), Json::exception);
  EXPECT_TRUE(Json::parse_or_null(nested(1000000)).is_null());
  const std::string quoted = "\"\\\"" + std::string(5000, '[') + "\"";
  EXPECT_TRUE(Json::parse(quoted).is_string());
}

TEST(Json, ConvertsContainers) {
  using Numbers = std::map<std::string, int>;
  EXPECT_EQ(Json(std::vector<std::string>{"a", "b"}).dump(), R"(["a","b"])");
  EXPECT_EQ(Json(Numbers{{"k", 1}}).dump(), R"({"k":1})");
  EXPECT_EQ(Json::parse(R"({"k":1})").get<Numbers>(), (Numbers{{"k", 1}}));
  EXPECT_EQ(Json(std::optional<double>()).dump(), "null");
  EXPECT_EQ(Json(std::vector<bool>{true, false}).dump(), "[true,false]");
}

TEST(Json, AddsAndReplacesKeys) {
  Json json;
  json["a"] = 1;
  json["b"].push_back("x");
  json.update({{"a", 2}, {"c", 3}});
  EXPECT_EQ(json.dump(), R"({"a":2,"b":["x"],"c":3})");
  EXPECT_EQ(json.value("c", 0), 3);
  EXPECT_EQ(json.value("d", "none"), "none");
  EXPECT_TRUE(json.contains("b"));
  EXPECT_FALSE(json.contains("x"));
}

TEST(Json, SaysWhatIsWrong) {
  EXPECT_TRUE(Json::parse_or_null("{").is_null());
  try {
    (void)Json::parse("[1,]");
    FAIL() << "parsed";
  } catch (const Json::exception& error) {
    EXPECT_EQ(error.byte, 4U);
  }
  const Json json = {{"a", "text"}};
  EXPECT_THROW((void)json.at("b"), Json::exception);
  EXPECT_THROW((void)json.at("a").get<double>(), Json::exception);
  EXPECT_THROW((void)json.at("a").get<bool>(), Json::exception);
  EXPECT_THROW((void)Json(3).at("a"), Json::exception);
  EXPECT_THROW((void)Json::array().at(std::size_t{0}), Json::exception);
}

TEST(Json, NumbersWithoutAFormAndBrokenTextStillPrint) {
  EXPECT_EQ(Json(std::numeric_limits<double>::infinity()).dump(), "null");
  EXPECT_EQ(Json("a\xff").dump(), "\"a\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace touchstone::inline v0
