// sample() step by step: the values of a row, their weights in f64, the tokens sorted as far as the
// walk needs them, the walk to the drawn token. Accepts every problem, kept sets of any size
// included; one task per row.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "core/context_access.h"
#include "core/thread_pool.h"
#include "ops/sample/sample_output.h"
#include "ops/sample/sample_problem.h"
#include "ops/sample/sample_row.h"
#include "touchstone/core/random.h"

namespace touchstone::sampling {
namespace {

// The tokens by (value descending, token ascending), sorted lazily.
class Order {
 public:
  void reset(std::span<const float> values) {
    values_ = values;
    tokens_.resize(values.size());
    std::iota(tokens_.begin(), tokens_.end(), 0);
    sorted_ = 0;
  }

  std::int64_t operator[](std::int64_t rank) {
    if (rank >= sorted_) sort_past(rank);
    return tokens_[static_cast<std::size_t>(rank)];
  }

 private:
  // Each step sorts eight times what is sorted already, so that a long prefix takes few steps.
  void sort_past(std::int64_t rank) {
    const auto size = static_cast<std::int64_t>(tokens_.size());
    const std::int64_t end = std::min(size, std::max({rank + 1, 8 * sorted_, std::int64_t{64}}));
    const auto before = [this](std::int64_t a, std::int64_t b) {
      const float x = values_[static_cast<std::size_t>(a)];
      const float y = values_[static_cast<std::size_t>(b)];
      return x > y || (x == y && a < b);
    };
    if (end < size) {
      std::nth_element(tokens_.begin() + sorted_, tokens_.begin() + end, tokens_.end(), before);
    }
    std::sort(tokens_.begin() + sorted_, tokens_.begin() + end, before);
    sorted_ = end;
  }

  std::span<const float> values_;
  std::vector<std::int64_t> tokens_;
  std::int64_t sorted_ = 0;
};

// One row at a time; the memory is reused.
class ScalarRow {
 public:
  explicit ScalarRow(const SampleProblem& p) : p_(p) {}

  // `remark` is added to the status word.
  void run(std::int64_t row, RowStatus remark = RowStatus::ok) {
    controls_ = row_controls(p_, row);
    if (!controls_.legal) return store_invalid_row(p_, row, RowStatus::bad_parameter | remark);
    values_.resize(static_cast<std::size_t>(p_.vocabulary));
    read_values(p_, row, values_);
    penalize(p_, row, controls_, values_);
    RowStatus status = RowStatus::ok;
    const bool usable = weigh(status);
    status |= remark;
    if (!usable) return store_invalid_row(p_, row, status);
    order_.reset(values_);
    const std::int64_t token = controls_.greedy() ? order_[0] : draw(row);
    write_token(p_, row, token, log_probability(token), status);
    for (std::int64_t rank = 0; rank < p_.top_count; ++rank) {
      write_top(p_, row, rank, order_[rank], log_probability(order_[rank]));
    }
  }

 private:
  // Step 3. False when the row has no distribution.
  bool weigh(RowStatus& status) {
    largest_ = kMinusInfinity;
    bool nan = false;
    std::int64_t masked = 0;
    for (const float v : values_) {
      nan = nan || std::isnan(v);
      masked += v == kMinusInfinity ? 1 : 0;
      largest_ = std::max(largest_, v);
    }
    status = row_status(p_, nan, largest_, p_.vocabulary - masked);
    if (has_any(status, RowStatus::has_nan | RowStatus::all_masked)) return false;
    weights_.resize(values_.size());
    total_ = 0;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      weights_[i] = std::exp(exponent(values_[i]));
      total_ += weights_[i];
    }
    log_total_ = std::log(total_);
    return true;
  }

  // 0 for the largest, also when that is infinite. A greedy row has the temperature 1.
  double exponent(float v) const {
    if (v == largest_) return 0;
    const double temperature = controls_.greedy() ? 1 : static_cast<double>(controls_.temperature);
    return (static_cast<double>(v) - static_cast<double>(largest_)) / temperature;
  }

  float log_probability(std::int64_t token) {
    return static_cast<float>(exponent(value(token)) - log_total_);
  }

  // Steps 4 and 5.
  std::int64_t draw(std::int64_t row) {
    const double u = random_uniform(p_.seed[row], p_.position[row]);
    if (controls_.cuts(p_.vocabulary)) {
      const Prefix kept = cut();
      return pick(u * kept.mass, kept.count, [this](std::int64_t rank) { return order_[rank]; });
    }
    return pick(u * total_, p_.vocabulary, [](std::int64_t token) { return token; });
  }

  struct Prefix {
    std::int64_t count = 0;
    double mass = 0;
  };

  Prefix cut() {
    double needed = HUGE_VAL;  // all
    if (controls_.top_p < 1) {
      double mass = total_;
      if (controls_.top_k < p_.vocabulary) {
        mass = 0;
        for (std::int64_t rank = 0; rank < controls_.top_k; ++rank) mass += weight(order_[rank]);
      }
      needed = static_cast<double>(controls_.top_p) * mass;
    }
    Prefix kept;
    while (kept.count < controls_.top_k) {
      const double next = weight(order_[kept.count]);
      if (next < static_cast<double>(controls_.min_p)) break;  // the first one weighs 1
      kept.mass += next;
      ++kept.count;
      if (kept.mass >= needed) break;
    }
    return kept;
  }

  // The first of `count` tokens where the running sum of weights exceeds `target`. The target is
  // below the sum of all, which was made in the same order, so there is one.
  template <class TokenAt>
  std::int64_t pick(double target, std::int64_t count, const TokenAt& token_at) {
    double sum = 0;
    std::int64_t token = -1;
    for (std::int64_t i = 0; i < count && !(sum > target); ++i) {
      token = token_at(i);
      sum += weight(token);
    }
    return token;
  }

  float& value(std::int64_t token) { return values_[static_cast<std::size_t>(token)]; }
  double weight(std::int64_t token) const { return weights_[static_cast<std::size_t>(token)]; }

  const SampleProblem& p_;
  RowControls controls_;
  std::vector<float> values_;
  std::vector<double> weights_;
  Order order_;
  float largest_ = 0;
  double total_ = 0;
  double log_total_ = 0;
};

}  // namespace

void sample_plain_row(const SampleProblem& p, std::int64_t row, RowStatus remark) {
  ScalarRow(p).run(row, remark);
}

void sample_plain(Context& context, const SampleProblem& p) {
  // A few tasks per thread, so that a delayed one does not delay the rest.
  const std::int64_t tasks = std::min<std::int64_t>(p.rows, 4 * std::int64_t{context.threads()});
  detail::ContextAccess::pool(context).run(tasks, [&](std::int64_t task) {
    ScalarRow worker(p);
    const std::int64_t begin = p.rows / tasks * task + std::min(p.rows % tasks, task);
    const std::int64_t end = p.rows / tasks * (task + 1) + std::min(p.rows % tasks, task + 1);
    for (std::int64_t row = begin; row < end; ++row) worker.run(row);
  });
}

}  // namespace touchstone::sampling
