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

TEST(DeployVerb, MistakesAreOneLine) {
  expect_one_line("", 2, "folder");
  expect_one_line("/tmp/touchstone-never --task softmax_topkk", 2, "softmax_topk");
  expect_one_line("/proc/nowhere/mine", 3, "/proc/nowhere");
}

}  // namespace
}  // namespace touchstone::cli
