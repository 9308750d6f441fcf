#include "core/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "touchstone/core/error.h"

namespace touchstone::inline v0 {
namespace {

// How often an idle thread looks for work before it sleeps. A wake-up through the kernel costs
// tens of microseconds, as much as a small operator; a look costs some nanoseconds. The fork-join
// table of docs/notes/layer_norm.md was measured with it.
constexpr int kSpins = 2000;

// The bits of State::order that count threads.
constexpr int kThreadBits = 16;
constexpr std::uint64_t kThreadMask = (std::uint64_t{1} << kThreadBits) - 1;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// One thread's share of the loop. Own cache line: every task taken writes `next`.
struct alignas(64) Share {
  std::atomic<std::int64_t> next{0};
  std::int64_t end = 0;
};

}  // namespace

int available_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    const int count = CPU_COUNT(&set);
    if (count > 0) return count;
  }
  const unsigned count = std::thread::hardware_concurrency();
  return count > 0 ? static_cast<int>(count) : 1;
}

struct ThreadPool::State {
  explicit State(int threads) : shares(static_cast<std::size_t>(threads)) {}

  std::vector<Share> shares;
  std::vector<std::thread> workers;

  // The loop being run. Written by the caller before `order` changes, read by the workers it
  // wakes after they have loaded `order`.
  Call call = nullptr;
  void* self = nullptr;
  // Loop number and, in the low bits, how many threads it wakes. One word, so that a worker
  // left out of a loop returns to sleep without reading fields that the next loop may be writing.
  std::atomic<std::uint64_t> order{0};
  std::atomic<int> working{0};
  std::atomic<bool> stop{false};

  std::mutex mutex;
  std::condition_variable wake;

  std::mutex failure_mutex;
  std::exception_ptr failure;

  void work(std::size_t first_share, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      Share& share = shares[(first_share + i) % count];
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        const std::int64_t task = share.next.fetch_add(1, std::memory_order_relaxed);
        if (task >= share.end) break;
        try {
          call(self, task);
        } catch (...) {
          const std::lock_guard<std::mutex> lock(failure_mutex);
          if (!failure) failure = std::current_exception();
        }
      }
    }
  }

  // Returns the new order, or the same one when the pool is stopping.
  std::uint64_t wait_for_work(std::uint64_t seen) {
    for (int spin = 0; spin < kSpins; ++spin) {
      const std::uint64_t now = order.load(std::memory_order_acquire);
      if (now != seen || stop.load(std::memory_order_relaxed)) return now;
      relax();
    }
    std::unique_lock<std::mutex> lock(mutex);
    wake.wait(lock, [&] {
      return order.load(std::memory_order_acquire) != seen || stop.load(std::memory_order_relaxed);
    });
    return order.load(std::memory_order_acquire);
  }

  // Ends all workers.
  void dismiss() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      stop.store(true);
    }
    wake.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  void worker(std::size_t index) {
    std::uint64_t seen = 0;
    while (true) {
      const std::uint64_t now = wait_for_work(seen);
      if (now == seen) return;
      seen = now;
      const std::size_t called = now & kThreadMask;
      if (index >= called) continue;
      work(index, called);
      working.fetch_sub(1, std::memory_order_release);
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>(threads)) {
  try {
    state_->workers.reserve(static_cast<std::size_t>(threads));
    for (int i = 1; i < threads; ++i) {
      state_->workers.emplace_back(
          [state = state_.get(), i] { state->worker(static_cast<std::size_t>(i)); });
    }
  } catch (const std::exception& error) {
    const std::size_t started = state_->workers.size();
    state_->dismiss();
    throw OutOfMemory("thread pool: expected " + std::to_string(threads - 1) +
                      " threads, the system gave " + std::to_string(started) + ": " + error.what());
  }
}

ThreadPool::~ThreadPool() { state_->dismiss(); }

int ThreadPool::threads() const { return static_cast<int>(state_->shares.size()); }

void ThreadPool::run_erased(std::int64_t tasks, Call call, void* self) {
  State& state = *state_;
  const std::int64_t count = std::min<std::int64_t>(threads(), tasks);
  for (std::int64_t i = 0; i < count; ++i) {
    Share& share = state.shares[static_cast<std::size_t>(i)];
    share.end = tasks / count * (i + 1) + std::min(tasks % count, i + 1);
    share.next.store(tasks / count * i + std::min(tasks % count, i), std::memory_order_relaxed);
  }
  state.call = call;
  state.self = self;
  state.failure = nullptr;
  state.working.store(static_cast<int>(count) - 1, std::memory_order_relaxed);
  if (count > 1) {
    // Under the mutex, so that a worker about to sleep either sees it or is woken.
    const std::lock_guard<std::mutex> lock(state.mutex);
    const std::uint64_t loop = (state.order.load(std::memory_order_relaxed) >> kThreadBits) + 1;
    state.order.store((loop << kThreadBits) | static_cast<std::uint64_t>(count),
                      std::memory_order_release);
  }
  if (count > 1) state.wake.notify_all();
  state.work(0, static_cast<std::size_t>(count));
  // Every worker must have left the loop before the next one may reuse the shares.
  for (int spin = 0; state.working.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
  if (state.failure) std::rethrow_exception(state.failure);
}

}  // namespace touchstone::inline v0
