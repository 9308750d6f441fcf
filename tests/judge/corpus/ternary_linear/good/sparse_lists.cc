// Weights as lists of the columns that count, one for each sign; sums are compensated.
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct Sum {
  double value = 0, lost = 0;
  void add(double x) {
    const double t = value + x;
    lost += std::fabs(value) >= std::fabs(x) ? (value - t) + x : (x - t) + value;
    value = t;
  }
  double total() const { return value + lost; }
};

bool is_group(int64_t group) { return group == 0 || (32 <= group && group <= 256); }

// By adding and taking off a number whose last digit is the one that counts: the processor rounds to
// even.
float nearest_half(double s) {
  if (s <= 0) return 0;
  if (s < 0x1p-24) s = 0x1p-24;
  if (s > 65504) s = 65504;
  int exponent = 0;
  std::frexp(s, &exponent);
  if (exponent < -13) exponent = -13;
  const volatile double large = std::ldexp(3.0, exponent + 40);  // one unit: 2^(exponent - 11)
  const volatile double shifted = s + large;
  return static_cast<float>(shifted - large);
}

struct Entry {
  int64_t column;
  float weight;
};
using Lists = std::vector<std::vector<Entry>>;

bool unpack(int64_t outputs, int64_t inputs, int64_t group, int64_t groups, int64_t words,
            const int32_t* packed, const float* scales, Lists& rows) {
  const int64_t size = group == 0 ? inputs : group;
  rows.resize(static_cast<size_t>(outputs));
  for (int64_t c = 0; c < outputs * inputs; ++c) {
    const int64_t o = c / inputs, column = c % inputs;
    uint32_t word;
    std::memcpy(&word, packed + o * words + column / 16, sizeof word);
    const int code = static_cast<int>(word >> 2 * (column % 16) & 3) - 1;
    if (code > 1) return false;
    const float scale = scales[o * groups + column / size];
    if (code != 0) rows[static_cast<size_t>(o)].push_back({column, code < 0 ? -scale : scale});
  }
  return true;
}

std::vector<double> rounded(int64_t rows, int64_t inputs, int64_t int8, const float* x) {
  std::vector<double> all(x, x + rows * inputs);
  for (double* row = all.data(); int8 && row != all.data() + rows * inputs; row += inputs) {
    double most = 0;
    for (int64_t c = 0; c < inputs; ++c) most = std::fmax(most, std::fabs(row[c]));
    const double a = most / 127;
    for (int64_t c = 0; c < inputs && most > 0; ++c) row[c] = a * std::rint(row[c] / a);
  }
  return all;
}

}  // namespace

extern "C" int ternary_project(int64_t outputs, int64_t inputs, int64_t group, int64_t groups,
                               int64_t words, int64_t absmax, const float* weight, int32_t* packed,
                               float* scales) {
  if (!is_group(group)) return 1;
  for (int64_t i = 0; i < outputs * inputs; ++i) {
    // Only of numbers the difference is 0.
    if (!(weight[i] - weight[i] == 0)) return 1;
  }
  const int64_t size = group == 0 ? inputs : group;
  std::memset(packed, 0, static_cast<size_t>(outputs * words) * 4);
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t end = inputs < (g + 1) * size ? inputs : (g + 1) * size;
      const float* row = weight + o * inputs;
      Sum sum;
      double most = 0;
      for (int64_t c = g * size; c < end; ++c) {
        sum.add(std::fabs(static_cast<double>(row[c])));
        most = std::fmax(most, std::fabs(static_cast<double>(row[c])));
      }
      const double s = absmax ? most : sum.total() / static_cast<double>(end - g * size);
      scales[o * groups + g] = nearest_half(s);
      for (int64_t c = g * size; c < end; ++c) {
        const double twice = 2.0 * row[c];
        const uint32_t code = twice > s ? 2 : twice < -s ? 0 : 1;
        packed[o * words + c / 16] += static_cast<int32_t>(code << (2 * (c & 15)));
      }
    }
  }
  return 0;
}

extern "C" int ternary_linear(int64_t rows, int64_t outputs, int64_t inputs, int64_t group,
                              int64_t groups, int64_t words, int64_t int8, const int32_t* packed,
                              const float* scales, const float* x, float* y) {
  Lists lists;
  if (!is_group(group)) return 1;
  if (!unpack(outputs, inputs, group, groups, words, packed, scales, lists)) return 1;
  const std::vector<double> a = rounded(rows, inputs, int8, x);
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t r = 0; r < rows; ++r) {
      Sum sum;
      for (const Entry& e : lists[static_cast<size_t>(o)])
        sum.add(a[r * inputs + e.column] * e.weight);
      y[r * outputs + o] = static_cast<float>(sum.total());
    }
  }
  return 0;
}

extern "C" int ternary_backward(int64_t rows, int64_t outputs, int64_t inputs, int64_t group,
                                int64_t groups, int64_t words, int64_t int8, const int32_t* packed,
                                const float* scales, const float* x, const float* dy, float* dx,
                                float* dweight) {
  Lists lists;
  if (!is_group(group)) return 1;
  if (!unpack(outputs, inputs, group, groups, words, packed, scales, lists)) return 1;
  const std::vector<double> a = rounded(rows, inputs, int8, x);
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<Sum> sums(static_cast<size_t>(inputs));
    for (int64_t o = 0; o < outputs; ++o) {
      const double d = dy[r * outputs + o];
      for (const Entry& e : lists[static_cast<size_t>(o)]) {
        sums[static_cast<size_t>(e.column)].add(d * e.weight);
      }
    }
    for (int64_t c = 0; c < inputs; ++c) dx[r * inputs + c] = static_cast<float>(sums[c].total());
  }
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t c = 0; c < inputs; ++c) {
      Sum sum;
      for (int64_t r = 0; r < rows; ++r) {
        sum.add(static_cast<double>(dy[r * outputs + o]) * a[r * inputs + c]);
      }
      dweight[o * inputs + c] = static_cast<float>(sum.total());
    }
  }
  return 0;
}
