// Cases again, in an order that no plan has: what is kept between calls shows only after others.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "judge/measure/session.h"

namespace touchstone::judge {
namespace {

constexpr std::size_t kCases = 24;
constexpr std::size_t kSteps = 120;
constexpr double kWalkSeconds = 0.6;
constexpr double kQuickSeconds = 0.02;
constexpr std::size_t kMaxCalls = 24;
// Of the steps, so many of 8 go back to one of the last cases: A, B, A and A, A, B.
constexpr uint64_t kBack = 4;
constexpr std::size_t kRecent = 3;

struct Stop {
  std::string id;
  std::shared_ptr<const StoredCase> stored;
  std::vector<Reply> known;  // right answers, once there are some
};

// Quick cases of as many families as there are, in an order of the seed: neighbors among sizes and data
// of all kinds.
std::vector<Stop> chosen_stops(Session& session) {
  std::vector<const CaseRecord*> order;
  for (const CaseRecord& c : session.record.cases) {
    const bool right = c.ending == Ending::ok && c.check.passed && c.lack.empty();
    if (right && c.seconds <= kQuickSeconds) order.push_back(&c);
  }
  std::ranges::shuffle(order, session.random);
  std::map<std::string, int> taken;
  std::ranges::stable_sort(order, {}, [&](const CaseRecord* c) {
    // Of a family whose cases are many the second comes late, not last.
    return taken[c->spec.family]++ / 2;
  });
  std::vector<Stop> stops;
  for (const CaseRecord* c : order) {
    if (stops.size() == kCases) break;
    const auto stored = session.reference.cases.get(c->spec);
    const Case& asked = stored->asked();
    if (asked.calls.size() > kMaxCalls || !missing_function(session, asked).empty()) continue;
    stops.push_back({c->id, stored, {}});
  }
  return stops;
}

}  // namespace

void walk_cases(Session& session) {
  std::vector<Stop> stops = chosen_stops(session);
  if (stops.size() < 2) return;
  session.log_progress("calls in another order");
  const auto begin = Clock::now();
  const double granted = session.granted_seconds(kWalkSeconds);
  std::vector<std::size_t> walked;
  while (walked.size() < kSteps && seconds_since(begin) < granted) {
    const uint64_t draw = session.random();
    const std::size_t recent = std::min(walked.size(), kRecent);
    const bool back = recent > 0 && draw % 8 < kBack;
    const std::size_t at =
        back ? walked[walked.size() - 1 - draw / 8 % recent] : draw / 8 % stops.size();
    walked.push_back(at);
    Stop& stop = stops[at];
    const Case& asked = stop.stored->asked();
    const std::vector<Reply> replies =
        session.process.run(asked, Placement::end_flush, session.random());
    const std::string id = fmt::format("{}o{}", stop.id, walked.size());
    if (ending_of(replies) != Ending::ok) {
      session.add_failed_run(id, asked.spec, replies);
      return;
    }
    // Bits that were right once need no second look.
    if (!stop.known.empty() && same_outputs(stop.known, replies)) continue;
    CaseCheck check = stop.stored->check(replies);
    if (!check.passed) {
      check.reason = fmt::format("after other calls: {}", check.reason);
      session.add_wrong_case(id, asked.spec, check);
      return;
    }
    if (stop.known.empty()) stop.known = replies;
  }
  session.record.facts["order of calls"] =
      fmt::format("{} calls of {} cases, in an order of the seed", walked.size(), stops.size());
}

}  // namespace touchstone::judge
