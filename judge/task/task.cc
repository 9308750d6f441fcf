#include "judge/task/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

// Only about stability, or only about what is optional.
bool all_optional(const TaskCard& card, const std::vector<std::string>& probes) {
  return !probes.empty() && std::ranges::all_of(probes, [&](const std::string& id) {
    const auto probe = std::ranges::find(card.probes, id, &Probe::id);
    return probe != card.probes.end() && (probe->optional || probe->dimension == "stability");
  });
}

}  // namespace

const Family& Task::family_of(const CaseSpec& spec) const {
  const std::vector<Family>& families = card().families;
  const auto found = std::ranges::find(families, spec.family, &Family::id);
  if (found != families.end()) return *found;
  std::string known;
  for (const Family& family : families) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", family.id);
  }
  throw InvalidArgument(
      fmt::format("case: {} has no family '{}'; there are {}", card().id, spec.family, known));
}

std::vector<std::string> Task::probes_of(const CaseSpec& spec) const {
  return family_of(spec).probes;
}

std::vector<std::string> Task::probes_of(const Relation& relation) const {
  const auto found = std::ranges::find(card().relations, relation.id, &RelationKind::id);
  if (found != card().relations.end()) return found->probes;
  throw InvalidArgument(fmt::format("relation: {} has no relation '{}'", card().id, relation.id));
}

std::vector<std::string> Task::features_of(const CaseSpec& spec) const {
  std::vector<std::string> ids;
  for (const Feature& feature : card().lacks) {
    if (feature.where.holds(spec)) ids.push_back(feature.id);
  }
  return ids;
}

Case Task::build(const CaseSpec& spec) const {
  family_of(spec);  // throws where the task does not know it
  Case built = make_case(spec);
  // An edit may take what is derived from the inputs as they were drawn.
  const auto takes = [](const Edit& edit) { return !edit.source.empty(); };
  if (std::ranges::any_of(spec.edits, takes)) derive_inputs(built);
  apply_edits(built);
  derive_inputs(built);
  return built;
}

Growth Task::growth_for(const CaseSpec& spec) const {
  const Growth growth = family_of(spec).growth;
  return growth == Growth::random && !spec.edits.empty() ? Growth::structured : growth;
}

std::string format_relation(const Relation& relation) {
  const CaseSpec& first = relation.first;
  const CaseSpec& second = relation.second;
  CaseSpec derived = first;
  std::string change;
  for (const auto& [name, value] : second.parameters) {
    const auto before = first.parameters.find(name);
    if (before != first.parameters.end() && before->second == value) continue;
    derived.parameters[name] = value;
    change += fmt::format("{}{}={}", change.empty() ? "" : ",", name, value);
  }
  if (format_spec(derived) != format_spec(second)) change = format_spec(second);
  return fmt::format("{}@{}@{}", relation.id, format_spec(first), change);
}

Relation parse_relation(const std::string& text) {
  const size_t first = text.find('@');
  const size_t last = text.rfind('@');
  if (first == 0 || first == std::string::npos || first == last) {
    throw InvalidArgument(fmt::format(
        "relation: '{}': expected name@family:name=number,...:seed@name=number,...", text));
  }
  Relation relation;
  relation.id = text.substr(0, first);
  relation.first = parse_spec(text.substr(first + 1, last - first - 1));
  const std::string change = text.substr(last + 1);
  if (change.find(':') != std::string::npos) {
    relation.second = parse_spec(change);
    return relation;
  }
  relation.second = relation.first;
  for (const auto& [name, value] : parse_parameters(change)) {
    relation.second.parameters[name] = value;
  }
  return relation;
}

bool Task::gates_verdict(const CaseSpec& spec) const {
  return !all_optional(card(), probes_of(spec));
}

bool Task::gates_verdict(const Relation& relation) const {
  return !all_optional(card(), probes_of(relation));
}

}  // namespace touchstone::judge
