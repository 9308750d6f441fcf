// What the kernel says of processes that end in several ways.
#include "judge/run/process_stats.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

namespace touchstone::judge {
namespace {

// A process of its own that runs `body` and then sleeps, until the end of the test.
class Process {
 public:
  explicit Process(const std::function<void()>& body) : pid_(fork()) {
    if (pid_ != 0) return;
    body();
    sleep(60);
    _exit(0);
  }
  ~Process() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

bool becomes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 500 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

void start_thread() {
  pthread_t thread;
  pthread_create(
      &thread, nullptr,
      [](void*) -> void* {
        sleep(60);
        return nullptr;
      },
      nullptr);
}

TEST(ProcessStats, TheFirstThreadHasEndedWhileAnotherGoesOn) {
  const Process process([] {
    start_thread();
    syscall(SYS_exit, 0);
  });
  const ProcessStats stats(process.pid());
  EXPECT_TRUE(becomes_true([&] { return stats.leader_gone(); }));
  EXPECT_EQ(stats.pages().resident, 0);
}

TEST(ProcessStats, AProcessThatRunsHasItsFirstThread) {
  const Process process(start_thread);
  const ProcessStats stats(process.pid());
  EXPECT_TRUE(becomes_true([&] { return stats.memory().threads == 2; }));
  EXPECT_FALSE(stats.leader_gone());
  EXPECT_GT(stats.pages().resident, 0);
}

// It names no pages either, and is not to be taken for one whose other threads hold some.
TEST(ProcessStats, AProcessThatHasEndedDidNotLoseItsFirstThread) {
  const Process process([] {
    start_thread();
    _exit(0);
  });
  const ProcessStats stats(process.pid());
  EXPECT_TRUE(becomes_true([&] { return stats.pages().resident == 0; }));
  EXPECT_FALSE(stats.leader_gone());
}

}  // namespace
}  // namespace touchstone::judge
