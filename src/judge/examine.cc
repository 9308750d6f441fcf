// Cases, relations, probes, witnesses and the sanitizer run.
#include "judge/examine.h"

#include <algorithm>
#include <map>
#include <set>

#include "fmt/format.h"
#include "judge/shrink.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

// A contender that died or hung so often has said what it has to say.
constexpr int kMostDeaths = 4;
constexpr int kMostHangs = 2;
// Cases must leave time for the rest of a judgement.
constexpr double kCaseSeconds = 120.0;
constexpr std::size_t kMostCallsThrice = 48;
constexpr int kMostSanitized = 24;
constexpr double kSanitizedSeconds = 6.0;
constexpr int kMostWitnesses = 3;
constexpr double kShrinkSeconds = 2.5;
constexpr int kShrinkRuns = 120;

bool enough(const Session& session) {
  const auto hangs = std::ranges::count(session.record.findings, "hung", &Finding::kind);
  return session.stage.deaths() >= kMostDeaths || hangs >= kMostHangs ||
         seconds_since(session.begin) > kCaseSeconds;
}

// What only the whole judgement shows is shown by its seed.
std::string whole_again(const Session& session) {
  return fmt::format("{} --seed {}{} --no-speed",
                     judge_command(session.record.path, session.task.card().id),
                     session.record.seed, session.options.small ? " --small" : "");
}

// The first function of a case that the contender does not have; empty when it has all.
std::string lacking(const Session& session, const Case& asked) {
  const auto& functions = session.contender.binding.functions;
  for (const Call& call : asked.calls) {
    if (!functions.empty() && !functions.contains(call.function)) return call.function;
  }
  return {};
}

// One case in three runs: twice alike, once at other addresses over another poison. False when the
// contender lacks an optional function that the case needs.
bool run_case(Session& session, const CaseSpec& spec, CaseRecord& entry) {
  const Case asked = session.task.build(spec);
  if (const std::string function = lacking(session, asked); !function.empty()) {
    entry.gates = false;  // required functions are missed when the contender is read
    entry.check.reason = fmt::format("there is no {}", function);
    return false;
  }
  const uint64_t poison = session.random();
  std::vector<Reply> first;
  entry.check = session.stage.check(asked, Placement::end_flush, poison, &first);
  entry.ending = ending_of(first);
  if (entry.ending != Ending::ok) {
    session.find_ending(first, entry.id);
    return true;
  }
  std::vector<Reply> moved = session.stage.run(asked, Placement::start_flush, session.random());
  // A long session that is the same at other addresses need not be asked a third time.
  const bool third = asked.calls.size() <= kMostCallsThrice || !same_outputs(first, moved);
  std::vector<Reply> again = third ? session.stage.run(asked, Placement::end_flush, poison) : first;
  for (const auto* replies : {&moved, &again}) {
    if (ending_of(*replies) == Ending::ok) continue;
    session.find_ending(*replies, entry.id);
    entry.ending = ending_of(*replies);
    if (entry.check.passed) {
      entry.check.passed = false;
      entry.check.reason =
          fmt::format("{} when run again: {}", name_of(entry.ending), first_bad(*replies)->detail);
    }
    return true;
  }
  DeterminismRecord& d = session.record.determinism;
  const bool same_moved = same_outputs(first, moved);
  const bool same_again = same_outputs(first, again);
  ++d.cases;
  d.moved += same_moved ? 1 : 0;
  d.repeated += same_again ? 1 : 0;
  if (!same_moved || !same_again) d.differing.push_back(entry.id);
  if (!same_again) {
    session.find("other_bits", "the same case, run again in the same place, has other bits",
                 entry.id);
  }
  for (const auto& [replies, same] :
       {std::pair(&moved, same_moved), std::pair(&again, same_again)}) {
    if (same) continue;
    const CaseCheck other = session.task.check(asked, *replies);
    if (other.passed == entry.check.passed) continue;
    session.find(
        "flipped",
        fmt::format("right once, wrong once: {}", other.passed ? entry.check.reason : other.reason),
        entry.id);
    if (!other.passed) entry.check = other;
  }
  return true;
}

}  // namespace

bool run_cases(Session& session, const Plan& plan) {
  int number = 0;
  for (const CaseSpec& spec : plan.cases) {
    if (enough(session)) break;
    CaseRecord entry;
    entry.id = fmt::format("c{}", ++number);
    entry.spec = spec;
    entry.probes = session.task.probes_of(spec);
    entry.gates = session.task.gates_verdict(spec);
    session.say(fmt::format("case {} of {}, {}", number, plan.cases.size(), spec.family));
    const bool asked = run_case(session, spec, entry);
    const bool counts = entry.gates || (session.options.first_failure && asked);
    const bool failed = counts && !entry.check.passed;
    session.record.cases.push_back(std::move(entry));
    if (failed && session.options.brief) return false;
  }
  if (session.record.cases.size() < plan.cases.size()) {
    session.record.facts["cases not run"] =
        fmt::format("{} of {}", plan.cases.size() - session.record.cases.size(), plan.cases.size());
  }
  return true;
}

void run_relations(Session& session, const Plan& plan) {
  int number = 0;
  for (const Relation& relation : plan.relations) {
    if (enough(session)) return;
    session.say(relation.title);
    CaseRecord entry;
    entry.id = fmt::format("r{}", ++number);
    entry.spec = relation.first;
    entry.title = relation.title;
    entry.probes = session.task.probes_of(relation);
    entry.gates = session.task.gates_verdict(relation);
    const Case first = session.task.build(relation.first);
    const Case second = session.task.build(relation.second);
    if (const std::string function = lacking(session, first) + lacking(session, second);
        !function.empty()) {
      entry.gates = false;
      entry.check.reason = "an optional function is not there";
      session.record.relations.push_back(std::move(entry));
      continue;
    }
    const uint64_t poison = session.random();
    const std::vector<Reply> first_replies = session.stage.run(first, Placement::end_flush, poison);
    const std::vector<Reply> second_replies =
        session.stage.run(second, Placement::end_flush, poison);
    for (const auto* replies : {&first_replies, &second_replies}) {
      if (ending_of(*replies) == Ending::ok) continue;
      entry.ending = ending_of(*replies);
      entry.check.reason =
          fmt::format("{}: {}", name_of(entry.ending), first_bad(*replies)->detail);
      session.find_ending(*replies, entry.id);
    }
    if (entry.ending == Ending::ok) {
      entry.check =
          session.task.check_relation(relation, first, first_replies, second, second_replies);
    }
    session.record.relations.push_back(std::move(entry));
  }
}

void settle_probes(Session& session) {
  for (const Probe& probe : session.task.card().probes) {
    ProbeRecord settled{probe, false, true, {}};
    for (const auto* cases : {&session.record.cases, &session.record.relations}) {
      for (const CaseRecord& c : *cases) {
        if (std::ranges::find(c.probes, probe.id) == c.probes.end()) continue;
        settled.tested = true;
        if (c.check.passed) continue;
        settled.passed = false;
        settled.failed.push_back(c.id);
      }
    }
    settled.passed = settled.passed && settled.tested;
    session.record.probes.push_back(std::move(settled));
  }
}

void run_sanitized(Session& session, const Plan& plan) {
  const BuildResult& build = session.record.build;
  if (!session.options.sanitize || build.sanitized.empty()) return;
  BuildResult sanitized = build;
  sanitized.library = build.sanitized;
  Limits limits = session.options.limits;
  limits.memory_bytes *= 4;  // shadow memory and quarantine
  limits.call_seconds *= 4;
  Stage stage(session.contender, sanitized, session.task, session.record.sandbox, limits);
  // One of each family before a second of any, in the order of the plan.
  std::map<std::string, int> taken;
  std::vector<std::pair<int, std::size_t>> order;
  for (std::size_t i = 0; i < session.record.cases.size(); ++i) {
    order.emplace_back(taken[plan.cases[i].family]++, i);
  }
  std::ranges::sort(order);
  const auto begin = Clock::now();
  int run = 0;
  for (const auto& [turn, i] : order) {
    if (run >= kMostSanitized || stage.deaths() > 0 || seconds_since(begin) > kSanitizedSeconds) {
      break;
    }
    if (session.record.cases[i].ending != Ending::ok) continue;  // known to end badly
    const Case asked = session.task.build(plan.cases[i]);
    if (!lacking(session, asked).empty()) continue;
    session.say(fmt::format("sanitizers, case {}", ++run));
    const std::vector<Reply> replies = stage.run(asked, Placement::end_flush, session.random());
    const Reply* bad = first_bad(replies);
    if (bad == nullptr) continue;
    if (stage.child() == nullptr && stage.deaths() == 0) {
      session.record.facts["sanitizers"] = "did not start: " + stage.started().detail;
      return;
    }
    // Instrumented code is slow and large; that alone is nothing against it.
    if (bad->ending == Ending::hung || bad->ending == Ending::out_of_memory) break;
    session.find("sanitizer", bad->detail.empty() ? std::string(name_of(bad->ending)) : bad->detail,
                 session.record.cases[i].id);
  }
  session.record.facts["sanitizers"] = fmt::format("{} cases under ASan and UBSan", run);
}

void find_witnesses(Session& session) {
  std::set<std::string> families;
  // What decides the verdict comes first.
  for (const bool gates : {true, false}) {
    for (const CaseRecord& c : session.record.cases) {
      if (c.check.passed || c.gates != gates) continue;
      if (!lacking(session, session.task.build(c.spec)).empty()) continue;
      if (families.size() >= kMostWitnesses || !families.insert(c.spec.family).second) continue;
      session.say(fmt::format("the smallest case like {}", c.id));
      Witness witness{c.id, c.spec, c.check.reason, ""};
      const auto begin = Clock::now();
      // An over-time case takes that long at every try.
      const bool quick = c.ending != Ending::hung;
      if (session.options.shrink && quick) {
        const uint64_t poison = session.random();
        const auto still_fails = [&](const CaseSpec& spec) {
          if (seconds_since(begin) > kShrinkSeconds) return false;
          const CaseCheck check =
              session.stage.check(session.task.build(spec), Placement::end_flush, poison, nullptr);
          if (!check.passed) witness.reason = check.reason;
          return !check.passed;
        };
        witness.smallest = shrink(session.task, c.spec, still_fails, kShrinkRuns).spec;
      }
      witness.replay =
          replay_command(session.record.path, session.task.card().id, witness.smallest);
      if (quick) {
        // What fails only after other calls is shown by the whole judgement alone.
        session.stage.restart();
        const Case alone = session.task.build(witness.smallest);
        if (session.stage.check(alone, Placement::end_flush, session.random(), nullptr).passed) {
          witness.reason += "; only after the calls before it";
          witness.replay = whole_again(session);
        }
      }
      // Two cases may shrink to one.
      const bool known = std::ranges::any_of(session.record.witnesses, [&](const Witness& w) {
        return w.smallest.family == witness.smallest.family &&
               w.smallest.parameters == witness.smallest.parameters;
      });
      if (!known) session.record.witnesses.push_back(std::move(witness));
    }
  }
  for (const CaseRecord& c : session.record.relations) {
    // A relation is about two cases, and each of them alone is right.
    if (c.check.passed || !session.record.witnesses.empty()) continue;
    session.record.witnesses.push_back({c.id, c.spec, c.check.reason, whole_again(session)});
  }
}

void control_precision(Session& session, const Plan& plan) {
  int failed = 0;
  int run = 0;
  for (const CaseSpec& spec : plan.cases) {
    if (run >= 12) break;
    const Case asked = session.task.build(spec);
    const std::vector<Reply> replies = session.task.lower_precision(asked);
    if (replies.empty()) continue;
    ++run;
    if (!session.task.check(asked, replies).passed) ++failed;
  }
  if (run == 0) return;
  session.record.facts["control: next lower precision"] =
      fmt::format("fails {} of {} cases", failed, run);
  if (failed == 0)
    session.record.judge_error = "the next lower precision passes: nothing is proven";
}

}  // namespace touchstone::judge
