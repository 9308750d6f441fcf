#include "judge/task/compare.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

namespace touchstone::judge {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Expected expected(std::vector<double> values, double bound) {
  Expected e;
  e.value = std::move(values);
  e.bound.assign(e.value.size(), bound);
  e.scale.assign(e.value.size(), 1.0);
  return e;
}

OutputError compare(std::vector<float> got, const Expected& e, Special special = Special::same) {
  return compare_values("y", 0, got, e, special);
}

TEST(CompareValues, CountsWhatIsOutside) {
  const OutputError error = compare({1.0F, 2.5F, 2.0F, 5.0F}, expected({1, 2, 2, 4}, 0.25));
  EXPECT_EQ(error.outside, 2);
  EXPECT_EQ(error.count, 4);
  EXPECT_EQ(error.first, 1);
  EXPECT_EQ(error.got, 2.5);
  EXPECT_EQ(error.expected, 2);
  EXPECT_EQ(error.worst, 4);
  EXPECT_NEAR(error.worst_bits, 24, 1e-6);  // an error of 1 beside a scale of 1
}

TEST(CompareValues, NotANumberIsOutside) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    const OutputError error = compare({bad}, expected({1}, 1e30));
    EXPECT_EQ(error.outside, 1);
    EXPECT_TRUE(std::isnan(error.worst));
  }
  // A bound that is no number lets nothing through.
  EXPECT_EQ(compare({1.0F}, expected({1}, std::nan(""))).outside, 1);
}

TEST(CompareValues, SpecialValuesMatch) {
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(compare({kNan}, expected({nan}, 1)).outside, 0);
  EXPECT_EQ(compare({kInfinity}, expected({nan}, 1)).outside, 1);
  EXPECT_EQ(compare({0.0F}, expected({nan}, 1)).outside, 1);
  EXPECT_EQ(compare({-kInfinity}, expected({infinity}, 1)).outside, 1);
  EXPECT_EQ(compare({kInfinity}, expected({infinity}, 1)).outside, 0);
  EXPECT_EQ(compare({kInfinity}, expected({nan}, 1), Special::not_finite).outside, 0);
  EXPECT_EQ(compare({0.0F}, expected({nan}, 1), Special::not_finite).outside, 1);
}

TEST(CompareBits, SeesTheLastBit) {
  const std::array<float, 3> a = {1.0F, kNan, 0.0F};
  const std::array<float, 3> b = {std::nextafter(1.0F, 2.0F), kNan, -0.0F};
  EXPECT_EQ(compare_bits("y", 0, a, a).outside, 0);
  EXPECT_EQ(compare_bits("y", 0, b, a).outside, 2);
}

Case two_calls() {
  Case c;
  c.calls.resize(2);
  c.calls[0].function = "first";
  c.calls[1].function = "second";
  c.calls[1].outputs = {{"y", DType::f32, {2, 3}}};
  return c;
}

Reply ok(size_t bytes) {
  Reply reply;
  reply.ending = Ending::ok;
  if (bytes > 0) reply.outputs.emplace_back(bytes);
  return reply;
}

TEST(Checker, NamesTheFirstThingWrong) {
  const Case c = two_calls();
  const std::vector<Reply> replies = {ok(0), ok(24)};
  Checker checker(c, replies);
  EXPECT_TRUE(checker.answered(0));
  EXPECT_TRUE(checker.answered(1));
  EXPECT_TRUE(checker.finish().passed);
  OutputError error;
  error.output = "y";
  error.call = 1;
  error.outside = 1;
  error.count = 6;
  error.first = 4;
  error.got = 2;
  error.expected = 3;
  checker.add(error, c.calls[1].outputs[0].shape);
  checker.complain("something else");
  EXPECT_FALSE(checker.finish().passed);
  EXPECT_EQ(checker.finish().reason,
            "call 1 (second): y[1, 1] is 2, exact is 3; 1 of 6 outside the bound");
}

TEST(Checker, LooksAtEndingsAndSizes) {
  const Case c = two_calls();
  std::vector<Reply> replies = {ok(0), ok(20)};
  Checker wrong_size(c, replies);
  EXPECT_FALSE(wrong_size.answered(1));
  replies[1] = ok(0);
  Checker nothing(c, replies);
  EXPECT_FALSE(nothing.answered(1));
  replies[1].ending = Ending::crashed;
  replies[1].detail = "SIGSEGV";
  Checker crashed(c, replies);
  EXPECT_FALSE(crashed.answered(1));
  EXPECT_EQ(crashed.finish().reason, "call 1 (second): crashed: SIGSEGV");
  EXPECT_FALSE(crashed.refused(1));
  replies[1].ending = Ending::refused;
  Checker refused(c, replies);
  EXPECT_TRUE(refused.refused(1));
  EXPECT_TRUE(refused.finish().passed);
  replies[1].touched = "y";
  Checker wrote(c, replies);
  EXPECT_TRUE(wrote.refused(1));
  EXPECT_FALSE(wrote.refused(1, true)) << "refused, but an output was written to";
  EXPECT_FALSE(refused.refused(0)) << "success where an error is due";
  Checker missing(c, {});
  EXPECT_FALSE(missing.finish().passed);
}

TEST(Growth, IsOrdered) {
  for (const int64_t n : {1, 100, 10000}) {
    EXPECT_LE(growth_of(Growth::tree, 4), growth_of(Growth::random, n) + 1);
    EXPECT_LE(growth_of(Growth::random, n), growth_of(Growth::structured, n));
  }
}

}  // namespace
}  // namespace touchstone::judge
