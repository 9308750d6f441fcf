// A session with contenders that mean it ill: each has its own record, and what it holds is counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "judge/contender/python.h"
#include "judge/judge.h"
#include "judge/measure/measure.h"
#include "judge/report/score.h"
#include "judge/run/test_task.h"
#include "judge/sandbox/read_file.h"
#include "judge/task/tasks/registry.h"

namespace touchstone::judge {
namespace {

namespace fs = std::filesystem;

const Task& task() { return find_task("softmax_topk"); }

// A right contender of the corpus as a folder of its own.
fs::path right_one(const test::Folder& folder, const std::string& name) {
  fs::create_directories(folder.path() / name);
  fs::copy_file(fs::path(TOUCHSTONE_CORPUS) / "softmax_topk/good/heap.c",
                folder.path() / name / "heap.c");
  return folder.path() / name;
}

JudgeOptions quick() {
  JudgeOptions options;
  options.small = true;
  options.seed = 11;
  options.sanitize = false;
  options.speed = false;
  options.shrink = false;
  return options;
}

TEST(Examination, OneContenderNeverEndsTheSession) {
  const test::Folder folder;
  std::vector<Contender> contenders;
  // More than a source may have, beside the source.
  const fs::path large = right_one(folder, "large");
  folder.write("large/table.bin", std::string(5 << 20, 'x'));
  contenders.push_back(read_contender(large, task()));
  // More than is copied; a hole, so that it costs nothing.
  const fs::path huge = right_one(folder, "huge");
  folder.write("huge/contender.json", "{}");
  fs::resize_file(folder.write("huge/table.bin", ""), uintmax_t{600} << 20);
  contenders.push_back(read_contender(huge, task()));
  // Gone when it is looked at.
  const fs::path gone = right_one(folder, "gone");
  contenders.push_back(read_contender(gone, task()));
  fs::remove_all(gone);

  const std::vector<Record> records = judge_all(contenders, task(), quick());
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[0].verdict, Verdict::pass) << records[0].verdict_because;
  EXPECT_EQ(records[1].verdict, Verdict::nobuild) << records[1].verdict_because;
  EXPECT_NE(records[1].build.log.find("larger than"), std::string::npos) << records[1].build.log;
  EXPECT_EQ(records[2].verdict, Verdict::nobuild) << records[2].verdict_because;
}

TEST(Examination, SourcesNamedLikeOptionsAreSources) {
  const test::Folder folder;
  const fs::path path = right_one(folder, "named");
  // As an argument "@run.c" would mean the options in run.c, and those would run a script.
  folder.write("named/@run.c", "extern int nothing;\n");
  folder.write("named/run.c", "-wrapper /bin/sh,run.sh\n");
  folder.write("named/run.sh", "echo \"'.text.forged'\"\nexec \"$@\"\n");
  folder.write("named/-x.c", "extern int nothing_else;\n");
  folder.write("named/contender.json", R"({"sources": ["heap.c", "@run.c", "-x.c"]})");
  const Record record = judge(read_contender(path, task()), task(), quick());
  EXPECT_EQ(record.verdict, Verdict::pass) << record.verdict_because << record.build.log;
  EXPECT_EQ(record.facts.at("dead functions"), "0")
      << (record.facts.contains("never called") ? record.facts.at("never called") : "");
  // What was done beside the cases is stated, whether it came about or not.
  EXPECT_TRUE(record.facts.contains("leaks"));
  EXPECT_TRUE(record.facts.contains("repeated content"));
  EXPECT_TRUE(record.facts.contains("guarded heap"));
}

// Right and quick up to 40000 logits, and never ready beyond them.
constexpr const char* kSlowWhereLarge = R"(
#undef softmax_topk
#include <unistd.h>
int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits, float* p, int32_t* i) {
  while (rows * vocab > 40000) sleep(1);
  return answer(rows, vocab, k, logits, p, i);
}
)";

TEST(Examination, OverTimeGoesOnWithSmallerCases) {
  const test::Folder folder;
  const std::string right =
      read_file(fs::path(TOUCHSTONE_CORPUS) / "softmax_topk/good/heap.c", 1 << 20);
  folder.write("slow.c", "#define softmax_topk answer\n" + right + kSlowWhereLarge);
  JudgeOptions options = quick();
  options.limits.call_seconds = 1.0;
  const Record record = judge(read_contender(folder.path() / "slow.c", task()), task(), options);
  EXPECT_EQ(record.verdict, Verdict::limit) << record.verdict_because;
  const auto hung = std::ranges::find(record.cases, Ending::hung, &CaseRecord::ending);
  ASSERT_NE(hung, record.cases.end());
  int after = 0, not_asked = 0;
  for (auto c = hung + 1; c != record.cases.end(); ++c) {
    const int64_t logits = c->spec.parameters.at("rows") * c->spec.parameters.at("vocab");
    if (logits <= 40000) {
      EXPECT_TRUE(c->check.passed) << format_spec(c->spec) << ": " << c->check.reason;
      ++after;
    } else {
      EXPECT_TRUE(c->ending == Ending::hung || c->ending == Ending::not_reached);
      not_asked += c->ending == Ending::not_reached ? 1 : 0;
    }
  }
  EXPECT_GT(after, 50);
  EXPECT_GT(not_asked, 0);
  EXPECT_EQ(record.cases.size(), task().plan(*options.seed, true).cases.size());
}

// A right contender that calls `fault` where the largest size of the memory ladder is.
Record judged_with_fault_at_the_top(const test::Folder& folder, const std::string& fault) {
  const CaseSpec top = task().plan(*quick().seed, true).memory_ladder.back();
  const std::string right =
      read_file(fs::path(TOUCHSTONE_CORPUS) / "softmax_topk/good/heap.c", 1 << 20);
  folder.write("fault.c", "#define softmax_topk answer\n" + right + R"(
#undef softmax_topk
int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits, float* p, int32_t* i) {
  const int status = answer(rows, vocab, k, logits, p, i);
  if (rows == )" + std::to_string(top.parameters.at("rows")) +
                              " && vocab == " + std::to_string(top.parameters.at("vocab")) + ") " +
                              fault + "\n  return status;\n}\n");
  return judge(read_contender(folder.path() / "fault.c", task()), task(), quick());
}

TEST(Examination, CrashInTheMemoryLadderIsACrash) {
  const test::Folder folder;
  Record record = judged_with_fault_at_the_top(folder, "__builtin_trap();");
  EXPECT_EQ(record.verdict, Verdict::unsafe) << record.verdict_because;
  // Growth over a part of the sizes is not known.
  EXPECT_LT(static_cast<int64_t>(record.memory.ladder.size()), record.memory.sizes);
  EXPECT_FALSE(record.memory.whole());
  record.claims = {{"k1", "O(1) memory", "README.md:1", "memory_growth", 0.0, "", "", ""}};
  apply_scores(record);
  EXPECT_EQ(record.claims[0].state, "not measurable") << record.claims[0].because;
}

TEST(Examination, WrongAnswerInTheMemoryLadderIsWrong) {
  const test::Folder folder;
  const Record record = judged_with_fault_at_the_top(folder, "p[0] += 1;");
  EXPECT_EQ(record.verdict, Verdict::wrong) << record.verdict_because;
  EXPECT_TRUE(record.memory.whole());
}

// What it lacks costs one probe, also where no probe asks about it, and the shapes that need it.
TEST(Examination, LacksCostWhatNeedsThem) {
  const test::Folder folder;
  const std::string right =
      read_file(fs::path(TOUCHSTONE_CORPUS) / "softmax_topk/good/heap.c", 1 << 20);
  const auto lacking = [&](const std::string& refused) {
    folder.write("lacking.c", "#define softmax_topk answer\n" + right + R"(
#undef softmax_topk
int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits, float* p, int32_t* i) {
  return )" + refused + R"( ? 1 : answer(rows, vocab, k, logits, p, i);
})");
    return read_contender(folder.path() / "lacking.c", task());
  };
  const Record rows = judge(lacking("rows > 1"), task(), quick());
  EXPECT_EQ(rows.verdict, Verdict::partial) << rows.verdict_because;
  std::vector<std::string> lost;
  for (const ProbeRecord& p : rows.probes) {
    if (p.tested && !p.passed) lost.push_back(p.probe.id);
  }
  EXPECT_EQ(lost, std::vector<std::string>{"several_rows"});

  // Of three timed shapes one has a k of 32 or less.
  JudgeOptions options = quick();
  options.small = false;
  std::vector<Examination> examined;
  examined.push_back(build_only(lacking("k > 32"), task(), options));
  Record& record = examined[0].record;
  record.verdict = Verdict::partial;
  record.lacks = {{"k_above_32", "k above 32", "k > 32", false, 1, 1}};
  ASSERT_TRUE(can_be_timed(record, task(), options));
  std::vector<Examination> peers;
  measure_speeds(task(), examined, peers, options);
  EXPECT_TRUE(record.cases.empty()) << "a refusal of what it lacks is no wrong answer";
  if (!record.speeds_withheld.empty()) GTEST_SKIP() << record.speeds_withheld;
  ASSERT_EQ(record.speeds.size(), 1U);
  EXPECT_EQ(record.speeds[0].shape.parameters.at("k"), 8);
  EXPECT_NE(record.facts.at("shapes not timed").find("k 50"), std::string::npos);
}

// A refusal where only points are at stake is none of what the card allows to lack.
TEST(Examination, RefusalThatDecidesNothingIsNoLack) {
  const test::Folder folder;
  const std::string right =
      read_file(fs::path(TOUCHSTONE_CORPUS) / "softmax_topk/good/heap.c", 1 << 20);
  folder.write("shifted.c", "#define softmax_topk answer\n" + right + R"(
#undef softmax_topk
int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits, float* p, int32_t* i) {
  const int shifted = rows > 1 && logits[0] * logits[0] > 25e10f && logits[0] * logits[0] < 4e12f;
  return shifted ? 1 : answer(rows, vocab, k, logits, p, i);
})");
  const Record record = judge(read_contender(folder.path() / "shifted.c", task()), task(), quick());
  const bool any_refused = std::ranges::any_of(
      record.cases, [](const CaseRecord& c) { return !c.gates && c.check.refused; });
  EXPECT_TRUE(any_refused);
  EXPECT_TRUE(record.lacks.empty());
  EXPECT_EQ(record.verdict, Verdict::pass) << record.verdict_because;
}

// An adapter that copies all of its input, and a contender that holds nothing to speak of.
TEST(Examination, MemoryOfAnAdapterIsNotTheContenders) {
  const test::Folder folder;
  const std::string right =
      read_file(fs::path(TOUCHSTONE_CORPUS) / "softmax_topk/good/heap.c", 1 << 20);
  folder.write("theirs.c", "#define softmax_topk their_topk\n" + right);
  folder.write("adapter.cc", R"(
#include <cstdint>
#include <vector>
extern "C" int their_topk(int64_t, int64_t, int64_t, const float*, float*, int32_t*);
extern "C" int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits, float* p,
                            int32_t* i) {
  std::vector<float> copy(static_cast<std::size_t>(rows * vocab));
  for (std::size_t at = 0; at < copy.size(); ++at) copy[at] = logits[at];
  return their_topk(rows, vocab, k, copy.data(), p, i);
}
)");
  folder.write("contender.json", R"({"sources": ["theirs.c"], "adapter": "adapter.cc"})");
  const Record record = judge(read_contender(folder.path(), task()), task(), quick());
  ASSERT_EQ(record.verdict, Verdict::pass) << record.verdict_because << record.build.log;
  ASSERT_FALSE(record.memory.ladder.empty());
  for (const MemoryPoint& point : record.memory.ladder) {
    EXPECT_LT(point.extra_bytes, point.io_bytes / 2) << point.n;
  }
}

// The same function, once by itself and once behind an adapter that copies its input.
TEST(Examination, MemoryOfAPythonAdapterIsNotTheContenders) {
  if (!find_python()) GTEST_SKIP() << "no Python with NumPy here";
  const fs::path path = fs::path(TOUCHSTONE_CORPUS) / "softmax_topk/good/numpy_argsort.py";
  const Record alone = judge(read_contender(path, task()), task(), quick());
  const test::Folder folder;
  folder.write("theirs.py", read_file(path, 1 << 20));
  folder.write("adapter.py", R"(
import numpy as np
import theirs


def softmax_topk(rows, vocab, k, logits):
    return theirs.softmax_topk(rows, vocab, k, np.array(logits))
)");
  folder.write("contender.json", R"({"sources": ["theirs.py"], "adapter": "adapter.py"})");
  const Record record = judge(read_contender(folder.path(), task()), task(), quick());
  ASSERT_EQ(record.verdict, Verdict::pass) << record.verdict_because << record.build.log;
  ASSERT_EQ(record.memory.ladder.size(), alone.memory.ladder.size());
  for (std::size_t i = 0; i < record.memory.ladder.size(); ++i) {
    const auto without = static_cast<double>(alone.memory.ladder[i].extra_bytes);
    const auto with = static_cast<double>(record.memory.ladder[i].extra_bytes);
    EXPECT_NEAR(with, without, 0.05 * without + 32768) << i;
  }
}

TEST(Examination, MemoryOfPythonGrowsAsItIsWritten) {
  if (!find_python()) GTEST_SKIP() << "no Python with NumPy here";
  const fs::path path = fs::path(TOUCHSTONE_CORPUS) / "softmax_topk/good/numpy_argsort.py";
  const Record record = judge(read_contender(path, task()), task(), quick());
  ASSERT_EQ(record.verdict, Verdict::pass) << record.verdict_because;
  ASSERT_TRUE(record.memory.exponent.has_value());
  EXPECT_NEAR(*record.memory.exponent, 1.0, 0.05);
  // Four arrays of doubles, or a few more, at every size: nothing that the heap held before is
  // missing.
  for (const MemoryPoint& point : record.memory.ladder) {
    EXPECT_GT(point.extra_bytes, 3 * point.io_bytes);
    EXPECT_LT(point.extra_bytes, 20 * point.io_bytes);
  }
}

}  // namespace
}  // namespace touchstone::judge
