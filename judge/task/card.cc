// Reads task.json. The cards are ours, but they are edited by hand: whatever is missing or misspelt
// is named.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "json/json.h"
#include "judge/task/task.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

using json = Json;

[[noreturn]] void fail(std::string_view what) {
  throw CorruptData(fmt::format("task card: {}", what));
}

template <class Word>
Word word(const json& value, std::initializer_list<std::pair<const char*, Word>> known) {
  const auto text = value.get<std::string>();
  std::string names;
  for (const auto& [name, result] : known) {
    if (text == name) return result;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  fail(fmt::format("'{}' is none of {}", text, names));
}

Argument parse_argument(const json& j) {
  Argument argument;
  argument.name = j.at("name").get<std::string>();
  argument.kind = word<ArgumentKind>(j.at("kind"), {{"i64", ArgumentKind::i64},
                                                    {"f32", ArgumentKind::f32},
                                                    {"input", ArgumentKind::input},
                                                    {"output", ArgumentKind::output},
                                                    {"state", ArgumentKind::state},
                                                    {"handle", ArgumentKind::handle}});
  const bool tensor = argument.kind == ArgumentKind::input || argument.kind == ArgumentKind::output;
  if (tensor) {
    argument.dtype = parse_dtype(j.at("dtype").get<std::string>());
    argument.shape = j.at("shape").get<std::string>();
  }
  if (argument.kind == ArgumentKind::output) {
    argument.compare = word<Compare>(j.at("compare"), {{"bound", Compare::bound},
                                                       {"tie_set", Compare::tie_set},
                                                       {"exact", Compare::exact},
                                                       {"distribution", Compare::distribution}});
  }
  return argument;
}

Function parse_function(const json& j) {
  Function function;
  function.name = j.at("name").get<std::string>();
  function.returns = word<Returns>(j.at("returns"), {{"status", Returns::status},
                                                     {"size", Returns::size},
                                                     {"handle", Returns::handle},
                                                     {"nothing", Returns::nothing}});
  for (const json& argument : j.at("arguments")) {
    function.arguments.push_back(parse_argument(argument));
  }
  function.sized_by = j.value("sized_by", "");
  function.optional = j.value("optional", false);
  return function;
}

std::vector<std::string> parse_probe_ids(const json& j, const std::set<std::string>& known) {
  std::vector<std::string> ids;
  if (!j.contains("probes")) return ids;
  for (const json& id : j.at("probes")) {
    ids.push_back(id.get<std::string>());
    if (!known.contains(ids.back())) fail(fmt::format("there is no probe '{}'", ids.back()));
  }
  return ids;
}

// A size or a mode by its condition, or an output by its name.
Feature parse_feature(const json& j, const TaskCard& card, const std::set<std::string>& probes) {
  Feature feature;
  feature.id = j.at("id").get<std::string>();
  feature.title = j.at("title").get<std::string>();
  if (j.contains("where")) feature.where = Condition::parse(j.at("where").get<std::string>());
  feature.output = j.value("output", "");
  feature.probe = j.value("probe", "");
  if (feature.where.empty() == feature.output.empty()) {
    fail(fmt::format("lacks: '{}': expected either where or output", feature.id));
  }
  if (!feature.probe.empty() && !probes.contains(feature.probe)) {
    fail(fmt::format("lacks: '{}': there is no probe '{}'", feature.id, feature.probe));
  }
  const auto has_output = [&](const Function& f) {
    return std::ranges::any_of(f.arguments, [&](const Argument& a) {
      return a.kind == ArgumentKind::output && a.name == feature.output;
    });
  };
  if (!feature.output.empty() && std::ranges::none_of(card.functions, has_output)) {
    fail(fmt::format("lacks: '{}': there is no output '{}'", feature.id, feature.output));
  }
  return feature;
}

TaskCard read_card(const json& j) {
  TaskCard card;
  card.id = j.at("id").get<std::string>();
  card.version = j.at("version").get<int>();
  card.title = j.at("title").get<std::string>();
  card.devices = j.at("devices").get<std::vector<std::string>>();
  card.weights = j.at("weights").get<std::map<std::string, double>>();
  for (const json& function : j.at("functions")) {
    card.functions.push_back(parse_function(function));
  }
  std::set<std::string> probes;
  for (const json& p : j.at("probes")) {
    card.probes.push_back({p.at("id").get<std::string>(), p.at("title").get<std::string>(),
                           p.at("dimension").get<std::string>(), p.value("optional", false)});
    probes.insert(card.probes.back().id);
  }
  for (const json& f : j.at("families")) {
    const auto growth = word<Growth>(
        f.at("growth"),
        {{"random", Growth::random}, {"structured", Growth::structured}, {"tree", Growth::tree}});
    card.families.push_back({f.at("id").get<std::string>(), f.at("title").get<std::string>(),
                             parse_probe_ids(f, probes), growth, f.value("stable", false)});
  }
  for (const json& r : j.at("relations")) {
    card.relations.push_back({r.at("id").get<std::string>(), r.at("title").get<std::string>(),
                              parse_probe_ids(r, probes)});
  }
  for (const json& l : j.at("lacks")) card.lacks.push_back(parse_feature(l, card, probes));
  card.tolerance_factor = j.at("tolerance").at("factor").get<double>();
  card.tolerance_rule = j.at("tolerance").at("rule").get<std::string>();
  card.bytes_rule = j.at("bytes").get<std::string>();
  card.flops_rule = j.at("flops").get<std::string>();
  card.state_rule = j.at("state").get<std::string>();
  if (j.contains("memory")) {
    card.memory_probe = j.at("memory").at("probe").get<std::string>();
    card.memory_exponent = j.at("memory").at("exponent").get<double>();
    if (!probes.contains(card.memory_probe)) {
      fail(fmt::format("there is no probe '{}'", card.memory_probe));
    }
  }
  card.reads_case = j.value("reads_case", "");
  if (j.contains("claims")) {
    for (const json& c : j.at("claims")) {
      ClaimPattern claim{c.at("measure").get<std::string>(), c.at("pattern").get<std::string>()};
      if (c.contains("value")) claim.value = c.at("value").get<double>();
      card.claims.push_back(std::move(claim));
    }
  }
  return card;
}

}  // namespace

TaskCard parse_card(const std::string& text) {
  try {
    return read_card(json::parse(text));
  } catch (const json::exception& error) {
    fail(error.what());
  } catch (const InvalidArgument& error) {
    fail(error.what());
  }
}

}  // namespace touchstone::judge
