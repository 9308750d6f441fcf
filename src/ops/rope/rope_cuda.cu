// Rope on CUDA. `vectorized`: a thread has one vector of pairs of many heads, so that their sines and
// cosines stay in registers, and moves 16 bytes at a time, several in flight before they are needed.
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
  unsigned units =
      0;  // of a head: vectors of pairs, with halves one of each half, then copied vectors
  unsigned turned = 0;  // of them are rotated
  unsigned groups = 0;  // of heads
  unsigned heads = 0;   // of a group
};

template <class T, bool kAdjacent>
struct Unit {
  static constexpr int kN = cuda::kPerVector<T>;
  static constexpr int kPairs = kAdjacent ? kN / 2 : kN;
  static constexpr int kHeld = kAdjacent ? 1 : 2;
  uint4 held[kHeld];

  __device__ void load(const T* from, std::int64_t half) {
    held[0] = *reinterpret_cast<const uint4*>(from);
    if constexpr (!kAdjacent) held[1] = *reinterpret_cast<const uint4*>(from + half);
  }

  __device__ void rotate_by(const SinCos (&angles)[kPairs]) {
    float a[kN];
    cuda::unpack_as<T>(held[0], a);
    if constexpr (kAdjacent) {
#pragma unroll
      for (int i = 0; i < kN; i += 2) rotate(angles[i / 2], a[i], a[i + 1]);
    } else {
      float b[kN];
      cuda::unpack_as<T>(held[1], b);
#pragma unroll
      for (int i = 0; i < kN; ++i) rotate(angles[i], a[i], b[i]);
      held[1] = cuda::pack_as<T>(b);
    }
    held[0] = cuda::pack_as<T>(a);
  }

  __device__ void store(T* to, std::int64_t half) const {
    *reinterpret_cast<uint4*>(to) = held[0];
    if constexpr (!kAdjacent) *reinterpret_cast<uint4*>(to + half) = held[1];
  }
};

// A thread has one unit of all heads of a group, and so the sines and cosines of its pairs in registers.
// kBatch heads are in flight while the angles are computed, and while those before them are stored.
template <class T, bool kAdjacent>
__global__ void __launch_bounds__(kThreads)
    rope_vectorized_kernel(const __grid_constant__ VectorizedParams params) {
  using Held = Unit<T, kAdjacent>;
  constexpr int kBatch = kVectors / Held::kHeld;
  const Problem& p = params.p;
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  const unsigned above = index / params.units;
  const unsigned unit = index - above * params.units;
  const std::int64_t token = above / params.groups;
  if (token >= p.tokens) return;
  const unsigned group = above % params.groups;
  const auto first = static_cast<int>(group * params.heads);
  const int end = min(first + static_cast<int>(params.heads), static_cast<int>(p.heads));
  const bool turned = unit < params.turned;
  // Copied vectors follow the rotated ones.
  const std::int64_t column =
      turned ? std::int64_t{unit} * Held::kN
             : 2 * p.pairs + std::int64_t{unit - params.turned} * Held::kHeld * Held::kN;
  const std::int64_t half = turned ? p.pairs : Held::kN;
  const T* const x = static_cast<const T*>(p.x) + token * p.x_token + column;
  T* const y = static_cast<T*>(p.y) + token * p.y_token + column;
  Held held[kBatch];
  Held next[kBatch];
  const auto load = [&](Held(&to)[kBatch], int head) {
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (head + j < end) to[j].load(x + (head + j) * p.x_head, half);
    }
  };
  load(held, first);
  SinCos angles[Held::kPairs];
  if (turned) {
#pragma unroll
    for (int i = 0; i < Held::kPairs; ++i) {
      angles[i] = angle_of(p, token, unit * Held::kPairs + static_cast<unsigned>(i));
    }
  }
  for (int head = first; head < end; head += kBatch) {
    load(next, head + kBatch);
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (head + j >= end) break;
      if (turned) held[j].rotate_by(angles);
      held[j].store(y + (head + j) * p.y_head, half);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) held[j] = next[j];
  }
}

template <class T, bool kAdjacent>
void launch_vectorized(Context& context, const Problem& p) {
  constexpr int kN = cuda::kPerVector<T>;
  constexpr int kHeld = Unit<T, kAdjacent>::kHeld;
  VectorizedParams params{.p = p};
  params.turned = static_cast<unsigned>((kAdjacent ? 2 * p.pairs : p.pairs) / kN);
  const std::int64_t copied = p.in_place() ? 0 : p.dim - 2 * p.pairs;
  params.units = params.turned + static_cast<unsigned>(copied / (kN * kHeld));
  // As many heads as share the angles while every multiprocessor has its threads.
  const std::int64_t sms = cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  std::int64_t heads = std::min<std::int64_t>(p.heads, kHeadsPerThread);
  const auto threads = [&] { return p.tokens * params.units * ceil_div(p.heads, heads); };
  while (heads > 1 && threads() < sms * kThreadsPerMultiprocessor) heads = (heads + 1) / 2;
  params.heads = static_cast<unsigned>(heads);
  params.groups = static_cast<unsigned>(ceil_div(p.heads, heads));
  cuda::launch(context, "rope vectorized_kernel", rope_vectorized_kernel<T, kAdjacent>,
               {.blocks = static_cast<unsigned>(ceil_div(threads(), std::int64_t{kThreads})),
                .threads = kThreads},
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
  const std::int64_t copied = per_vector * (p.adjacent ? 1 : 2);
  if (!p.in_place() && (p.dim - 2 * p.pairs) % copied != 0) {
    return "the " + std::to_string(p.dim - 2 * p.pairs) + " numbers that are not rotated are no " +
           "whole vectors of " + std::to_string(copied * size_of(p.dtype)) + " bytes";
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
  if (p.heads * p.dim > (std::int64_t{1} << 24)) {
    return "numbers of a token " + std::to_string(p.heads * p.dim) + " > 2^24";
  }
  const std::int64_t vectors = checked_mul(p.tokens, p.heads * p.dim / per_vector, "rope");
  return vectors >= (std::int64_t{1} << 31) ? "2^31 vectors or more" : "";
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
