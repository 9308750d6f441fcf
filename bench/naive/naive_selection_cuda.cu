// Selection on CUDA as one gets it by writing each step as its own kernel: maximum, sum, normalize,
// select, and for samples draw. One block per row, or one thread per element or row.
#include <memory>

#include "bench/cuda_dtype.cuh"
#include "bench/naive/naive.h"
#include "cuda/check.h"
#include "spec/sample_controls.h"
#include "touchstone/core/random.h"
#include "touchstone/core/tensor.h"

namespace touchstone::bench {
namespace {

constexpr int kThreads = 256;

// A probability and its token; no token is -1.
struct Entry {
  float value;
  int token;
};

__device__ bool comes_before(Entry a, Entry b) {
  return a.value > b.value || (a.value == b.value && a.token < b.token);
}

template <class T>
__global__ void max_kernel(const T* logits, float* largest, std::int64_t cols) {
  const T* row = logits + blockIdx.x * cols;
  float value = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < cols; i += kThreads) value = fmaxf(value, load(row + i));
  value = block_join<kThreads>(value, [](float a, float b) { return fmaxf(a, b); });
  if (threadIdx.x == 0) largest[blockIdx.x] = value;
}

template <class T>
__global__ void sum_kernel(const T* logits, const float* largest, float temperature, float* sums,
                           std::int64_t cols) {
  const T* row = logits + blockIdx.x * cols;
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < cols; i += kThreads) {
    sum += expf((load(row + i) - largest[blockIdx.x]) / temperature);
  }
  sum = block_join<kThreads>(sum, [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class T>
__global__ void normalize_kernel(const T* logits, const float* largest, const float* sums,
                                 float temperature, float* probabilities, std::int64_t rows,
                                 std::int64_t cols) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= rows * cols) return;
  const std::int64_t row = at / cols;
  probabilities[at] = expf((load(logits + at) - largest[row]) / temperature) / sums[row];
}

// The next in order, k times.
__global__ void select_kernel(const float* probabilities, float* values, int* tokens, int k,
                              std::int64_t cols) {
  const float* row = probabilities + blockIdx.x * cols;
  Entry last = {INFINITY, -1};
  for (int rank = 0; rank < k; ++rank) {
    Entry best = {-1.0F, 0x7fffffff};
    for (std::int64_t i = threadIdx.x; i < cols; i += kThreads) {
      const Entry here = {row[i], static_cast<int>(i)};
      if (comes_before(last, here) && comes_before(here, best)) best = here;
    }
    last = block_join<kThreads>(best, [](Entry a, Entry b) { return comes_before(a, b) ? a : b; });
    if (threadIdx.x == 0) {
      values[static_cast<std::int64_t>(blockIdx.x) * k + rank] = last.value;
      tokens[static_cast<std::int64_t>(blockIdx.x) * k + rank] = last.token;
    }
  }
}

// One thread per row.
__global__ void draw_kernel(const float* top_values, const int* top_tokens,
                            const std::int64_t* seed, const std::int64_t* position,
                            float* log_probability, int* token, int k, std::int64_t rows) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= rows) return;
  const float* values = top_values + row * k;
  double mass = 0;
  for (int rank = 0; rank < k; ++rank) mass += static_cast<double>(values[rank]);
  double kept_mass = 0;
  int kept = 0;
  while (kept < k && kept_mass < static_cast<double>(spec::kSampleTopP) * mass) {
    kept_mass += static_cast<double>(values[kept++]);
  }
  const double u = random_uniform(seed[row], position[row]);
  double sum = 0;
  int rank = -1;
  while (rank + 1 < kept && sum <= u * kept_mass) sum += static_cast<double>(values[++rank]);
  token[row] = top_tokens[row * k + rank];
  log_probability[row] = logf(values[rank]);
}

unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

template <class T>
class NaiveChain {
 public:
  NaiveChain(Context& context, const SelectionOperands& like)
      : stream_(static_cast<cudaStream_t>(context.stream())),
        device_(context.device()),
        largest_(Tensor::empty({like.rows}, DType::f32, device_)),
        sums_(Tensor::empty({like.rows}, DType::f32, device_)),
        probabilities_(Tensor::empty({like.rows, like.cols}, DType::f32, device_)) {
    if (!like.sampled) return;
    top_values_ = Tensor::empty({like.rows, like.k}, DType::f32, device_);
    top_tokens_ = Tensor::empty({like.rows, like.k}, DType::i32, device_);
  }

  void run(const SelectionOperands& p) {
    const cuda::DeviceScope scope(device_.index);
    const float temperature = p.sampled ? spec::kSampleTemperature : 1.0F;
    const auto row_blocks = static_cast<unsigned>(p.rows);
    const auto k = static_cast<int>(p.k);
    const T* logits = static_cast<const T*>(p.logits);
    float* largest = static_cast<float*>(largest_.data());
    float* sums = static_cast<float*>(sums_.data());
    float* probabilities = static_cast<float*>(probabilities_.data());
    max_kernel<<<row_blocks, kThreads, 0, stream_>>>(logits, largest, p.cols);
    sum_kernel<<<row_blocks, kThreads, 0, stream_>>>(logits, largest, temperature, sums, p.cols);
    normalize_kernel<<<blocks_for(p.rows * p.cols), kThreads, 0, stream_>>>(
        logits, largest, sums, temperature, probabilities, p.rows, p.cols);
    auto* values = p.sampled ? static_cast<float*>(top_values_.data()) : p.values;
    auto* tokens = p.sampled ? static_cast<int*>(top_tokens_.data()) : p.tokens;
    select_kernel<<<row_blocks, kThreads, 0, stream_>>>(probabilities, values, tokens, k, p.cols);
    if (p.sampled) {
      draw_kernel<<<blocks_for(p.rows), kThreads, 0, stream_>>>(values, tokens, p.seed, p.position,
                                                                p.values, p.tokens, k, p.rows);
    }
    cuda::check_launch("naive selection");
  }

 private:
  cudaStream_t stream_;
  Device device_;
  Tensor largest_;
  Tensor sums_;
  Tensor probabilities_;
  Tensor top_values_;
  Tensor top_tokens_;
};

}  // namespace

NaiveSelection naive_selection_cuda(Context& context, const SelectionOperands& like) {
  return visit_cuda_dtype(like.dtype, [&]<class T>() -> NaiveSelection {
    auto chain = std::make_shared<NaiveChain<T>>(context, like);
    return [chain](const SelectionOperands& p) { chain->run(p); };
  });
}

}  // namespace touchstone::bench
