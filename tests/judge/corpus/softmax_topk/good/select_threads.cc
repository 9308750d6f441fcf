// Rows shared by two threads; nth_element on packed keys, then a sort of the k. Equal values are
// ordered by the later column, because the key carries the index below the value.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

namespace {

// Unsigned keys that order as the floats do.
uint64_t key_of(float v, int64_t index) {
  uint32_t bits = std::bit_cast<uint32_t>(v == 0 ? 0.0f : v);
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{bits} << 32 | static_cast<uint32_t>(index);
}

void one_row(int64_t vocab, int64_t k, const float* row, std::vector<uint64_t>& keys, float* p,
             int32_t* indices) {
  bool has_nan = false;
  float top = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < vocab; ++i) {
    keys[i] = key_of(row[i], i);
    has_nan |= std::isnan(row[i]);
    top = std::max(top, row[i]);
  }
  std::nth_element(keys.begin(), keys.begin() + (k - 1), keys.end(), std::greater<>());
  std::sort(keys.begin(), keys.begin() + k, std::greater<>());
  double sum = 0;
  for (int64_t i = 0; i < vocab; ++i) sum += std::exp(double{row[i]} - top);
  for (int64_t j = 0; j < k; ++j) {
    indices[j] = static_cast<int32_t>(keys[j] & 0xffffffffu);
    const float v = row[indices[j]];
    p[j] = static_cast<float>(std::isinf(v) ? 0 : std::exp(double{v} - top) / sum);
    if (has_nan) p[j] = std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace

extern "C" int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                            float* probabilities, int32_t* indices) {
  if (k < 1 || k > vocab) return 1;
  const auto work = [=](int64_t begin, int64_t end) {
    std::vector<uint64_t> keys(static_cast<size_t>(vocab));
    for (int64_t r = begin; r < end; ++r) {
      one_row(vocab, k, logits + r * vocab, keys, probabilities + r * k, indices + r * k);
    }
  };
  std::thread second(work, rows / 2, rows);
  work(0, rows / 2);
  second.join();
  return 0;
}
