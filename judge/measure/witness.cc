// The smallest failures of each kind, and the commands that show them again.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "judge/contender/commands.h"
#include "judge/measure/session.h"
#include "judge/task/shrink.h"

namespace touchstone::judge {
namespace {

constexpr std::size_t kMaxWitnesses = 3;
constexpr double kShrinkSeconds = 2.5;
constexpr int kShrinkRuns = 120;
constexpr int kSimplifyRuns = 120;

// What only the whole judgment shows is shown by its seed.
std::string whole_again(const Session& session) {
  return fmt::format("{} --seed {}{} --no-speed",
                     judge_command(session.record.path, session.task.card().id),
                     session.record.seed, session.options.small ? " --small" : "");
}

// The smallest case like `c` that fails, by shape and then by numbers.
void shrink_case(Session& session, const CaseRecord& c, Witness& witness) {
  const auto begin = Clock::now();
  const uint64_t poison = session.random();
  const std::string kind = failure_kind(c.ending, c.check);
  const auto still_fails = [&](const CaseSpec& spec) {
    if (seconds_since(begin) > kShrinkSeconds) return false;
    std::vector<Reply> replies;
    const CaseCheck check =
        session.process.check(session.task.build(spec), Placement::end_flush, poison, &replies);
    const bool same = !check.passed && failure_kind(ending_of(replies), check) == kind;
    if (same) witness.reason = check.reason;
    return same;
  };
  witness.smallest = shrink(session.task, c.spec, still_fails, kShrinkRuns).spec;
  // Where only digits are at stake the numbers are what the case is about.
  if (!c.gates) return;
  witness.smallest = simplify(session.task, witness.smallest, still_fails, kSimplifyRuns).spec;
}

void add_witness(Session& session, const CaseRecord& c) {
  session.log_progress(fmt::format("the smallest case like {}", c.id));
  Witness witness{c.id, c.spec, c.check.reason, ""};
  // An over-time case takes that long at every try.
  const bool quick = c.ending != Ending::hung;
  if (session.options.shrink && quick) shrink_case(session, c, witness);
  witness.replay = replay_command(session.record.path, session.task.card().id, witness.smallest);
  if (quick) {
    // What fails only after other calls is shown by the whole judgment alone.
    session.process.restart();
    const Case alone = session.task.build(witness.smallest);
    if (session.process.check(alone, Placement::end_flush, session.random(), nullptr).passed) {
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

// A relation is about two cases, and each of them alone may be right.
void add_witness(Session& session, const CaseRecord& c, Relation relation) {
  session.log_progress(fmt::format("the smallest pair like {}", c.id));
  Witness witness{c.id, c.spec, c.check.reason, ""};
  const bool quick = c.ending != Ending::hung;
  if (session.options.shrink && quick) {
    const auto begin = Clock::now();
    const uint64_t poison = session.random();
    const std::string kind = failure_kind(c.ending, c.check);
    const auto still_fails = [&](const Relation& candidate) {
      if (seconds_since(begin) > kShrinkSeconds) return false;
      const RelationRun run = run_relation(session.process, session.task, candidate, poison);
      const bool same = !run.check.passed && failure_kind(run.ending, run.check) == kind;
      if (same) witness.reason = run.check.reason;
      return same;
    };
    relation =
        shrink_relation(session.task, std::move(relation), still_fails, kShrinkRuns).relation;
    witness.smallest = relation.first;
  }
  witness.reason = fmt::format("{}: {}", c.title, witness.reason);
  witness.replay = replay_command(session.record.path, session.task.card().id, relation);
  if (quick) {
    session.process.restart();
    if (run_relation(session.process, session.task, relation, session.random()).check.passed) {
      witness.reason += "; only after the calls before it";
      witness.replay = whole_again(session);
    }
  }
  session.record.witnesses.push_back(std::move(witness));
}

}  // namespace

void find_witnesses(Session& session, const Plan& plan) {
  std::set<std::string> kinds;
  std::set<std::string> families;
  std::size_t count = 0;
  const auto showable = [&](const CaseRecord& c, bool gates) {
    return !c.check.passed && c.gates == gates && c.lack.empty() &&
           c.ending != Ending::not_reached &&
           missing_function(session, session.reference.cases.get(c.spec)->asked()).empty();
  };
  // What decides the verdict comes first, of each kind of failure one; then other families.
  for (const bool gates : {true, false}) {
    for (const bool new_kind : {true, false}) {
      for (const CaseRecord& c : session.record.cases) {
        if (count >= kMaxWitnesses) break;
        if (!showable(c, gates)) continue;
        const std::string kind = failure_kind(c.ending, c.check);
        if (new_kind ? kinds.contains(kind) : families.contains(c.spec.family)) continue;
        kinds.insert(kind);
        families.insert(c.spec.family);
        ++count;
        add_witness(session, c);
      }
    }
  }
  std::set<std::string> relations;
  for (std::size_t i = 0; i < session.record.relations.size(); ++i) {
    const CaseRecord& c = session.record.relations[i];
    const Relation& relation = plan.relations[i];  // one record for each, in this order
    if (c.check.passed || !c.lack.empty() || count >= kMaxWitnesses) continue;
    CaseStore& cases = session.reference.cases;
    if (!missing_function(session, cases.get(relation.first)->asked()).empty() ||
        !missing_function(session, cases.get(relation.second)->asked()).empty() ||
        !relations.insert(relation.id).second) {
      continue;
    }
    ++count;
    add_witness(session, c, relation);
  }
}

}  // namespace touchstone::judge
