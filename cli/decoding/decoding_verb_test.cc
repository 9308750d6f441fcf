// touchstone generate and touchstone score as their users meet them, on a random model with a
// tokenizer trained for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "json/json.h"
#include "model/model_test_support.h"
#include "tests/support/shell.h"

namespace touchstone::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class DecodingVerb : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new model::test::ModelFolder("verbs");
    golden_ = model::test::read_json(fs::path(TOUCHSTONE_MODEL_TESTDATA) / "qwen2.json");
    folder_->write(golden_["config"], golden_["tensors"]);
    std::string text;
    for (int i = 0; i < 400; ++i) text += "word" + std::to_string(i * i) + " of line\n";
    std::ofstream(folder_->path() / "text.txt") << text;
    const auto trained =
        shell("tokenize --train text.txt --vocab 400 --special '<s>,</s>' -o tokenizer.json 2>&1");
    ASSERT_EQ(trained.exit_code, 0) << trained.out;
    std::ofstream(folder_->path() / "chat_template.jinja")
        << "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>\n{% endfor %}"
           "{% if add_generation_prompt %}<s>assistant: {% endif %}";
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static test::ShellResult shell(const std::string& arguments) {
    return test::run_shell("cd '" + folder_->path().string() + "' && '" + TOUCHSTONE_PROGRAM +
                           "' " + arguments);
  }
  static test::ShellResult run(const std::string& arguments) {
    return shell(arguments + " 2>/dev/null </dev/null");
  }
  static void expect_one_line(const std::string& arguments, int exit_code, const char* message) {
    const test::ShellResult result = shell(arguments + " 2>&1 </dev/null");
    EXPECT_EQ(result.exit_code, exit_code) << arguments << ": " << result.out;
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
    EXPECT_THAT(result.out, HasSubstr(message));
  }
  // A copy of the model with other tensors, in a folder beside it.
  static std::string variant(const char* name, const Json& config, const Json& tensors) {
    const fs::path path = folder_->path() / name;
    fs::create_directories(path);
    model::test::write_model(path, config, tensors);
    fs::copy_file(folder_->path() / "tokenizer.json", path / "tokenizer.json");
    return name;
  }

  static model::test::ModelFolder* folder_;
  static Json golden_;
};
model::test::ModelFolder* DecodingVerb::folder_ = nullptr;
Json DecodingVerb::golden_;

TEST_F(DecodingVerb, TheContinuationAloneAndInJson) {
  const test::ShellResult plain = run("generate -m . -p 'word4 of' -n 12");
  ASSERT_EQ(plain.exit_code, 0);
  const Json json = Json::parse(run("generate -m . -p 'word4 of' -n 12 --json --log-probs 2").out);
  EXPECT_EQ(json["text"].get<std::string>() + "\n", plain.out);
  EXPECT_EQ(json["tokens"].size(), 12U);
  EXPECT_EQ(json["finish"], "length");
  EXPECT_EQ(json["log_probs"].size(), 12U);
  EXPECT_EQ(json["log_probs"][0]["top"].size(), 2U);
  const test::ShellResult talk = shell("generate -m . -p 'word4 of' -n 12 2>&1 >/dev/null");
  EXPECT_THAT(talk.out, HasSubstr("3 prompt tokens, first token after"));
  EXPECT_THAT(talk.out, HasSubstr("12 generated, decode "));
  EXPECT_EQ(shell("generate -m . -p 'word4 of' -n 12 -q 2>&1 >/dev/null").out, "");
}

TEST_F(DecodingVerb, ManyPromptsAreThePromptsAlone) {
  std::ofstream(folder_->path() / "prompts.txt") << "word4 of\nline\nword81";
  const std::string controls = " -n 9 --temperature 0.8 --top-k 50 --seed 3 --json";
  std::istringstream all(
      run("generate -m . --prompts prompts.txt --samples 2 --max-rows 3" + controls).out);
  std::vector<Json> lines;
  for (std::string line; std::getline(all, line);) lines.push_back(Json::parse(line));
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_NE(lines[0]["tokens"], lines[1]["tokens"]);
  EXPECT_EQ(lines[2]["prompt"], 1);
  EXPECT_EQ(lines[3]["sample"], 1);
  EXPECT_EQ(lines[2]["tokens"],
            Json::parse(run("generate -m . -p line --page-tokens 4" + controls).out)["tokens"]);
  const std::string again = " -n 9 --temperature 0.8 --top-k 50 --seed 4 --json";
  EXPECT_EQ(lines[3]["tokens"], Json::parse(run("generate -m . -p line" + again).out)["tokens"]);
}

TEST_F(DecodingVerb, StopStringsEndTheText) {
  const std::string text = run("generate -m . -p 'word4 of' -n 30").out;
  ASSERT_GT(text.size(), 12U);
  // Three bytes that begin anywhere, in a token or across tokens.
  std::string stop = text.substr(text.size() / 2, 3);
  std::string quoted;
  for (const char c : stop) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  const test::ShellResult cut = run("generate -m . -p 'word4 of' -n 30 --stop '" + quoted + "'");
  EXPECT_EQ(cut.out, text.substr(0, text.find(stop)) + "\n");
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

TEST_F(DecodingVerb, TextFollowsAGrammar) {
  std::ofstream(folder_->path() / "answer.gbnf")
      << "root ::= (\"yes\" | \"no\") \", \" [0-9]+ \".\"";
  std::ofstream(folder_->path() / "days.json")
      << R"({"type": "object", "properties": {"days": {"type": "integer", "minimum": 1,
             "maximum": 14}}, "required": ["days"], "additionalProperties": false})";
  for (int seed = 0; seed < 6; ++seed) {
    const std::string controls = " -n 60 --temperature 1 --seed " + std::to_string(seed);
    const std::string text = run("generate -m . -p word4 --grammar answer.gbnf" + controls).out;
    EXPECT_THAT(text, testing::MatchesRegex("(yes|no), [0-9]+\\.?\n")) << text;
    const Json json =
        Json::parse(run("generate -m . -p word4 --json-schema days.json" + controls).out);
    EXPECT_GE(json["days"].get<int>(), 1);
    EXPECT_LE(json["days"].get<int>(), 14);
  }
  std::ofstream(folder_->path() / "bad.gbnf") << "root ::= other";
  expect_one_line("generate -m . -p x --grammar bad.gbnf", 3, "grammar:1");
}

// examples/generate is shown in the documentation; it wants a model.
TEST_F(DecodingVerb, TheExampleGivesTheSameText) {
  if (!fs::exists(TOUCHSTONE_EXAMPLE)) GTEST_SKIP() << "examples are not built";
  const test::ShellResult example = test::run_shell(std::string("'") + TOUCHSTONE_EXAMPLE + "' '" +
                                                    folder_->path().string() + "' 'word4 of'");
  EXPECT_EQ(example.exit_code, 0);
  EXPECT_EQ(example.out, run("generate -m . -p 'word4 of' -n 64").out);
}

TEST_F(DecodingVerb, ChatHasHistory) {
  const test::ShellResult one = run("generate -m . --chat -p 'word4' -n 5 --system 'line of'");
  ASSERT_EQ(one.exit_code, 0);
  const std::string prompt = "<s>system: line of</s>\n<s>user: word4</s>\n<s>assistant: ";
  const test::ShellResult same = shell("generate -m . -p '" + prompt + "' -n 5 -q 2>&1");
  EXPECT_EQ(one.out, same.out) << same.exit_code;
  std::ofstream(folder_->path() / "lines.txt") << "word4\n\nof\n";
  const test::ShellResult two =
      shell("generate -m . --chat -n 5 --system 'line of' <lines.txt 2>/dev/null");
  ASSERT_EQ(two.exit_code, 0);
  EXPECT_TRUE(two.out.starts_with(one.out)) << two.out;
  EXPECT_GT(two.out.size(), one.out.size());
}

TEST_F(DecodingVerb, RefusesWhatCannotBeServed) {
  expect_one_line("generate", 2, "no model: -m PATH, or make real-model");
  expect_one_line("score", 2, "no model: -m PATH, or make real-model");
  expect_one_line("generate -m .", 2, "generate: -p: expected a prompt");
  expect_one_line("generate -m . -p x -n 0", 2, "--max-tokens: expected a whole number from 1");
  expect_one_line("generate -m . -p x --stop ''", 2, "stop string: expected at least one byte");
  expect_one_line("generate -m . -p \"$(printf '\\377')\"", 2, "expected UTF-8");
  expect_one_line("generate -m . -p 'a b c d' --context 3", 2,
                  "prompt: expected fewer than 3 tokens");
  expect_one_line("generate -m . -p x --context 9999", 2, "max_length: expected 1 to 2048");
  expect_one_line("generate -m . -p x --top-p 1.5", 2, "top_p: expected a number in [0, 1]");
  expect_one_line("generate -m . -p x --cache int3", 2, "expected one of f32");
  expect_one_line("generate -m . -p x --beams 4 --temperature 0.8", 2,
                  "beam search does not sample");
  expect_one_line("generate -m . -p x --grammar y", 3, "y: No such file");
  expect_one_line("generate -m . -p x --grammar y --json-schema z", 2, "expected one of them");
  expect_one_line("generate -m . --chat -p x --samples 2", 2, "--chat takes one -p");
  expect_one_line("score -m . word", 2, "tokens: expected at least 2");
  expect_one_line("generate -m nowhere -p x", 3, "nowhere");
  // The model has a BOS token, so nothing is a prompt, too; without one it is not.
  EXPECT_EQ(run("generate -m . -p '' -n 2").exit_code, 0);
  Json config = golden_["config"];
  config["bos_token_id"] = nullptr;
  variant("no_bos", config, golden_["tensors"]);
  expect_one_line("generate -m no_bos -p ''", 2, "expected text, as the model has no BOS token");
}

TEST_F(DecodingVerb, BadModelsAreOneLine) {
  Json tensors = golden_["tensors"];
  tensors[3]["shift"] = std::numeric_limits<double>::quiet_NaN();
  variant("nan", golden_["config"], tensors);
  expect_one_line("generate -m nan -p 'x y'", 3, "has values that are not finite");
  expect_one_line("score -m nan 'x y z'", 3, "has values that are not finite");
  tensors = golden_["tensors"];
  tensors[3]["name"] = "model.layers.0.self_attn.other.weight";
  variant("missing", golden_["config"], tensors);
  expect_one_line("generate -m missing -p x", 3, "is missing");
  tensors = golden_["tensors"];
  tensors[3]["shape"][0] = 3;
  variant("shape", golden_["config"], tensors);
  expect_one_line("generate -m shape -p x", 3, "expected shape");
  Json config = golden_["config"];
  config["model_type"] = "mamba";
  variant("unknown", config, golden_["tensors"]);
  expect_one_line("generate -m unknown -p x", 3, "mamba");
  variant("truncated", golden_["config"], golden_["tensors"]);
  fs::resize_file(folder_->path() / "truncated/model.safetensors", 100000);
  expect_one_line("generate -m truncated -p x", 3, "model.safetensors");
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
}

}  // namespace
}  // namespace touchstone::cli
