// How sure the scores are: cases are drawn again, speeds within what their processes allow.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "judge/report/evidence.h"
#include "judge/report/score.h"

namespace touchstone::judge {
namespace {

constexpr int kDraws = 400;

// How often each case is in one draw.
using Multiplicity = std::map<std::string, int>;

Multiplicity drawn_again(const std::vector<std::string>& ids, std::mt19937_64& random) {
  Multiplicity draw;
  std::uniform_int_distribution<std::size_t> pick(0, ids.size() - 1);
  for (std::size_t i = 0; i < ids.size(); ++i) ++draw[ids[pick(random)]];
  return draw;
}

int times(const Multiplicity& draw, const std::string& id) {
  const auto found = draw.find(id);
  return found == draw.end() ? 0 : found->second;
}

// The mean over families of the share of right cases.
double drawn_correctness(const Record& record, const Multiplicity& draw) {
  std::map<std::string, std::pair<int, int>> families;
  for (const auto* cases : {&record.cases, &record.relations}) {
    for (const CaseRecord& c : *cases) {
      const int n = times(draw, c.id);
      if (!c.gates || n == 0 || !c.lack.empty()) continue;
      auto& [passed, run] = families[c.title.empty() ? c.spec.family : "relation: " + c.title];
      run += n;
      passed += c.check.passed ? n : 0;
    }
  }
  double sum = 0.0;
  for (const auto& [name, counted] : families) {
    sum += static_cast<double>(counted.first) / counted.second;
  }
  return families.empty() ? 100.0 : 100.0 * sum / static_cast<double>(families.size());
}

double drawn_stability(const Record& record, const Multiplicity& draw, double otherwise) {
  double sum = 0.0;
  int count = 0;
  for (const CaseRecord& c : record.cases) {
    const int n = times(draw, c.id);
    if (n == 0 || !tests_stability(record, c)) continue;
    sum += n * stability_points(c);
    count += n;
  }
  return count == 0 ? otherwise : sum / count;
}

// What passing probes are worth less: a draw without the cases that fail one would have passed it.
double drawn_probes(const Record& record, const Multiplicity& draw, std::string_view dimension,
                    double otherwise) {
  int tested = 0;
  int failed = 0;
  int failed_now = 0;
  for (const ProbeRecord& p : record.probes) {
    if (p.probe.dimension != dimension || !p.tested) continue;
    ++tested;
    if (p.passed) continue;
    ++failed;
    const bool seen = p.failed.empty() || std::ranges::any_of(p.failed, [&](const std::string& id) {
                        return times(draw, id) > 0;
                      });
    failed_now += seen ? 1 : 0;
  }
  if (tested == 0) return otherwise;
  return std::clamp(otherwise + 100.0 * (failed - failed_now) / tested, 0.0, 100.0);
}

// A score whose logarithm is normal with this interval.
double drawn_speed(const Score& speed, std::mt19937_64& random) {
  const double low = std::log(std::max(1e-3, speed.low));
  const double high = std::log(std::max(1e-3, speed.high));
  std::normal_distribution<double> normal(0.0, (high - low) / 3.92);
  return std::clamp(*speed.value * std::exp(normal(random)), 0.0, 100.0);
}

void widen(Score& score, std::vector<double>& values) {
  if (!score.value.has_value() || values.empty()) return;
  std::ranges::sort(values);
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
  };
  score.low = std::min(score.low, at(0.025));
  score.high = std::max(score.high, at(0.975));
}

}  // namespace

void draw_intervals(const Record& record, std::map<std::string, Score>& scores) {
  std::vector<std::string> ids;
  for (const auto* cases : {&record.cases, &record.relations}) {
    for (const CaseRecord& c : *cases) ids.push_back(c.id);
  }
  if (ids.empty()) return;
  std::mt19937_64 random(ids.size());  // the same record has the same intervals
  std::map<std::string, std::vector<double>> values;
  for (int i = 0; i < kDraws; ++i) {
    const Multiplicity draw = drawn_again(ids, random);
    std::map<std::string, Score> now = scores;
    for (auto& [dimension, score] : now) {
      if (!score.value.has_value()) continue;
      if (dimension == "correctness") score.value = drawn_correctness(record, draw);
      if (dimension == "stability") score.value = drawn_stability(record, draw, *score.value);
      if (dimension == "completeness" || dimension == "robustness") {
        score.value = drawn_probes(record, draw, dimension, *score.value);
      }
      if (dimension == "speed") score.value = drawn_speed(scores.at("speed"), random);
      if (dimension != "overall") values[dimension].push_back(*score.value);
    }
    if (!scores.contains("overall") || !scores.at("overall").value.has_value()) continue;
    now.erase("overall");
    values["overall"].push_back(overall(now, record.weights).value_or(0.0));
  }
  for (auto& [dimension, score] : scores) {
    if (dimension != "speed") widen(score, values[dimension]);  // it has its own
  }
}

void widen_by_seeds(const Record& record, std::map<std::string, Score>& scores) {
  for (const SeedRun& run : record.seeds) {
    for (auto& [dimension, score] : scores) {
      const auto found = run.scores.find(dimension);
      if (found == run.scores.end() || !score.value.has_value()) continue;
      score.low = std::min(score.low, found->second);
      score.high = std::max(score.high, found->second);
    }
  }
}

void merge_seeds(std::vector<Record>& merged, std::vector<Record> again) {
  for (Record& record : again) {
    const auto found = std::ranges::find_if(merged, [&](const Record& r) {
      return r.task == record.task && r.contender == record.contender;
    });
    if (found == merged.end()) {
      record.seeds = {seed_run(record)};
      merged.push_back(std::move(record));
      continue;
    }
    if (found->seeds.empty()) found->seeds = {seed_run(*found)};
    std::vector<SeedRun> seeds = found->seeds;
    seeds.push_back(seed_run(record));
    // The evidence that is shown is that of the gravest verdict.
    const bool graver = found->verdict == Verdict::pass
                            ? record.verdict != Verdict::pass
                            : is_right(found->verdict) && !is_right(record.verdict);
    if (graver) {
      *found = std::move(record);
    }
    found->seeds = std::move(seeds);
    apply_scores(*found);
  }
}

SeedRun seed_run(const Record& record) {
  SeedRun run{record.seed, record.verdict, {}};
  for (const auto& [dimension, score] : record.scores) {
    if (score.value.has_value()) run.scores[dimension] = *score.value;
  }
  return run;
}

}  // namespace touchstone::judge
