// The row in tiles, each with its own maximum, sum and sorted candidates; tiles are merged pairwise
// as a tree, as blocks of a GPU would be. Long double for the sums.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

struct Part {
  long double top = -std::numeric_limits<long double>::infinity(), sum = 0;
  bool has_nan = false;
  std::vector<int32_t> best;
};

Part read(const float* row, int64_t begin, int64_t end, int64_t k) {
  Part part;
  for (int64_t i = begin; i < end; ++i) {
    part.has_nan |= std::isnan(row[i]);
    part.top = std::max(part.top, static_cast<long double>(row[i]));
    part.best.push_back(static_cast<int32_t>(i));
  }
  for (int64_t i = begin; i < end; ++i) {
    if (!std::isinf(row[i])) part.sum += std::exp(row[i] - part.top);
  }
  if (part.has_nan) return part;
  const int64_t keep = std::min(k, end - begin);
  std::partial_sort(part.best.begin(), part.best.begin() + keep, part.best.end(),
                    [&](int32_t a, int32_t b) { return row[a] > row[b]; });
  part.best.resize(static_cast<size_t>(keep));
  return part;
}

Part merge(const float* row, const Part& a, const Part& b, int64_t k) {
  Part both;
  both.has_nan = a.has_nan || b.has_nan;
  both.top = std::max(a.top, b.top);
  for (const Part* part : {&a, &b}) {
    if (!std::isinf(part->top)) both.sum += part->sum * std::exp(part->top - both.top);
  }
  both.best.resize(a.best.size() + b.best.size());
  if (both.has_nan) return both;
  std::merge(a.best.begin(), a.best.end(), b.best.begin(), b.best.end(), both.best.begin(),
             [&](int32_t x, int32_t y) { return row[x] > row[y]; });
  both.best.resize(std::min(both.best.size(), static_cast<size_t>(k)));
  return both;
}

Part reduce(const float* row, int64_t begin, int64_t end, int64_t k) {
  if (end - begin <= 100) return read(row, begin, end, k);
  const int64_t middle = begin + (end - begin) / 2;
  return merge(row, reduce(row, begin, middle, k), reduce(row, middle, end, k), k);
}

}  // namespace

extern "C" int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                            float* probabilities, int32_t* indices) {
  if (k < 1 || k > vocab) return 1;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = logits + r * vocab;
    const Part whole = reduce(row, 0, vocab, k);
    for (int64_t j = 0; j < k; ++j) {
      const int32_t i = whole.has_nan ? static_cast<int32_t>(j) : whole.best[j];
      long double p = std::isinf(row[i]) ? 0 : std::exp(row[i] - whole.top) / whole.sum;
      if (whole.has_nan) p = std::numeric_limits<long double>::quiet_NaN();
      probabilities[r * k + j] = static_cast<float>(p);
      indices[r * k + j] = i;
    }
  }
  return 0;
}
