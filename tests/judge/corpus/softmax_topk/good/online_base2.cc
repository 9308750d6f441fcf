// One pass: online softmax with base-2 exponentials, in float with two-float sums, and an insertion
// list of the best.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// log2(e) * d in two parts, so that large differences keep their digits.
float exp_of(float d) {
  const float high = d * 1.44269504f;
  const float low = std::fma(d, 1.44269504f, -high) + d * 1.92596299e-8f;
  return std::isfinite(high) ? std::exp2(high) * (1 + low * 0.693147181f) : 0.0f;
}

struct Online {
  float top = kLowest, sum = 0, lost = 0;
  void add(float v) {
    if (v == kLowest) return;
    if (v > top) {
      const float factor = top == kLowest ? 0 : exp_of(top - v);
      sum *= factor, lost *= factor, top = v;
    }
    const float term = exp_of(v - top), t = sum + term;
    lost += std::fabs(sum) >= term ? (sum - t) + term : (term - t) + sum;
    sum = t;
  }
};

}  // namespace

extern "C" int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                            float* probabilities, int32_t* indices) {
  if (k < 1 || k > vocab) return -22;
  struct Entry {
    float value;
    int32_t index;
  };
  std::vector<Entry> best(static_cast<size_t>(k));
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = logits + r * vocab;
    Online online;
    int64_t kept = 0;
    bool has_nan = false;
    for (int64_t i = 0; i < vocab; ++i) {
      const float v = row[i];
      has_nan |= v != v;
      online.add(v);
      if (kept == k && !(v > best[k - 1].value)) continue;
      int64_t at = kept < k ? kept++ : k - 1;
      for (; at > 0 && best[at - 1].value < v; --at) best[at] = best[at - 1];
      best[at] = {v, static_cast<int32_t>(i)};
    }
    for (int64_t j = 0; j < k; ++j) {
      const float v = best[j].value;
      float p = v == kLowest ? 0 : exp_of(v - online.top) / (online.sum + online.lost);
      if (has_nan) p = std::numeric_limits<float>::quiet_NaN();
      probabilities[r * k + j] = p;
      indices[r * k + j] = best[j].index;
    }
  }
  return 0;
}
