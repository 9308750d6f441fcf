// The oracle's answer to a problem, with a bound for every number.
//
// u is the unit roundoff of the arithmetic. Sums run in chains of one tile that are then joined, so
// that n terms err by at most chain(n) u times the sum of their magnitudes. With A = scale |q|.|k|:
//   score s        e  = u ((D + 4) A + 8 (|s| + |largest s| + |alibi| + |bias|)) + 8 u
//   weight         e relative, and 2 max e after the division by the sum
//   P in backward  e + 4 u |log_sum_exp|, since that number was rounded
//   dP, delta      u (D + 4) |dO|.|v|, and the same of O plus the rounding of O to its dtype
// On CUDA 16-bit numbers are rounded once more, P and dS, before they are multiplied.
#include <algorithm>
#include <cmath>

#include "ops/attention_dense/attention_test_support.h"
#include "oracle/attention.h"

namespace touchstone::test {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

double chain(double n) { return std::min(n, 256 + n / 64) + 8; }

// One sequence of a problem, taken out of the arrays of all.
struct Sequence {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t first_query = 0;
  std::int64_t first_key = 0;
  std::int64_t index = 0;
};

std::vector<Sequence> sequences_of(const DenseProblem& p) {
  std::vector<Sequence> result;
  for (std::int64_t b = 0; b < p.sequences(); ++b) {
    Sequence s{p.queries, p.keys, 0, 0, b};
    if (p.is_packed()) {
      s.queries = p.packed[at(b)].first;
      s.keys = p.packed[at(b)].second;
      for (std::int64_t i = 0; i < b; ++i) {
        s.first_query += p.packed[at(i)].first;
        s.first_key += p.packed[at(i)].second;
      }
    }
    result.push_back(s);
  }
  return result;
}

class Expectation {
 public:
  Expectation(const DenseProblem& p, const DenseData& data)
      : p_(p), data_(data), rounds_pairs_(on_gpu() && size_of(p.dtype) == 2) {
    u_ = unit_roundoff(p.dtype == DType::f64 ? DType::f64 : DType::f32);
    const auto resize = [](Expected& e, std::size_t n) {
      e.value.assign(n, 0.0);
      e.bound.assign(n, 0.0);
    };
    resize(all_.output, data.doutput.size());
    resize(all_.log_sum_exp, data.q.size() / at(p.k_dim));
    resize(all_.dq, data.q.size());
    resize(all_.dk, data.k.size());
    resize(all_.dv, data.v.size());
    resize(all_.dbias, data.bias.size());
    resize(all_.dsinks, data.sinks.size());
    terms_k_.assign(data.k.size(), 0.0);
    terms_v_.assign(data.v.size(), 0.0);
    terms_bias_.assign(data.bias.size(), 0.0);
    for (const Sequence& s : sequences_of(p)) add(s);
    finish();
  }

  ExpectedDense take() { return std::move(all_); }

 private:
  // The pieces [heads, tokens, dim] of one sequence.
  Values taken(const Values& from, std::int64_t heads, std::int64_t tokens, std::int64_t dim,
               const Sequence& s, std::int64_t first, std::int64_t count) const {
    Values result;
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto begin = from.begin() + place(heads, tokens, s, h, first) * dim;
      result.insert(result.end(), begin, begin + count * dim);
    }
    return result;
  }
  std::int64_t place(std::int64_t heads, std::int64_t tokens, const Sequence& s, std::int64_t head,
                     std::int64_t token) const {
    return ((p_.is_packed() ? 0 : s.index * heads) + head) * tokens + token;
  }
  std::int64_t row(const Sequence& s, std::int64_t head, std::int64_t i) const {
    return place(p_.heads, p_.all_queries(), s, head, s.first_query + i);
  }
  std::int64_t key_row(const Sequence& s, std::int64_t head, std::int64_t t) const {
    return place(p_.kv_heads, p_.all_keys(), s, head / (p_.heads / p_.kv_heads), s.first_key + t);
  }
  std::int64_t bias_index(const Sequence& s, std::int64_t head, std::int64_t i,
                          std::int64_t t) const {
    const bool batch = p_.bias == BiasKind::full || p_.bias == BiasKind::per_batch;
    const bool heads = p_.bias == BiasKind::full || p_.bias == BiasKind::per_head;
    const std::int64_t lead = (batch ? s.index : 0) * (heads ? p_.heads : 1) + (heads ? head : 0);
    return (lead * p_.queries + i) * p_.keys + t;
  }

  void add(const Sequence& s) {
    const Values q =
        taken(data_.q, p_.heads, p_.all_queries(), p_.k_dim, s, s.first_query, s.queries);
    const Values k = taken(data_.k, p_.kv_heads, p_.all_keys(), p_.k_dim, s, s.first_key, s.keys);
    const Values v =
        taken(data_.v, p_.kv_heads, p_.all_keys(), p_.v_size(), s, s.first_key, s.keys);
    Values bias;
    if (p_.bias != BiasKind::none) {
      for (std::int64_t h = 0; h < p_.heads; ++h) {
        for (std::int64_t i = 0; i < s.queries; ++i) {
          for (std::int64_t t = 0; t < s.keys; ++t)
            bias.push_back(data_.bias[at(bias_index(s, h, i, t))]);
        }
      }
    }
    const double natural = 1 / std::sqrt(static_cast<double>(p_.k_dim));
    const oracle::Attention<double> a{.queries = s.queries,
                                      .keys = s.keys,
                                      .query_heads = p_.heads,
                                      .kv_heads = p_.kv_heads,
                                      .k_dim = p_.k_dim,
                                      .v_dim = p_.v_size(),
                                      .q = q.data(),
                                      .k = k.data(),
                                      .v = v.data(),
                                      .scale = p_.scale == 0 ? natural : p_.scale,
                                      .soft_cap = p_.soft_cap,
                                      .causal = p_.causal,
                                      .window = p_.window,
                                      .sinks = p_.sinks,
                                      .bias = bias.empty() ? nullptr : bias.data(),
                                      .alibi_slopes = p_.alibi ? data_.slopes.data() : nullptr,
                                      .sink_logits = p_.sink_logits ? data_.sinks.data() : nullptr};
    for (std::int64_t h = 0; h < p_.heads; ++h) {
      for (std::int64_t i = 0; i < s.queries; ++i) add_row(a, s, h, i);
    }
  }

  // Score errors of one row, and sum of scores' magnitudes.
  Values score_errors(const oracle::Attention<double>& a, const oracle::AttentionRow<double>& row,
                      std::int64_t head, std::int64_t i) const {
    Values errors;
    double largest = p_.sink_logits ? std::fabs(data_.sinks[at(head)]) : 0;
    for (const std::int64_t t : row.seen) {
      const double s = oracle::attention_logit(a, head, i, t);
      if (std::isfinite(s)) largest = std::max(largest, std::fabs(s));
    }
    for (const std::int64_t t : row.seen) {
      double magnitude = 0;
      for (std::int64_t d = 0; d < a.k_dim; ++d) {
        magnitude += std::fabs(a.query(head, i)[d] * a.key(head, t)[d]) * std::fabs(a.scale);
      }
      double added = 0;
      if (a.alibi_slopes) {
        added += a.alibi_slopes[head] * std::fabs(static_cast<double>(i + a.keys - a.queries - t));
      }
      if (a.bias) {
        const double bias = a.bias[(head * a.queries + i) * a.keys + t];
        if (std::isfinite(bias)) added += std::fabs(bias);
      }
      errors.push_back(
          u_ * ((static_cast<double>(a.k_dim) + 4) * magnitude + 8 * (2 * largest + added) + 8));
    }
    return errors;
  }

  void add_row(const oracle::Attention<double>& a, const Sequence& s, std::int64_t head,
               std::int64_t i) {
    const auto row_data = oracle::attention_row(a, head, i);
    const std::int64_t r = row(s, head, i);
    const Values errors = score_errors(a, row_data, head, i);
    const double worst = errors.empty() ? 8 * u_ : *std::ranges::max_element(errors);
    const auto n = static_cast<double>(row_data.seen.size());
    const std::int64_t v_dim = p_.v_size();
    const double weight_error = std::expm1(2 * worst) + 2 * chain(n) * u_;
    Values output(at(v_dim));
    Values magnitude(at(v_dim));
    Values absolute(at(v_dim));
    for (std::size_t j = 0; j < row_data.seen.size(); ++j) {
      const double* const v = a.value(head, row_data.seen[j]);
      for (std::int64_t d = 0; d < v_dim; ++d) {
        output[at(d)] += row_data.weights[j] * v[d];
        magnitude[at(d)] += row_data.weights[j] * std::fabs(v[d]);
        absolute[at(d)] += std::fabs(v[d]);
      }
    }
    for (std::int64_t d = 0; d < v_dim; ++d) {
      const double extra = rounds_pairs_ ? 2 * unit_roundoff(p_.dtype) * magnitude[at(d)] +
                                               smallest_step() * absolute[at(d)]
                                         : 0;
      all_.output.value[at(r * v_dim + d)] = output[at(d)];
      all_.output.bound[at(r * v_dim + d)] =
          weight_error * magnitude[at(d)] + extra + rounding_error(p_.dtype, output[at(d)]) + 1e-37;
    }
    all_.log_sum_exp.value[at(r)] = row_data.log_sum_exp;
    all_.log_sum_exp.bound[at(r)] =
        weight_error +
        4 * u_ * (std::isfinite(row_data.log_sum_exp) ? std::fabs(row_data.log_sum_exp) : 0) +
        8 * u_;
    add_gradients(a, s, head, i, row_data, errors, output);
  }

  void add_gradients(const oracle::Attention<double>& a, const Sequence& s, std::int64_t head,
                     std::int64_t i, const oracle::AttentionRow<double>& row_data,
                     const Values& errors, const Values& output) {
    if (!(row_data.log_sum_exp > -std::numeric_limits<double>::infinity())) return;
    const std::int64_t v_dim = p_.v_size();
    const std::int64_t r = row(s, head, i);
    const double* const doutput = data_.doutput.data() + r * v_dim;
    const auto dims = static_cast<double>(v_dim) + 4;
    const double rounding = unit_roundoff(p_.dtype);
    double delta = p_.log_sum_exp_grad ? -data_.dlog_sum_exp[at(r)] : 0;
    double delta_error = 2 * u_ * std::fabs(delta);
    for (std::int64_t d = 0; d < v_dim; ++d) {
      delta += doutput[d] * output[at(d)];
      delta_error += (u_ * dims + rounding) * std::fabs(doutput[d] * output[at(d)]) +
                     std::fabs(doutput[d]) * rounding_error(p_.dtype, 0);
    }
    const double lse_error = 4 * u_ * std::fabs(row_data.log_sum_exp) + 8 * u_;
    Values terms_q(at(a.k_dim));
    for (std::size_t j = 0; j < row_data.seen.size(); ++j) {
      const std::int64_t t = row_data.seen[j];
      const double weight = row_data.weights[j];
      if (weight == 0) continue;
      double dp = 0;
      double dp_error = 0;
      for (std::int64_t d = 0; d < v_dim; ++d) {
        dp += doutput[d] * a.value(head, t)[d];
        dp_error += u_ * dims * std::fabs(doutput[d] * a.value(head, t)[d]);
      }
      const double ds = weight * (dp - delta);
      const double p_error = std::expm1(errors[j] + lse_error) + (rounds_pairs_ ? rounding : 0);
      double ds_error = weight * (p_error * std::fabs(dp - delta) + dp_error + delta_error +
                                  4 * u_ * (std::fabs(dp) + std::fabs(delta)));
      const double slope = oracle::attention_cap_slope(a, oracle::attention_dot(a, head, i, t));
      const double slope_error = a.soft_cap > 0 ? 16 * u_ + 2 * errors[j] / a.soft_cap : 0;
      const double step = rounds_pairs_ ? smallest_step() : 0;
      if (p_.bias != BiasKind::none) {
        const std::size_t b = at(bias_index(s, head, i, t));
        all_.dbias.value[b] += ds;
        all_.dbias.bound[b] += ds_error;
        terms_bias_[b] += std::fabs(ds);
      }
      if (rounds_pairs_) ds_error += rounding * std::fabs(ds) + step;
      const double factor = std::fabs(a.scale);
      const double product_error = factor * (slope * ds_error + slope_error * std::fabs(ds));
      const double product = a.scale * slope * ds;
      for (std::int64_t d = 0; d < a.k_dim; ++d) {
        const std::size_t in_q = at(r * a.k_dim + d);
        const std::size_t in_k = at(key_row(s, head, t) * a.k_dim + d);
        const double k = a.key(head, t)[d];
        const double q = a.query(head, i)[d];
        all_.dq.value[in_q] += product * k;
        all_.dq.bound[in_q] += product_error * std::fabs(k);
        terms_q[at(d)] += std::fabs(product * k);
        all_.dk.value[in_k] += product * q;
        all_.dk.bound[in_k] += product_error * std::fabs(q);
        terms_k_[in_k] += std::fabs(product * q);
      }
      for (std::int64_t d = 0; d < v_dim; ++d) {
        const std::size_t in_v = at(key_row(s, head, t) * v_dim + d);
        all_.dv.value[in_v] += weight * doutput[d];
        all_.dv.bound[in_v] += (weight * p_error + step) * std::fabs(doutput[d]);
        terms_v_[in_v] += weight * std::fabs(doutput[d]);
      }
    }
    const auto n = static_cast<double>(row_data.seen.size());
    for (std::int64_t d = 0; d < a.k_dim; ++d) {
      all_.dq.bound[at(r * a.k_dim + d)] += chain(n) * u_ * terms_q[at(d)];
    }
    if (p_.sink_logits) {
      const double weight = std::exp(data_.sinks[at(head)] - row_data.log_sum_exp);
      const double error = lse_error + 4 * u_ * std::fabs(data_.sinks[at(head)]);
      all_.dsinks.value[at(head)] -= weight * delta;
      all_.dsinks.bound[at(head)] +=
          weight * (std::expm1(error) * std::fabs(delta) + delta_error) +
          static_cast<double>(s.queries) * u_ * weight * std::fabs(delta);
    }
  }

  // Roundings to the dtype, and the sums over queries.
  void finish() {
    const auto n = static_cast<double>(p_.all_queries() * (p_.heads / p_.kv_heads));
    const auto shared = static_cast<double>(p_.batch * p_.heads);
    const auto round = [](Expected& e, DType dtype) {
      for (std::size_t i = 0; i < e.value.size(); ++i) {
        e.bound[i] += rounding_error(dtype, e.value[i]) + 1e-37;
      }
    };
    for (std::size_t i = 0; i < terms_k_.size(); ++i) {
      all_.dk.bound[i] += chain(n) * u_ * terms_k_[i];
    }
    for (std::size_t i = 0; i < terms_v_.size(); ++i) {
      all_.dv.bound[i] += chain(n) * u_ * terms_v_[i];
    }
    for (std::size_t i = 0; i < terms_bias_.size(); ++i) {
      all_.dbias.bound[i] += (shared + 4) * u_ * terms_bias_[i];
    }
    round(all_.dq, p_.dtype);
    round(all_.dk, p_.dtype);
    round(all_.dv, p_.dtype);
    round(all_.dbias, p_.dtype == DType::f64 ? DType::f64 : DType::f32);
    round(all_.dsinks, p_.dtype == DType::f64 ? DType::f64 : DType::f32);
  }

  // What a number near 0 loses when it is rounded to f16.
  double smallest_step() const { return rounding_error(p_.dtype, 0); }

  const DenseProblem& p_;
  const DenseData& data_;
  bool rounds_pairs_;
  double u_ = 0;
  ExpectedDense all_;
  Values terms_k_, terms_v_, terms_bias_;  // sums of magnitudes
};

}  // namespace

ExpectedDense expected_dense(const DenseProblem& problem, const DenseData& data) {
  return Expectation(problem, data).take();
}

}  // namespace touchstone::test
