#include "judge/shrink.h"

#include <gtest/gtest.h>

#include "judge/generate.h"

namespace touchstone::judge {
namespace {

TEST(Shrink, FindsTheSmallestShape) {
  // Fails from 3 rows and 17 columns on.
  const auto fails = [](const CaseSpec& s) {
    return s.parameters.at("rows") >= 3 && s.parameters.at("cols") >= 17;
  };
  const CaseSpec start{"heavy_tails", {{"rows", 100}, {"cols", 1000}}, 5};
  const Shrunk result = shrink(find_task("layer_norm_backward"), start, fails);
  EXPECT_EQ(format_spec(result.spec), "nominal:cols=17,rows=3:5");
  EXPECT_LT(result.tried, 80);
}

TEST(Shrink, KeepsTheFamilyThatMatters) {
  const auto fails = [](const CaseSpec& s) {
    return s.family == "ties" && s.parameters.at("k") > 1;
  };
  const CaseSpec start{"ties", {{"rows", 8}, {"vocab", 300}, {"k", 20}}, 5};
  EXPECT_EQ(format_spec(shrink(find_task("softmax_topk"), start, fails).spec),
            "ties:k=2,rows=1,vocab=2:5");
}

TEST(Shrink, StaysWhereNothingSmallerFails) {
  const CaseSpec start{"nominal", {{"rows", 4}, {"cols", 9}}, 5};
  const auto only_this = [](const CaseSpec&) { return false; };
  EXPECT_EQ(format_spec(shrink(find_task("layer_norm_backward"), start, only_this).spec),
            format_spec(start));
}

TEST(Shrink, KeepsToItsBudget) {
  int asked = 0;
  const CaseSpec start{"nominal", {{"rows", 1000}, {"cols", 1000}}, 5};
  const auto count = [&](const CaseSpec& s) {
    ++asked;
    return s.parameters.at("rows") > 900;
  };
  EXPECT_EQ(shrink(find_task("layer_norm_backward"), start, count, 7).tried, 7);
  EXPECT_EQ(asked, 7);
}

// Whatever a shrinker is offered can be built, and is another case.
TEST(Shrink, NeighboursAreCases) {
  for (const auto& task : tasks()) {
    for (const CaseSpec& spec : task->plan(2, true).cases) {
      for (const CaseSpec& smaller : task->smaller(spec)) {
        ASSERT_NE(format_spec(smaller), format_spec(spec));
        int64_t before = 0, after = 0;
        for (const auto& [name, value] : spec.parameters) before += value;
        for (const auto& [name, value] : smaller.parameters) after += value;
        ASSERT_LE(after, before);
        if (after < 100) {
          ASSERT_NO_THROW(task->build(smaller)) << format_spec(smaller);
        }
      }
    }
  }
}

}  // namespace
}  // namespace touchstone::judge
