// One block for each row, two passes for the softmax; then k rounds, each looking for the largest
// logit behind the one found before. Sums in 64 bits.
#include <cstdint>

namespace {

constexpr int kThreads = 256;

struct Place {
  float value;
  int32_t index;
};

// The order in which places are handed out: larger values first, then smaller indices. NaN counts
// as masked.
__device__ bool before(Place a, Place b) {
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

__device__ Place read(const float* row, int64_t i) {
  const float v = row[i];
  return {isnan(v) ? -INFINITY : v, static_cast<int32_t>(i)};
}

// The first place behind `last` in the whole block; everyone gets it.
__device__ Place next_place(const float* row, int64_t vocab, Place last, Place* shared) {
  Place best{-INFINITY, INT32_MAX};
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
    const Place p = read(row, i);
    if (before(last, p) && before(p, best)) best = p;
  }
  shared[threadIdx.x] = best;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width && before(shared[threadIdx.x + width], shared[threadIdx.x])) {
      shared[threadIdx.x] = shared[threadIdx.x + width];
    }
    __syncthreads();
  }
  const Place found = shared[0];
  __syncthreads();
  return found;
}

__device__ double sum_of_block(double own, double* shared) {
  shared[threadIdx.x] = own;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) shared[threadIdx.x] += shared[threadIdx.x + width];
    __syncthreads();
  }
  const double sum = shared[0];
  __syncthreads();
  return sum;
}

__global__ void __launch_bounds__(kThreads)
    softmax_topk_kernel(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                        float* probabilities, int32_t* indices) {
  __shared__ Place places[kThreads];
  __shared__ double sums[kThreads];
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const float* row = logits + r * vocab;
    double nans = 0;
    for (int64_t i = threadIdx.x; i < vocab; i += kThreads) nans += isnan(row[i]) ? 1 : 0;
    const bool has_nan = sum_of_block(nans, sums) > 0;
    Place place = next_place(row, vocab, {INFINITY, -1}, places);
    const float top = place.value;
    double own = 0;
    for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
      if (top != -INFINITY) own += exp(static_cast<double>(row[i]) - top);
    }
    const double sum = sum_of_block(own, sums);
    for (int64_t j = 0; j < k; ++j) {
      if (threadIdx.x == 0) {
        double p = top == -INFINITY ? 0 : exp(static_cast<double>(place.value) - top) / sum;
        if (has_nan) p = NAN;
        probabilities[r * k + j] = static_cast<float>(p);
        indices[r * k + j] = place.index;
      }
      place = next_place(row, vocab, place, places);
    }
  }
}

}  // namespace

extern "C" int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                            float* probabilities, int32_t* indices, void* stream) {
  if (k < 1 || k > vocab) return 1;
  if (rows == 0) return 0;
  const auto blocks = static_cast<unsigned>(rows < 4096 ? rows : 4096);
  softmax_topk_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      rows, vocab, k, logits, probabilities, indices);
  return cudaGetLastError() == cudaSuccess ? 0 : 1;
}
