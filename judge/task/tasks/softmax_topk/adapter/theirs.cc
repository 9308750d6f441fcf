#include "theirs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

std::vector<std::pair<int, float>> best_tokens(const float* logits, int vocab, int k) {
  std::vector<int> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::pair<int, float>> best;
  if (std::any_of(logits, logits + vocab, [](float v) { return std::isnan(v); })) {
    for (int i = 0; i < k; ++i) best.emplace_back(i, std::numeric_limits<float>::quiet_NaN());
    return best;
  }
  std::partial_sort(order.begin(), order.begin() + k, order.end(), [logits](int a, int b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  const double top = logits[order[0]];
  double sum = 0;
  for (int i = 0; i < vocab; ++i) sum += std::exp(logits[i] - top);
  for (int i = 0; i < k; ++i) {
    const bool masked = std::isinf(logits[order[i]]);
    const double p = masked ? 0 : std::exp(logits[order[i]] - top) / sum;
    best.emplace_back(order[i], static_cast<float>(p));
  }
  return best;
}
