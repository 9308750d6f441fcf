// Attention on CUDA as one gets it by writing each step as its own kernel: the whole matrix of
// scores, its softmax, the products; products by tiles of 16 by 16 in shared memory.
#include <cmath>
#include <memory>

#include "bench/cuda_dtype.cuh"
#include "bench/naive/naive.h"
#include "cuda/check.h"
#include "touchstone/core/tensor.h"

namespace touchstone::bench {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 16;

// Matrices of a batch; element (i, j) of the n-th is data[n / shared * step + i * row + j * col].
template <class T>
struct Matrices {
  T* data;
  std::int64_t step, row, col;
  int shared = 1;

  __device__ T* at(std::int64_t n, std::int64_t i, std::int64_t j) const {
    return data + n / shared * step + i * row + j * col;
  }
};

__device__ void store(float* to, float value) { *to = value; }
__device__ void store(__half* to, float value) { *to = __float2half(value); }
__device__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16(value); }

// c = scale * a b.
template <class A, class B, class C>
__global__ void product_kernel(Matrices<A> a, Matrices<B> b, Matrices<C> c, std::int64_t rows,
                               std::int64_t cols, std::int64_t inner, float scale) {
  __shared__ float left[kTile][kTile];
  __shared__ float right[kTile][kTile + 1];
  const int x = static_cast<int>(threadIdx.x) % kTile;
  const int y = static_cast<int>(threadIdx.x) / kTile;
  const std::int64_t col = blockIdx.x * static_cast<std::int64_t>(kTile) + x;
  const std::int64_t row = blockIdx.y * static_cast<std::int64_t>(kTile) + y;
  const std::int64_t n = blockIdx.z;
  float sum = 0;
  for (std::int64_t k = 0; k < inner; k += kTile) {
    left[y][x] = row < rows && k + x < inner ? load(a.at(n, row, k + x)) : 0;
    right[y][x] = col < cols && k + y < inner ? load(b.at(n, k + y, col)) : 0;
    __syncthreads();
    for (int i = 0; i < kTile; ++i) sum += left[y][i] * right[i][x];
    __syncthreads();
  }
  if (row < rows && col < cols) store(c.at(n, row, col), sum * scale);
}

__device__ float block_sum(float value) {
  return block_join<kThreads>(value, [](float a, float b) { return a + b; });
}

// A block per row.
__global__ void softmax_kernel(float* scores, std::int64_t tokens, bool causal) {
  float* const row = scores + blockIdx.x * tokens;
  const std::int64_t end = causal ? blockIdx.x % tokens + 1 : tokens;
  float most = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < end; i += kThreads) most = fmaxf(most, row[i]);
  most = block_join<kThreads>(most, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < end; i += kThreads) sum += row[i] = expf(row[i] - most);
  sum = block_sum(sum);
  for (std::int64_t i = threadIdx.x; i < tokens; i += kThreads) row[i] = i < end ? row[i] / sum : 0;
}

// dweights become dscores. A block per row.
__global__ void softmax_gradient_kernel(const float* weights, float* dweights,
                                        std::int64_t tokens) {
  const float* const weight = weights + blockIdx.x * tokens;
  float* const row = dweights + blockIdx.x * tokens;
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < tokens; i += kThreads) sum += weight[i] * row[i];
  sum = block_sum(sum);
  for (std::int64_t i = threadIdx.x; i < tokens; i += kThreads) row[i] = weight[i] * (row[i] - sum);
}

template <class T>
class NaiveChain {
 public:
  NaiveChain(Context& context, const AttentionOperands& like)
      : stream_(static_cast<cudaStream_t>(context.stream())), device_(context.device()) {
    const std::vector<std::int64_t> shape{like.batch * like.heads, like.tokens, like.tokens};
    weights_ = Tensor::empty(shape, DType::f32, device_);
    if (like.backward) dscores_ = Tensor::empty(shape, DType::f32, device_);
  }

  void run(const AttentionOperands& p) {
    const cuda::DeviceScope scope(device_.index);
    const std::int64_t heads = p.batch * p.heads;
    const std::int64_t kv_heads = p.batch * p.kv_heads;
    const std::int64_t tokens = p.tokens;
    const std::int64_t dim = p.dim;
    const int group = static_cast<int>(p.heads / p.kv_heads);
    const float scale = 1 / std::sqrt(static_cast<float>(dim));
    const auto rows = static_cast<unsigned>(heads * tokens);
    const auto q = of(p, p.q, 1);
    const auto k = of(p, p.k, group);
    const auto v = of(p, p.v, group);
    const Matrices<float> weights{static_cast<float*>(weights_.data()), tokens * tokens, tokens, 1};
    multiply(heads, q, transposed(k), weights, tokens, tokens, dim, scale);
    softmax_kernel<<<rows, kThreads, 0, stream_>>>(weights.data, tokens, p.causal);
    if (!p.backward) {
      multiply(heads, weights, v, of(p, p.output, 1), tokens, dim, tokens, 1);
    } else {
      const auto doutput = of(p, p.doutput, 1);
      const Matrices<float> dscores{static_cast<float*>(dscores_.data()), tokens * tokens, tokens,
                                    1};
      multiply(heads, doutput, transposed(v), dscores, tokens, tokens, dim, 1);
      softmax_gradient_kernel<<<rows, kThreads, 0, stream_>>>(weights.data, dscores.data, tokens);
      multiply(heads, dscores, k, of(p, p.dq, 1), tokens, dim, tokens, scale);
      // The heads of a group lie one after the other: one sum over all their queries.
      const std::int64_t inner = tokens * group;
      multiply(kv_heads, transposed(joined(dscores, group)), joined(q, group), of(p, p.dk, 1),
               tokens, dim, inner, scale);
      multiply(kv_heads, transposed(joined(weights, group)), joined(doutput, group), of(p, p.dv, 1),
               tokens, dim, inner, 1);
    }
    cuda::check_launch("naive attention");
  }

 private:
  static Matrices<T> of(const AttentionOperands& p, const void* data, int shared) {
    return {static_cast<T*>(const_cast<void*>(data)), p.tokens * p.dim, p.dim, 1, shared};
  }
  template <class X>
  static Matrices<X> transposed(Matrices<X> x) {
    std::swap(x.row, x.col);
    return x;
  }
  template <class X>
  static Matrices<X> joined(Matrices<X> x, int count) {
    x.step *= count;
    return x;
  }

  template <class A, class B, class C>
  void multiply(std::int64_t count, const Matrices<A>& a, const Matrices<B>& b,
                const Matrices<C>& c, std::int64_t rows, std::int64_t cols, std::int64_t inner,
                float scale) {
    const dim3 grid(static_cast<unsigned>((cols + kTile - 1) / kTile),
                    static_cast<unsigned>((rows + kTile - 1) / kTile),
                    static_cast<unsigned>(count));
    product_kernel<<<grid, kTile * kTile, 0, stream_>>>(a, b, c, rows, cols, inner, scale);
  }

  cudaStream_t stream_;
  Device device_;
  Tensor weights_, dscores_;
};

}  // namespace

NaiveAttention naive_attention_cuda(Context& context, const AttentionOperands& like) {
  return visit_cuda_dtype(like.dtype, [&]<class T>() -> NaiveAttention {
    auto chain = std::make_shared<NaiveChain<T>>(context, like);
    return [chain](const AttentionOperands& p) { chain->run(p); };
  });
}

}  // namespace touchstone::bench
