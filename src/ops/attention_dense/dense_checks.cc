#include "ops/attention_dense/dense_checks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/checks.h"
#include "touchstone/core/checked.h"

namespace touchstone::attend {
namespace {

constexpr std::int64_t kNone = -1;

DType statistics_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

class DenseChecks : public Checks {
 public:
  DenseChecks(const char* op, const Context& context) : Checks(op, context), op_(op) {}

  // The given extents, [B, H, S, D] or [H, N, D]; kNone = any.
  void heads_shape(const Argument& a, const std::array<std::int64_t, 4>& extents,
                   bool packed) const {
    const auto expected = std::span(extents).subspan(packed ? 1 : 0);
    bool right = a.view.rank == std::ssize(expected);
    for (std::size_t i = 0; right && i < expected.size(); ++i) {
      right = expected[i] == kNone ? a.view.shape[i] >= 0 : a.view.shape[i] == expected[i];
    }
    if (right) return;
    static constexpr const char* kLetters[] = {"B", "H", "S", "D"};
    std::string text;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const char* const letter = kLetters[i + (packed ? 1 : 0)];
      text += (i == 0 ? "" : ", ") + (expected[i] == kNone ? letter : std::to_string(expected[i]));
    }
    fail(a.name, "shape [" + text + "]", shape_string(a.view.sizes()));
  }

  // Strides of [B, H, S, D] or [H, N, D]. Elements of an output may not coincide.
  Heads<const void*> heads(const Argument& a, bool writable) const {
    const ConstTensorView& v = a.view;
    const auto last = static_cast<std::size_t>(v.rank - 1);
    strides(a, writable);
    if (v.shape[last] > 1 && v.elements() > 0 && v.stride[last] != 1) {
      fail(a.name, "a last dimension of stride 1", "stride " + std::to_string(v.stride[last]));
    }
    return {v.data, v.rank == 4 ? v.stride[0] : 0, v.stride[last - 2], v.stride[last - 1]};
  }

  // No stride below zero, nothing beyond 64 bits; with `writable` no element twice.
  void strides(const Argument& a, bool writable) const {
    const ConstTensorView& v = a.view;
    const std::string what = std::string(op_) + ": " + a.name;  // for sizes beyond 64 bits
    std::int64_t elements = 1;
    for (const std::int64_t extent : v.sizes()) {
      elements = checked_mul(elements, extent, what.c_str());
    }
    if (elements == 0) return;
    std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, extent
    for (std::size_t i = 0; i < static_cast<std::size_t>(v.rank); ++i) {
      if (v.shape[i] <= 1) continue;
      if (v.stride[i] < 0) refuse_strides(a, "strides of at least 0");
      dims.emplace_back(v.stride[i], v.shape[i]);
    }
    std::ranges::sort(dims);
    std::int64_t reach = 0;  // of the dimensions so far, from their first element to their last
    for (const auto& [stride, extent] : dims) {
      if (writable && stride <= reach) refuse_strides(a, "every element in a place of its own");
      reach = checked_add(reach, checked_mul(stride, extent - 1, what.c_str()), what.c_str());
    }
    checked_mul(checked_add(reach, 1, what.c_str()), size_of(v.dtype), what.c_str());
  }

  // A contiguous array, optional unless `needed`; its data, or null.
  const void* array(const Argument& a, DType type, std::span<const std::int64_t> expected,
                    bool needed = false) const {
    if (!a.view.defined() && !needed) return nullptr;
    present(a);
    dtype(a, {type});
    shape(a, expected);
    contiguous(a);
    return a.view.data;
  }

  void at_least_zero(const char* name, std::int64_t value) const {
    if (value < 0) fail(name, "at least 0", std::to_string(value));
  }

 private:
  [[noreturn]] void refuse_strides(const Argument& a, const char* expected) const {
    const auto rank = static_cast<std::size_t>(a.view.rank);
    fail(a.name, expected, "strides " + shape_string({a.view.stride.data(), rank}));
  }

  const char* op_;
};

// The arguments both directions have, with their names.
struct Shared {
  Argument q, k, v;
  Argument query_starts, key_starts, bias, alibi_slopes, sink_logits;

  template <class Args>
  explicit Shared(const Args& args)
      : q{"q", args.q},
        k{"k", args.k},
        v{"v", args.v},
        query_starts{"query_starts", args.options.query_starts},
        key_starts{"key_starts", args.options.key_starts},
        bias{"bias", args.options.bias},
        alibi_slopes{"alibi_slopes", args.options.alibi_slopes},
        sink_logits{"sink_logits", args.options.sink_logits} {}

  std::vector<Argument> all() const {
    return {q, k, v, query_starts, key_starts, bias, alibi_slopes, sink_logits};
  }
};

// Every output against every input and every later output.
void check_overlap(const Checks& checks, std::span<const Argument> outputs,
                   std::span<const Argument> inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (const Argument& input : inputs) checks.disjoint(outputs[i], input, false);
    for (const Argument& other : outputs.subspan(i + 1)) checks.disjoint(outputs[i], other, false);
  }
}

bool is_packed(const DenseAttention& p) { return p.query_starts != nullptr; }

std::array<std::int64_t, 4> query_extents(const DenseAttention& p, std::int64_t dim) {
  return {p.batch, p.query_heads, p.queries, dim};
}
std::array<std::int64_t, 4> key_extents(const DenseAttention& p, std::int64_t dim) {
  return {p.batch, p.kv_heads, p.keys, dim};
}

// [B, H, Sq] or [H, N].
std::vector<std::int64_t> row_extents(const DenseAttention& p) {
  if (is_packed(p)) return {p.query_heads, p.queries};
  return {p.batch, p.query_heads, p.queries};
}

// Where the sequences begin: packed if given.
void check_starts(const DenseChecks& checks, const Shared& a, DenseAttention& p) {
  const bool given = a.query_starts.view.defined();
  if (given != a.key_starts.view.defined()) {
    const Argument& missing = given ? a.key_starts : a.query_starts;
    checks.fail(missing.name, "a tensor, as the other starts are given", "none");
  }
  if (!given) return;
  const std::int64_t length =
      a.query_starts.view.rank == 1 ? std::max<std::int64_t>(a.query_starts.view.shape[0], 1) : 1;
  const std::int64_t extents[] = {length};
  p.query_starts =
      static_cast<const std::int64_t*>(checks.array(a.query_starts, DType::i64, extents, true));
  p.key_starts =
      static_cast<const std::int64_t*>(checks.array(a.key_starts, DType::i64, extents, true));
  p.batch = length - 1;
}

void check_qkv(const DenseChecks& checks, const Context& context, const Shared& a,
               DenseAttention& p) {
  checks.present(a.q);
  checks.dtype(a.q, {DType::f64, DType::f32, DType::bf16, DType::f16});
  p.dtype = a.q.view.dtype;
  if (p.dtype == DType::f64 && context.device().is_cuda()) {
    checks.fail("q", "dtype f32 or bf16 or f16 on cuda", "f64");
  }
  const bool packed = is_packed(p);
  checks.heads_shape(a.q, {kNone, kNone, kNone, kNone}, packed);
  const std::size_t head = packed ? 0 : 1;
  if (!packed) p.batch = a.q.view.shape[0];
  p.query_heads = a.q.view.shape[head];
  p.queries = a.q.view.shape[head + 1];
  p.k_dim = a.q.view.shape[head + 2];
  for (const Argument* argument : {&a.k, &a.v}) {
    checks.present(*argument);
    checks.dtype(*argument, {p.dtype});
  }
  checks.heads_shape(a.k, {p.batch, kNone, kNone, p.k_dim}, packed);
  p.kv_heads = a.k.view.shape[head];
  p.keys = a.k.view.shape[head + 1];
  checks.heads_shape(a.v, {p.batch, p.kv_heads, p.keys, kNone}, packed);
  p.v_dim = a.v.view.shape[head + 2];
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

void check_bias(const DenseChecks& checks, const Argument& bias, DenseAttention& p) {
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

void check_numbers(const DenseChecks& checks, const AttentionOptions& options, DenseAttention& p) {
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
  checks.at_least_zero("tile", options.tile);
  if (options.sinks > 0 && options.window == 0) {
    checks.fail("sinks", "0 without a window", std::to_string(options.sinks));
  }
  p.window = options.window;
  p.sinks = options.sinks;
  p.tile = options.tile;
  p.causal = options.causal;
}

// What the starts hold. Only on the CPU, where looking costs nothing.
void check_ascending(const DenseChecks& checks, const char* name, const std::int64_t* starts,
                     std::int64_t batch, std::int64_t tokens) {
  if (starts[0] != 0) checks.fail(name, "0 first", std::to_string(starts[0]));
  for (std::int64_t b = 0; b < batch; ++b) {
    if (starts[b] <= starts[b + 1] && starts[b + 1] <= tokens) continue;
    checks.fail(name, "ascending numbers up to " + std::to_string(tokens),
                std::to_string(starts[b]) + " and then " + std::to_string(starts[b + 1]));
  }
  if (starts[batch] != tokens) {
    checks.fail(name, std::to_string(tokens) + " last", std::to_string(starts[batch]));
  }
}

void check_shared(const DenseChecks& checks, const Context& context, const Shared& a,
                  const AttentionOptions& options, DenseAttention& p) {
  check_starts(checks, a, p);
  check_qkv(checks, context, a, p);
  check_bias(checks, a.bias, p);
  const std::int64_t per_head[] = {p.query_heads};
  p.alibi_slopes = checks.array(a.alibi_slopes, statistics_dtype(p.dtype), per_head);
  p.sink_logits = checks.array(a.sink_logits, statistics_dtype(p.dtype), per_head);
  check_numbers(checks, options, p);
  if (is_packed(p) && !context.device().is_cuda()) {
    check_ascending(checks, "query_starts", p.query_starts, p.batch, p.queries);
    check_ascending(checks, "key_starts", p.key_starts, p.batch, p.keys);
  }
}

// A tensor of the problem's dtype, as large as q, k, v or the output.
ConstHeads check_heads(const DenseChecks& checks, const DenseAttention& p, const Argument& a,
                       const std::array<std::int64_t, 4>& extents, bool writable) {
  checks.present(a);
  checks.dtype(a, {p.dtype});
  checks.heads_shape(a, extents, is_packed(p));
  return checks.heads(a, writable);
}

MutableHeads check_output(const DenseChecks& checks, const DenseAttention& p, const char* name,
                          const TensorView& view, const std::array<std::int64_t, 4>& extents) {
  const ConstHeads h = check_heads(checks, p, {name, view}, extents, true);
  return {view.data, h.batch_stride, h.head_stride, h.token_stride};
}

}  // namespace

AttentionForward check_forward(const Context& context, const AttentionArgs& args) {
  const DenseChecks checks("attention", context);
  const Shared shared(args);
  AttentionForward p;
  check_shared(checks, context, shared, args.options, p);
  p.output = check_output(checks, p, "output", args.output, query_extents(p, p.v_dim));
  const Argument outputs[] = {{"output", args.output}, {"log_sum_exp", args.log_sum_exp}};
  checks.array(outputs[1], statistics_dtype(p.dtype), row_extents(p));
  p.log_sum_exp = args.log_sum_exp.data;
  check_overlap(checks, outputs, shared.all());
  return p;
}

AttentionBackward check_backward(const Context& context, const AttentionBackwardArgs& args) {
  const DenseChecks checks("attention_backward", context);
  const Shared shared(args);
  AttentionBackward p;
  check_shared(checks, context, shared, args.options, p);
  const DType statistics = statistics_dtype(p.dtype);
  const Argument doutput{"doutput", args.doutput};
  const Argument output{"output", args.output};
  const Argument log_sum_exp{"log_sum_exp", args.log_sum_exp};
  const Argument dlog_sum_exp{"dlog_sum_exp", args.dlog_sum_exp};
  p.doutput = check_heads(checks, p, doutput, query_extents(p, p.v_dim), false);
  p.output = check_heads(checks, p, output, query_extents(p, p.v_dim), false);
  p.log_sum_exp = checks.array(log_sum_exp, statistics, row_extents(p), true);
  p.dlog_sum_exp = checks.array(dlog_sum_exp, statistics, row_extents(p));
  p.dq = check_output(checks, p, "dq", args.dq, query_extents(p, p.k_dim));
  p.dk = check_output(checks, p, "dk", args.dk, key_extents(p, p.k_dim));
  p.dv = check_output(checks, p, "dv", args.dv, key_extents(p, p.v_dim));
  const Argument dbias{"dbias", args.dbias};
  if (args.dbias.defined()) {
    if (!shared.bias.view.defined()) checks.fail("dbias", "none without a bias", "a tensor");
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
  check_overlap(checks, outputs, inputs);
  return p;
}

}  // namespace touchstone::attend
