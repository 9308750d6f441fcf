// Who stands where, and whether the weights of the task decide it.
#include <algorithm>
#include <functional>
#include <numeric>

#include "judge/report/score.h"

namespace touchstone::judge {
namespace {

// How a board lists what did not pass: the nearer to right, the higher.
int shelf(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass:
      return 0;
    case Verdict::partial:
      return 1;
    case Verdict::untested:
    case Verdict::judge_error:
      return 2;
    case Verdict::unstable:
    case Verdict::wrong:
    case Verdict::limit:
      return 3;
    case Verdict::unsafe:
    case Verdict::rule:
    case Verdict::impossible:
      return 4;
    case Verdict::nobuild:
      return 5;
    case Verdict::proven_cheat:
      return 6;
  }
  return 7;
}

double overall_or_zero(const Record& record, const std::map<std::string, double>& weights) {
  return overall(record.scores, weights).value_or(0.0);
}

// Ranks of the passing records under `weights`; those within the tie margin share one.
std::vector<int> ranks_under(std::span<const Record> records,
                             const std::vector<std::size_t>& passing,
                             const std::map<std::string, double>& weights) {
  std::vector<double> values;
  values.reserve(passing.size());
  for (const std::size_t i : passing) values.push_back(overall_or_zero(records[i], weights));
  std::vector<int> ranks;
  ranks.reserve(values.size());
  for (const double value : values) {
    ranks.push_back(1 + static_cast<int>(std::ranges::count_if(
                            values, [&](double other) { return other > value + kTieMargin; })));
  }
  return ranks;
}

// The one weight whose doubling or halving alone moves contender `at` from its rank.
std::string deciding_dimension(std::span<const Record> records,
                               const std::vector<std::size_t>& passing, std::size_t at, int rank,
                               const std::map<std::string, double>& weights) {
  for (const double factor : {2.0, 0.5}) {
    for (const auto& [dimension, weight] : weights) {
      std::map<std::string, double> changed = weights;
      changed[dimension] = weight * factor;
      if (ranks_under(records, passing, changed)[at] != rank) return dimension;
    }
  }
  return "several weights";
}

}  // namespace

void for_each_weighting(const std::map<std::string, double>& weights,
                        const std::function<void(const std::map<std::string, double>&)>& visit) {
  std::size_t count = 1;
  for (std::size_t i = 0; i < weights.size(); ++i) count *= 3;
  for (std::size_t code = 0; code < count; ++code) {
    std::map<std::string, double> changed = weights;
    std::size_t rest = code;
    for (auto& [dimension, weight] : changed) {
      constexpr double kFactors[] = {0.5, 1.0, 2.0};
      weight *= kFactors[rest % 3];
      rest /= 3;
    }
    visit(changed);
  }
}

namespace {

// Ranks the records of one verdict among each other, from `first` on.
void rank_group(std::span<const Record> records, const std::vector<std::size_t>& group, int first,
                std::span<Standing> standings) {
  if (group.empty()) return;
  const std::map<std::string, double>& weights = records[group.front()].weights;
  const std::vector<int> ranks = ranks_under(records, group, weights);
  std::vector<int> best = ranks;
  std::vector<int> worst = ranks;
  std::vector<int> same(group.size(), 0);
  int weightings = 0;
  for_each_weighting(weights, [&](const std::map<std::string, double>& changed) {
    ++weightings;
    const std::vector<int> now = ranks_under(records, group, changed);
    for (std::size_t k = 0; k < group.size(); ++k) {
      best[k] = std::min(best[k], now[k]);
      worst[k] = std::max(worst[k], now[k]);
      if (now[k] == ranks[k]) ++same[k];
    }
  });
  for (std::size_t k = 0; k < group.size(); ++k) {
    Standing& standing = standings[k];
    standing.rank = first + ranks[k];
    standing.best = first + best[k];
    standing.worst = first + worst[k];
    standing.share = static_cast<double>(same[k]) / weightings;
    if (best[k] != worst[k]) {
      standing.depends_on = deciding_dimension(records, group, k, ranks[k], weights);
    }
  }
}

}  // namespace

std::vector<Standing> rank(std::span<const Record> records) {
  std::vector<std::size_t> order(records.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto key = [&](std::size_t i) {
    const Record& r = records[i];
    return std::make_tuple(shelf(r.verdict), -overall_or_zero(r, r.weights), r.contender);
  };
  std::ranges::sort(order, {}, key);
  std::vector<Standing> standings;
  std::vector<std::size_t> passing;
  std::vector<std::size_t> partial;
  for (const std::size_t i : order) {
    Standing standing;
    standing.index = i;
    standings.push_back(standing);
    if (records[i].verdict == Verdict::pass) passing.push_back(i);
    if (records[i].verdict == Verdict::partial) partial.push_back(i);
  }
  // The order puts those that pass first and those that lack something behind all of them.
  const std::span<Standing> all(standings);
  rank_group(records, passing, 0, all);
  rank_group(records, partial, static_cast<int>(passing.size()), all.subspan(passing.size()));
  return standings;
}

}  // namespace touchstone::judge
