// How sure the scores are: cases are drawn again, speeds within what their processes allow.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "judge/report/evidence.h"
#include "judge/report/score.h"

namespace touchstone::judge {
namespace {

constexpr int kDraws = 400;

// What a draw needs of each case, looked up once.
struct DrawnCase {
  int family = -1;  // of those that decide; -1: it only costs points
  bool passed = false;
  std::optional<double> stability;  // its points; nothing where it is no hard case
};

struct DrawnProbe {
  std::vector<std::size_t> failed;  // cases
};

class Draws {
 public:
  explicit Draws(const Record& record) {
    std::map<std::string, int> families;
    std::map<std::string, std::size_t> places;
    for (const auto* cases : {&record.cases, &record.relations}) {
      for (const CaseRecord& c : *cases) {
        DrawnCase drawn;
        if (c.gates && c.lack.empty()) {
          const std::string family = c.title.empty() ? c.spec.family : "relation: " + c.title;
          drawn.family =
              families.try_emplace(family, static_cast<int>(families.size())).first->second;
        }
        drawn.passed = c.check.passed;
        if (cases == &record.cases && tests_stability(record, c)) {
          drawn.stability = stability_points(c);
        }
        places[c.id] = cases_.size();
        cases_.push_back(drawn);
      }
    }
    families_ = families.size();
    for (const ProbeRecord& p : record.probes) {
      if (!p.tested) continue;
      ++tested_[p.probe.dimension];
      if (p.passed) continue;
      DrawnProbe probe;
      for (const std::string& id : p.failed) {
        if (const auto found = places.find(id); found != places.end()) {
          probe.failed.push_back(found->second);
        }
      }
      failed_[p.probe.dimension].push_back(std::move(probe));
    }
  }

  bool empty() const { return cases_.empty(); }

  // Cases, as many as there are, with replacement.
  void draw(std::mt19937_64& random) {
    counts_.assign(cases_.size(), 0);
    std::uniform_int_distribution<std::size_t> pick(0, cases_.size() - 1);
    for (std::size_t i = 0; i < cases_.size(); ++i) ++counts_[pick(random)];
  }

  // The mean over families of the share of right cases.
  double correctness(double otherwise) const {
    std::vector<std::pair<int, int>> shares(families_);
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      if (cases_[i].family < 0) continue;
      auto& [passed, run] = shares[static_cast<std::size_t>(cases_[i].family)];
      run += counts_[i];
      passed += cases_[i].passed ? counts_[i] : 0;
    }
    double sum = 0.0;
    int seen = 0;
    for (const auto& [passed, run] : shares) {
      if (run == 0) continue;
      sum += static_cast<double>(passed) / run;
      ++seen;
    }
    return seen == 0 ? otherwise : 100.0 * sum / seen;
  }

  double stability(double otherwise) const {
    double sum = 0.0;
    int count = 0;
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      if (!cases_[i].stability.has_value()) continue;
      sum += counts_[i] * *cases_[i].stability;
      count += counts_[i];
    }
    return count == 0 ? otherwise : sum / count;
  }

  // A draw without the cases that fail a probe would have passed it.
  double probes(const std::string& dimension, double otherwise) const {
    const auto tested = tested_.find(dimension);
    const auto failed = failed_.find(dimension);
    if (tested == tested_.end() || failed == failed_.end()) return otherwise;
    int spared = 0;
    for (const DrawnProbe& probe : failed->second) {
      const bool seen =
          probe.failed.empty() ||
          std::ranges::any_of(probe.failed, [&](std::size_t i) { return counts_[i] > 0; });
      spared += seen ? 0 : 1;
    }
    return std::clamp(otherwise + 100.0 * spared / tested->second, 0.0, 100.0);
  }

 private:
  std::vector<DrawnCase> cases_;
  std::size_t families_ = 0;
  std::map<std::string, int> tested_;  // probes, by dimension
  std::map<std::string, std::vector<DrawnProbe>> failed_;
  std::vector<int> counts_;  // how often each case is in the draw
};

// A score whose logarithm is normal with this interval.
double drawn_speed(const Score& speed, std::mt19937_64& random) {
  const double low = std::log(std::max(1e-3, speed.low));
  const double high = std::log(std::max(1e-3, speed.high));
  if (!(high > low)) return *speed.value;
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
  Draws draws(record);
  if (draws.empty()) return;
  std::mt19937_64 random(record.cases.size());  // the same record has the same intervals
  std::map<std::string, std::vector<double>> values;
  std::map<std::string, Score> now;  // values alone
  for (const auto& [dimension, score] : scores) {
    if (dimension != "overall") now[dimension].value = score.value;
  }
  for (int i = 0; i < kDraws; ++i) {
    draws.draw(random);
    for (auto& [dimension, score] : now) {
      if (!score.value.has_value()) continue;
      const double was = *scores.at(dimension).value;
      if (dimension == "correctness") score.value = draws.correctness(was);
      if (dimension == "stability") score.value = draws.stability(was);
      if (dimension == "completeness" || dimension == "robustness") {
        score.value = draws.probes(dimension, was);
      }
      if (dimension == "speed") score.value = drawn_speed(scores.at("speed"), random);
      values[dimension].push_back(*score.value);
    }
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
