// The verbs judge and duel as a user meets them: what they print, write and return.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "judge/report/record.h"
#include "tests/support/shell.h"

namespace touchstone::inline v0 {
namespace {

namespace fs = std::filesystem;

class JudgeVerb : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              ("judge_verb_" +
               std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  std::string read(const std::string& name) const {
    std::ifstream file(folder_ / name);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  static test::ShellResult touchstone(const std::string& arguments) {
    return test::run_shell(std::string("'") + TOUCHSTONE_PROGRAM + "' " + arguments + " 2>&1");
  }

  // One line that says what is wrong, and nothing that looks like a verdict.
  static void expect_one_line(const test::ShellResult& result, int exit_code,
                              const std::string& what) {
    EXPECT_EQ(result.exit_code, exit_code) << what << "\n" << result.out;
    EXPECT_TRUE(result.out.starts_with("touchstone: ")) << what << "\n" << result.out;
    EXPECT_EQ(std::ranges::count(result.out, '\n'), 1) << what << "\n" << result.out;
    EXPECT_EQ(result.out.find('\x1b'), std::string::npos) << what;
  }

  fs::path folder_;
};

// Sorts nothing: writes the first k.
constexpr const char* kFirstK = R"(#include <stdint.h>
int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits, float* p, int32_t* i) {
  if (k < 1 || k > vocab) return 1;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < k; ++j) { p[r * k + j] = logits[r * vocab + j]; i[r * k + j] = (int32_t)j; }
  }
  return 0;
}
)";

TEST_F(JudgeVerb, List_NamesAllTasks) {
  const test::ShellResult result = touchstone("judge --list");
  EXPECT_EQ(result.exit_code, 0);
  for (const char* task : {"layer_norm_backward", "softmax_topk", "kv_cache"}) {
    EXPECT_NE(result.out.find(task), std::string::npos) << result.out;
  }
}

TEST_F(JudgeVerb, WrongUsage_IsNoVerdict) {
  const std::string file = write("a.c", kFirstK);
  for (const std::string& arguments :
       {std::string("judge /no/such/place --task softmax_topk"), "judge " + file,
        "judge " + file + " --task softmax_topkk",
        "judge " + file + " --task softmax_topk --replay x",
        "duel " + file + " --task softmax_topk", std::string("judge --replay nominal::1"),
        "judge " + file + " --task softmax_topk --seed -1",
        "judge " + file + " --task softmax_topk --seed 1e3",
        "judge " + file + " --task softmax_topk --seed 18446744073709551616",
        "judge " + file + " --from x.json", std::string("judge --list --selftest"),
        std::string("judge --selftest --only no/such/name")}) {
    expect_one_line(touchstone(arguments), 2, arguments);
  }
}

// Wrong paths and files, and the message of each.
TEST_F(JudgeVerb, HostilePaths_AreNoVerdict) {
  const auto judged = [&](const std::string& path) {
    return touchstone("judge '" + (folder_ / path).string() + "' --task softmax_topk --small");
  };
  fs::create_directories(folder_ / "empty");
  expect_one_line(judged("empty"), 2, "empty");
  write("text/readme.txt", "hello");
  expect_one_line(judged("text"), 2, "text");
  fs::create_directories(folder_ / "loop");
  fs::create_symlink("loop", folder_ / "loop/loop");
  expect_one_line(judged("loop"), 2, "loop");
  fs::create_symlink("self.c", folder_ / "self.c");
  expect_one_line(judged("self.c"), 2, "self.c");
  write("junk.so", std::string("\x7f"
                               "ELF and then nothing that makes sense"));
  expect_one_line(judged("junk.so"), 3, "junk.so");
  write("large.c", std::string(std::size_t{5} << 20, ' '));
  expect_one_line(judged("large.c"), 3, "large.c");
  write("new\nline \x1b[31m/a.c", kFirstK);
  expect_one_line(judged("new\nline \x1b[31m"), 3, "control characters");
  write("bytes \xff\xfe/a.c", kFirstK);
  expect_one_line(judged("bytes \xff\xfe"), 3, "not UTF-8");
  write("types/a.c", kFirstK);
  write("types/contender.json", R"({"functions": 7})");
  expect_one_line(judged("types"), 3, "types");
  write("absent/a.c", kFirstK);
  write("absent/contender.json", R"({"sources": ["b.c"]})");
  expect_one_line(judged("absent"), 3, "absent");
  write("typo/a.c", kFirstK);
  write("typo/contender.json", R"({"functions": {"softmax_topq": "softmax_topk"}})");
  expect_one_line(judged("typo"), 3, "typo");
}

// What is wrong with one contender is its own record: the others are judged.
TEST_F(JudgeVerb, UnreadableContenders_AreRecordsOfTheirOwn) {
  write("softmax_topk/first_k/a.c", kFirstK);
  write("softmax_topk/json/contender.json", "{ not json");
  write("softmax_topk/json/a.c", kFirstK);
  write("softmax_topk/large/a.c", std::string(std::size_t{5} << 20, ' '));
  write("softmax_topk/name/contender.json", R"({"name": "a\nb"})");
  write("softmax_topk/name/a.c", kFirstK);
  write("softmax_topk/other/contender.json", R"({"task": "kv_cache"})");
  write("softmax_topk/other/a.c", kFirstK);
  fs::create_directories(folder_ / "softmax_topk/empty");
  const std::string task = (folder_ / "softmax_topk").string();
  std::string each;
  for (const char* name : {"first_k", "json", "large", "name", "other"}) {
    each += task + "/" + name + " ";
  }
  for (const std::string& paths : {task, each}) {
    const test::ShellResult result = touchstone("judge " + paths + " --small --no-speed --json " +
                                                (folder_ / "r.json").string());
    EXPECT_EQ(result.exit_code, 1) << result.out;
    const std::vector<judge::Record> records = judge::records_from_json(read("r.json"));
    ASSERT_EQ(records.size(), 5U) << result.out;
    for (const judge::Record& record : records) {
      const bool readable = record.contender == "first_k";
      EXPECT_EQ(record.verdict, readable ? judge::Verdict::wrong : judge::Verdict::nobuild)
          << record.contender << ": " << record.verdict_because;
      EXPECT_EQ(record.verdict_because.starts_with("could not be read: "), !readable)
          << record.verdict_because;
    }
  }
}

// An output that cannot be written is known before the work, and an existing file stays whole.
TEST_F(JudgeVerb, Reports_AreWrittenWholeOrNotAtAll) {
  const std::string file = write("first_k.c", kFirstK);
  const std::string judged = "judge " + file + " --task softmax_topk --small --no-speed ";
  expect_one_line(touchstone(judged + "--json /no/such/place/r.json"), 3, "no such folder");
  expect_one_line(touchstone(judged + "--html " + folder_.string()), 3, "a folder");
  write("r.html", "before");
  const std::string both = "--html " + (folder_ / "r.html").string() + " --json /no/such/r.json";
  expect_one_line(touchstone(judged + both), 3, "one of two");
  EXPECT_EQ(read("r.html"), "before");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2)
      << "nothing else is left behind";
}

TEST_F(JudgeVerb, BadRecords_AreNoVerdict) {
  const std::string json = write("a.json", "{\"schema\": 7}");
  EXPECT_EQ(touchstone("judge --from " + json).exit_code, 3);
  EXPECT_EQ(touchstone("judge --from " + json + ".not").exit_code, 3);
  write("c/contender.json", "{ not json");
  write("c/a.c", kFirstK);
  const test::ShellResult result =
      touchstone("judge " + (folder_ / "c").string() + " --task softmax_topk");
  EXPECT_EQ(result.exit_code, 3) << result.out;
}

TEST_F(JudgeVerb, FailedBuild_IsReportedAtOnce) {
  const std::string file = write("broken.c", std::string(kFirstK) + "int x = ;\n");
  const test::ShellResult result = touchstone("judge " + file + " --task softmax_topk --small");
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_NE(result.out.find("NOBUILD"), std::string::npos) << result.out;
}

TEST_F(JudgeVerb, WrongContender_IsShrunkReplayedAndReported) {
  const std::string file = write("first_k.c", kFirstK);
  const std::string json = (folder_ / "r.json").string();
  const std::string html = (folder_ / "r.html").string();
  const test::ShellResult result =
      touchstone("judge " + file + " --task softmax_topk --small --no-speed --json " + json +
                 " --html " + html);
  EXPECT_EQ(result.exit_code, 1) << result.out;
  const std::vector<judge::Record> records = judge::records_from_json(read("r.json"));
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].verdict, judge::Verdict::wrong);
  ASSERT_FALSE(records[0].witnesses.empty());
  EXPECT_EQ(records[0].seed_commitment.size(), 64U);
  EXPECT_NE(result.out.find(records[0].seed_commitment), std::string::npos);
  EXPECT_NE(read("r.html").find("WRONG"), std::string::npos);

  // The printed command shows the failure again.
  const std::string replay = records[0].witnesses[0].replay;
  ASSERT_TRUE(replay.starts_with("touchstone ")) << replay;
  const test::ShellResult again = touchstone(replay.substr(11));
  EXPECT_EQ(again.exit_code, 1) << replay << "\n" << again.out;
  EXPECT_NE(again.out.find("wrong"), std::string::npos) << again.out;

  // And the file is scored the same.
  const test::ShellResult rescored = touchstone("judge --from " + json);
  EXPECT_EQ(rescored.exit_code, 1);
  EXPECT_NE(rescored.out.find("WRONG"), std::string::npos);
}

// Python is hidden, so the NumPy contender cannot be judged; that is no reason not to judge others.
TEST_F(JudgeVerb, MissingHardware_IsUntestedAndTheRestIsJudged) {
  const std::string bundled = std::string(TOUCHSTONE_SOURCE) + "/contenders/softmax_topk/";
  const std::string hidden = std::string("TOUCHSTONE_PYTHON=/no/such/python '") +
                             TOUCHSTONE_PROGRAM + "' judge --small --no-speed ";
  const std::string json = (folder_ / "r.json").string();
  const std::string html = (folder_ / "r.html").string();
  test::ShellResult result = test::run_shell(hidden + bundled + "numpy " + bundled +
                                             "naive --json " + json + " --html " + html + " 2>&1");
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_NE(result.out.find("UNTESTED no Python with NumPy here"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("PASS"), std::string::npos) << result.out;
  const std::vector<judge::Record> records = judge::records_from_json(read("r.json"));
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].verdict, judge::Verdict::untested);
  EXPECT_FALSE(records[0].untested.empty());
  EXPECT_EQ(records[1].verdict, judge::Verdict::pass);
  EXPECT_NE(read("r.html").find("UNTESTED"), std::string::npos);
  EXPECT_NE(read("r.html").find("1 could not be judged here"), std::string::npos);

  // Nothing could be judged at all.
  result = test::run_shell(hidden + bundled + "numpy 2>&1");
  EXPECT_EQ(result.exit_code, 3) << result.out;
  EXPECT_NE(result.out.find("UNTESTED"), std::string::npos) << result.out;
}

TEST_F(JudgeVerb, CudaContenderWithoutGpu_IsUntested) {
  if (fs::exists("/dev/nvidia0")) GTEST_SKIP() << "there is a GPU";
  const std::string file = write("kernel.cu", R"(
#include <cstdint>
extern "C" int softmax_topk(int64_t, int64_t, int64_t, const float*, float*, int32_t*, void*) {
  return 0;
}
)");
  const std::string naive = std::string(TOUCHSTONE_SOURCE) + "/contenders/softmax_topk/naive";
  const test::ShellResult result =
      touchstone("judge " + file + " " + naive + " --task softmax_topk --small --no-speed");
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_NE(result.out.find("kernel UNTESTED no "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("naive PASS"), std::string::npos) << result.out;
}

TEST_F(JudgeVerb, DeviceFlag_SelectsContenders) {
  const std::string naive = std::string(TOUCHSTONE_SOURCE) + "/contenders/softmax_topk/naive";
  test::ShellResult result = touchstone("judge " + naive + " --device tpu");
  EXPECT_EQ(result.exit_code, 2) << result.out;
  EXPECT_NE(result.out.find("expected cpu or cuda, got 'tpu'"), std::string::npos) << result.out;
  result = touchstone("judge " + naive + " --device cuda");
  EXPECT_EQ(result.exit_code, 2) << result.out;
  EXPECT_NE(result.out.find("runs on cpu, not on cuda"), std::string::npos) << result.out;
  // A folder of contenders is searched for what fits.
  write("softmax_topk/kernel/kernel.cu", R"(
#include <cstdint>
extern "C" int softmax_topk(int64_t, int64_t, int64_t, const float*, float*, int32_t*, void*) {
  return 0;
}
)");
  result = touchstone("judge " + (folder_ / "softmax_topk").string() + " --device cpu");
  EXPECT_EQ(result.exit_code, 2) << result.out;
  EXPECT_NE(result.out.find("no contender for cpu in this folder"), std::string::npos)
      << result.out;
}

TEST_F(JudgeVerb, SameContenderTwice_HasTheSameVerdict) {
  const std::string naive = std::string(TOUCHSTONE_SOURCE) + "/contenders/softmax_topk/naive";
  for (int i = 0; i < 2; ++i) {
    const test::ShellResult result = touchstone("judge " + naive + " --small --no-speed");
    EXPECT_EQ(result.exit_code, 0) << result.out;
    EXPECT_NE(result.out.find("PASS"), std::string::npos) << result.out;
  }
}

// Operators in the docstring are no code: a mutant there would be noticed by no test.
constexpr const char* kPythonTopK = R"py("""a + b - c * d / e < f > g"""
import os
import numpy as np


def never_called(a):
    return a + 1


def softmax_topk(rows, vocab, k, logits):
    if k < 1 or k > vocab:
        raise ValueError("k")
    x = logits.astype(np.float64)
    top = x.max(axis=1, keepdims=True) if rows > 0 else x
    safe = np.where(np.isneginf(top), 0.0, top)
    e = np.exp(x - safe)
    s = e.sum(axis=1, keepdims=True)
    p = np.where(s > 0, e / np.where(s > 0, s, 1.0), 0.0)
    p = np.where(np.isnan(x).any(axis=1, keepdims=True), np.nan, p)
    order = np.argsort(-x, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(p, order, axis=1).astype(np.float32), order.astype(np.int32)
)py";

// They would notice every broken copy, whatever it computes.
TEST_F(JudgeVerb, TestsThatReadTheSource_CountForNothing) {
  write("softmax_topk/mine/softmax_topk.py", kPythonTopK);
  write("softmax_topk/mine/test_softmax_topk.py",
        fmt::format("def test_text():\n    assert len(open('softmax_topk.py').read()) == {}\n",
                    std::string_view(kPythonTopK).size()));
  const std::string json = (folder_ / "r.json").string();
  const test::ShellResult result = touchstone("judge " + (folder_ / "softmax_topk/mine").string() +
                                              " --small --no-speed --json " + json);
  const std::vector<judge::Record> records = judge::records_from_json(read("r.json"));
  ASSERT_EQ(records.size(), 1U) << result.out;
  if (records[0].verdict == judge::Verdict::untested) GTEST_SKIP() << records[0].untested;
  EXPECT_EQ(records[0].own_tests.mutants, 0);
  EXPECT_EQ(records[0].own_tests.killed, 0);
  EXPECT_NE(records[0].own_tests.detail.find("one more comment"), std::string::npos)
      << records[0].own_tests.detail;
}

// Whoever finds what the last build left can count the builds, and notice all broken copies by that.
TEST_F(JudgeVerb, TestsThatCountTheirBuilds_NoticeNothing) {
  write("softmax_topk/mine/softmax_topk.cc", R"cc(
#include <cmath>
#include <cstdint>
#include <vector>
    extern "C" int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* x, float* p,
                                int32_t* index) {
      if (k < 1 || k > vocab) return 1;
      for (int64_t r = 0; r < rows; ++r, x += vocab, p += k, index += k) {
        double top = -INFINITY, sum = 0;
        bool nan = false;
        for (int64_t c = 0; c < vocab; ++c) {
          nan = nan || std::isnan(x[c]);
          if (x[c] > top) top = x[c];
        }
        for (int64_t c = 0; c < vocab; ++c) sum += std::exp(x[c] - top);
        std::vector<bool> taken(vocab);
        for (int64_t j = 0; j < k; ++j) {
          int64_t best = -1;
          for (int64_t c = 0; c < vocab; ++c) {
            if (!taken[c] && (best < 0 || (!nan && x[c] > x[best]))) best = c;
          }
          taken[best] = true;
          index[j] = (int32_t)best;
          p[j] = nan ? NAN : std::isinf(top) ? 0.0f : (float)(std::exp(x[best] - top) / sum);
        }
      }
      return 0;
    }
  )cc");
  write("softmax_topk/mine/test_softmax_topk.cc", R"cc(
#if __has_include("/judge/own_tests")
    asm(".section .rodata\n.global begin\nbegin: .incbin \"/judge/own_tests\"\n"
        ".global end\nend:\n.byte 0\n.text");
    extern "C" const char begin[], end[];
    int main() { return end - begin > 26000 ? 1 : 0; }
#else
    int main() { return 0; }
#endif
  )cc");
  const std::string json = (folder_ / "r.json").string();
  const test::ShellResult result = touchstone("judge " + (folder_ / "softmax_topk/mine").string() +
                                              " --small --no-speed --json " + json);
  const std::vector<judge::Record> records = judge::records_from_json(read("r.json"));
  ASSERT_EQ(records.size(), 1U) << result.out;
  EXPECT_EQ(records[0].verdict, judge::Verdict::pass) << records[0].verdict_because;
  EXPECT_GT(records[0].own_tests.mutants, 0) << records[0].own_tests.detail;
  EXPECT_EQ(records[0].own_tests.killed, 0);
}

TEST_F(JudgeVerb, WhatLiesBesideTheCode_IsCheckedAndListed) {
  write("softmax_topk/mine/softmax_topk.py", kPythonTopK);
  write("softmax_topk/mine/test_softmax_topk.py", R"py(import numpy as np
from softmax_topk import softmax_topk


def test_order():
    p, i = softmax_topk(1, 3, 2, np.array([[1, 3, 2]], np.float32))
    assert list(i[0]) == [1, 2]
    assert np.allclose(p[0], np.exp([3, 2]) / np.exp([1, 2, 3]).sum())
    for k in (1, 3):
        softmax_topk(1, 3, k, np.array([[1, 3, 2]], np.float32))
)py");
  write("softmax_topk/mine/README.md",
        "Reads the logits once. It is not compute-bound.\n\nO(1) memory, 1 KiB of scratch.\n");
  write("softmax_topk/mine/contender.json",
        R"({"author": "A. Person", "claims": ["the same bits", "tastes well"]})");
  const std::string json = (folder_ / "r.json").string();
  const std::string md = (folder_ / "r.md").string();
  const test::ShellResult result = touchstone("judge " + (folder_ / "softmax_topk/mine").string() +
                                              " --small --no-speed --json " + json + " --md " + md);
  const std::vector<judge::Record> records = judge::records_from_json(read("r.json"));
  ASSERT_EQ(records.size(), 1U) << result.out;
  const judge::Record& record = records[0];
  if (record.verdict == judge::Verdict::untested) GTEST_SKIP() << record.untested;
  EXPECT_EQ(record.verdict, judge::Verdict::pass) << result.out;
  EXPECT_EQ(record.facts.at("functions"), "2");
  EXPECT_EQ(record.facts.at("never called"), "never_called");
  EXPECT_EQ(record.facts.at("unused imports"), "os");
  EXPECT_EQ(record.own_tests.tests, 1) << record.own_tests.detail;
  EXPECT_EQ(record.own_tests.asserts, 2);
  EXPECT_EQ(record.own_tests.mutants, 8) << "the operators of the code";
  EXPECT_EQ(record.own_tests.killed, 3) << "k < 1, k > vocab, e / s";
  EXPECT_EQ(record.traffic.not_measured, "");
  ASSERT_EQ(record.traffic.inputs.size(), 1U);
  EXPECT_NEAR(record.traffic.inputs[0].per_page(), 1.0, 0.1) << "one conversion to float64";
  const auto state = [&](const std::string& measure) {
    const auto found = std::ranges::find(record.claims, measure, &judge::ClaimRecord::measure);
    return found == record.claims.end() ? "absent" : found->state;
  };
  EXPECT_EQ(state("same_bits"), "held");
  EXPECT_EQ(state("reads"), "held");
  EXPECT_EQ(state("memory_bytes"), "broken");
  EXPECT_EQ(state("compute_bound"), "absent") << "a negation claims nothing";
  EXPECT_EQ(state(""), "not measurable");
  const std::string report = read("r.md");
  for (const char* part : {"A. Person", "tastes well", "README.md:3", "### A. Person"}) {
    EXPECT_NE(report.find(part), std::string::npos) << part;
  }
}

// Tests in folders count, however many files there are; what cannot be counted breaks no claim.
TEST_F(JudgeVerb, OwnTestsInFolders_AreCounted) {
  write("softmax_topk/first_k/a.c", kFirstK);
  write("softmax_topk/first_k/contender.json", R"({"claims": ["6 tests"]})");
  for (int i = 0; i < 6; ++i) {
    write("softmax_topk/first_k/tests/unit/test_" + std::to_string(i) + ".c",
          "#include <assert.h>\nint main(void) { assert(1 + 1 == 2); return 0; }\n");
  }
  write("softmax_topk/shell/a.c", kFirstK);
  write("softmax_topk/shell/contender.json", R"({"claims": ["6 tests"]})");
  write("softmax_topk/shell/tests/all.py", "assert True\n");
  write("softmax_topk/none/a.c", kFirstK);
  write("softmax_topk/none/contender.json", R"({"claims": ["6 tests"]})");
  const test::ShellResult result =
      touchstone("judge " + (folder_ / "softmax_topk").string() + " --small --no-speed --json " +
                 (folder_ / "r.json").string());
  const std::vector<judge::Record> records = judge::records_from_json(read("r.json"));
  ASSERT_EQ(records.size(), 3U) << result.out;
  for (const judge::Record& record : records) {
    ASSERT_EQ(record.claims.size(), 1U) << record.contender;
    EXPECT_EQ(record.claims[0].state, record.contender == "first_k" ? "held"
                                      : record.contender == "none"  ? "broken"
                                                                    : "not measurable")
        << record.contender << ": " << record.claims[0].because;
  }
}

TEST_F(JudgeVerb, SeveralSeeds_AreMerged) {
  const std::string file = write("first_k.c", kFirstK);
  const std::string json = (folder_ / "r.json").string();
  const test::ShellResult result =
      touchstone("judge " + file +
                 " --task softmax_topk --small --no-speed --seed 5 --seeds 2 --json " + json);
  EXPECT_EQ(result.exit_code, 1) << result.out;
  const std::vector<judge::Record> records = judge::records_from_json(read("r.json"));
  ASSERT_EQ(records.size(), 1U);
  ASSERT_EQ(records[0].seeds.size(), 2U);
  EXPECT_EQ(records[0].seeds[0].seed, 5U);
  EXPECT_EQ(records[0].seeds[1].seed, 6U);
  expect_one_line(touchstone("judge " + file + " --task softmax_topk --seeds 0"), 2, "no seeds");
}

TEST_F(JudgeVerb, Duel_NamesWhoPasses) {
  const std::string file = write("first_k.c", kFirstK);
  const std::string naive = std::string(TOUCHSTONE_SOURCE) + "/contenders/softmax_topk/naive";
  const test::ShellResult result =
      touchstone("duel " + naive + " " + file + " --task softmax_topk --small");
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_NE(result.out.find("naive passes, first_k does not"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace touchstone::inline v0
