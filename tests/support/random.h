// Random numbers that are a pure function of (seed, index): any element of any array can be made
// again alone, in any order, on any machine.
#pragma once

#include <cstdint>
#include <vector>

namespace touchstone::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}

  std::uint64_t bits(std::int64_t index) const;
  double uniform(std::int64_t index) const;  // [0, 1)
  double normal(std::int64_t index) const;   // mean 0, standard deviation 1, |value| < 8
  double sign(std::int64_t index) const;     // -1 or 1

 private:
  std::uint64_t seed_;
};

enum class Shape : std::uint8_t {
  normal,    // center + scale * N(0, 1)
  uniform,   // center + scale * U[-1, 1)
  signs,     // center +- scale
  constant,  // center
  rows,      // every row constant: center + scale * N(0, 1), one draw per `period` elements
};

struct Distribution {
  Shape shape = Shape::normal;
  double center = 0;
  double scale = 1;
  std::int64_t period = 1;  // Shape::rows only
};

std::vector<double> random_values(const Distribution& distribution, std::int64_t count,
                                  std::uint64_t seed);

}  // namespace touchstone::test
