// touchstone tokenize as its users meet it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "json/json.h"
#include "tests/support/shell.h"

namespace touchstone::cli {
namespace {

using testing::HasSubstr;

class TokenizeVerb : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / "tokenize_verb_test";
    std::filesystem::create_directories(folder_);
    write("text.txt", "low lower lowest, new newer newest: wide wider widest.\ncafé über\n");
    const auto result =
        run("--train text.txt --vocab 280 --special '<s>,<|end|>' -o tokenizer.json");
    ASSERT_EQ(result.exit_code, 0) << result.out;
    EXPECT_THAT(result.out, HasSubstr("byte-level BPE, 280 tokens, 22 merges, 2 added"));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const char* name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  // Both streams.
  test::ShellResult run(const std::string& arguments, const std::string& input = "/dev/null") {
    return test::run_shell("cd '" + folder_.string() + "' && '" + TOUCHSTONE_PROGRAM +
                           "' tokenize " + arguments + " 2>&1 <" + input);
  }
  void expect_one_line(const std::string& arguments, int exit_code, const char* message) {
    const test::ShellResult result = run(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << arguments << ": " << result.out;
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
    EXPECT_THAT(result.out, HasSubstr(message));
  }

  std::filesystem::path folder_;
};

TEST_F(TokenizeVerb, ThereAndBack) {
  const test::ShellResult ids = run("-m tokenizer.json 'lowest <|end|>é'");
  ASSERT_EQ(ids.exit_code, 0) << ids.out;
  EXPECT_THAT(ids.out, HasSubstr(" 1 "));
  const std::string list = ids.out.substr(0, ids.out.size() - 1);
  EXPECT_EQ(run("-m . --decode " + list).out, "lowest <|end|>é\n");
  EXPECT_EQ(run("-m . --decode --skip-special '[" + list + "]'").out, "lowest é\n");
  const Json json = Json::parse(run("-m tokenizer.json --json lowest").out);
  EXPECT_EQ(json["model"], "BPE");
  EXPECT_EQ(json["count"], json["ids"].size());
  EXPECT_EQ(json["vocabulary"], 280);
  EXPECT_THAT(run("-m . --plain-text '<|end|>'").out, testing::Not(testing::StrEq("1\n")));
}

TEST_F(TokenizeVerb, Lines) {
  write("lines.txt", "\"lowest\"\n\"a\\nb\\u0000\"\n\"\"\n");
  const test::ShellResult ids = run("-m . --lines", "lines.txt");
  ASSERT_EQ(ids.exit_code, 0) << ids.out;
  EXPECT_EQ(std::count(ids.out.begin(), ids.out.end(), '\n'), 3);
  write("ids.txt", ids.out);
  EXPECT_EQ(run("-m . --lines --decode", "ids.txt").out, "\"lowest\"\n\"a\\nb\\u0000\"\n\"\"\n");
}

// Numbers that are no ids are refused, not rounded or wrapped into ids that are there.
TEST_F(TokenizeVerb, LinesOfIds) {
  for (const char* line : {"[1.5]", "[-1]", "[2147483648]", "[4294967297]", "[1e300]", "[\"1\"]"}) {
    write("ids.txt", std::string("[1]\n") + line + "\n");
    const test::ShellResult result = run("-m . --lines --decode", "ids.txt");
    EXPECT_EQ(result.exit_code, 3) << line << result.out;
    EXPECT_THAT(result.out, HasSubstr("line 2: expected")) << line;
  }
}

TEST_F(TokenizeVerb, TrainingIsTheSameEachTime) {
  ASSERT_EQ(run("--train text.txt --vocab 280 --special '<s>,<|end|>' -o again.json").exit_code, 0);
  EXPECT_EQ(test::run_shell("cmp '" + (folder_ / "again.json").string() + "' '" +
                            (folder_ / "tokenizer.json").string() + "'")
                .exit_code,
            0);
  const Json timed = Json::parse(run("-m . --bench text.txt --rounds 2 --json").out);
  EXPECT_GT(timed["tokens"].get<int>(), 10);
}

TEST_F(TokenizeVerb, OneLineForWhatIsWrong) {
  write("bad.json", "{\"model\": {\"type\": \"LSTM\"}}");
  write("cut.json", "{\"model\": {");
  write("bytes.txt", "\xff\xfe");
  expect_one_line("-m bad.json x", 3, "LSTM");
  expect_one_line("-m cut.json x", 3, "cut.json");
  expect_one_line("-m none.json x", 3, "none.json");
  expect_one_line("--train . -o x.json", 3, ".: Is a directory");
  expect_one_line("-m tokenizer.json --bench .", 3, ".: Is a directory");
  // Nobody writes to it: no reader may wait for that.
  ASSERT_EQ(test::run_shell("mkfifo '" + (folder_ / "pipe").string() + "'").exit_code, 0);
  expect_one_line("-m pipe x", 3, "pipe: not a regular file");
  expect_one_line("x", 2, "-m");
  expect_one_line("-m . --decode one", 2, "'one'");
  expect_one_line("--train -o x.json", 2, "files of text");
  expect_one_line("--train text.txt", 2, "-o FILE");
  expect_one_line("--train bytes.txt -o x.json", 2, "UTF-8");
  expect_one_line("--train text.txt --vocab 20 -o x.json", 2, "--vocab");
}

// The file is renamed into its place: a pipe, a device or a link must not be replaced by it.
TEST_F(TokenizeVerb, WritesFilesOnly) {
  const auto output = folder_ / "output";
  ASSERT_EQ(mkfifo(output.c_str(), 0600), 0);
  expect_one_line("--train text.txt --vocab 280 -o output", 3, "output: not a regular file");
  EXPECT_TRUE(std::filesystem::is_fifo(output));
  expect_one_line("--train text.txt --vocab 280 -o .", 3, ".: Is a directory");
  std::filesystem::create_symlink("target.json", folder_ / "link.json");
  write("target.json", "");
  EXPECT_EQ(run("--train text.txt --vocab 280 -o link.json").exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link.json"));
  EXPECT_GT(std::filesystem::file_size(folder_ / "target.json"), 0);
}

}  // namespace
}  // namespace touchstone::cli
