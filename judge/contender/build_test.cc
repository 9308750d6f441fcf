// Building contenders, and the folders that `touchstone deploy` writes: their examples must pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "judge/contender/deploy.h"
#include "judge/contender/python.h"
#include "judge/run/runner.h"
#include "judge/run/test_task.h"
#include "judge/sandbox/read_file.h"
#include "judge/task/tasks/registry.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

using test::floats_of;
using test::Folder;
using test::scale_call;
using test::scale_function;
using test::TestTask;

class Building : public ::testing::Test {
 protected:
  BuildResult build(const std::filesystem::path& path, bool sanitized = false) {
    contender_ = read_contender(path, task_);
    work_ = std::make_unique<Folder>();
    return build_contender(contender_, task_, work_->path(), sandbox_, sanitized);
  }
  // Builds, starts, and asks for 2 * {1, 2, 3}.
  void expect_works(const std::filesystem::path& path) {
    const BuildResult result = build(path);
    ASSERT_TRUE(result.built) << result.log;
    const std::unique_ptr<Child> child =
        Child::start(contender_, result, task_, sandbox_, Limits{});
    ASSERT_EQ(child->started().ending, Ending::ok) << child->started().detail;
    const Reply reply = child->call(scale_call({1, 2, 3}, 2.0), Placement::end_flush, 1);
    ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
    EXPECT_EQ(floats_of(reply.outputs.at(0)), (std::vector<float>{2, 4, 6}));
  }

  TestTask task_{{scale_function()}};
  Folder folder_;
  std::unique_ptr<Folder> work_;
  Contender contender_;
  Sandbox sandbox_ = probe_sandbox(true);
};

TEST_F(Building, C) {
  expect_works(folder_.write("mine.c", R"(
    #include <stdint.h>
    #include <math.h>
    int scale(int64_t n, float factor, const float *restrict x, float *restrict y) {
      for (int64_t i = 0; i < n; ++i) y[i] = fmaf(factor, x[i], 0.0f);
      return 0;
    })"));
}

TEST_F(Building, OtherTypesOfArguments) {
  // int for int64_t, double for float, nothing returned, C++ linkage inside a namespace.
  expect_works(folder_.write("mine.cc", R"(
    namespace mine {
    void scale_all(int n, double factor, float* x, float* y) {
      for (int i = 0; i < n; ++i) y[i] = static_cast<float>(factor * x[i]);
    }
    })"));
  EXPECT_EQ(contender_.binding.functions.at("scale"), "scale_all");
}

TEST_F(Building, SeveralFilesAndAnAdapter) {
  folder_.write("half.c", "float half(float a) { return a / 2; }\n");
  folder_.write("double.cc", "#include \"double.h\"\nfloat twice(float a) { return a * 2; }\n");
  folder_.write("double.h", "float twice(float a);\n");
  folder_.write("adapter.cc", R"(
    #include <cstdint>
    #include "double.h"
    extern "C" float half(float a);
    extern "C" int scale(int64_t n, float factor, const float* x, float* y) {
      for (int64_t i = 0; i < n; ++i) y[i] = half(twice(factor * x[i]));
      return 0;
    })");
  expect_works(folder_.path());
}

TEST_F(Building, PrebuiltLibrary) {
  const BuildResult first = build(folder_.write("mine.c", R"(
    #include <stdint.h>
    int scale(int64_t n, float factor, const float* x, float* y) {
      for (int64_t i = 0; i < n; ++i) y[i] = factor * x[i];
      return 0;
    })"));
  ASSERT_TRUE(first.built) << first.log;
  std::filesystem::copy_file(first.library, folder_.path() / "ours.so");
  expect_works(folder_.path() / "ours.so");
  EXPECT_EQ(contender_.language, Language::shared_library);
  // A library for a GPU looks like any other: it has to say so.
  folder_.write("contender.json", R"({"library": "ours.so", "language": "cuda"})");
  EXPECT_THROW(read_contender(folder_.path(), task_), InvalidArgument) << "the task has no devices";
  task_.edit().devices = {"cpu", "cuda"};
  EXPECT_EQ(read_contender(folder_.path(), task_).language, Language::cuda);
}

TEST_F(Building, ErrorsComeSoonAndWithoutOurFolders) {
  const std::filesystem::path file = folder_.write(
      "mine.cc",
      "extern \"C\" int scale(long n, float f, const float* x, float* y) { return z; }\n");
  const auto begin = std::chrono::steady_clock::now();
  const BuildResult result = build(file, true);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_FALSE(result.built);
  EXPECT_NE(result.log.find("mine.cc:1:"), std::string::npos) << result.log;
  EXPECT_EQ(result.log.find('/'), std::string::npos) << result.log;
  EXPECT_LT(took.count(), 10.0);
  EXPECT_THROW(Child::start(contender_, result, task_, sandbox_, Limits{}), InvalidArgument);
}

TEST_F(Building, MissingFunctionsAreErrorsOfTheBuild) {
  const BuildResult result = build(folder_.write(
      "mine.cc",
      "int elsewhere(long);\n"
      "extern \"C\" int scale(long n, float, const float*, float*) { return elsewhere(n); }\n"));
  EXPECT_FALSE(result.built);
  EXPECT_NE(result.log.find("elsewhere"), std::string::npos) << result.log;
}

TEST_F(Building, StaticFunctionsAreNamed) {
  folder_.write("mine.cc", "static int scale(long, float, const float*, float*) { return 0; }\n");
  EXPECT_THROW(build(folder_.path() / "mine.cc"), InvalidArgument);
}

TEST_F(Building, CountsFacts) {
  const BuildResult result = build(folder_.write("mine.cc", R"(
    extern "C" int scale(long n, float f, const float* x, float* y) {
      int unused;

      for (int i = 0; i < 3u; ++i) y[i] = f * x[n];
      return 0;
    })"));
  ASSERT_TRUE(result.built) << result.log;
  EXPECT_EQ(result.warnings, 2) << result.log;
  EXPECT_EQ(result.source_lines, 5);
  EXPECT_GT(result.code_bytes, 1000);
  EXPECT_GT(result.seconds, 0.0);
}

TEST_F(Building, SeesOnlyWhatItMay) {
  if (!sandbox_.files) GTEST_SKIP() << "no file system of its own here";
  const BuildResult result = build(
      folder_.write("mine.cc",
                    "#include \"/etc/passwd\"\n"
                    "extern \"C\" int scale(long, float, const float*, float*) { return 0; }\n"));
  EXPECT_FALSE(result.built);
  EXPECT_NE(result.log.find("No such file"), std::string::npos) << result.log;
}

// What a CUDA contender gets, whose driver does not start with a /proc that is read-only.
TEST_F(Building, AnOpenProcShowsNothingOfOthers) {
  if (!sandbox_.files || !sandbox_.namespaces) GTEST_SKIP() << "no file system of its own here";
  JailSpec spec;
  add_system_libraries(spec);
  for (const char* program : {"/bin/sh", "/usr/bin/ls", "/usr/bin/cat"}) {
    spec.binds.push_back({program, program, "ro"});
  }
  spec.open_proc = true;
  spec.forks = "allow";
  spec.environment = {"PATH=/usr/bin:/bin"};
  spec.arguments = {
      "/bin/sh", "-c",
      "echo self $(cat /proc/self/comm); echo named > /proc/self/comm && echo open;"
      "echo files of 1: $(ls /proc/1); "
      "for f in /proc/sys/kernel/core_pattern /proc/sys/vm/drop_caches "
      "/proc/sysrq-trigger; do (echo x >> $f) 2>/dev/null && echo wrote $f; done;"
      "while read a b c d at how rest; do case $at in /proc/sys) echo sys $how;; esac;"
      "done < /proc/self/mountinfo; (cat /proc/kcore || true) 2>/dev/null | cat"};
  const CommandResult result = run_in_jail(spec, sandbox_, 10.0);
  ASSERT_TRUE(result.finished);
  EXPECT_NE(result.output.find("self cat"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("open"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("files of 1:\n"), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find("wrote"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("sys ro"), std::string::npos) << result.output;
}

TEST_F(Building, PythonIsReadBeforeItRuns) {
  if (!find_python()) GTEST_SKIP() << "no Python with NumPy here";
  const BuildResult result =
      build(folder_.write("mine.py", "def scale(n, f, x):\n    return f *\n"));
  EXPECT_FALSE(result.built);
  EXPECT_NE(result.log.find("SyntaxError"), std::string::npos) << result.log;
}

// The short plan of a task, from reading to the last check.
void expect_passes(const Task& task, const std::filesystem::path& path) {
  const Sandbox sandbox = probe_sandbox(true);
  const Contender contender = read_contender(path, task);
  const Folder work;
  const BuildResult build = build_contender(contender, task, work.path(), sandbox, false);
  ASSERT_TRUE(build.built) << build.log;
  EXPECT_EQ(build.warnings, 0) << build.log;
  Limits limits;
  limits.measured = false;
  const std::unique_ptr<Child> child = Child::start(contender, build, task, sandbox, limits);
  ASSERT_EQ(child->started().ending, Ending::ok) << child->started().detail;
  for (const CaseSpec& spec : task.plan(7, true).cases) {
    const Case c = task.build(spec);
    const auto absent = [&](const Call& call) {
      return !contender.binding.functions.contains(call.function);
    };
    if (std::ranges::any_of(c.calls, absent)) continue;
    const CaseCheck check = task.check(c, child->run(c, Placement::end_flush, 5));
    EXPECT_TRUE(check.passed) << format_spec(spec) << ": " << check.reason;
    ASSERT_TRUE(child->alive());
  }
}

TEST(Deploy, AdaptersPass) {
  const Folder folder;
  std::vector<const Task*> all;
  for (const auto& task : tasks()) all.push_back(task.get());
  deploy(folder.path() / "mine", all);
  for (const Task* task : all) {
    SCOPED_TRACE(task->card().id);
    expect_passes(*task, folder.path() / "mine" / task->card().id / "adapter");
  }
}

TEST(Deploy, TemplatesBuildAndRefuse) {
  const Folder folder;
  const Sandbox sandbox = probe_sandbox(true);
  std::vector<const Task*> all;
  for (const auto& task : tasks()) all.push_back(task.get());
  deploy(folder.path() / "my tasks", all);
  for (const Task* task : all) {
    for (const char* kind : {"cpp", "c", "numpy"}) {
      SCOPED_TRACE(task->card().id + "/" + kind);
      if (std::string(kind) == "numpy" && !find_python()) continue;
      const std::filesystem::path path = folder.path() / "my tasks" / task->card().id;
      EXPECT_EQ(read_file(path / "PROMPT.md", 1 << 20), task->card().prompt);
      const Contender contender = read_contender(path / kind, *task);
      const Folder work;
      const BuildResult build = build_contender(contender, *task, work.path(), sandbox, false);
      ASSERT_TRUE(build.built) << build.log;
      EXPECT_EQ(build.warnings, 0) << build.log;
      const std::unique_ptr<Child> child = Child::start(contender, build, *task, sandbox, Limits{});
      ASSERT_EQ(child->started().ending, Ending::ok) << child->started().detail;
      const Case c = task->build(task->plan(7, true).cases.front());
      EXPECT_EQ(child->run(c, Placement::end_flush, 5).front().ending, Ending::refused);
    }
  }
  EXPECT_THROW(deploy(folder.path() / "my tasks", all), InvalidArgument);
}

}  // namespace
}  // namespace touchstone::judge
