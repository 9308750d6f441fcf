// 8-bit activations as integers with 32-bit sums of groups; floats as doubles; rows of outputs by threads.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

namespace {

void in_parallel(int64_t count, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i = next++; i < count; i = next++) body(i);
  };
  std::thread other(work);
  work();
  other.join();
}

// Halves by bisection over their bits: they are ordered as their bits are.
double half_value(int bits) {
  const int exponent = bits >> 10, fraction = bits & 1023;
  return exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
}

float nearest_half(double s) {
  if (s == 0) return 0;
  int low = 1, high = 0x7bff;
  if (s <= half_value(low)) return float(half_value(low));
  if (s >= half_value(high)) return float(half_value(high));
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (half_value(middle) <= s ? low : high) = middle;
  }
  const double down = s - half_value(low), up = half_value(high) - s;
  const bool take_low = down < up || (down == up && low % 2 == 0);
  return float(half_value(take_low ? low : high));
}

struct Matrix {
  int64_t outputs, inputs, size, groups;
  std::vector<int8_t> codes;
  bool good = true;

  Matrix(int64_t o, int64_t i, int64_t group, int64_t g, int64_t words, const int32_t* packed)
      : outputs(o), inputs(i), size(group == 0 ? i : group), groups(g), codes(size_t(o * i)) {
    good = group == 0 || (group >= 32 && group <= 256);
    for (int64_t at = 0; at < o * i && good; ++at) {
      const int64_t row = at / i, c = at % i;
      const auto code = int(uint32_t(packed[row * words + c / 16]) >> (c % 16 * 2) & 3u);
      good = code != 3;
      codes[at] = int8_t(code - 1);
    }
  }
};

struct Row {
  double step = 0;
  std::vector<int32_t> q;
  std::vector<double> value;

  Row(const float* x, int64_t n, bool int8) : value(x, x + n) {
    if (!int8) return;
    for (const double v : value) step = std::max(step, std::fabs(v) / 127);
    for (double& v : value) {
      q.push_back(step == 0 ? 0 : int32_t(std::lrint(v / step)));
      v = step * q.back();
    }
  }
};

}  // namespace

extern "C" int ternary_project(int64_t outputs, int64_t inputs, int64_t group, int64_t groups,
                               int64_t words, int64_t absmax, const float* weight, int32_t* packed,
                               float* scales) {
  if (group != 0 && (group < 32 || group > 256)) return 1;
  const int64_t size = group == 0 ? inputs : group;
  std::atomic<bool> finite{true};
  in_parallel(outputs, [&](int64_t o) {
    std::vector<uint32_t> row(size_t(words), 0);
    for (int64_t g = 0; g < groups; ++g) {
      const float* const w = weight + o * inputs + g * size;
      const int64_t n = std::min(size, inputs - g * size);
      std::vector<double> sizes;
      for (int64_t i = 0; i < n; ++i) sizes.push_back(std::fabs(double(w[i])));
      std::sort(sizes.begin(), sizes.end());
      double s = 0;
      for (const double v : sizes) s += v;
      if (!std::isfinite(s)) finite = false;
      s = absmax != 0 ? sizes.back() : s / double(n);
      scales[o * groups + g] = finite ? nearest_half(s) : 0;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t c = g * size + i;
        const uint32_t code = 2 * std::fabs(double(w[i])) <= s ? 1 : std::signbit(w[i]) ? 0 : 2;
        row[c / 16] |= code << (c % 16 * 2);
      }
    }
    for (int64_t i = 0; i < words; ++i) packed[o * words + i] = int32_t(row[i]);
  });
  return finite ? 0 : 1;
}

extern "C" int ternary_linear(int64_t rows, int64_t outputs, int64_t inputs, int64_t group,
                              int64_t groups, int64_t words, int64_t int8, const int32_t* packed,
                              const float* scales, const float* x, float* y) {
  const Matrix w(outputs, inputs, group, groups, words, packed);
  if (!w.good) return 1;
  for (int64_t r = 0; r < rows; ++r) {
    const Row row(x + r * inputs, inputs, int8 != 0);
    in_parallel(outputs, [&](int64_t o) {
      float exact = 0;
      double total = 0;
      for (int64_t g = 0; g < groups; ++g) {
        int32_t whole = 0;
        double part = 0;
        for (int64_t c = g * w.size; c < std::min(inputs, (g + 1) * w.size); ++c) {
          const int8_t code = w.codes[o * inputs + c];
          if (int8 != 0) {
            whole += code * row.q[c];
          } else {
            part += code * row.value[c];
          }
        }
        exact = std::fma(scales[o * groups + g], float(whole), exact);
        total += part * double(scales[o * groups + g]);
      }
      y[r * outputs + o] = int8 != 0 ? float(row.step) * exact : float(total);
    });
  }
  return 0;
}

extern "C" int ternary_backward(int64_t rows, int64_t outputs, int64_t inputs, int64_t group,
                                int64_t groups, int64_t words, int64_t int8, const int32_t* packed,
                                const float* scales, const float* x, const float* dy, float* dx,
                                float* dweight) {
  const Matrix w(outputs, inputs, group, groups, words, packed);
  if (!w.good) return 1;
  std::vector<Row> all;
  for (int64_t r = 0; r < rows; ++r) all.emplace_back(x + r * inputs, inputs, int8 != 0);
  in_parallel(rows, [&](int64_t r) {
    std::vector<double> sums(size_t(inputs), 0.0);
    for (int64_t o = 0; o < outputs; ++o) {
      for (int64_t c = 0; c < inputs; ++c) {
        sums[c] += w.codes[o * inputs + c] * double(scales[o * groups + c / w.size]) *
                   double(dy[r * outputs + o]);
      }
    }
    for (int64_t c = 0; c < inputs; ++c) dx[r * inputs + c] = float(sums[c]);
  });
  in_parallel(outputs, [&](int64_t o) {
    for (int64_t c = 0; c < inputs; ++c) {
      double sum = 0;
      for (int64_t r = rows - 1; r >= 0; --r) sum += double(dy[r * outputs + o]) * all[r].value[c];
      dweight[o * inputs + c] = float(sum);
    }
  });
  return 0;
}
