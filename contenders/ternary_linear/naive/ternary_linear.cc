// Codes as bytes, sums in double, no blocking.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

bool legal(int64_t group) { return group == 0 || (group >= 32 && group <= 256); }

// The nearest half, ties to even; what is above 0 stays in the range of halves.
float half(double s) {
  if (s == 0) return 0;
  s = std::min(std::max(s, 0x1p-24), 65504.0);
  const double step = std::max(std::ldexp(1.0, std::ilogb(s) - 10), 0x1p-24);
  return float(std::nearbyint(s / step) * step);
}

// False: a code of 3.
bool unpack(int64_t outputs, int64_t inputs, int64_t words, const int32_t* packed,
            std::vector<int8_t>& codes) {
  codes.resize(outputs * inputs);
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t c = 0; c < inputs; ++c) {
      const uint32_t code = uint32_t(packed[o * words + c / 16]) >> (2 * (c % 16)) & 3u;
      if (code == 3) return false;
      codes[o * inputs + c] = int8_t(int(code) - 1);
    }
  }
  return true;
}

std::vector<double> activations(int64_t rows, int64_t inputs, int64_t int8, const float* x) {
  std::vector<double> out(x, x + rows * inputs);
  for (int64_t r = 0; r < rows && int8 != 0; ++r) {
    double most = 0;
    for (int64_t c = 0; c < inputs; ++c) most = std::max(most, std::fabs(out[r * inputs + c]));
    if (most == 0) continue;
    for (int64_t c = 0; c < inputs; ++c) {
      double& v = out[r * inputs + c];
      v = most / 127 * std::nearbyint(v / (most / 127));
    }
  }
  return out;
}

}  // namespace

extern "C" int ternary_project(int64_t outputs, int64_t inputs, int64_t group, int64_t groups,
                               int64_t words, int64_t absmax, const float* weight, int32_t* packed,
                               float* scales) {
  if (!legal(group)) return 1;
  const int64_t size = group == 0 ? inputs : group;
  for (int64_t i = 0; i < outputs * inputs; ++i) {
    if (!std::isfinite(weight[i])) return 1;
  }
  std::fill_n(packed, outputs * words, 0);
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * size, end = std::min(inputs, begin + size);
      double sum = 0, most = 0;
      for (int64_t c = begin; c < end; ++c) {
        const double w = std::fabs(weight[o * inputs + c]);
        sum += w;
        most = std::max(most, w);
      }
      const double s = absmax != 0 ? most : sum / double(end - begin);
      scales[o * groups + g] = half(s);
      for (int64_t c = begin; c < end; ++c) {
        const double w = weight[o * inputs + c];
        const uint32_t code = 2 * std::fabs(w) > s ? (w > 0 ? 2 : 0) : 1;
        packed[o * words + c / 16] |= int32_t(code << (2 * (c % 16)));
      }
    }
  }
  return 0;
}

extern "C" int ternary_linear(int64_t rows, int64_t outputs, int64_t inputs, int64_t group,
                              int64_t groups, int64_t words, int64_t int8, const int32_t* packed,
                              const float* scales, const float* x, float* y) {
  std::vector<int8_t> codes;
  if (!legal(group) || !unpack(outputs, inputs, words, packed, codes)) return 1;
  const int64_t size = group == 0 ? inputs : group;
  const std::vector<double> a = activations(rows, inputs, int8, x);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < outputs; ++o) {
      double total = 0;
      for (int64_t g = 0; g < groups; ++g) {
        double sum = 0;
        for (int64_t c = g * size; c < std::min(inputs, (g + 1) * size); ++c) {
          sum += a[r * inputs + c] * codes[o * inputs + c];
        }
        total += sum * scales[o * groups + g];
      }
      y[r * outputs + o] = float(total);
    }
  }
  return 0;
}

extern "C" int ternary_backward(int64_t rows, int64_t outputs, int64_t inputs, int64_t group,
                                int64_t groups, int64_t words, int64_t int8, const int32_t* packed,
                                const float* scales, const float* x, const float* dy, float* dx,
                                float* dweight) {
  std::vector<int8_t> codes;
  if (!legal(group) || !unpack(outputs, inputs, words, packed, codes)) return 1;
  const int64_t size = group == 0 ? inputs : group;
  const std::vector<double> a = activations(rows, inputs, int8, x);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < inputs; ++c) {
      double sum = 0;
      for (int64_t o = 0; o < outputs; ++o) {
        sum += double(dy[r * outputs + o]) * scales[o * groups + c / size] * codes[o * inputs + c];
      }
      dx[r * inputs + c] = float(sum);
    }
  }
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t c = 0; c < inputs; ++c) {
      double sum = 0;
      for (int64_t r = 0; r < rows; ++r) sum += double(dy[r * outputs + o]) * a[r * inputs + c];
      dweight[o * inputs + c] = float(sum);
    }
  }
  return 0;
}
