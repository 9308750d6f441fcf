// Softmax weights of a whole row in f64, with the bins of a histogram over their values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace touchstone::selection {

// weights[i] = exp(x) with x = (values[i] - largest) / temperature, within a relative error of (2 +
// |x|) * 2.2e-16; 0 for -inf and x < -700. No value is above `largest`. bins[i] = min((largest -
// values[i]) * step, last_bin), rounded down. Both arrays have space for a vector more. Returns the
// sum of the weights, in an order that depends on n and the SIMD target alone.
double weigh_and_bin(const float* values, std::size_t n, float largest, double temperature,
                     float step, std::uint16_t last_bin, double* weights, std::uint16_t* bins);

}  // namespace touchstone::selection
