#include "bench/topk_bench.h"

#include "touchstone/core/checked.h"

namespace touchstone::bench {
namespace {

constexpr char kOurName[] = "touchstone";

TopkProblem problem_of(Selection op, Device device, const cases::Case& item) {
  TopkProblem problem;
  problem.op = op;
  problem.dtype = item.dtype;
  problem.device = device;
  problem.rows = item.rows;
  problem.cols = item.cols;
  problem.k = item.k;
  return problem;
}

int sets_of(const TopkProblem& problem, cases::Regime regime) {
  return sets_for(problem.device, regime, problem.logit_bytes());
}

std::vector<ImplementationReport> all_implementations(Context& context, Selection op) {
  TopkProblem problem;
  problem.op = op;
  problem.device = context.device();
  problem.rows = problem.cols = problem.k = 1;
  TopkData data = make_topk_data(context, problem, 1);
  return touchstone_implementations(context, problem, data);
}

std::string chosen_implementation(Context& context, const TopkProblem& problem, TopkData& data) {
  if (!problem.implementation.empty()) return problem.implementation;
  for (const ImplementationReport& report : touchstone_implementations(context, problem, data)) {
    if (report.accepted) return report.name;
  }
  return "none";
}

}  // namespace

void check_topk_memory(const SessionOptions& session, Selection op, const cases::Case& item) {
  checked_mul(item.rows, item.cols, "bench: --rows times --cols");
  const TopkProblem problem = problem_of(op, session.device, item);
  std::int64_t bytes = topk_data_bytes(problem, sets_of(problem, item.regime));
  // The naive chain on CUDA writes every probability.
  if (session.naive && session.device.is_cuda()) {
    bytes = checked_add(bytes, checked_mul(checked_mul(item.rows, item.cols), 4), "bench: bytes");
  }
  check_memory(session, problem.shape(), bytes);
}

TopkBench::TopkBench(Session& session, const std::vector<Selection>& ops, Controls controls)
    : session_(session), controls_(controls) {
  for (const Selection op : ops) {
    session_.check_implementation(all_implementations(session_.context(), op));
  }
}

std::vector<std::string> TopkBench::peers() const {
  std::vector<std::string> names;
  if (session_.options().naive) names.emplace_back("naive");
  if (session_.options().partial_sort && !session_.cuda()) names.emplace_back("partial_sort");
  if (!session_.torch_version().empty()) names.push_back("torch " + session_.torch_version());
  return names;
}

// Checks `call` and adds it as a contender when it is right.
bool TopkBench::enter(std::vector<Contender>& contenders, const std::string& name, BenchRow& row,
                      const TopkProblem& problem, TopkData& data, const TopkCall& call) {
  const double error = topk_error(session_.context(), problem, data, call);
  if (name == kOurName) row.error = error;
  if (!(error <= kTopkErrorBound)) {
    session_.note(name + ": " + row.describe() + ": wrong result, error " + std::to_string(error) +
                  "; left out");
    return false;
  }
  session_.enter(contenders, name, row, [&data, call](std::int64_t i) {
    call(data.sets[static_cast<std::size_t>(i) % data.sets.size()]);
  });
  return true;
}

void TopkBench::enter_peers(std::vector<Contender>& contenders, BenchRow& row,
                            const TopkProblem& problem, TopkData& data) {
  Context& context = session_.context();
  if (session_.options().naive) {
    enter(contenders, "naive", row, problem, data,
          session_.cuda() ? naive_topk_cuda_call(context, problem, data)
                          : naive_topk_call(context, problem, data));
  }
  if (session_.options().partial_sort && !session_.cuda()) {
    enter(contenders, "partial_sort", row, problem, data,
          partial_sort_call(context, problem, data));
  }
  const std::string operation = name_of(problem.op);
  if (problem.op == Selection::softmax_topk) {
    session_.enter_torch(contenders, row, operation, "softmax", "torch");
    session_.enter_torch(contenders, row, operation, "lse", "torch_lse");
    session_.enter_torch_compile(contenders, row, operation, "softmax");
  } else {
    session_.enter_torch(contenders, row, operation, "masks", "torch");
    session_.enter_torch(contenders, row, operation, "topk_first", "torch_topk");
    session_.enter_torch_compile(contenders, row, operation, "topk_first");
  }
}

BenchRow TopkBench::measure(Selection op, const cases::Case& item) {
  Context& context = session_.context();
  TopkProblem problem = problem_of(op, session_.options().device, item);
  problem.controls = controls_;
  problem.implementation = session_.options().implementation;
  check_topk_memory(session_.options(), op, item);
  TopkData data = make_topk_data(context, problem, sets_of(problem, item.regime));
  BenchRow row;
  row.op = name_of(op);
  row.dtype = problem.dtype;
  row.device = problem.device;
  row.rows = problem.rows;
  row.cols = problem.cols;
  row.k = problem.k;
  row.regime = item.regime;
  row.bytes = problem.minimal_bytes();
  row.sets = static_cast<int>(data.sets.size());
  row.implementation = chosen_implementation(context, problem, data);
  std::vector<Contender> contenders;
  row.right =
      enter(contenders, kOurName, row, problem, data, touchstone_call(context, problem, data));
  if (!row.right) return row;
  // The peers only know the usual ones.
  if (controls_ == Controls::usual) enter_peers(contenders, row, problem, data);
  session_.measure_reader(row, contenders, kOurName);
  return row;
}

}  // namespace touchstone::bench
