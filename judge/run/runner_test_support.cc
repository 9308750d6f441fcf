#include "judge/run/runner_test_support.h"

namespace touchstone::judge::test {
namespace {

// One library with all behaviors.
constexpr const char* kBehaviors = R"(
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
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <atomic>
#include <stdexcept>
#include <string>
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
SCALE(scale_refuses_late) { run(n, factor, x, y); return 7; }
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
double processor_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}
SCALE(scale_alarm) {  // works when a timer rings, whenever that is, and tells how much it has worked
  signal(SIGALRM, [](int) {
    const double begin = processor_seconds();
    while (processor_seconds() < begin + 4e-3) {}
  });
  itimerval soon = {{0, 0}, {0, 50}};
  setitimer(ITIMER_REAL, &soon, nullptr);
  run(n, factor, x, y);
  y[0] = (float)processor_seconds();
  return 0;
}
SCALE(scale_continues) {  // has a timer continue it when it was stopped, and works
  signal(SIGCONT, [](int) {
    const double begin = processor_seconds();
    while (processor_seconds() < begin + 4e-3) {}
  });
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGCONT;
  static timer_t timer;
  static const bool there = timer_create(CLOCK_MONOTONIC, &event, &timer) == 0;
  run(n, factor, x, y);
  y[0] = (float)processor_seconds();
  y[1] = there;
  itimerspec soon = {{0, 0}, {0, 300000}};
  if (there) timer_settime(timer, 0, &soon, nullptr);
  return 0;
}
SCALE(scale_crowds) {  // never ends, and its threads take the processor from the one that is waited for
  for (int i = 0; i < 40; ++i) std::thread([] { while (true) g_sink = nullptr; }).detach();
  while (true) g_sink = nullptr;
}
SCALE(scale_swaps) {  // gives up pages of a file for a workspace, and takes them again
  constexpr size_t kBytes = 32 << 20, kPart = 1 << 20;
  static char* const place = (char*)mmap(nullptr, kBytes, PROT_NONE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  static const int file = open("/proc/self/exe", O_RDONLY);
  mmap(place, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0);
  memset(place, 1, kBytes);
  for (size_t at = 0; at < kBytes; at += 65536) {
    mmap(place + at, 65536, PROT_READ, MAP_PRIVATE | MAP_FIXED | MAP_POPULATE, file, 0);
  }
  return run(n, factor, x, y);
}
SCALE(scale_changes_thread) {  // goes on as its second thread, and the first one ends
  static ucontext_t here, elsewhere;
  static char stack[1 << 16];
  static volatile bool second = false;
  getcontext(&elsewhere);
  elsewhere.uc_stack = {stack, 0, sizeof stack};
  makecontext(&elsewhere, [] {
    std::thread([] {
      usleep(2000);
      second = true;
      setcontext(&here);
    }).detach();
    syscall(SYS_exit, 0);
  }, 0);
  if (!second) swapcontext(&here, &elsewhere);
  return run(n, factor, x, y);
}
SCALE(scale_names_files) {  // keeps what it knows in the names of files
  for (int i = 0; i < 3000; ++i) {
    std::string name = "/tmp/" + std::to_string(i);
    name.resize(200, 'x');
    const int file = open(name.c_str(), O_CREAT | O_WRONLY, 0600);
    if (file >= 0) close(file);
  }
  return run(n, factor, x, y);
}
SCALE(scale_queues_signals) {  // keeps what it knows in signals that wait
  sigset_t waiting;
  sigemptyset(&waiting);
  sigaddset(&waiting, SIGRTMIN);
  pthread_sigmask(SIG_BLOCK, &waiting, nullptr);
  int queued = 0;
  while (queued < 1000 && sigqueue(getpid(), SIGRTMIN, sigval{}) == 0) ++queued;
  run(n, factor, x, y);
  y[0] = (float)queued;
  return 0;
}
SCALE(scale_tells_oom) {  // how ready the kernel is to end it where memory is short
  char text[16] = {};
  const int file = open("/proc/self/oom_score_adj", O_RDONLY);
  run(n, factor, x, y);
  y[0] = read(file, text, sizeof text - 1) > 0 ? (float)atoi(text) : -1.0f;
  return 0;
}
SCALE(scale_sabotages) {  // takes away what the judge reads
  for (int fd = 3; fd < 20; ++fd) { if (ftruncate(fd, 0) == 0) y[0] = 99; }
  return run(n, factor, x, y);
}
SCALE(scale_shares) {  // hides its memory in shared pages
  static int count = 0;
  char name[64];
  snprintf(name, sizeof name, "/dev/shm/%d", count++);
  const int file = open(name, O_CREAT | O_RDWR, 0600);
  if (ftruncate(file, 1 << 20) != 0) return 1;
  g_sink = mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
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

}  // namespace

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

std::vector<float> ramp(int64_t n, float start) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(start + static_cast<float>(i));
  return values;
}

void Runner::SetUpTestSuite() {
  sandbox_ = new Sandbox(probe_sandbox(true));
  task_ = new TestTask(all_functions());
  source_ = new Folder;
  work_ = new Folder;
  contender_ = new Contender;
  contender_->name = "behaviors";
  contender_->folder = source_->write("behaviors.cc", kBehaviors).parent_path();
  contender_->language = Language::cpp;
  contender_->binding.sources = {"behaviors.cc"};
  for (const Function& f : task_->card().functions) contender_->binding.functions[f.name] = f.name;
  contender_->binding.functions["scale"] = "scale_good";
  build_ = new BuildResult(build_contender(*contender_, *task_, work_->path(), *sandbox_));
}

void Runner::TearDownTestSuite() {
  delete build_;
  delete contender_;
  delete work_;
  delete source_;
  delete task_;
  delete sandbox_;
}

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

}  // namespace touchstone::judge::test
