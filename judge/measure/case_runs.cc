// Cases, relations, probes and the sanitizer run.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "judge/measure/session.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

// A contender that died or hung so often has said what it has to say.
constexpr int kMaxDeaths = 4;
constexpr int kMaxHangs = 3;
// Cases must leave time for the rest of a judgment.
constexpr double kCaseSeconds = 120.0;
constexpr std::size_t kMaxCallsThrice = 48;
constexpr double kMaxSecondsThrice = 0.25;
constexpr int kControlCases = 12;

bool out_of_time(const Session& session) {
  return seconds_since(session.begin) > session.granted_seconds(kCaseSeconds);
}

bool enough(const Session& session) {
  const auto hangs = std::ranges::count(session.record.cases, Ending::hung, &CaseRecord::ending);
  return session.process.deaths() - hangs >= kMaxDeaths || hangs >= kMaxHangs ||
         out_of_time(session);
}

// One case in three runs: twice alike, once at other addresses over another poison.
void run_case(Session& session, const CaseSpec& spec, CaseRecord& entry) {
  const auto stored = session.reference.cases.get(spec);
  const Case& asked = stored->asked();
  if (const std::string function = missing_function(session, asked); !function.empty()) {
    entry.gates = false;  // required functions are missed when the contender is read
    entry.check.reason = fmt::format("there is no {}", function);
    return;
  }
  // What is as large as something that took too long takes too long as well: the rest is asked.
  const double work = session.task.flops(asked);
  if (session.over_time.has_value() && work >= session.over_time->first) {
    entry.ending = Ending::not_reached;
    entry.check.reason = fmt::format("not asked: as much work as {}, which took too long",
                                     session.over_time->second);
    return;
  }
  const uint64_t poison = session.random();
  std::vector<Reply> first;
  const auto begin = Clock::now();
  entry.check = session.process.check(*stored, Placement::end_flush, poison, &first);
  entry.seconds = seconds_since(begin);
  entry.ending = ending_of(first);
  if (entry.ending != Ending::ok) {
    if (entry.ending == Ending::hung) session.over_time = {work, entry.id};
    session.add_ending_finding(first, entry.id);
    return;
  }
  std::vector<Reply> moved = session.process.run(asked, Placement::start_flush, session.random());
  // What takes long and is the same at other addresses need not be asked a third time.
  const bool brief = asked.calls.size() <= kMaxCallsThrice && entry.seconds <= kMaxSecondsThrice;
  const bool third = brief || !same_outputs(first, moved);
  std::vector<Reply> again =
      third ? session.process.run(asked, Placement::end_flush, poison) : first;
  for (const auto* replies : {&moved, &again}) {
    if (ending_of(*replies) == Ending::ok) continue;
    session.add_ending_finding(*replies, entry.id);
    entry.ending = ending_of(*replies);
    if (entry.check.passed) {
      entry.check.passed = false;
      entry.check.reason =
          fmt::format("{} when run again: {}", name_of(entry.ending), first_bad(*replies)->detail);
    }
    return;
  }
  DeterminismRecord& d = session.record.determinism;
  const bool same_moved = same_outputs(first, moved);
  const bool same_again = same_outputs(first, again);
  ++d.cases;
  d.moved += same_moved ? 1 : 0;
  d.repeated += same_again ? 1 : 0;
  if (!same_moved || !same_again) d.differing.push_back(entry.id);
  if (!same_again) {
    session.add_finding("other_bits", "the same case, run again in the same place, has other bits",
                        entry.id);
  }
  for (const auto& [replies, same] :
       {std::pair(&moved, same_moved), std::pair(&again, same_again)}) {
    if (same) continue;
    const CaseCheck other = stored->check(*replies);
    if (other.passed == entry.check.passed) continue;
    session.add_finding(
        "flipped",
        fmt::format("right once, wrong once: {}", other.passed ? entry.check.reason : other.reason),
        entry.id);
    if (!other.passed) entry.check = other;
  }
}

}  // namespace

std::string missing_function(const Session& session, const Case& asked) {
  const auto& functions = session.contender.binding.functions;
  for (const Call& call : asked.calls) {
    if (!functions.empty() && !functions.contains(call.function)) return call.function;
  }
  return {};
}

bool run_cases(Session& session, const Plan& plan) {
  int number = 0;
  for (const CaseSpec& spec : plan.cases) {
    if (enough(session)) break;
    CaseRecord entry;
    entry.id = fmt::format("c{}", ++number);
    entry.spec = spec;
    entry.probes = session.task.probes_of(spec);
    entry.gates = session.task.gates_verdict(spec);
    session.log_progress(fmt::format("case {} of {}, {}", number, plan.cases.size(), spec.family));
    run_case(session, spec, entry);
    const bool failed = entry.gates && !entry.check.passed && !may_be_lack(session, entry);
    session.record.cases.push_back(std::move(entry));
    if (failed && session.options.brief) return false;
  }
  if (session.record.cases.size() < plan.cases.size()) {
    session.record.facts["cases not run"] =
        fmt::format("{} of {}", plan.cases.size() - session.record.cases.size(), plan.cases.size());
    // On a machine this busy a pass would mean nothing; what failed has failed.
    const bool right = std::ranges::all_of(session.record.cases, [&](const CaseRecord& c) {
      return c.check.passed || !c.gates || may_be_lack(session, c);
    });
    if (right && out_of_time(session)) {
      session.record.judge_error =
          fmt::format("only {} of {} cases were run in {:.0f} s", session.record.cases.size(),
                      plan.cases.size(), seconds_since(session.begin));
    }
  }
  return true;
}

RelationRun run_relation(ContenderProcess& process, const Task& task, const Relation& relation,
                         const Case& first, const Case& second, uint64_t poison) {
  RelationRun run;
  run.first_replies = process.run(first, Placement::end_flush, poison);
  run.second_replies = process.run(second, Placement::end_flush, poison);
  for (const auto* replies : {&run.first_replies, &run.second_replies}) {
    if (ending_of(*replies) == Ending::ok) continue;
    run.ending = ending_of(*replies);
    run.check.reason = fmt::format("{}: {}", name_of(run.ending), first_bad(*replies)->detail);
  }
  if (run.ending == Ending::ok) {
    run.check = task.check_relation(relation, first, run.first_replies, second, run.second_replies);
  }
  return run;
}

RelationRun run_relation(ContenderProcess& process, const Task& task, const Relation& relation,
                         uint64_t poison) {
  return run_relation(process, task, relation, task.build(relation.first),
                      task.build(relation.second), poison);
}

void run_relations(Session& session, const Plan& plan) {
  int number = 0;
  for (const Relation& relation : plan.relations) {
    if (enough(session)) return;
    session.log_progress(relation.title);
    CaseRecord entry;
    entry.id = fmt::format("r{}", ++number);
    entry.spec = relation.first;
    entry.title = relation.title;
    entry.probes = session.task.probes_of(relation);
    entry.gates = session.task.gates_verdict(relation);
    const auto first = session.reference.cases.get(relation.first);
    const auto second = session.reference.cases.get(relation.second);
    if (!missing_function(session, first->asked()).empty() ||
        !missing_function(session, second->asked()).empty()) {
      entry.gates = false;
      entry.check.reason = "an optional function is not there";
      session.record.relations.push_back(std::move(entry));
      continue;
    }
    RelationRun run = run_relation(session.process, session.task, relation, first->asked(),
                                   second->asked(), session.random());
    for (const auto* replies : {&run.first_replies, &run.second_replies}) {
      session.add_ending_finding(*replies, entry.id);
    }
    entry.ending = run.ending;
    entry.check = std::move(run.check);
    session.record.relations.push_back(std::move(entry));
  }
}

namespace {

// Whether the case was refused for something that the probe is not about.
bool lacks_something_else(const Session& session, const CaseRecord& c, const std::string& probe) {
  const auto feature = std::ranges::find(session.task.card().lacks, c.lack, &Feature::id);
  return feature != session.task.card().lacks.end() && feature->probe != probe;
}

// The cases of a probe that are plain in everything else: of each family, and of each kind of
// relation, those that need least besides. What the others need says nothing about the probe, and
// neither does what was refused for another lack.
std::vector<const CaseRecord*> plain_cases(const Session& session, const std::string& probe) {
  std::vector<std::pair<int, const CaseRecord*>> all;
  std::map<std::string, int> least;
  for (const auto* cases : {&session.record.cases, &session.record.relations}) {
    for (const CaseRecord& c : *cases) {
      if (std::ranges::find(c.probes, probe) == c.probes.end()) continue;
      if (lacks_something_else(session, c, probe)) continue;
      const int besides = needs_besides(session, c.spec, probe);
      all.emplace_back(besides, &c);
      const auto [known, first] = least.try_emplace(c.spec.family + "\n" + c.title, besides);
      if (!first) known->second = std::min(known->second, besides);
    }
  }
  std::vector<const CaseRecord*> plain;
  for (const auto& [besides, c] : all) {
    if (besides == least[c->spec.family + "\n" + c->title]) plain.push_back(c);
  }
  return plain;
}

}  // namespace

void evaluate_probes(Session& session) {
  for (const Probe& probe : session.task.card().probes) {
    ProbeRecord settled{probe, false, true, {}};
    for (const LackRecord& lack : session.record.lacks) {
      const auto feature = std::ranges::find(session.task.card().lacks, lack.id, &Feature::id);
      if (feature->probe != probe.id) continue;
      settled.tested = true;
      settled.passed = false;
      settled.failed.push_back("lacks " + lack.id);
    }
    for (const CaseRecord* c : plain_cases(session, probe.id)) {
      settled.tested = true;
      if (c->check.passed) continue;
      settled.passed = false;
      settled.failed.push_back(c->id);
    }
    settled.passed = settled.passed && settled.tested;
    session.record.probes.push_back(std::move(settled));
  }
  // A lack that no probe asks about is one that was lost all the same.
  for (const LackRecord& lack : session.record.lacks) {
    const auto feature = std::ranges::find(session.task.card().lacks, lack.id, &Feature::id);
    if (!feature->probe.empty()) continue;
    session.record.probes.push_back(
        {{lack.id, lack.title, "completeness", false}, true, false, {"lacks " + lack.id}});
  }
}

void evaluate_memory_probe(Session& session) {
  const TaskCard& card = session.task.card();
  if (!session.record.memory.whole()) return;
  for (ProbeRecord& settled : session.record.probes) {
    if (settled.probe.id != card.memory_probe) continue;
    settled.tested = true;
    // No exponent: too little memory for one.
    settled.passed = session.record.memory.exponent.value_or(0.0) <= card.memory_exponent;
    if (!settled.passed) settled.failed.emplace_back("memory");
  }
}

const TaskReference::PrecisionControl& TaskReference::precision_control() {
  std::call_once(once_, [&] {
    for (const CaseSpec& spec : plan.cases) {
      if (control_.cases >= kControlCases) break;
      const auto stored = cases.get(spec);
      const std::vector<Reply> replies = cases.task().lower_precision(stored->asked());
      if (replies.empty()) continue;
      ++control_.cases;
      if (!stored->check(replies).passed) ++control_.failed;
    }
  });
  return control_;
}

void check_precision_control(Session& session) {
  const TaskReference::PrecisionControl& control = session.reference.precision_control();
  if (control.cases == 0) return;
  session.record.facts["control: next lower precision"] =
      fmt::format("fails {} of {} cases", control.failed, control.cases);
  if (control.failed == 0)
    session.record.judge_error = "the next lower precision passes: nothing is proven";
}

}  // namespace touchstone::judge
