#include "judge/task/shrink.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "judge/task/generate.h"
#include "judge/task/tasks/registry.h"
#include "touchstone/core/error.h"

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

TEST(Simplify, LeavesOnlyWhatMatters) {
  // Fails when element 37 of the logits is above 2 and element 40 is negative.
  const Task& task = find_task("softmax_topk");
  CaseSpec start{"nominal", {{"rows", 1}, {"vocab", 64}, {"k", 1}}, 0};
  const auto fails = [&](const CaseSpec& s) {
    const Case c = task.build(s);
    const std::span<const float> logits = as_f32(c.calls[0].inputs[0]);
    return logits[37] > 2 && logits[40] < 0;
  };
  while (!fails(start)) ++start.seed;
  const Shrunk result = simplify(task, start, fails);
  const Case left = task.build(result.spec);
  const std::span<const float> logits = as_f32(left.calls[0].inputs[0]);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (i != 37 && i != 40) {
      EXPECT_EQ(logits[i], 0.0F) << i;
    }
  }
  EXPECT_GT(logits[37], 2.0F);
  EXPECT_LT(logits[40], 0.0F);
  EXPECT_LT(result.tried, 60);
  EXPECT_LE(result.spec.edits.size(), 5U);
}

TEST(Simplify, KeepsToItsBudgetAndToWhatIsNotFinite) {
  const Task& task = find_task("softmax_topk");
  const CaseSpec start{"masked_row", {{"rows", 2}, {"vocab", 8}, {"k", 1}}, 4};
  int asked = 0;
  const auto always = [&](const CaseSpec&) { return ++asked > 0; };
  const Shrunk result = simplify(task, start, always, 5);
  EXPECT_EQ(asked, result.tried);
  EXPECT_LE(asked, 5);
  const Case before = task.build(start);
  const Case after = task.build(result.spec);
  const std::span<const float> drawn = as_f32(before.calls[0].inputs[0]);
  const std::span<const float> now = as_f32(after.calls[0].inputs[0]);
  for (size_t i = 0; i < drawn.size(); ++i) {
    EXPECT_EQ(now[i], std::isinf(drawn[i]) ? drawn[i] : 0.0F);
  }
}

TEST(ShrinkRelation, TheChangeStays) {
  const Task& task = find_task("kv_cache");
  for (const Relation& relation : task.plan(3, true).relations) {
    const auto fails = [](const Relation& r) {
      return r.first.parameters.at("sequences") >= 2 && r.first.parameters.at("prompt") >= 3;
    };
    if (!fails(relation)) continue;
    const Relation small = shrink_relation(task, relation, fails).relation;
    EXPECT_EQ(small.first.parameters.at("sequences"), 2);
    EXPECT_EQ(small.first.parameters.at("prompt"), 3);
    EXPECT_EQ(small.first.parameters.at("layers"), 1);
    // Written and read again it is the same, and what was changed before is changed now.
    const Relation again = parse_relation(format_relation(small));
    EXPECT_EQ(format_spec(again.first), format_spec(small.first));
    EXPECT_EQ(format_spec(again.second), format_spec(small.second));
    EXPECT_EQ(again.id, relation.id);
    for (const auto& [name, value] : relation.second.parameters) {
      const bool changed =
          !relation.first.parameters.contains(name) || relation.first.parameters.at(name) != value;
      EXPECT_EQ(small.second.parameters.at(name),
                changed ? value : small.first.parameters.at(name));
    }
  }
}

TEST(RelationText, SaysWhatIsWrong) {
  for (const char* text : {"", "repeat", "repeat@nominal:rows=1:2", "@nominal:rows=1:2@rows=2",
                           "repeat@nominal@rows=2", "repeat@nominal:rows=1:2@rows"}) {
    EXPECT_THROW(parse_relation(text), InvalidArgument) << text;
  }
}

// Whatever a shrinker is offered can be built, and is another case.
TEST(Shrink, NeighborsAreCases) {
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
