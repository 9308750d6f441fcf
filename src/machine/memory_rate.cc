#include "machine/memory_rate.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <numeric>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/context_access.h"
#include "core/thread_pool.h"
#include "machine/cpu_info.h"
#include "machine/statistics.h"
#include "machine/stopwatch.h"
#include "touchstone/core/checked.h"

namespace touchstone::machine {
namespace {

// Every piece a thread takes starts on a page, so no two threads write the same line.
constexpr std::int64_t kPage = 4096;

void copy_plain(char* to, const char* from, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void add_plain(float* to, const float* a, const float* b, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = a[i] + b[i];
}

#if defined(__x86_64__)
// Non-temporal stores write a line without reading it first: a third less traffic than plain ones.
__attribute__((target("avx512f"))) void copy_avx512(char* to, const char* from,
                                                    std::int64_t bytes) {
  const std::int64_t whole = bytes & ~std::int64_t{63};
  for (std::int64_t i = 0; i < whole; i += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
  }
  _mm_sfence();
  copy_plain(to + whole, from + whole, bytes - whole);
}

__attribute__((target("avx2"))) void copy_avx2(char* to, const char* from, std::int64_t bytes) {
  const std::int64_t whole = bytes & ~std::int64_t{63};
  for (std::int64_t i = 0; i < whole; i += 64) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32), high);
  }
  _mm_sfence();
  copy_plain(to + whole, from + whole, bytes - whole);
}

__attribute__((target("avx512f"))) void add_avx512(float* to, const float* a, const float* b,
                                                   std::int64_t count) {
  const std::int64_t whole = count & ~std::int64_t{15};
  for (std::int64_t i = 0; i < whole; i += 16) {
    _mm512_stream_ps(to + i, _mm512_add_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i)));
  }
  _mm_sfence();
  add_plain(to + whole, a + whole, b + whole, count - whole);
}

__attribute__((target("avx2"))) void add_avx2(float* to, const float* a, const float* b,
                                              std::int64_t count) {
  const std::int64_t whole = count & ~std::int64_t{7};
  for (std::int64_t i = 0; i < whole; i += 8) {
    _mm256_stream_ps(to + i, _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
  }
  _mm_sfence();
  add_plain(to + whole, a + whole, b + whole, count - whole);
}

// Four sums, so that no addition waits for the one before.
__attribute__((target("avx512f"))) float sum_avx512(const float* from, std::int64_t count) {
  __m512 sums[4] = {};
  const std::int64_t whole = count & ~std::int64_t{63};
  for (std::int64_t i = 0; i < whole; i += 64) {
    for (int j = 0; j < 4; ++j) {
      sums[j] = _mm512_add_ps(sums[j], _mm512_loadu_ps(from + i + 16 * j));
    }
  }
  float lanes[16];
  _mm512_storeu_ps(lanes,
                   _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
  return std::accumulate(std::begin(lanes), std::end(lanes), 0.0F);
}
#endif

// Plain additions may not be reordered, so that one sum would be slower than the memory.
float sum_plain(const float* from, std::int64_t count) {
  constexpr std::int64_t kSums = 32;
  float sums[kSums] = {};
  for (std::int64_t i = 0; i + kSums <= count; i += kSums) {
    for (std::int64_t j = 0; j < kSums; ++j) sums[j] += from[i + j];
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

using Sum = float (*)(const float* from, std::int64_t count);

Sum best_sum() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return sum_avx512;
#endif
  return sum_plain;
}

using Add = void (*)(float* to, const float* a, const float* b, std::int64_t count);

Add best_add() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return add_avx512;
  if (__builtin_cpu_supports("avx2")) return add_avx2;
#endif
  return add_plain;
}

// Calls body(begin, end) for page-aligned pieces of [0, bytes), some per thread so that a thread
// that was interrupted is helped.
template <class Body>
void in_pieces(ThreadPool& pool, std::int64_t bytes, const Body& body) {
  const std::int64_t pages = ceil_div(bytes, kPage);
  const std::int64_t tasks = std::clamp<std::int64_t>(pages, 1, std::int64_t{8} * pool.threads());
  pool.run(tasks, [&](std::int64_t task) {
    const std::int64_t begin = pages * task / tasks * kPage;
    const std::int64_t end = std::min(bytes, pages * (task + 1) / tasks * kPage);
    if (begin < end) body(begin, end);
  });
}

void parallel_add(Context& context, Add add, Tensor& to, const Tensor& a, const Tensor& b) {
  float* out = to.values<float>().data();
  const float* left = a.values<float>().data();
  const float* right = b.values<float>().data();
  in_pieces(detail::ContextAccess::pool(context), to.bytes(),
            [&](std::int64_t begin, std::int64_t end) {
              const std::int64_t first = begin / 4;
              add(out + first, left + first, right + first, (end - begin) / 4);
            });
}

}  // namespace

std::vector<CpuCopy> cpu_copies() {
  std::vector<CpuCopy> copies;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) copies.push_back({"stream512", copy_avx512});
  if (__builtin_cpu_supports("avx2")) copies.push_back({"stream256", copy_avx2});
#endif
  copies.push_back({"memcpy", copy_plain});
  return copies;
}

void parallel_copy(Context& context, const CpuCopy& how, void* to, const void* from,
                   std::int64_t bytes) {
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
  in_pieces(detail::ContextAccess::pool(context), bytes, [&](std::int64_t begin, std::int64_t end) {
    how.copy(out + begin, in + begin, end - begin);
  });
}

void parallel_read(Context& context, const void* from, std::int64_t bytes) {
  const Sum sum = best_sum();
  const float* const values = static_cast<const float*>(from);
  // Takes the sums, so that the reads cannot be left out.
  std::atomic<float> sink = 0;
  in_pieces(detail::ContextAccess::pool(context), bytes, [&](std::int64_t begin, std::int64_t end) {
    sink.store(sum(values + begin / 4, (end - begin) / 4), std::memory_order_relaxed);
  });
}

Ceiling measure_cpu_ceiling(Context& context, int rounds) {
  constexpr std::int64_t kMin = std::int64_t{128} << 20;
  constexpr std::int64_t kMax = std::int64_t{1} << 30;
  // A copy goes through two buffers: four times what the cache holds.
  std::int64_t bytes = std::clamp(2 * last_level_cache_bytes(cpu_info()), kMin, kMax);
  bytes = std::max(std::min(bytes, available_memory_bytes() / 16), kPage) / kPage * kPage;
  Tensor a = Tensor::empty({bytes / 4}, DType::f32);
  Tensor b = Tensor::empty({bytes / 4}, DType::f32);
  Tensor c = Tensor::empty({bytes / 4}, DType::f32);
  for (Tensor* tensor : {&a, &b, &c}) {
    float* values = tensor->values<float>().data();
    in_pieces(detail::ContextAccess::pool(context), bytes,
              [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t i = begin / 4; i < end / 4; ++i)
                  values[i] = static_cast<float>(i & 255);
              });
  }
  const std::vector<CpuCopy> copies = cpu_copies();
  const Add add = best_add();
  std::vector<std::vector<double>> copy_seconds(copies.size());
  std::vector<double> add_seconds;
  std::vector<double> read_seconds;
  for (int round = -1; round < rounds; ++round) {  // round -1 warms up
    for (std::size_t i = 0; i < copies.size(); ++i) {
      const Stopwatch watch;
      parallel_copy(context, copies[i], c.data(), a.data(), bytes);
      if (round >= 0) copy_seconds[i].push_back(watch.seconds());
    }
    Stopwatch watch;
    parallel_add(context, add, c, a, b);
    if (round >= 0) add_seconds.push_back(watch.seconds());
    watch = {};
    parallel_read(context, a.data(), bytes);
    if (round >= 0) read_seconds.push_back(watch.seconds());
  }
  Ceiling ceiling;
  ceiling.buffer_bytes = bytes;
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const Summary summary = summarize(copy_seconds[i]);
    const double rate = 2 * gigabytes / summary.median;
    if (rate <= ceiling.copy_gbs) continue;
    ceiling.copy_name = copies[i].name;
    ceiling.copy_gbs = rate;
    ceiling.copy_best_gbs = 2 * gigabytes / summary.best;
  }
  ceiling.triad_gbs = 3 * gigabytes / summarize(add_seconds).median;
  ceiling.read_gbs = gigabytes / summarize(read_seconds).median;
  return ceiling;
}

}  // namespace touchstone::machine
