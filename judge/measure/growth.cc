// How time grows along the memory ladder, and what is still held after the last call.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "judge/measure/paired_stats.h"
#include "judge/measure/session.h"

namespace touchstone::judge {
namespace {

constexpr double kGrowthSeconds = 2.0;
// Waking the child takes some 20 us of every call: a tenth of this.
constexpr double kMinGrowthSeconds = 200e-6;
constexpr double kRungSeconds = 0.12;
constexpr int kMinRuns = 3;
constexpr int kMaxRuns = 12;

void take_less(double& least, double seconds) {
  if (least == 0.0 || seconds < least) least = seconds;
}

// Runs one size. The first run warms up; of the others the quickest counts that nobody disturbed, and
// the one that took least processor time. False when a call did not end well.
bool time_rung(Session& session, const Case& asked, MemoryPoint& point, double& cpu_seconds,
               const std::string& id) {
  const auto begin = Clock::now();
  for (int run = 0; run < kMaxRuns && (run < kMinRuns || seconds_since(begin) < kRungSeconds);
       ++run) {
    const std::vector<Reply> replies =
        session.meter.run(asked, Placement::end_flush, session.random());
    if (session.add_failed_run(id, asked.spec, replies)) return false;
    Child* child = run == 0 ? session.meter.child() : nullptr;
    if (child != nullptr) point.kept_bytes = child->held_bytes();
    if (run == 0) continue;
    double cpu = 0.0;
    for (size_t i = 0; i < replies.size(); ++i)
      cpu += asked.calls[i].timed ? replies[i].cpu_seconds : 0;
    take_less(cpu_seconds, cpu);
    const bool quiet = std::ranges::none_of(replies, &Reply::disturbed);
    if (quiet) take_less(point.seconds, timed_seconds(asked, replies));
  }
  return true;
}

}  // namespace

std::optional<double> growth_exponent(std::span<const std::pair<double, double>> points,
                                      double least) {
  double count = 0.0;
  double mean_x = 0.0;
  double mean_y = 0.0;
  double above = 0.0;
  double below = 0.0;
  for (const auto& [n, value] : points) {
    if (n < 1.0 || value < least) continue;
    const double x = std::log(n) - mean_x;
    const double y = std::log(value) - mean_y;
    count += 1.0;
    mean_x += x / count;
    mean_y += y / count;
    above += x * (std::log(value) - mean_y);
    below += x * (std::log(n) - mean_x);
  }
  if (count < 3.0 || !(below > 0.0)) return std::nullopt;
  return above / below;
}

void measure_time_growth(Session& session, const Plan& plan) {
  MemoryRecord& memory = session.record.memory;
  const auto begin = Clock::now();
  session.meter.restart();
  std::vector<std::pair<double, double>> by_clock;
  std::vector<std::pair<double, double>> by_processor;
  std::string& fact = session.record.facts["time growth"];
  fact = "not measured: no size was run";
  // The largest first: what is held after it is not what smaller ones left behind.
  for (std::size_t i = std::min(memory.ladder.size(), plan.memory_ladder.size()); i-- > 0;) {
    if (seconds_since(begin) > kGrowthSeconds) break;
    MemoryPoint& point = memory.ladder[i];
    const auto stored = session.reference.cases.get(plan.memory_ladder[i]);
    double cpu = 0.0;
    if (!time_rung(session, stored->asked(), point, cpu, ladder_id(i))) {
      fact = "not measured: a call did not end well";
      return;
    }
    if (i + 1 != memory.ladder.size()) point.kept_bytes = 0;
    const auto n = static_cast<double>(point.n);
    if (point.seconds > 0.0) by_clock.emplace_back(n, point.seconds);
    by_processor.emplace_back(n, cpu);
  }
  session.meter.restart();
  const bool timed = by_clock.size() == by_processor.size();
  memory.time_exponent = growth_exponent(timed ? by_clock : by_processor, kMinGrowthSeconds);
  fact = timed ? "by the clock" : "by processor time: others disturbed the calls";
  if (!memory.time_exponent.has_value()) {
    fact = "not measured: fewer than three sizes take 0.2 ms";
  }
}

}  // namespace touchstone::judge
