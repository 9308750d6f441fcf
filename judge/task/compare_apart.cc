// What is left of the errors of a row when those are taken off that its elements share.
#include <algorithm>
#include <array>
#include <cmath>

#include "judge/task/compare.h"

namespace touchstone::judge {
namespace {

constexpr size_t kMaxShared = 3;
using Square = std::array<std::array<double, kMaxShared + 1>, kMaxShared>;

// Solves the normal equations of `count` unknowns by elimination; an unknown that nothing decides is
// zero.
std::array<double, kMaxShared> solve(Square m, size_t count) {
  std::array<double, kMaxShared> x{};
  std::array<bool, kMaxShared> decided{};
  for (size_t i = 0; i < count; ++i) {
    const double pivot = m[i][i];
    if (!(pivot > 1e-12)) continue;
    decided[i] = true;
    for (size_t r = 0; r < count; ++r) {
      if (r == i) continue;
      const double factor = m[r][i] / pivot;
      for (size_t c = 0; c <= kMaxShared; ++c) m[r][c] -= factor * m[i][c];
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (decided[i]) x[i] = m[i][kMaxShared] / m[i][i];
  }
  return x;
}

}  // namespace

OutputError compare_apart(const std::string& output, int call, std::span<const float> got,
                          const Expected& expected, const Shared& shared) {
  OutputError error;
  error.output = output;
  error.call = call;
  std::vector<std::vector<double>> vectors;
  const auto cols = static_cast<size_t>(shared.cols);
  for (int64_t row = 0; row < shared.rows; ++row) {
    vectors.clear();
    if (!shared.basis(row, vectors)) continue;
    const size_t count = std::min(vectors.size(), kMaxShared);
    const size_t base = static_cast<size_t>(row) * cols;
    Square m{};
    for (size_t j = 0; j < cols; ++j) {
      const double weight = 1 / expected.bound[base + j];
      const double miss = static_cast<double>(got[base + j]) - expected.value[base + j];
      if (!std::isfinite(miss)) continue;  // told by the comparison that comes before
      for (size_t a = 0; a < count; ++a) {
        for (size_t b = 0; b < count; ++b) {
          m[a][b] += weight * vectors[a][j] * weight * vectors[b][j];
        }
        m[a][kMaxShared] += weight * vectors[a][j] * weight * miss;
      }
    }
    // In units in which every vector has length one: none is lost for being small.
    std::array<double, kMaxShared> length{};
    for (size_t a = 0; a < count; ++a) length[a] = std::sqrt(m[a][a]);
    for (size_t a = 0; a < count; ++a) {
      if (!(length[a] > 0)) continue;
      for (size_t b = 0; b < count; ++b) m[a][b] /= length[a] * (length[b] > 0 ? length[b] : 1);
      m[a][kMaxShared] /= length[a];
    }
    const std::array<double, kMaxShared> fit = solve(m, count);
    for (size_t j = 0; j < cols; ++j) {
      double value = expected.value[base + j];
      for (size_t a = 0; a < count; ++a) {
        if (length[a] > 0) value += fit[a] / length[a] * vectors[a][j];
      }
      ++error.count;
      const double miss = std::fabs(static_cast<double>(got[base + j]) - value);
      if (!std::isfinite(miss)) continue;
      error.worst = std::max(error.worst, miss / expected.bound[base + j]);
      if (miss <= expected.bound[base + j]) continue;
      if (error.outside++ != 0) continue;
      error.first = static_cast<int64_t>(base + j);
      error.got = static_cast<double>(got[base + j]);
      error.expected = value;
    }
  }
  return error;
}

}  // namespace touchstone::judge
