// Cross entropy over an output head in float64: the specification the kernels are held to.
//
//   l = cap tanh(x W^T / cap);  loss = (1 - s)(lse - l[t]) + s (lse - mean l) + z lse^2
//
// Deliberately naive and templated on the scalar; see norm.h. The largest logit is subtracted
// before the exponential, as everywhere: a logit of +infinity makes the loss NaN.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace touchstone::oracle {

struct CrossEntropyOptions {
  double label_smoothing = 0;
  double z_loss = 0;
  double soft_cap = 0;
};

template <class S>
struct CrossEntropyRow {
  std::vector<S> logits{};  // [vocabulary], capped
  S largest = 0.0;
  S lse = 0.0;
  S log_probability = 0.0;
  S loss = 0.0;
};

// One token with the target `target`; x: [dim], weight: [vocabulary, dim].
template <class S>
CrossEntropyRow<S> cross_entropy_row(const CrossEntropyOptions& options, int64_t vocabulary,
                                     int64_t dim, const S* x, const S* weight, int64_t target) {
  using std::exp;
  using std::log;
  using std::tanh;
  CrossEntropyRow<S> row;
  S mean = 0.0;
  for (int64_t v = 0; v < vocabulary; ++v) {
    S logit = 0.0;
    for (int64_t i = 0; i < dim; ++i) logit += x[i] * weight[v * dim + i];
    if (options.soft_cap > 0) logit = options.soft_cap * tanh(logit / options.soft_cap);
    row.logits.push_back(logit);
    mean += logit;
    if (v == 0 || logit > row.largest) row.largest = logit;
  }
  mean = mean / static_cast<double>(vocabulary);
  S sum = 0.0;
  for (const S& logit : row.logits) sum += exp(logit - row.largest);
  row.lse = row.largest + log(sum);
  row.log_probability = row.logits[static_cast<std::size_t>(target)] - row.lse;
  row.loss = (options.label_smoothing - 1.0) * row.log_probability;
  if (options.label_smoothing > 0) row.loss += options.label_smoothing * (row.lse - mean);
  if (options.z_loss > 0) row.loss += options.z_loss * row.lse * row.lse;
  return row;
}

}  // namespace touchstone::oracle
