// touchstone deploy as its users meet it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "judge/run/test_task.h"
#include "tests/support/shell.h"

namespace touchstone::cli {
namespace {

using testing::HasSubstr;

// Both streams of `touchstone deploy` with these arguments.
test::ShellResult deploy(const std::string& arguments) {
  return test::run_shell(std::string("'") + TOUCHSTONE_PROGRAM + "' deploy " + arguments + " 2>&1");
}

void expect_one_line(const std::string& arguments, int exit_code, const char* message) {
  const test::ShellResult result = deploy(arguments);
  EXPECT_EQ(result.exit_code, exit_code) << arguments;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
  EXPECT_THAT(result.out, HasSubstr(message));
}

TEST(DeployVerb, WritesWhatItSays) {
  const judge::test::Folder folder;
  const std::string place = (folder.path() / "mine").string();
  const test::ShellResult result = deploy(place + " --task softmax_topk");
  EXPECT_EQ(result.exit_code, 0) << result.out;
  std::istringstream lines(result.out);
  int files = 0;
  for (std::string line; std::getline(lines, line); ++files) {
    EXPECT_TRUE(std::filesystem::is_regular_file(line)) << line;
  }
  EXPECT_GE(files, 10);
  EXPECT_TRUE(std::filesystem::exists(place + "/softmax_topk/cuda/solution.cu"));
  EXPECT_FALSE(std::filesystem::exists(place + "/kv_cache"));
  expect_one_line(place, 2, "not an empty folder");
}

// Somebody's file becomes a contender that builds and refuses until its holes are filled.
TEST(DeployVerb, FromAForeignFile) {
  const judge::test::Folder folder;
  const std::string cc = folder
                             .write("theirs.cc",
                                    "namespace lib { void topk(const float* x, int n, int v, "
                                    "int kk, float* p, int* idx) {} }\n")
                             .string();
  const std::string py = folder.write("mine.py", "def topk(logits, k):\n    return 0\n").string();
  const std::string first = (folder.path() / "cc").string();
  const std::string second = (folder.path() / "py").string();
  EXPECT_EQ(deploy(first + " --task softmax_topk --from " + cc).exit_code, 0);
  EXPECT_EQ(deploy(second + " --task softmax_topk --from " + py).exit_code, 0);
  const test::ShellResult compiled = test::run_shell(
      "g++ -std=c++20 -Wall -Wextra -Werror -fsyntax-only " + first + "/adapter.cc 2>&1");
  EXPECT_EQ(compiled.exit_code, 0) << compiled.out;
  const test::ShellResult read = test::run_shell("cat " + first + "/adapter.cc " + second +
                                                 "/adapter.py " + first + "/contender.json");
  EXPECT_THAT(read.out, HasSubstr("lib::topk(logits"));
  EXPECT_THAT(read.out, HasSubstr("mine.topk("));
  EXPECT_THAT(read.out, HasSubstr("\"adapter\": \"adapter.cc\""));
  expect_one_line((folder.path() / "x").string() + " --from " + cc, 2, "--task");
  expect_one_line((folder.path() / "x").string() + " --task softmax_topk --from /tmp/no.txt", 2,
                  ".py");
}

TEST(DeployVerb, MistakesAreOneLine) {
  expect_one_line("", 2, "folder");
  expect_one_line("/tmp/touchstone-never --task softmax_topkk", 2, "softmax_topk");
  expect_one_line("/proc/nowhere/mine", 3, "/proc/nowhere");
}

}  // namespace
}  // namespace touchstone::cli
