// Cross entropy as one would write it down: plain loops, one thread, f64. The reference to read
// first.
#include <algorithm>
#include <limits>
#include <vector>

#include "core/index.h"
#include "ops/cross_entropy/cross_entropy_problem.h"
#include "touchstone/core/convert.h"

namespace touchstone::cross_entropy_op {
namespace {

template <class T, class C>
class Plain {
 public:
  explicit Plain(const Problem& p) : p_(p), formula_(p), logits_(at(p.vocabulary)) {}

  void run() {
    std::int64_t counted = 0;
    for (std::int64_t n = 0; n < p_.tokens; ++n) counted += p_.targets[n] != p_.ignore_index;
    const double mean_gradient = counted > 0 ? 1 / static_cast<double>(counted) : 0;
    std::vector<double> dweight(p_.dweight.data == nullptr ? 0 : at(p_.vocabulary * p_.dim));
    double total = 0;
    for (std::int64_t n = 0; n < p_.tokens; ++n) {
      const double lse = fill_logits(n);
      const bool ignored = p_.targets[n] == p_.ignore_index;
      total += put_losses(n, lse, ignored);
      if (!p_.backward) continue;
      const double g =
          p_.dloss != nullptr ? convert<double>(static_cast<const C*>(p_.dloss)[n]) : mean_gradient;
      add_gradients(n, lse, ignored ? 0 : g, ignored, dweight);
    }
    if (p_.mean_loss != nullptr) {
      *static_cast<C*>(p_.mean_loss) = convert<C>(total * mean_gradient);
    }
    if (p_.dweight.data == nullptr) return;
    visit_float_dtype(p_.dweight_dtype, [&]<class G>() {
      for (std::int64_t v = 0; v < p_.vocabulary; ++v) {
        G* const to = static_cast<G*>(p_.dweight.data) + v * p_.dweight.stride;
        for (std::int64_t i = 0; i < p_.dim; ++i) {
          const double before = p_.accumulate ? convert<double>(to[i]) : 0;
          to[i] = convert<G>(before + dweight[at(v * p_.dim + i)]);
        }
      }
    });
  }

 private:
  const T* x(std::int64_t n) const { return static_cast<const T*>(p_.x.data) + n * p_.x.stride; }
  const T* w(std::int64_t v) const {
    return static_cast<const T*>(p_.weight.data) + v * p_.weight.stride;
  }

  // Returns lse.
  double fill_logits(std::int64_t n) {
    double largest = -std::numeric_limits<double>::infinity();
    for (std::int64_t v = 0; v < p_.vocabulary; ++v) {
      double sum = 0;
      for (std::int64_t i = 0; i < p_.dim; ++i) {
        sum += convert<double>(x(n)[i]) * convert<double>(w(v)[i]);
      }
      if (p_.soft_cap > 0) sum = p_.soft_cap * std::tanh(sum / p_.soft_cap);
      logits_[at(v)] = sum;
      largest = std::max(largest, sum);
    }
    double sum = 0;
    for (const double logit : logits_) sum += std::exp(logit - largest);
    return largest + std::log(sum);
  }

  double put_losses(std::int64_t n, double lse, bool ignored) const {
    RowResult<double> row{0, 0};
    if (!ignored) {
      double mean = 0;
      for (const double logit : logits_) mean += logit;
      row = finish_row(formula_, lse, logits_[at(p_.targets[n])],
                       mean / static_cast<double>(p_.vocabulary));
    }
    const auto put = [&](void* to, double value) {
      if (to != nullptr) static_cast<C*>(to)[n] = convert<C>(value);
    };
    put(p_.loss, row.loss);
    put(p_.log_probability, row.log_probability);
    put(p_.lse, lse);
    return row.loss;
  }

  void add_gradients(std::int64_t n, double lse, double g, bool ignored,
                     std::vector<double>& dweight) const {
    std::vector<double> dx(at(p_.dim));
    const RowGradient<double> c = gradient_of(formula_, lse, g);
    for (std::int64_t v = 0; v < p_.vocabulary && !ignored; ++v) {
      const double logit = logits_[at(v)];
      double dl = c.softmax * std::exp(logit - lse) - c.uniform;
      if (v == p_.targets[n]) dl -= c.target;
      if (p_.soft_cap > 0) dl *= 1 - logit / p_.soft_cap * (logit / p_.soft_cap);
      for (std::int64_t i = 0; i < p_.dim; ++i) {
        dx[at(i)] += dl * convert<double>(w(v)[i]);
        if (!dweight.empty()) dweight[at(v * p_.dim + i)] += dl * convert<double>(x(n)[i]);
      }
    }
    if (p_.dx.data == nullptr) return;
    T* const to = static_cast<T*>(p_.dx.data) + n * p_.dx.stride;
    for (std::int64_t i = 0; i < p_.dim; ++i) to[i] = convert<T>(dx[at(i)]);
  }

  const Problem& p_;
  Formula formula_;
  std::vector<double> logits_;
};

}  // namespace

void run_plain(Context& /*context*/, const Problem& p) {
  visit_float_dtype(p.dtype, [&]<class T>() {
    Plain<T, std::conditional_t<std::is_same_v<T, double>, double, float>>(p).run();
  });
}

}  // namespace touchstone::cross_entropy_op
