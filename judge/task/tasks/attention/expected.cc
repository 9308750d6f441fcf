// Attention in float64, forward and backward, and the error that f32 arithmetic may make. The terms
// are derived in docs/design/judge_tolerances.md.
#include <cmath>
#include <limits>

#include "judge/task/tasks/attention/attention.h"
#include "oracle/attention.h"

namespace touchstone::judge::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> lengths(const std::vector<double>& values, int64_t dim) {
  std::vector<double> result(values.size() / static_cast<size_t>(dim));
  for (size_t i = 0; i < values.size(); ++i) {
    result[i / static_cast<size_t>(dim)] += values[i] * values[i];
  }
  for (double& length : result) length = std::sqrt(length);
  return result;
}

// A tensor in float64, with the length of each of its vectors.
struct Vectors {
  Vectors(const std::vector<float>& from, int64_t dim)
      : values(from.begin(), from.end()), length(lengths(values, dim)) {}

  std::vector<double> values;
  std::vector<double> length;
};

struct Operands {
  explicit Operands(const Problem& p)
      : shape(p.shape),
        q(p.q, p.shape.dim),
        k(p.k, p.shape.dim),
        v(p.v, p.shape.dim),
        dout(p.dout, p.shape.dim) {}

  // One item of the batch, as the oracle takes it.
  oracle::AttentionBackward item(int64_t b) const {
    const Shape& s = shape;
    const int64_t queries = b * s.query_heads * s.queries * s.dim;
    const int64_t keys = b * s.kv_heads * s.keys * s.dim;
    oracle::AttentionBackward result;
    result.forward = {.queries = s.queries,
                      .keys = s.keys,
                      .query_heads = s.query_heads,
                      .kv_heads = s.kv_heads,
                      .k_dim = s.dim,
                      .v_dim = s.dim,
                      .q = q.values.data() + queries,
                      .k = k.values.data() + keys,
                      .v = v.values.data() + keys,
                      .scale = s.scale,
                      .causal = s.causal};
    if (!dout.values.empty()) result.doutput = dout.values.data() + queries;
    return result;
  }

  Shape shape;
  Vectors q, k, v, dout;
};

// One row of queries: where its numbers lie, and its softmax with the units of rounding in each
// score.
struct Row {
  size_t row = 0;        // of lse
  size_t first_key = 0;  // vector of the keys and values of its head
  oracle::AttentionRow<double> softmax;
  std::vector<double> units;
  double largest = -kInfinity;
  double mean_units = 0;  // under the weights, as is the next
  double mean_score = 0;  // of the magnitudes

  void compute(const Operands& o, const Tolerance& t) {
    const Shape& s = o.shape;
    const double growth = growth_of(t.growth, s.dim) * std::fabs(s.scale) * o.q.length[row];
    largest = -kInfinity;
    for (const double score : softmax.scores) {
      if (!(score <= largest)) largest = score;  // a NaN stays
    }
    units.resize(softmax.scores.size());
    mean_units = 0;
    mean_score = 0;
    for (size_t i = 0; i < units.size(); ++i) {
      const double score = softmax.scores[i];
      units[i] =
          growth * o.k.length[first_key + i] + std::fabs(score) + 2 * std::fabs(score - largest);
      mean_units += softmax.weights[i] * units[i];
      mean_score += softmax.weights[i] * std::fabs(score);
    }
  }

  // A score that is rounded once moves its weight by that much, and the sum of all weights too:
  // nothing that keeps scores in float does better.
  double roundings(size_t i) const { return 1 + std::fabs(softmax.scores[i]) + mean_score; }
};

// Calls visit(row, gradient) for all rows, those of one key-value head one after the other. The
// gradient is there if it is asked for.
template <class Visit>
void for_rows(const Operands& o, const Tolerance& t, bool backward, const Visit& visit) {
  const Shape& s = o.shape;
  Row row;
  for (int64_t b = 0; b < s.batch; ++b) {
    const oracle::AttentionBackward item = o.item(b);
    for (int64_t head = 0; head < s.query_heads; ++head) {
      row.first_key = static_cast<size_t>((b * s.kv_heads + head / s.group()) * s.keys);
      for (int64_t i = 0; i < s.queries; ++i) {
        row.row = static_cast<size_t>((b * s.query_heads + head) * s.queries + i);
        row.softmax = oracle::attention_row(item.forward, head, i);
        row.compute(o, t);
        visit(row, backward ? oracle::attention_gradient_row(item, row.softmax, head, i)
                            : oracle::AttentionGradientRow{});
      }
    }
  }
}

// Adds one term of a sum to an element. The error is counted in roundings of `scale`.
void add(Expected& to, size_t element, double value, double error, double scale) {
  to.value[element] += value;
  to.scale[element] += scale;
  to.bound[element] += error;
}

// The errors of what one row of the backward needs beyond the softmax, in units of rounding.
struct GradientErrors {
  std::vector<double> ds, p;
  double lost_delta = 0;  // of delta, where weights below the normal numbers were flushed to zero

  void compute(const Operands& o, const Row& row, const oracle::AttentionGradientRow& g,
               const Tolerance& t) {
    const std::vector<double>& weight = row.softmax.weights;
    const size_t n = weight.size();
    const double length = o.dout.length[row.row];
    const double over_dim = growth_of(t.growth, o.shape.dim);
    const double over_keys = growth_of(t.growth, static_cast<int64_t>(n));
    ds.resize(n);
    p.resize(n);
    double delta_error = 0, magnitude = 0;
    lost_delta = 0;
    for (size_t i = 0; i < n; ++i) {
      const double product = length * o.v.length[row.first_key + i];
      // exp(s - lse): the rounding of s, of lse as it was given, and of a softmax made again.
      p[i] = 6 + over_keys + row.units[i] + row.mean_units + std::fabs(row.softmax.log_sum_exp);
      magnitude += weight[i] * product;
      if (weight[i] < kSmallestNormal) lost_delta += weight[i] * std::fabs(g.dp[i]);
      delta_error += weight[i] * (p[i] * std::fabs(g.dp[i]) + over_dim * product);
    }
    // Either the sum of dO * O, whose O was rounded once, or that of P * dP.
    delta_error += (over_keys + over_dim) * magnitude;
    for (size_t i = 0; i < n; ++i) {
      const double dp_error = over_dim * length * o.v.length[row.first_key + i];
      ds[i] = weight[i] * ((p[i] + 3) * std::fabs(g.dp[i] - g.delta) + dp_error + delta_error +
                           std::fabs(g.dp[i]) + std::fabs(g.delta));
    }
  }
};

}  // namespace

double Shape::pairs() const {
  double sum = 0;
  for (int64_t i = 0; i < queries; ++i) sum += static_cast<double>(seen(i));
  return sum * static_cast<double>(batch * query_heads);
}

ForwardAnswer expected_forward(const Problem& p, const Tolerance& t) {
  const Operands o(p);
  const auto dim = static_cast<size_t>(p.shape.dim);
  const double unit = t.factor * kUnit;
  ForwardAnswer answer{Expected(p.shape.query_elements()), Expected(p.shape.rows())};
  for_rows(o, t, false, [&](const Row& row, const oracle::AttentionGradientRow& /*none*/) {
    const std::vector<double>& weight = row.softmax.weights;
    const double lse = row.softmax.log_sum_exp;
    const double errors =
        6 + growth_of(t.growth, static_cast<int64_t>(weight.size())) + row.mean_units;
    answer.lse.value[row.row] = lse;
    answer.lse.scale[row.row] = 1 + std::fabs(lse) + row.mean_score;
    answer.lse.bound[row.row] = unit * (errors + std::fabs(lse) + 2 * std::fabs(row.largest));
    for (size_t i = 0; i < weight.size(); ++i) {
      const double error = unit * (errors + row.units[i]);
      const double* value = o.v.values.data() + (row.first_key + i) * dim;
      for (size_t d = 0; d < dim; ++d) {
        const double term = weight[i] * value[d];
        // A weight below the normal numbers may have been flushed to zero.
        add(answer.out, row.row * dim + d, term,
            error * std::fabs(term) + kSmallestNormal * (1 + std::fabs(value[d])),
            std::fabs(term) * row.roundings(i));
      }
    }
  });
  return answer;
}

BackwardAnswer expected_backward(const Problem& p, const Tolerance& t) {
  const Operands o(p);
  const Shape& s = p.shape;
  const auto dim = static_cast<size_t>(s.dim);
  BackwardAnswer answer{Expected(s.query_elements()), Expected(s.key_elements()),
                        Expected(s.key_elements())};
  const double unit = t.factor * kUnit;
  const double scale = std::fabs(s.scale);
  const double over_queries = 3 + growth_of(t.growth, s.queries * s.group());
  GradientErrors error;
  for_rows(o, t, true, [&](const Row& row, const oracle::AttentionGradientRow& g) {
    error.compute(o, row, g, t);
    const std::vector<double>& weight = row.softmax.weights;
    const double over_keys = 3 + growth_of(t.growth, static_cast<int64_t>(weight.size()));
    const double* q = o.q.values.data() + row.row * dim;
    const double* dout = o.dout.values.data() + row.row * dim;
    for (size_t i = 0; i < weight.size(); ++i) {
      const size_t key = (row.first_key + i) * dim;
      const double ds = weight[i] * (g.dp[i] - g.delta);
      // Where a weight was flushed to zero, all of ds is lost. Twice that, as everywhere in a bound.
      constexpr double kFlushed = 2 * kSmallestNormal;
      const double lost = kFlushed * (1 + std::fabs(g.dp[i]) + std::fabs(g.delta)) +
                          2 * weight[i] * error.lost_delta;
      const double for_dq = unit * (error.ds[i] + over_keys * std::fabs(ds)) + lost;
      const double for_dk = unit * (error.ds[i] + over_queries * std::fabs(ds)) + lost;
      const double for_dv = unit * weight[i] * (error.p[i] + over_queries) + kFlushed;
      const double for_scale = weight[i] * row.roundings(i);
      const double ds_scale = scale * for_scale * (std::fabs(g.dp[i]) + std::fabs(g.delta));
      for (size_t d = 0; d < dim; ++d) {
        const double k_d = o.k.values[key + d];
        add(answer.dq, row.row * dim + d, s.scale * ds * k_d,
            scale * std::fabs(k_d) * for_dq + kSmallestNormal, ds_scale * std::fabs(k_d));
        add(answer.dk, key + d, s.scale * ds * q[d],
            scale * std::fabs(q[d]) * for_dk + kSmallestNormal, ds_scale * std::fabs(q[d]));
        add(answer.dv, key + d, weight[i] * dout[d], std::fabs(dout[d]) * for_dv + kSmallestNormal,
            for_scale * std::fabs(dout[d]));
      }
    }
  });
  return answer;
}

}  // namespace touchstone::judge::attention
