// Wrong in one famous way: the row is shared by 256 lists, as by the threads of a GPU block, and
// the merge looks at the first 100 of them. Right whenever the best columns happen to lie there,
// which for small vocabularies is always.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

constexpr int64_t kLists = 256;
constexpr int64_t kMerged = 100;

}  // namespace

extern "C" int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                            float* probabilities, int32_t* indices) {
  if (k < 1 || k > vocab) return 1;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = logits + r * vocab;
    const auto better = [row](int32_t a, int32_t b) { return row[a] > row[b]; };
    const bool has_nan = std::any_of(row, row + vocab, [](float v) { return std::isnan(v); });
    std::vector<int32_t> merged;
    double sum = 0;
    const double top = *std::max_element(row, row + vocab);
    for (int64_t list = 0; list < kLists; ++list) {
      std::vector<int32_t> own;
      for (int64_t i = list; i < vocab; i += kLists) {
        own.push_back(static_cast<int32_t>(i));
        if (!std::isinf(row[i])) sum += std::exp(row[i] - top);
      }
      if (!has_nan) std::sort(own.begin(), own.end(), better);
      own.resize(std::min(own.size(), static_cast<size_t>(k)));
      if (list < kMerged || vocab <= kLists) merged.insert(merged.end(), own.begin(), own.end());
    }
    if (!has_nan) std::sort(merged.begin(), merged.end(), better);
    merged.resize(static_cast<size_t>(k));
    for (int64_t j = 0; j < k; ++j) {
      const int32_t i = merged[static_cast<size_t>(j)];
      float p = std::isinf(row[i]) ? 0.0f : static_cast<float>(std::exp(row[i] - top) / sum);
      if (has_nan) p = std::numeric_limits<float>::quiet_NaN();
      probabilities[r * k + j] = p;
      indices[r * k + j] = i;
    }
  }
  return 0;
}
