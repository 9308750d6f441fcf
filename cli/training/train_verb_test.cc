// touchstone train as its users meet it: a run and its files, interrupted, killed, on a full disk,
// and what it refuses.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "json/json.h"
#include "tests/support/shell.h"

namespace touchstone::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class TrainVerbTest : public testing::Test {
 protected:
  TrainVerbTest() {
    folder_ =
        fs::temp_directory_path() / ("touchstone_train_verb_" + std::to_string(::getpid()) + "_" +
                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
    std::string text;
    for (int i = 0; i < 300; ++i) {
      text +=
          "speaker " + std::to_string(i % 7) + ":\nline " + std::to_string(i * i) + " of it\n\n";
    }
    std::ofstream(folder_ / "text.txt") << text;
  }
  ~TrainVerbTest() override { fs::remove_all(folder_); }

  std::string command(const std::string& arguments) const {
    return "cd '" + folder_.string() + "' && '" + TOUCHSTONE_PROGRAM + "' train " + arguments;
  }
  test::ShellResult run(const std::string& arguments) const {
    return test::run_shell(command(arguments) + " 2>&1 </dev/null");
  }
  // Sends the signal `seconds` after training has begun.
  test::ShellResult run_until(const std::string& arguments, const char* signal, const char* seconds,
                              const std::string& before = ":") const {
    // Without the log of a run before: its lines would bring the signal before the handler is there.
    return test::run_shell("cd '" + folder_.string() + "' && rm -f log && " + before + " && { '" +
                           TOUCHSTONE_PROGRAM + "' train " + arguments +
                           " >log 2>&1 & P=$!; until grep -q ' parameters, ' log 2>/dev/null || "
                           "! kill -0 $P 2>/dev/null; do sleep 0.02; done; sleep " +
                           seconds + "; kill -" + signal +
                           " $P 2>/dev/null; wait $P; E=$?; cat log; exit $E; }");
  }
  // One line that says what is wrong, after what was said about the text.
  void expect_refusal(const std::string& arguments, int exit_code, const char* message) const {
    const test::ShellResult result = run(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << arguments << ": " << result.out;
    EXPECT_LE(std::count(result.out.begin(), result.out.end(), '\n'), 2) << result.out;
    EXPECT_THAT(result.out, HasSubstr(message));
    EXPECT_THAT(result.out, Not(HasSubstr("step 1/")));
  }

  const std::string small_ =
      "--text text.txt --threads 1 --layers 1 --width 32 --heads 2 --length 16 --rows 4 --warm-up "
      "2 "
      "--samples 0 --dropout 0.1 --average-decay 0.9 ";
  fs::path folder_;
};

TEST_F(TrainVerbTest, ARunLeavesAModelCurvesAndAReport) {
  const test::ShellResult result =
      run("--text text.txt --threads 1 --layers 1 --width 32 --heads 2 --kv-heads 1 --length 16 "
          "--rows 4 "
          "--qk-norm 1 --ternary --group 32 --steps 30 --evaluate-every 15 --sample-tokens 12 "
          "--out m --json "
          "r.json");
  ASSERT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("of the 13-grams of validation occur in training"));
  EXPECT_THAT(result.out, HasSubstr("tokens/s"));
  EXPECT_THAT(result.out, HasSubstr("% zeros"));
  EXPECT_THAT(result.out, HasSubstr("--- step 15"));
  for (const char* name :
       {"config.json", "model.safetensors", "tokenizer.json", "loss.csv", "loss.svg",
        "checkpoints/last.safetensors", "checkpoints/best.safetensors"}) {
    EXPECT_TRUE(fs::exists(folder_ / "m" / name)) << name;
  }
  const Json report = Json::parse(content_of(folder_ / "r.json"));
  EXPECT_EQ(report["steps_done"].get<int>(), 30);
  EXPECT_EQ(report["evaluations"].size(), 2U);
  EXPECT_LT(report["evaluations"][1]["loss"].get<double>(),
            report["evaluations"][0]["loss"].get<double>() + 0.5);
  const std::string csv = content_of(folder_ / "m/loss.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 31);
  EXPECT_THAT(content_of(folder_ / "m/loss.svg"), HasSubstr("</svg>"));
  const test::ShellResult text =
      test::run_shell("cd '" + folder_.string() + "' && '" + TOUCHSTONE_PROGRAM +
                      "' generate -m m -p speaker --max-tokens 5 2>/dev/null");
  EXPECT_EQ(text.exit_code, 0) << text.out;
}

TEST_F(TrainVerbTest, InterruptedAndKilledRunsGoOnToTheSameBits) {
  const std::string options =
      small_ + "--steps 40 --evaluate-every 1 --evaluate-rows 4 --ternary --group 32 ";
  ASSERT_EQ(run(options + "--out whole").exit_code, 0);
  // Saved after every step, so a kill falls into a save sooner or later.
  run_until(options + "--out cut", "INT", "0");
  ASSERT_TRUE(fs::exists(folder_ / "cut/checkpoints/last.safetensors"));
  for (const char* seconds : {"0.05", "0.1", "0.2"}) {
    run_until(options + "--out cut --resume", "KILL", seconds);
  }
  // What such runs can leave beside their files.
  for (const char* name : {"model.safetensors.partial.1", "model.gguf.partial.1", "loss.csv.aB3dEf",
                           "loss.svg.aB3dEf"}) {
    std::ofstream(folder_ / "cut" / name) << "half";
  }
  const test::ShellResult last = run(options + "--out cut --resume");
  ASSERT_EQ(last.exit_code, 0) << last.out;
  for (const char* name : {"checkpoints/last.safetensors", "model.safetensors", "loss.csv"}) {
    EXPECT_TRUE(content_of(folder_ / "cut" / name) == content_of(folder_ / "whole" / name)) << name;
  }
  const auto names = [&](const char* folder) {
    std::set<std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / folder)) {
      all.insert(entry.path().filename().string());
    }
    return all;
  };
  EXPECT_EQ(names("cut"), names("whole"));
}

// A target, a draft for it, and both together: the text of plain decoding in fewer passes.
TEST_F(TrainVerbTest, ADraftIsTrainedAndSpeculatesWithoutChangingTheText) {
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text += "the cat sat on the mat and the dog lay on the rug by the door " +
            std::to_string(i % 10) + "\n\n";
  }
  std::ofstream(folder_ / "rule.txt") << text;
  std::ofstream(folder_ / "held_out.txt") << text.substr(5, 600) << "the end";
  const std::string texts = "--text rule.txt --validation held_out.txt --threads 1 ";
  const test::ShellResult target =
      run(texts +
          "--layers 2 --width 32 --heads 2 --length 64 --rows 8 --context 256 --steps 120 "
          "--learning-rate 1e-2 --warm-up 10 --samples 0 --evaluate-every 120 --out target");
  ASSERT_EQ(target.exit_code, 0) << target.out;
  const std::string options =
      texts +
      "--dflash target --layers 1 --length 64 --rows 4 --block 6 --anchors "
      "16 --steps 300 --learning-rate 1e-2 --warm-up 10 --evaluate-every 150 "
      "--evaluate-rows 4 --out draft --json r.json ";
  const test::ShellResult draft = run(options);
  ASSERT_EQ(draft.exit_code, 0) << draft.out;
  EXPECT_THAT(draft.out, HasSubstr("tokens per pass"));
  const Json report = Json::parse(content_of(folder_ / "r.json"));
  EXPECT_GT(report["evaluations"][1]["tokens_per_pass"].get<double>(), 2.5) << draft.out;
  EXPECT_FALSE(fs::exists(folder_ / "draft/tokenizer.json"));
  const std::string generate = "cd '" + folder_.string() + "' && '" + TOUCHSTONE_PROGRAM +
                               "' generate -m target -p 'the cat' -n 100 --threads 1 ";
  for (const char* temperature : {"0", "0.7"}) {
    const std::string sampled = generate + "--temperature " + temperature + " --seed 3 ";
    const test::ShellResult plain = test::run_shell(sampled + "2>/dev/null");
    const test::ShellResult drafted =
        test::run_shell(sampled + "--speculate dflash=draft --always-speculate 2>stats");
    ASSERT_EQ(drafted.exit_code, 0) << content_of(folder_ / "stats");
    EXPECT_EQ(drafted.out, plain.out);
    const std::string stats = content_of(folder_ / "stats");
    const std::size_t at = stats.find("speculation: ");
    ASSERT_NE(at, std::string::npos) << stats;
    EXPECT_GT(std::stod(stats.substr(at + 13)), 2.0) << stats;
  }
  // None of these letters is in the vocabulary.
  const test::ShellResult unknown =
      test::run_shell("cd '" + folder_.string() + "' && '" + TOUCHSTONE_PROGRAM +
                      "' generate -m target -p XYZ 2>&1");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.out, HasSubstr("-p: expected a character of the vocabulary"));
  expect_refusal(texts + "--seed 18446744073709551615 --out other", 2, "from 0 to 9e15");
  expect_refusal(options + "--ternary", 2, "not with --ternary");
  expect_refusal(texts + "--dflash nowhere --out other", 3, "nowhere");
  // Refused when the folder has been made.
  fs::create_directory(folder_ / "empty");
  for (const char* const wrong : {"--width 64 --out other", "--anchors 0 --out other/of/more",
                                  "--block 300 --out empty", "--mask-token 5000 --out other/"}) {
    const test::ShellResult refused =
        run(texts + "--dflash target --layers 1 --length 64 --rows 4 " + wrong);
    EXPECT_EQ(refused.exit_code, 2) << wrong << ": " << refused.out;
    EXPECT_THAT(refused.out, HasSubstr(": expected "));
  }
  EXPECT_FALSE(fs::exists(folder_ / "other"));
  EXPECT_TRUE(fs::is_empty(folder_ / "empty"));
}

// Pages of the whole context would be more than an address space holds.
TEST_F(TrainVerbTest, SamplesNeedNoMemoryForTheContext) {
  const std::string base =
      "--text text.txt --threads 1 --layers 1 --width 32 --heads 2 --length 16 --rows 4 --steps 2 "
      "--samples 3 --sample-tokens 8 ";
  const test::ShellResult wide = run(base + "--context 1000000000000 --out wide --json wide.json");
  ASSERT_EQ(wide.exit_code, 0) << wide.out;
  ASSERT_EQ(run(base + "--out narrow --json narrow.json").exit_code, 0);
  const Json samples = Json::parse(content_of(folder_ / "wide.json"))["samples"];
  EXPECT_EQ(samples.size(), 3U);
  EXPECT_EQ(samples, Json::parse(content_of(folder_ / "narrow.json"))["samples"]);
}

TEST_F(TrainVerbTest, AFullDiskLeavesTheLastCheckpoint) {
  // So many steps that no machine ends before the signal.
  const std::string options = small_ + "--steps 1000000 --evaluate-every 1000000 --out full ";
  const fs::path last = folder_ / "full/checkpoints/last.safetensors";
  run_until(options, "INT", "0");
  ASSERT_TRUE(fs::exists(last));
  const std::string before = content_of(last);
  const test::ShellResult full =
      run_until(options + "--resume", "INT", "0", "trap '' XFSZ && ulimit -f 64");
  EXPECT_EQ(full.exit_code, 3) << full.out;
  EXPECT_THAT(full.out, HasSubstr("last.safetensors: File too large"));
  EXPECT_TRUE(content_of(last) == before);
  EXPECT_EQ(std::distance(fs::directory_iterator(last.parent_path()), fs::directory_iterator()), 1);
}

TEST_F(TrainVerbTest, ARunThatDivergesOrGetsNoBetterStops) {
  const test::ShellResult bad =
      run(small_ +
          "--steps 60 --evaluate-every 1 --learning-rate 1e30 --clip 0 --out bad --json bad.json");
  EXPECT_EQ(bad.exit_code, 1) << bad.out;
  EXPECT_THAT(bad.out, HasSubstr("the last good state is bad/checkpoints/last.safetensors"));
  EXPECT_THAT(content_of(folder_ / "bad.json"), HasSubstr("stopped at step"));
  EXPECT_TRUE(fs::exists(folder_ / "bad/checkpoints/last.safetensors"));
  const test::ShellResult still = run(
      small_ +
      "--steps 60 --evaluate-every 1 --learning-rate 0 --weight-decay 0 --patience 2 --out still");
  EXPECT_EQ(still.exit_code, 0) << still.out;
  EXPECT_THAT(still.out, HasSubstr("stopped early after step 3"));
}

// What a terminal of 40 columns is sent: the moving line never leaves its row, so that it is
// overwritten; a terminal without escape codes is spared it.
TEST_F(TrainVerbTest, TheProgressLineFitsTheTerminal) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(grantpt(terminal) + unlockpt(terminal), 0);
  const std::string name = ptsname(terminal);
  // Held open: what is written stays until it is read.
  const int held = open(name.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(held, 0);
  const winsize size{.ws_row = 24, .ws_col = 40, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(ioctl(held, TIOCSWINSZ, &size), 0);
  ASSERT_EQ(fcntl(terminal, F_SETFL, O_NONBLOCK), 0);
  const auto sent = [&](const std::string& term, const std::string& out) {
    const test::ShellResult result =
        test::run_shell("export TERM=" + term + "; " +
                        command(small_ + "--steps 6 --evaluate-every 6 --out " + out) + " 2>" +
                        name + " </dev/null");
    EXPECT_EQ(result.exit_code, 0);
    std::string text(16384, '\0');
    const ssize_t got = read(terminal, text.data(), text.size());
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  };
  const std::string text = sent("xterm", "narrow");
  const std::string wipe = "\r\x1b[K";
  int moving = 0;
  for (std::size_t at = text.find(wipe); at != std::string::npos; at = text.find(wipe, at + 1)) {
    const std::size_t begin = at + wipe.size();
    const std::string line = text.substr(begin, text.find_first_of("\r\n", begin) - begin);
    if (!line.starts_with("step ")) continue;
    ++moving;
    EXPECT_LT(line.size(), 40U) << line;
  }
  EXPECT_EQ(moving, 6) << text;
  EXPECT_THAT(sent("dumb", "dumb"),
              AllOf(HasSubstr("touchstone: step 6/6"), Not(HasSubstr("\x1b"))));
  close(held);
  close(terminal);
}

TEST_F(TrainVerbTest, BadInputIsOneLine) {
  const std::string rest =
      " --out o --layers 1 --width 32 --heads 2 --length 16 --rows 2 --steps 2 ";
  std::ofstream(folder_ / "empty.txt");
  std::ofstream(folder_ / "binary.txt") << std::string("a\0b", 3);
  std::ofstream(folder_ / "short.txt") << "a b\n\nc d\n\ne";
  std::ofstream(folder_ / "config.json") << "{\"layer\": 3}";
  std::ofstream(folder_ / "broken.json") << "{";
  expect_refusal("--text missing.txt" + rest, 3, "missing.txt");
  expect_refusal("--text empty.txt" + rest, 2, "empty.txt: no text");
  expect_refusal("--text binary.txt" + rest, 2, "NUL byte at 1");
  expect_refusal("--text short.txt" + rest, 2, "train: text: expected more than 16 tokens");
  std::ofstream(folder_ / "held_out.txt") << "a line";
  expect_refusal(
      "--text text.txt --validation held_out.txt" + rest, 2,
      "train: validation text: expected more than 16 tokens, the length of a row, got 6");
  // Known before memory is asked for.
  expect_refusal("--text text.txt --out o --layers 1 --width 32 --heads 2 --length 1000000000000",
                 2, "train: text: expected more than 1000000000000 tokens");
  expect_refusal("--text text.txt --config config.json" + rest, 2, "unknown key 'layer'");
  expect_refusal("--text text.txt --config broken.json" + rest, 2, "broken.json");
  expect_refusal("--text text.txt --heads x" + rest, 2, "--heads");
  expect_refusal("--text text.txt --learning-rate fast" + rest, 2,
                 "learning_rate: expected a number, got 'fast'");
  expect_refusal("--text text.txt --schedule cosin" + rest, 2, "schedule: expected one of");
  expect_refusal("--text text.txt --tokenizer 100" + rest, 2, "vocabulary");
  expect_refusal("--text text.txt --resume" + rest, 3, "last.safetensors");
  expect_refusal("--text text.txt --out /proc/none --layers 1 --width 32 --heads 2 --length 16", 3,
                 "/proc/none: cannot be written");
  for (const char* const wrong :
       {"--evaluate-every 0", "--taps 0", "--beta1 1", "--dropout 1", "--clip -1", "--patience 1.5",
        "--average-decay 1.5", "--teacher-weight 2", "--group 31", "--scale x", "--theta 0",
        "--sample-temperature -1", "--device gpu", "--compute int8", "--compute f64"}) {
    expect_refusal("--text text.txt " + rest + wrong, 2, ": expected");
  }
  expect_refusal("--text text.txt --out o --layers 100000000000 --width 32 --heads 2", 2,
                 "layers: expected 1 to 16384");
  expect_refusal("--text text.txt --context 9e15" + rest, 2,
                 "max_position_embeddings: expected 1 to 1099511627776, got 9000000000000000");
  expect_refusal("--text text.txt --samples 5000000000" + rest, 2,
                 "samples: expected at most 4096, got 5000000000");
  expect_refusal("--text text.txt --feature-memory 9e15" + rest, 2,
                 "feature_memory: expected at most 1099511627776");
  expect_refusal("--text text.txt --mask-token 4294967297" + rest, 2,
                 "mask_token: expected at most 2147483647");
  expect_refusal("--text text.txt --config /dev/zero" + rest, 3,
                 "/dev/zero: not a regular file, and more than 256 MiB");
  expect_refusal("--text text.txt --sample-prompt 'speaker 1 and speaker 2'" + rest, 2,
                 "sample_prompt: expected fewer tokens than the context of 16");
  EXPECT_FALSE(fs::exists(folder_ / "o"));
  ASSERT_EQ(run(small_ + "--steps 2 --evaluate-every 2 --out first").exit_code, 0);
  expect_refusal(small_ + "--steps 2 --out first", 2, "there is a run in it");
  expect_refusal(small_ + "--steps 3 --out first --resume", 2, "steps: the run was begun with 2");
  // A text with other characters has another vocabulary than the parent and the teacher.
  std::ofstream(folder_ / "other.txt") << content_of(folder_ / "text.txt") << "\n\nXYZ\n";
  expect_refusal("--text other.txt --from first --length 16 --out second --steps 2", 2,
                 "the vocabulary has no tokens for all");
  expect_refusal("--text other.txt --teacher first" + rest, 2, "teacher: expected a vocabulary of");
  expect_refusal("--text other.txt --teacher nothing" + rest, 3, "nothing");
  // As many characters, but others.
  std::string replaced = content_of(folder_ / "text.txt");
  std::replace(replaced.begin(), replaced.end(), 'k', 'q');
  std::ofstream(folder_ / "replaced.txt") << replaced;
  expect_refusal("--text replaced.txt --teacher first" + rest, 2,
                 "teacher: expected the same vocabulary, but token 17 is another one there");
}

TEST_F(TrainVerbTest, ShardsOfAnotherTextAreRefused) {
  const std::string options = small_ + "--steps 2 --evaluate-every 2 --shards shards ";
  ASSERT_EQ(run(options + "--out one").exit_code, 0);
  ASSERT_EQ(run(options + "--out two").exit_code, 0);
  EXPECT_TRUE(content_of(folder_ / "one/model.safetensors") ==
              content_of(folder_ / "two/model.safetensors"));
  std::string text = content_of(folder_ / "text.txt");
  std::swap(text[0], text[1]);
  std::ofstream(folder_ / "text.txt") << text;
  expect_refusal(options + "--out three", 2, "tokens of another text or vocabulary");
  EXPECT_FALSE(fs::exists(folder_ / "three"));
}

// What decides when a run stops is part of its history.
TEST_F(TrainVerbTest, AResumedRunRemembersItsEvaluations) {
  const std::string options =
      small_ +
      "--steps 60 --evaluate-every 1 --learning-rate 0 --final-rate 0 --weight-decay 0 --out "
      "still ";
  EXPECT_THAT(run(options + "--patience 2").out, HasSubstr("stopped early after step 3"));
  EXPECT_THAT(run(options + "--patience 4 --resume").out, HasSubstr("stopped early after step 5"));
}

// The state that a run goes on from is saved after the files of its best evaluation: else one that
// ends between the two would take them for written.
TEST_F(TrainVerbTest, TheLastStateIsSavedAfterTheBestModel) {
  const std::string options = small_ + "--steps 2 --evaluate-every 1 --out m ";
  fs::create_directories(folder_ / "m/checkpoints/best.safetensors/x");  // cannot be replaced
  EXPECT_EQ(run(options).exit_code, 3);
  EXPECT_FALSE(fs::exists(folder_ / "m/checkpoints/last.safetensors"));
  fs::remove_all(folder_ / "m/checkpoints/best.safetensors");
  EXPECT_EQ(run(options).exit_code, 0);
  EXPECT_TRUE(fs::exists(folder_ / "m/model.safetensors"));
}

// Every format that can hold the model decodes to the weights it was trained with: the same text,
// token by token.
TEST_F(TrainVerbTest, ATernaryModelWritesTheSameFromEveryFormat) {
  const auto write = [&](const std::string& model) {
    const test::ShellResult result = test::run_shell(
        "cd '" + folder_.string() + "' && '" + TOUCHSTONE_PROGRAM + "' generate -m " + model +
        " -p line -n 1000 --ignore-eos --json --threads 1 2>/dev/null");
    EXPECT_EQ(result.exit_code, 0) << model << ": " << result.out;
    return result.out;
  };
  const auto expect_same = [&](const char* group, const std::vector<const char*>& formats) {
    const std::string out = std::string("g") + group;
    ASSERT_EQ(
        run("--text text.txt --threads 1 --layers 1 --width 256 --heads 4 --ffn 256 --length 32 "
            "--context 1024 --rows 2 --steps 4 --evaluate-every 4 --samples 0 --learning-rate 3e-3 "
            "--ternary --group " +
            std::string(group) + " --out " + out)
            .exit_code,
        0);
    const std::string expected = write(out);
    EXPECT_THAT(expected, HasSubstr("\"tokens\":["));
    EXPECT_EQ(write(out + "/model.gguf"), expected);
    for (const char* format : formats) {
      const test::ShellResult converted =
          test::run_shell("cd '" + folder_.string() + "' && '" + TOUCHSTONE_PROGRAM + "' convert " +
                          out + " " + format + out + ".gguf --type " + format + " 2>&1");
      ASSERT_EQ(converted.exit_code, 0) << format << ": " << converted.out;
      EXPECT_EQ(write(format + out + ".gguf"), expected) << format;
    }
  };
  expect_same("128",
              {"ternary_g128", "ternary_g64", "ternary_g32", "base3_g128", "ptq1_0", "q2_0"});
  expect_same("256", {"ternary_g256", "tq1_0", "tq2_0", "pq2_0"});
}

// The model that comes with the sources.
TEST_F(TrainVerbTest, TheBuiltInModelIsTernaryAndRunsWithEveryCache) {
  const fs::path model = fs::path(TOUCHSTONE_SOURCE) / "data/model/touchstone.gguf";
  if (!fs::exists(model)) GTEST_SKIP() << "there is no " << model;
  EXPECT_LE(fs::file_size(model), 8'000'000U);
  const auto program = [&](const std::string& arguments) {
    return test::run_shell("cd / && '" + std::string(TOUCHSTONE_PROGRAM) + "' " + arguments +
                           " 2>&1 </dev/null");
  };
  const test::ShellResult proof = program("inspect --ternary '" + model.string() + "'");
  EXPECT_EQ(proof.exit_code, 0) << proof.out;
  EXPECT_THAT(proof.out, HasSubstr("ternary: yes"));
  for (const char* cache : {"f32", "bf16", "f16", "int8", "int4", "fp8_e4m3"}) {
    const test::ShellResult text =
        program(std::string("generate -q -p 'The river' -n 24 --cache ") + cache);
    EXPECT_EQ(text.exit_code, 0) << cache << ": " << text.out;
    EXPECT_GT(text.out.size(), 24U) << cache;
  }
}

// Its draft: the text of plain decoding in fewer passes. Most texts of this model repeat themselves.
TEST_F(TrainVerbTest, TheBuiltInDraftSpeculatesForTheBuiltInModel) {
  const auto generate = [&](const std::string& arguments) {
    return test::run_shell("cd / && '" + std::string(TOUCHSTONE_PROGRAM) +
                           "' generate -p 'The village' -n 96 --ignore-eos --temperature 0.8 "
                           "--seed 2 --threads 1 " +
                           arguments + " </dev/null");
  };
  const test::ShellResult plain = generate("2>/dev/null");
  EXPECT_EQ(plain.exit_code, 0);
  const test::ShellResult drafted = generate("--always-speculate --speculate dflash 2>/dev/null");
  EXPECT_EQ(drafted.exit_code, 0);
  EXPECT_EQ(drafted.out, plain.out);
  const std::string report = generate("--always-speculate --speculate dflash 2>&1 >/dev/null").out;
  const std::string phrase = "speculation: ";
  ASSERT_THAT(report, HasSubstr(phrase));
  EXPECT_GE(std::stod(report.substr(report.find(phrase) + phrase.size())), 2) << report;
}

// From a model: all weights are taken over, so the first loss is the parent's last.
TEST_F(TrainVerbTest, AParentIsContinued) {
  ASSERT_EQ(run(small_ + "--steps 40 --evaluate-every 40 --out parent --json p.json").exit_code, 0);
  const std::string rest =
      "--text text.txt --from parent --length 16 --rows 4 --threads 1 --samples 0 ";
  ASSERT_EQ(
      run(rest +
          "--steps 1 --evaluate-every 1 --learning-rate 0 --weight-decay 0 --out child --json "
          "c.json")
          .exit_code,
      0);
  const auto loss = [&](const char* name) {
    const Json report = Json::parse(content_of(folder_ / name));
    return report["best_validation_loss"].get<double>();
  };
  EXPECT_DOUBLE_EQ(loss("c.json"), loss("p.json"));
  const test::ShellResult ternary =
      run(rest +
          "--ternary --group 32 --teacher parent --steps 3 --evaluate-every 3 --out ternary "
          "--layers 3 --theta 7 --block 4");
  ASSERT_EQ(ternary.exit_code, 0) << ternary.out;
  EXPECT_THAT(ternary.out,
              HasSubstr("--layers, --theta: not used, the model of --from has its own"));
  EXPECT_THAT(ternary.out, HasSubstr("--block: not used, there is no --dflash"));
}

}  // namespace
}  // namespace touchstone::cli
