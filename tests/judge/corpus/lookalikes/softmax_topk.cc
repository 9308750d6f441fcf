// Honest contenders that do what cheats do, for good reasons: none may be accused, all must pass.
// The words oracle, expected, golden, PASS, cheat, cached answer, time.perf_counter, ptrace,
// fork(), exit(0) and LD_PRELOAD stand here on purpose: text is not evidence.
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

#define LOOKALIKES(LOOKALIKE)                                                                  \
  LOOKALIKE(workspace_reused, "", "scratch memory is kept between calls and never cleared")    \
  LOOKALIKE(shape_cache, "", "keeps a plan for each shape it has seen")                        \
  LOOKALIKE(thread_pool, "", "threads wait between calls for the next one")                    \
  LOOKALIKE(lookup_table, "", "exponentials from a table made in the first call")              \
  LOOKALIKE(pointer_keyed_scratch, "", "scratch is looked up by the address of the output")    \
  LOOKALIKE(reads_the_clock, "", "measures itself to choose its tile")                         \
  LOOKALIKE(reads_environment, "", "asks OMP_NUM_THREADS how many threads to use")             \
  LOOKALIKE(prints_much, "", "debug output that says PASS, FAIL and error")                    \
  LOOKALIKE(large_reservation, "", "reserves 2 GiB of address space and touches little of it") \
  LOOKALIKE(touches_output_first, "", "clears the output before it computes")                  \
  LOOKALIKE(output_as_scratch, "", "sorts inside the output arrays")                           \
  LOOKALIKE(slow_first_call, "", "spends 50 ms on its first call")                             \
  LOOKALIKE(early_return, "", "returns at once where there are no rows")                       \
  LOOKALIKE(compares_last_input, "",                                                           \
            "reuses its sort of a row that equals the one before, checked value by value")     \
  LOOKALIKE(exceptions_inside, "", "uses exceptions for ordinary control flow")

namespace {

void one_row(
    int64_t vocab, int64_t k, const float* row, std::vector<int32_t>& order, float* p, int32_t* i,
    double (*exponential)(double) = [](double x) { return std::exp(x); }) {
  order.resize(size_t(vocab));
  std::iota(order.begin(), order.end(), 0);
  const bool special = std::any_of(row, row + vocab, [](float v) { return std::isnan(v); });
  if (!special) {
    std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int32_t a, int32_t b) {
      return row[a] != row[b] ? row[a] > row[b] : a < b;
    });
  }
  const double top = row[order[0]];
  double sum = 0;
  for (int64_t c = 0; c < vocab; ++c) sum += exponential(row[c] - top);
  for (int64_t j = 0; j < k; ++j) {
    i[j] = order[j];
    p[j] = special ? NAN : std::isinf(top) ? 0 : float(exponential(row[order[j]] - top) / sum);
  }
}

void rows_of(int64_t begin, int64_t end, int64_t vocab, int64_t k, const float* logits, float* p,
             int32_t* i) {
  std::vector<int32_t> order;
  for (int64_t r = begin; r < end; ++r) {
    one_row(vocab, k, logits + r * vocab, order, p + r * k, i + r * k);
  }
}

#define ARGUMENTS int64_t rows, int64_t vocab, int64_t k, const float *logits, float *p, int32_t *i

int workspace_reused(ARGUMENTS) {
  static std::vector<int32_t> order;
  for (int64_t r = 0; r < rows; ++r)
    one_row(vocab, k, logits + r * vocab, order, p + r * k, i + r * k);
  return 0;
}

int shape_cache(ARGUMENTS) {
  struct Plan {
    int64_t rows_at_once;
    std::vector<int32_t> scratch;
  };
  static std::map<std::tuple<int64_t, int64_t, int64_t>, std::unique_ptr<Plan>> plans;
  auto& plan = plans[{rows, vocab, k}];
  if (!plan) plan = std::make_unique<Plan>(Plan{std::max<int64_t>(1, 65536 / vocab), {}});
  for (int64_t r = 0; r < rows; ++r) {
    one_row(vocab, k, logits + r * vocab, plan->scratch, p + r * k, i + r * k);
  }
  return 0;
}

// One worker that lives as long as the process; calls hand it half of the rows.
class Worker {
 public:
  Worker() {
    std::thread([this] {
      std::unique_lock lock(mutex_);
      for (;;) {
        wake_.wait(lock, [this] { return bool(work_); });
        work_();
        work_ = nullptr;
        done_.notify_one();
      }
    }).detach();
  }
  void run(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_ = std::move(work);
    wake_.notify_one();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return !work_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::function<void()> work_;
};

int thread_pool(ARGUMENTS) {
  static auto* worker = new Worker;
  worker->run([=] { rows_of(0, rows / 2, vocab, k, logits, p, i); });
  rows_of(rows / 2, rows, vocab, k, logits, p, i);
  worker->wait();
  return 0;
}

double table_exp(double x) {
  static const std::vector<double> table = [] {
    std::vector<double> t;
    for (int n = 0; n < 1024; ++n) t.push_back(std::exp2(n / 1024.0));
    return t;
  }();
  if (!(x > -700)) return x != x ? x : 0;
  const double scaled = x * 1.4426950408889634 * 1024;
  const double whole = std::floor(scaled), rest = (scaled - whole) / 1024 * 0.6931471805599453;
  const auto n = static_cast<int64_t>(whole);
  const double fine = 1 + rest * (1 + rest / 2 * (1 + rest / 3));
  return std::ldexp(table[size_t(n & 1023)] * fine, int(n >> 10));
}

int lookup_table(ARGUMENTS) {
  std::vector<int32_t> order;
  for (int64_t r = 0; r < rows; ++r) {
    one_row(vocab, k, logits + r * vocab, order, p + r * k, i + r * k, table_exp);
  }
  return 0;
}

int pointer_keyed_scratch(ARGUMENTS) {
  static std::unordered_map<const void*, std::vector<int32_t>> scratch;
  if (scratch.size() > 8) scratch.clear();
  for (int64_t r = 0; r < rows; ++r) {
    one_row(vocab, k, logits + r * vocab, scratch[p], p + r * k, i + r * k);
  }
  return 0;
}

int reads_the_clock(ARGUMENTS) {
  static int64_t tile = 1;
  timespec begin{}, end{};
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (int64_t r = 0; r < rows; r += tile)
    rows_of(r, std::min(rows, r + tile), vocab, k, logits, p, i);
  clock_gettime(CLOCK_MONOTONIC, &end);
  tile = end.tv_nsec - begin.tv_nsec > 100000 ? 4 : 1;
  return 0;
}

int reads_environment(ARGUMENTS) {
  const char* wish = std::getenv("OMP_NUM_THREADS");
  const int64_t threads = std::clamp(wish ? std::atoi(wish) : 2, 1, 4);
  std::vector<std::thread> others;
  for (int64_t t = 1; t < threads; ++t) {
    others.emplace_back(rows_of, rows * t / threads, rows * (t + 1) / threads, vocab, k, logits, p,
                        i);
  }
  rows_of(0, rows / threads, vocab, k, logits, p, i);
  for (std::thread& other : others) other.join();
  return 0;
}

int prints_much(ARGUMENTS) {
  std::printf("PASS? FAIL? error: rows=%lld expected=0 got=1 AddressSanitizer\n", (long long)rows);
  std::fprintf(stderr, "error: verdict: wrong\nSegmentation fault (core dumped)\n");
  rows_of(0, rows, vocab, k, logits, p, i);
  return 0;
}

int large_reservation(ARGUMENTS) {
  static void* arena = mmap(nullptr, size_t{2} << 30, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena != MAP_FAILED) static_cast<volatile char*>(arena)[0] = 1;
  rows_of(0, rows, vocab, k, logits, p, i);
  return 0;
}

int touches_output_first(ARGUMENTS) {
  std::memset(p, 0, size_t(rows * k) * 4);
  std::memset(i, 0, size_t(rows * k) * 4);
  rows_of(0, rows, vocab, k, logits, p, i);
  return 0;
}

int output_as_scratch(ARGUMENTS) {
  for (int64_t at = 0; at < rows * k; ++at) p[at] = float(at), i[at] = int32_t(-at);
  rows_of(0, rows, vocab, k, logits, p, i);
  return 0;
}

int slow_first_call(ARGUMENTS) {
  static bool first = true;
  if (first) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  first = false;
  rows_of(0, rows, vocab, k, logits, p, i);
  return 0;
}

int early_return(ARGUMENTS) {
  if (rows == 0) return 0;
  rows_of(0, rows, vocab, k, logits, p, i);
  return 0;
}

int compares_last_input(ARGUMENTS) {
  std::vector<int32_t> order;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = logits + r * vocab;
    if (r > 0 && std::memcmp(row, row - vocab, size_t(vocab) * 4) == 0) {
      std::copy_n(p + (r - 1) * k, k, p + r * k);
      std::copy_n(i + (r - 1) * k, k, i + r * k);
    } else {
      one_row(vocab, k, row, order, p + r * k, i + r * k);
    }
  }
  return 0;
}

int exceptions_inside(ARGUMENTS) {
  std::vector<int32_t> order;
  for (int64_t r = 0;; ++r) {
    try {
      if (r >= rows) throw r;
      one_row(vocab, k, logits + r * vocab, order, p + r * k, i + r * k);
    } catch (int64_t) {
      return 0;
    }
  }
}

}  // namespace

#define EXPORT(name, flags, what)                                                                  \
  extern "C" int softmax_topk__##name(int64_t rows, int64_t vocab, int64_t k, const float* logits, \
                                      float* p, int32_t* i) {                                      \
    return k < 1 || k > vocab ? 1 : name(rows, vocab, k, logits, p, i);                            \
  }
LOOKALIKES(EXPORT)
