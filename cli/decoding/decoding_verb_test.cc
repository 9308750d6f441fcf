// touchstone generate as its users meet it: output, prompts, grammars, chat, refusals, speculation,
// corpora.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <string>

#include "cli/decoding/decoding_verb_test_support.h"
#include "json/json.h"
#include "tests/support/runners.h"

namespace touchstone::cli {
namespace {

using testing::HasSubstr;

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
  std::ofstream(folder_->path() / "prompts.txt") << "\xef\xbb\xbfword4 of\r\nline\nword81";
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
  // Without an end-of-sequence token the text ends where nothing can follow.
  std::ofstream(folder_->path() / "three.gbnf") << "root ::= \"no, 123.\"";
  for (const char* const ending : {"", " --ignore-eos", " --samples 2", " --json"}) {
    const std::string asked = "generate -m . -p word4 -n 30 --grammar three.gbnf -q";
    const test::ShellResult whole = shell(asked + ending + " 2>&1");
    EXPECT_EQ(whole.exit_code, 0) << ending << whole.out;
    EXPECT_THAT(whole.out, HasSubstr("no, 123.")) << ending;
    EXPECT_THAT(whole.out, testing::Not(HasSubstr("touchstone:"))) << ending;
  }
  const std::string cut = "generate -m . -p word4 -n 2 --grammar three.gbnf -q";
  EXPECT_THAT(shell(cut + " 2>&1 >/dev/null").out,
              HasSubstr("cut after 2 tokens and is not complete"));
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
  // Lines of white space are no turns.
  std::ofstream(folder_->path() / "blank.txt") << "word4\n \t\nof\n";
  EXPECT_EQ(shell("generate -m . --chat -n 5 --system 'line of' <blank.txt 2>/dev/null").out,
            two.out);
  std::ofstream(folder_->path() / "crlf.txt") << "word4\r\n\r\nof\r\n";
  EXPECT_EQ(shell("generate -m . --chat -n 5 --system 'line of' <crlf.txt 2>/dev/null").out,
            two.out);
}

// Ctrl-C ends an answer and not the program; at the prompt it ends the program.
TEST_F(DecodingVerb, CtrlCStopsAnAnswerThenTheProgram) {
  std::ofstream(folder_->path() / "interrupt.sh")
      << "mkfifo lines.fifo\n"
         "\"$1\" generate -m . --chat -n 1900 --ignore-eos -q <lines.fifo >answers.txt "
         "2>errors.txt &\n"
         "exec 3>lines.fifo\n"
         "echo word4 >&3\n"
         "while [ ! -s answers.txt ]; do sleep 0.01; done\n"
         "kill -INT $!\n"
         "while [ \"$(wc -l <answers.txt)\" -lt 1 ]; do sleep 0.01; done\n"
         "sleep 0.2\n"
         "kill -INT $!\n"
         "wait $!\n"
         "echo \"exit $?\"\n";
  const test::ShellResult result =
      test::run_shell("cd '" + folder_->path().string() + "' && timeout 60 bash interrupt.sh '" +
                      TOUCHSTONE_PROGRAM + "'");
  EXPECT_EQ(result.out, "exit 0\n");
  // The whole answer has about 1900 words or parts of words.
  EXPECT_GT(fs::file_size(folder_->path() / "answers.txt"), 0U);
  const test::ShellResult whole = run("generate -m . --chat -n 1900 --ignore-eos -q -p word4");
  EXPECT_LT(fs::file_size(folder_->path() / "answers.txt"), whole.out.size());
  EXPECT_EQ(fs::file_size(folder_->path() / "errors.txt"), 0U);
}

// The model that comes with an installed program, found from where the program lies.
TEST_F(DecodingVerb, AnInstalledProgramHasAModel) {
  const fs::path prefix = folder_->path() / "prefix";
  fs::create_directories(prefix / "bin");
  fs::create_directories(prefix / "share/touchstone/model");
  fs::copy_file(TOUCHSTONE_PROGRAM, prefix / "bin/touchstone");
  const auto converted = shell("convert . prefix/share/touchstone/model/touchstone.gguf 2>&1");
  ASSERT_EQ(converted.exit_code, 0) << converted.out;
  const auto run_installed = [&](const std::string& arguments) {
    return test::run_shell("cd / && '" + (prefix / "bin/touchstone").string() + "' " + arguments +
                           " 2>&1 </dev/null");
  };
  const test::ShellResult text = run_installed("generate -p word4 -n 6");
  EXPECT_EQ(text.exit_code, 0) << text.out;
  const test::ShellResult scored = run_installed("score 'word4 of line' --caches f32,int8");
  EXPECT_EQ(scored.exit_code, 0) << scored.out;
  EXPECT_THAT(scored.out, HasSubstr("touchstone.gguf"));
}

TEST_F(DecodingVerb, SeedsHaveSixtyFourBits) {
  const std::string sampled = "generate -m . -q -p 'word4 of line' -n 8 --temperature 1 --seed ";
  const std::string first = run(sampled + "0").out;
  const std::string last = run(sampled + "18446744073709551615").out;
  EXPECT_NE(last, run(sampled + "9223372036854775807").out);
  EXPECT_EQ(run(sampled + "18446744073709551615 --samples 2").out, last + first);
}

TEST_F(DecodingVerb, RefusesWhatCannotBeServed) {
  const bool built_in = fs::exists(fs::path(TOUCHSTONE_SOURCE) / "data/model/touchstone.gguf");
  expect_one_line(
      "generate", 2,
      built_in ? "generate: -p: expected a prompt" : "no model: -m PATH, or make real-model");
  expect_one_line("generate -m .", 2, "generate: -p: expected a prompt");
  expect_one_line("generate -m . -p x --speculate dflash", 2, "there is no draft in ./draft");
  expect_one_line("generate -m . -p x -n 0", 2, "--max-tokens: expected a whole number from 1");
  expect_one_line("generate -m . -p x --stop ''", 2, "stop string: expected at least one byte");
  expect_one_line("generate -m . -p \"$(printf '\\377')\"", 2, "expected UTF-8");
  expect_one_line("generate -m . -p 'a b c d' --context 3", 2,
                  "prompt: expected fewer than 3 tokens");
  // One line among several is named.
  std::ofstream(folder_->path() / "bad.txt") << "word4\n\377\n";
  expect_one_line("generate -m . --prompts bad.txt", 2,
                  "bad.txt: line 2: tokenizer: text: expected");
  std::ofstream(folder_->path() / "long.txt") << "a\na b c d\n";
  expect_one_line("generate -m . --prompts long.txt --context 3", 2,
                  "long.txt: line 2: prompt: expected fewer than 3 tokens");
  std::ofstream(folder_->path() / "empty.txt") << "";
  expect_one_line("generate -m . --prompts empty.txt", 2, "--prompts: no lines in empty.txt");
  expect_one_line("generate -m . -p x --context 9999", 2, "max_length: expected 1 to 2048");
  expect_one_line("generate -m . -p x --top-p 1.5", 2, "top_p: expected a number in [0, 1]");
  for (const char* const beyond :
       {"--temperature 1e39", "--repetition-penalty 1e-50", "--frequency-penalty -1e39"}) {
    expect_one_line(std::string("generate -m . -p x ") + beyond, 2, "expected a finite number");
  }
  for (const char* const seed : {"-1", "18446744073709551616", "1.5"}) {
    expect_one_line(std::string("generate -m . -p x --seed ") + seed, 2,
                    "--seed: expected a whole number from 0 to 18446744073709551615");
  }
  for (const char* const unset : {"-m '' -p x", "-m . -p x --grammar ''", "-m . --prompts ''"}) {
    expect_one_line(std::string("generate ") + unset, 2, "expected a value, got an empty text");
  }
  expect_one_line("generate -m . -p x --speculate ngram --rule greedy --temperature 1", 2,
                  "temperature: expected 0, as drafts are accepted by the rule greedy");
  expect_one_line("generate -m . -p x --cache int3", 2, "expected one of f32");
  expect_one_line("generate -m . -p x --beams 4 --temperature 0.8", 2,
                  "beam search does not sample");
  expect_one_line("generate -m . -p x --beams 4 --top-k 5", 2, "top_k: expected 0");
  expect_one_line("generate -m . -p x --beams 4 --top-p 0.5", 2, "top_p: expected 1");
  expect_one_line("generate -m . -p x --beams 4 --min-p 0.5", 2, "min_p: expected 0");
  expect_one_line("generate -m . -p x --log-probs 2", 2, "--log-probs requires --json");
  expect_one_line("generate -m . -p x --length-penalty 2", 2, "--length-penalty requires --beams");
  expect_one_line("generate -m . -p x --dialect hf", 2, "--dialect requires --beams");
  expect_one_line("generate -m . -p x --system y", 2, "--system: expected --chat or --corpus");
  expect_one_line("generate -m . -p x --grammar y", 3, "y: No such file");
  expect_one_line("generate -m . -p x --grammar y --json-schema z", 2, "expected one of them");
  expect_one_line("generate -m . --chat -p x --samples 2", 2, "--chat takes one -p");
  expect_one_line("score -m . word", 2, "tokens: expected at least 2");
  std::ofstream(folder_->path() / "nothing.gbnf") << "root ::= [^\\x00-\\U0010ffff]\n";
  expect_one_line("generate -m . -q -p x --grammar nothing.gbnf", 3, "has no text that ends");
  if (!test::kSanitized) {
    const test::ShellResult small =
        test::run_shell("ulimit -v 1500000; cd '" + folder_->path().string() + "' && '" +
                        TOUCHSTONE_PROGRAM + "' generate -m . -q -p x --max-rows 1048576 2>&1");
    EXPECT_EQ(small.exit_code, 3) << small.out;
    EXPECT_THAT(small.out, HasSubstr("cannot allocate"));
  }
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

TEST_F(DecodingVerb, BenchGenerateMeasuresAModel) {
  const test::ShellResult result =
      run("bench generate --model . --compute f32 --batch 1,3 --context 20 --tokens 6 --rounds 1 "
          "--profile --nodes 9 --json");
  ASSERT_EQ(result.exit_code, 0) << result.out;
  const Json rows = Json::parse(result.out)["generate"]["rows"];
  ASSERT_EQ(rows.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const Json& row = rows[i];
    EXPECT_EQ(row["batch"].get<int>(), i == 0 ? 1 : 3);
    for (const char* const key : {"prefill_tokens_per_s", "step_us", "decode_tokens_per_s",
                                  "floor_us", "share", "weight_bytes", "cache_bytes"}) {
      EXPECT_GT(row[key].get<double>(), 0) << key;
    }
    double head = 0;
    for (const Json& part : row["profile"]) {
      if (part["name"] == "head") head = part["bytes"].get<double>();
    }
    EXPECT_GT(head, 512.0 * 64 * 4);  // the matrix at least
    const Json& tree = row["tree"];
    EXPECT_EQ(tree["nodes"].get<int>(), 9);
    EXPECT_GT(tree["score_us"].get<double>(), 0);
    EXPECT_DOUBLE_EQ(tree["ratio"].get<double>(),
                     tree["pass_us"].get<double>() / tree["score_us"].get<double>());
  }
  // A peer that is not one is an error, not a row without it.
  expect_one_line(
      "bench generate --model . --rounds 1 --context 8 --tokens 4 "
      "--llama-bench /bin/false",
      3, "llama-bench");
  expect_one_line("bench generate --model . --batch 1,x", 2, "got 'x'");
  expect_one_line("bench generate --model nothing", 3, "nothing");
}

TEST_F(DecodingVerb, SpeculationGivesTheSameText) {
  const std::string prompt = "generate -m . -p 'word4 of line word4 of line word4 of' -n 40 ";
  for (const std::string sampling : {"", "--temperature 0.9 --top-p 0.8 --seed 3 "}) {
    const std::string plain = run(prompt + sampling).out;
    for (const char* source :
         {"ngram", "lookup", "suffix", "ngram,suffix", "draft=.", "draft=. --tree-nodes 4"}) {
      const auto drafted =
          run(prompt + sampling + "--always-speculate --speculate " + std::string(source));
      EXPECT_EQ(drafted.exit_code, 0);
      EXPECT_EQ(drafted.out, plain) << source;
    }
  }
  // A stop string and a grammar inside of accepted paths; the model drafts for itself.
  const std::string text = run(prompt + "--ignore-eos").out;
  std::string stop;
  for (std::size_t i = text.size() / 2; i + 1 < text.size() && stop.empty(); ++i) {
    if (std::isalnum(static_cast<unsigned char>(text[i])) != 0 &&
        std::isalnum(static_cast<unsigned char>(text[i + 1])) != 0) {
      stop = text.substr(i, 2);
    }
  }
  ASSERT_FALSE(stop.empty()) << text;
  std::ofstream(folder_->path() / "digits.gbnf") << "root ::= (\"word\" [0-9]+ \" \"?)+";
  for (const std::string& limit :
       {"--ignore-eos --stop " + stop, std::string("--grammar digits.gbnf")}) {
    const auto plain = run(prompt + limit);
    EXPECT_EQ(plain.exit_code, 0);
    const auto drafted =
        run(prompt + limit + " --always-speculate --speculate draft=.,suffix --tree-nodes 8");
    EXPECT_EQ(drafted.out, plain.out) << limit;
  }
  // The model drafts for itself: greedy drafts are accepted.
  const auto said =
      shell(prompt + "--always-speculate --speculate draft=. --tree-nodes 4 --trace 2>&1");
  EXPECT_THAT(said.out, HasSubstr("speculation: "));
  EXPECT_THAT(said.out, HasSubstr(" tokens per pass"));
  EXPECT_THAT(said.out, HasSubstr("accepted by depth 1.00 1.00 1.00 1.00"));
  EXPECT_THAT(said.out, HasSubstr("\ntouchstone: = 4 accepted, then "));  // a line per node
  EXPECT_EQ(run(prompt + "--speculate suffix").out, run(prompt).out) << "with the controller";
  // A corpus that holds the text, as far as its bytes are text: the model only verifies it.
  std::ofstream(folder_->path() / "known.txt") << text;
  const auto tokens_per_pass = [&](const std::string& source) {
    const std::string command = prompt + "--ignore-eos --always-speculate --speculate " + source;
    EXPECT_EQ(run(command).out, text) << source;
    const std::string out = shell(command + " 2>&1").out;
    const std::size_t place = out.find("speculation: ");
    return place == std::string::npos ? 0 : std::stod(out.substr(place + 13));
  };
  EXPECT_GT(tokens_per_pass("suffix=known.txt"), tokens_per_pass("suffix"));
  // Rejection sampling has another text for the same seed; without temperature there is but one.
  const std::string rejection = "--always-speculate --rule rejection --speculate draft=. ";
  EXPECT_EQ(run(prompt + rejection).out, run(prompt).out);
  EXPECT_EQ(run(prompt + rejection + "--temperature 0.9 --seed 3").exit_code, 0);
  expect_one_line("generate -m . -p a --rule magic --speculate ngram", 2, "magic");
  expect_one_line("generate -m . -p a --rule rejection", 2, "--rule requires --speculate");
  expect_one_line("generate -m . -p a --speculate suffix=nowhere.txt", 3, "nowhere.txt");
  expect_one_line("generate -m . -p a --speculate magic", 2, "expected ngram, lookup, suffix");
  expect_one_line("generate -m . -p a --trace", 2, "--trace requires --speculate");
  expect_one_line("generate -m . -p a --tree-nodes 4", 2, "--tree-nodes requires --speculate");
  expect_one_line("generate -m . -p a --beams 2 --speculate ngram", 2, "not with --speculate");
}

// Groups of int4 divide a head of the target, and not one of the draft.
TEST_F(DecodingVerb, ADraftHasItsOwnHeads) {
  const std::string train =
      "train --text text.txt --tokenizer tokenizer.json --layers 1 --heads 2 --length 32 --rows 2 "
      "--steps 1 --samples 0 --threads 1 --evaluate-rows 1 ";
  ASSERT_EQ(run(train + "--width 64 --out heads-of-32").exit_code, 0);
  ASSERT_EQ(run(train + "--width 48 --out heads-of-24").exit_code, 0);
  const std::string generate = "generate -m heads-of-32 -p word4 -n 20 --ignore-eos --cache int4 ";
  const test::ShellResult plain = run(generate);
  ASSERT_EQ(plain.exit_code, 0);
  const test::ShellResult drafted =
      run(generate + "--always-speculate --speculate draft=heads-of-24");
  EXPECT_EQ(drafted.exit_code, 0);
  EXPECT_EQ(drafted.out, plain.out);
  expect_one_line(generate + "--speculate draft=heads-of-24,draft=heads-of-24", 2,
                  "--speculate: expected one draft=PATH");
}

std::string all_shards(const fs::path& folder, const char* ending) {
  std::string text;
  for (int i = 0; i < 3; ++i) {
    std::ifstream file(folder / ("shard-0000" + std::to_string(i) + "." + ending));
    std::ostringstream content;
    content << file.rdbuf();
    text += content.str();
  }
  return text;
}

// A directory opens, and cannot be read.
TEST_F(DecodingVerb, StandardInputThatCannotBeRead) {
  for (const char* const verb :
       {"generate -m . --chat", "score -m .", "tokenize -m .", "tokenize -m . --lines"}) {
    const test::ShellResult result = shell(std::string(verb) + " 2>&1 </tmp");
    EXPECT_EQ(result.exit_code, 3) << verb;
    EXPECT_EQ(result.out, "touchstone: standard input: Is a directory\n") << verb;
  }
}

TEST_F(DecodingVerb, CorpusIsTheSameHoweverItIsMade) {
  const std::string common =
      "generate -m . -q --temperature 0.9 --seed 3 -n 12 --shard-documents 4 --documents 10 ";
  ASSERT_EQ(run(common + "--corpus one --batch 3").exit_code, 0);
  const test::ShellResult quiet =
      shell(common + "--corpus two --batch 10 --max-rows 7 2>&1 </dev/null");
  ASSERT_EQ(quiet.exit_code, 0);
  EXPECT_THAT(quiet.out, HasSubstr("corpus: 10 documents"));
  EXPECT_THAT(quiet.out, Not(HasSubstr("tokens/s")));  // -q
  const std::string text = all_shards(folder_->path() / "one", "txt");
  EXPECT_GT(text.size(), 20U);
  EXPECT_EQ(text, all_shards(folder_->path() / "two", "txt"));
  // Every document is where its line says, with another prompt than most.
  std::istringstream lines(all_shards(folder_->path() / "one", "jsonl"));
  std::int64_t documents = 0;
  std::set<std::string> prompts;
  for (std::string line; std::getline(lines, line); ++documents) {
    const Json entry = Json::parse(line);
    EXPECT_EQ(entry["document"].get<std::int64_t>(), documents);
    EXPECT_EQ(entry["seed"].get<std::int64_t>(), (std::int64_t{3} << 32) + documents);
    prompts.insert(entry["prompt"].get<std::string>());
  }
  EXPECT_EQ(documents, 10);
  EXPECT_GT(prompts.size(), 8U);
  // A run that stopped goes on with what is missing.
  fs::remove(folder_->path() / "two" / "shard-00001.jsonl");
  fs::remove(folder_->path() / "two" / "shard-00002.jsonl");
  const auto before = fs::last_write_time(folder_->path() / "two" / "shard-00000.txt");
  ASSERT_EQ(run(common + "--corpus two --batch 2").exit_code, 0);
  EXPECT_EQ(text, all_shards(folder_->path() / "two", "txt"));
  EXPECT_EQ(before, fs::last_write_time(folder_->path() / "two" / "shard-00000.txt"));
  // Training finds the same documents in the folder and in its texts one after another.
  const auto trained_on = [&](const std::string& name) {
    const test::ShellResult result =
        shell("train --text " + name + " --out trained-" + name +
              " --json trained.json --layers 1 "
              "--width 16 --heads 2 --length 8 --rows 1 --steps 1 --samples 0 --threads 1 2>&1");
    EXPECT_EQ(result.exit_code, 0) << result.out;
    return model::test::read_json(folder_->path() / "trained.json")["text"];
  };
  std::ofstream(folder_->path() / "all.txt") << text;
  const Json as_folder = trained_on("one");
  EXPECT_EQ(
      as_folder["training_documents"].get<int>() + as_folder["validation_documents"].get<int>(),
      documents);
  EXPECT_EQ(trained_on("all.txt"), as_folder);
  // What was made of fewer documents grows: the last shard was not full.
  const std::string fewer = common.substr(0, common.size() - 3) + "7 ";
  ASSERT_EQ(run(fewer + "--corpus grown --batch 4").exit_code, 0);
  ASSERT_EQ(run(common + "--corpus grown --batch 4").exit_code, 0);
  EXPECT_EQ(all_shards(folder_->path() / "grown", "txt"), text);
  EXPECT_EQ(all_shards(folder_->path() / "grown", "jsonl"),
            all_shards(folder_->path() / "one", "jsonl"));
  for (const auto& [option, key] : std::vector<std::pair<std::string, std::string>>{
           {"--top-p 0.5", "top_p"},
           {"--repetition-penalty 1.1", "repetition_penalty"},
           {"--frequency-penalty 0.1", "frequency_penalty"},
           {"--presence-penalty 0.1", "presence_penalty"},
           {"--min-tokens 2", "min_tokens"},
           {"--stop x", "stop"},
           {"--ignore-eos", "ignore_eos"},
           {"--context 200", "context"}}) {
    expect_one_line(common + "--corpus two " + option, 2, ("begun with another " + key).c_str());
  }
  expect_one_line(common + "--corpus three -p x", 2, "--corpus takes no -p");
  expect_one_line(common + "--corpus three --minutes nan", 2,
                  "--minutes: expected a finite number");
  expect_one_line(common + "--corpus three --top-p 2", 2, "top_p: expected a number in [0, 1]");
  expect_one_line(common + "--corpus three --context 100000", 2, "max_length: expected 1 to");
  expect_one_line(common + "--corpus three --context 2", 2, "is too long");
  // The last of its lines alone cannot be encoded, and the one document hardly draws it.
  std::ofstream listed(folder_->path() / "lines.txt");
  for (int i = 0; i < 1000; ++i) listed << "word" << i << "\n";
  listed << "\xff\n";
  listed.close();
  expect_one_line("generate -m . -n 12 --documents 1 --corpus three --prompts lines.txt", 2,
                  "UTF-8");
  EXPECT_FALSE(fs::exists(folder_->path() / "three"));
  expect_one_line("generate -m . -p x --batch 3", 2, "--batch requires --corpus");
}

}  // namespace
}  // namespace touchstone::cli
