// Attention in float64, forward and backward, and the error that f32 arithmetic may make. The terms
// are derived in docs/judge_tolerances.md.
#include <cmath>
#include <limits>

#include "judge/task/tasks/attention/attention.h"

namespace touchstone::judge::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

double norm(const float* a, int64_t n) { return std::sqrt(dot(a, a, n)); }

// The heads of one row of queries: where its numbers lie.
struct RowOffsets {
  int64_t query = 0;  // first element of the query and of its output
  int64_t row = 0;    // of lse
  int64_t key = 0;    // first element of the keys and values of its head
  int64_t seen = 0;
};

// Calls visit(offsets) for all rows, those of one key-value head one after the other.
template <class Visit>
void for_rows(const Shape& s, const Visit& visit) {
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t head = 0; head < s.query_heads; ++head) {
      const int64_t kv = b * s.kv_heads + head / s.group();
      for (int64_t i = 0; i < s.queries; ++i) {
        const int64_t row = (b * s.query_heads + head) * s.queries + i;
        visit(RowOffsets{row * s.dim, row, kv * s.keys * s.dim, s.seen(i)});
      }
    }
  }
}

// The softmax of one row, with the units of rounding in each score.
struct Row {
  std::vector<double> score, weight, units;
  double largest = -kInfinity;
  double lse = -kInfinity;
  double mean_units = 0;  // under the weights, as is the next
  double mean_score = 0;  // of the magnitudes

  void compute(const Problem& p, const RowOffsets& at, const Tolerance& t) {
    const Shape& s = p.shape;
    const auto n = static_cast<size_t>(at.seen);
    score.resize(n);
    weight.resize(n);
    units.resize(n);
    const float* q = p.q.data() + at.query;
    const double q_norm = norm(q, s.dim);
    const double growth = growth_of(t.growth, s.dim);
    largest = -kInfinity;
    for (size_t i = 0; i < n; ++i) {
      const float* key = p.k.data() + at.key + static_cast<int64_t>(i) * s.dim;
      score[i] = s.scale * dot(q, key, s.dim);
      units[i] = growth * std::fabs(s.scale) * q_norm * norm(key, s.dim) + std::fabs(score[i]);
      if (!(score[i] <= largest)) largest = score[i];  // a NaN stays
    }
    double sum = 0;
    for (const double value : score) sum += std::exp(value - largest);
    lse = n == 0 ? -kInfinity : largest + std::log(sum);
    mean_units = 0;
    mean_score = 0;
    for (size_t i = 0; i < n; ++i) {
      weight[i] = std::exp(score[i] - largest) / sum;
      units[i] += 2 * std::fabs(score[i] - largest);
      mean_units += weight[i] * units[i];
      mean_score += weight[i] * std::fabs(score[i]);
    }
  }

  // A score that is rounded once moves its weight by that much, and the sum of all weights too:
  // nothing that keeps scores in float does better.
  double roundings(size_t i) const { return 1 + std::fabs(score[i]) + mean_score; }
};

// Adds one term of a sum to an element. The error is counted in roundings of `scale`.
void add(Expected& to, size_t element, double value, double error, double scale) {
  to.value[element] += value;
  to.scale[element] += scale;
  to.bound[element] += error;
}

// What one row of the backward needs beyond the softmax, in units of rounding.
struct Gradient {
  std::vector<double> dp, ds, ds_error, p_error;
  double delta = 0;

  void compute(const Problem& p, const RowOffsets& at, const Row& row, const Tolerance& t) {
    const Shape& s = p.shape;
    const auto n = static_cast<size_t>(at.seen);
    dp.resize(n);
    ds.resize(n);
    ds_error.resize(n);
    p_error.resize(n);
    const float* dout = p.dout.data() + at.query;
    const double dout_norm = norm(dout, s.dim);
    const double over_dim = growth_of(t.growth, s.dim);
    const double over_keys = growth_of(t.growth, at.seen);
    double delta_error = 0, magnitude = 0;
    delta = 0;
    std::vector<double> dp_error(n);
    for (size_t i = 0; i < n; ++i) {
      const float* value = p.v.data() + at.key + static_cast<int64_t>(i) * s.dim;
      dp[i] = dot(dout, value, s.dim);
      dp_error[i] = over_dim * dout_norm * norm(value, s.dim);
      // exp(s - lse): the rounding of s, of lse as it was given, and of a softmax made again.
      p_error[i] = 6 + over_keys + row.units[i] + row.mean_units + std::fabs(row.lse);
      delta += row.weight[i] * dp[i];
      magnitude += row.weight[i] * dout_norm * norm(value, s.dim);
      delta_error += row.weight[i] * (p_error[i] * std::fabs(dp[i]) + dp_error[i]);
    }
    // Either the sum of dO * O, whose O was rounded once, or that of P * dP.
    delta_error += (over_keys + over_dim) * magnitude;
    for (size_t i = 0; i < n; ++i) {
      const double difference = dp[i] - delta;
      ds[i] = row.weight[i] * difference;
      ds_error[i] = row.weight[i] * ((p_error[i] + 3) * std::fabs(difference) + dp_error[i] +
                                     delta_error + std::fabs(dp[i]) + std::fabs(delta));
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
  const Shape& s = p.shape;
  ForwardAnswer answer{Expected(s.query_elements()), Expected(s.rows())};
  Row row;
  for_rows(s, [&](const RowOffsets& at) {
    row.compute(p, at, t);
    const auto lse = static_cast<size_t>(at.row);
    const double over_keys = growth_of(t.growth, at.seen);
    answer.lse.value[lse] = row.lse;
    answer.lse.scale[lse] = 1 + std::fabs(row.lse) + row.mean_score;
    answer.lse.bound[lse] =
        t.factor * kUnit *
        (6 + over_keys + row.mean_units + std::fabs(row.lse) + 2 * std::fabs(row.largest));
    for (size_t i = 0; i < row.score.size(); ++i) {
      const double error = t.factor * kUnit * (6 + over_keys + row.units[i] + row.mean_units);
      const float* value = p.v.data() + at.key + static_cast<int64_t>(i) * s.dim;
      for (int64_t d = 0; d < s.dim; ++d) {
        const double v = static_cast<double>(value[d]);
        const double term = row.weight[i] * v;
        // A weight below the normal numbers may have been flushed to zero.
        add(answer.out, static_cast<size_t>(at.query + d), term,
            error * std::fabs(term) + kSmallestNormal * (1 + std::fabs(v)),
            std::fabs(term) * row.roundings(i));
      }
    }
  });
  return answer;
}

BackwardAnswer expected_backward(const Problem& p, const Tolerance& t) {
  const Shape& s = p.shape;
  BackwardAnswer answer{Expected(s.query_elements()), Expected(s.key_elements()),
                        Expected(s.key_elements())};
  const double unit = t.factor * kUnit;
  const double scale = std::fabs(s.scale);
  const double over_queries = 3 + growth_of(t.growth, s.queries * s.group());
  Row row;
  Gradient g;
  for_rows(s, [&](const RowOffsets& at) {
    row.compute(p, at, t);
    g.compute(p, at, row, t);
    const double over_keys = 3 + growth_of(t.growth, at.seen);
    const float* q = p.q.data() + at.query;
    const float* dout = p.dout.data() + at.query;
    for (size_t i = 0; i < row.score.size(); ++i) {
      const int64_t key = at.key + static_cast<int64_t>(i) * s.dim;
      const double ds = std::fabs(g.ds[i]);
      // Where a weight was flushed to zero.
      const double lost = kSmallestNormal * (1 + std::fabs(g.dp[i]));
      const double for_dq = unit * (g.ds_error[i] + over_keys * ds) + lost;
      const double for_dk = unit * (g.ds_error[i] + over_queries * ds) + lost;
      const double for_dv = unit * row.weight[i] * (g.p_error[i] + over_queries) + kSmallestNormal;
      const double for_scale = row.weight[i] * row.roundings(i);
      const double ds_scale = scale * for_scale * (std::fabs(g.dp[i]) + std::fabs(g.delta));
      for (int64_t d = 0; d < s.dim; ++d) {
        const auto query_element = static_cast<size_t>(at.query + d);
        const auto key_element = static_cast<size_t>(key + d);
        const double k_d = static_cast<double>(p.k[key_element]);
        const double q_d = static_cast<double>(q[d]);
        const double o_d = static_cast<double>(dout[d]);
        add(answer.dq, query_element, s.scale * g.ds[i] * k_d,
            scale * std::fabs(k_d) * for_dq + kSmallestNormal, ds_scale * std::fabs(k_d));
        add(answer.dk, key_element, s.scale * g.ds[i] * q_d,
            scale * std::fabs(q_d) * for_dk + kSmallestNormal, ds_scale * std::fabs(q_d));
        add(answer.dv, key_element, row.weight[i] * o_d, std::fabs(o_d) * for_dv + kSmallestNormal,
            for_scale * std::fabs(o_d));
      }
    }
  });
  return answer;
}

}  // namespace touchstone::judge::attention
