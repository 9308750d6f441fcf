// What a comparison says: evidence, remarks, claims, the best of each, authors, Markdown, intervals.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "judge/report/board.h"
#include "judge/report/claims.h"
#include "judge/report/duel.h"
#include "judge/report/evidence.h"
#include "judge/report/html/html_report.h"
#include "judge/report/markdown.h"
#include "judge/report/remarks.h"
#include "judge/report/score.h"
#include "judge/report/summary.h"
#include "judge/report/test_records.h"
#include "judge/report/text_format.h"
#include "judge/task/tasks/registry.h"

namespace touchstone::judge {
namespace {

Record scored(Record record) {
  apply_scores(record);
  return record;
}

bool says(const std::vector<Remark>& remarks, const std::string& text) {
  return std::ranges::any_of(
      remarks, [&](const Remark& r) { return r.text.find(text) != std::string::npos; });
}

TEST(Text, PrintableIsWhatATerminalDoesNotObey) {
  EXPECT_EQ(printable("plain \xc3\xa9 \xe2\x88\x91 \xf0\x9f\x98\x80"),
            "plain \xc3\xa9 \xe2\x88\x91 \xf0\x9f\x98\x80");
  EXPECT_EQ(printable("\x1b[2J\x07\x7f\n"), "?[2J???");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J \xe2\x80\xae \xe2\x81\xa6"),
            "?2J ? ?");
  EXPECT_EQ(printable("\xff\xc0\x80\xed\xa0\x80\xe2\x88"), "????????");
}

TEST(Evidence, Precision_IsAPlainNumberPerOutput) {
  Record record = sample_record("a");
  record.cases[0].check.errors[0].worst_absolute = 3e-7;
  record.cases[2].check.errors[0].worst_bits = 10.0;  // not nominal
  const std::vector<OutputPrecision> all = precision_of(record);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].output, "dx");
  EXPECT_NEAR(all[0].relative, 1023 * 0x1p-24, 1e-12);
  EXPECT_EQ(all[0].relative_case, "c3");
  EXPECT_NEAR(*all[0].nominal, (std::exp2(1.5) - 1) * 0x1p-24, 1e-12);
  EXPECT_EQ(all[0].absolute, 3e-7);
}

// A right answer within a bound that grants everything is not a yes.
TEST(Evidence, StabilityProbe_WithoutDigits_IsNoYes) {
  Record record = sample_record("a");
  const ProbeRecord& probe = record.probes[1];
  EXPECT_EQ(probe_state(record, probe).word, "yes");
  record.cases[2].check.errors[0].worst_bits = 28.0;
  const ProbeState state = probe_state(record, probe);
  EXPECT_FALSE(state.passed);
  EXPECT_EQ(state.word, "holds the bound, loses 24.0 of 24 bits");
}

TEST(Evidence, DeterminismProbe_OfARefusedCall_IsNotTested) {
  Record record = sample_record("a");
  record.probes.push_back({{"repeatable", "same bits", "determinism", false}, true, false, {"r1"}});
  record.relations[0].check.passed = false;
  record.relations[0].check.refused = true;
  EXPECT_EQ(probe_state(record, record.probes.back()).word, "not tested: the call was refused");
  record.relations[0].check.refused = false;
  EXPECT_EQ(probe_state(record, record.probes.back()).word, "no");
}

TEST(Remarks, GoodRecord_HasStrengthsWithEvidence) {
  Record record = sample_record("ours");
  record.traffic = {"", record.cases[0].spec, 32, {{"x", 100, 101}}};
  const Remarks said = remarks(scored(record));
  EXPECT_TRUE(says(said.strengths, "Right in all 5 cases"));
  EXPECT_TRUE(says(said.strengths, "The fastest of 2: 0.5x (0.49 to 0.52) the time of naive"));
  EXPECT_TRUE(says(said.strengths, "Reads every input once"));
  EXPECT_TRUE(says(said.strengths, "The same bits"));
  for (const auto* list : {&said.strengths, &said.weaknesses}) {
    for (const Remark& remark : *list) EXPECT_FALSE(remark.evidence.empty()) << remark.text;
  }
}

TEST(Remarks, BadRecord_HasWeaknesses) {
  Record record = sample_record("bad");
  fail_case(record, 0, "wrong");
  for (MemoryPoint& point : record.memory.ladder) point.extra_bytes = 3 * point.io_bytes;
  record.memory.exponent = 1.9;
  for (SpeedRecord& s : record.speeds) s.ratio_to["naive"] = {4.0, 3.9, 4.2, 40};
  record.traffic = {"", record.cases[0].spec, 32, {{"x", 100, 310}}};
  record.own_tests = {true, "test.c", 8, 2, 1, 0, 0, 0};
  const Remarks said = remarks(scored(record));
  EXPECT_TRUE(says(said.weaknesses, "Wrong in 1 of 5 cases"));
  EXPECT_TRUE(says(said.weaknesses, "3.0 times its inputs and outputs"));
  EXPECT_TRUE(says(said.weaknesses, "grows as rows^1.90"));
  EXPECT_TRUE(says(said.weaknesses, "Takes 4x (3.9 to 4.2) the time of naive"));
  EXPECT_TRUE(says(said.weaknesses, "Reads the pages of x 3.1 times"));
  EXPECT_TRUE(says(said.weaknesses, "assert nothing"));
}

ClaimRecord claim(const std::string& measure, double claimed, const std::string& peer = "") {
  ClaimRecord c;
  c.id = "k1";
  c.text = "as it was written";
  c.source = "README.md:3";
  c.measure = measure;
  c.claimed = claimed;
  c.peer = peer;
  return c;
}

std::string state_of(Record record, const ClaimRecord& c) {
  record.claims = {c};
  apply_scores(record);
  return record.claims[0].state;
}

TEST(Claims, MeasuredOnes_AreHeldOrBroken) {
  Record record = sample_record("a");
  record.cases[0].check.errors[0].worst_absolute = 3e-6;
  record.traffic = {"", record.cases[0].spec, 32, {{"x", 100, 300}}};
  record.memory.time_exponent = 2.1;
  const std::vector<std::tuple<std::string, double, std::string>> kExpected = {
      {"reads", 1, "broken"},
      {"reads", 3, "held"},
      {"memory_bytes", 200e3, "held"},
      {"memory_bytes", 0, "held"},
      {"memory_growth", 0, "broken"},
      {"memory_growth", 1, "held"},
      {"time_growth", 1, "broken"},
      {"time_growth", 2, "held"},
      {"absolute_error", 1e-6, "broken"},
      {"absolute_error", 1e-5, "held"},
      {"relative_error", 1e-9, "broken"},
      {"relative_error", 1e-6, "held"},
      {"compute_bound", 1, "broken"},
      {"memory_bound", 1, "held"},
      {"same_bits", 1, "held"},
      {"own_tests", 3, "broken"},
  };
  for (const auto& [measure, claimed, state] : kExpected) {
    EXPECT_EQ(state_of(record, claim(measure, claimed)), state) << measure << " " << claimed;
  }
  EXPECT_EQ(state_of(record, claim("faster_than", 2, "naive")), "held");
  EXPECT_EQ(state_of(record, claim("faster_than", 3, "naive")), "broken");
  EXPECT_EQ(state_of(record, claim("faster_than", 2, "torch")), "not measurable");
  for (MemoryPoint& point : record.memory.ladder) point.extra_bytes = 1 << 30;
  EXPECT_EQ(state_of(record, claim("memory_bytes", 200e3)), "broken");
}

TEST(Claims, Unmeasured_AreNotMeasurable) {
  Record record = sample_record("a");
  record.memory = {};
  record.speeds.clear();
  record.determinism = {};
  record.cases.erase(record.cases.begin(), record.cases.begin() + 2);
  for (const char* measure : {"reads", "memory_bytes", "memory_growth", "time_growth",
                              "absolute_error", "compute_bound", "same_bits", "", "unknown"}) {
    EXPECT_EQ(state_of(record, claim(measure, 1)), "not measurable") << measure;
  }
}

TEST(Claims, BrokenOne_IsAWeaknessWithTheQuotedLine) {
  Record record = sample_record("a");
  record.claims = {claim("memory_growth", 0)};
  const Remarks said = remarks(scored(record));
  EXPECT_TRUE(says(said.weaknesses,
                   "Claims \"as it was written\" (README.md:3), which does not hold: memory grows "
                   "as rows^1.00"));
}

TEST(Claims, Cards_NameKnownMeasures) {
  for (const auto& task : tasks()) {
    EXPECT_FALSE(task->card().claims.empty()) << task->card().id;
    for (const ClaimPattern& pattern : task->card().claims) {
      EXPECT_NE(std::ranges::find(claim_measures(), pattern.measure), claim_measures().end())
          << task->card().id << ": " << pattern.measure;
    }
    if (!task->card().reads_case.empty()) {
      EXPECT_NO_THROW(task->build(parse_spec(task->card().reads_case)));
    }
  }
}

TEST(Duel, WinnerMarginAndCriteria_AreCounted) {
  Record fast = sample_record("fast");
  Record slow = sample_record("slow");
  for (SpeedRecord& s : slow.speeds) s.ratio_to["fast"] = {4.0, 3.9, 4.1, 40};
  const Duel d = duel(scored(fast), scored(slow));
  EXPECT_EQ(d.winner, "fast");
  EXPECT_GT(*d.margin, 10.0);
  EXPECT_EQ(d.first_won, std::vector<std::string>{"speed"});
  EXPECT_TRUE(d.second_won.empty());
  EXPECT_NE(score_line(d).find("Criteria won: fast 1 (speed), slow 0"), std::string::npos);
  EXPECT_EQ(duel(scored(slow), scored(fast)).winner, "fast");
  EXPECT_EQ(duel(scored(fast), scored(fast)).winner, "");
  Record wrong = sample_record("wrong");
  fail_case(wrong, 0, "x");
  EXPECT_EQ(duel(scored(wrong), scored(slow)).winner, "slow");
  EXPECT_FALSE(duel(scored(wrong), scored(slow)).margin.has_value());
}

// "51 < 39" read as arithmetic; evidence belonged to nobody.
TEST(Duel, Text_NamesTheBetterAndWhoseEvidence) {
  Record fast = sample_record("fast");
  Record slow = sample_record("slow");
  for (SpeedRecord& s : slow.speeds) s.ratio_to["fast"] = {4.0, 3.9, 4.1, 40};
  const std::string text = duel_text(duel(scored(fast), scored(slow)), false);
  EXPECT_EQ(text.find(" < "), std::string::npos) << text;
  EXPECT_EQ(text.find(" > "), std::string::npos) << text;
  EXPECT_NE(text.find("    fast: the fastest on 2 shapes"), std::string::npos) << text;
  EXPECT_NE(text.find("    slow: 4x the time of the fastest"), std::string::npos) << text;
  EXPECT_NE(text.find("Winner: fast"), std::string::npos) << text;
}

TEST(Hybrid, BestOfEach_ScoresAtLeastTheBest) {
  Record fast = sample_record("fast");
  Record small = sample_record("small");
  for (MemoryPoint& point : fast.memory.ladder) point.extra_bytes = 15 * point.io_bytes;
  for (SpeedRecord& s : small.speeds) s.ratio_to["fast"] = {2.0, 1.95, 2.05, 40};
  const std::vector<Record> both = {scored(fast), scored(small)};
  const std::optional<Hybrid> best = hybrid(both);
  ASSERT_TRUE(best.has_value());
  EXPECT_GT(best->overall, best->best_overall);
  for (const HybridPart& part : best->parts) {
    if (part.dimension == "speed") {
      EXPECT_EQ(part.from, "fast");
    }
    if (part.dimension == "memory") {
      EXPECT_EQ(part.from, "small");
    }
    if (part.dimension == "correctness") {
      EXPECT_EQ(part.from, "");
    }
  }
  // The score is that of a record with these numbers.
  std::map<std::string, Score> scores = both[0].scores;
  scores["memory"] = both[1].scores.at("memory");
  scores.erase("overall");
  EXPECT_NEAR(best->overall, *overall(scores, both[0].weights), 1e-9);
  Record wrong = small;
  fail_case(wrong, 0, "x");
  EXPECT_FALSE(hybrid(std::vector<Record>{scored(fast), scored(wrong)}).has_value());
}

TEST(Authors, PageOverAllTasks_HasAverageAndPatterns) {
  std::vector<Record> records;
  for (const char* task : {"layer_norm_backward", "softmax_topk"}) {
    Record mine = sample_record("mine", task);
    mine.author = "A. Person";
    mine.findings.push_back({"f1", "leak", "grows", "c1"});
    records.push_back(scored(mine));
    Record other = sample_record("other", task);
    records.push_back(scored(other));
  }
  const std::vector<AuthorPage> pages = author_pages(records);
  ASSERT_EQ(pages.size(), 1U) << "only who is named";
  EXPECT_EQ(pages[0].author, "A. Person");
  ASSERT_EQ(pages[0].tasks.size(), 2U);
  EXPECT_EQ(pages[0].passed, 2);
  EXPECT_NEAR(*pages[0].average,
              (*records[0].scores["overall"].value + *records[2].scores["overall"].value) / 2,
              1e-9);
  EXPECT_TRUE(std::ranges::any_of(pages[0].patterns, [](const std::string& p) {
    return p.find("memory grows from call to call, in 2 tasks") != std::string::npos;
  }));
}

TEST(Markdown, ContenderText_IsNoMarkup) {
  EXPECT_EQ(markdown_escaped("a|b`c*<script>_\n"), "a\\|b\\`c\\*&lt;script&gt;\\_ ");
  Record record = sample_record("evil");
  record.author = "x | y\n# heading";
  fail_case(record, 0, "got <b> | `x`\n\n# heading");
  const std::string text = markdown_report({scored(record)});
  EXPECT_EQ(text.find("<b>"), std::string::npos);
  EXPECT_EQ(text.find("\n# heading"), std::string::npos);
  // Every row of a table has as many cells as its heading.
  std::size_t cells = 0;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    std::size_t bars = 0;
    for (std::size_t i = 0; i < line.size(); ++i) {
      bars += line[i] == '|' && (i == 0 || line[i - 1] != '\\') ? 1 : 0;
    }
    if (!line.starts_with('|')) {
      cells = 0;
    } else if (cells == 0) {
      cells = bars;
    } else {
      EXPECT_EQ(bars, cells) << line;
    }
    begin = end + 1;
  }
}

TEST(Markdown, Report_HasAllParts) {
  Record fast = sample_record("fast");
  Record slow = sample_record("slow");
  slow.author = "somebody";
  slow.claims = {claim("reads", 1)};
  for (SpeedRecord& s : slow.speeds) s.ratio_to["fast"] = {4.0, 3.9, 4.1, 40};
  const std::vector<Record> both = {scored(fast), scored(slow)};
  const std::string text = markdown_report(both);
  for (const char* part : {"## layer\\_norm\\_backward", "### The best of each",
                           "Strengths:", "Weaknesses:", "### Head to head", "Winner: fast",
                           "## Authors", "largest error of dx", "not measurable"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
  EXPECT_NE(markdown_duel_report(duel(both[0], both[1]), both).find("# fast against slow"),
            std::string::npos);
}

// One hard case of three decides half of the score: the interval has to say so.
TEST(Intervals, FewCases_GiveWideIntervals) {
  Record record = sample_record("shaky");
  for (std::size_t i = 0; i < 3; ++i) record.cases[i].probes = {"shifted"};
  record.cases[0].check.errors[0].worst_bits = 13.0;  // no points
  const Score wide = score(record).scores.at("stability");
  EXPECT_NEAR(*wide.value, 200.0 / 3, 1e-9);
  EXPECT_LT(wide.low, 40.0);
  EXPECT_GT(wide.high, 90.0);
  const Judgment judgment = score(record);
  EXPECT_LT(judgment.scores.at("overall").low, *judgment.scores.at("overall").value - 3);
  EXPECT_EQ(score(record).scores.at("stability").low, wide.low)
      << "the same record, the same bounds";
}

TEST(Intervals, Seeds_WidenScoresAndKeepTheGravestVerdict) {
  Record first = scored(sample_record("a"));
  Record second = sample_record("a");
  second.seed = 8;
  for (SpeedRecord& s : second.speeds) s.ratio_to["naive"] = {4.0, 3.9, 4.1, 40};
  std::vector<Record> merged;
  merge_seeds(merged, {first});
  merge_seeds(merged, {scored(second)});
  ASSERT_EQ(merged.size(), 1U);
  ASSERT_EQ(merged[0].seeds.size(), 2U);
  EXPECT_LT(merged[0].scores.at("speed").low, 30.0);
  EXPECT_EQ(*merged[0].scores.at("speed").value, 100.0);
  Record third = sample_record("a");
  fail_case(third, 0, "x");
  merge_seeds(merged, {scored(third)});
  EXPECT_EQ(merged[0].verdict, Verdict::wrong);
  EXPECT_EQ(merged[0].seeds.size(), 3U);
  EXPECT_FALSE(merged[0].witnesses.empty());
}

// Ten cases that fail alike are one statement, and it stands before what only costs points.
TEST(FailureGroups, ShowEachKindOnce) {
  Record record = sample_record("two_kinds", "layer_norm_backward");
  fail_case(record, 0, "dx[0] is 1, exact is 2");
  fail_case(record, 1, "dx[0] is 3, exact is 4");
  fail_case(record, 3, "dx[0] is nan, exact is 4");
  record.cases[3].check.errors.front().got = std::numeric_limits<double>::quiet_NaN();
  record.cases[3].gates = false;
  apply_scores(record);
  const std::vector<FailureGroup> groups = failure_groups(record);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].title(), "wrong dx: 2 cases (c1, c2)");
  EXPECT_EQ(groups[0].witnesses.size(), 2U);
  EXPECT_EQ(groups[1].title(), "no number in dx, costs points: 1 case (c4)");
  for (const std::string& text :
       {board_text({record}, false), markdown_report({record}), html_report({record})}) {
    for (const FailureGroup& group : groups) {
      const std::size_t first = text.find(group.title());
      EXPECT_NE(first, std::string::npos) << group.title() << " in " << text.substr(0, 40);
      EXPECT_EQ(text.find(group.title(), first + 1), std::string::npos) << group.title();
    }
  }
}

}  // namespace
}  // namespace touchstone::judge
