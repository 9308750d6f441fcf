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
#include <limits>
#include <tuple>

#include "core/index.h"
#include "oracle/attention.h"
#include "spec/attention/attention.h"

namespace touchstone::spec {
namespace {

using Values = std::vector<double>;

double chain(double n) { return std::min(n, 256 + n / 64) + 8; }

// One sequence of a problem, taken out of the arrays of all.
struct Sequence {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t first_query = 0;
  std::int64_t first_key = 0;
  std::int64_t index = 0;
};

std::vector<Sequence> sequences_of(const AttentionProblem& p) {
  std::vector<Sequence> result;
  Sequence next{p.queries, p.keys, 0, 0, 0};
  for (std::int64_t b = 0; b < p.sequences(); ++b) {
    next.index = b;
    if (p.is_packed()) std::tie(next.queries, next.keys) = p.packed[at(b)];
    result.push_back(next);
    if (!p.is_packed()) continue;
    next.first_query += next.queries;
    next.first_key += next.keys;
  }
  return result;
}

// The arrays of one sequence, [heads, tokens, dim], and the oracle's arguments on them.
struct Part {
  Values q, k, v, bias;
  oracle::Attention<double> a;
  double key_norm = 0;  // the largest
};

double norm(const double* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t d = 0; d < n; ++d) sum += x[d] * x[d];
  return std::sqrt(sum);
}

class Reference {
 public:
  Reference(const AttentionProblem& p, const AttentionValues& data, const AttentionRows& rows)
      : p_(p),
        data_(data),
        rows_(rows),
        u_(unit_roundoff(wide_dtype(p.dtype))),
        rounds_pairs_(p.on_gpu && size_of(p.dtype) == 2) {}

  AttentionForwardReference forward() {
    const std::size_t rows = data_.q.size() / at(p_.k_dim);
    resize(forward_.output, rows * at(p_.v_size()));
    resize(forward_.log_sum_exp, rows);
    for_each_row([&](const Part& part, const Sequence& s, std::int64_t head, std::int64_t i) {
      if (selects_query(i)) forward_row(part, s, head, i);
    });
    return std::move(forward_);
  }

  AttentionBackwardReference backward() {
    resize(backward_.dq, data_.q.size());
    resize(backward_.dk, data_.k.size());
    resize(backward_.dv, data_.v.size());
    resize(backward_.dbias, data_.bias.size());
    resize(backward_.dsinks, data_.sinks.size());
    terms_k_.assign(data_.k.size(), 0.0);
    terms_v_.assign(data_.v.size(), 0.0);
    terms_bias_.assign(data_.bias.size(), 0.0);
    for_each_row([&](const Part& part, const Sequence& s, std::int64_t head, std::int64_t i) {
      backward_row(part, s, head, i);
    });
    finish();
    return std::move(backward_);
  }

 private:
  static void resize(Expected& e, std::size_t n) {
    e.value.assign(n, 0.0);
    e.bound.assign(n, 0.0);
  }
  bool selects_query(std::int64_t i) const { return rows_.queries.empty() || rows_.queries[at(i)]; }
  bool selects_key(std::int64_t t) const { return rows_.keys.empty() || rows_.keys[at(t)]; }

  std::int64_t offset(std::int64_t heads, std::int64_t tokens, const Sequence& s, std::int64_t head,
                      std::int64_t token) const {
    return ((p_.is_packed() ? 0 : s.index * heads) + head) * tokens + token;
  }
  std::int64_t row(const Sequence& s, std::int64_t head, std::int64_t i) const {
    return offset(p_.heads, p_.all_queries(), s, head, s.first_query + i);
  }
  std::int64_t key_row(const Sequence& s, std::int64_t head, std::int64_t t) const {
    return offset(p_.kv_heads, p_.all_keys(), s, head / (p_.heads / p_.kv_heads), s.first_key + t);
  }
  std::int64_t bias_offset(const Sequence& s, std::int64_t head, std::int64_t i,
                           std::int64_t t) const {
    const std::vector<std::int64_t> shape = p_.bias_shape();
    const std::int64_t lead = (shape[0] > 1 ? s.index : 0) * shape[1] + (shape[1] > 1 ? head : 0);
    return (lead * p_.queries + i) * p_.keys + t;
  }

  Values taken(const Values& from, std::int64_t heads, std::int64_t tokens, std::int64_t dim,
               const Sequence& s, std::int64_t first, std::int64_t count) const {
    Values result;
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto begin = from.begin() + offset(heads, tokens, s, h, first) * dim;
      result.insert(result.end(), begin, begin + count * dim);
    }
    return result;
  }

  template <class Visit>
  void for_each_row(const Visit& visit) const {
    for (const Sequence& s : sequences_of(p_)) {
      Part part;
      part.q = taken(data_.q, p_.heads, p_.all_queries(), p_.k_dim, s, s.first_query, s.queries);
      part.k = taken(data_.k, p_.kv_heads, p_.all_keys(), p_.k_dim, s, s.first_key, s.keys);
      part.v = taken(data_.v, p_.kv_heads, p_.all_keys(), p_.v_size(), s, s.first_key, s.keys);
      for (std::int64_t h = 0; p_.bias != BiasKind::none && h < p_.heads; ++h) {
        for (std::int64_t i = 0; i < s.queries; ++i) {
          for (std::int64_t t = 0; t < s.keys; ++t) {
            part.bias.push_back(data_.bias[at(bias_offset(s, h, i, t))]);
          }
        }
      }
      part.a = {.queries = s.queries,
                .keys = s.keys,
                .query_heads = p_.heads,
                .kv_heads = p_.kv_heads,
                .k_dim = p_.k_dim,
                .v_dim = p_.v_size(),
                .q = part.q.data(),
                .k = part.k.data(),
                .v = part.v.data(),
                .scale = p_.scale == 0 ? 1 / std::sqrt(static_cast<double>(p_.k_dim)) : p_.scale,
                .soft_cap = p_.soft_cap,
                .causal = p_.causal,
                .window = p_.window,
                .sinks = p_.sinks,
                .bias = part.bias.empty() ? nullptr : part.bias.data(),
                .alibi_slopes = p_.alibi ? data_.slopes.data() : nullptr,
                .sink_logits = p_.sink_logits ? data_.sinks.data() : nullptr};
      for (std::int64_t t = 0; t < p_.kv_heads * s.keys; ++t) {
        part.key_norm = std::max(part.key_norm, norm(part.k.data() + t * p_.k_dim, p_.k_dim));
      }
      for (std::int64_t h = 0; h < p_.heads; ++h) {
        for (std::int64_t i = 0; i < s.queries; ++i) visit(part, s, h, i);
      }
    }
  }

  // What the score of a pair may be off, with `largest` the largest magnitude of its row.
  double score_error(const oracle::Attention<double>& a, std::int64_t head, std::int64_t i,
                     std::int64_t t, double largest) const {
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
    return u_ * ((static_cast<double>(a.k_dim) + 4) * magnitude + 8 * (2 * largest + added) + 8);
  }

  // Exactly, or where rows are only sampled (and there is no bias) by the norms.
  double largest_score(const Part& part, std::int64_t head, std::int64_t i) const {
    const oracle::Attention<double>& a = part.a;
    double largest = p_.sink_logits ? std::fabs(data_.sinks[at(head)]) : 0;
    if (!rows_.queries.empty() && !a.bias && !a.alibi_slopes) {
      const double most = std::fabs(a.scale) * norm(a.query(head, i), a.k_dim) * part.key_norm;
      return std::max(largest, most);
    }
    for (std::int64_t t = 0; t < a.keys; ++t) {
      if (!oracle::attends_to(a, i, t)) continue;
      const double s = oracle::attention_logit(a, head, i, t);
      if (std::isfinite(s)) largest = std::max(largest, std::fabs(s));
    }
    return largest;
  }

  void forward_row(const Part& part, const Sequence& s, std::int64_t head, std::int64_t i) {
    const oracle::Attention<double>& a = part.a;
    const auto row_data = oracle::attention_row(a, head, i);
    const std::int64_t r = row(s, head, i);
    const double largest = largest_score(part, head, i);
    double worst = 8 * u_;
    for (const std::int64_t t : row_data.seen) {
      worst = std::max(worst, score_error(a, head, i, t, largest));
    }
    const auto n = static_cast<double>(row_data.seen.size());
    const std::int64_t v_dim = p_.v_size();
    const double weight_error = std::expm1(2 * worst) + 2 * chain(n) * u_;
    Values output(at(v_dim)), magnitude(at(v_dim)), absolute(at(v_dim));
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
      forward_.output.value[at(r * v_dim + d)] = output[at(d)];
      forward_.output.bound[at(r * v_dim + d)] =
          with_rounding(p_.dtype, output[at(d)], weight_error * magnitude[at(d)] + extra + 1e-37);
    }
    const double lse = row_data.log_sum_exp;
    forward_.log_sum_exp.value[at(r)] = lse;
    forward_.log_sum_exp.bound[at(r)] =
        weight_error + 4 * u_ * (std::isfinite(lse) ? std::fabs(lse) : 0) + 8 * u_;
  }

  // What all pairs of one query share.
  struct QueryRow {
    std::int64_t head = 0;
    std::int64_t i = 0;
    std::int64_t row = 0;
    double lse = 0;
    double lse_error = 0;
    double delta = 0;
    double delta_error = 0;
    double largest = 0;
  };

  QueryRow query_row(const Part& part, const Sequence& s, std::int64_t head, std::int64_t i) const {
    const std::int64_t v_dim = p_.v_size();
    QueryRow q{.head = head, .i = i, .row = row(s, head, i)};
    q.lse = data_.log_sum_exp[at(q.row)];
    q.lse_error = 4 * u_ * std::fabs(q.lse) + 8 * u_;
    const double* const doutput = data_.doutput.data() + q.row * v_dim;
    const double* const output = data_.output.data() + q.row * v_dim;
    const double dims = static_cast<double>(v_dim) + 4;
    q.delta = p_.log_sum_exp_grad ? -data_.dlog_sum_exp[at(q.row)] : 0;
    q.delta_error = 2 * u_ * std::fabs(q.delta);
    for (std::int64_t d = 0; d < v_dim; ++d) {
      q.delta += doutput[d] * output[d];
      q.delta_error += (u_ * dims + unit_roundoff(p_.dtype)) * std::fabs(doutput[d] * output[d]) +
                       std::fabs(doutput[d]) * rounding_error(p_.dtype, 0);
    }
    q.largest = largest_score(part, head, i);
    return q;
  }

  void backward_row(const Part& part, const Sequence& s, std::int64_t head, std::int64_t i) {
    const oracle::Attention<double>& a = part.a;
    if (!(data_.log_sum_exp[at(row(s, head, i))] > -std::numeric_limits<double>::infinity())) {
      return;
    }
    const QueryRow q = query_row(part, s, head, i);
    Values terms_q(at(a.k_dim));
    double n = 0;
    for (std::int64_t t = 0; t < a.keys; ++t) {
      if (!oracle::attends_to(a, i, t)) continue;
      ++n;
      if (selects_query(i) || selects_key(t)) backward_pair(a, s, q, t, terms_q);
    }
    for (std::int64_t d = 0; d < a.k_dim; ++d) {
      backward_.dq.bound[at(q.row * a.k_dim + d)] += chain(n) * u_ * terms_q[at(d)];
    }
    if (p_.sink_logits) {
      const double sink = data_.sinks[at(head)];
      const double weight = std::exp(sink - q.lse);
      const double error = q.lse_error + 4 * u_ * std::fabs(sink);
      backward_.dsinks.value[at(head)] -= weight * q.delta;
      backward_.dsinks.bound[at(head)] +=
          weight * (std::expm1(error) * std::fabs(q.delta) + q.delta_error) +
          static_cast<double>(s.queries) * u_ * weight * std::fabs(q.delta);
    }
  }

  void backward_pair(const oracle::Attention<double>& a, const Sequence& s, const QueryRow& q,
                     std::int64_t t, Values& terms_q) {
    const std::int64_t v_dim = p_.v_size();
    const double weight = std::exp(oracle::attention_logit(a, q.head, q.i, t) - q.lse);
    if (weight == 0) return;
    const double dims = static_cast<double>(v_dim) + 4;
    const double rounding = unit_roundoff(p_.dtype);
    const double* const doutput = data_.doutput.data() + q.row * v_dim;
    double dp = 0;
    double dp_error = 0;
    for (std::int64_t d = 0; d < v_dim; ++d) {
      dp += doutput[d] * a.value(q.head, t)[d];
      dp_error += u_ * dims * std::fabs(doutput[d] * a.value(q.head, t)[d]);
    }
    const double error = score_error(a, q.head, q.i, t, q.largest);
    const double ds = weight * (dp - q.delta);
    const double p_error = std::expm1(error + q.lse_error) + (rounds_pairs_ ? rounding : 0);
    double ds_error = weight * (p_error * std::fabs(dp - q.delta) + dp_error + q.delta_error +
                                4 * u_ * (std::fabs(dp) + std::fabs(q.delta)));
    const double slope = oracle::attention_cap_slope(a, oracle::attention_dot(a, q.head, q.i, t));
    const double slope_error = a.soft_cap > 0 ? 16 * u_ + 2 * error / a.soft_cap : 0;
    const double step = rounds_pairs_ ? smallest_step() : 0;
    if (p_.bias != BiasKind::none) {
      const std::size_t b = at(bias_offset(s, q.head, q.i, t));
      backward_.dbias.value[b] += ds;
      backward_.dbias.bound[b] += ds_error;
      terms_bias_[b] += std::fabs(ds);
    }
    if (rounds_pairs_) ds_error += rounding * std::fabs(ds) + step;
    const double product = a.scale * slope * ds;
    const double product_error =
        std::fabs(a.scale) * (slope * ds_error + slope_error * std::fabs(ds));
    const std::int64_t in_key = key_row(s, q.head, t);
    for (std::int64_t d = 0; d < a.k_dim; ++d) {
      const std::size_t in_q = at(q.row * a.k_dim + d);
      const std::size_t in_k = at(in_key * a.k_dim + d);
      const double key = a.key(q.head, t)[d];
      const double query = a.query(q.head, q.i)[d];
      backward_.dq.value[in_q] += product * key;
      backward_.dq.bound[in_q] += product_error * std::fabs(key);
      terms_q[at(d)] += std::fabs(product * key);
      backward_.dk.value[in_k] += product * query;
      backward_.dk.bound[in_k] += product_error * std::fabs(query);
      terms_k_[in_k] += std::fabs(product * query);
    }
    for (std::int64_t d = 0; d < v_dim; ++d) {
      const std::size_t in_v = at(in_key * v_dim + d);
      backward_.dv.value[in_v] += weight * doutput[d];
      backward_.dv.bound[in_v] += (weight * p_error + step) * std::fabs(doutput[d]);
      terms_v_[in_v] += weight * std::fabs(doutput[d]);
    }
  }

  // Roundings to the dtype, and the sums over queries.
  void finish() {
    const auto n = static_cast<double>(p_.all_queries() * (p_.heads / p_.kv_heads));
    const auto shared = static_cast<double>(p_.batch * p_.heads);
    const auto add_terms = [&](Expected& e, const Values& terms, double factor) {
      for (std::size_t i = 0; i < terms.size(); ++i) e.bound[i] += factor * u_ * terms[i];
    };
    const auto round = [](Expected& e, DType dtype) {
      for (std::size_t i = 0; i < e.value.size(); ++i) {
        e.bound[i] = with_rounding(dtype, e.value[i], e.bound[i] + 1e-37);
      }
    };
    add_terms(backward_.dk, terms_k_, chain(n));
    add_terms(backward_.dv, terms_v_, chain(n));
    add_terms(backward_.dbias, terms_bias_, shared + 4);
    for (Expected* e : {&backward_.dq, &backward_.dk, &backward_.dv}) round(*e, p_.dtype);
    for (Expected* e : {&backward_.dbias, &backward_.dsinks}) round(*e, wide_dtype(p_.dtype));
  }

  // What a number near 0 loses when it is rounded to the dtype.
  double smallest_step() const { return rounding_error(p_.dtype, 0); }

  const AttentionProblem& p_;
  const AttentionValues& data_;
  const AttentionRows& rows_;
  double u_;
  bool rounds_pairs_;
  AttentionForwardReference forward_;
  AttentionBackwardReference backward_;
  Values terms_k_, terms_v_, terms_bias_;  // sums of magnitudes
};

}  // namespace

std::int64_t AttentionProblem::all_queries() const {
  if (!is_packed()) return queries;
  std::int64_t sum = 0;
  for (const auto& lengths : packed) sum += lengths.first;
  return sum;
}

std::int64_t AttentionProblem::all_keys() const {
  if (!is_packed()) return keys;
  std::int64_t sum = 0;
  for (const auto& lengths : packed) sum += lengths.second;
  return sum;
}

std::vector<std::int64_t> AttentionProblem::bias_shape() const {
  const bool per_batch = bias == BiasKind::full || bias == BiasKind::per_batch;
  const bool per_head = bias == BiasKind::full || bias == BiasKind::per_head;
  return {per_batch ? batch : 1, per_head ? heads : 1, queries, keys};
}

AttentionForwardReference attention_forward_reference(const AttentionProblem& problem,
                                                      const AttentionValues& values,
                                                      const AttentionRows& rows) {
  return Reference(problem, values, rows).forward();
}

AttentionBackwardReference attention_backward_reference(const AttentionProblem& problem,
                                                        const AttentionValues& values,
                                                        const AttentionRows& rows) {
  return Reference(problem, values, rows).backward();
}

}  // namespace touchstone::spec
