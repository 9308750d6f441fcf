// touchstone selfcheck: the operators that select tokens.
#include <cmath>
#include <string>
#include <vector>

#include "bench/topk_data.h"
#include "cli/selfcheck.h"
#include "touchstone/touchstone.h"

namespace touchstone::cli {
namespace {

struct Shape {
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t k;
};

// One token, a ragged row, expert routing, everything in order, and a vocabulary.
constexpr Shape kShapes[] = {{5, 1, 1}, {9, 33, 5}, {64, 128, 8}, {3, 1001, 1001}, {3, 50257, 50}};

// The contract's 1e-6 + 2e-7 per unit of distance from the largest logit, none of which is 45 away.
constexpr double kBound = 1e-5;

void check_problem(std::vector<Outcome>& outcomes, Context& context, bench::TopkProblem problem) {
  bench::TopkData data = bench::make_topk_data(context, problem, 1);
  for (const ImplementationReport& report :
       bench::touchstone_implementations(context, problem, data)) {
    if (!report.accepted) continue;
    problem.implementation = report.name;
    const double error =
        bench::topk_error(context, problem, data, bench::touchstone_call(context, problem, data));
    add_outcome(outcomes, {.op = bench::name_of(problem.op),
                           .device = name_of(context.device()),
                           .implementation = report.name,
                           .dtype = std::string(name_of(problem.dtype)),
                           .worst = error / kBound});
  }
}

}  // namespace

void check_selections(std::vector<Outcome>& outcomes, Context& context,
                      const std::function<void(const std::string&)>& progress) {
  for (const bench::Selection op : {bench::Selection::softmax_topk, bench::Selection::sample}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const Shape& shape : kShapes) {
        bench::TopkProblem problem;
        problem.op = op;
        problem.dtype = dtype;
        problem.device = context.device();
        problem.rows = shape.rows;
        problem.cols = shape.cols;
        problem.k = shape.k;
        progress("selfcheck: " + bench::name_of(op) + " " + std::string(name_of(dtype)) + " " +
                 problem.shape());
        check_problem(outcomes, context, problem);
      }
    }
  }
}

}  // namespace touchstone::cli
