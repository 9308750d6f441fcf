#include "machine/amx_rate.h"

#include <algorithm>
#include <cstdint>

#include "core/context_access.h"
#include "core/thread_pool.h"
#include "cpu/amx.h"
#include "hwy/base.h"
#include "machine/stopwatch.h"

#if HWY_ARCH_X86_64

#include <immintrin.h>

HWY_PUSH_ATTRIBUTES("amx-tile,amx-bf16")
namespace touchstone::machine {
namespace {

// Eight full tiles, of zeros: four chains of sums, two tiles of each operand.
HWY_NOINLINE void run_tiles(std::int64_t steps) {
  struct alignas(64) Configuration {
    std::uint8_t palette = 1;
    std::uint8_t rest[15] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static constexpr Configuration kTiles;
  _tile_loadconfig(&kTiles);  // zeroes them
  for (std::int64_t i = 0; i < steps; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

}  // namespace
}  // namespace touchstone::machine
HWY_POP_ATTRIBUTES

#else

namespace touchstone::machine {
namespace {

void run_tiles(std::int64_t /*steps*/) {}

}  // namespace
}  // namespace touchstone::machine

#endif

namespace touchstone::machine {

double measure_amx_gflops(Context& context) {
  if (!uses_amx_bf16()) return 0;
  constexpr std::int64_t kSteps = 200'000;
  constexpr int kRounds = 5;
  constexpr double kFlops = 4 * 2 * 16 * 16 * 32;
  const std::int64_t threads = context.threads();
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Stopwatch watch;
    detail::ContextAccess::pool(context).run(threads,
                                             [](std::int64_t /*thread*/) { run_tiles(kSteps); });
    best = std::max(best, static_cast<double>(kSteps * threads) * kFlops / watch.seconds() * 1e-9);
  }
  return best;
}

}  // namespace touchstone::machine
