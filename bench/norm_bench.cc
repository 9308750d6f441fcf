#include "bench/norm_bench.h"

#include <optional>

#include "bench/cuda_tools.h"
#include "bench/data.h"
#include "bench/naive_cpu.h"
#include "bench/onednn.h"
#include "touchstone/core/checked.h"

namespace touchstone::bench {
namespace {

constexpr char kOurName[] = "touchstone";

NormProblem problem_of(norm::Kind kind, Device device, const cases::Case& item) {
  NormProblem problem;
  problem.kind = kind;
  problem.dtype = item.dtype;
  problem.device = device;
  problem.rows = item.rows;
  problem.cols = item.cols;
  return problem;
}

int sets_of(const NormProblem& problem, cases::Regime regime) {
  // A forward is the smaller of the two, so what suffices for it suffices for both.
  return sets_for(problem.device, regime, checked_mul(problem.tensor_bytes(), 2, "bench: bytes"));
}

std::vector<ImplementationReport> all_implementations(Context& context) {
  NormProblem problem;
  problem.device = context.device();
  problem.rows = 1;
  problem.cols = 1;
  NormData data = make_norm_data(context, problem, 1, false);
  return touchstone_implementations(context, problem, data);
}

}  // namespace

void check_norm_memory(const SessionOptions& session, const NormBenchOptions& options,
                       const cases::Case& item) {
  checked_mul(item.rows, item.cols, "bench: --rows times --cols");
  const NormProblem problem = problem_of(norm::Kind::layer, session.device, item);
  check_memory(session, problem.shape(),
               norm_data_bytes(problem, sets_of(problem, item.regime), options.backward));
}

NormBench::NormBench(Session& session, NormBenchOptions options)
    : session_(session), options_(options), onednn_(session.options().onednn && !session.cuda()) {
  session_.check_implementation(all_implementations(session_.context()));
  if (onednn_ && onednn_version().empty()) {
    onednn_ = false;
    session_.note("onednn: not in this build");
  }
}

std::vector<std::string> NormBench::peers() const {
  std::vector<std::string> names;
  if (session_.options().naive) names.emplace_back("naive");
  if (onednn_) names.push_back("onednn " + onednn_version() + " (layer norm)");
  if (!session_.torch_version().empty()) names.push_back("torch " + session_.torch_version());
  return names;
}

// Checks `checked` and adds `call` as a contender when it is right.
bool NormBench::enter(std::vector<Contender>& contenders, const std::string& name, BenchRow& row,
                      const NormProblem& problem, NormData& data, const NormCall& call,
                      const NormCall& checked) {
  const double error = norm_error(session_.context(), problem, data, checked);
  if (name == kOurName) row.error = error;
  if (!(error <= error_bound(problem.dtype))) {
    session_.note(name + ": " + row.describe() + ": wrong result, error " + std::to_string(error) +
                  "; left out");
    return false;
  }
  session_.enter(contenders, name, row, [&data, call](std::int64_t i) {
    call(data.sets[static_cast<std::size_t>(i) % data.sets.size()]);
  });
  return true;
}

BenchRow NormBench::measure(const NormProblem& problem, cases::Regime regime, NormData& data) {
  Context& context = session_.context();
  BenchRow row;
  row.op = problem.op();
  row.dtype = problem.dtype;
  row.device = problem.device;
  row.rows = problem.rows;
  row.cols = problem.cols;
  row.regime = regime;
  row.bytes = problem.minimal_bytes();
  row.sets = static_cast<int>(data.sets.size());
  row.implementation = touchstone_implementation(context, problem, data);
  const NormCall ours = touchstone_call(context, problem, data);
  std::vector<Contender> contenders;
  row.right = enter(contenders, kOurName, row, problem, data, ours, ours);
  if (!row.right) return row;
  if (session_.options().naive) {
    const NormCall naive = session_.cuda() ? naive_cuda_call(context, problem, data)
                                           : naive_cpu_call(context, problem, data);
    enter(contenders, "naive", row, problem, data, naive, naive);
  }
  if (onednn_) {
    const std::optional<OneDnnCalls> calls = onednn_calls(context, problem, data);
    if (calls) enter(contenders, "onednn", row, problem, data, calls->call, calls->checked);
  }
  const char* const operation = problem.kind == norm::Kind::layer ? "layer_norm" : "rms_norm";
  const char* const variant = problem.direction == Direction::forward ? "forward" : "backward";
  session_.enter_torch(contenders, row, operation, variant, "torch");
  session_.enter_torch_compile(contenders, row, operation, variant);
  session_.measure(row, contenders, kOurName);
  return row;
}

std::vector<BenchRow> NormBench::measure(norm::Kind kind, const cases::Case& item) {
  NormProblem problem = problem_of(kind, session_.options().device, item);
  problem.implementation = session_.options().implementation;
  check_norm_memory(session_.options(), options_, item);
  NormData data =
      make_norm_data(session_.context(), problem, sets_of(problem, item.regime), options_.backward);
  std::vector<BenchRow> rows;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    const bool forward = direction == Direction::forward;
    if (!(forward ? options_.forward : options_.backward)) continue;
    problem.direction = direction;
    rows.push_back(measure(problem, item.regime, data));
  }
  return rows;
}

}  // namespace touchstone::bench
