// One selection problem to be measured, softmax_topk or sample, and the memory it is measured on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"

namespace touchstone::bench {

enum class Selection : std::uint8_t { softmax_topk, sample };

// "softmax_topk" or "sample"
std::string name_of(Selection op);

// What the rows of a sampling problem ask for. All but the greedy ones have a temperature of
// kTemperature.
enum class Controls : std::uint8_t {
  usual,          // top_k with top_p
  top_p,          // alone, at a temperature that leaves a nucleus of some dozens
  wide_top_p,     // alone: a nucleus of thousands
  min_p,          // alone
  greedy,         // temperature 0
  none,           // the whole distribution
  penalties,      // usual, and all penalties for a history of kHistory tokens
  probabilities,  // usual, and the kTopCount largest log-probabilities
};

// "usual", "top_p", ..; InvalidArgument lists the known names.
std::string name_of(Controls controls);
Controls parse_controls(const std::string& name);
std::vector<std::string> controls_names();

struct TopkProblem {
  Selection op = Selection::softmax_topk;
  Controls controls = Controls::usual;  // of sample
  DType dtype = DType::f32;
  Device device;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t k = 0;            // sample: its top_k
  std::string implementation{};  // "" = chosen by the operator

  std::string shape() const;  // "64x128256"
  std::int64_t logit_bytes() const;
  // The least that has to move: the logits in, once; probabilities and indices out, or token and
  // log-probability.
  std::int64_t minimal_bytes() const;

  bool uses_top_k() const;
  bool uses_top_p() const;
  float temperature() const;
};

// What every sampled row asks for beside top_k.
inline constexpr float kTemperature = 0.8F;
inline constexpr float kTopP = 0.95F;
inline constexpr float kSharpTemperature = 0.4F;
inline constexpr float kMinP = 0.05F;
inline constexpr float kRepetitionPenalty = 1.1F;
inline constexpr float kFrequencyPenalty = 0.1F;
inline constexpr float kPresencePenalty = 0.2F;
inline constexpr std::int64_t kHistory = 300;
inline constexpr std::int64_t kTopCount = 20;

// A token of a row's history, the same for every set.
std::int64_t history_token(const TopkProblem& problem, std::int64_t row, std::int64_t i);

// The operands of one call. `values` are probabilities [rows, k] or log-probabilities [rows, 1] of
// the tokens in `tokens`, of the same shape.
struct TopkSet {
  Tensor logits;
  Tensor values;
  Tensor tokens;
};

// Controls of the samplers are one per row, and the same for every set.
struct TopkData {
  Tensor temperature;
  Tensor top_k;
  Tensor top_p;
  Tensor seed;
  Tensor position;
  // Those that the problem's controls have no use for are empty.
  Tensor min_p;
  Tensor repetition;
  Tensor frequency;
  Tensor presence;
  Tensor history;
  Tensor top_tokens;
  Tensor top_values;
  std::vector<TopkSet> sets;
};

// Logits are 3 * N(0, 1): the largest stand out as they do in a language model.
TopkData make_topk_data(Context& context, const TopkProblem& problem, int sets);
std::int64_t topk_data_bytes(const TopkProblem& problem, int sets);

// One implementation, as a call on one set of operands. CUDA: queued on the context's stream.
using TopkCall = std::function<void(TopkSet& set)>;

// Touchstone itself. `problem`, `data` and `context` must outlive the call object.
TopkCall touchstone_call(Context& context, const TopkProblem& problem, TopkData& data);
std::vector<ImplementationReport> touchstone_implementations(Context& context,
                                                             const TopkProblem& problem,
                                                             TopkData& data);

// How far what `call` writes is from float64 on a sample of rows: the worst relative error of a
// probability, where a token that is not the right one counts with the distance of its logit from
// the right one's. A token drawn wrongly, or twice in one row, is infinitely wrong. Outputs are
// poisoned first.
double topk_error(Context& context, const TopkProblem& problem, TopkData& data,
                  const TopkCall& call);
// What counts as right before a time is taken: far above rounding, far below any mistake.
inline constexpr double kTopkErrorBound = 1e-3;

// The textbook on the CPU, rows shared between the threads of the context. `naive`: the softmax
// written out, then a full sort. `partial_sort`: the indices through std::partial_sort, the sum of
// exponentials beside it.
TopkCall naive_topk_call(Context& context, const TopkProblem& problem, const TopkData& data);
TopkCall partial_sort_call(Context& context, const TopkProblem& problem, const TopkData& data);

// On CUDA: maximum, sum, normalize and select, and for samples draw, one simple kernel each.
TopkCall naive_topk_cuda_call(Context& context, const TopkProblem& problem, const TopkData& data);

}  // namespace touchstone::bench
