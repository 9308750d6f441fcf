#include "judge/report/score.h"

#include <gtest/gtest.h>

#include <set>

#include "judge/report/test_records.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

double value(const Judgment& judgment, const std::string& dimension) {
  return judgment.scores.at(dimension).value.value_or(-1.0);
}

Record scored(Record record) {
  apply_scores(record);
  return record;
}

TEST(Score, AllCasesRight_PassesWithFullMarks) {
  const Judgment judgment = score(sample_record("good"));
  EXPECT_EQ(judgment.verdict, Verdict::pass);
  EXPECT_EQ(value(judgment, "correctness"), 100.0);
  EXPECT_EQ(value(judgment, "completeness"), 100.0);
  EXPECT_EQ(value(judgment, "stability"), 100.0);
  EXPECT_EQ(value(judgment, "robustness"), 100.0);
  EXPECT_EQ(value(judgment, "determinism"), 100.0);
  EXPECT_EQ(value(judgment, "speed"), 100.0);
  EXPECT_GT(value(judgment, "memory"), 99.0);
  EXPECT_GT(value(judgment, "overall"), 99.0);
  EXPECT_LT(judgment.scores.at("correctness").low, 100.0) << "five cases prove little";
}

TEST(Score, UntestedDimension_HasNoValue) {
  Record record = sample_record("good");
  record.speeds.clear();
  record.memory = {};
  record.determinism = {};
  const Judgment judgment = score(record);
  for (const char* dimension : {"speed", "memory", "determinism", "own_tests"}) {
    EXPECT_FALSE(judgment.scores.at(dimension).value.has_value()) << dimension;
    EXPECT_FALSE(judgment.scores.at(dimension).because.empty()) << dimension;
  }
  EXPECT_EQ(value(judgment, "overall"), 100.0) << "the rest is perfect";
}

TEST(Score, MissingHardware_IsUntested) {
  Record record = sample_record("cuda");
  record.cases.clear();
  record.build.built = false;
  record.untested = "no NVIDIA GPU here";
  const Judgment judgment = score(record);
  EXPECT_EQ(judgment.verdict, Verdict::untested);
  EXPECT_EQ(judgment.because, "no NVIDIA GPU here");
  for (const auto& [dimension, score] : judgment.scores) {
    EXPECT_FALSE(score.value.has_value()) << dimension;
    EXPECT_EQ(score.because, "no NVIDIA GPU here") << dimension;
  }
}

TEST(Score, FailedCase_IsWrongAndHasNoSpeed) {
  Record record = sample_record("bad");
  fail_case(record, 0, "dx[2]: got 1, expected 2");
  const Judgment judgment = score(record);
  EXPECT_EQ(judgment.verdict, Verdict::wrong);
  EXPECT_NE(judgment.because.find("c1"), std::string::npos) << judgment.because;
  EXPECT_NE(judgment.because.find("got 1, expected 2"), std::string::npos) << judgment.because;
  // Families: nominal 1/2, shifted_mean 1/1, tile 1/1, one relation 1/1.
  EXPECT_DOUBLE_EQ(value(judgment, "correctness"), 100.0 * 3.5 / 4);
  EXPECT_FALSE(judgment.scores.at("speed").value.has_value());
}

TEST(Score, FailedOptionalCase_CostsPointsOnly) {
  Record record = sample_record("shaky");
  fail_case(record, 2, "dx[2]: got 1, expected 2");
  record.cases[2].gates = false;
  record.probes[1].passed = false;
  const Judgment judgment = score(record);
  EXPECT_EQ(judgment.verdict, Verdict::pass);
  EXPECT_EQ(value(judgment, "correctness"), 100.0);
  EXPECT_EQ(value(judgment, "stability"), 0.0);
}

TEST(Score, FailedRelation_IsWrong) {
  Record record = sample_record("bad");
  record.relations[0].check = {false, "row 0 differs", {}};
  EXPECT_EQ(score(record).verdict, Verdict::wrong);
}

TEST(Score, LostBits_CostTenPointsEach) {
  Record record = sample_record("noisy");
  record.cases[2].check.errors[0].worst_bits = 6.0;  // three beyond what is free
  EXPECT_DOUBLE_EQ(value(score(record), "stability"), 70.0);
}

TEST(Score, SeveralFindings_GravestDecidesVerdict) {
  Record record = sample_record("bad");
  fail_case(record, 0, "wrong");
  record.findings.push_back({"f1", "leak", "grows by 4096 bytes a call", ""});
  EXPECT_EQ(score(record).verdict, Verdict::wrong) << "a leak is no verdict";
  record.findings.push_back({"f2", "hung", "no answer in 10 s", "c1"});
  EXPECT_EQ(score(record).verdict, Verdict::limit);
  record.findings.push_back({"f3", "wrote_outside", "wrote behind dx", "c1"});
  EXPECT_EQ(score(record).verdict, Verdict::unsafe);
  record.findings.push_back({"f4", "cached_answer", "the old answer for new content", "c1"});
  const Judgment judgment = score(record);
  EXPECT_EQ(judgment.verdict, Verdict::proven_cheat);
  EXPECT_EQ(judgment.because, "f4: the old answer for new content");
}

TEST(Score, RepeatedFinding_LowersRobustnessOnce) {
  for (const FindingKind& kind : finding_kinds()) {
    Record record = sample_record("bad");
    record.findings.push_back({"f1", std::string(kind.kind), "text", ""});
    const double once = value(score(record), "robustness");
    EXPECT_DOUBLE_EQ(once, 100.0 - kind.deduction) << kind.kind;
    record.findings.push_back({"f2", std::string(kind.kind), "text", ""});
    EXPECT_DOUBLE_EQ(value(score(record), "robustness"), once) << kind.kind;
  }
  EXPECT_THROW(find_kind("haunted"), InvalidArgument);
}

TEST(Score, FailedBuild_HasVerdictAndNoScores) {
  Record record = sample_record("broken");
  record.build.built = false;
  record.build.log = "layer_norm.cc:3: error: expected ';'\nmore";
  const Judgment judgment = score(record);
  EXPECT_EQ(judgment.verdict, Verdict::nobuild);
  EXPECT_EQ(judgment.because, "layer_norm.cc:3: error: expected ';'");
  EXPECT_FALSE(judgment.scores.at("stability").value.has_value());
}

// Compilers say where a file is included from before they say what is wrong with it.
TEST(Score, FailedBuild_ShowsTheErrorAndNotTheWayThere) {
  Record record = sample_record("broken");
  record.build.built = false;
  record.build.log =
      "In file included from a.cc:1:\n                 from b.h:2:\nb.h:9:1: error: no such type\n";
  EXPECT_EQ(score(record).because, "b.h:9:1: error: no such type");
  record.build.log = "/usr/bin/ld: a.o: in function `f':\na.cc:3: undefined reference to `g'\n";
  EXPECT_EQ(score(record).because, "a.cc:3: undefined reference to `g'");
}

// "PASS all 98 cases" stood above a case that fails.
TEST(Score, PassWithLostPoints_SaysBoth) {
  Record record = sample_record("shaky");
  record.cases[2].gates = false;
  fail_case(record, 2, "digits lost");
  const Judgment judgment = score(record);
  EXPECT_EQ(judgment.verdict, Verdict::pass);
  EXPECT_EQ(judgment.because,
            "all 4 cases and relations that decide it; 1 of 1 that only cost points fail");
}

TEST(Score, JudgeError_IsNotTheContenders) {
  Record record = sample_record("good");
  fail_case(record, 0, "wrong");
  record.judge_error = "the lower precision passes";
  EXPECT_EQ(score(record).verdict, Verdict::judge_error);
}

TEST(Score, NoCases_IsUntested) {
  Record record = sample_record("good");
  record.cases.clear();
  EXPECT_EQ(score(record).verdict, Verdict::untested);
}

TEST(Score, ImpossibleSpeed_IsAVerdict) {
  Record record = sample_record("magic");
  record.speeds[1].impossible = true;
  const Judgment judgment = score(record);
  EXPECT_EQ(judgment.verdict, Verdict::impossible);
  EXPECT_FALSE(judgment.scores.at("speed").value.has_value());
}

TEST(Score, Speed_IsGeometricMeanOfRatiosToFastest) {
  Record record = sample_record("slow");
  record.speeds[0].ratio_to["ours"] = {2.0, 1.9, 2.2, 40};
  record.speeds[1].ratio_to["ours"] = {8.0, 7.0, 9.0, 40};
  const Score speed = score(record).scores.at("speed");
  EXPECT_NEAR(*speed.value, 25.0, 1e-9);
  EXPECT_NEAR(speed.low, 100.0 / std::sqrt(2.2 * 9.0), 1e-9);
  EXPECT_NEAR(speed.high, 100.0 / std::sqrt(1.9 * 7.0), 1e-9);
  EXPECT_NE(speed.because.find("4x the time of the fastest (3.65 to 4.45)"), std::string::npos)
      << speed.because;
  for (SpeedRecord& s : record.speeds) s.ratio_to["ours"] = {1.04, 0.97, 1.1, 40};
  EXPECT_NE(score(record).scores.at("speed").because.find("not told apart"), std::string::npos);
  record.speeds_withheld = "the twin differs";
  EXPECT_FALSE(score(record).scores.at("speed").value.has_value());
}

TEST(Score, Memory_ChargesHeldBytesAndGrowth) {
  Record record = sample_record("greedy");
  for (MemoryPoint& point : record.memory.ladder) point.extra_bytes = point.io_bytes;
  EXPECT_NEAR(value(score(record), "memory"), 50.0, 1e-9);
  record.memory.exponent = 1.9;
  EXPECT_NEAR(value(score(record), "memory"), 25.0, 1e-9);
  for (MemoryPoint& point : record.memory.ladder) point.least_bytes = point.extra_bytes;
  record.memory.exponent = 1.0;
  EXPECT_NEAR(value(score(record), "memory"), 100.0, 1e-9) << "the task needs it";
}

TEST(Score, SameRecord_SameJudgment) {
  Record record = sample_record("good");
  fail_case(record, 3, "x");
  const Judgment a = score(record);
  const Judgment b = score(record);
  EXPECT_EQ(a.verdict, b.verdict);
  EXPECT_EQ(a.because, b.because);
  for (const auto& [dimension, s] : a.scores) {
    EXPECT_EQ(s.value, b.scores.at(dimension).value) << dimension;
  }
}

TEST(Rank, PassingContenders_ComeFirstByOverallScore) {
  Record fast = sample_record("fast");
  Record slow = sample_record("slow");
  Record wrong = sample_record("wrong");
  for (SpeedRecord& s : slow.speeds) s.ratio_to["fast"] = {9.0, 8.9, 9.1, 40};
  fail_case(wrong, 0, "x");
  const std::vector<Record> records = {scored(wrong), scored(slow), scored(fast)};
  const std::vector<Standing> standings = rank(records);
  ASSERT_EQ(standings.size(), 3U);
  EXPECT_EQ(standings[0].index, 2U);
  EXPECT_EQ(standings[0].rank, 1);
  EXPECT_EQ(standings[0].share, 1.0) << "better in one thing, equal in all others";
  EXPECT_TRUE(standings[0].depends_on.empty());
  EXPECT_EQ(standings[1].index, 1U);
  EXPECT_EQ(standings[1].rank, 2);
  EXPECT_EQ(standings[2].index, 0U);
  EXPECT_EQ(standings[2].rank, 0);
}

TEST(Rank, CloseContenders_NameTheDecidingWeight) {
  Record fast = sample_record("fast");
  Record small = sample_record("small");
  for (MemoryPoint& point : fast.memory.ladder) point.extra_bytes = 15 * point.io_bytes;
  for (SpeedRecord& s : small.speeds) s.ratio_to["fast"] = {2.0, 1.95, 2.05, 40};
  const std::vector<Record> records = {scored(fast), scored(small)};
  const std::vector<Standing> standings = rank(records);
  EXPECT_EQ(standings[0].best, 1);
  EXPECT_EQ(standings[0].worst, 2);
  EXPECT_LT(standings[0].share, 1.0);
  EXPECT_TRUE((std::set<std::string>{"speed", "memory"}.contains(standings[0].depends_on)))
      << standings[0].depends_on;
}

TEST(Rank, EqualScores_ShareARank) {
  const std::vector<Record> records = {scored(sample_record("a")), scored(sample_record("b"))};
  const std::vector<Standing> standings = rank(records);
  EXPECT_EQ(standings[0].rank, 1);
  EXPECT_EQ(standings[1].rank, 1);
}

TEST(Rank, Weightings_CoverHalfKeepDouble) {
  int count = 0;
  for_each_weighting({{"a", 1.0}, {"b", 2.0}}, [&](const auto& weights) {
    ++count;
    EXPECT_TRUE((std::set<double>{0.5, 1.0, 2.0}.contains(weights.at("a"))));
    EXPECT_TRUE((std::set<double>{1.0, 2.0, 4.0}.contains(weights.at("b"))));
  });
  EXPECT_EQ(count, 9);
}

}  // namespace
}  // namespace touchstone::judge
