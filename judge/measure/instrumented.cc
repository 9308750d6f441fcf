// Cases again, in processes that show more: a build with sanitizers, and the plain build over a heap
// whose blocks are guarded and never zero. Answers are compared here as everywhere.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "judge/measure/session.h"

namespace touchstone::judge {
namespace {

constexpr int kMaxInstrumented = 24;
constexpr int kMaxBrief = 8;
constexpr double kInstrumentedSeconds = 6.0;
constexpr double kLongCaseSeconds = 0.1;

// One of each family before a second of any, in the order of the plan; only what ended well.
std::vector<const CaseRecord*> chosen_cases(const Session& session) {
  std::map<std::string, int> taken;
  std::vector<std::pair<int, const CaseRecord*>> order;
  for (const CaseRecord& c : session.record.cases) {
    order.emplace_back(taken[c.spec.family]++, &c);
  }
  std::ranges::stable_sort(order, {}, &std::pair<int, const CaseRecord*>::first);
  std::vector<const CaseRecord*> chosen;
  for (const auto& [turn, c] : order) {
    if (c->ending == Ending::ok && c->check.passed) chosen.push_back(c);
  }
  return chosen;
}

struct Instrument {
  std::string fact;  // under which the record says what was run
  std::string finding;
  std::string what;   // "cases under ASan and UBSan"
  std::string where;  // of a wrong answer
};

void run_instrumented(Session& session, ContenderProcess& process, const Instrument& instrument) {
  const auto begin = Clock::now();
  const std::vector<const CaseRecord*> chosen = chosen_cases(session);
  const int most = session.options.brief ? kMaxBrief : kMaxInstrumented;
  int run = 0;
  std::string ended;
  for (const CaseRecord* c : chosen) {
    if (run >= most || process.deaths() > 0) break;
    if (seconds_since(begin) > kInstrumentedSeconds) {
      ended = fmt::format("; no more in {:g} s", kInstrumentedSeconds);
      break;
    }
    // What took long as it is would take all of the time: several smaller ones show more.
    if (c->seconds > kLongCaseSeconds) continue;
    const auto asked = session.reference.cases.get(c->spec);
    if (!missing_function(session, asked->asked()).empty()) continue;
    session.log_progress(fmt::format("{}, case {}", instrument.fact, ++run));
    std::vector<Reply> replies;
    const CaseCheck check = process.check(*asked, Placement::end_flush, session.random(), &replies);
    const Reply* bad = first_bad(replies);
    if (bad != nullptr && process.child() == nullptr && process.deaths() == 0) {
      session.record.facts[instrument.fact] = "did not start: " + process.started().detail;
      return;
    }
    // Instrumented code is slow and large; that alone is nothing against it.
    if (bad != nullptr && (bad->ending == Ending::hung || bad->ending == Ending::out_of_memory)) {
      ended = fmt::format("; ended by {}", bad->detail);
      break;
    }
    if (bad != nullptr) {
      session.add_finding(instrument.finding,
                          bad->detail.empty() ? std::string(name_of(bad->ending)) : bad->detail,
                          c->id);
    } else if (!check.passed) {
      session.add_finding(instrument.finding,
                          fmt::format("right before, wrong {}: {}", instrument.where, check.reason),
                          c->id);
    }
  }
  session.record.facts[instrument.fact] = fmt::format("{} {}{}", run, instrument.what, ended);
}

}  // namespace

void run_sanitized(Session& session) {
  const BuildResult& build = session.record.build;
  if (!session.options.sanitize || build.sanitized.empty()) return;
  BuildResult sanitized = build;
  sanitized.library = build.sanitized;
  Limits limits = session.options.limits;
  limits.memory_bytes *= 4;  // shadow memory and quarantine
  limits.call_seconds *= 4;
  limits.measured = false;
  ContenderProcess process(session.contender, sanitized, session.task, session.record.sandbox,
                           limits);
  run_instrumented(
      session, process,
      {"sanitizers", "sanitizer", "cases under ASan and UBSan", "in the sanitized build"});
}

void run_guarded(Session& session) {
  const Language language = session.contender.language;
  if (language == Language::numpy || language == Language::cuda) return;
  Limits limits = session.options.limits;
  limits.memory_bytes *= 4;  // small blocks take a page each
  limits.call_seconds *= 4;
  limits.measured = false;
  limits.heap = ChildHeap::guarded;
  ContenderProcess process(session.contender, session.record.build, session.task,
                           session.record.sandbox, limits);
  run_instrumented(session, process,
                   {"guarded heap", "heap", "cases with guarded and poisoned heap blocks",
                    "where fresh heap memory is not zero"});
}

}  // namespace touchstone::judge
