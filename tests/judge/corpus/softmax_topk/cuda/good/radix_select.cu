// Three kernels with scratch memory from the stream. The first finds maximum and sum of each row;
// the second the key of rank k by radix selection, eight bits at a time, and gathers what lies at
// or above it; the third sorts the gathered ones by counting, for each, those that come before it.
#include <cstdint>

namespace {

constexpr int kThreads = 256;

struct Row {
  float top;
  float sum;
  int32_t has_nan;
};

// Unsigned numbers in the order of the floats; NaN counts as masked, -0 as 0.
__device__ uint32_t key_of(float v) {
  if (isnan(v)) v = -INFINITY;
  const uint32_t bits = __float_as_uint(v == 0 ? 0.0f : v);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__global__ void statistics(int64_t vocab, const float* logits, Row* found) {
  __shared__ float floats[kThreads];
  __shared__ int32_t flags[kThreads];
  const float* row = logits + blockIdx.x * vocab;
  const int t = static_cast<int>(threadIdx.x);
  float top = -INFINITY;
  int32_t has_nan = 0;
  for (int64_t i = t; i < vocab; i += kThreads) {
    has_nan |= isnan(row[i]);
    top = fmaxf(top, row[i]);
  }
  floats[t] = top;
  flags[t] = has_nan;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (t < width) {
      floats[t] = fmaxf(floats[t], floats[t + width]);
      flags[t] |= flags[t + width];
    }
    __syncthreads();
  }
  top = floats[0];
  __syncthreads();
  float sum = 0;
  for (int64_t i = t; i < vocab; i += kThreads) {
    if (top != -INFINITY) sum += expf(row[i] - top);
  }
  floats[t] = sum;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (t < width) floats[t] += floats[t + width];
    __syncthreads();
  }
  if (t == 0) found[blockIdx.x] = {top, floats[0], flags[0]};
}

__global__ void gather(int64_t vocab, int64_t k, const float* logits, int32_t* candidates) {
  __shared__ int32_t histogram[256];
  __shared__ uint32_t prefix;
  __shared__ int32_t wanted;
  __shared__ int32_t counts[kThreads + 1];
  const float* row = logits + blockIdx.x * vocab;
  const int t = static_cast<int>(threadIdx.x);
  if (t == 0) {
    prefix = 0;
    wanted = static_cast<int32_t>(k);
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    histogram[t] = 0;
    __syncthreads();
    const uint32_t mask = shift == 24 ? 0u : ~0u << (shift + 8);
    const uint32_t high = prefix;
    for (int64_t i = t; i < vocab; i += kThreads) {
      const uint32_t key = key_of(row[i]);
      if ((key & mask) == high) atomicAdd(&histogram[(key >> shift) & 255u], 1);
    }
    __syncthreads();
    if (t == 0) {
      int digit = 255;
      for (; wanted > histogram[digit]; --digit) wanted -= histogram[digit];
      prefix |= static_cast<uint32_t>(digit) << shift;
    }
    __syncthreads();
  }
  const uint32_t threshold = prefix;
  // Every thread owns a stretch of the row, so that the gathered ones keep their order.
  const int64_t stretch = (vocab + kThreads - 1) / kThreads;
  const int64_t begin = t * stretch, end = begin + stretch < vocab ? begin + stretch : vocab;
  int32_t equal = 0;
  for (int64_t i = begin; i < end; ++i) equal += key_of(row[i]) == threshold;
  counts[t + 1] = equal;
  __syncthreads();
  if (t == 0) {
    counts[0] = 0;
    for (int i = 0; i < kThreads; ++i) counts[i + 1] += counts[i];
  }
  __syncthreads();
  int32_t ties_before = counts[t];
  __syncthreads();
  int32_t kept = 0;
  int32_t tie = ties_before;
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t key = key_of(row[i]);
    kept += key > threshold || (key == threshold && tie++ < wanted);
  }
  counts[t + 1] = kept;
  __syncthreads();
  if (t == 0) {
    counts[0] = 0;
    for (int i = 0; i < kThreads; ++i) counts[i + 1] += counts[i];
  }
  __syncthreads();
  int32_t* to = candidates + blockIdx.x * k + counts[t];
  tie = ties_before;
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t key = key_of(row[i]);
    if (key > threshold || (key == threshold && tie++ < wanted)) *to++ = static_cast<int32_t>(i);
  }
}

__global__ void sort_and_write(int64_t vocab, int64_t k, const float* logits, const Row* found,
                               const int32_t* candidates, float* probabilities, int32_t* indices) {
  const float* row = logits + blockIdx.x * vocab;
  const Row& r = found[blockIdx.x];
  const int32_t* list = candidates + blockIdx.x * k;
  for (int64_t j = threadIdx.x; j < k; j += kThreads) {
    const float value = row[list[j]];
    const uint32_t key = key_of(value);
    int64_t rank = 0;
    for (int64_t other = 0; other < k; ++other) {
      const uint32_t its = key_of(row[list[other]]);
      rank += its > key || (its == key && other < j);
    }
    const float p = r.top == -INFINITY ? 0.0f : expf(value - r.top) / r.sum;
    probabilities[blockIdx.x * k + rank] = r.has_nan ? NAN : p;
    indices[blockIdx.x * k + rank] = list[j];
  }
}

}  // namespace

extern "C" int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                            float* probabilities, int32_t* indices, void* stream) {
  if (k < 1 || k > vocab) return 1;
  if (rows == 0) return 0;
  const auto on = static_cast<cudaStream_t>(stream);
  void* found = nullptr;
  void* candidates = nullptr;
  if (cudaMallocAsync(&found, rows * sizeof(Row), on) != cudaSuccess) return 2;
  if (cudaMallocAsync(&candidates, rows * k * sizeof(int32_t), on) != cudaSuccess) return 2;
  const auto blocks = static_cast<unsigned>(rows);
  auto* of_rows = static_cast<Row*>(found);
  auto* list = static_cast<int32_t*>(candidates);
  statistics<<<blocks, kThreads, 0, on>>>(vocab, logits, of_rows);
  gather<<<blocks, kThreads, 0, on>>>(vocab, k, logits, list);
  sort_and_write<<<blocks, kThreads, 0, on>>>(vocab, k, logits, of_rows, list, probabilities,
                                              indices);
  const bool launched = cudaGetLastError() == cudaSuccess;
  cudaFreeAsync(candidates, on);
  cudaFreeAsync(found, on);
  return launched ? 0 : 1;
}
