#include "ops/attention_dense/dense_checks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ops/attention_common/attention_checks.h"
#include "ops/attention_dense/dense_key_tile.h"
#include "touchstone/core/checked.h"

namespace touchstone::dense_attention {
namespace {

using attention_common::AttentionChecks;

constexpr std::int64_t kNone = -1;

DType statistics_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

bool is_packed(const DenseProblem& p) { return p.query_offsets != nullptr; }

class DenseChecks : public AttentionChecks {
 public:
  using AttentionChecks::AttentionChecks;

  // The given extents, [B, S, H, D] or [N, H, D]; kNone = any.
  void tokens_shape(const Argument& a, const std::array<std::int64_t, 4>& extents,
                    bool packed) const {
    const auto expected = std::span(extents).subspan(packed ? 1 : 0);
    bool right = a.view.rank == std::ssize(expected);
    for (std::size_t i = 0; right && i < expected.size(); ++i) {
      right = expected[i] == kNone ? a.view.shape[i] >= 0 : a.view.shape[i] == expected[i];
    }
    if (right) return;
    static constexpr const char* kDense[] = {"B", "S", "H", "D"};
    static constexpr const char* kPacked[] = {"N", "H", "D"};
    std::string text;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const char* const letter = packed ? kPacked[i] : kDense[i];
      text += (i == 0 ? "" : ", ") + (expected[i] == kNone ? letter : std::to_string(expected[i]));
    }
    fail(a.name, "shape [" + text + "]", shape_string(a.view.sizes()));
  }

  // Strides of [B, S, H, D] or [N, H, D]. Elements of an output may not coincide.
  ConstHeads heads(const Argument& a, bool writable) const {
    const ConstTensorView& v = a.view;
    const auto last = static_cast<std::size_t>(v.rank - 1);
    dense_last(a, writable);
    return {v.data, v.rank == 4 ? v.stride[0] : 0, v.stride[last - 1], v.stride[last - 2]};
  }

  // One number per token and head, [B, S, H] or [N, H], optional unless `needed`.
  ConstHeads statistics(const Argument& a, const DenseProblem& p, bool writable,
                        bool needed = false) const {
    if (!a.view.defined() && !needed) return {};
    present(a);
    dtype(a, {statistics_dtype(p.dtype)});
    const ConstTensorView& v = a.view;
    if (is_packed(p)) {
      shape(a, std::array{p.queries, p.query_heads});
    } else {
      shape(a, std::array{p.batch, p.queries, p.query_heads});
    }
    strides(a, writable);
    const auto last = static_cast<std::size_t>(v.rank - 1);
    return {v.data, v.rank == 3 ? v.stride[0] : 0, v.stride[last], v.stride[last - 1]};
  }
};

// The arguments both directions have, with their names.
struct Shared {
  Argument q, k, v;
  Argument query_offsets, key_offsets, bias, alibi_slopes, sink_logits;

  template <class Args>
  explicit Shared(const Args& args)
      : q{"q", args.q},
        k{"k", args.k},
        v{"v", args.v},
        query_offsets{"query_offsets", args.options.query_offsets},
        key_offsets{"key_offsets", args.options.key_offsets},
        bias{"bias", args.options.bias},
        alibi_slopes{"alibi_slopes", args.options.alibi_slopes},
        sink_logits{"sink_logits", args.options.sink_logits} {}

  std::vector<Argument> all() const {
    return {q, k, v, query_offsets, key_offsets, bias, alibi_slopes, sink_logits};
  }
};

std::array<std::int64_t, 4> query_extents(const DenseProblem& p, std::int64_t dim) {
  return {p.batch, p.queries, p.query_heads, dim};
}
std::array<std::int64_t, 4> key_extents(const DenseProblem& p, std::int64_t dim) {
  return {p.batch, p.keys, p.kv_heads, dim};
}

// Where the sequences begin: packed if given.
void check_offsets(const DenseChecks& checks, const Shared& a, DenseProblem& p) {
  const bool given = a.query_offsets.view.defined();
  if (given != a.key_offsets.view.defined()) {
    const Argument& missing = given ? a.key_offsets : a.query_offsets;
    checks.fail(missing.name, "a tensor, as the other offsets are given", "none");
  }
  if (!given) return;
  const std::int64_t length =
      a.query_offsets.view.rank == 1 ? std::max<std::int64_t>(a.query_offsets.view.shape[0], 1) : 1;
  const std::int64_t extents[] = {length};
  p.query_offsets =
      static_cast<const std::int64_t*>(checks.array(a.query_offsets, DType::i64, extents, true));
  p.key_offsets =
      static_cast<const std::int64_t*>(checks.array(a.key_offsets, DType::i64, extents, true));
  p.batch = length - 1;
}

void check_qkv(const DenseChecks& checks, const Context& context, const Shared& a,
               DenseProblem& p) {
  checks.present(a.q);
  checks.dtype(a.q, {DType::f64, DType::f32, DType::bf16, DType::f16});
  p.dtype = a.q.view.dtype;
  if (p.dtype == DType::f64 && context.device().is_cuda()) {
    checks.fail("q", "dtype f32 or bf16 or f16 on cuda", "f64");
  }
  const bool packed = is_packed(p);
  checks.tokens_shape(a.q, {kNone, kNone, kNone, kNone}, packed);
  const std::size_t token = packed ? 0 : 1;
  if (!packed) p.batch = a.q.view.shape[0];
  p.queries = a.q.view.shape[token];
  p.query_heads = a.q.view.shape[token + 1];
  p.k_dim = a.q.view.shape[token + 2];
  for (const Argument* argument : {&a.k, &a.v}) {
    checks.present(*argument);
    checks.dtype(*argument, {p.dtype});
  }
  checks.tokens_shape(a.k, {p.batch, kNone, kNone, p.k_dim}, packed);
  p.keys = a.k.view.shape[token];
  p.kv_heads = a.k.view.shape[token + 1];
  checks.tokens_shape(a.v, {p.batch, p.keys, p.kv_heads, kNone}, packed);
  p.v_dim = a.v.view.shape[token + 2];
  if (p.k_dim < 1) checks.fail("q", "heads of at least 1 number", "0");
  if (p.v_dim < 1) checks.fail("v", "heads of at least 1 number", "0");
  if (p.kv_heads < 1) checks.fail("k", "at least 1 head", "0");
  if (p.query_heads < 1 || p.query_heads % p.kv_heads != 0) {
    checks.fail("q", "a multiple of " + std::to_string(p.kv_heads) + " heads",
                std::to_string(p.query_heads));
  }
  p.heads_per_kv = p.query_heads / p.kv_heads;
  p.q = checks.heads(a.q, false);
  p.k = checks.heads(a.k, false);
  p.v = checks.heads(a.v, false);
}

void check_bias(const DenseChecks& checks, const Argument& bias, DenseProblem& p) {
  if (!bias.view.defined()) return;
  if (is_packed(p)) checks.fail("bias", "none with packed sequences", "a tensor");
  checks.present(bias);
  checks.dtype(bias, {statistics_dtype(p.dtype)});
  const ConstTensorView& v = bias.view;
  const bool right = v.rank == 4 && (v.shape[0] == p.batch || v.shape[0] == 1) &&
                     (v.shape[1] == p.query_heads || v.shape[1] == 1) && v.shape[2] == p.queries &&
                     v.shape[3] == p.keys;
  if (!right) {
    const std::int64_t extents[] = {p.batch, p.query_heads, p.queries, p.keys};
    checks.fail("bias", "shape " + shape_string(extents) + ", the first two may be 1",
                shape_string(v.sizes()));
  }
  checks.strides(bias, false);
  p.bias = v.data;
  p.bias_batch_stride = v.shape[0] == 1 ? 0 : v.stride[0];
  p.bias_head_stride = v.shape[1] == 1 ? 0 : v.stride[1];
  p.bias_query_stride = v.stride[2];
  p.bias_key_stride = v.stride[3];
}

void check_numbers(const DenseChecks& checks, const AttentionOptions& options, DenseProblem& p) {
  p.scale = options.scale == 0 ? 1 / std::sqrt(static_cast<double>(p.k_dim)) : options.scale;
  p.soft_cap = options.soft_cap;
  // What is not f64 is computed in f32.
  const double largest = p.dtype == DType::f64
                             ? std::numeric_limits<double>::max()
                             : static_cast<double>(std::numeric_limits<float>::max());
  const double smallest =
      p.dtype == DType::f64 ? 0 : static_cast<double>(std::numeric_limits<float>::min());
  if (!(std::fabs(p.scale) <= largest)) {
    checks.fail("scale", "a finite number", std::to_string(options.scale));
  }
  const bool capped = p.soft_cap > 0 && p.soft_cap >= smallest && p.soft_cap <= largest;
  if (p.soft_cap != 0 && !capped) {
    checks.fail("soft_cap", "0 or a finite number above it", std::to_string(p.soft_cap));
  }
  checks.at_least_zero("window", options.window);
  checks.at_least_zero("sinks", options.sinks);
  if (options.sinks > 0 && options.window == 0) {
    checks.fail("sinks", "0 without a window", std::to_string(options.sinks));
  }
  p.window = options.window;
  p.sinks = options.sinks;
  p.tile = key_tile();
  p.causal = options.causal;
}

void check_dropout(const DenseChecks& checks, const AttentionDropout& dropout, DenseProblem& p) {
  if (!(dropout.probability >= 0 && dropout.probability < 1)) {
    checks.fail("dropout", "a probability of at least 0 and less than 1",
                std::to_string(dropout.probability));
  }
  if (dropout.probability == 0) return;
  const std::int64_t queries = (is_packed(p) ? 1 : p.batch) * p.queries;
  const bool counted =
      dropout.step >= 0 && dropout.step < std::int64_t{1} << 23 && dropout.first_token >= 0 &&
      dropout.first_token <= (std::int64_t{1} << 27) - queries && p.keys <= std::int64_t{1} << 16 &&
      p.query_heads <= std::int64_t{1} << 15 && dropout.draw < 1U << 16;
  if (!counted) {
    checks.fail("dropout", "step < 2^23, 2^27 tokens, 2^16 keys, 2^15 heads, draw < 2^16",
                "more of one of them");
  }
  const double threshold = std::min(65535.0, std::nearbyint(dropout.probability * 65536));
  p.dropout = {.threshold = static_cast<std::uint32_t>(threshold),
               .draw = dropout.draw,
               .seed = dropout.seed,
               .first = (dropout.step << 40) + (dropout.first_token << 13),
               .scale = static_cast<float>(65536 / (65536 - threshold))};
}

void check_shared(const DenseChecks& checks, const Context& context, const Shared& a,
                  const AttentionOptions& options, DenseProblem& p) {
  check_offsets(checks, a, p);
  check_qkv(checks, context, a, p);
  // From the shapes, as nobody looks into the offsets on a GPU.
  if (is_packed(p) && p.batch == 0 && (p.queries > 0 || p.keys > 0)) {
    checks.fail("query_offsets", "a sequence for the tokens", "none");
  }
  check_bias(checks, a.bias, p);
  const std::int64_t per_head[] = {p.query_heads};
  p.alibi_slopes = checks.array(a.alibi_slopes, statistics_dtype(p.dtype), per_head);
  p.sink_logits = checks.array(a.sink_logits, statistics_dtype(p.dtype), per_head);
  check_numbers(checks, options, p);
  check_dropout(checks, options.dropout, p);
  if (is_packed(p) && !context.device().is_cuda()) {
    checks.offsets("query_offsets", p.query_offsets, p.batch, p.queries);
    checks.offsets("key_offsets", p.key_offsets, p.batch, p.keys);
  }
}

// A tensor of the problem's dtype, as large as q, k, v or the output.
ConstHeads check_heads(const DenseChecks& checks, const DenseProblem& p, const Argument& a,
                       const std::array<std::int64_t, 4>& extents, bool writable) {
  checks.present(a);
  checks.dtype(a, {p.dtype});
  checks.tokens_shape(a, extents, is_packed(p));
  return checks.heads(a, writable);
}

MutableHeads check_output(const DenseChecks& checks, const DenseProblem& p, const char* name,
                          const TensorView& view, const std::array<std::int64_t, 4>& extents) {
  const ConstHeads h = check_heads(checks, p, {name, view}, extents, true);
  return {view.data, h.batch_stride, h.head_stride, h.token_stride};
}

}  // namespace

ForwardProblem check_forward(const Context& context, const AttentionArgs& args) {
  const DenseChecks checks("attention", context);
  const Shared shared(args);
  ForwardProblem p;
  check_shared(checks, context, shared, args.options, p);
  p.output = check_output(checks, p, "output", args.output, query_extents(p, p.v_dim));
  const Argument outputs[] = {{"output", args.output}, {"log_sum_exp", args.log_sum_exp}};
  const ConstHeads rows = checks.statistics(outputs[1], p, true);
  p.log_sum_exp = {args.log_sum_exp.data, rows.batch_stride, rows.head_stride, rows.token_stride};
  checks.no_overlap(outputs, shared.all());
  return p;
}

BackwardProblem check_backward(const Context& context, const AttentionBackwardArgs& args) {
  const DenseChecks checks("attention_backward", context);
  const Shared shared(args);
  BackwardProblem p;
  check_shared(checks, context, shared, args.options, p);
  const DType statistics = statistics_dtype(p.dtype);
  const Argument doutput{"doutput", args.doutput};
  const Argument output{"output", args.output};
  const Argument log_sum_exp{"log_sum_exp", args.log_sum_exp};
  const Argument dlog_sum_exp{"dlog_sum_exp", args.dlog_sum_exp};
  p.doutput = check_heads(checks, p, doutput, query_extents(p, p.v_dim), false);
  p.output = check_heads(checks, p, output, query_extents(p, p.v_dim), false);
  p.log_sum_exp = checks.statistics(log_sum_exp, p, false, true);
  p.dlog_sum_exp = checks.statistics(dlog_sum_exp, p, false);
  p.dq = check_output(checks, p, "dq", args.dq, query_extents(p, p.k_dim));
  p.dk = check_output(checks, p, "dk", args.dk, key_extents(p, p.k_dim));
  p.dv = check_output(checks, p, "dv", args.dv, key_extents(p, p.v_dim));
  const Argument dbias{"dbias", args.dbias};
  if (args.dbias.defined()) {
    if (!shared.bias.view.defined()) checks.fail("dbias", "none without a bias", "a tensor");
    if (p.dropout.threshold > 0) checks.fail("dbias", "none with dropout", "a tensor");
    checks.array(dbias, statistics, shared.bias.view.sizes());
    p.dbias = args.dbias.data;
    p.dbias_batch = args.dbias.shape[0];
    p.dbias_heads = args.dbias.shape[1];
  }
  const Argument dsink_logits{"dsink_logits", args.dsink_logits};
  if (args.dsink_logits.defined()) {
    if (!shared.sink_logits.view.defined()) {
      checks.fail("dsink_logits", "none without sink_logits", "a tensor");
    }
    checks.array(dsink_logits, statistics, shared.sink_logits.view.sizes());
    p.dsink_logits = args.dsink_logits.data;
  }
  const Argument outputs[] = {
      {"dq", args.dq}, {"dk", args.dk}, {"dv", args.dv}, dbias, dsink_logits};
  std::vector<Argument> inputs = shared.all();
  inputs.insert(inputs.end(), {doutput, output, log_sum_exp, dlog_sum_exp});
  checks.no_overlap(outputs, inputs);
  return p;
}

}  // namespace touchstone::dense_attention
