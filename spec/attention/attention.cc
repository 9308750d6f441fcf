// attention and attention_backward: batch x heads x tokens x head size.
#include "spec/attention/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "core/index.h"
#include "oracle/attention.h"
#include "spec/operators.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"
#include "touchstone/ops/attention.h"

namespace touchstone::spec {
namespace {

// Of a large problem: KV heads that are looked at, and rows of each.
constexpr std::int64_t kSampledHeads = 2;
constexpr std::int64_t kWholePairs = std::int64_t{1} << 20;

struct AttentionCase : AttentionProblem {
  bool tokens_first = false;  // memory [B, S, H, D] instead of [B, H, S, D]
  std::string shape{};

  explicit AttentionCase(const cases::Case& item) : shape(item.shape) {
    item.check_options({"causal", "window", "sinks", "scale", "soft_cap", "bias", "alibi",
                        "sink_logits", "lse_grad", "queries", "value_size", "order", "gap",
                        "offset"});
    const bool grouped = item.shape.find('/') != std::string::npos;
    std::vector<std::int64_t> dims = item.dims(grouped ? "x/xx" : "xxx");
    if (!grouped) dims.insert(dims.begin() + 2, dims[1]);
    batch = dims[0], heads = dims[1], kv_heads = dims[2], keys = dims[3], k_dim = dims[4];
    if (heads % kv_heads != 0) {
      throw InvalidArgument("shape: expected a multiple of the KV heads, got '" + shape + "'");
    }
    queries = item.integer("queries", keys);
    v_dim = item.integer("value_size", 0);
    dtype = item.dtype;
    causal = item.flag("causal", false);
    window = item.integer("window", 0);
    sinks = item.integer("sinks", 0);
    scale = item.number("scale", 0);
    soft_cap = item.number("soft_cap", 0);
    bias = static_cast<BiasKind>(
        item.choice("bias", {"none", "full", "per_head", "per_batch", "shared"}));
    alibi = item.flag("alibi", false);
    sink_logits = item.flag("sink_logits", false);
    log_sum_exp_grad = item.flag("lse_grad", false);
    on_gpu = item.device == DeviceKind::cuda;
    tokens_first = item.choice("order", {"heads", "tokens"}) == 1;
  }

  std::vector<std::int64_t> memory_shape(std::int64_t count, std::int64_t tokens) const {
    if (tokens_first) return {batch, tokens, count};
    return {batch, count, tokens};
  }
  Operand matrix(const char* name, std::int64_t count, std::int64_t tokens, std::int64_t dim,
                 bool output = false) const {
    std::vector<std::int64_t> dims = memory_shape(count, tokens);
    dims.push_back(dim);
    return {.name = name, .dtype = dtype, .shape = dims, .output = output};
  }
  Operand per_query(const char* name, bool output) const {
    return {.name = name,
            .dtype = wide_dtype(dtype),
            .shape = memory_shape(heads, queries),
            .output = output};
  }
  // In the order [B, H, Sq].
  std::vector<double> per_query_values(const std::vector<double>& all) const {
    std::vector<double> result;
    for (std::int64_t i = 0; i < std::ssize(all); ++i) {
      const std::int64_t row = i / queries;
      result.push_back(all[at(query_index(row / heads, row % heads, i % queries))]);
    }
    return result;
  }
  std::int64_t query_index(std::int64_t b, std::int64_t head, std::int64_t query) const {
    return memory_row(b, head, query, heads, queries);
  }
  Operand per_head(const char* name, double center, double spread) const {
    return {.name = name,
            .dtype = wide_dtype(dtype),
            .shape = {heads},
            .center = center,
            .scale = spread};
  }

  // As the operator takes it: tokens before heads.
  // What is no tensor stays what it is, for the operator to refuse.
  TensorView view(const TensorView& memory) const {
    const bool tensor = memory.rank >= 3 && memory.rank <= kMaxRank;
    return tokens_first || !tensor ? memory : transposed(memory, 1, 2);
  }

  AttentionOptions options(const TensorView& bias_view, const TensorView& slopes,
                           const TensorView& sink_view) const {
    AttentionOptions result;
    result.bias = bias_view, result.alibi_slopes = slopes, result.sink_logits = sink_view;
    result.scale = scale, result.soft_cap = soft_cap;
    result.window = window, result.sinks = sinks, result.causal = causal;
    return result;
  }

  // By the usual counting: 4 B H S S D, 2.5 times that backward, half of it when causal.
  double flops(bool backward) const {
    const double pairs = static_cast<double>(batch * heads) * static_cast<double>(queries) *
                         static_cast<double>(keys) * (causal ? 0.5 : 1);
    return pairs * static_cast<double>(k_dim + v_size()) * (backward ? 5 : 2);
  }
  // q, k, v in and the output out; backward those and their gradients.
  std::int64_t bytes(bool backward) const {
    const std::int64_t numbers =
        checked_add(checked_mul(batch * heads, checked_mul(queries, k_dim + v_size(), "elements")),
                    checked_mul(batch * kv_heads, checked_mul(keys, k_dim + v_size(), "elements")));
    return checked_mul(checked_mul(numbers, backward ? 2 : 1), size_of(dtype), "bytes");
  }
  Labels labels() const {
    return {.rows = batch * heads * queries,
            .cols = k_dim,
            .heads = shape,
            .mask = causal ? "causal" : "full"};
  }

  // Row (batch, head, token) of an operand with `count` heads of `tokens`.
  std::int64_t memory_row(std::int64_t b, std::int64_t head, std::int64_t token, std::int64_t count,
                          std::int64_t tokens) const {
    return tokens_first ? (b * tokens + token) * count + head : (b * count + head) * tokens + token;
  }
};

// A KV head of one batch item with its query heads, as a problem of its own: what a reference is
// computed for.
struct Slice {
  std::int64_t b = 0;
  std::int64_t kv_head = 0;
  AttentionProblem problem{};
  AttentionValues values{};
  AttentionRows rows{};
};

// Collects the rows that the reference is about, in memory order.
class Collected {
 public:
  Collected(std::size_t operand, const AttentionCase& p, std::int64_t count, std::int64_t tokens,
            std::int64_t dim)
      : reference_{operand, {}, {}}, p_(p), count_(count), tokens_(tokens), dim_(dim) {}

  // The selected rows of `heads` heads from `first_head` on.
  void add(const Slice& slice, std::int64_t first_head, std::int64_t heads,
           const std::vector<bool>& selected, const Expected& expected) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t t = 0; t < tokens_; ++t) {
        if (!selected.empty() && !selected[at(t)]) continue;
        const std::int64_t row = p_.memory_row(slice.b, first_head + h, t, count_, tokens_);
        for (std::int64_t d = 0; d < dim_; ++d) {
          const std::size_t from = at((h * tokens_ + t) * dim_ + d);
          reference_.add(row * dim_ + d, expected.value[from], expected.bound[from]);
        }
      }
    }
  }
  OutputReference take() { return std::move(reference_); }

 private:
  OutputReference reference_;
  const AttentionCase& p_;
  std::int64_t count_;
  std::int64_t tokens_;
  std::int64_t dim_;
};

class AttentionBase : public Problem {
 public:
  explicit AttentionBase(const cases::Case& item) : p_(item) {}
  Labels labels() const override { return p_.labels(); }

 protected:
  std::int64_t group() const { return p_.heads / p_.kv_heads; }

  void read_heads(const Reader& reader, std::size_t operand, const Slice& s, std::int64_t first,
                  std::int64_t heads, std::int64_t count, std::int64_t tokens,
                  std::vector<double>& to) const {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::vector<double> row =
            reader.row(operand, p_.memory_row(s.b, first + h, t, count, tokens));
        to.insert(to.end(), row.begin(), row.end());
      }
    }
  }
  // Of an operand with one number per query.
  std::vector<double> per_query(const std::vector<double>& all, const Slice& s) const {
    std::vector<double> result;
    for (std::int64_t h = 0; !all.empty() && h < group(); ++h) {
      for (std::int64_t i = 0; i < p_.queries; ++i) {
        result.push_back(all[at(p_.query_index(s.b, s.kv_head * group() + h, i))]);
      }
    }
    return result;
  }

  // The KV heads to look at, with the inputs that both directions have. Without a bias: one whose
  // gradient is shared between heads needs the whole problem at once.
  template <class Visit>
  void for_each_slice(const Reader& reader, const std::array<std::size_t, 5>& inputs,
                      std::int64_t sample, const Visit& visit) const {
    const auto [q, k, v, slopes, sinks] = inputs;
    const bool whole = sample == kAllRows || p_.queries * p_.keys * group() <= kWholePairs;
    const std::int64_t pairs = p_.batch * p_.kv_heads;
    for (const std::int64_t pair :
         spread_sample(pairs, sample == kAllRows ? pairs : kSampledHeads)) {
      Slice s{.b = pair / p_.kv_heads, .kv_head = pair % p_.kv_heads, .problem = p_};
      s.problem.batch = s.problem.kv_heads = 1;
      s.problem.heads = group();
      const std::int64_t first = s.kv_head * group();
      read_heads(reader, q, s, first, group(), p_.heads, p_.queries, s.values.q);
      read_heads(reader, k, s, s.kv_head, 1, p_.kv_heads, p_.keys, s.values.k);
      read_heads(reader, v, s, s.kv_head, 1, p_.kv_heads, p_.keys, s.values.v);
      const auto part = [&](std::size_t operand) {
        const std::vector<double> all = reader.all(operand);
        return all.empty()
                   ? all
                   : std::vector<double>(all.begin() + first, all.begin() + first + group());
      };
      s.values.slopes = part(slopes);
      s.values.sinks = part(sinks);
      if (!whole) {
        s.rows.queries = marked(p_.queries, sample);
        s.rows.keys = marked(p_.keys, sample);
      }
      visit(s);
    }
  }

  static std::vector<bool> marked(std::int64_t count, std::int64_t sample) {
    std::vector<bool> result(at(count));
    for (const std::int64_t i : spread_sample(count, sample)) result[at(i)] = true;
    return result;
  }

  AttentionCase p_;
};

// An array [B, H, S, D] of all heads, from memory in the order of the case.
std::vector<double> head_major(const AttentionCase& p, const Reader& reader, std::size_t operand,
                               std::int64_t count, std::int64_t tokens, std::int64_t dim) {
  const std::vector<double> all = reader.all(operand);
  if (!p.tokens_first) return all;
  std::vector<double> result;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < count; ++h) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        const auto from = all.begin() + p.memory_row(b, h, t, count, tokens) * dim;
        result.insert(result.end(), from, from + dim);
      }
    }
  }
  return result;
}

class Attention : public AttentionBase {
 public:
  using AttentionBase::AttentionBase;
  enum : std::size_t { kQ, kK, kV, kBias, kSlopes, kSinks, kOutput, kLogSumExp, kCount };

  std::vector<Operand> operands() const override {
    std::vector<Operand> list(kCount);
    list[kQ] = p_.matrix("q", p_.heads, p_.queries, p_.k_dim);
    list[kK] = p_.matrix("k", p_.kv_heads, p_.keys, p_.k_dim);
    list[kV] = p_.matrix("v", p_.kv_heads, p_.keys, p_.v_size());
    if (p_.bias != BiasKind::none) {
      list[kBias] = {.name = "bias", .dtype = wide_dtype(p_.dtype), .shape = p_.bias_shape()};
    }
    if (p_.alibi) list[kSlopes] = p_.per_head("alibi_slopes", 0.25, 0.05);
    if (p_.sink_logits) list[kSinks] = p_.per_head("sink_logits", 0, 1);
    list[kOutput] = p_.matrix("output", p_.heads, p_.queries, p_.v_size(), true);
    list[kLogSumExp] = p_.per_query("log_sum_exp", true);
    return list;
  }

  Reports apply(const Invoke& invoke, Views v, const std::string& implementation) const override {
    return invoke(attention, args(v, implementation));
  }

  std::vector<OutputReference> reference(const Reader& reader, std::int64_t sample) const override {
    Collected output(kOutput, p_, p_.heads, p_.queries, p_.v_size());
    OutputReference lse{kLogSumExp, {}, {}};
    for_each_slice(reader, {kQ, kK, kV, kSlopes, kSinks}, sample, [&](Slice& s) {
      set_bias(reader, s);
      const auto expected = attention_forward_reference(s.problem, s.values, s.rows);
      const std::int64_t first = s.kv_head * group();
      output.add(s, first, group(), s.rows.queries, expected.output);
      for (std::int64_t i = 0; i < group() * p_.queries; ++i) {
        if (!s.rows.queries.empty() && !s.rows.queries[at(i % p_.queries)]) continue;
        lse.add(p_.query_index(s.b, first + i / p_.queries, i % p_.queries),
                expected.log_sum_exp.value[at(i)], expected.log_sum_exp.bound[at(i)]);
      }
    });
    return {output.take(), std::move(lse)};
  }

  Cost cost() const override { return {.bytes = p_.bytes(false), .flops = p_.flops(false)}; }

 private:
  // The bias of the heads of a slice, [1, group, Sq, Sk].
  void set_bias(const Reader& reader, Slice& s) const {
    if (p_.bias == BiasKind::none) return;
    s.problem.bias = BiasKind::full;
    const std::vector<double> all = reader.all(kBias);
    const std::vector<std::int64_t> shape = p_.bias_shape();
    const std::int64_t each = p_.queries * p_.keys;
    for (std::int64_t h = 0; h < group(); ++h) {
      const std::int64_t head = s.kv_head * group() + h;
      const std::int64_t lead = (shape[0] > 1 ? s.b : 0) * shape[1] + (shape[1] > 1 ? head : 0);
      s.values.bias.insert(s.values.bias.end(), all.begin() + lead * each,
                           all.begin() + (lead + 1) * each);
    }
  }

  AttentionArgs args(Views v, const std::string& implementation) const {
    AttentionArgs args;
    args.q = p_.view(v[kQ]), args.k = p_.view(v[kK]), args.v = p_.view(v[kV]);
    args.output = p_.view(v[kOutput]), args.log_sum_exp = p_.view(v[kLogSumExp]);
    args.options = p_.options(v[kBias], v[kSlopes], v[kSinks]);
    args.implementation = implementation;
    return args;
  }
};

class AttentionBackward : public AttentionBase {
 public:
  using AttentionBase::AttentionBase;
  enum : std::size_t {
    kDoutput,
    kDlse,
    kQ,
    kK,
    kV,
    kOutput,
    kLogSumExp,
    kBias,
    kSlopes,
    kSinks,
    kDq,
    kDk,
    kDv,
    kDbias,
    kDsinks,
    kCount
  };

  std::vector<Operand> operands() const override {
    std::vector<Operand> list(kCount);
    list[kDoutput] = p_.matrix("doutput", p_.heads, p_.queries, p_.v_size());
    if (p_.log_sum_exp_grad) list[kDlse] = p_.per_query("dlog_sum_exp", false);
    list[kQ] = p_.matrix("q", p_.heads, p_.queries, p_.k_dim);
    list[kK] = p_.matrix("k", p_.kv_heads, p_.keys, p_.k_dim);
    list[kV] = p_.matrix("v", p_.kv_heads, p_.keys, p_.v_size());
    list[kOutput] = p_.matrix("output", p_.heads, p_.queries, p_.v_size());
    list[kLogSumExp] = p_.per_query("log_sum_exp", false);
    const DType wide = wide_dtype(p_.dtype);
    if (p_.bias != BiasKind::none) {
      list[kBias] = {.name = "bias", .dtype = wide, .shape = p_.bias_shape()};
      list[kDbias] = {.name = "dbias", .dtype = wide, .shape = p_.bias_shape(), .output = true};
    }
    if (p_.alibi) list[kSlopes] = p_.per_head("alibi_slopes", 0.25, 0.05);
    if (p_.sink_logits) {
      list[kSinks] = p_.per_head("sink_logits", 0, 1);
      list[kDsinks] = {.name = "dsink_logits", .dtype = wide, .shape = {p_.heads}, .output = true};
    }
    list[kDq] = p_.matrix("dq", p_.heads, p_.queries, p_.k_dim, true);
    list[kDk] = p_.matrix("dk", p_.kv_heads, p_.keys, p_.k_dim, true);
    list[kDv] = p_.matrix("dv", p_.kv_heads, p_.keys, p_.v_size(), true);
    return list;
  }

  void prepare(Context& context, Views v) const override {
    AttentionArgs args;
    args.q = p_.view(v[kQ]), args.k = p_.view(v[kK]), args.v = p_.view(v[kV]);
    args.output = p_.view(v[kOutput]), args.log_sum_exp = p_.view(v[kLogSumExp]);
    args.options = p_.options(v[kBias], v[kSlopes], v[kSinks]);
    attention(context, args);
    context.synchronize();
  }
  Reports apply(const Invoke& invoke, Views v, const std::string& implementation) const override {
    return invoke(attention_backward, args(v, implementation));
  }

  std::vector<OutputReference> reference(const Reader& reader, std::int64_t sample) const override {
    if (sample == kAllRows) return whole_reference(reader);
    Collected dq(kDq, p_, p_.heads, p_.queries, p_.k_dim);
    Collected dk(kDk, p_, p_.kv_heads, p_.keys, p_.k_dim);
    Collected dv(kDv, p_, p_.kv_heads, p_.keys, p_.v_size());
    const std::vector<double> lse = reader.all(kLogSumExp);
    const std::vector<double> dlse = reader.all(kDlse);
    for_each_slice(reader, {kQ, kK, kV, kSlopes, kSinks}, sample, [&](Slice& s) {
      const std::int64_t first = s.kv_head * group();
      read_heads(reader, kDoutput, s, first, group(), p_.heads, p_.queries, s.values.doutput);
      read_heads(reader, kOutput, s, first, group(), p_.heads, p_.queries, s.values.output);
      s.values.log_sum_exp = per_query(lse, s);
      s.values.dlog_sum_exp = per_query(dlse, s);
      const auto expected = attention_backward_reference(s.problem, s.values, s.rows);
      dq.add(s, first, group(), s.rows.queries, expected.dq);
      dk.add(s, s.kv_head, 1, s.rows.keys, expected.dk);
      dv.add(s, s.kv_head, 1, s.rows.keys, expected.dv);
    });
    return {dq.take(), dk.take(), dv.take()};
  }

  Cost cost() const override { return {.bytes = p_.bytes(true), .flops = p_.flops(true)}; }

  // One head: gradcheck's arrays are [rows, cols].
  std::optional<Gradients> gradients() const override {
    Gradients result;
    result.inputs = {{"q", kQ, kDq, false}, {"k", kK, kDk, false}, {"v", kV, kDv, false}};
    result.outputs = {{"output", kDoutput}, {"log_sum_exp", kDlse}};
    result.dual = [p = p_](const gradcheck::DualSlice& s) {
      oracle::attention<gradcheck::DualScalar>(
          {.queries = p.queries,
           .keys = p.keys,
           .query_heads = p.heads,
           .kv_heads = p.kv_heads,
           .k_dim = p.k_dim,
           .v_dim = p.v_size(),
           .q = s.in[0].data(),
           .k = s.in[1].data(),
           .v = s.in[2].data(),
           .scale = 1 / std::sqrt(static_cast<double>(p.k_dim)),
           .causal = p.causal,
           .output = s.out[0].data(),
           .log_sum_exp = s.out[1].data()});
    };
    return result;
  }

 private:
  std::vector<OutputReference> whole_reference(const Reader& reader) const {
    const auto read = [&](std::size_t operand, std::int64_t count, std::int64_t tokens,
                          std::int64_t dim) {
      return head_major(p_, reader, operand, count, tokens, dim);
    };
    AttentionValues values;
    values.q = read(kQ, p_.heads, p_.queries, p_.k_dim);
    values.k = read(kK, p_.kv_heads, p_.keys, p_.k_dim);
    values.v = read(kV, p_.kv_heads, p_.keys, p_.v_size());
    values.doutput = read(kDoutput, p_.heads, p_.queries, p_.v_size());
    values.output = read(kOutput, p_.heads, p_.queries, p_.v_size());
    values.log_sum_exp = p_.per_query_values(reader.all(kLogSumExp));
    values.dlog_sum_exp = p_.per_query_values(reader.all(kDlse));
    values.bias = reader.all(kBias);
    values.slopes = reader.all(kSlopes);
    values.sinks = reader.all(kSinks);
    const auto expected = attention_backward_reference(p_, values);
    Collected dq(kDq, p_, p_.heads, p_.queries, p_.k_dim);
    Collected dk(kDk, p_, p_.kv_heads, p_.keys, p_.k_dim);
    Collected dv(kDv, p_, p_.kv_heads, p_.keys, p_.v_size());
    const auto add = [&](Collected& to, const Expected& all, std::int64_t heads) {
      const std::size_t each = all.value.size() / at(p_.batch);
      for (std::int64_t b = 0; b < p_.batch; ++b) {
        const auto cut = [&](const std::vector<double>& v) {
          const auto begin = v.begin() + static_cast<std::ptrdiff_t>(at(b) * each);
          return std::vector<double>(begin, begin + static_cast<std::ptrdiff_t>(each));
        };
        to.add({.b = b}, 0, heads, {}, {cut(all.value), cut(all.bound)});
      }
    };
    add(dq, expected.dq, p_.heads);
    add(dk, expected.dk, p_.kv_heads);
    add(dv, expected.dv, p_.kv_heads);
    std::vector<OutputReference> result{dq.take(), dk.take(), dv.take()};
    if (reader.defined(kDbias)) result.push_back({kDbias, {}, expected.dbias});
    if (reader.defined(kDsinks)) result.push_back({kDsinks, {}, expected.dsinks});
    return result;
  }

  AttentionBackwardArgs args(Views v, const std::string& implementation) const {
    AttentionBackwardArgs args;
    args.doutput = p_.view(v[kDoutput]), args.dlog_sum_exp = p_.view(v[kDlse]);
    args.q = p_.view(v[kQ]), args.k = p_.view(v[kK]), args.v = p_.view(v[kV]);
    args.output = p_.view(v[kOutput]), args.log_sum_exp = p_.view(v[kLogSumExp]);
    args.dq = p_.view(v[kDq]), args.dk = p_.view(v[kDk]), args.dv = p_.view(v[kDv]);
    args.dbias = v[kDbias], args.dsink_logits = v[kDsinks];
    args.options = p_.options(v[kBias], v[kSlopes], v[kSinks]);
    args.implementation = implementation;
    return args;
  }
};

}  // namespace

std::unique_ptr<Problem> make_attention(const cases::Case& item, bool backward) {
  if (backward) return std::make_unique<AttentionBackward>(item);
  return std::make_unique<Attention>(item);
}

}  // namespace touchstone::spec
