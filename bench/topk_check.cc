// The check that comes before a time is taken: float64 on a sample of the rows.
#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <vector>

#include "bench/data.h"
#include "bench/topk_data.h"
#include "ops/sample/philox.h"
#include "oracle/sample.h"

namespace touchstone::bench {
namespace {

constexpr std::int64_t kSampledRows = 8;
// A uniform this close to a border between two tokens has two right answers.
constexpr double kBorder = 1e-5;

double worse(double a, double b) { return std::isnan(a) || a > b ? a : b; }

double row_topk_error(const oracle::SampleDistribution& d, std::span<const double> values,
                      std::span<const double> tokens) {
  const std::set<double> distinct(tokens.begin(), tokens.end());
  if (distinct.size() != tokens.size()) return HUGE_VAL;
  double error = 0;
  for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
    if (!(tokens[rank] >= 0 && tokens[rank] < static_cast<double>(d.value.size()))) return HUGE_VAL;
    const double expected = d.log_probability[static_cast<std::size_t>(d.order[rank])];
    const double chosen = d.log_probability[static_cast<std::size_t>(tokens[rank])];
    error = worse(std::fabs(chosen - expected), error);
    error = worse(std::fabs(values[rank] / std::exp(expected) - 1), error);
  }
  return error;
}

double row_sample_error(const oracle::SampleDistribution& d, double u, double value, double token) {
  double before = 0;
  for (const std::int64_t t : d.drawn) {
    const auto at = static_cast<std::size_t>(t);
    const double after = before + d.probability[at];
    if (static_cast<double>(t) == token && before <= u + kBorder && after >= u - kBorder) {
      return std::fabs(value - d.log_probability[at]);
    }
    before = after;
  }
  return HUGE_VAL;
}

// The controls of a row.
void ask_for(const TopkProblem& problem, std::int64_t number, oracle::SampleRow& row) {
  row.temperature = static_cast<double>(problem.temperature());
  if (problem.uses_top_p()) row.top_p = static_cast<double>(kTopP);
  if (problem.uses_top_k()) row.top_k = problem.k;
  if (problem.controls == Controls::min_p) row.min_p = static_cast<double>(kMinP);
  if (problem.controls != Controls::penalties) return;
  row.repetition_penalty = static_cast<double>(kRepetitionPenalty);
  row.frequency_penalty = static_cast<double>(kFrequencyPenalty);
  row.presence_penalty = static_cast<double>(kPresencePenalty);
  for (std::int64_t i = 0; i < kHistory; ++i) {
    row.history.push_back(history_token(problem, number, i));
  }
}

}  // namespace

double topk_error(Context& context, const TopkProblem& problem, TopkData& data,
                  const TopkCall& call) {
  TopkSet& set = data.sets.back();
  poison(context, set.values);
  poison(context, set.tokens);
  call(set);
  context.synchronize();
  const std::vector<std::int64_t> rows = spread_sample(problem.rows, kSampledRows);
  const std::vector<double> logits = sampled_rows(set.logits, rows);
  const std::vector<double> values = sampled_rows(set.values, rows);
  const std::vector<double> tokens = sampled_rows(set.tokens, rows);
  const auto cols = static_cast<std::size_t>(problem.cols);
  const std::size_t outputs = values.size() / rows.size();
  double error = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    oracle::SampleRow row;
    row.logits.assign(logits.begin() + static_cast<std::ptrdiff_t>(i * cols),
                      logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * cols));
    if (problem.op == Selection::softmax_topk) {
      const oracle::SampleDistribution d = oracle::sample_distribution(row);
      error = worse(row_topk_error(d, std::span(values).subspan(i * outputs, outputs),
                                   std::span(tokens).subspan(i * outputs, outputs)),
                    error);
    } else {
      ask_for(problem, rows[i], row);
      const double u = sampling::uniform_of(rows[i], 7 * rows[i]);
      const oracle::SampleDistribution d = oracle::sample_distribution(row);
      error = worse(row_sample_error(d, u, values[i], tokens[i]), error);
    }
  }
  return error;
}

}  // namespace touchstone::bench
