// Wrong in one famous way: the probabilities are normalized over the k that are kept instead of
// over the whole row. They sum to 1, which looks right; indices and order are.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

extern "C" int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                            float* probabilities, int32_t* indices) {
  if (k < 1 || k > vocab) return 1;
  std::vector<int32_t> order(static_cast<size_t>(vocab));
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = logits + r * vocab;
    float* p = probabilities + r * k;
    std::iota(order.begin(), order.end(), 0);
    if (std::any_of(row, row + vocab, [](float v) { return std::isnan(v); })) {
      std::fill_n(p, k, std::numeric_limits<float>::quiet_NaN());
      std::copy_n(order.begin(), k, indices + r * k);
      continue;
    }
    std::partial_sort(order.begin(), order.begin() + k, order.end(),
                      [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    const double top = row[order[0]];
    double sum = 0;
    for (int64_t i = 0; i < vocab; ++i)
      sum += i < k ? std::exp(row[order[static_cast<size_t>(i)]] - top) : 0;
    for (int64_t j = 0; j < k; ++j) {
      const float v = row[order[static_cast<size_t>(j)]];
      p[j] = std::isinf(v) ? 0.0f : static_cast<float>(std::exp(v - top) / sum);
      indices[r * k + j] = order[static_cast<size_t>(j)];
    }
  }
  return 0;
}
