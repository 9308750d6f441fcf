// touchstone generate --beams and touchstone score, stops, timing and a conversation that fills its
// context, as their users meet them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "cli/decoding/decoding_verb_test_support.h"
#include "json/json.h"

namespace touchstone::cli {
namespace {

using testing::HasSubstr;

std::vector<Json> json_lines(const std::string& text) {
  std::istringstream lines(text);
  std::vector<Json> all;
  for (std::string line; std::getline(lines, line);) all.push_back(Json::parse(line));
  return all;
}

// The text of a special token is not in the answer, so it stops by its id.
TEST_F(DecodingVerb, SpecialTokensAreStops) {
  const std::string drawn =
      "generate -m . -p 'word4 of' -n 200 --ignore-eos --temperature 60 --samples 4 --json";
  const std::vector<Json> whole = json_lines(run(drawn).out);
  ASSERT_EQ(whole.size(), 4U);
  int stops = 0;
  const std::vector<Json> stopped = json_lines(run(drawn + " --stop '<s>' --stop '</s>'").out);
  ASSERT_EQ(stopped.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    const auto tokens = whole[i]["tokens"].get<std::vector<std::int32_t>>();
    // They are the first two of the vocabulary.
    const auto end = std::ranges::find_if(tokens, [](std::int32_t token) { return token < 2; });
    EXPECT_EQ(stopped[i]["tokens"].size(), static_cast<std::size_t>(end - tokens.begin()));
    EXPECT_EQ(stopped[i]["finish"], end == tokens.end() ? "length" : "stop");
    stops += end == tokens.end() ? 0 : 1;
  }
  EXPECT_GT(stops, 0);
}

TEST_F(DecodingVerb, OneBeamIsGreedy) {
  const std::string prompt = "generate -m . -p 'word4 of' -n 10";
  EXPECT_EQ(run(prompt + " --beams 1 --length-penalty 0").out, run(prompt).out);
  const test::ShellResult beams = shell(prompt + " --beams 4 --json -q 2>&1");
  ASSERT_EQ(beams.exit_code, 0) << beams.out;
  std::istringstream lines(beams.out);
  double before = std::numeric_limits<double>::infinity();
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const Json beam = Json::parse(line);
    EXPECT_LE(beam["score"].get<double>(), before);
    before = beam["score"].get<double>();
  }
  EXPECT_EQ(count, 4);
}

TEST_F(DecodingVerb, BeamsHaveLogProbabilities) {
  const auto lines =
      json_lines(run("generate -m . -p 'word4 of' -n 6 --beams 3 --log-probs 0 --json").out);
  ASSERT_EQ(lines.size(), 3U);
  for (const Json& line : lines) {
    EXPECT_EQ(line["finished"].get<bool>(), line["finish"] != "length");
    double sum = 0;
    for (const Json& token : line["log_probs"]) sum += token["log_prob"].get<double>();
    EXPECT_GE(line["log_probs"].size(), line["tokens"].size());
    EXPECT_NEAR(sum, line["log_probability"].get<double>(), 1e-4);
  }
  EXPECT_THAT(shell("generate -m . -p 'word4 of' -n 6 --beams 3 2>&1 >/dev/null").out,
              testing::ContainsRegex("3 prompt tokens, first token after [0-9]+ ms, prefill "
                                     "[0-9]+ tokens/s; .* generated, decode "));
}

// The pages of a prompt are shared, and those of the beams suffice however they part.
TEST_F(DecodingVerb, BeamsFitInTheirCache) {
  const Json mistral = model::test::read_json(fs::path(TOUCHSTONE_MODEL_TESTDATA) / "mistral.json");
  variant("windowed", mistral["config"], mistral["tensors"]);
  std::string words;
  for (int i = 0; i < 120; ++i) words += "word4 of line ";
  std::ofstream(folder_->path() / "long.txt") << words << "\n" << words << "of\nword4\n";
  for (const std::string model : {".", "windowed"}) {
    const std::string asked = "generate -q -m " + model + " --prompts long.txt -n 12 ";
    EXPECT_EQ(run(asked + "--beams 1 --length-penalty 0").out, run(asked).out) << model;
    std::string first;
    for (const char* const pages : {"1", "64"}) {
      const test::ShellResult beams =
          shell(asked + "--beams 6 --ignore-eos --page-tokens " + pages + " 2>&1");
      EXPECT_EQ(beams.exit_code, 0) << model << ", pages of " << pages << ": " << beams.out;
      if (first.empty()) first = beams.out;
      EXPECT_EQ(beams.out, first) << model << ", pages of " << pages;
    }
  }
  const auto cache_of = [&](const std::string& more) {
    const std::string said =
        shell("generate -m . -n 20 " + more + " -p \"$(head -n 1 long.txt)\" 2>&1 >/dev/null").out;
    const std::size_t at = said.find("cache ");
    EXPECT_NE(at, std::string::npos) << said;
    const bool mebi = said.find(" MiB", at) != std::string::npos;
    return std::stod(said.substr(at + 6)) * (mebi ? 1024 : 1);
  };
  EXPECT_LT(cache_of("--beams 16"), 5 * cache_of(""));
}

TEST_F(DecodingVerb, TimesOfSeveralPrompts) {
  std::string prompts;
  for (int i = 0; i < 8; ++i) {
    std::string line = "prompt" + std::to_string(i);
    for (int word = 0; word < 20; ++word) line += " word" + std::to_string(i * word);
    prompts += line + "\n";
  }
  std::ofstream(folder_->path() / "eight.txt") << prompts;
  // The first prompt is an eighth of all: prefill takes longer than its first token. A machine that
  // does something else meanwhile may be asked again.
  double longer = 0;
  std::string said;
  for (int i = 0; i < 3 && longer <= 2; ++i) {
    said = shell("generate -m . --prompts eight.txt -n 2 --max-rows 8 --ignore-eos 2>&1 >/dev/null")
               .out;
    long rows = 0;
    long first_ms = 0;
    long rate = 0;
    const std::size_t begin = said.find("touchstone: ");
    ASSERT_NE(begin, std::string::npos) << said;
    ASSERT_EQ(std::sscanf(said.c_str() + begin,
                          "touchstone: %ld prompt tokens, first token after %ld ms, prefill %ld",
                          &rows, &first_ms, &rate),
              3)
        << said;
    longer =
        1e3 * static_cast<double>(rows) / static_cast<double>(rate) / static_cast<double>(first_ms);
    EXPECT_THAT(said, HasSubstr("; 16 generated, decode "));
  }
  EXPECT_GT(longer, 2) << said;
}

TEST_F(DecodingVerb, ChatDropsTheOldestTurnsOfAFullContext) {
  std::string lines;
  for (int i = 0; i < 12; ++i) lines += "word" + std::to_string(i * i) + " of line of line\n";
  std::ofstream(folder_->path() / "turns.txt") << lines;
  const std::string asked = "generate -m . --chat -n 6 --ignore-eos -q --context 90 ";
  const test::ShellResult result =
      shell(asked + "--system 'line of' <turns.txt 2>dropped.txt >answers12.txt; echo $?");
  EXPECT_EQ(result.out, "0\n");
  std::ifstream file(folder_->path() / "dropped.txt");
  std::string said;
  int drops = 0;
  while (std::getline(file, said)) {
    EXPECT_THAT(said, testing::ContainsRegex("context of 90 tokens is full: 1 of [0-9]+ turns"));
    ++drops;
  }
  EXPECT_GT(drops, 5);
  // A question that does not fit by itself is refused.
  expect_one_line(asked + "-p \"$(cat turns.txt)\"", 2, "prompt: expected fewer than 90 tokens");
}

TEST_F(DecodingVerb, ScoresATextInSeveralFormats) {
  const std::string text = "--file text.txt --window 128";
  const Json json = Json::parse(run("score -m . " + text + " --json").out);
  // Random weights know nothing, and a model cannot be better than a guess on average for long.
  EXPECT_GT(json["perplexity"].get<double>(), 100);
  EXPECT_LT(json["low"].get<double>(), json["perplexity"].get<double>());
  EXPECT_GT(json["high"].get<double>(), json["perplexity"].get<double>());
  EXPECT_EQ(json["tokens"].get<std::int64_t>() - json["windows"].get<std::int64_t>(),
            json["scored"].get<std::int64_t>());
  const test::ShellResult table = run("score -m . " + text + " --caches f32,int8,int4");
  ASSERT_EQ(table.exit_code, 0);
  EXPECT_EQ(std::count(table.out.begin(), table.out.end(), '\n'), 4) << table.out;
  EXPECT_THAT(table.out, HasSubstr("int8"));
  EXPECT_THAT(table.out, HasSubstr(" %"));
  const Json tokens = Json::parse(run("score -m . 'word4 of line' --tokens --json").out);
  EXPECT_EQ(tokens["log_probs"].size(), tokens["tokens"].get<std::size_t>());
  EXPECT_EQ(tokens["log_probs"][0]["log_prob"], nullptr);
  // Short windows; what is not scored has no number.
  for (const char* const window : {"2", "5", "15"}) {
    const test::ShellResult narrow =
        run("score -m . 'word4 of line of line word9 of line' --tokens --window " +
            std::string(window));
    EXPECT_EQ(narrow.exit_code, 0) << window;
    EXPECT_THAT(narrow.out, testing::StartsWith("       -  \"")) << narrow.out;
    EXPECT_THAT(narrow.out, testing::Not(HasSubstr("nan")));
  }
  // Models with different tokens compare by bits per byte.
  variant("coarse", golden_["config"], golden_["tensors"]);
  fs::remove(folder_->path() / "coarse/tokenizer.json");
  ASSERT_EQ(shell("tokenize --train text.txt --vocab 280 -o coarse/tokenizer.json 2>&1").exit_code,
            0);
  const test::ShellResult beside =
      run("score -m . 'word4 of line of line' --beside coarse --beside .");
  ASSERT_EQ(beside.exit_code, 0);
  EXPECT_THAT(beside.out, testing::ContainsRegex("coarse .* % bits/byte"));
  EXPECT_EQ(beside.out.find("bits/byte", beside.out.rfind("\n.")), std::string::npos) << beside.out;
}

}  // namespace
}  // namespace touchstone::cli
