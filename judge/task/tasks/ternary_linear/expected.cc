// Projection, product and gradients in float64, by the statement of the task.
#include <algorithm>
#include <cmath>

#include "judge/task/tasks/ternary_linear/ternary_linear.h"
#include "touchstone/core/half.h"

namespace touchstone::judge::ternary_linear {
namespace {

constexpr double kMinHalf = 0x1p-24;
constexpr double kMaxHalf = 65504;

// A sum of products with what 32-bit arithmetic may do to it.
struct Sum {
  double value = 0;
  double magnitude = 0;
  void add(double term) {
    value += term;
    magnitude += std::abs(term);
  }
};

void store(Expected& to, size_t at, const Sum& sum, double roundings, bool exact) {
  to.value[at] = sum.value;
  to.scale[at] = sum.magnitude;
  to.bound[at] = exact ? 0 : kUnit * roundings * sum.magnitude + kSmallestNormal;
}

}  // namespace

double scale_of(std::span<const float> group, bool absmax) {
  double sum = 0;
  double most = 0;
  for (const float w : group) {
    sum += std::abs(static_cast<double>(w));
    most = std::max(most, std::abs(static_cast<double>(w)));
  }
  return absmax ? most : sum / static_cast<double>(group.size());
}

float stored_scale(double scale) {
  if (scale == 0) return 0;
  return static_cast<float>(F16(std::clamp(scale, kMinHalf, kMaxHalf)));
}

bool must_be_refused(const Problem& p) {
  const bool group = p.group == 0 || (p.group >= 32 && p.group <= 256);
  return !group ||
         std::any_of(p.weight.begin(), p.weight.end(), [](float w) { return !std::isfinite(w); });
}

Projected project(const Problem& p) {
  Projected out;
  out.codes.resize(p.weight.size());
  out.packed.resize(static_cast<size_t>(p.outputs * p.words()));
  for (int64_t o = 0; o < p.outputs; ++o) {
    for (int64_t g = 0; g < p.groups(); ++g) {
      const int64_t begin = g * p.group_size();
      const int64_t end = std::min(begin + p.group_size(), p.inputs);
      const auto first = static_cast<size_t>(o * p.inputs + begin);
      const auto group = std::span(p.weight).subspan(first, static_cast<size_t>(end - begin));
      const double scale = scale_of(group, p.absmax);
      out.scales.push_back(stored_scale(scale));
      for (int64_t c = begin; c < end; ++c) {
        const auto w = static_cast<double>(p.weight[static_cast<size_t>(o * p.inputs + c)]);
        const int32_t code = 2 * std::abs(w) > scale ? (w > 0 ? 1 : -1) : 0;
        out.codes[static_cast<size_t>(o * p.inputs + c)] = code;
        int32_t& word = out.packed[static_cast<size_t>(o * p.words() + c / 16)];
        word = static_cast<int32_t>(static_cast<uint32_t>(word) | static_cast<uint32_t>(code + 1)
                                                                      << (2 * (c % 16)));
      }
    }
  }
  return out;
}

std::vector<int32_t> unpacked(const Problem& p, std::span<const int32_t> packed) {
  std::vector<int32_t> codes(static_cast<size_t>(p.outputs * p.inputs));
  for (int64_t o = 0; o < p.outputs; ++o) {
    for (int64_t c = 0; c < p.inputs; ++c) {
      const auto word = static_cast<uint32_t>(packed[static_cast<size_t>(o * p.words() + c / 16)]);
      codes[static_cast<size_t>(o * p.inputs + c)] =
          static_cast<int32_t>(word >> (2 * (c % 16)) & 3U) - 1;
    }
  }
  return codes;
}

std::vector<double> activations(const Problem& p) {
  std::vector<double> x(p.x.begin(), p.x.end());
  if (!p.int8) return x;
  for (int64_t r = 0; r < p.rows; ++r) {
    const auto row =
        std::span(x).subspan(static_cast<size_t>(r * p.inputs), static_cast<size_t>(p.inputs));
    double most = 0;
    for (const double v : row) most = std::max(most, std::abs(v));
    if (most == 0) continue;
    for (double& v : row) v = most / 127 * std::nearbyint(v * 127 / most);
  }
  return x;
}

Answer expected_answer(const Problem& p, const Projected& given, const Tolerance& t, bool exact) {
  Answer a;
  a.projected = project(p);
  const std::vector<int32_t> codes = unpacked(p, given.packed);
  const std::vector<double> x = activations(p);
  std::vector<double> w(codes.size());
  for (size_t i = 0; i < w.size(); ++i) {
    const auto o = static_cast<int64_t>(i) / p.inputs;
    const int64_t g = static_cast<int64_t>(i) % p.inputs / p.group_size();
    w[i] = codes[i] * static_cast<double>(given.scales[static_cast<size_t>(o * p.groups() + g)]);
  }
  a.y = Expected(p.rows * p.outputs);
  a.dx = Expected(p.rows * p.inputs);
  a.dweight = Expected(p.outputs * p.inputs);
  // Scale, product, and where activations have 8 bits their scale and the number it gives.
  const double few = p.int8 ? 8 : 4;
  const auto at = [](int64_t row, int64_t width, int64_t column) {
    return static_cast<size_t>(row * width + column);
  };
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t o = 0; o < p.outputs; ++o) {
      Sum sum;
      for (int64_t c = 0; c < p.inputs; ++c) sum.add(x[at(r, p.inputs, c)] * w[at(o, p.inputs, c)]);
      store(a.y, at(r, p.outputs, o), sum, t.factor * (few + growth_of(t.growth, p.inputs)), exact);
    }
    std::vector<Sum> sums(static_cast<size_t>(p.inputs));
    for (int64_t o = 0; o < p.outputs; ++o) {
      const auto d = static_cast<double>(p.dy[at(r, p.outputs, o)]);
      for (int64_t c = 0; c < p.inputs; ++c) sums[at(0, 0, c)].add(d * w[at(o, p.inputs, c)]);
    }
    for (int64_t c = 0; c < p.inputs; ++c) {
      store(a.dx, at(r, p.inputs, c), sums[at(0, 0, c)],
            t.factor * (4 + growth_of(t.growth, p.outputs)), exact);
    }
  }
  for (int64_t o = 0; o < p.outputs; ++o) {
    std::vector<Sum> sums(static_cast<size_t>(p.inputs));
    for (int64_t r = 0; r < p.rows; ++r) {
      const auto d = static_cast<double>(p.dy[at(r, p.outputs, o)]);
      for (int64_t c = 0; c < p.inputs; ++c) sums[at(0, 0, c)].add(d * x[at(r, p.inputs, c)]);
    }
    for (int64_t c = 0; c < p.inputs; ++c) {
      store(a.dweight, at(o, p.inputs, c), sums[at(0, 0, c)],
            t.factor * (few + growth_of(t.growth, p.rows)), exact);
    }
  }
  return a;
}

}  // namespace touchstone::judge::ternary_linear
