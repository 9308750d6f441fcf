// One warp for each row, four rows in a block. The softmax in one pass: every lane keeps a running
// maximum and rescales its sum in powers of two; lanes are merged by shuffles. The k largest in
// rounds of shuffles.
#include <cstdint>

namespace {

constexpr int kWarps = 4, kLanes = 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr float kLog2e = 1.44269504f;

struct Softmax {
  float top, sum;
};

// Two parts of a row; a part of masked columns only has nothing to add.
__device__ Softmax merged(Softmax a, Softmax b) {
  if (b.top > a.top) {
    const Softmax t = a;
    a = b;
    b = t;
  }
  if (b.top != -INFINITY) a.sum += b.sum * exp2f((b.top - a.top) * kLog2e);
  return a;
}

__global__ void softmax_topk_kernel(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                                    float* probabilities, int32_t* indices) {
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (r >= rows) return;  // the whole warp
  const float* row = logits + r * vocab;

  Softmax own{-INFINITY, 0};
  int has_nan = 0;
  for (int64_t i = lane; i < vocab; i += kLanes) {
    has_nan |= isnan(row[i]);
    own = merged(own, {row[i], row[i] == -INFINITY ? 0.0f : 1.0f});
  }
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    const Softmax other{__shfl_xor_sync(kAll, own.top, offset),
                        __shfl_xor_sync(kAll, own.sum, offset)};
    // Both lanes merge in the same order, or they would round differently.
    own = lane & offset ? merged(other, own) : merged(own, other);
    has_nan |= __shfl_xor_sync(kAll, has_nan, offset);
  }

  float last = INFINITY;
  int32_t last_index = -1;
  for (int64_t j = 0; j < k; ++j) {
    float best = -INFINITY;
    int32_t best_index = INT32_MAX;
    for (int64_t i = lane; i < vocab; i += kLanes) {
      const float v = isnan(row[i]) ? -INFINITY : row[i];
      const bool left = v < last || (v == last && i > last_index);
      if (left && (v > best || best_index == INT32_MAX)) {
        best = v;
        best_index = static_cast<int32_t>(i);
      }
    }
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      const float v = __shfl_xor_sync(kAll, best, offset);
      const int32_t index = __shfl_xor_sync(kAll, best_index, offset);
      if (v > best || (v == best && index < best_index)) {
        best = v;
        best_index = index;
      }
    }
    last = best;
    last_index = best_index;
    if (lane != 0) continue;
    const float p = own.top == -INFINITY ? 0.0f : exp2f((best - own.top) * kLog2e) / own.sum;
    probabilities[r * k + j] = has_nan ? NAN : p;
    indices[r * k + j] = best_index;
  }
}

}  // namespace

extern "C" int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                            float* probabilities, int32_t* indices, void* stream) {
  if (k < 1 || k > vocab) return 1;
  if (rows == 0) return 0;
  const auto blocks = static_cast<unsigned>((rows + kWarps - 1) / kWarps);
  softmax_topk_kernel<<<blocks, dim3(kLanes, kWarps), 0, static_cast<cudaStream_t>(stream)>>>(
      rows, vocab, k, logits, probabilities, indices);
  return cudaGetLastError() == cudaSuccess ? 0 : 1;
}
