// Floats as integers of the same order, sorted byte by byte with their columns; sums are compensated and a
// probability is the exponential of a difference of logarithms.
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

// Rising keys for falling logits. -0 and +0 are one number.
uint32_t falling_key(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value == 0 ? 0.0f : value);
  const uint32_t rising = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return ~rising;
}

bool is_nan_bits(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7fffffffu) > 0x7f800000u;
}

class Compensated {
 public:
  void add(double x) {
    const double y = x - lost_, t = sum_ + y;
    lost_ = (t - sum_) - y;
    sum_ = t;
  }
  double value() const { return sum_; }

 private:
  double sum_ = 0, lost_ = 0;
};

struct Column {
  uint32_t key, index;
};

template <int kShift>
void sort_by_byte(std::vector<Column>& from, std::vector<Column>& to) {
  std::array<size_t, 257> begin{};
  for (const Column& c : from) ++begin[(c.key >> kShift & 255) + 1];
  for (size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
  for (const Column& c : from) to[begin[c.key >> kShift & 255]++] = c;
  from.swap(to);
}

}  // namespace

extern "C" int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                            float* probabilities, int32_t* indices) {
  if (k < 1 || vocab < k) return 22;
  std::vector<Column> columns(static_cast<size_t>(vocab)), other(columns.size());
  for (; rows > 0; --rows, logits += vocab, probabilities += k, indices += k) {
    bool nan = false;
    for (size_t i = 0; i < columns.size(); ++i) {
      nan |= is_nan_bits(logits[i]);
      columns[i] = {falling_key(logits[i]), static_cast<uint32_t>(i)};
    }
    if (nan) {
      for (int64_t j = 0; j < k; ++j) {
        probabilities[j] = std::numeric_limits<float>::signaling_NaN();
        indices[j] = static_cast<int32_t>(j);
      }
      continue;
    }
    sort_by_byte<0>(columns, other);
    sort_by_byte<8>(columns, other);
    sort_by_byte<16>(columns, other);
    sort_by_byte<24>(columns, other);
    const double top = logits[columns[0].index];
    Compensated rest;  // beyond the largest, smallest first
    for (size_t i = columns.size(); i-- > 1;) {
      if (std::isfinite(top)) rest.add(std::exp(logits[columns[i].index] - top));
    }
    const double log_sum = std::log1p(rest.value());
    for (int64_t j = 0; j < k; ++j) {
      const uint32_t index = columns[static_cast<size_t>(j)].index;
      indices[j] = static_cast<int32_t>(index);
      const double p = std::isfinite(top) ? std::exp(logits[index] - top - log_sum) : 0;
      probabilities[j] = static_cast<float>(p);
    }
  }
  return 0;
}
