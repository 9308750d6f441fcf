// What one kernel for q/k norm, rope and append would gain: the five calls of a layer with q and k norms
// (Qwen 3: 32 query heads, 8 KV heads of 128, bf16), in one CUDA graph, beside a kernel that does the
// same work in one pass: one block per token, sines and cosines in shared memory, a warp per head.
//
//   nvcc -std=c++20 -O3 --expt-relaxed-constexpr -arch=sm_90 -Iinclude -Isrc norm_rope_append.cu
//     build/cuda/libtouchstone.a -lhwy -lpcre2-8 -lutf8proc -lfmt -o norm_rope_append
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "cuda/vector.cuh"
#include "touchstone/touchstone.h"

namespace {

using namespace touchstone;
constexpr int kHeads = 32, kKvHeads = 8, kDim = 128, kPairs = kDim / 2;
constexpr float kEpsilon = 1e-6F;

struct Fused {
  Bf16* q;        // [tokens, heads, dim], in place
  const Bf16* k;  // [tokens, kv heads, dim]
  const Bf16* v;
  const float* q_weight;
  const float* k_weight;
  const std::int64_t* positions;
  const double* frequencies;
  Bf16* k_slots;  // [tokens, kv heads, dim]
  Bf16* v_slots;
};

__device__ void norm_and_rotate(const Bf16* from, Bf16* to, const float* weight,
                                const float2* angles) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint2 raw = *reinterpret_cast<const uint2*>(from + lane * 4);
  float x[4] = {__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000U),
                __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000U)};
  float squares = 0;
  for (const float value : x) squares = __fmaf_rn(value, value, squares);
  for (int offset = 16; offset > 0; offset /= 2) {
    squares += __shfl_xor_sync(~0U, squares, offset);
  }
  const float scale = rsqrtf(squares / kDim + kEpsilon);
  Bf16 result[4];
  for (int i = 0; i < 4; ++i) {
    x[i] = cuda::rounded<Bf16>(x[i] * scale * weight[lane * 4 + i]);
    const float partner = __shfl_xor_sync(~0U, x[i], 16);
    const float2 angle = angles[lane % 16 * 4 + i];
    const float y = __fmaf_rn(x[i], angle.y, (lane < 16 ? -partner : partner) * angle.x);
    result[i] = cuda::narrow<Bf16>(y);
  }
  *reinterpret_cast<uint2*>(to + lane * 4) = *reinterpret_cast<const uint2*>(result);
}

__global__ void __launch_bounds__(256) fused_kernel(const __grid_constant__ Fused p) {
  __shared__ float2 angles[kPairs];
  const std::int64_t token = blockIdx.x;
  if (threadIdx.x < kPairs) {
    const double turns = static_cast<double>(p.positions[token]) * p.frequencies[threadIdx.x] *
                         0.15915494309189533577;
    float2& angle = angles[threadIdx.x];
    sincospif(2 * static_cast<float>(turns - rint(turns)), &angle.x, &angle.y);
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int job = static_cast<int>(threadIdx.x) / 32; job < kHeads + 2 * kKvHeads; job += 8) {
    if (job < kHeads) {
      Bf16* const q = p.q + (token * kHeads + job) * kDim;
      norm_and_rotate(q, q, p.q_weight, angles);
    } else if (job < kHeads + kKvHeads) {
      const std::int64_t at = (token * kKvHeads + job - kHeads) * kDim;
      norm_and_rotate(p.k + at, p.k_slots + at, p.k_weight, angles);
    } else {
      const std::int64_t at = (token * kKvHeads + job - kHeads - kKvHeads) * kDim + lane * 4;
      *reinterpret_cast<uint2*>(p.v_slots + at) = *reinterpret_cast<const uint2*>(p.v + at);
    }
  }
}

double graph_us(cudaStream_t stream, const std::function<void()>& call) {
  constexpr int kCalls = 20;
  call();
  cudaStreamSynchronize(stream);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  for (int i = 0; i < kCalls; ++i) call();
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&executable, graph, 0);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int round = 0; round < 7; ++round) {
    cudaEventRecord(begin, stream);
    cudaGraphLaunch(executable, stream);
    cudaEventRecord(end, stream);
    cudaEventSynchronize(end);
    times.emplace_back();
    cudaEventElapsedTime(&times.back(), begin, end);
  }
  std::ranges::sort(times);
  return times[3] * 1000.0 / kCalls;
}

Tensor on_gpu(Tensor host) { return host.to(Device::cuda()); }

void measure(cudaStream_t stream, std::int64_t sequences, std::int64_t each) {
  Context context({.device = Device::cuda(), .stream = stream});
  const std::int64_t tokens = sequences * each;
  cache::KvCache cache(
      context, {.layout = {{{.layers = 1, .kv_heads = kKvHeads, .k_dim = kDim, .v_dim = kDim}}},
                .pool_pages = {tokens / 16 + sequences + 16}});
  cache::CacheViewBuilder builder(cache);
  std::vector<cache::SequenceId> ids;
  Tensor rows = Tensor::empty({tokens}, DType::i32),
         positions = Tensor::empty({tokens}, DType::i64);
  for (std::int64_t s = 0; s < sequences; ++s) {
    ids.push_back(cache.create());
    cache.reserve(ids.back(), each);
    for (std::int64_t i = 0; i < each; ++i) {
      rows.values<std::int32_t>()[static_cast<std::size_t>(s * each + i)] =
          static_cast<std::int32_t>(s);
      positions.values<std::int64_t>()[static_cast<std::size_t>(s * each + i)] = i;
    }
  }
  const cache::CacheView& view = builder.build(context, ids);
  Tensor frequencies = Tensor::empty({kPairs}, DType::f64);
  std::ranges::copy(rope_frequencies(kDim, 1e6).values, frequencies.values<double>().begin());
  const Tensor row_list = on_gpu(std::move(rows)), position_list = on_gpu(std::move(positions));
  const Tensor turns = on_gpu(std::move(frequencies));
  Tensor weight = Tensor::zeros({kDim}, DType::f32, Device::cuda());
  Tensor q = Tensor::zeros({tokens, kHeads, kDim}, DType::bf16, Device::cuda());
  Tensor k = Tensor::zeros({tokens, kKvHeads, kDim}, DType::bf16, Device::cuda());
  Tensor v = Tensor::zeros({tokens, kKvHeads, kDim}, DType::bf16, Device::cuda());
  Tensor k_slots = k.clone(), v_slots = v.clone();
  const double apart = graph_us(stream, [&] {
    for (Tensor* x : {&q, &k}) {
      rms_norm(context, {.x = *x, .weight = weight, .y = *x, .eps = kEpsilon});
      rope(context, {.x = *x, .positions = position_list, .frequencies = turns, .y = *x});
    }
    kv_append(context,
              {.cache = view, .k = k, .v = v, .rows = row_list, .positions = position_list});
  });
  const Fused fused{static_cast<Bf16*>(q.data()),
                    static_cast<const Bf16*>(k.data()),
                    static_cast<const Bf16*>(v.data()),
                    static_cast<const float*>(weight.data()),
                    static_cast<const float*>(weight.data()),
                    static_cast<const std::int64_t*>(position_list.data()),
                    static_cast<const double*>(turns.data()),
                    static_cast<Bf16*>(k_slots.data()),
                    static_cast<Bf16*>(v_slots.data())};
  const double joined = graph_us(
      stream, [&] { fused_kernel<<<static_cast<unsigned>(tokens), 256, 0, stream>>>(fused); });
  std::printf("%6ld x %5ld tokens: five calls %7.2f us, one kernel %7.2f us\n",
              static_cast<long>(sequences), static_cast<long>(each), apart, joined);
}

}  // namespace

int main() {
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  for (const auto& [sequences, each] : {std::pair{1, 1}, {64, 1}, {256, 1}, {8, 1024}}) {
    measure(stream, sequences, each);
  }
  std::printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
