// Attention over dense keys and values in plain loops, f64 arithmetic, any dtype. One query at a
// time attends to one tile of keys at a time; the backward has a sweep over queries for dq and one
// over keys for dk and dv, so that every number is written by one thread and summed in one order.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/context_access.h"
#include "core/index.h"
#include "core/thread_pool.h"
#include "ops/attention_dense/dense_problem.h"
#include "touchstone/core/checked.h"

namespace touchstone::dense_attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kTile = 256;  // keys, unless ScopedKeyTile overrides it
constexpr std::int64_t kTask = 16;   // queries or keys of a task

// f32, or f64 when the dtype is: bias, slopes, sinks, dbias.
double number(const DenseProblem& p, const void* data, std::int64_t index) {
  if (p.dtype == DType::f64) return static_cast<const double*>(data)[index];
  return static_cast<double>(static_cast<const float*>(data)[index]);
}
void set_number(const DenseProblem& p, void* data, std::int64_t index, double value) {
  if (p.dtype == DType::f64) {
    static_cast<double*>(data)[index] = value;
  } else {
    static_cast<float*>(data)[index] = static_cast<float>(value);
  }
}

// log_sum_exp or its gradient.
double statistic(const DenseProblem& p, const ConstHeads& statistics, std::int64_t sequence,
                 std::int64_t head, std::int64_t token) {
  if (p.dtype == DType::f64) return *token_of<double>(statistics, sequence, head, token);
  return static_cast<double>(*token_of<float>(statistics, sequence, head, token));
}

template <class T>
std::vector<double> widened(const T* from, std::int64_t dim) {
  std::vector<double> result(at(dim));
  std::transform(from, from + dim, result.begin(), [](T x) { return convert<double>(x); });
  return result;
}

// In four running sums.
template <class T>
double dot(const std::vector<double>& a, const T* b) {
  double sums[4] = {};
  std::size_t i = 0;
  for (; i + 4 <= a.size(); i += 4) {
    for (std::size_t k = 0; k < 4; ++k) sums[k] += a[i + k] * convert<double>(b[i + k]);
  }
  for (; i < a.size(); ++i) sums[0] += a[i] * convert<double>(b[i]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// One query of one head, and its logits.
template <class T>
struct Query {
  const DenseProblem& p;
  SequenceSpan span;
  std::int64_t sequence;
  std::int64_t head;
  std::int64_t index;  // within its sequence
  VisibleRange visible;
  std::vector<double> q;

  Query(const DenseProblem& problem, std::int64_t b, std::int64_t h, std::int64_t i)
      : p(problem), span(span_of(problem, b)), sequence(b), head(h), index(i) {
    visible = visible_range(p, span, i);
    q = widened(token_of<T>(p.q, b, h, span.first_query + i), p.k_dim);
  }

  const T* key(std::int64_t t) const {
    return token_of<T>(p.k, sequence, head / p.heads_per_kv, span.first_key + t);
  }
  const T* value(std::int64_t t) const {
    return token_of<T>(p.v, sequence, head / p.heads_per_kv, span.first_key + t);
  }
  std::int64_t token() const { return span.first_query + index; }
  // What the weight of key t is multiplied by.
  double kept(std::int64_t t) const {
    if (p.dropout.threshold == 0) return 1;
    return static_cast<double>(p.dropout.factor(head, query_token(p, span, sequence, index), t));
  }

  // The logit of key t, and by how much it changes with scale * dot(q, k).
  double logit(std::int64_t t, double* slope = nullptr) const {
    double s = p.scale * dot(q, key(t));
    double change = 1;
    if (p.soft_cap > 0) {
      const double tanh = std::tanh(s / p.soft_cap);
      s = p.soft_cap * tanh;
      change = 1 - tanh * tanh;
    }
    if (p.alibi_slopes != nullptr) {
      const std::int64_t position = index + span.keys - span.queries;
      s -= number(p, p.alibi_slopes, head) * static_cast<double>(std::abs(position - t));
    }
    if (p.bias != nullptr) {
      s += number(p, p.bias,
                  sequence * p.bias_batch_stride + head * p.bias_head_stride +
                      index * p.bias_query_stride + t * p.bias_key_stride);
    }
    if (slope != nullptr) *slope = change;
    return s;
  }

  // Calls body(first, end) for the parts of tiles that the query attends to.
  template <class Body>
  void for_each_tile(Body&& body) const {
    const std::int64_t tile = p.tile > 0 ? p.tile : kTile;
    const auto range = [&](std::int64_t begin, std::int64_t end) {
      while (begin < end) {
        const std::int64_t next = begin + std::min(end - begin, tile - begin % tile);
        body(begin, next);
        begin = next;
      }
    };
    range(0, visible.sinks);
    range(visible.begin, visible.end);
  }
};

// ---- forward ----------------------------------------------------------------------------------

template <class T>
void forward_query(const ForwardProblem& p, const Query<T>& query) {
  std::vector<double> weights;
  std::vector<double> output(at(p.v_dim));
  double largest = -kInfinity;
  double sum = 0;
  // What was summed relative to the largest logit so far becomes relative to a larger one.
  const auto rise_to = [&](double logit) {
    if (logit <= largest) return;
    const double factor = std::exp(largest - logit);  // 0 the first time
    sum *= factor;
    for (double& x : output) x *= factor;
    largest = logit;
  };
  query.for_each_tile([&](std::int64_t begin, std::int64_t end) {
    weights.clear();
    double most = -kInfinity;
    for (std::int64_t t = begin; t < end; ++t) {
      const double s = query.logit(t);
      most = s > most || std::isnan(s) ? s : most;
      weights.push_back(s);
    }
    if (most == -kInfinity) return;
    rise_to(most);
    for (std::int64_t t = begin; t < end; ++t) {
      const double weight = std::exp(weights[at(t - begin)] - largest);
      const T* const v = query.value(t);
      sum += weight;
      const double kept = weight * query.kept(t);
      for (std::size_t d = 0; d < output.size(); ++d) output[d] += kept * convert<double>(v[d]);
    }
  });
  if (p.sink_logits != nullptr) {
    const double sink = number(p, p.sink_logits, query.head);
    rise_to(sink);
    if (largest != -kInfinity) sum += std::exp(sink - largest);
  }
  T* const to =
      token_of<T>(p.output, query.sequence, query.head, query.span.first_query + query.index);
  const bool nothing = largest == -kInfinity;
  for (std::size_t d = 0; d < output.size(); ++d) {
    to[d] = convert<T>(nothing ? 0.0 : output[d] / sum);
  }
  if (p.log_sum_exp.data == nullptr) return;
  const double log_sum_exp = nothing ? -kInfinity : largest + std::log(sum);
  if (p.dtype == DType::f64) {
    *token_of<double>(p.log_sum_exp, query.sequence, query.head, query.token()) = log_sum_exp;
  } else {
    *token_of<float>(p.log_sum_exp, query.sequence, query.head, query.token()) =
        static_cast<float>(log_sum_exp);
  }
}

// Calls body(sequence, first token, end) in tasks of kTask tokens: `length` is the number of
// tokens of a sequence.
template <class Lengths, class Body>
void for_each_block(Context& context, const DenseProblem& p, std::int64_t heads, Lengths&& length,
                    Body&& body) {
  struct Block {
    std::int64_t sequence;
    std::int64_t first;
    std::int64_t end;
  };
  std::vector<Block> blocks;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t tokens = length(span_of(p, b));
    for (std::int64_t first = 0; first < tokens; first += kTask) {
      blocks.push_back({b, first, std::min(tokens, first + kTask)});
    }
  }
  detail::ContextAccess::pool(context).run(std::ssize(blocks) * heads, [&](std::int64_t task) {
    const Block& block = blocks[at(task / heads)];
    body(block.sequence, task % heads, block.first, block.end);
  });
}

template <class T>
void forward(Context& context, const ForwardProblem& p) {
  for_each_block(
      context, p, p.query_heads, [](const SequenceSpan& span) { return span.queries; },
      [&](std::int64_t b, std::int64_t head, std::int64_t first, std::int64_t end) {
        for (std::int64_t i = first; i < end; ++i) forward_query<T>(p, Query<T>(p, b, head, i));
      });
}

// ---- backward ---------------------------------------------------------------------------------

// What the backward needs of a query beside its logits.
template <class T>
struct BackwardQuery : Query<T> {
  double log_sum_exp;
  double delta;
  std::vector<double> doutput;

  BackwardQuery(const BackwardProblem& backward, std::int64_t b, std::int64_t h, std::int64_t i)
      : Query<T>(backward, b, h, i) {
    const std::int64_t token = this->span.first_query + i;
    log_sum_exp = statistic(backward, backward.log_sum_exp, b, h, token);
    doutput = widened(token_of<T>(backward.doutput, b, h, token), backward.v_dim);
    delta = dot(doutput, token_of<T>(backward.output, b, h, token));
    if (backward.dlog_sum_exp.data != nullptr) {
      delta -= statistic(backward, backward.dlog_sum_exp, b, h, token);
    }
  }

  bool is_fully_masked() const { return log_sum_exp == -kInfinity; }

  // P and dS of one key, and the slope of its logit.
  struct Pair {
    double weight;  // as it was multiplied with the value
    double dlogit;
    double slope;
  };
  Pair pair(std::int64_t t) const {
    Pair result{};
    result.weight = std::exp(this->logit(t, &result.slope) - log_sum_exp);
    // A logit of -inf has no weight, whatever its slope.
    if (result.weight == 0) return {};
    const double kept = this->kept(t);
    const double dweight = kept == 0 ? 0 : kept * dot(doutput, this->value(t));
    result.dlogit = result.weight * (dweight - delta);
    result.weight *= kept;
    return result;
  }
};

// dq of one query; its dS are added to dbias.
template <class T>
void backward_query(const BackwardProblem& p, std::int64_t b, std::int64_t head, std::int64_t i,
                    double* dbias_row) {
  const BackwardQuery<T> query(p, b, head, i);
  std::vector<double> dq(at(p.k_dim));
  if (!query.is_fully_masked()) {
    query.for_each_tile([&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const auto pair = query.pair(t);
        const T* const k = query.key(t);
        const double factor = p.scale * pair.slope * pair.dlogit;
        if (pair.dlogit == 0) continue;
        for (std::size_t d = 0; d < dq.size(); ++d) dq[d] += factor * convert<double>(k[d]);
        if (dbias_row != nullptr) dbias_row[t] += pair.dlogit;
      }
    });
  }
  T* const to = token_of<T>(p.dq, b, head, query.span.first_query + i);
  std::transform(dq.begin(), dq.end(), to, [](double x) { return convert<T>(x); });
}

// One query, in all sequences and heads that share its row of dbias.
template <class T>
void backward_shared_query(const BackwardProblem& p, std::int64_t unit, std::int64_t i) {
  const DbiasUnit heads = dbias_unit(p, unit);
  std::vector<double> dbias(p.dbias == nullptr ? 0 : at(p.keys));
  for (std::int64_t b = heads.first_sequence; b < heads.first_sequence + heads.sequences; ++b) {
    if (i >= span_of(p, b).queries) continue;
    for (std::int64_t h = heads.first_head; h < heads.first_head + heads.heads; ++h) {
      backward_query<T>(p, b, h, i, dbias.empty() ? nullptr : dbias.data());
    }
  }
  const std::int64_t row = (unit * p.queries + i) * p.keys;
  for (std::size_t t = 0; t < dbias.size(); ++t) {
    set_number(p, p.dbias, row + static_cast<std::int64_t>(t), dbias[t]);
  }
}

// dk and dv of the keys [first, end) of one KV head: the query heads of its group in order, and the
// queries of each in order.
template <class T>
void backward_keys(const BackwardProblem& p, std::int64_t b, std::int64_t kv_head,
                   std::int64_t first, std::int64_t end) {
  const SequenceSpan span = span_of(p, b);
  std::vector<double> dk(at((end - first) * p.k_dim));
  std::vector<double> dv(at((end - first) * p.v_dim));
  for (std::int64_t head = kv_head * p.heads_per_kv; head < (kv_head + 1) * p.heads_per_kv;
       ++head) {
    for (std::int64_t i = 0; i < span.queries; ++i) {
      const VisibleRange visible = visible_range(p, span, i);
      if (visible.sinks <= first && (visible.begin >= end || visible.end <= first)) continue;
      const BackwardQuery<T> query(p, b, head, i);
      if (query.is_fully_masked()) continue;
      for (std::int64_t t = first; t < end; ++t) {
        if (!attends(visible, t)) continue;
        const auto pair = query.pair(t);
        const double factor = p.scale * pair.slope * pair.dlogit;
        if (pair.weight == 0 && pair.dlogit == 0) continue;
        double* const dk_t = dk.data() + (t - first) * p.k_dim;
        double* const dv_t = dv.data() + (t - first) * p.v_dim;
        for (std::size_t d = 0; d < query.q.size(); ++d) dk_t[d] += factor * query.q[d];
        for (std::size_t d = 0; d < query.doutput.size(); ++d) {
          dv_t[d] += pair.weight * query.doutput[d];
        }
      }
    }
  }
  for (std::int64_t t = first; t < end; ++t) {
    T* const to_k = token_of<T>(p.dk, b, kv_head, span.first_key + t);
    T* const to_v = token_of<T>(p.dv, b, kv_head, span.first_key + t);
    for (std::int64_t d = 0; d < p.k_dim; ++d)
      to_k[d] = convert<T>(dk[at((t - first) * p.k_dim + d)]);
    for (std::int64_t d = 0; d < p.v_dim; ++d)
      to_v[d] = convert<T>(dv[at((t - first) * p.v_dim + d)]);
  }
}

template <class T>
void backward_sinks(const BackwardProblem& p) {
  for (std::int64_t head = 0; head < p.query_heads; ++head) {
    const double sink = number(p, p.sink_logits, head);
    double sum = 0;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (std::int64_t i = 0; i < span_of(p, b).queries; ++i) {
        const BackwardQuery<T> query(p, b, head, i);
        if (!query.is_fully_masked()) sum -= std::exp(sink - query.log_sum_exp) * query.delta;
      }
    }
    set_number(p, p.dsink_logits, head, sum);
  }
}

template <class T>
void backward(Context& context, const BackwardProblem& p) {
  std::int64_t longest = p.dbias != nullptr ? p.queries : 0;
  for (std::int64_t b = 0; b < p.batch; ++b) longest = std::max(longest, span_of(p, b).queries);
  const std::int64_t blocks = ceil_div(longest, kTask);
  detail::ContextAccess::pool(context).run(dbias_units(p) * blocks, [&](std::int64_t task) {
    const std::int64_t first = task % blocks * kTask;
    for (std::int64_t i = first; i < std::min(longest, first + kTask); ++i) {
      backward_shared_query<T>(p, task / blocks, i);
    }
  });
  for_each_block(
      context, p, p.kv_heads, [](const SequenceSpan& span) { return span.keys; },
      [&](std::int64_t b, std::int64_t head, std::int64_t first, std::int64_t end) {
        backward_keys<T>(p, b, head, first, end);
      });
  if (p.dsink_logits != nullptr) backward_sinks<T>(p);
}

}  // namespace

void attention_plain(Context& context, const ForwardProblem& p) {
  visit_float_dtype(p.dtype, [&]<class T>() { forward<T>(context, p); });
}

void attention_plain_query(const ForwardProblem& p, std::int64_t sequence, std::int64_t head,
                           std::int64_t query) {
  visit_float_dtype(p.dtype,
                    [&]<class T>() { forward_query<T>(p, Query<T>(p, sequence, head, query)); });
}

void attention_backward_plain(Context& context, const BackwardProblem& p) {
  visit_float_dtype(p.dtype, [&]<class T>() { backward<T>(context, p); });
}

}  // namespace touchstone::dense_attention
