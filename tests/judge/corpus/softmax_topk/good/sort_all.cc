// Sorts every row completely: the plainest way there is.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

extern "C" int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                            float* probabilities, int32_t* indices) {
  if (k < 1 || k > vocab) return 1;
  std::vector<int32_t> order(static_cast<size_t>(vocab));
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = logits + r * vocab;
    const bool has_nan = std::any_of(row, row + vocab, [](float v) { return std::isnan(v); });
    std::iota(order.begin(), order.end(), 0);
    if (!has_nan) {
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    }
    const double top = row[order[0]];
    double sum = 0;
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(row[i] - top);
    for (int64_t j = 0; j < k; ++j) {
      const double p = std::exp(row[order[j]] - top) / sum;
      const bool masked = std::isinf(top);
      probabilities[r * k + j] = has_nan ? NAN : masked ? 0.0f : static_cast<float>(p);
      indices[r * k + j] = order[j];
    }
  }
  return 0;
}
