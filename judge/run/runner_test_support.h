// What the tests of the runner share: a library of contenders that behave in every way there is.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "judge/run/runner.h"
#include "judge/run/test_task.h"
#include "judge/sandbox/sandbox.h"

namespace touchstone::judge::test {

// The contract: scale, a pair that hands over a state, and a box behind a handle.
std::vector<Function> all_functions();

std::vector<float> ramp(int64_t n, float start = 1.0F);
std::vector<float> twice(std::vector<float> x);

Call plain_call(const std::string& function, int64_t n);
// Two boxes; one is added to twice and both are read.
Case box_case();
void expect_boxes(const std::vector<Reply>& replies);

// A test picks a behavior by its binding; they are compiled once for all tests.
class Runner : public ::testing::Test {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();

  void SetUp() override { ASSERT_TRUE(build_->built) << build_->log; }

  static std::unique_ptr<Child> start(const std::string& behavior, const Limits& limits = {},
                                      bool sanitized = false) {
    Contender contender = *contender_;
    contender.binding.functions["scale"] = behavior;
    BuildResult build = *build_;
    if (sanitized) build.library = build.sanitized;
    return Child::start(contender, build, *task_, *sandbox_, limits);
  }

  static Reply ask(const std::string& behavior, Placement placement = Placement::end_flush,
                   const Limits& limits = {}, bool sanitized = false) {
    const std::unique_ptr<Child> child = start(behavior, limits, sanitized);
    EXPECT_EQ(child->started().ending, Ending::ok) << child->started().detail;
    return child->call(scale_call(ramp(100), 2.0), placement, 17);
  }

  static Sandbox* sandbox_;
  static TestTask* task_;
  static Folder* source_;
  static Folder* work_;
  static Contender* contender_;
  static BuildResult* build_;
};

}  // namespace touchstone::judge::test
