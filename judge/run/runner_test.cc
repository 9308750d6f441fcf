// Every way a call can end.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstddef>
#include <map>
#include <sstream>

#include "judge/run/omitted.h"
#include "judge/run/runner_test_support.h"
#include "judge/sandbox/child/protocol.h"

namespace touchstone::judge {
namespace {

using test::floats_of;
using test::ramp;
using test::Runner;
using test::scale_call;
using test::twice;

// Where tests/judge/corpus/exploits/flash_attention_forward-omits.py writes: elsewhere it would be harmless.
static_assert(offsetof(protocol::Control, command_number) == 0);
static_assert(offsetof(protocol::Control, done) == 192);
static_assert(offsetof(protocol::Control, note) == 3712);
static_assert(sizeof(protocol::Control) == 4416);

TEST(Omitted, OnlyWhatTheCardAllowsAndTheContenderHas) {
  TaskCard card;
  card.lacks = {{"lse", "", {}, "lse"}, {"causal", "", {}}};
  EXPECT_EQ(allowed_omissions(card), std::vector<std::string>{"lse"});
  Call call;
  call.outputs = {{"out", DType::f32, {1}}, {"lse", DType::f32, {1}}};
  Reply reply;
  reply.ending = Ending::ok;
  reply.outputs.assign(2, std::vector<std::byte>(4, std::byte{1}));
  mark_omitted({}, allowed_omissions(card), "omitted out,lse", call, reply);
  EXPECT_EQ(reply.omitted, std::vector<std::string>{"lse"});
  EXPECT_EQ(reply.outputs.at(0), std::vector<std::byte>(4, std::byte{1}));
  EXPECT_EQ(reply.outputs.at(1), std::vector<std::byte>(4, std::byte{0}));
}

TEST_F(Runner, AnswersAndIsTimed) {
  for (const Placement placement : {Placement::end_flush, Placement::start_flush}) {
    const std::unique_ptr<Child> child = start("scale_good");
    for (const int64_t n : {0, 1, 3, 1024, 1025, 100000}) {
      const Reply reply = child->call(scale_call(ramp(n), 2.0), placement, 17);
      ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
      EXPECT_EQ(floats_of(reply.outputs.at(0)), twice(ramp(n)));
      EXPECT_GT(reply.seconds, 0.0);
      EXPECT_LT(reply.seconds, 1.0);
    }
  }
}

TEST_F(Runner, FindsFunctionsOfCpp) {
  const Reply reply = ask("scale_mangled");
  ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
  EXPECT_EQ(floats_of(reply.outputs.at(0)), twice(ramp(100)));
}

TEST_F(Runner, RefusalsKeepTheChild) {
  const std::unique_ptr<Child> child = start("scale_refuses");
  for (int i = 0; i < 2; ++i) {
    const Reply reply = child->call(scale_call(ramp(5), 2.0), Placement::end_flush, 17);
    EXPECT_EQ(reply.ending, Ending::refused);
    EXPECT_EQ(reply.returned, 7);
    EXPECT_TRUE(reply.outputs.empty());
    EXPECT_EQ(reply.touched, "");
    EXPECT_TRUE(child->alive());
  }
  const Reply late = ask("scale_refuses_late");
  EXPECT_EQ(late.ending, Ending::refused);
  EXPECT_EQ(late.touched, "y");
}

TEST_F(Runner, CrashesAreNamed) {
  Reply reply = ask("scale_null");
  EXPECT_EQ(reply.ending, Ending::crashed);
  EXPECT_NE(reply.detail.find("SIGSEGV, a null pointer"), std::string::npos) << reply.detail;
  reply = ask("scale_aborts");
  EXPECT_EQ(reply.ending, Ending::crashed);
  EXPECT_NE(reply.detail.find("SIGABRT"), std::string::npos) << reply.detail;
  reply = ask("scale_throws");
  EXPECT_EQ(reply.ending, Ending::crashed);
  EXPECT_NE(reply.detail.find("too big"), std::string::npos) << reply.detail;
}

TEST_F(Runner, CasesEndWithTheChild) {
  const std::unique_ptr<Child> child = start("scale_null");
  Case c;
  c.calls = {scale_call(ramp(5), 2.0), scale_call(ramp(5), 2.0)};
  const std::vector<Reply> replies = child->run(c, Placement::end_flush, 17);
  EXPECT_EQ(replies.at(0).ending, Ending::crashed);
  EXPECT_EQ(replies.at(1).ending, Ending::not_reached);
  EXPECT_FALSE(child->alive());
}

TEST_F(Runner, GuardsStandOnBothSides) {
  Reply reply = ask("scale_behind", Placement::end_flush);
  EXPECT_EQ(reply.ending, Ending::wrote_outside);
  EXPECT_EQ(reply.detail, "touched memory 0 bytes behind the end of y");
  reply = ask("scale_before", Placement::start_flush);
  EXPECT_EQ(reply.ending, Ending::wrote_outside);
  EXPECT_EQ(reply.detail, "touched memory 4 bytes before y");
  reply = ask("scale_reads_behind", Placement::end_flush);
  EXPECT_EQ(reply.ending, Ending::wrote_outside);
  EXPECT_EQ(reply.detail, "touched memory 0 bytes behind the end of x");
}

TEST_F(Runner, CanariesStandWhereNoGuardCan) {
  Reply reply = ask("scale_behind", Placement::start_flush);
  EXPECT_EQ(reply.ending, Ending::wrote_outside);
  EXPECT_EQ(reply.detail, "wrote to memory 0 bytes behind the end of y");
  EXPECT_TRUE(reply.outputs.empty());
  reply = ask("scale_before", Placement::end_flush);
  EXPECT_EQ(reply.ending, Ending::wrote_outside);
  EXPECT_EQ(reply.detail.substr(0, 16), "wrote to memory ");
}

TEST_F(Runner, InputsCannotBeWritten) {
  Reply reply = ask("scale_in_place");
  EXPECT_EQ(reply.ending, Ending::wrote_input);
  EXPECT_EQ(reply.detail, "wrote to its input x, 0 bytes from the start");
  // Neither mprotect nor a second mapping opens them.
  reply = ask("scale_unlocks");
  ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
  EXPECT_EQ(floats_of(reply.outputs.at(0)), twice(ramp(100)));
}

TEST_F(Runner, HangsEndInTime) {
  Limits limits;
  limits.call_seconds = 0.3;
  const auto begin = std::chrono::steady_clock::now();
  const Reply reply = ask("scale_hangs", Placement::end_flush, limits);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(reply.ending, Ending::hung);
  EXPECT_EQ(reply.detail, "no answer after 0.3 s");
  // Where others have the processors, 20 times the limit and the start of the child.
  EXPECT_LT(took.count(), 8.0);
}

TEST_F(Runner, LeavingIsNoAnswer) {
  for (const char* behavior : {"scale_leaves", "scale_leaves_fast"}) {
    const Reply reply = ask(behavior);
    EXPECT_EQ(reply.ending, Ending::exited);
    EXPECT_EQ(reply.detail, "left with exit code 0 instead of answering");
    EXPECT_TRUE(reply.outputs.empty());
  }
}

TEST_F(Runner, ForbiddenCallsAreNamed) {
  if (!sandbox_->seccomp) GTEST_SKIP() << "no system call filter here";
  Reply reply = ask("scale_looks");
  EXPECT_EQ(reply.ending, Ending::forbidden);
  EXPECT_EQ(reply.detail, "ptrace");
  reply = ask("scale_forks");
  EXPECT_EQ(reply.ending, Ending::forbidden);
  EXPECT_EQ(reply.detail, "clone (another process)");
  Limits limits;
  limits.threads = 32;
  reply = ask("scale_threads", Placement::end_flush, limits);
  EXPECT_EQ(reply.ending, Ending::forbidden);
  EXPECT_EQ(reply.detail, "more than 32 threads");
}

// Processes anywhere below this one, by their parents.
int descendants() {
  std::map<int, int> parents;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    if (std::isdigit(static_cast<unsigned char>(entry.path().filename().string()[0])) == 0)
      continue;
    std::ifstream file(entry.path() / "stat");
    std::string text;
    if (!std::getline(file, text)) continue;
    std::istringstream rest(text.substr(text.rfind(')') + 1));
    char state = 0;
    int parent = 0;
    rest >> state >> parent;
    parents[std::stoi(entry.path().filename())] = parent;
  }
  int count = 0;
  for (const auto& [pid, parent] : parents) {
    for (int p = parent; p > 1 && parents.contains(p); p = parents[p]) {
      if (p == getpid()) {
        ++count;
        break;
      }
    }
  }
  return count;
}

TEST_F(Runner, NothingStaysBehind) {
  if (!sandbox_->namespaces) GTEST_SKIP() << "no namespaces here";
  for (const char* behavior : {"scale_threads", "scale_forks", "scale_later"}) ask(behavior);
  EXPECT_EQ(descendants(), 0);
  const std::unique_ptr<Child> child = start("scale_good");
  EXPECT_EQ(descendants(), 3);
}

TEST_F(Runner, MemoryIsLimited) {
  Limits limits;
  limits.memory_bytes = int64_t{256} << 20;
  const Reply reply = ask("scale_eats", Placement::end_flush, limits);
  EXPECT_EQ(reply.ending, Ending::out_of_memory);
  EXPECT_EQ(reply.detail, "held more than 256 MiB");
}

TEST_F(Runner, CannotTakeAwayWhatTheJudgeReads) {
  const Reply reply = ask("scale_sabotages");
  ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
  EXPECT_EQ(floats_of(reply.outputs.at(0)), twice(ramp(100)));
}

TEST_F(Runner, StaysOnItsProcessors) {
  if (!sandbox_->seccomp) GTEST_SKIP() << "no system call filter here";
  cpu_set_t mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
  int first = 0;
  while (!CPU_ISSET(first, &mine)) ++first;
  Limits limits;
  limits.cpus = {first};
  const Reply reply = ask("scale_moves", Placement::end_flush, limits);
  ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
  EXPECT_EQ(floats_of(reply.outputs.at(0)).at(0), 1.0F);
}

TEST_F(Runner, SeesNeitherFilesNorNetwork) {
  if (!sandbox_->files) GTEST_SKIP() << "no file system of its own here";
  for (const char* behavior : {"scale_calls_home", "scale_reads_files"}) {
    const Reply reply = ask(behavior);
    ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
    EXPECT_EQ(floats_of(reply.outputs.at(0)), twice(ramp(100))) << behavior;
  }
}

TEST_F(Runner, SanitizersSpeak) {
  ASSERT_FALSE(build_->sanitized.empty()) << build_->log;
  Reply reply = ask("scale_good", Placement::end_flush, {}, true);
  EXPECT_EQ(reply.ending, Ending::ok) << reply.detail;
  reply = ask("scale_heap_overflow", Placement::end_flush, {}, true);
  EXPECT_EQ(reply.ending, Ending::wrote_outside);
  EXPECT_NE(reply.detail.find("heap-buffer-overflow behaviors.cc:"), std::string::npos)
      << reply.detail;
  reply = ask("scale_signed_overflow", Placement::end_flush, {}, true);
  EXPECT_EQ(reply.ending, Ending::crashed);
  EXPECT_NE(reply.detail.find("signed integer overflow"), std::string::npos) << reply.detail;
  reply = ask("scale_reads_behind", Placement::start_flush, {}, true);
  EXPECT_EQ(reply.ending, Ending::wrote_outside) << reply.detail;
}

TEST_F(Runner, WorksWithoutIsolation) {
  const Sandbox none = probe_sandbox(false);
  EXPECT_FALSE(none.missing.empty());
  Contender contender = *contender_;
  const std::unique_ptr<Child> child = Child::start(contender, *build_, *task_, none, Limits{});
  const Reply reply = child->call(scale_call(ramp(100), 2.0), Placement::end_flush, 17);
  ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
  EXPECT_EQ(floats_of(reply.outputs.at(0)), twice(ramp(100)));
}

TEST_F(Runner, CasesThatDoNotFitAreOurFault) {
  const std::unique_ptr<Child> child = start("scale_good");
  Call call = scale_call(ramp(5), 2.0);
  call.scalars.pop_back();
  EXPECT_THROW(child->call(call, Placement::end_flush, 17), InvalidArgument);
  call = scale_call(ramp(5), 2.0);
  call.function = "scales";
  EXPECT_THROW(child->call(call, Placement::end_flush, 17), InvalidArgument);
  EXPECT_TRUE(child->alive());
}

}  // namespace
}  // namespace touchstone::judge
