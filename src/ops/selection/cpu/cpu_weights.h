// Softmax weights of a whole row in f64, with a histogram over their values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace touchstone::selection {

// The map from values to weights and to bins of the histogram.
struct Weighing {
  float largest = 0;  // no value is above it
  double temperature = 1;
  float step = 1;  // bins per unit of value
  std::uint16_t last_bin = 0;
};

// Arrays of n elements, and one of a mass per bin, which may be missing.
struct WeighedTokens {
  double* weights = nullptr;
  std::uint16_t* bins = nullptr;
  double* masses = nullptr;
};

// weights[i] = exp(x) with x = (values[i] - largest) / temperature, within a relative error of (2 +
// |x|) * 2.2e-16; 0 for -inf and x < -700. bins[i] = min((largest - values[i]) * step, last_bin),
// rounded down. Adds every weight to the mass of its bin, in order. Returns the sum of the weights,
// in an order that depends on n and the SIMD target alone.
double weigh_and_bin(const float* values, std::size_t n, const Weighing& how,
                     const WeighedTokens& to);

// The tokens of a bin in ascending order, and how many they are.
std::size_t collect_bin(const std::uint16_t* bins, std::size_t n, std::uint16_t bin,
                        std::uint32_t* tokens);

}  // namespace touchstone::selection
