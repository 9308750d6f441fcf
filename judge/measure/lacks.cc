// What a contender lacks: refusals that the card allows, and one sentence about where it fails.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ranges>
#include <set>

#include "judge/measure/measure.h"
#include "judge/measure/session.h"

namespace touchstone::judge {
namespace {

std::vector<CaseRecord*> all_cases(Record& record) {
  std::vector<CaseRecord*> all;
  for (auto* cases : {&record.cases, &record.relations}) {
    for (CaseRecord& c : *cases) all.push_back(&c);
  }
  return all;
}

bool declares(const Session& session, const std::string& id) {
  const std::vector<std::string>& lacks = session.contender.binding.lacks;
  return std::ranges::find(lacks, id) != lacks.end();
}

// A refusal without any feature is no lack: the plain core must be answered.
bool excusable(const Session& session, const CaseRecord& c) {
  return !c.check.passed && c.check.refused && c.lack.empty() &&
         !session.task.features_of(c.spec).empty();
}

int64_t value_of(const CaseSpec& spec, const std::string& name) {
  const auto found = spec.parameters.find(name);
  return found == spec.parameters.end() ? 0 : found->second;
}

using Specs = std::vector<const CaseSpec*>;

// Whether one parameter tells the refused cases from the answered ones: by a border or by a remainder.
bool told_apart(const std::string& name, const Specs& refused, const Specs& answered) {
  const auto value = [&](const CaseSpec* spec) { return value_of(*spec, name); };
  const auto [least, most] = std::ranges::minmax(refused | std::views::transform(value));
  const auto [low, high] = std::ranges::minmax(answered | std::views::transform(value));
  if (least > high || most < low) return true;
  return std::ranges::any_of(std::array{2, 4, 8, 16, 32, 64, 128}, [&](int64_t modulus) {
    const auto odd = [&](const CaseSpec* spec) { return value(spec) % modulus != 0; };
    return std::ranges::all_of(refused, odd) && std::ranges::none_of(answered, odd);
  });
}

// Whether a case is nowhere smaller than another.
bool covers(const CaseSpec& large, const CaseSpec& small) {
  return std::ranges::all_of(small.parameters, [&](const auto& parameter) {
    return value_of(large, parameter.first) >= parameter.second;
  });
}

// Whether refusals follow a rule that a user could be told: all cases with the feature, those beyond a
// border or off a multiple of what the feature is about, whole families of it, or a good part of them
// with no larger case answered. Others are failures that happen to report themselves.
bool refused_by_rule(const Feature& feature, const Specs& refused, const Specs& answered) {
  if (answered.empty()) return true;
  std::set<std::string> families;
  for (const CaseSpec* spec : refused) families.insert(spec->family);
  const bool by_family = std::ranges::all_of(families, [&](const std::string& family) {
    return feature.where.names(family) &&
           std::ranges::find(answered, family, &CaseSpec::family) == answered.end();
  });
  if (by_family) return true;
  for (const auto& [name, ignored] : refused.front()->parameters) {
    if (feature.where.names(name) && told_apart(name, refused, answered)) return true;
  }
  if (4 * refused.size() < refused.size() + answered.size()) return false;
  return std::ranges::none_of(refused, [&](const CaseSpec* small) {
    return std::ranges::any_of(answered,
                               [&](const CaseSpec* large) { return covers(*large, *small); });
  });
}

// The cases that a feature would excuse and those that were answered with it. Among cases that decide
// nothing are calls that everybody must refuse, and calls that can only be refused after an optional
// function went wrong.
bool is_rule(const Session& session, const Feature& feature,
             const std::vector<CaseRecord*>& cases) {
  if (declares(session, feature.id)) return true;
  Specs refused;
  Specs answered;
  for (const CaseRecord* c : cases) {
    if (!c->gates || !feature.where.holds(c->spec)) continue;
    if (excusable(session, *c)) refused.push_back(&c->spec);
    if (c->check.passed) answered.push_back(&c->spec);
  }
  return refused_by_rule(feature, refused, answered);
}

// Of the features that explain refusals, the one that was refused most consistently; of those, the
// one that explains most. What was declared comes before what is guessed.
const Feature* best_feature(const Session& session, const std::vector<CaseRecord*>& cases) {
  const Feature* best = nullptr;
  double best_value = -1.0;
  for (const Feature& feature : session.task.card().lacks) {
    int refused = 0;
    int explained = 0;
    int with = 0;
    for (const CaseRecord* c : cases) {
      if (!c->gates || !feature.where.holds(c->spec)) continue;
      explained += excusable(session, *c) ? 1 : 0;
      ++with;
      refused += c->check.refused ? 1 : 0;
    }
    if (explained == 0) continue;
    const double share = static_cast<double>(refused) / std::max(with, 1);
    const double value = (declares(session, feature.id) ? 1e9 : 0.0) + 1e6 * share + explained;
    if (value <= best_value || !is_rule(session, feature, cases)) continue;
    best = &feature;
    best_value = value;
  }
  return best;
}

LackRecord described(const Session& session, const Feature& feature) {
  LackRecord lack;
  lack.id = feature.id;
  lack.title = feature.title;
  lack.where = feature.output.empty() ? feature.where.text() : feature.output;
  lack.declared = declares(session, feature.id);
  return lack;
}

// Answers without an output that may be left out.
void settle_outputs(Session& session, const std::vector<CaseRecord*>& cases) {
  for (const Feature& feature : session.task.card().lacks) {
    if (feature.output.empty()) continue;
    LackRecord lack = described(session, feature);
    for (const CaseRecord* c : cases) {
      const auto& omitted = c->check.omitted;
      const bool without = std::ranges::find(omitted, feature.output) != omitted.end();
      lack.cases += without || c->check.passed ? 1 : 0;
      lack.refused += without ? 1 : 0;
    }
    if (lack.refused > 0) session.record.lacks.push_back(std::move(lack));
  }
}

// What was declared and not refused: a right answer is no harm, a wrong one is.
void blame_declared(const Session& session, const std::vector<CaseRecord*>& cases) {
  for (CaseRecord* c : cases) {
    if (c->check.passed || c->check.refused) continue;
    for (const std::string& id : session.task.features_of(c->spec)) {
      if (!declares(session, id)) continue;
      c->check.reason =
          fmt::format("says that it lacks {}, and does not refuse: {}", id, c->check.reason);
      break;
    }
  }
}

}  // namespace

bool may_be_lack(const Session& session, const CaseRecord& c) { return excusable(session, c); }

void settle_lacks(Session& session) {
  Record& record = session.record;
  const std::vector<CaseRecord*> cases = all_cases(record);
  while (const Feature* feature = best_feature(session, cases)) {
    LackRecord lack = described(session, *feature);
    for (CaseRecord* c : cases) {
      if (!feature->where.holds(c->spec)) continue;
      if (!c->gates && !c->check.refused) continue;
      ++lack.cases;
      if (!c->check.refused) continue;
      ++lack.refused;
      if (excusable(session, *c)) c->lack = feature->id;
    }
    record.lacks.push_back(std::move(lack));
  }
  for (CaseRecord* c : cases) {
    if (excusable(session, *c)) {
      c->check.reason = "refused, though others like it are answered: " + c->check.reason;
    }
  }
  settle_outputs(session, cases);
  blame_declared(session, cases);
  // Nothing at all was answered: that is not a part of the task.
  const bool any =
      std::ranges::any_of(cases, [](const CaseRecord* c) { return c->gates && c->check.passed; });
  if (!any) {
    record.lacks.clear();
    for (CaseRecord* c : cases) c->lack.clear();
  }
}

std::string lacked_by(const Record& record, const Task& task, const CaseSpec& spec) {
  for (const std::string& feature : task.features_of(spec)) {
    const auto lack = std::ranges::find(record.lacks, feature, &LackRecord::id);
    if (lack != record.lacks.end()) return feature;
  }
  return {};
}

bool can_be_timed(const Record& record, const Task& task, const JudgeOptions& options) {
  if (record.verdict == Verdict::pass) return true;
  if (record.verdict != Verdict::partial) return false;
  return std::ranges::any_of(task.timed(record.seed, options.small), [&](const CaseSpec& shape) {
    return lacked_by(record, task, shape).empty();
  });
}

void write_diagnosis(Session& session) {
  Record& record = session.record;
  std::vector<Condition> known;
  for (const Feature& feature : session.task.card().lacks) known.push_back(feature.where);
  for (const bool refusals : {false, true}) {
    std::vector<Observation> observed;
    for (const CaseRecord& c : record.cases) {
      if (!c.gates) continue;
      const bool refused = !c.check.passed && !c.lack.empty();
      if (!refusals && refused) continue;
      observed.push_back({c.spec, refusals ? refused : !c.check.passed});
    }
    if (const auto found = diagnose(observed, known)) {
      if (!record.diagnosis.empty()) record.diagnosis += "; ";
      record.diagnosis += found->sentence(refusals ? "refuses" : "fails");
    }
  }
}

int needs_besides(const Session& session, const CaseSpec& spec, const std::string& probe) {
  return static_cast<int>(std::ranges::count_if(
      session.task.card().lacks,
      [&](const Feature& feature) { return feature.probe != probe && feature.where.holds(spec); }));
}

}  // namespace touchstone::judge
