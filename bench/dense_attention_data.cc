#include "bench/dense_attention_data.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "bench/data.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::bench {
namespace {

constexpr std::int64_t kSample = 12;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

[[noreturn]] void fail(int line, const std::string& what) {
  throw CorruptData("cases/attention.txt:" + std::to_string(line) + ": " + what);
}

// "1x16/4x1024x128"
void read_shape(const std::string& text, int line, DenseAttentionProblem& problem) {
  std::vector<std::int64_t> numbers;
  std::string separators;
  const char* from = text.data();
  const char* const end = from + text.size();
  while (from < end) {
    std::int64_t number = 0;
    const auto read = std::from_chars(from, end, number);
    if (read.ec != std::errc{} || number < 1) fail(line, "shape: not understood: " + text);
    numbers.push_back(number);
    if (read.ptr < end) separators += *read.ptr;
    from = read.ptr + 1;
  }
  if (separators == "xxx" && numbers.size() == 4) {
    numbers.insert(numbers.begin() + 2, numbers[1]);
  } else if (separators != "x/xx" || numbers.size() != 5) {
    fail(line, "shape: expected one as 1x16/4x1024x128, got " + text);
  }
  problem.batch = numbers[0];
  problem.heads = numbers[1];
  problem.kv_heads = numbers[2];
  problem.tokens = numbers[3];
  problem.dim = numbers[4];
}

// One head of a tensor [B, H, S, D], as numbers.
class HeadReader {
 public:
  HeadReader(const Tensor& tensor, std::int64_t tokens, std::int64_t dim)
      : host_(tensor.to(Device::cpu())), tokens_(tokens), dim_(dim) {}

  std::vector<double> row(std::int64_t head, std::int64_t token) const {
    std::vector<double> result(at(dim_));
    visit_float_dtype(host_.dtype(), [&]<class T>() {
      const std::span<const T> all = host_.values<T>();
      for (std::int64_t d = 0; d < dim_; ++d) {
        result[at(d)] = convert<double>(all[at((head * tokens_ + token) * dim_ + d)]);
      }
    });
    return result;
  }

 private:
  Tensor host_;
  std::int64_t tokens_;
  std::int64_t dim_;
};

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void add(double factor, const std::vector<double>& x, std::vector<double>& sum) {
  for (std::size_t i = 0; i < x.size(); ++i) sum[i] += factor * x[i];
}

// |got - expected| / |expected| over what was looked at.
struct ErrorSum {
  double difference = 0;
  double size = 0;

  void add(const std::vector<double>& got, const std::vector<double>& expected) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      difference += (got[i] - expected[i]) * (got[i] - expected[i]);
      size += expected[i] * expected[i];
    }
  }
  double value() const { return std::sqrt(difference / std::max(size, 1e-300)); }
};

// The operands as numbers, and one row or column of the matrix of weights at a time.
class Reference {
 public:
  Reference(const DenseAttentionProblem& p, const DenseAttentionData& data)
      : p_(p),
        q_(data.q, p.tokens, p.dim),
        k_(data.k, p.tokens, p.dim),
        v_(data.v, p.tokens, p.dim),
        output_(data.output, p.tokens, p.dim),
        doutput_(p.backward ? data.doutput : data.q, p.tokens, p.dim),
        log_sum_exp_(data.log_sum_exp, p.tokens, 1) {}

  std::int64_t kv(std::int64_t head) const { return head / (p_.heads / p_.kv_heads); }
  std::int64_t end_of(std::int64_t query) const { return p_.causal ? query + 1 : p_.tokens; }
  double logit(const std::vector<double>& q, std::int64_t head, std::int64_t key) const {
    return dot(q, k_.row(kv(head), key)) / std::sqrt(static_cast<double>(p_.dim));
  }

  std::vector<double> output(std::int64_t head, std::int64_t query) const {
    const std::vector<double> q = q_.row(head, query);
    std::vector<double> logits;
    for (std::int64_t t = 0; t < end_of(query); ++t) logits.push_back(logit(q, head, t));
    const double most = *std::ranges::max_element(logits);
    double sum = 0;
    std::vector<double> result(at(p_.dim));
    for (std::int64_t t = 0; t < end_of(query); ++t) {
      const double weight = std::exp(logits[at(t)] - most);
      sum += weight;
      add(weight, v_.row(kv(head), t), result);
    }
    for (double& x : result) x /= sum;
    return result;
  }

  // dS of one pair, and its weight.
  std::pair<double, double> pair(std::int64_t head, std::int64_t query, std::int64_t key) const {
    const std::vector<double> doutput = doutput_.row(head, query);
    const double delta = dot(doutput, output_.row(head, query));
    const double weight =
        std::exp(logit(q_.row(head, query), head, key) - log_sum_exp_.row(head, query)[0]);
    return {weight * (dot(doutput, v_.row(kv(head), key)) - delta), weight};
  }

  std::vector<double> dq(std::int64_t head, std::int64_t query) const {
    std::vector<double> result(at(p_.dim));
    for (std::int64_t t = 0; t < end_of(query); ++t) {
      add(pair(head, query, t).first / std::sqrt(static_cast<double>(p_.dim)), k_.row(kv(head), t),
          result);
    }
    return result;
  }

  void dk_dv(std::int64_t kv_head, std::int64_t key, std::vector<double>& dk,
             std::vector<double>& dv) const {
    const std::int64_t group = p_.heads / p_.kv_heads;
    // KV heads count over batches too, as heads do.
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (std::int64_t i = p_.causal ? key : 0; i < p_.tokens; ++i) {
        const auto [ds, weight] = pair(head, i, key);
        add(ds / std::sqrt(static_cast<double>(p_.dim)), q_.row(head, i), dk);
        add(weight, doutput_.row(head, i), dv);
      }
    }
  }

 private:
  const DenseAttentionProblem& p_;
  HeadReader q_, k_, v_, output_, doutput_, log_sum_exp_;
};

double forward_error(const DenseAttentionProblem& p, const DenseAttentionData& data) {
  const Reference reference(p, data);
  const HeadReader got(data.output, p.tokens, p.dim);
  ErrorSum error;
  for (const std::int64_t head : spread_sample(p.batch * p.heads, 3)) {
    for (const std::int64_t query : spread_sample(p.tokens, kSample)) {
      error.add(got.row(head, query), reference.output(head, query));
    }
  }
  return error.value();
}

double backward_error(const DenseAttentionProblem& p, const DenseAttentionData& data) {
  const Reference reference(p, data);
  const HeadReader got_q(data.dq, p.tokens, p.dim);
  const HeadReader got_k(data.dk, p.tokens, p.dim);
  const HeadReader got_v(data.dv, p.tokens, p.dim);
  ErrorSum dq, dk, dv;
  for (const std::int64_t head : spread_sample(p.batch * p.kv_heads, 2)) {
    for (const std::int64_t token : spread_sample(p.tokens, kSample / 2)) {
      const std::int64_t query_head = head * (p.heads / p.kv_heads);
      dq.add(got_q.row(query_head, token), reference.dq(query_head, token));
      std::vector<double> expected_k(at(p.dim));
      std::vector<double> expected_v(at(p.dim));
      reference.dk_dv(head, token, expected_k, expected_v);
      dk.add(got_k.row(head, token), expected_k);
      dv.add(got_v.row(head, token), expected_v);
    }
  }
  double worst = 0;
  for (const double error : {dq.value(), dk.value(), dv.value()}) {
    worst = std::isnan(error) || error > worst ? error : worst;
    if (std::isnan(worst)) return worst;
  }
  return worst;
}

}  // namespace

std::string DenseAttentionProblem::op() const {
  return backward ? "attention_backward" : "attention";
}

std::string DenseAttentionProblem::shape() const {
  std::string text = std::to_string(batch) + "x" + std::to_string(heads);
  if (kv_heads != heads) text.append("/").append(std::to_string(kv_heads));
  return text + "x" + std::to_string(tokens) + "x" + std::to_string(dim);
}

double DenseAttentionProblem::flops() const {
  const double pairs = static_cast<double>(batch * heads) * static_cast<double>(tokens) *
                       static_cast<double>(tokens) * (causal ? 0.5 : 1);
  return pairs * static_cast<double>(dim) * (backward ? 10 : 4);
}

std::int64_t DenseAttentionProblem::minimal_bytes() const {
  const std::int64_t vectors = 2 * heads + 2 * kv_heads;  // q, k, v in, the output out
  const std::int64_t all = backward ? 2 * vectors : vectors;
  const std::int64_t numbers = checked_mul(checked_mul(batch * all, tokens), dim, "bench: numbers");
  return checked_mul(numbers, size_of(dtype), "bench: bytes");
}

std::int64_t DenseAttentionProblem::data_bytes() const {
  DenseAttentionProblem both = *this;
  both.backward = true;
  return both.minimal_bytes();
}

std::vector<DenseAttentionProblem> dense_attention_problems(Device device, cases::Tier tier,
                                                            std::optional<DType> dtype) {
  std::vector<DenseAttentionProblem> problems;
  std::istringstream lines{std::string(cases::text("attention"))};
  std::string text;
  for (int line = 1; std::getline(lines, text); ++line) {
    std::istringstream words(text.substr(0, text.find('#')));
    std::string kind, where, dtypes, shape, mask;
    if (!(words >> kind)) continue;
    if (!(words >> where >> dtypes >> shape >> mask)) fail(line, "expected five columns");
    if (kind != "smoke" && kind != "full") fail(line, "tier: not known: " + kind);
    if (mask != "full" && mask != "causal") fail(line, "mask: not known: " + mask);
    if (kind == "full" && tier == cases::Tier::smoke) continue;
    if (where != (device.is_cuda() ? "cuda" : "cpu")) continue;
    DenseAttentionProblem problem;
    problem.device = device;
    problem.causal = mask == "causal";
    read_shape(shape, line, problem);
    std::istringstream list(dtype ? std::string(name_of(*dtype)) : dtypes);
    for (std::string name; std::getline(list, name, ',');) {
      problem.dtype = parse_dtype(name);
      problems.push_back(problem);
    }
  }
  return problems;
}

DenseAttentionData::DenseAttentionData(Context& context, const DenseAttentionProblem& p) {
  const auto heads = [&](std::int64_t count, std::uint64_t seed) {
    Tensor tensor = Tensor::empty({p.batch, count, p.tokens, p.dim}, p.dtype, p.device);
    fill_random(context, tensor, 0.0F, 1.0F, seed);
    return tensor;
  };
  q = heads(p.heads, 1);
  k = heads(p.kv_heads, 2);
  v = heads(p.kv_heads, 3);
  output = heads(p.heads, 4);
  const DType statistics = p.dtype == DType::f64 ? DType::f64 : DType::f32;
  log_sum_exp = Tensor::empty({p.batch, p.heads, p.tokens}, statistics, p.device);
  if (p.backward) {
    doutput = heads(p.heads, 5);
    dq = heads(p.heads, 6);
    dk = heads(p.kv_heads, 7);
    dv = heads(p.kv_heads, 8);
    attention(context, forward_args(p));
  }
  context.synchronize();
}

namespace {

// Head-major memory as the operator takes it, [B, S, H, ...].
TensorView by_token(Tensor& x) { return transposed(x.view(), 1, 2); }

}  // namespace

AttentionArgs DenseAttentionData::forward_args(const DenseAttentionProblem& problem) {
  AttentionArgs args;
  args.q = by_token(q), args.k = by_token(k), args.v = by_token(v);
  args.output = by_token(output), args.log_sum_exp = by_token(log_sum_exp);
  args.options.causal = problem.causal;
  return args;
}

AttentionBackwardArgs DenseAttentionData::backward_args(const DenseAttentionProblem& problem) {
  AttentionBackwardArgs args;
  args.doutput = by_token(doutput), args.q = by_token(q), args.k = by_token(k);
  args.v = by_token(v), args.output = by_token(output), args.log_sum_exp = by_token(log_sum_exp);
  args.dq = by_token(dq), args.dk = by_token(dk), args.dv = by_token(dv);
  args.options.causal = problem.causal;
  return args;
}

void DenseAttentionData::run(Context& context, const DenseAttentionProblem& problem) {
  const auto call = [&](auto op, auto args) {
    args.implementation = problem.implementation;
    op(context, args);
  };
  if (problem.backward) {
    call(attention_backward, backward_args(problem));
  } else {
    call(attention, forward_args(problem));
  }
}

std::vector<ImplementationReport> dense_attention_implementations(
    Context& context, const DenseAttentionProblem& problem, DenseAttentionData& data) {
  return problem.backward ? explain(context, data.backward_args(problem))
                          : explain(context, data.forward_args(problem));
}

double dense_attention_error(Context& context, const DenseAttentionProblem& problem,
                             DenseAttentionData& data, const std::function<void()>& call) {
  if (problem.backward) {
    for (Tensor* gradient : {&data.dq, &data.dk, &data.dv}) poison(context, *gradient);
  } else {
    poison(context, data.output);
  }
  call();
  context.synchronize();
  return problem.backward ? backward_error(problem, data) : forward_error(problem, data);
}

}  // namespace touchstone::bench
