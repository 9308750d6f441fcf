// Straightforward: one block for each row, the maximum, the sum of exponentials, then k rounds that
// look for the largest logit behind the one found before. Right, and reads the row k + 2 times.
#include <cstdint>

namespace {

constexpr int kThreads = 256;
constexpr unsigned kMaxBlocks = 4096;

struct Place {
  float value;
  int32_t index;
};

// Larger values first, of equal ones the first column.
__device__ bool before(Place a, Place b) {
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

template <class T, class Merge>
__device__ T merged(T own, T* shared, Merge merge) {
  shared[threadIdx.x] = own;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) {
      shared[threadIdx.x] = merge(shared[threadIdx.x], shared[threadIdx.x + width]);
    }
    __syncthreads();
  }
  const T all = shared[0];
  __syncthreads();
  return all;
}

__device__ void one_row(const float* row, int64_t vocab, int64_t k, float* probabilities,
                        int32_t* indices) {
  __shared__ float floats[kThreads];
  __shared__ double doubles[kThreads];
  __shared__ Place places[kThreads];
  float top = -INFINITY;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) top = fmaxf(top, row[i]);
  top = merged(top, floats, [](float a, float b) { return fmaxf(a, b); });
  double sum = 0;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
    if (row[i] != -INFINITY) sum += exp(static_cast<double>(row[i]) - top);  // a NaN stays
  }
  sum = merged(sum, doubles, [](double a, double b) { return a + b; });

  Place last{INFINITY, -1};
  for (int64_t j = 0; j < k; ++j) {
    Place best{-INFINITY, INT32_MAX};
    for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
      const Place p{isnan(row[i]) ? -INFINITY : row[i], static_cast<int32_t>(i)};
      if (before(last, p) && before(p, best)) best = p;
    }
    last = merged(best, places, [](Place a, Place b) { return before(b, a) ? b : a; });
    if (threadIdx.x != 0) continue;
    const double weight = last.value == -INFINITY && !isnan(sum)
                              ? 0
                              : exp(static_cast<double>(last.value) - top) / sum;
    probabilities[j] = static_cast<float>(isnan(sum) ? sum : weight);
    indices[j] = last.index;
  }
}

__global__ void softmax_topk_kernel(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                                    float* probabilities, int32_t* indices) {
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    one_row(logits + r * vocab, vocab, k, probabilities + r * k, indices + r * k);
  }
}

}  // namespace

extern "C" int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                            float* probabilities, int32_t* indices, void* stream) {
  if (k < 1 || k > vocab) return 1;
  if (rows == 0) return 0;
  const auto blocks = static_cast<unsigned>(rows < kMaxBlocks ? rows : kMaxBlocks);
  softmax_topk_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      rows, vocab, k, logits, probabilities, indices);
  return cudaGetLastError() == cudaSuccess ? 0 : 1;
}
