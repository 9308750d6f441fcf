// touchstone selfcheck: attention over the KV cache.
#include <string>
#include <vector>

#include "bench/attention_data.h"
#include "cli/selfcheck.h"
#include "touchstone/touchstone.h"

namespace touchstone::cli {
namespace {

// Values are near 1 in size, so that the contract's relative bound is this one.
constexpr double kBound = 1e-5;

// One token, one split and a bit, several splits.
constexpr std::int64_t kTokens[] = {1, 530, 1100};

}  // namespace

void check_attention(std::vector<Outcome>& outcomes, Context& context,
                     const std::function<void(const std::string&)>& progress) {
  for (const std::int64_t tokens : kTokens) {
    std::vector<bench::AttentionProblem> problems =
        bench::attention_problems(context.device(), cases::Tier::full);
    bench::set_shape(problems, 3, tokens, cases::Regime::cache);
    for (const bench::AttentionProblem& problem : problems) {
      progress("selfcheck: cached_attention " + problem.heads + " " + problem.format);
      context.set_implementation("");
      bench::AttentionData data(problem, 16, 1, 1);
      for (const ImplementationReport& report :
           cached_attention_implementations(context, data.args())) {
        if (!report.accepted) continue;
        context.set_implementation(report.name);
        const double error = bench::attention_error(
            context, problem, data, [&] { cached_attention(context, data.args()); });
        add_outcome(outcomes, {.op = "cached_attention",
                               .device = name_of(context.device()),
                               .implementation = report.name,
                               .dtype = problem.format,
                               .worst = error / kBound});
      }
    }
  }
  context.set_implementation("");
}

}  // namespace touchstone::cli
