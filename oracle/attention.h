// Attention of one sequence over its own dense keys and values, in float64: the specification the
// kernels are held to.
//
//   s[i][t] = scale * sum_d q[i][d] k[t][d]           then cap * tanh(s / cap) with a cap
//             - slope * |p - t|                       with ALiBi
//             + bias[i][t]                            with a bias
//   P[i][t] = exp(s[i][t]) / sum_t exp(s[i][t])       over the keys t that are not masked
//   output[i] = sum_t P[i][t] v[t]
//
// Deliberately naive: the mask is evaluated for every key, and a row of P is kept whole. The
// forward is templated on the scalar, so that it runs on double and on dual numbers. The largest s
// is subtracted before exponentials are taken, which changes nothing in exact arithmetic.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "oracle/attention_softmax.h"

namespace touchstone::oracle {

// Query i has position p = i + keys - queries. Arrays are contiguous.
template <class S>
struct Attention {
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t k_dim = 0;
  int64_t v_dim = 0;
  const S* q = nullptr;  // [query_heads, queries, k_dim]
  const S* k = nullptr;  // [kv_heads, keys, k_dim]
  const S* v = nullptr;  // [kv_heads, keys, v_dim]
  double scale = 1;
  double soft_cap = 0;  // 0 = none
  bool causal = false;
  int64_t window = 0;                    // 0 = none
  int64_t sinks = 0;                     // tokens a window never hides
  const S* bias = nullptr;               // [query_heads, queries, keys] or absent
  const double* alibi_slopes = nullptr;  // [query_heads] or absent
  const S* sink_logits = nullptr;        // [query_heads] or absent
  S* output = nullptr;                   // [query_heads, queries, v_dim]
  S* log_sum_exp = nullptr;              // [query_heads, queries], optional

  int64_t kv_head(int64_t head) const { return head / (query_heads / kv_heads); }
  const S* query(int64_t head, int64_t i) const { return q + (head * queries + i) * k_dim; }
  const S* key(int64_t head, int64_t t) const { return k + (kv_head(head) * keys + t) * k_dim; }
  const S* value(int64_t head, int64_t t) const { return v + (kv_head(head) * keys + t) * v_dim; }
};

template <class S>
bool attends_to(const Attention<S>& a, int64_t query, int64_t key) {
  const int64_t position = query + a.keys - a.queries;
  if (a.causal && key > position) return false;
  if (a.window == 0) return true;
  if (!a.causal && key - position >= a.window) return false;
  return position - key < a.window || key < a.sinks;
}

// scale * dot(q, k), before soft cap, ALiBi and bias.
template <class S>
S attention_dot(const Attention<S>& a, int64_t head, int64_t query, int64_t key) {
  const S* q = a.query(head, query);
  const S* k = a.key(head, key);
  S dot = 0.0;
  for (int64_t d = 0; d < a.k_dim; ++d) dot += q[d] * k[d];
  return dot * a.scale;
}

template <class S>
S attention_logit(const Attention<S>& a, int64_t head, int64_t query, int64_t key) {
  using std::tanh;
  S s = attention_dot(a, head, query, key);
  if (a.soft_cap > 0) s = tanh(s / a.soft_cap) * a.soft_cap;
  const int64_t position = query + a.keys - a.queries;
  if (a.alibi_slopes) {
    s -= a.alibi_slopes[head] * std::fabs(static_cast<double>(position - key));
  }
  if (a.bias) s += a.bias[(head * a.queries + query) * a.keys + key];
  return s;
}

// One query of one head: the keys it attends to, the s and the weight of each, log(sum of exp(s)).
template <class S>
struct AttentionRow {
  std::vector<int64_t> seen;
  std::vector<S> scores;
  std::vector<S> weights;
  S log_sum_exp;
};

template <class S>
AttentionRow<S> attention_row(const Attention<S>& a, int64_t head, int64_t query) {
  AttentionRow<S> row;
  for (int64_t t = 0; t < a.keys; ++t) {
    if (!attends_to(a, query, t)) continue;
    row.seen.push_back(t);
    row.scores.push_back(attention_logit(a, head, query, t));
  }
  auto softmax = attention_softmax(row.scores, a.sink_logits ? a.sink_logits + head : nullptr);
  row.weights = std::move(softmax.weights);
  row.log_sum_exp = softmax.log_sum_exp;
  return row;
}

template <class S>
void attention(const Attention<S>& a) {
  for (int64_t head = 0; head < a.query_heads; ++head) {
    for (int64_t i = 0; i < a.queries; ++i) {
      const AttentionRow<S> row = attention_row(a, head, i);
      const int64_t at = head * a.queries + i;
      S* output = a.output + at * a.v_dim;
      for (int64_t d = 0; d < a.v_dim; ++d) output[d] = 0.0;
      for (size_t j = 0; j < row.seen.size(); ++j) {
        const S* v = a.value(head, row.seen[j]);
        for (int64_t d = 0; d < a.v_dim; ++d) output[d] += row.weights[j] * v[d];
      }
      if (a.log_sum_exp) a.log_sum_exp[at] = row.log_sum_exp;
    }
  }
}

// The gradients, from the inputs alone: weights, outputs and their sums are computed again.
struct AttentionBackward {
  Attention<double> forward = {};        // its outputs are not touched
  const double* doutput = nullptr;       // [query_heads, queries, v_dim]
  const double* dlog_sum_exp = nullptr;  // [query_heads, queries] or absent
  double* dq = nullptr;                  // as q
  double* dk = nullptr;                  // as k
  double* dv = nullptr;                  // as v
  double* dbias = nullptr;               // [query_heads, queries, keys], optional
  double* dsink_logits = nullptr;        // [query_heads], optional
};

// The slope of the soft cap at s = scale * dot(q, k): d cap*tanh(s/cap) / ds.
inline double attention_cap_slope(const Attention<double>& a, double s) {
  if (a.soft_cap <= 0) return 1;
  const double tanh = std::tanh(s / a.soft_cap);
  return 1 - tanh * tanh;
}

// With P the weights and dP[t] = dot(doutput, v[t]), the derivative of the softmax gives
// dS = P * (dP - delta), delta = sum P dP. The sum is taken over the row of P itself, not over
// doutput * output.
struct AttentionGradientRow {
  std::vector<double> dp;
  double delta = 0;
};

inline AttentionGradientRow attention_gradient_row(const AttentionBackward& b,
                                                   const AttentionRow<double>& row, int64_t head,
                                                   int64_t i) {
  const Attention<double>& a = b.forward;
  const int64_t at = head * a.queries + i;
  const double* doutput = b.doutput + at * a.v_dim;
  AttentionGradientRow gradient{std::vector<double>(row.seen.size()),
                                b.dlog_sum_exp ? -b.dlog_sum_exp[at] : 0.0};
  for (size_t j = 0; j < row.seen.size(); ++j) {
    const double* v = a.value(head, row.seen[j]);
    for (int64_t d = 0; d < a.v_dim; ++d) gradient.dp[j] += doutput[d] * v[d];
    gradient.delta += row.weights[j] * gradient.dp[j];
  }
  return gradient;
}

inline void attention_backward_row(const AttentionBackward& b, int64_t head, int64_t i) {
  const Attention<double>& a = b.forward;
  const AttentionRow<double> row = attention_row(a, head, i);
  if (row.log_sum_exp == -std::numeric_limits<double>::infinity()) return;
  const int64_t at = head * a.queries + i;
  const double* doutput = b.doutput + at * a.v_dim;
  const auto [dp, delta] = attention_gradient_row(b, row, head, i);
  for (size_t j = 0; j < row.seen.size(); ++j) {
    const int64_t t = row.seen[j];
    const double ds = row.weights[j] * (dp[j] - delta);
    const double factor = attention_cap_slope(a, attention_dot(a, head, i, t)) * a.scale * ds;
    double* dv = b.dv + (a.kv_head(head) * a.keys + t) * a.v_dim;
    double* dk = b.dk + (a.kv_head(head) * a.keys + t) * a.k_dim;
    double* dq = b.dq + at * a.k_dim;
    for (int64_t d = 0; d < a.v_dim; ++d) dv[d] += row.weights[j] * doutput[d];
    for (int64_t d = 0; d < a.k_dim; ++d) dk[d] += factor * a.query(head, i)[d];
    for (int64_t d = 0; d < a.k_dim; ++d) dq[d] += factor * a.key(head, t)[d];
    if (b.dbias) b.dbias[at * a.keys + t] = ds;
  }
  if (b.dsink_logits) {
    b.dsink_logits[head] -= std::exp(a.sink_logits[head] - row.log_sum_exp) * delta;
  }
}

inline void attention_backward(const AttentionBackward& b) {
  const Attention<double>& a = b.forward;
  const auto clear = [](double* values, int64_t count) {
    for (int64_t i = 0; values && i < count; ++i) values[i] = 0;
  };
  clear(b.dq, a.query_heads * a.queries * a.k_dim);
  clear(b.dk, a.kv_heads * a.keys * a.k_dim);
  clear(b.dv, a.kv_heads * a.keys * a.v_dim);
  clear(b.dbias, a.query_heads * a.queries * a.keys);
  clear(b.dsink_logits, a.query_heads);
  for (int64_t head = 0; head < a.query_heads; ++head) {
    for (int64_t i = 0; i < a.queries; ++i) attention_backward_row(b, head, i);
  }
}

}  // namespace touchstone::oracle
