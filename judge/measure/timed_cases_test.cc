#include "judge/measure/timed_cases.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "judge/task/tasks/registry.h"

namespace touchstone::judge {
namespace {

// Two contenders that are started anew in every period, one that lives for four.
TEST(TimedCases, NoProcessMeetsACaseTwice) {
  const Task& task = find_task("softmax_topk");
  const CaseSpec spec = task.timed(3, true).front();
  TimedCases cases(task);
  std::mt19937_64 random(5);
  std::vector<int> lives = {0, 0, 0};
  std::set<std::pair<std::pair<std::size_t, int>, std::uint64_t>> met;
  std::map<std::uint64_t, int> used;
  for (int period = 0; period < 40; ++period) {
    ++lives[0];
    ++lives[1];
    if (period % 4 == 0) ++lives[2];
    for (int round = 0; round < 5; ++round) {
      std::vector<std::size_t> order = {0, 1};
      if (round % 2 == 0) order.push_back(2);
      const auto chosen = cases.choose(0, spec, order, lives, round == 4, random);
      ++used[chosen->spec().seed];
      for (const std::size_t i : order) {
        EXPECT_TRUE(met.insert({{i, lives[i]}, chosen->spec().seed}).second);
      }
    }
  }
  // New content in every period, and old content for new processes.
  EXPECT_GE(used.size(), 40U);
  EXPECT_LE(used.size(), 100U);
}

TEST(TimedCases, ChecksEveryAnswer) {
  const Task& task = find_task("softmax_topk");
  TimedCases cases(task);
  std::mt19937_64 random(5);
  const std::size_t everybody[] = {0};
  const int lives[] = {0};
  const auto timed = cases.choose(0, task.timed(3, true).front(), everybody, lives, false, random);
  cases.build(*timed);
  std::vector<Reply> right = task.answer_in_bits(timed->asked(), 24);
  std::vector<Reply> wrong = right;
  wrong.at(0).outputs.at(0).at(2) ^= std::byte{0x40};
  for (int time = 0; time < 2; ++time) {
    EXPECT_TRUE(timed->check(std::vector<Reply>(right)).passed);
    EXPECT_FALSE(timed->check(std::vector<Reply>(wrong)).passed);
  }
}

}  // namespace
}  // namespace touchstone::judge
