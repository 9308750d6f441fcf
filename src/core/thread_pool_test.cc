// The thread pool: every task once, whatever happens. Meant to be run under ThreadSanitizer too.
#include "core/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/runners.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0 {
namespace {

// How often each task ran.
class Tally {
 public:
  explicit Tally(std::int64_t tasks) : counts_(static_cast<std::size_t>(tasks)) {}
  void count(std::int64_t task) { counts_.at(static_cast<std::size_t>(task)).fetch_add(1); }
  bool each_once() const {
    for (const auto& count : counts_) {
      if (count.load() != 1) return false;
    }
    return true;
  }

 private:
  std::vector<std::atomic<int>> counts_;
};

TEST(ThreadPoolTest, EveryTaskExactlyOnce) {
  for (int threads = 1; threads <= 8; ++threads) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (std::int64_t tasks = 0; tasks <= 1000; tasks += tasks < 40 ? 1 : 37) {
      Tally tally(tasks);
      pool.run(tasks, [&](std::int64_t task) { tally.count(task); });
      ASSERT_TRUE(tally.each_once()) << threads << " threads, " << tasks << " tasks";
    }
  }
}

TEST(ThreadPoolTest, NegativeCountsRunNothing) {
  ThreadPool pool(4);
  pool.run(-5, [](std::int64_t) { ADD_FAILURE() << "ran"; });
}

TEST(ThreadPoolTest, WorkIsVisibleAfterTheLoop) {
  ThreadPool pool(4);
  std::vector<std::int64_t> plain(1000);  // not atomic: the pool must order the writes
  for (std::int64_t round = 0; round < 100; ++round) {
    pool.run(1000, [&](std::int64_t task) { plain[static_cast<std::size_t>(task)] += task; });
  }
  for (std::int64_t i = 0; i < 1000; ++i) ASSERT_EQ(plain[static_cast<std::size_t>(i)], 100 * i);
}

TEST(ThreadPoolTest, ReusedTenThousandTimes) {
  ThreadPool pool(3);
  std::int64_t total = 0;
  std::vector<std::int64_t> parts(7);
  for (int round = 0; round < 10000; ++round) {
    // The number of tasks changes, so that threads are called up and left out in turn.
    const std::int64_t tasks = 1 + round % 7;
    pool.run(tasks, [&](std::int64_t task) { ++parts[static_cast<std::size_t>(task)]; });
    total += tasks;
  }
  std::int64_t counted = 0;
  for (const std::int64_t part : parts) counted += part;
  EXPECT_EQ(counted, total);
}

TEST(ThreadPoolTest, WakesAfterSleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    Tally tally(50);
    pool.run(50, [&](std::int64_t task) { tally.count(task); });
    EXPECT_TRUE(tally.each_once());
  }
}

TEST(ThreadPoolTest, UnevenTasksAreShared) {
  // The first share is slow: the other thread must help with it, or the pool is no pool.
  ThreadPool pool(2);
  std::vector<std::thread::id> ran_by(64);
  pool.run(64, [&](std::int64_t task) {
    ran_by[static_cast<std::size_t>(task)] = std::this_thread::get_id();
    if (task < 32) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  int helped = 0;
  for (int i = 0; i < 32; ++i) {
    helped += ran_by[static_cast<std::size_t>(i)] != ran_by[0] ? 1 : 0;
  }
  EXPECT_GT(helped, 0);
}

// An exception comes out after the loop has drained: all tasks ran, with any number of threads.
TEST(ThreadPoolTest, ExceptionsAreRethrownAfterTheLoop) {
  for (int threads = 1; threads <= 8; ++threads) {
    ThreadPool pool(threads);
    for (const std::int64_t bad : {0, 1, 50, 99}) {
      Tally tally(100);
      try {
        pool.run(100, [&](std::int64_t task) {
          tally.count(task);
          if (task == bad) throw std::runtime_error("task " + std::to_string(task));
        });
        ADD_FAILURE() << "swallowed";
      } catch (const std::runtime_error& error) {
        EXPECT_EQ(std::string(error.what()), "task " + std::to_string(bad));
      }
      EXPECT_TRUE(tally.each_once()) << threads << " threads";
      // The pool is as good as before.
      Tally after(100);
      pool.run(100, [&](std::int64_t task) { after.count(task); });
      EXPECT_TRUE(after.each_once());
    }
  }
}

TEST(ThreadPoolTest, ManyExceptionsGiveOne) {
  ThreadPool pool(4);
  for (int round = 0; round < 100; ++round) {
    EXPECT_THROW(pool.run(200, [](std::int64_t) { throw std::logic_error("each"); }),
                 std::logic_error);
  }
}

TEST(ThreadPoolTest, ManyPoolsAtOnce) {
  std::vector<std::unique_ptr<ThreadPool>> pools;
  pools.reserve(10);
  for (int i = 0; i < 10; ++i) pools.push_back(std::make_unique<ThreadPool>(1 + i % 4));
  std::atomic<int> count{0};
  for (int round = 0; round < 20; ++round) {
    for (const auto& pool : pools) pool->run(10, [&](std::int64_t) { ++count; });
  }
  EXPECT_EQ(count.load(), 20 * 10 * 10);
}

TEST(ThreadPoolTest, PoolsOfDifferentThreadsDoNotMeet) {
  std::vector<std::thread> callers;
  callers.reserve(6);
  std::atomic<int> wrong{0};
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&wrong, i] {
      ThreadPool pool(3);
      for (int round = 0; round < 200; ++round) {
        std::vector<int> plain(20, 0);
        pool.run(20, [&](std::int64_t task) { plain[static_cast<std::size_t>(task)] = i; });
        for (const int value : plain) wrong += value != i ? 1 : 0;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(ThreadPoolTest, OnePoolInsideAnother) {
  ThreadPool outer(3);
  std::atomic<int> count{0};
  outer.run(6, [&](std::int64_t) {
    ThreadPool inner(2);
    inner.run(10, [&](std::int64_t) { ++count; });
  });
  EXPECT_EQ(count.load(), 60);
}

TEST(ThreadPoolTest, DestroyedInEveryState) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool unused(4);
    ThreadPool used(4);
    used.run(8, [](std::int64_t) {});
    if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST(ThreadPoolTest, AvailableThreadsFollowTheAffinity) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(available_threads(), CPU_COUNT(&before));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(available_threads(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

// Starts more threads than stacks fit in the memory limit; exits with 0 when that is reported.
void start_too_many_threads() {
  const rlimit limit{std::uint64_t{400} << 20, std::uint64_t{400} << 20};
  setrlimit(RLIMIT_AS, &limit);
  alarm(20);  // a constructor that never returns is a failure, not a wait
  try {
    const ThreadPool pool(1000);
  } catch (const Error&) {
    std::exit(0);
  }
  std::exit(3);
}

// When the system gives no more threads the constructor says so with an Error; it does not end the
// process.
TEST(ThreadPoolDeathTest, TooManyThreadsIsAnError) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers do not live under a memory limit";
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(start_too_many_threads(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace touchstone::inline v0
