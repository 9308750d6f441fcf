// Cases again, in an order that no plan has: what is kept between calls shows only after others.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
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
constexpr std::size_t kAlike = 3;

struct Stop {
  std::string id;
  std::shared_ptr<const StoredCase> stored;
  std::vector<Reply> known;  // right answers, once there are some
};

std::vector<const CaseRecord*> quick_right_cases(const Session& session) {
  std::vector<const CaseRecord*> cases;
  for (const CaseRecord& c : session.record.cases) {
    const bool right = c.ending == Ending::ok && c.check.passed && c.lack.empty();
    if (right && c.seconds <= kQuickSeconds) cases.push_back(&c);
  }
  return cases;
}

bool add_stop(Session& session, const CaseRecord& c, std::vector<Stop>& stops) {
  const auto stored = session.reference.cases.get(c.spec);
  const Case& asked = stored->asked();
  if (asked.calls.size() > kMaxCalls || !missing_function(session, asked).empty()) return false;
  stops.push_back({c.id, stored, {}});
  return true;
}

// Quick cases of as many families as there are, in an order of the seed: neighbors among sizes and data
// of all kinds.
std::vector<Stop> chosen_stops(Session& session) {
  std::vector<const CaseRecord*> order = quick_right_cases(session);
  std::ranges::shuffle(order, session.random);
  std::map<std::string, int> taken;
  std::ranges::stable_sort(order, {}, [&](const CaseRecord* c) {
    // Of a family whose cases are many the second comes late, not last.
    return taken[c->spec.family]++ / 2;
  });
  std::vector<Stop> stops;
  for (const CaseRecord* c : order) {
    if (stops.size() == kCases) break;
    add_stop(session, *c, stops);
  }
  return stops;
}

// Adds cases that differ in their numbers alone, where the plan has them, and returns how the walk begins:
// with one of other sizes, all of these, and both again, so that a call has the sizes of the call before
// the last.
std::vector<std::size_t> add_alike(Session& session, std::vector<Stop>& stops) {
  std::map<std::pair<std::string, std::map<std::string, int64_t>>, std::vector<const CaseRecord*>>
      groups;
  for (const CaseRecord* c : quick_right_cases(session)) {
    if (c->spec.edits.empty()) groups[{c->spec.family, c->spec.parameters}].push_back(c);
  }
  const auto most =
      std::ranges::max_element(groups, {}, [](const auto& group) { return group.second.size(); });
  if (most == groups.end() || most->second.size() < kAlike) return {};
  std::vector<std::size_t> way;
  for (std::size_t i = 0; i < stops.size() && way.empty(); ++i) {
    const CaseSpec& spec = stops[i].stored->asked().spec;
    if (spec.parameters != most->first.second) way.push_back(i);
  }
  for (std::size_t i = 0; i < kAlike; ++i) {
    if (add_stop(session, *most->second[i], stops)) way.push_back(stops.size() - 1);
  }
  if (way.size() > 1) way.insert(way.end(), {way[0], way[1]});
  return way;
}

}  // namespace

void walk_cases(Session& session) {
  std::vector<Stop> stops = chosen_stops(session);
  if (stops.size() < 2) return;
  const std::vector<std::size_t> alike = add_alike(session, stops);
  session.log_progress("calls in another order");
  const auto begin = Clock::now();
  const double granted = session.granted_seconds(kWalkSeconds);
  std::vector<std::size_t> walked;
  while (walked.size() < kSteps && seconds_since(begin) < granted) {
    const uint64_t draw = session.random();
    const std::size_t recent = std::min(walked.size(), kRecent);
    const bool back = recent > 0 && draw % 8 < kBack;
    const std::size_t at = walked.size() < alike.size() ? alike[walked.size()]
                           : back ? walked[walked.size() - 1 - draw / 8 % recent]
                                  : draw / 8 % stops.size();
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
