// touchstone selfcheck: attention over the KV cache and over dense keys and values.
#include <string>
#include <utility>
#include <vector>

#include "bench/attention_data.h"
#include "bench/data.h"
#include "bench/dense_attention_data.h"
#include "cli/selfcheck.h"
#include "touchstone/touchstone.h"

namespace touchstone::cli {
namespace {

// Values are near 1 in size, so that the contract's relative bound is this one.
constexpr double kBound = 1e-5;

// One token, one split and a bit, several splits.
constexpr std::int64_t kTokens[] = {1, 530, 1100};

// Tokens and head size: a few tokens, a ragged tile of each, whole tiles. One token alone has no
// gradient to measure an error against.
constexpr std::pair<std::int64_t, std::int64_t> kDenseShapes[] = {{5, 64}, {131, 40}, {256, 128}};

void check_dense_problem(std::vector<Outcome>& outcomes, Context& context,
                         bench::DenseAttentionProblem problem) {
  bench::DenseAttentionData data(context, problem);
  for (const auto& report : bench::dense_attention_implementations(context, problem, data)) {
    if (!report.accepted) continue;
    problem.implementation = report.name;
    const double error =
        bench::dense_attention_error(context, problem, data, [&] { data.run(context, problem); });
    add_outcome(outcomes, {.op = problem.op(),
                           .device = name_of(context.device()),
                           .implementation = report.name,
                           .dtype = std::string(name_of(problem.dtype)),
                           .worst = error / bench::error_bound(problem.dtype)});
  }
}

void check_dense_attention(std::vector<Outcome>& outcomes, Context& context,
                           const std::function<void(const std::string&)>& progress) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    if (dtype == DType::f64 && context.device().is_cuda()) continue;
    for (const auto& [tokens, dim] : kDenseShapes) {
      for (const bool backward : {false, true}) {
        bench::DenseAttentionProblem problem;
        problem.device = context.device();
        problem.dtype = dtype;
        problem.heads = 4;
        problem.kv_heads = 2;
        problem.tokens = tokens;
        problem.dim = dim;
        problem.causal = true;
        problem.backward = backward;
        progress("selfcheck: " + problem.op() + " " + problem.shape());
        check_dense_problem(outcomes, context, problem);
      }
    }
  }
}

}  // namespace

void check_attention(std::vector<Outcome>& outcomes, Context& context,
                     const std::function<void(const std::string&)>& progress) {
  check_dense_attention(outcomes, context, progress);
  for (const std::int64_t tokens : kTokens) {
    std::vector<bench::AttentionProblem> problems =
        bench::attention_problems(context.device(), cases::Tier::full);
    bench::set_shape(problems, 3, tokens, cases::Regime::cache);
    for (const bench::AttentionProblem& problem : problems) {
      progress("selfcheck: cached_attention " + problem.heads + " " + problem.format);
      bench::AttentionData data(problem, 16, 1, 1);
      for (const ImplementationReport& report : explain(context, data.args())) {
        if (!report.accepted) continue;
        data.set_implementation(report.name);
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
}

}  // namespace touchstone::cli
