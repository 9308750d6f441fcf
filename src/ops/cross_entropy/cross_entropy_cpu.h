// The contribution of a tile of logits to a token: cross_entropy_cpu_rows.cc, f32 in vectors.
#pragma once

#include <cstdint>

namespace touchstone::cross_entropy_op {

struct TileSums {
  double largest;
  double sum;     // of exp(l - largest)
  double logits;  // sum of l
};

TileSums sum_tile(const float* logits, std::int64_t count);
TileSums sum_tile(const double* logits, std::int64_t count);

// Replaces each l by (softmax * exp(l - lse) - uniform) times the slope of the cap, 1 where that is 0.
struct TileGradient {
  double lse = 0;
  double softmax = 0;
  double uniform = 0;
  double soft_cap = 0;
};

void to_tile_gradient(const TileGradient& gradient, float* logits, std::int64_t count);
void to_tile_gradient(const TileGradient& gradient, double* logits, std::int64_t count);

}  // namespace touchstone::cross_entropy_op
