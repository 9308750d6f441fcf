#include "judge/measure/roofline.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "judge/run/contender_process.h"
#include "machine/cpu_info.h"
#include "machine/fma_rate.h"
#include "machine/memory_rate.h"
#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"

namespace touchstone::judge {
namespace {

void set_cpus(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  // A refusal costs precision, which the twin will show.
  if (!cpus.empty()) (void)sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

Pinned::Pinned(const std::vector<int>& cpus) : before_(machine::usable_cpus()) { set_cpus(cpus); }

Pinned::~Pinned() { set_cpus(before_); }

double copy_floor_seconds(double bytes, const std::vector<int>& cpus) {
  constexpr int64_t kPage = 4096;
  constexpr int64_t kMax = int64_t{64} << 20;
  const Pinned pinned(cpus);
  const auto half = static_cast<int64_t>(bytes / 2);
  const int64_t size = std::clamp(half / kPage * kPage, kPage, kMax);
  Context context({.threads = static_cast<int>(std::max<std::size_t>(1, cpus.size()))});
  Tensor from = Tensor::empty({size / 4}, DType::f32);
  Tensor to = Tensor::empty({size / 4}, DType::f32);
  std::ranges::fill(from.values<float>(), 1.0F);
  std::ranges::fill(to.values<float>(), 0.0F);
  // Small copies are over before a clock is read twice: several are timed as one.
  const int repeats = static_cast<int>(std::clamp<int64_t>((1 << 20) / size, 1, 64));
  double best = std::numeric_limits<double>::infinity();
  for (const machine::CpuCopy& copy : machine::cpu_copies()) {
    for (int round = 0; round < 8; ++round) {
      const auto begin = Clock::now();
      for (int i = 0; i < repeats; ++i) {
        machine::parallel_copy(context, copy, to.data(), from.data(), size);
      }
      best = std::min(best, seconds_since(begin) / repeats);
    }
  }
  return best * static_cast<double>(half) / static_cast<double>(size);
}

double peak_flops(const std::vector<int>& cpus) {
  const Pinned pinned(cpus);
  Context context({.threads = static_cast<int>(std::max<std::size_t>(1, cpus.size()))});
  return 1e9 * machine::measure_fma_gflops(context);
}

}  // namespace touchstone::judge
