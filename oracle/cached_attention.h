// Attention of the last tokens of one sequence over all its keys and values, in float64: the
// specification the kernels are held to. Keys and values are plain arrays, decoded.
//
//   s[t]   = scale * sum_d q[d] k[t][d]            then cap * tanh(s[t] / cap) with a cap
//   output = sum_t exp(s[t]) v[t] / sum_t exp(s[t])          over the tokens t that are not masked
//
// Deliberately naive: the mask is evaluated for every token. Templated on the scalar, so that it
// runs on double and on dual numbers. The largest s is subtracted before exponentials are taken,
// which changes nothing in exact arithmetic.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "oracle/attention_softmax.h"

namespace touchstone::oracle {

template <class S>
struct CachedAttention {
  int64_t length = 0;
  int64_t queries = 0;
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t k_dim = 0;
  int64_t v_dim = 0;
  const S* query = nullptr;   // [queries, query_heads, k_dim]
  const S* keys = nullptr;    // [length, kv_heads, k_dim]
  const S* values = nullptr;  // [length, kv_heads, v_dim]
  double scale = 1;
  double soft_cap = 0;  // 0 = none
  bool causal = true;
  int64_t window = 0;                   // 0 = none
  int64_t sinks = 0;                    // tokens a window never hides
  const int64_t* positions = nullptr;   // [queries]; absent: the last of the length
  const unsigned char* tree = nullptr;  // [queries, length - tree_start]: 1 = attended to
  int64_t tree_start = 0;               // with a tree: where it begins
  const S* sink_logits = nullptr;       // [query_heads] or absent
  S* output = nullptr;                  // [queries, query_heads, v_dim]
  S* log_sum_exp = nullptr;             // [queries, query_heads], optional
  S* magnitude = nullptr;  // [queries, query_heads, v_dim]: the output of |v|, optional
};

template <class S>
bool attends_to(const CachedAttention<S>& a, int64_t query, int64_t token) {
  if (a.tree && token >= a.tree_start) {
    return a.tree[query * (a.length - a.tree_start) + token - a.tree_start] != 0;
  }
  const int64_t position = a.positions ? a.positions[query] : a.length - a.queries + query;
  if (a.causal && token > position) return false;
  return a.window == 0 || token > position - a.window || token < a.sinks;
}

template <class S>
S attention_score(const CachedAttention<S>& a, int64_t query, int64_t head, int64_t token) {
  using std::tanh;
  const int64_t kv_head = head / (a.query_heads / a.kv_heads);
  const S* q = a.query + (query * a.query_heads + head) * a.k_dim;
  const S* k = a.keys + (token * a.kv_heads + kv_head) * a.k_dim;
  S dot = 0.0;
  for (int64_t d = 0; d < a.k_dim; ++d) dot += q[d] * k[d];
  const S s = dot * a.scale;
  return a.soft_cap > 0 ? tanh(s / a.soft_cap) * a.soft_cap : s;
}

// One query token, one head.
template <class S>
void attention_row(const CachedAttention<S>& a, int64_t query, int64_t head) {
  using std::fabs;
  std::vector<int64_t> seen;
  std::vector<S> scores;
  for (int64_t token = 0; token < a.length; ++token) {
    if (!attends_to(a, query, token)) continue;
    seen.push_back(token);
    scores.push_back(attention_score(a, query, head, token));
  }
  const auto softmax = attention_softmax(scores, a.sink_logits ? a.sink_logits + head : nullptr);
  const int64_t at = query * a.query_heads + head;
  const int64_t kv_head = head / (a.query_heads / a.kv_heads);
  const bool empty = softmax.largest == -std::numeric_limits<double>::infinity();
  for (int64_t d = 0; d < a.v_dim; ++d) {
    S output = 0.0;
    S magnitude = 0.0;
    for (size_t i = 0; i < seen.size() && !empty; ++i) {
      const S v = a.values[(seen[i] * a.kv_heads + kv_head) * a.v_dim + d];
      output += softmax.weights[i] * v;
      magnitude += softmax.weights[i] * fabs(v);
    }
    a.output[at * a.v_dim + d] = output;
    if (a.magnitude) a.magnitude[at * a.v_dim + d] = magnitude;
  }
  if (a.log_sum_exp) a.log_sum_exp[at] = softmax.log_sum_exp;
}

template <class S>
void cached_attention(const CachedAttention<S>& a) {
  for (int64_t query = 0; query < a.queries; ++query) {
    for (int64_t head = 0; head < a.query_heads; ++head) attention_row(a, query, head);
  }
}

}  // namespace touchstone::oracle
