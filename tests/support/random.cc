#include "tests/support/random.h"

#include <cmath>
#include <numbers>

namespace touchstone::test {
namespace {

// The finalizer of splitmix64: every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

double to_unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

constexpr std::uint64_t kTableMask = 0xffff;

// Box and Muller cost a logarithm and a cosine per number; tests draw hundreds of millions. A sum
// of two draws from a table of normal numbers is normal again and takes one hash.
const std::vector<double>& normal_table() {
  static const std::vector<double> table = [] {
    std::vector<double> values(kTableMask + 1);
    for (std::uint64_t i = 0; i <= kTableMask; ++i) {
      const double u = 1.0 - to_unit(mix(2 * i + 1));
      const double v = to_unit(mix(2 * i + 0x9e3779b97f4a7c15ULL));
      values[i] = std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
    }
    return values;
  }();
  return table;
}

}  // namespace

std::uint64_t Random::bits(std::int64_t index) const {
  const std::uint64_t step = static_cast<std::uint64_t>(index) * 0x9e3779b97f4a7c15ULL;
  return mix(mix(seed_ + 0x632be59bd9b4e019ULL) + step);
}

double Random::uniform(std::int64_t index) const { return to_unit(bits(index)); }

double Random::normal(std::int64_t index) const {
  const std::vector<double>& table = normal_table();
  const std::uint64_t b = bits(index);
  return (table[b & kTableMask] + table[(b >> 32) & kTableMask]) * std::numbers::sqrt2 * 0.5;
}

double Random::sign(std::int64_t index) const { return (bits(index) & 1) != 0 ? 1.0 : -1.0; }

std::vector<double> random_values(const Distribution& d, std::int64_t count, std::uint64_t seed) {
  const Random random(seed);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    double unit = 0;
    switch (d.shape) {
      case Shape::normal:
        unit = random.normal(i);
        break;
      case Shape::uniform:
        unit = 2.0 * random.uniform(i) - 1.0;
        break;
      case Shape::signs:
        unit = random.sign(i);
        break;
      case Shape::constant:
        break;
      case Shape::rows:
        unit = random.normal(i / d.period);
        break;
    }
    values[static_cast<std::size_t>(i)] = d.center + d.scale * unit;
  }
  return values;
}

}  // namespace touchstone::test
