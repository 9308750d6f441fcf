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

namespace fs = std::filesystem;
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

// Names and contents that an adapter has to be careful with.
TEST(DeployVerb, FromAwkwardFiles) {
  const judge::test::Folder folder;
  int number = 0;
  const auto adapted = [&](const std::string& task, const std::string& name,
                           const std::string& text) {
    folder.write(name, text);
    const fs::path place = folder.path() / std::to_string(++number);
    const test::ShellResult result = deploy("'" + place.string() + "' --task " + task +
                                            " --from '" + (folder.path() / name).string() + "'");
    EXPECT_EQ(result.exit_code, 0) << result.out;
    return place;
  };
  const auto text_of = [](const fs::path& file) {
    return test::run_shell("cat '" + file.string() + "'").out;
  };
  const auto expect_compiles = [](const fs::path& place) {
    const test::ShellResult compiled =
        test::run_shell("g++ -std=c++20 -Wall -Wextra -Werror -fsyntax-only " +
                        (place / "adapter.cc").string() + " 2>&1");
    EXPECT_EQ(compiled.exit_code, 0) << compiled.out;
  };
  const auto expect_runs = [](const fs::path& place) {
    const test::ShellResult run =
        test::run_shell("cd '" + place.string() +
                        "' && python3 -c 'import json, sys, types\n"
                        "sys.modules[\"numpy\"] = types.ModuleType(\"numpy\")\n"
                        "import adapter\njson.load(open(\"contender.json\"))' 2>&1");
    EXPECT_EQ(run.exit_code, 0) << run.out;
  };
  const std::string topk = "def topk(logits, k):\n    return 0\n";
  fs::path place = adapted("softmax_topk", "my-topk.py", topk);
  expect_runs(place);
  EXPECT_THAT(text_of(place / "adapter.py"), HasSubstr("theirs.topk("));
  // The order of two results is a guess.
  EXPECT_THAT(text_of(place / "adapter.py"), HasSubstr("FILLED = False"));
  expect_runs(adapted("softmax_topk", "a \"quoted\" one.py", topk));
  place =
      adapted("softmax_topk", "only_a_class.py", "class TopK:\n    def run(self):\n        pass\n");
  expect_runs(place);
  EXPECT_THAT(text_of(place / "adapter.py"), HasSubstr("HOLE"));
  // Types that only their header declares.
  place = adapted("softmax_topk", "types.cc",
                  "struct Matrix { float* p; };\nvoid topk(const Matrix& logits, int k) {}\n");
  expect_compiles(place);
  EXPECT_THAT(text_of(place / "adapter.cc"), HasSubstr("HOLE: include what declares its types"));
  place = adapted("softmax_topk", "both.cc",
                  "template <class T> void topk(const T* logits, int rows, int vocab, int k, T* p, "
                  "int* idx) {}\n"
                  "void plain(const float* logits, int rows, int vocab, int k, float* p, int* idx) "
                  "{}\n");
  expect_compiles(place);
  EXPECT_THAT(text_of(place / "adapter.cc"), HasSubstr("plain(logits"));
  place = adapted("ternary_linear", "bit.cc",
                  "int ternary_linear(int m, int out_features, int in_features, int group_size, "
                  "const int* codes, const float* w_scale, const float* x, float* out) "
                  "{ return 0; }\n");
  expect_compiles(place);
  EXPECT_THAT(text_of(place / "adapter.cc"), HasSubstr("static_cast<int>(inputs)"));
  EXPECT_THAT(text_of(place / "adapter.cc"), HasSubstr("scales"));
}

// A foreign kernel, and the adapter that is written for it, are compiled and linked as the judge does.
TEST(DeployVerb, FromAForeignKernel) {
  const char* nvcc = "/usr/local/cuda/bin/nvcc";
  if (!std::filesystem::exists(nvcc)) {
    GTEST_SKIP() << "NOT CHECKED: no nvcc at " << nvcc << ", so no CUDA adapter was compiled";
  }
  struct Foreign {
    const char* task;
    const char* arguments;  // of its function
  };
  constexpr Foreign kForeign[] = {
      {"softmax_topk",
       "const float* x, int n, int v, int kk, float* p, int* idx, cudaStream_t stream"},
      {"flash_attention_forward",
       "const float* q, const float* k, const float* v, float* o, float* lse, int b, int h, int n, "
       "int d, float scale, bool causal, cudaStream_t stream"}};
  for (const Foreign& foreign : kForeign) {
    const judge::test::Folder folder;
    const std::string file =
        folder
            .write("theirs.cu", std::string("__global__ void kernel(float* to) { to[0] = 1; }\n"
                                            "namespace lib { void run(") +
                                    foreign.arguments +
                                    ") { kernel<<<1, 1, 0, stream>>>(nullptr); } }\n")
            .string();
    const std::string place = (folder.path() / "mine").string();
    const test::ShellResult written = deploy(place + " --task " + foreign.task + " --from " + file);
    ASSERT_EQ(written.exit_code, 0) << written.out;
    const test::ShellResult compiled =
        test::run_shell("cd " + place + " && " + nvcc +
                        " -std=c++20 -arch=sm_90 -shared -Xcompiler -fPIC,-Wall,-Werror adapter.cu "
                        "theirs.cu -o lib.so "
                        "2>&1 && nm -D lib.so");
    EXPECT_EQ(compiled.exit_code, 0) << compiled.out;
    EXPECT_THAT(compiled.out, HasSubstr(std::string(" T ") + foreign.task));
    const test::ShellResult adapter = test::run_shell("cat " + place + "/adapter.cu");
    EXPECT_THAT(adapter.out, HasSubstr("lib::run("));
    EXPECT_THAT(adapter.out, HasSubstr("stream"));
  }
}

TEST(DeployVerb, MistakesAreOneLine) {
  expect_one_line("", 2, "folder");
  expect_one_line("/tmp/touchstone-never --task softmax_topkk", 2, "softmax_topk");
  expect_one_line("/proc/nowhere/mine", 3, "/proc/nowhere");
}

}  // namespace
}  // namespace touchstone::cli
