// Attention, dense and packed.
#include "touchstone/ops/attention.h"

#include <string>

#include "c_api/border.h"

namespace touchstone::c_api {
namespace {

// `op` is for messages.
AttentionOptions options(const std::string& op, const ts_attention_options& given,
                         const ts_attention_dropout& dropout) {
  const auto tensor = [&](const ts_tensor& t, const char* name) {
    return view(t, (op + ": " + name).c_str());
  };
  return {.query_offsets = tensor(given.query_offsets, "query_offsets"),
          .key_offsets = tensor(given.key_offsets, "key_offsets"),
          .bias = tensor(given.bias, "bias"),
          .alibi_slopes = tensor(given.alibi_slopes, "alibi_slopes"),
          .sink_logits = tensor(given.sink_logits, "sink_logits"),
          .scale = given.scale,
          .soft_cap = given.soft_cap,
          .window = given.window,
          .sinks = given.sinks,
          .causal = flag(given.causal),
          .dropout = {.probability = dropout.probability,
                      .seed = dropout.seed,
                      .step = dropout.step,
                      .first_token = dropout.first_token,
                      .draw = dropout.draw}};
}

AttentionArgs converted(const ts_attention_args* given) {
  const ts_attention_args args =
      current(given, "attention", offsetof(ts_attention_args, implementation), TS_ATTENTION_ARGS);
  return {.q = view(args.q, "attention: q"),
          .k = view(args.k, "attention: k"),
          .v = view(args.v, "attention: v"),
          .output = view(args.output, "attention: output"),
          .log_sum_exp = view(args.log_sum_exp, "attention: log_sum_exp"),
          .options = options("attention", args.options, args.dropout),
          .implementation = text(args.implementation)};
}

AttentionBackwardArgs converted(const ts_attention_backward_args* given) {
  const ts_attention_backward_args args =
      current(given, "attention_backward", offsetof(ts_attention_backward_args, implementation),
              TS_ATTENTION_BACKWARD_ARGS);
  return {.doutput = view(args.doutput, "attention_backward: doutput"),
          .dlog_sum_exp = view(args.dlog_sum_exp, "attention_backward: dlog_sum_exp"),
          .q = view(args.q, "attention_backward: q"),
          .k = view(args.k, "attention_backward: k"),
          .v = view(args.v, "attention_backward: v"),
          .output = view(args.output, "attention_backward: output"),
          .log_sum_exp = view(args.log_sum_exp, "attention_backward: log_sum_exp"),
          .dq = view(args.dq, "attention_backward: dq"),
          .dk = view(args.dk, "attention_backward: dk"),
          .dv = view(args.dv, "attention_backward: dv"),
          .dbias = view(args.dbias, "attention_backward: dbias"),
          .dsink_logits = view(args.dsink_logits, "attention_backward: dsink_logits"),
          .options = options("attention_backward", args.options, args.dropout),
          .implementation = text(args.implementation)};
}

}  // namespace
}  // namespace touchstone::c_api

TOUCHSTONE_C_OPERATOR(attention, ts_attention_args, converted);
TOUCHSTONE_C_OPERATOR(attention_backward, ts_attention_backward_args, converted);
