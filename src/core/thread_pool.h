// A fork-join pool: a fixed number of threads that run the tasks of one loop at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace touchstone::inline v0 {

// The threads the process may run on: its CPU affinity, not the machine's core count.
int available_threads();

class ThreadPool {
 public:
  // `threads` counts the caller, so 1 starts no thread. OutOfMemory when the system cannot start
  // them.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls body(task) once for every task in [0, tasks) and returns when all are done. Each thread
  // starts on its own contiguous share (so that repeated loops over the same data keep it in the
  // same cache) and then steals from others. An exception of a body is rethrown here after the
  // loop has drained. Bodies must not call run() on the same pool.
  template <class Body>
  void run(std::int64_t tasks, Body&& body) {
    if (tasks <= 0) return;
    if (tasks == 1) {
      body(std::int64_t{0});
      return;
    }
    using Plain = std::remove_reference_t<Body>;
    run_erased(
        tasks, [](void* self, std::int64_t task) { (*static_cast<Plain*>(self))(task); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* self, std::int64_t task);
  void run_erased(std::int64_t tasks, Call call, void* self);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace touchstone::inline v0
