// Selection of tokens.
#include "c_api/border.h"
#include "touchstone/ops/sample.h"
#include "touchstone/ops/softmax_topk.h"

namespace touchstone::c_api {
namespace {

static_assert(TS_ROW_HAS_NAN == static_cast<int>(RowStatus::has_nan));

SoftmaxTopkArgs converted(const ts_softmax_topk_args* given) {
  const ts_softmax_topk_args args = current(
      given, "softmax_topk", offsetof(ts_softmax_topk_args, implementation), TS_SOFTMAX_TOPK_ARGS);
  return {.logits = view(args.logits, "softmax_topk: logits"),
          .temperature = view(args.temperature, "softmax_topk: temperature"),
          .bias = view(args.bias, "softmax_topk: bias"),
          .token_mask = view(args.token_mask, "softmax_topk: token_mask"),
          .probabilities = view(args.probabilities, "softmax_topk: probabilities"),
          .indices = view(args.indices, "softmax_topk: indices"),
          .log_probabilities = view(args.log_probabilities, "softmax_topk: log_probabilities"),
          .log_sum_exp = view(args.log_sum_exp, "softmax_topk: log_sum_exp"),
          .status = view(args.status, "softmax_topk: status"),
          .temperature_scale = args.temperature_scale,
          .renormalize = flag(args.renormalize),
          .implementation = text(args.implementation)};
}

SampleArgs converted(const ts_sample_args* given) {
  const ts_sample_args args =
      current(given, "sample", offsetof(ts_sample_args, implementation), TS_SAMPLE_ARGS);
  return {
      .logits = view(args.logits, "sample: logits"),
      .bias = view(args.bias, "sample: bias"),
      .token_mask = view(args.token_mask, "sample: token_mask"),
      .temperature = view(args.temperature, "sample: temperature"),
      .top_k = view(args.top_k, "sample: top_k"),
      .top_p = view(args.top_p, "sample: top_p"),
      .min_p = view(args.min_p, "sample: min_p"),
      .repetition_penalty = view(args.repetition_penalty, "sample: repetition_penalty"),
      .frequency_penalty = view(args.frequency_penalty, "sample: frequency_penalty"),
      .presence_penalty = view(args.presence_penalty, "sample: presence_penalty"),
      .history = view(args.history, "sample: history"),
      .prompt_length = view(args.prompt_length, "sample: prompt_length"),
      .history_row = view(args.history_row, "sample: history_row"),
      .parent = view(args.parent, "sample: parent"),
      .tree_token = view(args.tree_token, "sample: tree_token"),
      .max_depth = args.max_depth,
      .seed = view(args.seed, "sample: seed"),
      .position = view(args.position, "sample: position"),
      .token = view(args.token, "sample: token"),
      .log_probability = view(args.log_probability, "sample: log_probability"),
      .top_tokens = view(args.top_tokens, "sample: top_tokens"),
      .top_log_probabilities = view(args.top_log_probabilities, "sample: top_log_probabilities"),
      .status = view(args.status, "sample: status"),
      .implementation = text(args.implementation)};
}

}  // namespace
}  // namespace touchstone::c_api

TOUCHSTONE_C_OPERATOR(softmax_topk, ts_softmax_topk_args, converted);
TOUCHSTONE_C_OPERATOR(sample, ts_sample_args, converted);
