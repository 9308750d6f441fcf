#include "bench/topk_data.h"

#include <algorithm>
#include <utility>

#include "bench/data.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"
#include "touchstone/ops/sample.h"
#include "touchstone/ops/softmax_topk.h"

namespace touchstone::bench {
namespace {

SoftmaxTopkArgs topk_args(const TopkProblem& problem, TopkSet& set) {
  SoftmaxTopkArgs args;
  args.logits = set.logits;
  args.probabilities = set.values;
  args.indices = set.tokens;
  args.implementation = problem.implementation;
  return args;
}

// [rows, 1] as [rows].
TensorView column(Tensor& tensor) {
  TensorView view = tensor;
  view.rank = 1;
  return view;
}

constexpr std::pair<Controls, const char*> kControls[] = {
    {Controls::usual, "usual"},           {Controls::top_p, "top_p"},
    {Controls::wide_top_p, "wide_top_p"}, {Controls::min_p, "min_p"},
    {Controls::greedy, "greedy"},         {Controls::none, "none"},
    {Controls::penalties, "penalties"},   {Controls::probabilities, "probabilities"},
};

SampleArgs sample_args(const TopkProblem& problem, TopkData& data, TopkSet& set) {
  const Controls controls = problem.controls;
  SampleArgs args;
  args.logits = set.logits;
  args.temperature = data.temperature;
  if (problem.uses_top_k()) args.top_k = data.top_k;
  if (problem.uses_top_p()) args.top_p = data.top_p;
  if (controls == Controls::min_p) args.min_p = data.min_p;
  if (controls == Controls::penalties) {
    args.repetition_penalty = data.repetition;
    args.frequency_penalty = data.frequency;
    args.presence_penalty = data.presence;
    args.history = data.history;
  }
  if (controls == Controls::probabilities) {
    args.top_tokens = data.top_tokens;
    args.top_log_probabilities = data.top_values;
  }
  args.seed = data.seed;
  args.position = data.position;
  args.token = column(set.tokens);
  args.log_probability = column(set.values);
  args.implementation = problem.implementation;
  return args;
}

template <class T, class Value>
Tensor per_row(const TopkProblem& problem, const Value& value) {
  Tensor tensor = Tensor::empty({problem.rows}, dtype_of<T>);
  const std::span<T> values = tensor.values<T>();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(value(i));
  return tensor.to(problem.device);
}

// What only some controls need.
void add_controls(const TopkProblem& problem, TopkData& data) {
  data.min_p = per_row<float>(problem, [](std::size_t) { return kMinP; });
  data.repetition = per_row<float>(problem, [](std::size_t) { return kRepetitionPenalty; });
  data.frequency = per_row<float>(problem, [](std::size_t) { return kFrequencyPenalty; });
  data.presence = per_row<float>(problem, [](std::size_t) { return kPresencePenalty; });
  if (problem.controls == Controls::penalties) {
    Tensor history = Tensor::empty({problem.rows, kHistory}, DType::i32);
    const std::span<std::int32_t> tokens = history.values<std::int32_t>();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      tokens[i] = static_cast<std::int32_t>(history_token(problem, at / kHistory, at % kHistory));
    }
    data.history = history.to(problem.device);
  }
  if (problem.controls == Controls::probabilities) {
    const std::int64_t n = std::min(kTopCount, problem.cols);
    data.top_tokens = Tensor::empty({problem.rows, n}, DType::i32, problem.device);
    data.top_values = Tensor::empty({problem.rows, n}, DType::f32, problem.device);
  }
}

}  // namespace

std::string name_of(Controls controls) {
  for (const auto& [value, name] : kControls) {
    if (value == controls) return name;
  }
  return "";
}

std::vector<std::string> controls_names() {
  std::vector<std::string> names;
  for (const auto& [value, name] : kControls) names.emplace_back(name);
  return names;
}

Controls parse_controls(const std::string& wanted) {
  for (const auto& [value, name] : kControls) {
    if (wanted == name) return value;
  }
  throw InvalidArgument("bench: --controls: unknown name '" + wanted + "'");
}

std::int64_t history_token(const TopkProblem& problem, std::int64_t row, std::int64_t i) {
  // Any sequence that is spread over the vocabulary, with some tokens more than once.
  return (row * 7919 + i / 2 * 104729) % problem.cols;
}

bool TopkProblem::uses_top_k() const {
  return controls == Controls::usual || controls == Controls::penalties ||
         controls == Controls::probabilities;
}
bool TopkProblem::uses_top_p() const {
  return uses_top_k() || controls == Controls::top_p || controls == Controls::wide_top_p;
}
float TopkProblem::temperature() const {
  if (controls == Controls::greedy) return 0;
  return controls == Controls::top_p ? kSharpTemperature : kTemperature;
}

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
  data.temperature = per_row<float>(problem, [&](std::size_t) { return problem.temperature(); });
  data.top_k = per_row<std::int32_t>(problem, [&](std::size_t) { return problem.k; });
  data.top_p = per_row<float>(problem, [](std::size_t) { return kTopP; });
  data.seed = per_row<std::int64_t>(problem, [](std::size_t row) { return row; });
  data.position = per_row<std::int64_t>(problem, [](std::size_t row) { return 7 * row; });
  if (problem.op == Selection::sample) add_controls(problem, data);
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

TopkCall touchstone_call(Context& context, const TopkProblem& problem, TopkData& data) {
  if (problem.op == Selection::sample) {
    return [&](TopkSet& set) { sample(context, sample_args(problem, data, set)); };
  }
  return [&](TopkSet& set) { softmax_topk(context, topk_args(problem, set)); };
}

std::vector<ImplementationReport> touchstone_implementations(Context& context,
                                                             const TopkProblem& problem,
                                                             TopkData& data) {
  TopkSet& set = data.sets.front();
  return problem.op == Selection::sample ? explain(context, sample_args(problem, data, set))
                                         : explain(context, topk_args(problem, set));
}

}  // namespace touchstone::bench
