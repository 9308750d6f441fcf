// rope_append on CUDA: one warp per head of a token, in shared memory. Everything that a head needs is
// in its warp, so heads of any size and format run in one kernel.
#include <algorithm>
#include <cstdint>
#include <string>

#include "cuda/hopper.cuh"
#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "ops/kv_append/kv_append_vector.cuh"
#include "ops/rope_append/rope_append_problem.h"
#include "ops/rope_append/rope_append_tuning.h"
#include "touchstone/core/checked.h"

namespace touchstone::rope_append_op {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffff;
using tuning::kLaneElements, tuning::kMaxVectors, tuning::kSharedBytes, tuning::kWarps;

// Mean squares of a norm that sums in f32 are right between these (as in ops/norm).
constexpr float kSmallestMeanSquare = 0x1p-90F;
constexpr float kLargestMeanSquare = 0x1p120F;

struct Params {
  Problem p;
  std::int64_t vectors = 0;  // of all tokens
  unsigned per_token = 0;
  bool wide = false;  // elements move four at a time
};

template <class T>
struct alignas(sizeof(T) * kLaneElements) Four {
  T value[kLaneElements];
};

// The vector of a warp: which it is and where it lies in shared memory.
template <class T>
class Vector {
 public:
  __device__ Vector(const Params& params, std::int64_t index, float* shared)
      : params_(params),
        p_(params.p),
        token_(index / params.per_token),
        x_(shared),
        lane_(threadIdx.x % kWarp) {
    const std::int64_t number = index % params.per_token;
    const std::int64_t queries = p_.rope.heads;
    const std::int64_t keys = p_.append.kv_heads;
    part_ = number < queries ? 0 : number < queries + keys ? 1 : 2;
    head_ = number - (part_ == 0 ? 0 : part_ == 1 ? queries : queries + keys);
  }

  __device__ void run() {
    load();
    if (part_ < 2) {
      if (p_.weight[part_] != nullptr) normalize(p_.weight[part_]);
      rotate();
    }
    if (part_ == 0) {
      store_query();
    } else {
      const cache::KvAppendPart& part = p_.append.part[part_ - 1];
      cache::append_vector(p_.append, part, x_, p_.append.slot_of(token_), head_, lane_);
    }
  }

 private:
  __device__ std::int64_t dim() const {
    return part_ == 0 ? p_.rope.dim : p_.append.part[part_ - 1].dim;
  }

  __device__ void load() {
    const T* from = nullptr;
    if (part_ == 0) {
      from = static_cast<const T*>(p_.rope.x) + token_ * p_.rope.x_token + head_ * p_.rope.x_head;
    } else {
      const cache::KvAppendPart& part = p_.append.part[part_ - 1];
      from = static_cast<const T*>(part.from) + token_ * part.stride + head_ * part.dim;
    }
    const std::int64_t n = dim();
    if (params_.wide) {
      for (std::int64_t i = lane_ * kLaneElements; i < n; i += kWarp * kLaneElements) {
        const auto four = *reinterpret_cast<const Four<T>*>(from + i);
#pragma unroll
        for (int k = 0; k < kLaneElements; ++k) x_[i + k] = cuda::widen(four.value[k]);
      }
    } else {
      for (std::int64_t i = lane_; i < n; i += kWarp) x_[i] = cuda::widen(from[i]);
    }
    __syncwarp();
  }

  __device__ void normalize(const float* weight) {
    const std::int64_t n = dim();
    float squares = 0;
    for (std::int64_t i = lane_; i < n; i += kWarp) squares = __fmaf_rn(x_[i], x_[i], squares);
    for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) {
      squares += __shfl_xor_sync(kAllLanes, squares, offset);
    }
    const float mean_square =
        __fdiv_rn(squares, static_cast<float>(n)) + static_cast<float>(p_.eps);
    // Written so that NaN takes the slow path too. All lanes have the same bits.
    const bool in_range = mean_square >= kSmallestMeanSquare && mean_square <= kLargestMeanSquare;
    const float rstd = in_range ? __fdiv_rn(1.0F, __fsqrt_rn(mean_square)) : wide_rstd();
    for (std::int64_t i = lane_; i < n; i += kWarp) {
      float unit = __fmul_rn(x_[i], rstd);
      if (p_.round_before_weight) unit = cuda::rounded<T>(unit);
      x_[i] = cuda::rounded<T>(__fmul_rn(unit, weight[i]));
    }
    __syncwarp();
  }

  // Of a head whose squares leave the range of f32; NaN where it has NaN or an infinity. Rare.
  __device__ __noinline__ float wide_rstd() const {
    const std::int64_t n = dim();
    double squares = 0;
    for (std::int64_t i = lane_; i < n; i += kWarp) {
      squares = fma(static_cast<double>(x_[i]), static_cast<double>(x_[i]), squares);
    }
    for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) {
      squares += __shfl_xor_sync(kAllLanes, squares, offset);
    }
    const double mean_square = squares / static_cast<double>(n) + p_.eps;
    if (!isfinite(mean_square)) return __int_as_float(0x7fffffff);
    return static_cast<float>(1 / sqrt(mean_square));
  }

  // The arithmetic of rope_cuda.cu.
  __device__ void rotate() {
    const rope_op::Problem& rope = p_.rope;
    if (rope.pairs == 0) return;
    const auto scale = static_cast<float>(rope.scale);
    const std::int64_t position = rope.positions[token_];
    for (std::int64_t i = lane_; i < rope.pairs; i += kWarp) {
      rope_op::SinCos angle =
          rope_op::sin_cos_turns(rope_op::turns_of(position, rope.frequencies[i]));
      angle = {angle.sin * scale, angle.cos * scale};
      const float a = x_[rope.first(i)];
      const float b = x_[rope.second(i)];
      x_[rope.first(i)] = cuda::rounded<T>(rope_op::mul_add(a, angle.cos, -(b * angle.sin)));
      x_[rope.second(i)] = cuda::rounded<T>(rope_op::mul_add(b, angle.cos, a * angle.sin));
    }
    __syncwarp();
  }

  __device__ void store_query() {
    const std::int64_t n = p_.rope.dim;
    T* const to = static_cast<T*>(p_.rope.y) + token_ * p_.rope.y_token + head_ * p_.rope.y_head;
    if (params_.wide) {
      for (std::int64_t i = lane_ * kLaneElements; i < n; i += kWarp * kLaneElements) {
        Four<T> four;
#pragma unroll
        for (int k = 0; k < kLaneElements; ++k) four.value[k] = cuda::narrow<T>(x_[i + k]);
        *reinterpret_cast<Four<T>*>(to + i) = four;
      }
    } else {
      for (std::int64_t i = lane_; i < n; i += kWarp) to[i] = cuda::narrow<T>(x_[i]);
    }
  }

  const Params& params_;
  const Problem& p_;
  std::int64_t token_;
  float* x_;
  unsigned lane_;
  int part_ = 0;  // 0: q, 1: k, 2: v
  std::int64_t head_ = 0;
};

template <class T>
__global__ void __launch_bounds__(kWarps* kWarp)
    rope_append_kernel(const __grid_constant__ Params params) {
  extern __shared__ float shared[];
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    cuda::pdl_wait();
  }
  const unsigned warp = threadIdx.x / kWarp;
  const std::int64_t index = std::int64_t{blockIdx.x} * (blockDim.x / kWarp) + warp;
  if (index >= params.vectors) return;  // a whole warp
  const std::int64_t dim = max(params.p.rope.dim, params.p.append.part[1].dim);
  Vector<T>(params, index, shared + warp * dim).run();
}

// Whether the elements of every vector lie on boundaries of four.
bool moves_four(const Problem& p) {
  const auto fits = [&](const void* data, std::int64_t stride, std::int64_t dim) {
    return reinterpret_cast<std::uintptr_t>(data) %
                   static_cast<std::uintptr_t>(kLaneElements * size_of(p.dtype)) ==
               0 &&
           stride % kLaneElements == 0 && dim % kLaneElements == 0;
  };
  return fits(p.rope.x, p.rope.x_token, p.rope.dim) && fits(p.rope.y, p.rope.y_token, p.rope.dim) &&
         fits(p.append.part[0].from, p.append.part[0].stride, p.append.part[0].dim) &&
         fits(p.append.part[1].from, p.append.part[1].stride, p.append.part[1].dim);
}

std::int64_t vector_bytes(const Problem& p) {
  return std::max(p.rope.dim, p.append.part[1].dim) * std::int64_t{sizeof(float)};
}

}  // namespace

std::string rope_append_warps_refuses(const Context& /*context*/, const Problem& p) {
  if (vector_bytes(p) > kSharedBytes) return "head dim > 12288";
  const std::int64_t vectors = checked_mul(p.rope.tokens, p.vectors(), "rope_append");
  return vectors > kMaxVectors ? "2^30 heads of tokens or more" : "";
}

void rope_append_warps(Context& context, const Problem& p) {
  const cuda::DeviceScope scope(context.device().index);
  const std::int64_t warps = std::min<std::int64_t>(kWarps, kSharedBytes / vector_bytes(p));
  const Params params{.p = p,
                      .vectors = p.rope.tokens * p.vectors(),
                      .per_token = static_cast<unsigned>(p.vectors()),
                      .wide = moves_four(p)};
  const cuda::LaunchShape shape{.blocks = static_cast<unsigned>(ceil_div(params.vectors, warps)),
                                .threads = static_cast<unsigned>(warps) * kWarp,
                                .shared_bytes = warps * vector_bytes(p),
                                .pdl = cuda::is_hopper(context)};
  const char* const name = "rope_append_kernel";
  if (p.dtype == DType::f32) {
    cuda::launch(context, name, rope_append_kernel<float>, shape, params);
  } else if (p.dtype == DType::bf16) {
    cuda::launch(context, name, rope_append_kernel<Bf16>, shape, params);
  } else {
    cuda::launch(context, name, rope_append_kernel<F16>, shape, params);
  }
}

}  // namespace touchstone::rope_append_op
