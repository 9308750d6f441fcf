#include "judge/task/case.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "judge/task/generate.h"
#include "judge/task/task.h"
#include "judge/task/tasks/registry.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

bool same(const CaseSpec& a, const CaseSpec& b) {
  return a.family == b.family && a.parameters == b.parameters && a.seed == b.seed &&
         a.edits == b.edits;
}

TEST(CaseSpecText, RoundTrips) {
  const CaseSpec some{"shifted_mean", {{"rows", 3}, {"mean10", -6}}, 18446744073709551615ULL};
  EXPECT_EQ(format_spec(some), "shifted_mean:mean10=-6,rows=3:18446744073709551615");
  EXPECT_TRUE(same(parse_spec(format_spec(some)), some));
  const CaseSpec none{"nominal", {}, 0};
  EXPECT_TRUE(same(parse_spec(format_spec(none)), none));
  for (const auto& task : tasks()) {
    for (const CaseSpec& spec : task->plan(3, false).cases) {
      EXPECT_TRUE(same(parse_spec(format_spec(spec)), spec)) << format_spec(spec);
    }
  }
}

TEST(CaseSpecText, SaysWhatIsWrong) {
  for (const char* text : {"", "nominal", "nominal:rows=1", ":rows=1:2", "nominal:rows:2",
                           "nominal:rows=x:2", "nominal:rows=1,rows=2:2", "nominal:rows=1:",
                           "nominal:rows=1:-2", "nominal:rows=99999999999999999999:2",
                           "No Name:rows=1:2", "nominal:=1:2", "nominal:rows=1,:x"}) {
    EXPECT_THROW(parse_spec(text), InvalidArgument) << text;
  }
}

TEST(CaseSpecText, EditsStandBehindASlash) {
  const CaseSpec some{"ties",
                      {{"rows", 3}},
                      7,
                      {{0, "x", 0, 16, 0.0F}, {1, "dy", 4, 4, -0.1F}, {0, "x", 5, 5, 1.5e-30F}}};
  EXPECT_EQ(format_spec(some), "ties:rows=3:7/0.x.0-16=0,1.dy.4=-0.1,0.x.5=1.5e-30");
  EXPECT_TRUE(same(parse_spec(format_spec(some)), some));
  for (const char* text :
       {"ties:rows=3:7/", "ties:rows=3:7/0.x=1", "ties:rows=3:7/0.x.3", "ties:rows=3:7/0.x.3-2=1",
        "ties:rows=3:7/x.3=1", "ties:rows=3/0.x.3=1:7", "ties:rows=3:7/0.x.-1=1",
        "ties:rows=3:7/0.x.1=y", "ties:rows=3:7/0.x.1=y.", "ties:rows=3:7/0.x.1=y.-1"}) {
    EXPECT_THROW(parse_spec(text), InvalidArgument) << text;
  }
  const CaseSpec copied{"ties", {{"rows", 3}}, 7, {{0, "x", 2, 4, 0, "y", 9}}};
  EXPECT_EQ(format_spec(copied), "ties:rows=3:7/0.x.2-4=y.9");
  EXPECT_TRUE(same(parse_spec(format_spec(copied)), copied));
}

TEST(CaseSpecs, EditsChangeATensorWhereverItStands) {
  const Task& task = find_task("layer_norm_backward");
  CaseSpec spec{"nominal", {{"rows", 2}, {"cols", 3}}, 7};
  const Case drawn = task.build(spec);
  spec.edits = {{0, "x", 1, 2, 5.0F}, {0, "x", 2, 2, 6.0F}};
  const Case edited = task.build(spec);
  std::vector<float> x(as_f32(drawn.calls[0].inputs[0]).begin(),
                       as_f32(drawn.calls[0].inputs[0]).end());
  x[1] = 5;
  x[2] = 6;
  const auto equals = [&](const InputTensor& tensor) {
    return std::ranges::equal(as_f32(tensor), x);
  };
  EXPECT_TRUE(equals(edited.calls[0].inputs[0]));  // forward
  EXPECT_TRUE(equals(edited.calls[1].inputs[1]));  // backward
  EXPECT_TRUE(
      std::ranges::equal(as_f32(edited.calls[1].inputs[0]), as_f32(drawn.calls[1].inputs[0])));
  // Numbers of another input, and of another row, as they were drawn.
  spec.edits = {{1, "dy", 0, 2, 0, "x", 3}, {0, "x", 0, 2, 0, "x", 3}};
  const Case copied = task.build(spec);
  const auto drawn_x = as_f32(drawn.calls[0].inputs[0]);
  EXPECT_TRUE(std::ranges::equal(as_f32(copied.calls[1].inputs[0]).first(3), drawn_x.last(3)));
  EXPECT_TRUE(std::ranges::equal(as_f32(copied.calls[0].inputs[0]).first(3), drawn_x.last(3)));
  for (const Edit& wrong : {Edit{2, "x", 0, 0, 0}, Edit{0, "dy", 0, 0, 0}, Edit{0, "x", 0, 6, 0},
                            Edit{0, "x", 0, 2, 0, "x", 4}, Edit{0, "x", 0, 0, 0, "dy", 0}}) {
    spec.edits = {wrong};
    EXPECT_THROW(task.build(spec), InvalidArgument) << format_spec(spec);
  }
}

TEST(CaseSpecs, OfOtherTasksAreRefused) {
  for (const auto& task : tasks()) {
    const CaseSpec good = task->plan(1, true).cases[0];
    EXPECT_NO_THROW(task->build(good));
    CaseSpec bad = good;
    bad.family = "unheard_of";
    EXPECT_THROW(task->build(bad), InvalidArgument);
    bad = good;
    bad.parameters["unheard_of"] = 1;
    EXPECT_THROW(task->build(bad), InvalidArgument);
    bad = good;
    bad.parameters.erase(bad.parameters.begin());
    EXPECT_THROW(task->build(bad), InvalidArgument);
    for (auto& [name, value] : good.parameters) {
      bad = good;
      bad.parameters[name] = -1;
      EXPECT_THROW(task->build(bad), InvalidArgument) << name;
      bad.parameters[name] = int64_t{1} << 40;
      EXPECT_THROW(task->build(bad), InvalidArgument) << name;
    }
  }
}

TEST(Generator, DependsOnEverySeedBitAndElement) {
  const Stream a(1, 2), b(1, 3), c(2, 2);
  int equal = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    equal += (a.bits(i) == b.bits(i)) + (a.bits(i) == c.bits(i)) + (a.bits(i) == a.bits(i + 1));
  }
  EXPECT_EQ(equal, 0);
  EXPECT_EQ(a.bits(7), Stream(1, 2).bits(7));
}

TEST(Generator, IsNearEnoughToNormal) {
  const Stream random(5, 1);
  double sum = 0, squares = 0, fourth = 0;
  constexpr int64_t kCount = 100000;
  for (int64_t i = 0; i < kCount; ++i) {
    const double x = random.normal(i);
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.02);
  EXPECT_NEAR(squares / kCount, 1, 0.02);
  EXPECT_NEAR(fourth / kCount, 3, 0.25);  // 2.85 for the sum of eight
}

TEST(Generator, RoundsToElevenBits) {
  EXPECT_EQ(round_to_bits(1.0F, 11), 1.0F);
  EXPECT_EQ(round_to_bits(1.0F + 0x1p-11F, 11), 1.0F);  // a tie goes to the even one
  EXPECT_EQ(round_to_bits(1.0F + 0x1p-10F, 11), 1.0F + 0x1p-10F);
  EXPECT_EQ(round_to_bits(-3.00001F, 11), -3.0F);
}

}  // namespace
}  // namespace touchstone::judge
