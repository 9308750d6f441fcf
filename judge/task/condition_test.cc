#include "judge/task/condition.h"

#include <gtest/gtest.h>

#include <functional>

#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

CaseSpec spec(std::map<std::string, int64_t> parameters, const std::string& family = "nominal") {
  return {family, std::move(parameters), 1};
}

TEST(Condition, SaysWhatItMeans) {
  const auto holds = [](const char* text, const CaseSpec& s) {
    return Condition::parse(text).holds(s);
  };
  EXPECT_TRUE(holds("group > 1", spec({{"group", 2}})));
  EXPECT_FALSE(holds("group > 1", spec({{"group", 1}})));
  EXPECT_FALSE(holds("group > 1", spec({})));
  EXPECT_TRUE(holds("vocab % 4 != 0", spec({{"vocab", 6}})));
  EXPECT_FALSE(holds("vocab % 4 != 0", spec({{"vocab", 8}})));
  EXPECT_TRUE(holds("k = vocab", spec({{"k", 7}, {"vocab", 7}})));
  EXPECT_TRUE(
      holds("causal = 1 and queries != keys", spec({{"causal", 1}, {"queries", 2}, {"keys", 3}})));
  EXPECT_FALSE(
      holds("causal = 1 and queries != keys", spec({{"causal", 1}, {"queries", 3}, {"keys", 3}})));
  EXPECT_TRUE(holds("batch = 0 or keys = 0", spec({{"batch", 1}, {"keys", 0}})));
  EXPECT_TRUE(holds("family = nan | masked", spec({}, "masked")));
  EXPECT_FALSE(holds("family = nan | masked", spec({})));
  EXPECT_TRUE(holds("scale2 given", spec({{"scale2", 0}})));
  for (const char* bad :
       {"group", "group >", "group ~ 1", "x % 0 != 1", "family > nan", "a = b c"}) {
    EXPECT_THROW(Condition::parse(bad), InvalidArgument) << bad;
  }
}

std::vector<Observation> observations(const std::function<bool(int64_t, int64_t)>& fails) {
  std::vector<Observation> all;
  for (int64_t group = 1; group <= 4; ++group) {
    for (int64_t keys : {5, 8, 64, 130}) {
      all.push_back({spec({{"group", group}, {"keys", keys}}), fails(group, keys)});
    }
  }
  return all;
}

std::string sentence(const std::vector<Observation>& all) {
  const auto found = diagnose(all, {});
  return found.has_value() ? found->sentence() : "";
}

TEST(Diagnosis, TellsFailuresApart) {
  EXPECT_EQ(sentence(observations([](int64_t group, int64_t) { return group > 1; })),
            "fails exactly where group > 1: 12 of 12");
  EXPECT_EQ(sentence(observations([](int64_t, int64_t keys) { return keys > 64; })),
            "fails exactly where keys > 64: 4 of 4");
  EXPECT_EQ(
      sentence(observations([](int64_t group, int64_t keys) { return group > 2 && keys > 8; })),
      "fails exactly where group > 2 and keys > 8: 4 of 4");
  EXPECT_EQ(
      sentence(observations([](int64_t group, int64_t keys) { return group > 1 || keys == 8; })),
      "fails wherever group > 1 (12 of 12) and in 1 other case");
  EXPECT_EQ(sentence(observations([](int64_t, int64_t) { return true; })), "");
  EXPECT_EQ(
      sentence(observations([](int64_t group, int64_t keys) { return group == 2 && keys == 5; })),
      "")
      << "one failure fits too much";
}

}  // namespace
}  // namespace touchstone::judge
