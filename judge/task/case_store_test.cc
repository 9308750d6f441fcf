#include "judge/task/case_store.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "judge/task/tasks/registry.h"

namespace touchstone::judge {
namespace {

// Zeros for every output: wrong in every case, and checked all the same.
std::vector<Reply> zeros(const Case& c) {
  std::vector<Reply> replies;
  for (const Call& call : c.calls) {
    Reply reply;
    reply.ending = Ending::ok;
    for (const OutputTensor& output : call.outputs) {
      std::int64_t count = size_of(output.dtype);
      for (const std::int64_t extent : output.shape) count *= extent;
      reply.outputs.emplace_back(static_cast<std::size_t>(count));
    }
    replies.push_back(std::move(reply));
  }
  return replies;
}

TEST(CaseStore, SaysWhatTheTaskSays) {
  for (const auto& task : tasks()) {
    CaseStore store(*task);
    const Plan plan = task->plan(7, true);
    store.expect(plan.cases);
    for (std::size_t i = 0; i < plan.cases.size(); i += 5) {
      const auto stored = store.get(plan.cases[i]);
      const Case asked = task->build(plan.cases[i]);
      ASSERT_EQ(stored->asked().calls.size(), asked.calls.size());
      for (int time = 0; time < 2; ++time) {
        const CaseCheck known = stored->check(zeros(asked));
        const CaseCheck fresh = task->check(asked, zeros(asked));
        EXPECT_EQ(known.passed, fresh.passed);
        EXPECT_EQ(known.reason, fresh.reason);
      }
    }
  }
}

TEST(CaseStore, KeepsACaseWhileThereIsRoom) {
  const Task& task = find_task("softmax_topk");
  const Plan plan = task.plan(7, true);
  CaseStore store(task);
  EXPECT_EQ(store.get(plan.cases[0]), store.get(plan.cases[0]));
  CaseStore full(task, 1);  // the first one fills it
  EXPECT_EQ(full.get(plan.cases[0]), full.get(plan.cases[0]));
  EXPECT_NE(full.get(plan.cases[1]), full.get(plan.cases[1]));
  EXPECT_EQ(full.get(plan.cases[0]), full.get(plan.cases[0]));
}

TEST(CaseStore, ServesManyThreads) {
  const Task& task = find_task("layer_norm_backward");
  const Plan plan = task.plan(7, true);
  CaseStore store(task);
  store.expect(plan.cases);
  std::vector<std::string> reasons[3];
  {
    std::vector<std::jthread> threads;
    for (auto& mine : reasons) {
      threads.emplace_back([&] {
        for (const CaseSpec& spec : plan.cases) {
          const auto stored = store.get(spec);
          mine.push_back(stored->check(zeros(stored->asked())).reason);
        }
      });
    }
  }
  EXPECT_EQ(reasons[0].size(), plan.cases.size());
  EXPECT_EQ(reasons[0], reasons[1]);
  EXPECT_EQ(reasons[0], reasons[2]);
}

}  // namespace
}  // namespace touchstone::judge
