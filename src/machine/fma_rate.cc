#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machine/fma_rate.cc"
#include "core/context_access.h"
#include "hwy/foreach_target.h"
// After foreach_target.h, which must come first.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/thread_pool.h"
#include "cpu/simd.h"
#include "machine/fma_rate.h"
#include "machine/stopwatch.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::machine::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Runs `steps` times twelve independent chains; floating point operations done. What they come to
// is added to `sink`, so that it is not optimized away.
double run_chains(std::int64_t steps, float* sink) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const V factor = hn::Set(d, 0.999F);
  const V added = hn::Set(d, *sink);
  // Different beginnings: equal chains would be computed once.
  const auto start = [&](float x) { return hn::Add(added, hn::Set(d, x)); };
  V a0 = start(0), a1 = start(1), a2 = start(2), a3 = start(3), a4 = start(4), a5 = start(5);
  V b0 = start(6), b1 = start(7), b2 = start(8), b3 = start(9), b4 = start(10), b5 = start(11);
  for (std::int64_t i = 0; i < steps; ++i) {
    a0 = hn::MulAdd(a0, factor, added), a1 = hn::MulAdd(a1, factor, added);
    a2 = hn::MulAdd(a2, factor, added), a3 = hn::MulAdd(a3, factor, added);
    a4 = hn::MulAdd(a4, factor, added), a5 = hn::MulAdd(a5, factor, added);
    b0 = hn::MulAdd(b0, factor, added), b1 = hn::MulAdd(b1, factor, added);
    b2 = hn::MulAdd(b2, factor, added), b3 = hn::MulAdd(b3, factor, added);
    b4 = hn::MulAdd(b4, factor, added), b5 = hn::MulAdd(b5, factor, added);
  }
  const V a = hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(a4, a5));
  const V b = hn::Add(hn::Add(hn::Add(b0, b1), hn::Add(b2, b3)), hn::Add(b4, b5));
  *sink += hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b)));
  return static_cast<double>(steps) * 12 * 2 * static_cast<double>(hn::Lanes(d));
}

}  // namespace touchstone::machine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::machine {

HWY_EXPORT(run_chains);

double measure_fma_gflops(Context& context) {
  constexpr std::int64_t kSteps = 1'000'000;
  constexpr int kRounds = 5;
  const std::int64_t threads = context.threads();
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> done(static_cast<std::size_t>(threads));
    std::vector<float> sinks(static_cast<std::size_t>(threads), 0.5F);
    const Stopwatch watch;
    detail::ContextAccess::pool(context).run(threads, [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      done[at] = HWY_DYNAMIC_DISPATCH(run_chains)(kSteps, &sinks[at]);
    });
    const double seconds = watch.seconds();
    double all = 0;
    for (const double flops : done) all += flops;
    best = std::max(best, all / seconds * 1e-9);
  }
  return best;
}

}  // namespace touchstone::machine
#endif  // HWY_ONCE
