// The matrix expanded to long double and columns in the outermost loop, in blocks of 24; one template
// for both kinds of activations.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

using Wide = long double;
constexpr int64_t kBlock = 24;

bool legal(int64_t group) { return group == 0 || (group >= 32 && group <= 256); }

// The nearest half by two additions: what is below the last bit of a half falls off, ties to even.
float to_half(Wide s) {
  if (s == 0) return 0;
  if (s <= 0x1p-24L) return 0x1p-24f;
  if (s >= 65504) return 65504;
  int exponent = 0;
  std::frexp(s, &exponent);
  const Wide unit = std::ldexp(Wide(1), std::max(exponent - 11, -24));
  const Wide large = unit * 0x1p63L;
  volatile Wide sum = s + large;
  return float(sum - large);
}

struct Matrix {
  int64_t outputs, inputs;
  std::vector<Wide> w;  // [inputs, outputs]: a column is contiguous
  bool bad = false;

  Matrix(int64_t outputs_, int64_t inputs_, int64_t group, int64_t groups, int64_t words,
         const int32_t* packed, const float* scales)
      : outputs(outputs_), inputs(inputs_), w(size_t(outputs_ * inputs_)) {
    for (int64_t c = 0; c < inputs; ++c) {
      for (int64_t o = 0; o < outputs; ++o) {
        const unsigned code = (unsigned(packed[o * words + (c >> 4)]) >> ((c & 15) * 2)) & 3;
        bad |= code == 3;
        const Wide scale = scales[o * groups + (group == 0 ? 0 : c / group)];
        w[size_t(c * outputs + o)] = scale * (int(code) - 1);
      }
    }
  }
};

template <bool kInt8>
std::vector<Wide> activations(int64_t rows, int64_t inputs, const float* x) {
  std::vector<Wide> all(x, x + rows * inputs);
  if constexpr (kInt8) {
    for (int64_t r = 0; r < rows; ++r) {
      Wide* const row = all.data() + r * inputs;
      Wide most = 0;
      for (int64_t c = inputs; c-- > 0;) most = std::max(most, std::fabs(row[c]));
      for (int64_t c = 0; c < inputs && most != 0; ++c) {
        row[c] = std::nearbyint(row[c] * 127 / most) * most / 127;
      }
    }
  }
  return all;
}

template <bool kInt8>
void multiply(int64_t rows, const Matrix& m, const float* x, float* y) {
  const std::vector<Wide> a = activations<kInt8>(rows, m.inputs, x);
  std::vector<Wide> sums(size_t(rows * m.outputs));
  for (int64_t begin = 0; begin < m.inputs; begin += kBlock) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = std::min(begin + kBlock, m.inputs); c-- > begin;) {
        const Wide v = a[size_t(r * m.inputs + c)];
        const Wide* const column = m.w.data() + c * m.outputs;
        for (int64_t o = 0; o < m.outputs; ++o) sums[size_t(r * m.outputs + o)] += v * column[o];
      }
    }
  }
  std::copy(sums.begin(), sums.end(), y);
}

template <bool kInt8>
void gradients(int64_t rows, const Matrix& m, const float* x, const float* dy, float* dx,
               float* dweight) {
  const std::vector<Wide> a = activations<kInt8>(rows, m.inputs, x);
  for (int64_t c = 0; c < m.inputs; ++c) {
    std::vector<Wide> dw(size_t(m.outputs));
    for (int64_t r = 0; r < rows; ++r) {
      Wide sum = 0;
      for (int64_t o = 0; o < m.outputs; ++o) {
        const Wide d = dy[r * m.outputs + o];
        sum += d * m.w[size_t(c * m.outputs + o)];
        dw[size_t(o)] += d * a[size_t(r * m.inputs + c)];
      }
      dx[r * m.inputs + c] = float(sum);
    }
    for (int64_t o = 0; o < m.outputs; ++o) dweight[o * m.inputs + c] = float(dw[size_t(o)]);
  }
}

}  // namespace

extern "C" int ternary_project(int64_t outputs, int64_t inputs, int64_t group, int64_t groups,
                               int64_t words, int64_t absmax, const float* weight, int32_t* packed,
                               float* scales) {
  if (!legal(group)) return 1;
  for (int64_t i = 0; i < outputs * inputs; ++i) {
    if (!std::isfinite(weight[i])) return 1;
  }
  const int64_t size = group == 0 ? inputs : group;
  for (int64_t o = 0; o < outputs; ++o) {
    std::vector<Wide> s(size_t(groups), 0);
    for (int64_t c = inputs; c-- > 0;) {
      Wide& of = s[size_t(c / size)];
      const Wide w = std::fabs(Wide(weight[o * inputs + c]));
      of = absmax ? std::max(of, w) : of + w;
    }
    for (int64_t g = 0; g < groups; ++g) {
      if (!absmax) s[size_t(g)] /= std::min(size, inputs - g * size);
      scales[o * groups + g] = to_half(s[size_t(g)]);
    }
    for (int64_t word = 0; word < words; ++word) {
      uint32_t bits = 0;
      for (int64_t c = std::min(16 * word + 16, inputs); c-- > 16 * word;) {
        const Wide w = weight[o * inputs + c], limit = s[size_t(c / size)];
        bits = bits << 2 | uint32_t(1 + (2 * w > limit) - (-2 * w > limit));
      }
      packed[o * words + word] = int32_t(bits);
    }
  }
  return 0;
}

extern "C" int ternary_linear(int64_t rows, int64_t outputs, int64_t inputs, int64_t group,
                              int64_t groups, int64_t words, int64_t int8, const int32_t* packed,
                              const float* scales, const float* x, float* y) {
  if (!legal(group)) return 1;
  const Matrix m(outputs, inputs, group, groups, words, packed, scales);
  if (m.bad) return 1;
  int8 ? multiply<true>(rows, m, x, y) : multiply<false>(rows, m, x, y);
  return 0;
}

extern "C" int ternary_backward(int64_t rows, int64_t outputs, int64_t inputs, int64_t group,
                                int64_t groups, int64_t words, int64_t int8, const int32_t* packed,
                                const float* scales, const float* x, const float* dy, float* dx,
                                float* dweight) {
  if (!legal(group)) return 1;
  const Matrix m(outputs, inputs, group, groups, words, packed, scales);
  if (m.bad) return 1;
  int8 ? gradients<true>(rows, m, x, dy, dx, dweight)
       : gradients<false>(rows, m, x, dy, dx, dweight);
  return 0;
}
