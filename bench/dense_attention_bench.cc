#include "bench/dense_attention_bench.h"

#include "bench/data.h"
#include "bench/fma_rate.h"
#include "touchstone/core/checked.h"

namespace touchstone::bench {
namespace {

constexpr char kOurName[] = "touchstone";
// Beyond this the whole matrix takes minutes, or gigabytes.
constexpr std::int64_t kMaxNaiveTokens = 2048;

bool wants_naive(const SessionOptions& options, const DenseAttentionProblem& problem) {
  return options.naive && problem.tokens <= kMaxNaiveTokens;
}

std::string chosen_implementation(Context& context, const DenseAttentionProblem& problem,
                                  DenseAttentionData& data) {
  if (!problem.implementation.empty()) return problem.implementation;
  for (const auto& report : dense_attention_implementations(context, problem, data)) {
    if (report.accepted) return report.name;
  }
  return "none";
}

}  // namespace

void check_dense_attention_memory(const SessionOptions& session,
                                  const DenseAttentionProblem& problem) {
  std::int64_t bytes = problem.data_bytes();
  if (wants_naive(session, problem)) {
    // Two matrices of scores per head.
    const std::int64_t matrix = checked_mul(problem.tokens * problem.tokens, 8, "bench: bytes");
    const std::int64_t heads = problem.device.is_cuda() ? problem.heads : problem.kv_heads;
    bytes = checked_add(bytes, checked_mul(matrix, problem.batch * heads));
  }
  check_memory(session, problem.shape(), bytes);
}

DenseAttentionBench::DenseAttentionBench(Session& session, bool backward) : session_(session) {
  Context& context = session_.context();
  DenseAttentionProblem problem;
  problem.device = context.device();
  problem.tokens = 1;
  problem.dim = 64;
  problem.backward = backward;
  DenseAttentionData data(context, problem);
  session_.check_implementation(dense_attention_implementations(context, problem, data));
}

void DenseAttentionBench::measure_fma() {
  if (!session_.cuda()) fma_gflops_ = measure_fma_gflops(session_.context());
}

std::vector<std::string> DenseAttentionBench::peers() const {
  std::vector<std::string> names;
  if (session_.options().naive) names.emplace_back("naive");
  if (session_.torch_version().empty()) return names;
  if (session_.cuda()) {
    names.push_back("torch " + session_.torch_version() + " flash");
    names.push_back("torch " + session_.torch_version() + " cudnn");
  } else {
    names.push_back("torch " + session_.torch_version());
  }
  return names;
}

void DenseAttentionBench::enter_peers(std::vector<Contender>& contenders, const BenchRow& row,
                                      const DenseAttentionProblem& problem,
                                      DenseAttentionData& data) {
  Context& context = session_.context();
  if (wants_naive(session_.options(), problem)) {
    naive_ = [&context, &problem, &data] { naive_attention_cpu(context, problem, data); };
    if (session_.cuda()) naive_ = naive_attention_cuda_call(context, problem, data);
    const auto naive = [this](std::int64_t) { naive_(); };
    const double error = dense_attention_error(context, problem, data, naive_);
    if (error <= error_bound(problem.dtype)) {
      session_.enter(contenders, "naive", row, naive);
    } else {
      session_.note("naive: wrong result, error " + std::to_string(error) + "; left out");
    }
  }
  const std::string variant = std::string(problem.backward ? "backward " : "forward ") +
                              problem.shape() + (problem.causal ? " causal " : " full ");
  if (session_.cuda()) {
    session_.enter_torch(contenders, row, "attention", variant + "flash", "torch flash");
    session_.enter_torch(contenders, row, "attention", variant + "cudnn", "torch cudnn");
  } else {
    session_.enter_torch(contenders, row, "attention", variant + "any", "torch");
  }
}

BenchRow DenseAttentionBench::measure(DenseAttentionProblem problem) {
  problem.implementation = session_.options().implementation;
  Context& context = session_.context();
  check_dense_attention_memory(session_.options(), problem);
  BenchRow row;
  row.op = problem.op();
  row.format = problem.causal ? "causal" : "full";
  row.heads = problem.shape();
  row.dtype = problem.dtype;
  row.device = problem.device;
  row.rows = problem.batch * problem.heads * problem.tokens;
  row.cols = problem.dim;
  row.regime = cases::Regime::memory;
  row.bytes = problem.minimal_bytes();
  row.flops = problem.flops();
  row.sets = 1;
  DenseAttentionData data(context, problem);
  row.implementation = chosen_implementation(context, problem, data);
  const auto call = [&](std::int64_t) { data.run(context, problem); };
  row.error = dense_attention_error(context, problem, data, [&] { call(0); });
  row.right = row.error <= error_bound(problem.dtype);
  if (!row.right) return row;
  std::vector<Contender> contenders;
  session_.enter(contenders, kOurName, row, call);
  enter_peers(contenders, row, problem, data);
  session_.measure(row, contenders, kOurName);
  naive_ = nullptr;
  return row;
}

}  // namespace touchstone::bench
