// cached_attention as one would write it down: plain loops, one thread, f64 arithmetic. The
// reference to read first.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cache/codec.h"
#include "cache/rotation.h"
#include "ops/attention_paged/paged_problem.h"
#include "ops/attention_paged/paged_visible_range.h"

namespace touchstone::paged_attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The decoded key or value of one KV head at one position.
class TokenReader {
 public:
  TokenReader(const PagedAttentionProblem& p, std::int64_t row, std::int64_t head)
      : p_(p), row_(row), head_(head) {}

  void key(std::int64_t position, float* k) const {
    const auto [page, at] = find(position);
    cache::decode(p_.layers.k, p_.layers.k_dim, page + at.k_values, page + at.k_scales, k);
  }
  void value(std::int64_t position, float* v) const {
    const auto [page, at] = find(position);
    const QuantFormat& format = p_.layers.k_is_v ? p_.layers.k : p_.layers.v;
    cache::decode(format, p_.layers.v_dim, page + at.v_values, page + at.v_scales, v);
  }

 private:
  struct Location {
    const std::byte* page;
    cache::TokenOffsets at;
  };
  Location find(std::int64_t position) const {
    const cache::GroupView& pages = p_.pages;
    const auto entry =
        static_cast<std::size_t>(row_ * pages.table_stride + position / pages.page_tokens);
    return {pages.memory + std::int64_t{pages.page_table[entry]} * pages.geometry.page_bytes,
            cache::token_offsets(p_.layers, pages.geometry, p_.layer, head_,
                                 position % pages.page_tokens)};
  }

  const PagedAttentionProblem& p_;
  std::int64_t row_;
  std::int64_t head_;
};

std::vector<float> query_vector(const PagedAttentionProblem& p, std::int64_t query,
                                std::int64_t head) {
  std::vector<float> q(static_cast<std::size_t>(p.layers.k_dim));
  visit_float_dtype(p.q_dtype, [&]<class T>() {
    const T* const from = static_cast<const T*>(p.q.data) + p.q.offset(query, head);
    std::transform(from, from + q.size(), q.begin(), [](T x) { return convert<float>(x); });
  });
  if (p.layers.rotate_keys) cache::rotate(q.data(), p.layers.k_dim);
  return q;
}

double score(const PagedAttentionProblem& p, const std::vector<float>& q,
             const std::vector<float>& k) {
  double dot = 0;
  for (std::size_t i = 0; i < q.size(); ++i) {
    dot += static_cast<double>(q[i]) * static_cast<double>(k[i]);
  }
  const double s = dot * static_cast<double>(p.scale);
  const auto cap = static_cast<double>(p.soft_cap);
  return cap > 0 ? cap * std::tanh(s / cap) : s;
}

void store(const PagedAttentionProblem& p, std::int64_t query, std::int64_t head,
           const std::vector<double>& output, double log_sum_exp) {
  visit_float_dtype(p.output_dtype, [&]<class T>() {
    T* const to = static_cast<T*>(p.output.data) + p.output.offset(query, head);
    std::transform(output.begin(), output.end(), to, [](double x) { return convert<T>(x); });
  });
  if (p.log_sum_exp.data != nullptr) {
    p.log_sum_exp.data[p.log_sum_exp.offset(query, head)] = static_cast<float>(log_sum_exp);
  }
}

void attend(const PagedAttentionProblem& p, std::int64_t row, std::int64_t query,
            std::int64_t head) {
  const TokenReader read(p, row, head / p.heads_per_kv);
  const VisibleRange visible = visible_range(p, row, query);
  const std::vector<float> q = query_vector(p, query, head);
  std::vector<float> vector(q.size());
  std::vector<std::int64_t> seen;
  std::vector<double> scores;
  for (std::int64_t t = 0; t < end_of(visible); ++t) {
    if (!attends(visible, t)) continue;
    read.key(t, vector.data());
    seen.push_back(t);
    scores.push_back(score(p, q, vector));
  }
  const double sink =
      p.sink_logits != nullptr ? static_cast<double>(p.sink_logits[head]) : -kInfinity;
  double largest = sink;
  for (const double s : scores) largest = s > largest || std::isnan(s) ? s : largest;

  std::vector<double> output(static_cast<std::size_t>(p.layers.v_dim));
  if (largest == -kInfinity) return store(p, query, head, output, largest);
  double sum = std::exp(sink - largest);
  vector.resize(output.size());
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double weight = std::exp(scores[i] - largest);
    sum += weight;
    read.value(seen[i], vector.data());
    for (std::size_t d = 0; d < output.size(); ++d) {
      output[d] += weight * static_cast<double>(vector[d]);
    }
  }
  for (double& x : output) x /= sum;
  store(p, query, head, output, largest + std::log(sum));
}

}  // namespace

void cached_attention_plain(Context& context, const PagedAttentionProblem& p) {
  (void)context;
  for (std::int64_t row = 0; row < p.rows; ++row) {
    for (std::int64_t query = p.query_offsets[row]; query < p.query_offsets[row + 1]; ++query) {
      for (std::int64_t head = 0; head < p.query_heads; ++head) attend(p, row, query, head);
    }
  }
}

}  // namespace touchstone::paged_attention
