// How time grows along the memory ladder, and what is still held after the last call.
#include <algorithm>
#include <cmath>

#include "judge/measure/session.h"

namespace touchstone::judge {
namespace {

constexpr double kGrowthSeconds = 2.0;
// Shorter calls are mostly wake-up and capture.
constexpr double kMinGrowthSeconds = 50e-6;
constexpr double kRungSeconds = 0.12;
constexpr int kMinRuns = 3;
constexpr int kMaxRuns = 12;

// The slope of log(seconds) over log(n), by least squares; nothing with fewer than three points.
std::optional<double> fitted_time(const std::vector<MemoryPoint>& ladder) {
  std::vector<std::pair<double, double>> points;
  for (const MemoryPoint& point : ladder) {
    if (point.n < 1 || point.seconds < kMinGrowthSeconds) continue;
    points.emplace_back(std::log(static_cast<double>(point.n)), std::log(point.seconds));
  }
  if (points.size() < 3) return std::nullopt;
  double mean_x = 0.0;
  double mean_y = 0.0;
  for (const auto& [x, y] : points) {
    mean_x += x / static_cast<double>(points.size());
    mean_y += y / static_cast<double>(points.size());
  }
  double above = 0.0;
  double below = 0.0;
  for (const auto& [x, y] : points) {
    above += (x - mean_x) * (y - mean_y);
    below += (x - mean_x) * (x - mean_x);
  }
  return below > 0.0 ? std::optional(above / below) : std::nullopt;
}

}  // namespace

void measure_time_growth(Session& session, const Plan& plan) {
  MemoryRecord& memory = session.record.memory;
  const auto begin = Clock::now();
  session.meter.restart();
  // The largest first: what is held after it is not what smaller ones left behind.
  for (std::size_t i = memory.ladder.size(); i-- > 0;) {
    if (i >= plan.memory_ladder.size() || seconds_since(begin) > kGrowthSeconds) break;
    MemoryPoint& point = memory.ladder[i];
    const Case asked = session.task.build(plan.memory_ladder[i]);
    const auto rung = Clock::now();
    // The first run warms up; of the others the quickest counts that nobody disturbed.
    for (int run = 0; run < kMaxRuns && (run < kMinRuns || seconds_since(rung) < kRungSeconds);
         ++run) {
      const std::vector<Reply> replies =
          session.meter.run(asked, Placement::end_flush, session.random());
      if (ending_of(replies) != Ending::ok) return;
      const bool largest = i + 1 == memory.ladder.size() && run == 0;
      Child* child = largest ? session.meter.child() : nullptr;
      if (child != nullptr) point.kept_bytes = child->held_bytes();
      if (run == 0 || std::ranges::any_of(replies, &Reply::disturbed)) continue;
      const double seconds = timed_seconds(asked, replies);
      if (point.seconds == 0.0 || seconds < point.seconds) point.seconds = seconds;
    }
  }
  session.meter.restart();
  memory.time_exponent = fitted_time(memory.ladder);
}

}  // namespace touchstone::judge
