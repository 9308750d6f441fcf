#include "ops/attention_dense/attention_test_support.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "core/index.h"
#include "ops/attention_dense/dense_key_tile.h"
#include "tests/support/guarded_call.h"

namespace touchstone::test {
namespace {

DType statistics_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

Values starts(const DenseProblem& p, bool of_queries) {
  Values result{0};
  for (const auto& [queries, keys] : p.packed) {
    result.push_back(result.back() + static_cast<double>(of_queries ? queries : keys));
  }
  return result;
}

// What both directions are given.
template <class Run>
void set_inputs(const DenseProblem& p, const DenseData& data, Run& run) {
  const Device device = test_device();
  const DType statistics = statistics_dtype(p.dtype);
  run.tile = p.tile;
  run.q = Heads(p, p.heads, p.all_queries(), p.k_dim, data.q);
  run.k = Heads(p, p.kv_heads, p.all_keys(), p.k_dim, data.k);
  run.v = Heads(p, p.kv_heads, p.all_keys(), p.v_size(), data.v);
  if (p.is_packed()) {
    const std::int64_t count = p.sequences() + 1;
    run.query_offsets = Guarded(device, DType::i64, {count}, starts(p, true));
    run.key_offsets = Guarded(device, DType::i64, {count}, starts(p, false));
  }
  if (p.bias != BiasKind::none) run.bias = Guarded(device, statistics, p.bias_shape(), data.bias);
  if (p.alibi) run.slopes = Guarded(device, statistics, {p.heads}, data.slopes);
  if (p.sink_logits) run.sinks = Guarded(device, statistics, {p.heads}, data.sinks);
  run.args.q = run.q.view();
  run.args.k = run.k.view();
  run.args.v = run.v.view();
  run.args.options = {.query_offsets = run.query_offsets,
                      .key_offsets = run.key_offsets,
                      .bias = run.bias,
                      .alibi_slopes = run.slopes,
                      .sink_logits = run.sinks,
                      .scale = p.scale,
                      .soft_cap = p.soft_cap,
                      .window = p.window,
                      .sinks = p.sinks,
                      .causal = p.causal};
}

// These, and what a direction has beside them.
template <class Run>
std::vector<const Guarded*> inputs_of(const Run& run, std::vector<const Guarded*> more = {}) {
  more.insert(more.end(), {&run.q.memory, &run.k.memory, &run.v.memory, &run.query_offsets,
                           &run.key_offsets, &run.bias, &run.slopes, &run.sinks});
  return more;
}

}  // namespace

spec::AttentionProblem DenseProblem::reference_problem() const {
  spec::AttentionProblem problem = *this;
  problem.on_gpu = test::on_gpu();
  return problem;
}

std::string DenseProblem::describe() const {
  std::ostringstream text;
  text << name_of(dtype) << " B " << sequences() << " H " << heads << "/" << kv_heads << " Sq "
       << all_queries() << " Sk " << all_keys() << " D " << k_dim << "/" << v_size();
  if (is_packed()) text << " packed";
  if (causal) text << " causal";
  if (window > 0) text << " window " << window << " sinks " << sinks;
  if (tile > 0) text << " tile " << tile;
  if (soft_cap > 0) text << " cap " << soft_cap;
  if (bias != BiasKind::none) text << " bias " << static_cast<int>(bias);
  if (alibi) text << " alibi";
  if (sink_logits) text << " sink logits";
  if (log_sum_exp_grad) text << " dlse";
  if (order == HeadOrder::heads_first) text << " BHSD";
  return text.str();
}

DenseData make_data(const DenseProblem& p) {
  const std::int64_t lead = p.is_packed() ? 1 : p.batch;
  const auto values = [&](const Distribution& d, std::int64_t count, DType dtype,
                          std::uint64_t salt) {
    return rounded(random_values(d, count, p.seed * 1000 + salt), dtype);
  };
  const DType statistics = statistics_dtype(p.dtype);
  const std::int64_t rows = lead * p.heads * p.all_queries();
  const std::int64_t kv_rows = lead * p.kv_heads * p.all_keys();
  DenseData data;
  data.q = values(p.q, rows * p.k_dim, p.dtype, 1);
  data.k = values(p.k, kv_rows * p.k_dim, p.dtype, 2);
  data.v = values(p.v, kv_rows * p.v_size(), p.dtype, 3);
  data.doutput = values({}, rows * p.v_size(), p.dtype, 4);
  if (p.log_sum_exp_grad) data.dlog_sum_exp = values({}, rows, statistics, 5);
  if (p.bias != BiasKind::none) data.bias = values({}, product(p.bias_shape()), statistics, 6);
  if (p.alibi) {
    data.slopes =
        values({.shape = Shape::uniform, .center = 0.3, .scale = 0.2}, p.heads, statistics, 7);
  }
  if (p.sink_logits) data.sinks = values({}, p.heads, statistics, 8);
  return data;
}

// ---- tensors ----------------------------------------------------------------------------------

Heads::Heads(const DenseProblem& p, std::int64_t heads, std::int64_t tokens, std::int64_t dim)
    : lead_(p.is_packed() ? 1 : p.batch),
      heads_(heads),
      tokens_(tokens),
      dim_(dim),
      packed_(p.is_packed()),
      tokens_first_(p.order == HeadOrder::tokens_first) {
  std::vector<std::int64_t> shape{lead_, tokens, heads, dim};
  if (!tokens_first_) std::swap(shape[1], shape[2]);
  if (packed_) shape.erase(shape.begin());
  memory = Guarded(test_device(), p.dtype, shape, p.layout);
}

Heads::Heads(const DenseProblem& p, std::int64_t heads, std::int64_t tokens, std::int64_t dim,
             const Values& values)
    : Heads(p, heads, tokens, dim) {
  set(values);
}

Heads Heads::statistics(const DenseProblem& p) {
  Heads heads(p, p.heads, p.all_queries(), 1);
  std::vector<std::int64_t> shape{heads.lead_, p.all_queries(), p.heads};
  if (!heads.tokens_first_) std::swap(shape[1], shape[2]);
  if (p.is_packed()) shape.erase(shape.begin());
  heads.memory = Guarded(test_device(), statistics_dtype(p.dtype), shape, p.layout);
  return heads;
}

TensorView Heads::view() const {
  if (!memory.defined() || tokens_first_) return memory.view();
  return packed_ ? transposed(memory.view(), 0, 1) : transposed(memory.view(), 1, 2);
}

Values Heads::reordered(const Values& values, bool to_memory) const {
  if (!tokens_first_ || !memory.defined()) return values;
  Values result(values.size());
  for (std::int64_t b = 0; b < lead_; ++b) {
    for (std::int64_t h = 0; h < heads_; ++h) {
      for (std::int64_t t = 0; t < tokens_; ++t) {
        const std::size_t logical = at(((b * heads_ + h) * tokens_ + t) * dim_);
        const std::size_t stored = at(((b * tokens_ + t) * heads_ + h) * dim_);
        const auto from =
            values.begin() + static_cast<std::ptrdiff_t>(to_memory ? logical : stored);
        std::copy(from, from + dim_,
                  result.begin() + static_cast<std::ptrdiff_t>(to_memory ? stored : logical));
      }
    }
  }
  return result;
}

// ---- runs -------------------------------------------------------------------------------------

DenseForwardRun::DenseForwardRun(const DenseProblem& p, const DenseData& data) {
  set_inputs(p, data, *this);
  output = Heads(p, p.heads, p.all_queries(), p.v_size());
  log_sum_exp = Heads::statistics(p);
  args.output = output.view();
  args.log_sum_exp = log_sum_exp.view();
}

std::vector<std::string> DenseForwardRun::accepting() const {
  return accepting_names("attention", args);
}

void DenseForwardRun::run(Runner& context) {
  const dense_attention::ScopedKeyTile key_tile(tile);
  run_guarded(context, "attention", inputs_of(*this), {&output.memory, &log_sum_exp.memory},
              [&] { attention(context, context.with(args)); });
}

std::vector<std::byte> DenseForwardRun::bytes() const {
  return joined_bytes({&output.memory, &log_sum_exp.memory});
}

DenseBackwardRun::DenseBackwardRun(const DenseProblem& p, const DenseData& data) {
  const Device device = test_device();
  const DType statistics = statistics_dtype(p.dtype);
  const ExpectedDense forward = expected_dense(p, data);
  set_inputs(p, data, *this);
  output = Heads(p, p.heads, p.all_queries(), p.v_size(), forward.output.value);
  doutput = Heads(p, p.heads, p.all_queries(), p.v_size(), data.doutput);
  log_sum_exp = Heads::statistics(p);
  log_sum_exp.set(forward.log_sum_exp.value);
  if (p.log_sum_exp_grad) {
    dlog_sum_exp = Heads::statistics(p);
    dlog_sum_exp.set(data.dlog_sum_exp);
  }
  dq = Heads(p, p.heads, p.all_queries(), p.k_dim);
  dk = Heads(p, p.kv_heads, p.all_keys(), p.k_dim);
  dv = Heads(p, p.kv_heads, p.all_keys(), p.v_size());
  if (p.bias != BiasKind::none) dbias = Guarded(device, statistics, p.bias_shape());
  if (p.sink_logits) dsinks = Guarded(device, statistics, {p.heads});
  args.doutput = doutput.view();
  args.dlog_sum_exp = dlog_sum_exp.view();
  args.output = output.view();
  args.log_sum_exp = log_sum_exp.view();
  args.dq = dq.view();
  args.dk = dk.view();
  args.dv = dv.view();
  args.dbias = dbias;
  args.dsink_logits = dsinks;
}

std::vector<std::string> DenseBackwardRun::accepting() const {
  return accepting_names("attention_backward", args);
}

void DenseBackwardRun::run(Runner& context) {
  const dense_attention::ScopedKeyTile key_tile(tile);
  run_guarded(context, "attention_backward",
              inputs_of(*this, {&output.memory, &doutput.memory, &log_sum_exp.memory,
                                &dlog_sum_exp.memory}),
              {&dq.memory, &dk.memory, &dv.memory, &dbias, &dsinks},
              [&] { attention_backward(context, context.with(args)); });
}

std::vector<std::byte> DenseBackwardRun::bytes() const {
  return joined_bytes({&dq.memory, &dk.memory, &dv.memory, &dbias, &dsinks});
}

// ---- the reference ----------------------------------------------------------------------------

ExpectedDense expected_dense(const DenseProblem& p, const DenseData& data) {
  const spec::AttentionProblem problem = p.reference_problem();
  spec::AttentionValues values{data.q,    data.k,      data.v,     data.doutput, data.dlog_sum_exp,
                               data.bias, data.slopes, data.sinks, {},           {}};
  const auto forward = spec::attention_forward_reference(problem, values);
  values.output = rounded(forward.output.value, p.dtype);
  values.log_sum_exp = rounded(forward.log_sum_exp.value, statistics_dtype(p.dtype));
  const auto backward = spec::attention_backward_reference(problem, values);
  return {forward.output, forward.log_sum_exp, backward.dq,    backward.dk,
          backward.dv,    backward.dbias,      backward.dsinks};
}

// ---- checks -----------------------------------------------------------------------------------

namespace {

testing::AssertionResult all_close(
    const std::vector<std::pair<const char*, std::pair<Values, const Expected*>>>& parts,
    DType dtype, DType statistics) {
  for (const auto& [name, part] : parts) {
    const auto& [actual, expected] = part;
    if (expected->value.empty() && actual.empty()) continue;
    const bool plain = name[0] == 'd' || name[0] == 'o';
    const std::string text(name);
    const bool number = text == "log_sum_exp" || text == "dbias" || text == "dsink_logits";
    auto result = close(actual, *expected, plain && !number ? dtype : statistics);
    if (!result) return result << " (" << name << ")";
  }
  return testing::AssertionSuccess();
}

}  // namespace

testing::AssertionResult is_right(const DenseForwardRun& run, const ExpectedDense& expected) {
  const DType dtype = run.args.q.dtype;
  return all_close({{"output", {run.output.values(), &expected.output}},
                    {"log_sum_exp", {run.log_sum_exp.values(), &expected.log_sum_exp}}},
                   dtype, statistics_dtype(dtype));
}

testing::AssertionResult is_right(const DenseBackwardRun& run, const ExpectedDense& expected) {
  const DType dtype = run.args.q.dtype;
  static const Expected kNone;
  return all_close(
      {{"dq", {run.dq.values(), &expected.dq}},
       {"dk", {run.dk.values(), &expected.dk}},
       {"dv", {run.dv.values(), &expected.dv}},
       {"dbias", {run.dbias.values(), run.dbias.defined() ? &expected.dbias : &kNone}},
       {"dsink_logits", {run.dsinks.values(), run.dsinks.defined() ? &expected.dsinks : &kNone}}},
      dtype, statistics_dtype(dtype));
}

void check_dense(const DenseProblem& problem, const DenseData& data) {
  const testing::ScopedTrace trace(__FILE__, __LINE__, problem.describe());
  const ExpectedDense expected = expected_dense(problem, data);
  DenseForwardRun forward(problem, data);
  for_each_runner(forward.accepting(), [&](Runner& context) {
    forward.run(context);
    EXPECT_TRUE(is_right(forward, expected));
  });
  DenseBackwardRun backward(problem, data);
  for_each_runner(backward.accepting(), [&](Runner& context) {
    backward.run(context);
    EXPECT_TRUE(is_right(backward, expected));
  });
}

void check_dense(const DenseProblem& problem) { check_dense(problem, make_data(problem)); }

}  // namespace touchstone::test
