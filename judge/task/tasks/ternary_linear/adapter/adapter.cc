// From the contract of the task to the functions that were found: words of 16 codes to bytes and back, and
// a loop over rows.
#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "theirs.h"

namespace {

bool legal(int64_t group) { return group == 0 || (group >= 32 && group <= 256); }

// False: a code of 3.
bool unpack(int64_t outputs, int64_t inputs, int64_t group, int64_t groups, int64_t words,
            const int32_t* packed, const float* scales, TernaryMatrix& w) {
  w.rows = static_cast<int>(outputs);
  w.cols = static_cast<int>(inputs);
  w.block = static_cast<int>(group == 0 ? inputs : group);
  w.factors.assign(scales, scales + outputs * groups);
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t c = 0; c < inputs; ++c) {
      const auto word = static_cast<uint32_t>(packed[o * words + c / 16]);
      const auto code = static_cast<int>(word >> (2 * (c % 16)) & 3u);
      if (code == 3) return false;
      w.trits.push_back(static_cast<int8_t>(code - 1));
    }
  }
  return true;
}

}  // namespace

extern "C" int ternary_project(int64_t outputs, int64_t inputs, int64_t group, int64_t groups,
                               int64_t words, int64_t absmax, const float* weight, int32_t* packed,
                               float* scales) {
  if (!legal(group)) return 1;
  try {
    const TernaryMatrix w = quantize(weight, static_cast<int>(outputs), static_cast<int>(inputs),
                                     static_cast<int>(group == 0 ? inputs : group),
                                     absmax != 0 ? ScaleKind::largest : ScaleKind::mean);
    std::copy_n(w.factors.begin(), outputs * groups, scales);
    std::fill_n(packed, outputs * words, 0);
    for (int64_t o = 0; o < outputs; ++o) {
      for (int64_t c = 0; c < inputs; ++c) {
        const auto code = static_cast<uint32_t>(w.trits[o * inputs + c] + 1);
        packed[o * words + c / 16] |= static_cast<int32_t>(code << (2 * (c % 16)));
      }
    }
  } catch (const std::domain_error&) {
    return 1;
  }
  return 0;
}

extern "C" int ternary_linear(int64_t rows, int64_t outputs, int64_t inputs, int64_t group,
                              int64_t groups, int64_t words, int64_t int8, const int32_t* packed,
                              const float* scales, const float* x, float* y) {
  TernaryMatrix w;
  if (!legal(group) || !unpack(outputs, inputs, group, groups, words, packed, scales, w)) return 1;
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<float> row(x + r * inputs, x + (r + 1) * inputs);
    if (int8 != 0) row = to_int8_and_back(row.data(), w.cols);
    forward(w, row.data(), y + r * outputs);
  }
  return 0;
}

extern "C" int ternary_backward(int64_t rows, int64_t outputs, int64_t inputs, int64_t group,
                                int64_t groups, int64_t words, int64_t int8, const int32_t* packed,
                                const float* scales, const float* x, const float* dy, float* dx,
                                float* dweight) {
  TernaryMatrix w;
  if (!legal(group) || !unpack(outputs, inputs, group, groups, words, packed, scales, w)) return 1;
  std::vector<double> sums(static_cast<size_t>(outputs * inputs));
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<float> row(x + r * inputs, x + (r + 1) * inputs);
    if (int8 != 0) row = to_int8_and_back(row.data(), w.cols);
    backward(w, row.data(), dy + r * outputs, dx + r * inputs, sums.data());
  }
  std::copy(sums.begin(), sums.end(), dweight);
  return 0;
}
