#include "judge/report/record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "json/json.h"
#include "judge/report/score.h"
#include "judge/report/test_records.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

Record full_record() {
  Record record = sample_record("a \"quoted\" name\n\x01");
  fail_case(record, 1, "dx[2]: got nan");
  record.cases[1].check.errors[0].got = std::numeric_limits<double>::quiet_NaN();
  record.cases[1].check.errors[0].worst = std::numeric_limits<double>::infinity();
  record.cases[1].ending = Ending::crashed;
  record.cases[2].gates = false;
  record.findings.push_back({"f1", "leak", "grows", "c1"});
  record.own_tests = {true, "two files", 10, 7, 4, 9, 1, 2};
  record.author = "somebody";
  record.traffic = {"", record.cases[0].spec, 32, {{"x", 100, 300}}};
  record.claims.push_back({"k1", "reads x once", "README.md:3", "reads", 1.0, "", "", ""});
  record.documentation = {{"README.md"}, 120, {"memory"}, {"a benchmark"}};
  record.seeds = {{7, Verdict::pass, {{"speed", 50.0}}}, {8, Verdict::wrong, {}}};
  apply_scores(record);
  return record;
}

TEST(RecordJson, RoundTrip_IsTheSameText) {
  const Record record = full_record();
  const std::string text = to_json(record);
  const Record read = record_from_json(text);
  EXPECT_EQ(to_json(read), text);
  EXPECT_EQ(read.contender, record.contender);
  EXPECT_EQ(read.seed, record.seed) << "all 64 bits";
  EXPECT_TRUE(std::isnan(read.cases[1].check.errors[0].got));
  EXPECT_TRUE(std::isinf(read.cases[1].check.errors[0].worst));
  EXPECT_EQ(read.cases[1].ending, Ending::crashed);
  EXPECT_EQ(read.speeds[1].ratio_to.at("naive").high, 0.52);
  EXPECT_FALSE(read.cases[2].gates);
  EXPECT_EQ(read.scores.at("own_tests").value, 70.0);
  EXPECT_FALSE(read.scores.at("speed").value.has_value());
  EXPECT_EQ(read.traffic.inputs.at(0).per_page(), 3.0);
  EXPECT_EQ(read.claims.at(0).state, "broken");
  EXPECT_EQ(read.seeds.at(1).verdict, Verdict::wrong);
  EXPECT_EQ(read.own_tests.not_run, 2);
}

TEST(RecordJson, ReadRecord_ScoresTheSame) {
  const Record record = full_record();
  Record read = record_from_json(to_json(record));
  read.scores.clear();
  apply_scores(read);
  EXPECT_EQ(to_json(read), to_json(record));
}

TEST(RecordJson, SeveralRecords_ShareOneFile) {
  const std::vector<Record> records = {full_record(), sample_record("b")};
  const std::vector<Record> read = records_from_json(to_json(records));
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(read[1].contender, "b");
  EXPECT_THROW(records_from_json(to_json(records[0])), CorruptData) << "one is not a file of them";
}

TEST(RecordJson, InvalidUtf8_IsAccepted) {
  Record record = sample_record("x");
  record.build.log = "\xff\xfe broken";
  EXPECT_NO_THROW(record_from_json(to_json(record)));
}

TEST(RecordJson, OtherText_IsRefused) {
  for (const char* text : {"", "null", "[]", "{}", "{\"schema\": 1}", "{\"schema\": \"1\"}", "{"}) {
    EXPECT_THROW(record_from_json(text), CorruptData) << text;
    EXPECT_THROW(records_from_json(text), CorruptData) << text;
  }
}

// Changes one thing of a good record and expects it to be refused.
void expect_refused(const std::function<void(Json&)>& change, const char* mentions) {
  Json json = Json::parse(to_json(full_record()));
  change(json);
  try {
    record_from_json(json.dump());
    ADD_FAILURE() << "accepted: " << mentions;
  } catch (const CorruptData& error) {
    EXPECT_NE(std::string(error.what()).find(mentions), std::string::npos) << error.what();
  }
}

TEST(RecordJson, DamagedField_IsRefusedByName) {
  expect_refused([](Json& j) { j["schema"] = 99; }, "schema: expected 1, got 99");
  expect_refused([](Json& j) { j["verdict"] = "GREAT"; }, "GREAT");
  expect_refused([](Json& j) { j["cases"] = 3; }, "cases");
  expect_refused([](Json& j) { j["cases"][0]["ending"] = "vanished"; }, "vanished");
  expect_refused([](Json& j) { j["cases"][0]["spec"] = "nominal"; }, "nominal");
  expect_refused([](Json& j) { j["cases"][1]["id"] = "c1"; }, "c1");
  expect_refused([](Json& j) { j["witnesses"][0]["case"] = "c99"; }, "c99");
  expect_refused([](Json& j) { j["scores"]["memory"]["value"] = 130; }, "memory");
  expect_refused([](Json& j) { j["weights"]["speed"] = -1; }, "speed");
  expect_refused([](Json& j) { j["speeds"][0]["bytes"] = "many"; }, "many");
  expect_refused([](Json& j) { j.erase("memory"); }, "memory: is missing");
  // The key and the place.
  expect_refused([](Json& j) { j["cases"][1]["gates"] = 3; },
                 "cases[1].gates: expected true or false, got 3");
  expect_refused([](Json& j) { j["cases"][0]["spec"] = "ties:k=x:17"; },
                 "cases[0].spec: case: 'ties:k=x:17': k: 'x' at 8 is no number");
  expect_refused([](Json& j) { j["speeds"][0]["seconds"]["low"] = nullptr; },
                 "speeds[0].seconds.low: expected a number, got null");
}

TEST(Verdict, Name_RoundTrips) {
  for (int i = 0; i <= static_cast<int>(Verdict::judge_error); ++i) {
    const auto verdict = static_cast<Verdict>(i);
    EXPECT_EQ(parse_verdict(name_of(verdict)), verdict);
  }
  EXPECT_THROW(parse_verdict("pass"), InvalidArgument);
}

}  // namespace
}  // namespace touchstone::judge
