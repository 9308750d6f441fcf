// What surrounds a call: where its arrays lie, what is timed, what is counted and kept.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "judge/run/runner_test_support.h"

namespace touchstone::judge {
namespace {

using test::box_case;
using test::bytes_of_floats;
using test::expect_boxes;
using test::floats_of;
using test::plain_call;
using test::ramp;
using test::Runner;
using test::scale_call;
using test::twice;

TEST_F(Runner, WhatIsNotWrittenIsPoison) {
  const std::unique_ptr<Child> child = start("scale_partial");
  std::vector<std::vector<std::byte>> answers;  // poison may be NaN: bytes are compared
  for (const uint64_t poison : {1, 2, 1}) {
    Case c;
    c.calls = {scale_call(ramp(100), 2.0)};
    answers.push_back(child->run(c, Placement::end_flush, poison).at(0).outputs.at(0));
  }
  EXPECT_EQ(memcmp(answers[0].data(), answers[1].data(), 200), 0);
  EXPECT_NE(memcmp(answers[0].data() + 200, answers[1].data() + 200, 200), 0);
  EXPECT_EQ(memcmp(answers[0].data() + 200, answers[2].data() + 200, 200), 0);
}

TEST_F(Runner, AddressesAreNewUnlessRepeated) {
  const std::unique_ptr<Child> child = start("scale_where");
  Case c;
  c.calls = {scale_call(ramp(100), 2.0), scale_call(ramp(100), 2.0)};
  const auto where = [&](Placement placement) {
    std::vector<uint64_t> addresses;
    for (const Reply& reply : child->run(c, placement, 17)) {
      uint64_t address = 0;
      memcpy(&address, reply.outputs.at(0).data(), sizeof address);
      addresses.push_back(address);
    }
    return addresses;
  };
  const std::vector<uint64_t> first = where(Placement::end_flush);
  const std::vector<uint64_t> second = where(Placement::end_flush);
  const std::vector<uint64_t> third = where(Placement::repeat);
  EXPECT_NE(first[0], first[1]);
  EXPECT_NE(first[0], second[0]);
  EXPECT_EQ(second, third);
  EXPECT_EQ(first[0] % 4096, 4096 - 400);
}

TEST_F(Runner, RepeatShowsAnswersKeptByPointer) {
  const std::unique_ptr<Child> child = start("scale_by_pointer");
  Case c;
  c.calls = {scale_call(ramp(100), 2.0)};
  child->run(c, Placement::end_flush, 17);
  c.calls = {scale_call(ramp(100, 50.0F), 2.0)};
  Reply reply = child->run(c, Placement::repeat, 18).at(0);
  ASSERT_EQ(reply.ending, Ending::ok);
  EXPECT_EQ(floats_of(reply.outputs.at(0)), twice(ramp(100)));  // the old answer: caught
  reply = child->run(c, Placement::end_flush, 19).at(0);
  EXPECT_EQ(floats_of(reply.outputs.at(0)), twice(ramp(100, 50.0F)));
}

TEST_F(Runner, ArraysEndWithTheirCall) {
  for (const bool measured : {true, false}) {
    Limits limits;
    limits.measured = measured;
    const std::unique_ptr<Child> child = start("scale_keeps", limits);
    Case c;
    c.calls = {scale_call(ramp(100), 2.0), scale_call(ramp(100), 2.0)};
    const std::vector<Reply> replies = child->run(c, Placement::end_flush, 17);
    EXPECT_EQ(replies.at(0).ending, Ending::ok);
    EXPECT_EQ(replies.at(1).ending, Ending::wrote_outside);
    EXPECT_EQ(replies.at(1).detail, "touched an array of an earlier call, which was gone by then");
  }
}

TEST_F(Runner, DoneTooEarlyIsNotDone) {
  const Reply reply = ask("scale_later");
  ASSERT_EQ(reply.ending, Ending::ok);
  // Where the judge itself did not get a processor, the work came in time; and the clock ran on.
  if (floats_of(reply.outputs.at(0)) == twice(ramp(100))) {
    EXPECT_GT(reply.seconds, 2e-3);
  }
}

TEST_F(Runner, WorkBehindTheBellIsCharged) {
  const std::vector<float> x = ramp(4 << 20);
  double honest = 1e9;
  const std::unique_ptr<Child> good = start("scale_good");
  for (int i = 0; i < 3; ++i) {
    Case c;
    c.calls = {scale_call(x, 2.0)};
    honest = std::min(honest, good->run(c, Placement::start_flush, 17).at(0).seconds);
  }
  const std::unique_ptr<Child> early = start("scale_early");
  for (int i = 0; i < 3; ++i) {
    const Reply reply = early->call(scale_call(x, 2.0), Placement::start_flush, 17);
    // Still at work when the arrays of the call before are taken away: caught, too.
    if (reply.ending == Ending::wrote_outside) break;
    ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
    // A right answer may not have cost less than the work; a wrong one is found by its content.
    if (floats_of(reply.outputs.at(0)) == twice(x)) {
      EXPECT_GT(reply.seconds, 0.5 * honest);
    }
  }
}

// A handler runs when a call is over, when the next one is prepared, or half in one and half in the
// other: over all calls, all of its processor time is charged.
TEST_F(Runner, WorkInSignalHandlersIsCharged) {
  const std::unique_ptr<Child> child = start("scale_alarm");
  double charged = 0, first = 0, last = 0;
  constexpr int kCalls = 20;
  for (int i = 0; i < kCalls; ++i) {
    const Reply reply = child->call(scale_call(ramp(100), 2.0), Placement::start_flush, 17);
    ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
    last = static_cast<double>(floats_of(reply.outputs.at(0)).at(0));
    if (i == 0) first = last;
    if (i > 0) charged += reply.seconds;
  }
  EXPECT_GT(last - first, 0.002 * kCalls);
  EXPECT_GT(charged, 0.8 * (last - first) - 0.004) << last - first;
}

// Without the filter, so that it can have itself continued: what it works while it should stand still is
// charged all the same.
TEST_F(Runner, WorkWhileStoppedIsCharged) {
  Contender contender = *contender_;
  contender.binding.functions["scale"] = "scale_continues";
  const std::unique_ptr<Child> child =
      Child::start(contender, *build_, *task_, probe_sandbox(false), {});
  double charged = 0, first = 0, last = 0;
  constexpr int kCalls = 20;
  for (int i = 0; i < kCalls; ++i) {
    const Reply reply = child->call(scale_call(ramp(100), 2.0), Placement::start_flush, 17);
    ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
    ASSERT_EQ(floats_of(reply.outputs.at(0)).at(1), 1.0F);
    last = static_cast<double>(floats_of(reply.outputs.at(0)).at(0));
    if (i == 0) first = last;
    if (i > 0) charged += reply.seconds;
    std::this_thread::sleep_for(std::chrono::milliseconds(8));
  }
  EXPECT_GT(last - first, 0.006 * kCalls);  // once when the judge continues it, once by its timer
  EXPECT_GT(charged, 0.8 * (last - first) - 0.004) << last - first;
}

TEST_F(Runner, NothingContinuesItself) {
  if (!sandbox_->seccomp) GTEST_SKIP() << "no system call filter here";
  const Reply reply = ask("scale_continues");
  ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
  EXPECT_EQ(floats_of(reply.outputs.at(0)).at(1), 0.0F);
}

TEST_F(Runner, ItsOwnThreadsAreNoExcuse) {
  cpu_set_t mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
  int cpu = 0;
  while (!CPU_ISSET(static_cast<std::size_t>(cpu), &mine)) ++cpu;
  Limits limits;
  limits.cpus = {cpu};
  limits.call_seconds = 0.4;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(ask("scale_crowds", Placement::end_flush, limits).ending, Ending::hung);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), 4.0);  // 20 times the limit are 8 s
}

TEST_F(Runner, AllStatesTogetherAreLimited) {
  Limits limits;
  limits.memory_bytes = int64_t{64} << 20;
  const std::unique_ptr<Child> child = start("scale_good", limits);
  constexpr int64_t kCount = 10 << 20;
  Call forward = plain_call("pair_forward", kCount);
  forward.inputs = {{"x", DType::f32, {kCount}, bytes_of_floats(ramp(kCount))}};
  forward.outputs = {{"y", DType::f32, {kCount}}};
  EXPECT_EQ(child->call(forward, Placement::end_flush, 17).ending, Ending::ok);
  forward.state = 1;
  EXPECT_EQ(child->call(forward, Placement::end_flush, 17).ending, Ending::out_of_memory);
}

TEST_F(Runner, NothingIsHeldBehindTheEndOfTheFirstThread) {
  for (const bool measured : {true, false}) {
    Limits limits;
    limits.measured = measured;
    const Reply reply = ask("scale_changes_thread", Placement::end_flush, limits);
    EXPECT_EQ(reply.ending, Ending::forbidden) << reply.detail;
    EXPECT_NE(reply.detail.find("first thread"), std::string::npos) << reply.detail;
  }
}

TEST_F(Runner, FilesAreMemoryIfNothingIsInThem) {
  if (!sandbox_->files) GTEST_SKIP() << "no file system of its own here";
  const std::unique_ptr<Child> child = start("scale_names_files");
  const Reply reply = child->call(scale_call(ramp(100), 2.0), Placement::end_flush, 17);
  ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
  EXPECT_GE(reply.peak_extra_bytes, 3000 * 200);
  EXPECT_GE(child->held_bytes(), 3000 * 200);
}

TEST_F(Runner, FewSignalsWait) {
  if (!sandbox_->limits) GTEST_SKIP() << "no limits here";
  const Reply reply = ask("scale_queues_signals");
  ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
  EXPECT_LE(floats_of(reply.outputs.at(0)).at(0), 64.0F);
}

TEST_F(Runner, EndsBeforeTheJudgeWhereMemoryIsShort) {
  const Reply reply = ask("scale_tells_oom");
  ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
  EXPECT_EQ(floats_of(reply.outputs.at(0)).at(0), 1000.0F);
}

TEST_F(Runner, PagesOfFilesHideNoWorkspace) {
  const std::unique_ptr<Child> child = start("scale_swaps");
  for (int i = 0; i < 3; ++i) {
    const Reply reply = child->call(scale_call(ramp(100), 2.0), Placement::end_flush, 17);
    ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
    EXPECT_GT(reply.peak_extra_bytes, int64_t{24} << 20);
  }
}

TEST_F(Runner, UnmeasuredCallsAnswerTheSame) {
  Limits limits;
  limits.measured = false;
  const std::unique_ptr<Child> child = start("scale_good", limits);
  for (const int64_t n : {0, 1, 1025}) {
    const Reply reply = child->call(scale_call(ramp(n), 2.0), Placement::end_flush, 17);
    ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
    EXPECT_EQ(floats_of(reply.outputs.at(0)), twice(ramp(n)));
  }
  expect_boxes(child->run(box_case(), Placement::end_flush, 17));
  EXPECT_EQ(ask("scale_behind", Placement::end_flush, limits).ending, Ending::wrote_outside);
  EXPECT_EQ(ask("scale_in_place", Placement::end_flush, limits).ending, Ending::wrote_input);
}

TEST_F(Runner, CountsMemory) {
  const Reply lean = ask("scale_good");
  const Reply fat = ask("scale_workspace");
  EXPECT_LT(lean.peak_extra_bytes, int64_t{2} << 20);
  EXPECT_NEAR(static_cast<double>(fat.peak_extra_bytes), 32 << 20, 2 << 20);
  for (const char* behavior : {"scale_leaks", "scale_shares"}) {
    const std::unique_ptr<Child> child = start(behavior);
    Case c;
    c.calls = {scale_call(ramp(10), 2.0)};
    for (int i = 0; i < 16; ++i) child->run(c, Placement::end_flush, 17);
    EXPECT_NEAR(static_cast<double>(child->held_bytes()), 16 << 20, 3 << 20) << behavior;
  }
}

TEST_F(Runner, StatesTravelBetweenCalls) {
  const std::unique_ptr<Child> child = start("scale_good");
  Case c;
  Call forward = plain_call("pair_forward", 7);
  forward.inputs = {{"x", DType::f32, {7}, bytes_of_floats(ramp(7))}};
  forward.outputs = {{"y", DType::f32, {7}}};
  Call backward = plain_call("pair_backward", 7);
  backward.outputs = {{"dx", DType::f32, {7}}};
  c.calls = {forward, backward};
  const std::vector<Reply> replies = child->run(c, Placement::end_flush, 17);
  ASSERT_EQ(replies.at(1).ending, Ending::ok) << replies[0].detail << replies[1].detail;
  EXPECT_EQ(replies.at(0).state_bytes, 28);
  EXPECT_EQ(floats_of(replies.at(1).outputs.at(0)), ramp(7));
}

TEST_F(Runner, StatesHaveTheirSize) {
  Contender contender = *contender_;
  contender.binding.functions["pair_forward"] = "pair_forward_too_much";
  Call forward = plain_call("pair_forward", 32);
  forward.inputs = {{"x", DType::f32, {32}, bytes_of_floats(ramp(32))}};
  forward.outputs = {{"y", DType::f32, {32}}};
  for (const Placement placement : {Placement::end_flush, Placement::start_flush}) {
    const std::unique_ptr<Child> child =
        Child::start(contender, *build_, *task_, *sandbox_, Limits{});
    const Reply reply = child->call(forward, placement, 17);
    EXPECT_EQ(reply.ending, Ending::wrote_outside) << reply.detail;
    EXPECT_NE(reply.detail.find("state"), std::string::npos) << reply.detail;
  }
}

TEST_F(Runner, HandlesAreKept) {
  const std::unique_ptr<Child> child = start("scale_good");
  expect_boxes(child->run(box_case(), Placement::end_flush, 17));
  expect_boxes(child->run(box_case(), Placement::start_flush, 18));
  Case c;
  c.calls = {plain_call("box_create", -1), box_case().calls[4]};
  const std::vector<Reply> replies = child->run(c, Placement::end_flush, 17);
  EXPECT_EQ(replies.at(0).ending, Ending::refused);
  EXPECT_EQ(replies.at(1).ending, Ending::not_reached);
  EXPECT_TRUE(child->alive());
}

}  // namespace
}  // namespace touchstone::judge
