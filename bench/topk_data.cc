#include "bench/topk_data.h"

#include <algorithm>

#include "bench/data.h"
#include "touchstone/core/checked.h"
#include "touchstone/ops/sample.h"
#include "touchstone/ops/softmax_topk.h"

namespace touchstone::bench {
namespace {

SoftmaxTopkArgs topk_args(TopkSet& set) {
  SoftmaxTopkArgs args;
  args.logits = set.logits;
  args.probabilities = set.values;
  args.indices = set.tokens;
  return args;
}

// [rows, 1] as [rows].
TensorView column(Tensor& tensor) {
  TensorView view = tensor;
  view.rank = 1;
  return view;
}

SampleArgs sample_args(const TopkData& data, TopkSet& set) {
  SampleArgs args;
  args.logits = set.logits;
  args.temperature = data.temperature;
  args.top_k = data.top_k;
  args.top_p = data.top_p;
  args.seed = data.seed;
  args.position = data.position;
  args.token = column(set.tokens);
  args.log_probability = column(set.values);
  return args;
}

template <class T, class Value>
Tensor per_row(const TopkProblem& problem, const Value& value) {
  Tensor tensor = Tensor::empty({problem.rows}, dtype_of<T>);
  const std::span<T> values = tensor.values<T>();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(value(i));
  return tensor.to(problem.device);
}

}  // namespace

std::string name_of(Selection op) {
  return op == Selection::softmax_topk ? "softmax_topk" : "sample";
}

std::string TopkProblem::shape() const { return std::to_string(rows) + "x" + std::to_string(cols); }

std::int64_t TopkProblem::logit_bytes() const {
  return checked_mul(checked_mul(rows, cols, "bench: elements"), size_of(dtype), "bench: bytes");
}

std::int64_t TopkProblem::minimal_bytes() const {
  const std::int64_t outputs = op == Selection::sample ? 1 : k;
  return checked_add(logit_bytes(), checked_mul(checked_mul(rows, outputs), 8), "bench: bytes");
}

std::int64_t topk_data_bytes(const TopkProblem& problem, int sets) {
  return checked_mul(problem.minimal_bytes(), sets, "bench: bytes");
}

TopkData make_topk_data(Context& context, const TopkProblem& problem, int sets) {
  TopkData data;
  data.temperature = per_row<float>(problem, [](std::size_t) { return kTemperature; });
  data.top_k = per_row<std::int32_t>(problem, [&](std::size_t) { return problem.k; });
  data.top_p = per_row<float>(problem, [](std::size_t) { return kTopP; });
  data.seed = per_row<std::int64_t>(problem, [](std::size_t row) { return row; });
  data.position = per_row<std::int64_t>(problem, [](std::size_t row) { return 7 * row; });
  const std::int64_t outputs = problem.op == Selection::sample ? 1 : problem.k;
  for (int i = 0; i < sets; ++i) {
    TopkSet set;
    set.logits = Tensor::empty({problem.rows, problem.cols}, problem.dtype, problem.device);
    set.values = Tensor::empty({problem.rows, outputs}, DType::f32, problem.device);
    set.tokens = Tensor::empty({problem.rows, outputs}, DType::i32, problem.device);
    fill_random(context, set.logits, 0.0F, 3.0F, 16 + static_cast<std::uint64_t>(i));
    poison(context, set.values);
    poison(context, set.tokens);
    data.sets.push_back(std::move(set));
  }
  context.synchronize();
  return data;
}

TopkCall touchstone_call(Context& context, const TopkProblem& problem, const TopkData& data) {
  if (problem.op == Selection::sample) {
    return [&](TopkSet& set) { sample(context, sample_args(data, set)); };
  }
  return [&](TopkSet& set) { softmax_topk(context, topk_args(set)); };
}

std::vector<ImplementationReport> touchstone_implementations(Context& context,
                                                             const TopkProblem& problem,
                                                             TopkData& data) {
  TopkSet& set = data.sets.front();
  return problem.op == Selection::sample ? sample_implementations(context, sample_args(data, set))
                                         : softmax_topk_implementations(context, topk_args(set));
}

}  // namespace touchstone::bench
