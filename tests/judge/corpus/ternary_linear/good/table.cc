// Four codes of a byte at a time from a table, in 32-bit arithmetic; sums of groups are added at the end.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using Four = std::array<float, 4>;

const std::array<Four, 256>& table() {
  static const std::array<Four, 256> all = [] {
    std::array<Four, 256> made{};
    for (int byte = 0; byte < 256; ++byte) {
      for (int i = 0; i < 4; ++i) made[byte][i] = float((byte >> (2 * i) & 3) - 1);
    }
    return made;
  }();
  return all;
}

bool legal(int64_t group) { return group == 0 || (group >= 32 && group <= 256); }

// Bits of the nearest half of a float: the rest is rounded by adding to the 13 bits that go.
float nearest_half(float s) {
  if (s == 0) return 0;
  s = std::min(std::max(s, 0x1p-24f), 65504.0f);
  if (s < 0x1p-14f) return std::nearbyint(s * 0x1p24f) * 0x1p-24f;
  uint32_t bits;
  std::memcpy(&bits, &s, 4);
  bits += 0xfff + (bits >> 13 & 1);
  bits &= ~0x1fffu;
  std::memcpy(&s, &bits, 4);
  return s;
}

// Rows of weights as floats, -1, 0 and +1; false: a code of 3.
bool expand(int64_t outputs, int64_t inputs, int64_t words, const int32_t* packed,
            std::vector<float>& codes) {
  codes.resize(size_t(outputs * words * 16));
  const auto* bytes = reinterpret_cast<const unsigned char*>(packed);
  for (int64_t i = 0; i < outputs * words * 4; ++i) {
    std::copy_n(table()[bytes[i]].begin(), 4, codes.begin() + 4 * i);
  }
  for (int64_t o = 0; o < outputs; ++o) {
    const auto row = codes.begin() + o * words * 16;
    if (std::find(row, row + inputs, 2.0f) != row + inputs) return false;
    std::fill(row + inputs, row + words * 16, 0.0f);
  }
  return true;
}

std::vector<float> seen(int64_t rows, int64_t inputs, int64_t int8, const float* x) {
  std::vector<float> out(x, x + rows * inputs);
  for (int64_t r = 0; r < rows && int8 != 0; ++r) {
    float* const row = out.data() + r * inputs;
    float most = 0;
    for (int64_t c = 0; c < inputs; ++c) most = std::max(most, std::fabs(row[c]));
    if (most == 0) continue;
    const float step = most / 127;
    for (int64_t c = 0; c < inputs; ++c) row[c] = step * std::nearbyint(row[c] * (127 / most));
  }
  return out;
}

}  // namespace

extern "C" int ternary_project(int64_t outputs, int64_t inputs, int64_t group, int64_t groups,
                               int64_t words, int64_t absmax, const float* weight, int32_t* packed,
                               float* scales) {
  if (!legal(group)) return 1;
  const int64_t size = group == 0 ? inputs : group;
  std::fill_n(packed, outputs * words, 0);
  for (int64_t o = 0; o < outputs; ++o) {
    const float* const row = weight + o * inputs;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * size, end = std::min(inputs, begin + size);
      float most = 0, block = 0, sum = 0;
      for (int64_t c = begin; c < end; ++c) {
        if (!std::isfinite(row[c])) return 1;
        most = std::max(most, std::fabs(row[c]));
        block += std::fabs(row[c]);
        if (c % 32 == 31) sum += block, block = 0;
      }
      const float s = absmax != 0 ? most : (sum + block) / float(end - begin);
      scales[o * groups + g] = nearest_half(s);
      for (int64_t c = begin; c < end; ++c) {
        const uint32_t code = 1u + (2 * row[c] > s) - (-2 * row[c] > s);
        packed[o * words + c / 16] |= int32_t(code << (2 * (c % 16)));
      }
    }
  }
  return 0;
}

extern "C" int ternary_linear(int64_t rows, int64_t outputs, int64_t inputs, int64_t group,
                              int64_t groups, int64_t words, int64_t int8, const int32_t* packed,
                              const float* scales, const float* x, float* y) {
  std::vector<float> codes;
  if (!legal(group) || !expand(outputs, inputs, words, packed, codes)) return 1;
  const int64_t size = group == 0 ? inputs : group;
  const std::vector<float> a = seen(rows, inputs, int8, x);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < outputs; ++o) {
      const float* const w = codes.data() + o * words * 16;
      const float* const v = a.data() + r * inputs;
      float total = 0;
      for (int64_t g = 0; g < groups; ++g) {
        std::array<float, 4> lanes{};
        float block = 0;
        const int64_t begin = g * size, end = std::min(inputs, begin + size);
        for (int64_t c = begin; c < end; ++c) {
          lanes[c % 4] += w[c] * v[c];
          if ((c - begin) % 512 == 511) {
            block += (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
            lanes = {};
          }
        }
        total += scales[o * groups + g] * (block + (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
      }
      y[r * outputs + o] = total;
    }
  }
  return 0;
}

extern "C" int ternary_backward(int64_t rows, int64_t outputs, int64_t inputs, int64_t group,
                                int64_t groups, int64_t words, int64_t int8, const int32_t* packed,
                                const float* scales, const float* x, const float* dy, float* dx,
                                float* dweight) {
  std::vector<float> codes;
  if (!legal(group) || !expand(outputs, inputs, words, packed, codes)) return 1;
  const int64_t size = group == 0 ? inputs : group;
  const std::vector<float> a = seen(rows, inputs, int8, x);
  std::fill_n(dx, rows * inputs, 0.0f);
  std::fill_n(dweight, outputs * inputs, 0.0f);
  for (int64_t begin = 0; begin < outputs; begin += 256) {
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<float> part(size_t(inputs), 0.0f);
      for (int64_t o = begin; o < std::min(outputs, begin + 256); ++o) {
        const float d = dy[r * outputs + o];
        for (int64_t c = 0; c < inputs; ++c) {
          part[c] += d * scales[o * groups + c / size] * codes[o * words * 16 + c];
          dweight[o * inputs + c] += d * a[r * inputs + c];
        }
      }
      for (int64_t c = 0; c < inputs; ++c) dx[r * inputs + c] += part[c];
    }
  }
  return 0;
}
