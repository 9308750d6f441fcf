// Every way a call can end, and what surrounds it.
#include "judge/runner.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <map>
#include <sstream>

#include "judge/python.h"
#include "judge/sandbox.h"
#include "judge/test_task.h"

namespace touchstone::judge {
namespace {

using test::bytes_of_floats;
using test::floats_of;
using test::Folder;
using test::scale_call;
using test::TestTask;

// One library with all behaviours: a test picks one by its binding.
constexpr const char* kBehaviours = R"(
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <unistd.h>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>
#define SCALE(name) extern "C" int name(int64_t n, float factor, const float* x, float* y)
static int run(int64_t n, float factor, const float* x, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = factor * x[i];
  return 0;
}
void* volatile g_sink;
SCALE(scale_good) { return run(n, factor, x, y); }
int scale_mangled(int64_t n, float factor, const float* x, float* y) { return run(n, factor, x, y); }
SCALE(scale_refuses) { (void)n; (void)factor; (void)x; (void)y; return 7; }
SCALE(scale_null) { *(volatile int*)nullptr = 1; return run(n, factor, x, y); }
SCALE(scale_aborts) { (void)n; (void)factor; (void)x; (void)y; fprintf(stderr, "no\n"); abort(); }
SCALE(scale_throws) { (void)n; (void)factor; (void)x; (void)y; throw std::runtime_error("too big"); }
SCALE(scale_behind) { run(n, factor, x, y); y[n] = 1; return 0; }
SCALE(scale_before) { run(n, factor, x, y); y[-1] = 1; return 0; }
SCALE(scale_reads_behind) { run(n, factor, x, y); y[0] += 0 * x[n]; return 0; }
SCALE(scale_in_place) { for (int64_t i = 0; i < n; ++i) const_cast<float*>(x)[i] *= factor;
  return run(n, 1, x, y); }
SCALE(scale_unlocks) {
  auto page = (uintptr_t)x & ~(uintptr_t)4095;
  if (mprotect((void*)page, 4096, PROT_READ | PROT_WRITE) == 0) const_cast<float*>(x)[0] = 5;
  int fd = open("/proc/self/fd/11", O_RDWR);
  if (fd >= 0 && mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED) y[0] = 77;
  return run(n, factor, x, y);
}
SCALE(scale_hangs) { for (volatile int64_t i = 0;; ++i) {} return run(n, factor, x, y); }
SCALE(scale_leaves) { run(n, factor, x, y); exit(0); }
SCALE(scale_leaves_fast) { run(n, factor, x, y); _exit(0); }
SCALE(scale_forks) { while (true) fork(); return run(n, factor, x, y); }
SCALE(scale_threads) {
  for (int i = 0; i < 100000; ++i) std::thread([] { pause(); }).detach();
  return run(n, factor, x, y);
}
SCALE(scale_eats) {
  for (int i = 0; i < 100000; ++i) g_sink = memset(malloc(1 << 20), 1, 1 << 20);
  return run(n, factor, x, y);
}
SCALE(scale_looks) { ptrace(PTRACE_ATTACH, 1, 0, 0); return run(n, factor, x, y); }
SCALE(scale_calls_home) {
  y[0] = 0;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  int status = run(n, factor, x, y);
  if (fd >= 0) y[0] = 99;
  return status;
}
SCALE(scale_reads_files) {
  run(n, factor, x, y);
  if (access("/etc/passwd", F_OK) == 0 || access("/root", F_OK) == 0) y[0] = 99;
  return 0;
}
SCALE(scale_partial) { run(n / 2, factor, x, y); return 0; }
SCALE(scale_workspace) {
  std::vector<char> space(32 << 20, 1);
  asm volatile("" : : "r"(space.data()) : "memory");
  return run(n, factor, x, y);
}
SCALE(scale_leaks) { g_sink = memset(malloc(1 << 20), 1, 1 << 20); return run(n, factor, x, y); }
SCALE(scale_later) {  // says done at once, works afterwards
  struct Work { int64_t n; float f; const float* x; float* y; };
  auto* w = new Work{n, factor, x, y};
  std::thread([w] { usleep(3000); run(w->n, w->f, w->x, w->y); }).detach();
  return 0;
}
SCALE(scale_early) {  // says done at once, and hopes to stay ahead of who looks
  std::thread([=] { run(n, factor, x, y); }).detach();
  return 0;
}
SCALE(scale_sabotages) {  // takes away what the judge reads
  for (int fd = 3; fd < 20; ++fd) { if (ftruncate(fd, 0) == 0) y[0] = 99; }
  return run(n, factor, x, y);
}
SCALE(scale_shares) {  // hides its memory in shared pages
  g_sink = mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  memset(g_sink, 1, 1 << 20);
  return run(n, factor, x, y);
}
SCALE(scale_moves) {
  cpu_set_t all;
  memset(&all, 0xff, sizeof all);
  sched_setaffinity(0, sizeof all, &all);
  run(n, factor, x, y);
  sched_getaffinity(0, sizeof all, &all);
  y[0] = (float)CPU_COUNT(&all);
  return 0;
}
SCALE(scale_keeps) {  // needs the input of the call before
  static const float* kept;
  if (kept != nullptr) y[0] = kept[0];
  kept = x;
  return run(n, factor, x, y);
}
SCALE(scale_by_pointer) {
  static std::vector<float> kept; static const float* seen;
  if (seen != x || (int64_t)kept.size() != n) { kept.resize(n); seen = x; run(n, factor, x, kept.data()); }
  memcpy(y, kept.data(), n * 4);
  return 0;
}
SCALE(scale_heap_overflow) {
  auto* t = (float*)malloc(n * 4);
  for (int64_t i = 0; i <= n; ++i) t[i] = 1;
  y[0] = t[0]; free(t);
  return run(n, factor, x, y);
}
SCALE(scale_signed_overflow) { int big = 2147483647; big += (int)n; y[0] = (float)big;
  return run(n, factor, x, y); }
SCALE(scale_where) { run(n, factor, x, y); uintptr_t a = (uintptr_t)x; memcpy(y, &a, 8); return 0; }

extern "C" int64_t pair_bytes(int64_t n) { return n * 4; }
extern "C" int pair_forward(int64_t n, const float* x, float* y, void* state) {
  memcpy(state, x, n * 4); memset(y, 0, n * 4); return 0; }
extern "C" int pair_backward(int64_t n, const void* state, float* dx) {
  memcpy(dx, state, n * 4); return 0; }
extern "C" int pair_forward_too_much(int64_t n, const float* x, float* y, void* state) {
  memcpy(state, x, n * 4); memset(y, 0, n * 4); ((char*)state)[n * 4] = 1; return 0; }
extern "C" void* box_create(int64_t n) { return n < 0 ? nullptr : calloc(n, 4); }
extern "C" int box_add(void* box, int64_t n, const float* x) {
  for (int64_t i = 0; i < n; ++i) ((float*)box)[i] += x[i];
  return 0; }
extern "C" int box_get(void* box, int64_t n, float* y) { memcpy(y, box, n * 4); return 0; }
extern "C" void box_destroy(void* box) { free(box); }
)";

std::vector<Function> all_functions() {
  const Argument n{"n", ArgumentKind::i64};
  const Argument x{"x", ArgumentKind::input, DType::f32, "n"};
  const Argument y{"y", ArgumentKind::output, DType::f32, "n"};
  const Argument state{"state", ArgumentKind::state};
  const Argument box{"box", ArgumentKind::handle};
  return {test::scale_function(),
          {.name = "pair_bytes", .returns = Returns::size, .arguments = {n}},
          {.name = "pair_forward", .arguments = {n, x, y, state}, .sized_by = "pair_bytes"},
          {.name = "pair_backward",
           .arguments = {n, state, {"dx", ArgumentKind::output, DType::f32, "n"}},
           .sized_by = "pair_bytes"},
          {.name = "box_create", .returns = Returns::handle, .arguments = {n}},
          {.name = "box_add", .arguments = {box, n, x}},
          {.name = "box_get", .arguments = {box, n, y}},
          {.name = "box_destroy", .returns = Returns::nothing, .arguments = {box}}};
}

std::vector<float> ramp(int64_t n, float start = 1.0F) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(start + static_cast<float>(i));
  return values;
}

// Compiled once for all tests of this file.
class Runner : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    sandbox_ = new Sandbox(probe_sandbox(true));
    task_ = new TestTask(all_functions());
    source_ = new Folder;
    work_ = new Folder;
    contender_ = new Contender;
    contender_->name = "behaviours";
    contender_->folder = source_->write("behaviours.cc", kBehaviours).parent_path();
    contender_->language = Language::cpp;
    contender_->binding.sources = {"behaviours.cc"};
    for (const Function& f : task_->card().functions)
      contender_->binding.functions[f.name] = f.name;
    contender_->binding.functions["scale"] = "scale_good";
    build_ = new BuildResult(build_contender(*contender_, *task_, work_->path(), *sandbox_));
  }
  static void TearDownTestSuite() {
    delete build_;
    delete contender_;
    delete work_;
    delete source_;
    delete task_;
    delete sandbox_;
  }

  void SetUp() override { ASSERT_TRUE(build_->built) << build_->log; }

  static std::unique_ptr<Child> start(const std::string& behaviour, Limits limits = {},
                                      bool sanitized = false) {
    Contender contender = *contender_;
    contender.binding.functions["scale"] = behaviour;
    BuildResult build = *build_;
    if (sanitized) build.library = build.sanitized;
    return Child::start(contender, build, *task_, *sandbox_, limits);
  }

  static Reply ask(const std::string& behaviour, Placement placement = Placement::end_flush,
                   Limits limits = {}, bool sanitized = false) {
    const std::unique_ptr<Child> child = start(behaviour, limits, sanitized);
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
Sandbox* Runner::sandbox_ = nullptr;
TestTask* Runner::task_ = nullptr;
Folder* Runner::source_ = nullptr;
Folder* Runner::work_ = nullptr;
Contender* Runner::contender_ = nullptr;
BuildResult* Runner::build_ = nullptr;

std::vector<float> twice(std::vector<float> x) {
  for (float& v : x) v *= 2.0F;
  return x;
}

Call plain_call(const std::string& function, int64_t n) {
  Call call;
  call.function = function;
  call.scalars = {n};
  return call;
}

Case box_case() {
  Call add = plain_call("box_add", 3);
  add.inputs = {{"x", DType::f32, {3}, bytes_of_floats(ramp(3))}};
  Call get = plain_call("box_get", 3);
  get.outputs = {{"y", DType::f32, {3}}};
  Call destroy;
  destroy.function = "box_destroy";
  Call other = plain_call("box_create", 3);
  other.state = 1;
  Call get_other = get;
  get_other.state = 1;
  Case c;
  c.calls = {plain_call("box_create", 3), other, add, add, get, get_other, destroy};
  return c;
}

void expect_boxes(const std::vector<Reply>& replies) {
  for (const Reply& reply : replies) ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
  EXPECT_EQ(floats_of(replies.at(4).outputs.at(0)), (std::vector<float>{2, 4, 6}));
  EXPECT_EQ(floats_of(replies.at(5).outputs.at(0)), (std::vector<float>{0, 0, 0}));
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
    EXPECT_TRUE(child->alive());
  }
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
  EXPECT_LT(took.count(), 2.0);
}

TEST_F(Runner, LeavingIsNoAnswer) {
  for (const char* behaviour : {"scale_leaves", "scale_leaves_fast"}) {
    const Reply reply = ask(behaviour);
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
  for (const char* behaviour : {"scale_threads", "scale_forks", "scale_later"}) ask(behaviour);
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
  for (const char* behaviour : {"scale_calls_home", "scale_reads_files"}) {
    const Reply reply = ask(behaviour);
    ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
    EXPECT_EQ(floats_of(reply.outputs.at(0)), twice(ramp(100))) << behaviour;
  }
}

TEST_F(Runner, WhatIsNotWrittenIsPoison) {
  const std::unique_ptr<Child> child = start("scale_partial");
  std::vector<std::vector<float>> answers;
  for (const uint64_t poison : {1, 2, 1}) {
    Case c;
    c.calls = {scale_call(ramp(100), 2.0)};
    answers.push_back(floats_of(child->run(c, Placement::end_flush, poison).at(0).outputs.at(0)));
  }
  EXPECT_EQ(memcmp(answers[0].data(), answers[1].data(), 200), 0);
  EXPECT_NE(memcmp(answers[0].data() + 50, answers[1].data() + 50, 200), 0);
  EXPECT_EQ(memcmp(answers[0].data() + 50, answers[2].data() + 50, 200), 0);
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
  EXPECT_NE(floats_of(reply.outputs.at(0)), twice(ramp(100)));
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
  for (const char* behaviour : {"scale_leaks", "scale_shares"}) {
    const std::unique_ptr<Child> child = start(behaviour);
    Case c;
    c.calls = {scale_call(ramp(10), 2.0)};
    for (int i = 0; i < 16; ++i) child->run(c, Placement::end_flush, 17);
    EXPECT_NEAR(static_cast<double>(child->held_bytes()), 16 << 20, 3 << 20) << behaviour;
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

TEST_F(Runner, SanitizersSpeak) {
  ASSERT_FALSE(build_->sanitized.empty()) << build_->log;
  Reply reply = ask("scale_good", Placement::end_flush, {}, true);
  EXPECT_EQ(reply.ending, Ending::ok) << reply.detail;
  reply = ask("scale_heap_overflow", Placement::end_flush, {}, true);
  EXPECT_EQ(reply.ending, Ending::wrote_outside);
  EXPECT_NE(reply.detail.find("heap-buffer-overflow behaviours.cc:"), std::string::npos)
      << reply.detail;
  reply = ask("scale_signed_overflow", Placement::end_flush, {}, true);
  EXPECT_EQ(reply.ending, Ending::crashed);
  EXPECT_NE(reply.detail.find("signed integer overflow"), std::string::npos) << reply.detail;
  reply = ask("scale_reads_behind", Placement::start_flush, {}, true);
  EXPECT_EQ(reply.ending, Ending::wrote_outside) << reply.detail;
}

TEST_F(Runner, WorksWithoutWalls) {
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

constexpr const char* kPython = R"(
import os, sys
import numpy as np
def scale(n, factor, x): return (np.float32(factor) * x).astype(np.float32)
def scale_raises(n, factor, x): raise ValueError("no such thing")
def scale_in_place(n, factor, x):
    x *= factor
    return x
def scale_unlocks(n, factor, x):
    x.flags.writeable = True
    x *= factor
    return x
def scale_shape(n, factor, x): return x[:-1]
def scale_leaves(n, factor, x): sys.exit(0)
def scale_forks(n, factor, x): os.fork()
def scale_hangs(n, factor, x):
    while True: pass
def pair_bytes(n): return 4 * n
def pair_forward(n, x): return np.zeros_like(x), (x, n)
def pair_backward(n, cache): return cache[0]
def box_create(n): return None if n < 0 else [np.zeros(n, np.float32)]
def box_add(box, n, x): box[0] = box[0] + x
def box_get(box, n): return box[0]
def box_destroy(box): box.clear()
)";

class PythonRunner : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!find_python()) GTEST_SKIP() << "no Python with NumPy here";
    sandbox_ = probe_sandbox(true);
    contender_ = read_contender(source_.write("answers.py", kPython), task_);
    build_ = build_contender(contender_, task_, work_.path(), sandbox_);
    ASSERT_TRUE(build_.built) << build_.log;
  }

  std::unique_ptr<Child> start(const std::string& name) {
    contender_.binding.functions["scale"] = name;
    Limits limits;
    limits.call_seconds = 0.5;
    return Child::start(contender_, build_, task_, sandbox_, limits);
  }
  Reply ask(const std::string& name) {
    const std::unique_ptr<Child> child = start(name);
    EXPECT_EQ(child->started().ending, Ending::ok) << child->started().detail;
    return child->call(scale_call(ramp(100), 2.0), Placement::end_flush, 17);
  }

  TestTask task_{all_functions()};
  Folder source_;
  Folder work_;
  Sandbox sandbox_;
  Contender contender_;
  BuildResult build_;
};

TEST_F(PythonRunner, AnswersLikeALibrary) {
  const std::unique_ptr<Child> child = start("scale");
  ASSERT_EQ(child->started().ending, Ending::ok) << child->started().detail;
  for (const int64_t n : {0, 1, 1025}) {
    const Reply reply = child->call(scale_call(ramp(n), 2.0), Placement::end_flush, 17);
    ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
    EXPECT_EQ(floats_of(reply.outputs.at(0)), twice(ramp(n)));
  }
  expect_boxes(child->run(box_case(), Placement::end_flush, 17));
  // A state that holds on to an input of an earlier call finds it unchanged.
  Case c;
  Call forward = plain_call("pair_forward", 7);
  forward.inputs = {{"x", DType::f32, {7}, bytes_of_floats(ramp(7))}};
  forward.outputs = {{"y", DType::f32, {7}}};
  Call backward = plain_call("pair_backward", 7);
  backward.outputs = {{"dx", DType::f32, {7}}};
  c.calls = {forward, backward};
  const std::vector<Reply> replies = child->run(c, Placement::end_flush, 17);
  ASSERT_EQ(replies.at(1).ending, Ending::ok) << replies[0].detail << replies[1].detail;
  EXPECT_EQ(floats_of(replies.at(1).outputs.at(0)), ramp(7));
  EXPECT_EQ(replies.at(0).state_bytes, 28);
}

TEST_F(PythonRunner, EndingsAreNamed) {
  Reply reply = ask("scale_raises");
  EXPECT_EQ(reply.ending, Ending::refused);
  EXPECT_EQ(reply.detail, "ValueError: no such thing");
  reply = ask("scale_shape");
  EXPECT_EQ(reply.ending, Ending::refused);
  EXPECT_NE(reply.detail.find("expected shape (100,), got (99,)"), std::string::npos);
  EXPECT_EQ(ask("scale_in_place").ending, Ending::wrote_input);
  EXPECT_EQ(ask("scale_unlocks").ending, Ending::wrote_input);
  EXPECT_EQ(ask("scale_leaves").ending, Ending::exited);
  EXPECT_EQ(ask("scale_hangs").ending, Ending::hung);
  if (sandbox_.seccomp) {
    EXPECT_EQ(ask("scale_forks").ending, Ending::forbidden);
  }
}

TEST_F(PythonRunner, WhatCannotBeLoadedDoesNotStart) {
  const std::unique_ptr<Child> child = start("no_such_function");
  EXPECT_EQ(child->started().ending, Ending::crashed);
  EXPECT_NE(child->started().detail.find("no function no_such_function"), std::string::npos)
      << child->started().detail;
  EXPECT_FALSE(child->alive());
}

}  // namespace
}  // namespace touchstone::judge
