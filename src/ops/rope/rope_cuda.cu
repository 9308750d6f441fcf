// Rope on CUDA. `vectorized`: a block takes a few tokens, has their sines and cosines in shared
// memory, and moves heads in vectors of 16 bytes, several in flight before the first is needed.
// `portable`: one pair per thread, any layout. Both do the same arithmetic.
#include <algorithm>
#include <string>

#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "ops/rope/rope_problem.h"
#include "ops/rope/rope_tuning.h"
#include "touchstone/core/checked.h"

namespace touchstone::rope_op {
namespace {

// Times the scale.
__device__ SinCos angle_of(const Problem& p, std::int64_t token, std::int64_t pair) {
  const auto scale = static_cast<float>(p.scale);
  const SinCos both = sin_cos_turns(turns_of(p.positions[token], p.frequencies[pair]));
  return {both.sin * (p.inverse ? -scale : scale), both.cos * scale};
}

__device__ void rotate(const SinCos& angle, float& a, float& b) {
  const float first = mul_add(a, angle.cos, -(b * angle.sin));
  b = mul_add(b, angle.cos, a * angle.sin);
  a = first;
}

// ---- vectorized --------------------------------------------------------------------------------

struct VectorizedParams {
  Problem p;
  int tokens_per_block;
  int units_per_head;  // vectors of pairs: with halves a unit is a vector of each half
  int tail_vectors;    // of a head, copied
};

template <class T, bool kAdjacent>
struct Unit {
  static constexpr int kN = cuda::kPerVector<T>;
  uint4 held[kAdjacent ? 1 : 2];

  __device__ void load(const T* head, int first, const Problem& p) {
    held[0] = *reinterpret_cast<const uint4*>(head + first);
    if constexpr (!kAdjacent) held[1] = *reinterpret_cast<const uint4*>(head + first + p.pairs);
  }

  // `angles` are those of the token, `first` the first number of the unit.
  __device__ void rotate_by(const SinCos* angles, int first) {
    float a[kN];
    cuda::unpack_as<T>(held[0], a);
    if constexpr (kAdjacent) {
#pragma unroll
      for (int i = 0; i < kN; i += 2) rotate(angles[(first + i) / 2], a[i], a[i + 1]);
    } else {
      float b[kN];
      cuda::unpack_as<T>(held[1], b);
#pragma unroll
      for (int i = 0; i < kN; ++i) rotate(angles[first + i], a[i], b[i]);
      held[1] = cuda::pack_as<T>(b);
    }
    held[0] = cuda::pack_as<T>(a);
  }

  __device__ void store(T* head, int first, const Problem& p) const {
    *reinterpret_cast<uint4*>(head + first) = held[0];
    if constexpr (!kAdjacent) *reinterpret_cast<uint4*>(head + first + p.pairs) = held[1];
  }
};

template <class T, bool kAdjacent>
__global__ void __launch_bounds__(kThreads)
    rope_vectorized_kernel(const __grid_constant__ VectorizedParams params) {
  extern __shared__ SinCos angles[];  // [tokens_per_block, pairs]
  using Held = Unit<T, kAdjacent>;
  const Problem& p = params.p;
  const std::int64_t first_token = std::int64_t{blockIdx.x} * params.tokens_per_block;
  const auto tokens =
      static_cast<int>(min(p.tokens - first_token, std::int64_t{params.tokens_per_block}));
  const auto heads = static_cast<int>(p.heads);
  const int per_token = heads * params.units_per_head;
  const int units = tokens * per_token;
  const auto* const x = static_cast<const T*>(p.x);
  auto* const y = static_cast<T*>(p.y);
  const auto head_of = [&](int unit, std::int64_t token_stride, std::int64_t head_stride) {
    const int token = unit / per_token;
    const int head = unit % per_token / params.units_per_head;
    return (first_token + token) * token_stride + head * head_stride;
  };
  const auto first_of = [&](int unit) { return unit % params.units_per_head * Held::kN; };
  bool ready = false;
  for (int base = static_cast<int>(threadIdx.x); base - static_cast<int>(threadIdx.x) < units;
       base += kVectors * kThreads) {
    Held held[kVectors];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int unit = base + j * kThreads;
      if (unit < units) held[j].load(x + head_of(unit, p.x_token, p.x_head), first_of(unit), p);
    }
    if (!ready) {
      const auto pairs = static_cast<int>(p.pairs);
      for (int i = static_cast<int>(threadIdx.x); i < tokens * pairs; i += kThreads) {
        angles[i] = angle_of(p, first_token + i / pairs, i % pairs);
      }
      __syncthreads();
      ready = true;
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int unit = base + j * kThreads;
      if (unit >= units) break;
      held[j].rotate_by(angles + unit / per_token * p.pairs, first_of(unit));
      held[j].store(y + head_of(unit, p.y_token, p.y_head), first_of(unit), p);
    }
  }
  if (params.tail_vectors == 0) return;
  const int tails = tokens * heads * params.tail_vectors;
  for (int i = static_cast<int>(threadIdx.x); i < tails; i += kThreads) {
    const std::int64_t token = first_token + i / params.tail_vectors / heads;
    const std::int64_t head = i / params.tail_vectors % heads;
    const std::int64_t at = 2 * p.pairs + i % params.tail_vectors * Held::kN;
    *reinterpret_cast<uint4*>(y + token * p.y_token + head * p.y_head + at) =
        *reinterpret_cast<const uint4*>(x + token * p.x_token + head * p.x_head + at);
  }
}

template <class T, bool kAdjacent>
void launch_vectorized(Context& context, const Problem& p) {
  constexpr int kN = cuda::kPerVector<T>;
  const std::int64_t rotated = 2 * p.pairs;
  VectorizedParams params{
      .p = p,
      .tokens_per_block = 1,
      .units_per_head = static_cast<int>((kAdjacent ? rotated : p.pairs) / kN),
      .tail_vectors = p.in_place() ? 0 : static_cast<int>((p.dim - rotated) / kN)};
  // Enough for every thread to have kVectors in flight, while every multiprocessor has blocks.
  const std::int64_t per_token = std::max<std::int64_t>(p.heads * params.units_per_head, 1);
  const std::int64_t sms = cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  params.tokens_per_block = static_cast<int>(std::clamp<std::int64_t>(
      std::min(kThreads * kVectors / per_token, p.tokens / (4 * sms)), 1,
      std::max<std::int64_t>(4096 / std::max<std::int64_t>(p.pairs, 1), 1)));
  auto* kernel = rope_vectorized_kernel<T, kAdjacent>;
  cuda::launch(context, "rope vectorized_kernel", kernel,
               {.blocks = static_cast<unsigned>(ceil_div(p.tokens, params.tokens_per_block)),
                .threads = kThreads,
                .shared_bytes =
                    params.tokens_per_block * p.pairs * static_cast<std::int64_t>(sizeof(SinCos))},
               params);
}

// ---- portable ----------------------------------------------------------------------------------

template <class T>
__global__ void __launch_bounds__(kThreads)
    rope_portable_kernel(const __grid_constant__ Problem p) {
  const auto* const x = static_cast<const T*>(p.x);
  auto* const y = static_cast<T*>(p.y);
  // Rotated pairs first, then the numbers that are copied.
  const std::int64_t tail = p.in_place() ? 0 : p.dim - 2 * p.pairs;
  const std::int64_t per_head = p.pairs + tail;
  const std::int64_t all = p.tokens * p.heads * per_head;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t token = i / (p.heads * per_head);
    const std::int64_t head = i / per_head % p.heads;
    const std::int64_t within = i % per_head;
    const T* const from = x + token * p.x_token + head * p.x_head;
    T* const to = y + token * p.y_token + head * p.y_head;
    if (within >= p.pairs) {
      to[p.pairs + within] = from[p.pairs + within];
      continue;
    }
    float a = cuda::widen(from[p.first(within)]);
    float b = cuda::widen(from[p.second(within)]);
    rotate(angle_of(p, token, within), a, b);
    to[p.first(within)] = cuda::narrow<T>(a);
    to[p.second(within)] = cuda::narrow<T>(b);
  }
}

template <class F>
void visit(DType dtype, const F& f) {
  if (dtype == DType::f32) return f.template operator()<float>();
  if (dtype == DType::bf16) return f.template operator()<Bf16>();
  return f.template operator()<F16>();
}

}  // namespace

std::string rope_vectorized_refuses(const Context& /*context*/, const Problem& p) {
  const std::int64_t per_vector = 16 / size_of(p.dtype);
  if ((p.adjacent ? 2 * p.pairs : p.pairs) % per_vector != 0 || p.pairs == 0) {
    return std::to_string(p.pairs) + " pairs are no whole vectors of 16 bytes";
  }
  if (!p.in_place() && (p.dim - 2 * p.pairs) % per_vector != 0) {
    return "the " + std::to_string(p.dim - 2 * p.pairs) + " numbers that are not rotated are no " +
           "whole vectors of 16 bytes";
  }
  for (const std::int64_t stride : {p.x_token, p.x_head, p.y_token, p.y_head}) {
    if (stride % per_vector != 0) {
      return "stride " + std::to_string(stride) + " is no multiple of 16 bytes";
    }
  }
  const auto aligned = [](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  };
  if (!aligned(p.x) || !aligned(p.y)) return "data is not 16-byte aligned";
  if (p.pairs > 4096) return "pairs " + std::to_string(p.pairs) + " > 4096";
  if (p.heads * p.dim > (std::int64_t{1} << 24)) {
    return "numbers of a token " + std::to_string(p.heads * p.dim) + " > 2^24";
  }
  return p.tokens > 0x7fffffff ? "tokens " + std::to_string(p.tokens) + " >= 2^31" : "";
}

void rope_vectorized(Context& context, const Problem& p) {
  const cuda::DeviceScope scope(context.device().index);
  visit(p.dtype, [&]<class T>() {
    if (p.adjacent) {
      launch_vectorized<T, true>(context, p);
    } else {
      launch_vectorized<T, false>(context, p);
    }
  });
}

void rope_portable(Context& context, const Problem& p) {
  const cuda::DeviceScope scope(context.device().index);
  const std::int64_t blocks = std::clamp<std::int64_t>(
      ceil_div(checked_mul(checked_mul(p.tokens, p.heads, "rope"), p.dim, "rope"), kThreads), 1,
      1 << 16);
  visit(p.dtype, [&]<class T>() {
    cuda::launch(context, "rope portable_kernel", rope_portable_kernel<T>,
                 {.blocks = static_cast<unsigned>(blocks), .threads = kThreads}, p);
  });
}

}  // namespace touchstone::rope_op
