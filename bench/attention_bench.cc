#include "bench/attention_bench.h"

#include "touchstone/core/checked.h"

namespace touchstone::bench {
namespace {

constexpr char kOurName[] = "touchstone";
// Query tokens for which the time without a cache is measured.
constexpr std::int64_t kNaiveQueries = 16;

int sets_of(const AttentionProblem& problem) {
  return sets_for(problem.device, problem.regime, problem.minimal_bytes());
}

std::string chosen_implementation(Context& context, const AttentionData& data) {
  if (!data.args().implementation.empty()) return data.args().implementation;
  for (const ImplementationReport& report : explain(context, data.args())) {
    if (report.accepted) return report.name;
  }
  return "none";
}

}  // namespace

void check_attention_memory(const SessionOptions& session, const AttentionProblem& problem) {
  // Pages on the host as well, and those of the two peers that are ours.
  const std::int64_t copies = 2 * sets_of(problem) + 2;
  check_memory(session, std::to_string(problem.batch) + "x" + std::to_string(problem.tokens),
               checked_mul(problem.minimal_bytes(), copies, "bench: bytes"));
}

AttentionBench::AttentionBench(Session& session) : session_(session) {
  Context& context = session_.context();
  AttentionProblem problem = attention_problems(context.device(), cases::Tier::smoke).front();
  problem.batch = problem.tokens = 1;
  const AttentionData data(problem, 16, 1, 1);
  session_.check_implementation(explain(context, data.args()));
}

std::vector<std::string> AttentionBench::peers() const {
  std::vector<std::string> names;
  if (session_.options().naive) names.insert(names.end(), {"naive", "contiguous"});
  if (!session_.torch_version().empty()) names.push_back("torch " + session_.torch_version());
  return names;
}

std::string AttentionBench::explanation() {
  return "one decoding step; naive: without a cache, attention of every token again (our kernel, " +
         std::to_string(kNaiveQueries) + " tokens spread over the sequence, times tokens / " +
         std::to_string(kNaiveQueries) +
         "; projections not counted); contiguous: our kernel, one page per sequence, nothing "
         "shared; torch: "
         "scaled_dot_product_attention on dense K and V. On the CPU the floor is the stored bytes "
         "at the rate of reads.";
}

void AttentionBench::enter_peers(std::vector<Contender>& contenders, const BenchRow& row,
                                 const AttentionProblem& problem) {
  Context& context = session_.context();
  if (session_.options().naive) {
    // As much work per sequence as a graph or a sample can hold.
    data_.push_back(std::make_unique<AttentionData>(problem, 16, kNaiveQueries, 2));
    data_.back()->set_implementation(session_.options().implementation);
    session_.enter(contenders, "naive", row, [&context, data = data_.back().get()](std::int64_t) {
      cached_attention(context, data->args());
    });
    const double factor = static_cast<double>(problem.tokens) / static_cast<double>(kNaiveQueries);
    contenders.back().sample_us = [factor, timed = contenders.back().sample_us] {
      return factor * timed();
    };
    std::vector<AttentionData*> sets;
    for (int i = 0; i < row.sets; ++i) {
      data_.push_back(
          std::make_unique<AttentionData>(problem, 0, 1, 1000 + static_cast<std::uint64_t>(i)));
      data_.back()->set_implementation(session_.options().implementation);
      sets.push_back(data_.back().get());
    }
    session_.enter(contenders, "contiguous", row, [&context, sets](std::int64_t i) {
      cached_attention(context, sets[static_cast<std::size_t>(i) % sets.size()]->args());
    });
  }
  // It knows no quantized cache, no latent and no sharing.
  const bool dense = !cache::is_quantized(problem.layers.k.encoding) && !problem.layers.k_is_v &&
                     problem.shared == 0;
  if (dense) session_.enter_torch(contenders, row, row.op, row.heads, "torch");
}

BenchRow AttentionBench::measure(const AttentionProblem& problem) {
  Context& context = session_.context();
  check_attention_memory(session_.options(), problem);
  BenchRow row;
  row.op = "decode_attention";
  row.format = problem.format;
  row.heads = problem.heads;
  row.dtype = problem.layers.k.encoding == cache::Encoding::f32 ? DType::f32 : DType::bf16;
  row.device = problem.device;
  row.rows = problem.batch;
  row.cols = problem.tokens;
  row.regime = problem.regime;
  row.bytes = problem.minimal_bytes();
  row.sets = sets_of(problem);

  data_.clear();
  std::vector<AttentionData*> sets;
  for (int i = 0; i < row.sets; ++i) {
    data_.push_back(
        std::make_unique<AttentionData>(problem, 16, 1, 10 + static_cast<std::uint64_t>(i)));
    data_.back()->set_implementation(session_.options().implementation);
    sets.push_back(data_.back().get());
  }
  row.implementation = chosen_implementation(context, *sets.front());
  row.error = attention_error(context, problem, *sets.front(),
                              [&] { cached_attention(context, sets.front()->args()); });
  row.right = row.error <= kAttentionErrorBound;
  if (!row.right) return row;

  std::vector<Contender> contenders;
  session_.enter(contenders, kOurName, row, [&](std::int64_t i) {
    cached_attention(context, sets[static_cast<std::size_t>(i) % sets.size()]->args());
  });
  enter_peers(contenders, row, problem);
  session_.measure_reader(row, contenders, kOurName);
  data_.clear();
  return row;
}

}  // namespace touchstone::bench
