// The judge judges its corpus, in the short form; and the rules by which that is called a success
// can themselves fail.
#include "judge/selftest/selftest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "judge/judge.h"
#include "judge/sandbox/read_file.h"
#include "judge/sandbox/work_folder.h"
#include "judge/task/task.h"
#include "judge/task/tasks/registry.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

SelfTestRow row_of(CorpusKind kind, bool as_expected) {
  SelfTestRow row;
  row.entry.kind = kind;
  row.entry.task = "softmax_topk";
  row.as_expected = as_expected;
  return row;
}

TEST(Corpus, HasEnoughOfEverything) {
  std::map<std::string, std::map<CorpusKind, int>> count;
  std::set<std::string> names;
  for (const CorpusEntry& entry : read_corpus(TOUCHSTONE_CORPUS)) {
    ++count[entry.task][entry.kind];
    const std::string id = entry.task + "/" + std::string(name_of(entry.kind)) + "/" + entry.name;
    EXPECT_TRUE(names.insert(id).second) << id << " twice";
    EXPECT_TRUE(std::filesystem::exists(entry.source)) << id;
    EXPECT_EQ(entry.what.empty(), !entry.shared_source && entry.kind == CorpusKind::good) << id;
  }
  for (const auto& task : tasks()) {
    auto& of_task = count[task->card().id];
    EXPECT_GE(of_task[CorpusKind::good], 6) << task->card().id;
    EXPECT_GE(of_task[CorpusKind::mutant], 90) << task->card().id;
    EXPECT_GE(of_task[CorpusKind::partial], 6) << task->card().id;
    EXPECT_GE(of_task[CorpusKind::trivial], 7) << task->card().id;
    EXPECT_GE(of_task[CorpusKind::exploit], 5) << task->card().id;
  }
  EXPECT_GE(count["softmax_topk"][CorpusKind::lookalike], 10);
}

// What cannot be run without a GPU can at least be built, where there is a compiler for it.
TEST(Corpus, CudaContendersCompile) {
  if (!std::filesystem::exists("/usr/local/cuda/bin/nvcc")) GTEST_SKIP() << "no nvcc";
  const Sandbox sandbox = probe_sandbox(true);
  std::set<std::filesystem::path> sources;
  std::map<CorpusKind, int> count;
  for (const CorpusEntry& entry : read_corpus(TOUCHSTONE_CORPUS)) {
    if (!entry.on_cuda()) continue;
    ++count[entry.kind];
    if (!sources.insert(entry.source).second) continue;
    const Task& task = find_task(entry.task);
    Contender contender;
    contender.name = entry.name;
    contender.folder = entry.source.parent_path();
    contender.language = Language::cuda;
    contender.binding.sources = {entry.source.filename()};
    contender.binding.functions["softmax_topk"] =
        entry.shared_source ? "softmax_topk__" + entry.name : "softmax_topk";
    const WorkFolder work;
    const BuildResult built = build_contender(contender, task, work.path(), sandbox, false);
    EXPECT_TRUE(built.built) << entry.source << "\n" << built.log;
    EXPECT_EQ(built.warnings, 0) << entry.source << "\n" << built.log;
  }
  EXPECT_GE(count[CorpusKind::good], 4);
  EXPECT_GE(count[CorpusKind::mutant], 8);
}

TEST(Corpus, RefusesWhatIsNone) { EXPECT_THROW(read_corpus("/nowhere"), Error); }

// An entry that is overlooked is one mutant less that the judge has to catch.
TEST(Corpus, ReadsEntriesOverSeveralLinesAndRefusesWhatItCannotRead) {
  const WorkFolder work;
  const std::filesystem::path copy = work.path() / "corpus";
  std::filesystem::copy(TOUCHSTONE_CORPUS, copy, std::filesystem::copy_options::recursive);
  const std::filesystem::path source = copy / "tree_verify/reach.cc";
  const std::string before = read_file(source, 1 << 20);
  const auto append = [&](const std::string& lines) {
    std::ofstream(source, std::ios::trunc) << before << lines;
  };
  append(
      "  MUTANT(                \\\n      broken_name, \\\n      \"large\", \"one part \"  \\\n"
      "      \"and another\")\n");
  const std::vector<CorpusEntry> entries = read_corpus(copy);
  const auto found = std::ranges::find(entries, "broken_name", &CorpusEntry::name);
  ASSERT_NE(found, entries.end());
  EXPECT_EQ(found->what, "one part and another");
  EXPECT_TRUE(found->flags.contains("large"));
  append("  MUTANT(no_text)\n");
  EXPECT_THROW(read_corpus(copy), CorruptData);
}

TEST(SelfTest, OneMistakeOfAnyKindIsEnough) {
  for (const CorpusKind kind : {CorpusKind::good, CorpusKind::partial, CorpusKind::trivial,
                                CorpusKind::exploit, CorpusKind::lookalike}) {
    SelfTest result;
    for (int i = 0; i < 99; ++i) result.rows.push_back(row_of(kind, true));
    EXPECT_TRUE(result.passed());
    result.rows.push_back(row_of(kind, false));
    EXPECT_FALSE(result.passed()) << name_of(kind);
    result.rows.back().counted = false;  // the layer is missing: said, and not counted
    EXPECT_TRUE(result.passed()) << name_of(kind);
  }
  EXPECT_FALSE(SelfTest().passed()) << "nothing judged is no success";
  SelfTest skipped;
  skipped.rows.push_back(row_of(CorpusKind::good, true));
  skipped.rows.back().counted = false;
  EXPECT_FALSE(skipped.passed()) << "nor is nothing counted";
  EXPECT_NE(format_selftest(skipped).find("NOTHING WAS JUDGED"), std::string::npos);
}

TEST(SelfTest, OneMutantOfAHundredMayEscape) {
  SelfTest result;
  for (int i = 0; i < 99; ++i) result.rows.push_back(row_of(CorpusKind::mutant, true));
  for (int i = 0; i < 1; ++i) result.rows.push_back(row_of(CorpusKind::mutant, false));
  EXPECT_TRUE(result.passed());
  result.rows.push_back(row_of(CorpusKind::mutant, false));
  EXPECT_FALSE(result.passed());
}

// What was done is not done again with the same seed, and is with another.
TEST(SelfTest, GoesOnWhereItWasStopped) {
  const WorkFolder work;
  SelfTestOptions options;
  options.small = true;
  options.seed = 20;
  options.only = "softmax_topk/trivial/zeros,softmax_topk/trivial/o,softmax_topk/trivial/n,!noise";
  options.log = work.path() / "log";
  int judged = 0;
  options.progress = [&](std::string_view) { ++judged; };
  options.jobs = 1;
  const SelfTest first = run_selftest(options);
  EXPECT_EQ(judged, 3);
  EXPECT_EQ(judged, static_cast<int>(first.rows.size()));
  for (const SelfTestRow& row : first.rows) {
    EXPECT_EQ(row.entry.name.find("noise"), std::string::npos);
  }
  // A kill leaves half a line behind.
  std::string text = read_file(options.log, 1 << 20);
  write_file(options.log, text.substr(0, text.size() - 20));
  judged = 0;
  const SelfTest second = run_selftest(options);
  EXPECT_EQ(judged, 1);
  ASSERT_EQ(second.rows.size(), first.rows.size());
  for (std::size_t i = 0; i < first.rows.size(); ++i) {
    EXPECT_EQ(second.rows[i].verdict, first.rows[i].verdict);
    EXPECT_EQ(second.rows[i].as_expected, first.rows[i].as_expected);
    EXPECT_EQ(second.rows[i].because, first.rows[i].because);
  }
  judged = 0;
  options.seed = 21;
  run_selftest(options);
  EXPECT_EQ(judged, static_cast<int>(first.rows.size()));
  write_file(options.log, "something else\n");
  EXPECT_THROW(run_selftest(options), CorruptData);
  options.seed.reset();
  EXPECT_THROW(run_selftest(options), InvalidArgument);
}

TEST(SelfTest, ShortForm) {
  SelfTestOptions options;
  options.small = true;
  options.seed = 20;
  const SelfTest result = run_selftest(options);
  EXPECT_TRUE(result.passed()) << format_selftest(result);
  std::cout << format_selftest(result);
}

}  // namespace
}  // namespace touchstone::judge
