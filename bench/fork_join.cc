#include "bench/fork_join.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "bench/openmp.h"
#include "core/thread_pool.h"
#include "machine/stopwatch.h"

namespace touchstone::bench {
namespace {

// Loops per sample: long enough for the clock, short enough for many rounds.
constexpr int kLoops = 200;

// Both runtimes spin a little before their idle threads sleep; let one go quiet before the other
// is measured.
constexpr auto kPause = std::chrono::milliseconds(5);

template <class Loop>
double sample_us(const Loop& loop) {
  std::this_thread::sleep_for(kPause);
  for (int i = 0; i < 20; ++i) loop();
  const machine::Stopwatch watch;
  for (int i = 0; i < kLoops; ++i) loop();
  return watch.microseconds() / kLoops;
}

void measure(int threads, int rounds, std::vector<ForkJoinRow>& rows) {
  ThreadPool pool(threads);
  // A store the compiler cannot remove, so that the loop stays a loop.
  std::atomic<std::int64_t> sink{0};
  const auto ours = [&] {
    pool.run(threads, [&](std::int64_t task) { sink.store(task, std::memory_order_relaxed); });
  };
  const auto openmp = [&] {
    openmp_loop(
        threads, threads,
        [](void* self, std::int64_t task) {
          static_cast<std::atomic<std::int64_t>*>(self)->store(task, std::memory_order_relaxed);
        },
        &sink);
  };
  std::vector<double> ours_us;
  std::vector<double> openmp_us;
  for (int round = 0; round < rounds; ++round) {
    const bool ours_first = round % 2 == 0;
    if (ours_first) ours_us.push_back(sample_us(ours));
    if (has_openmp()) openmp_us.push_back(sample_us(openmp));
    if (!ours_first) ours_us.push_back(sample_us(ours));
  }
  rows.push_back({"touchstone", threads, machine::summarize(ours_us)});
  if (has_openmp()) rows.push_back({"openmp", threads, machine::summarize(openmp_us)});
}

}  // namespace

std::vector<ForkJoinRow> measure_fork_join(int most, int rounds,
                                           const std::function<void(int threads)>& progress) {
  if (most == 0) most = available_threads();
  std::vector<ForkJoinRow> rows;
  for (int threads = 1; threads < most; threads *= 2) {
    progress(threads);
    measure(threads, rounds, rows);
  }
  progress(most);
  measure(most, rounds, rows);
  return rows;
}

}  // namespace touchstone::bench
