// Embedding on CUDA: `vectorized` stores 16 bytes at a time and has several vectors in flight,
// `portable` takes any strides, one element per thread, with the same arithmetic.
#include <algorithm>
#include <string>

#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "ops/embedding/embedding_problem.h"
#include "ops/embedding/embedding_tuning.h"
#include "ops/linear/cuda/linear_decode.cuh"
#include "touchstone/core/checked.h"

namespace touchstone::embedding_op {
namespace {

using linear_layer::StoredWeight;

struct ForwardParams {
  Tokens tokens;
  std::int64_t vocabulary;
  std::int64_t dim;
  StoredWeight weight;
  void* y;
  std::int64_t y_stride;
  float scale;
};

ForwardParams params_of(const Forward& p) {
  return {.tokens = p.tokens,
          .vocabulary = p.vocabulary,
          .dim = p.dim,
          .weight = linear_layer::stored({p.weight, p.row_bytes, p.format}),
          .y = p.y,
          .y_stride = p.y_stride,
          .scale = static_cast<float>(p.scale)};
}

// ---- vectorized --------------------------------------------------------------------------------

// kN values of a row, in flight before any of them is used.
template <class W, int kN>
struct Held {
  static constexpr int kWords = kN * static_cast<int>(sizeof(W)) / 4;
  std::uint32_t words[kWords];

  __device__ void load(const StoredWeight& /*w*/, const std::uint8_t* row, int column) {
    const std::uint8_t* const from = row + column * static_cast<int>(sizeof(W));
    if constexpr (kWords % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 v = __ldg(reinterpret_cast<const uint4*>(from) + i / 4);
        words[i] = v.x, words[i + 1] = v.y, words[i + 2] = v.z, words[i + 3] = v.w;
      }
    } else {
      const uint2 v = __ldg(reinterpret_cast<const uint2*>(from));
      words[0] = v.x, words[1] = v.y;
    }
  }
  __device__ void fill_nan() {
#pragma unroll
    for (std::uint32_t& word : words) word = 0xffffffffU;
  }
  __device__ float value(int i) const {
    if constexpr (sizeof(W) == 4) {
      return __uint_as_float(words[i]);
    } else {
      const auto bits = static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16));
      return cuda::widen(W::from_bits(bits));
    }
  }
};

// Blocks and fp8: decoded as they are loaded.
struct Blocks {};
template <int kN>
struct Held<Blocks, kN> {
  float values[kN];

  __device__ void load(const StoredWeight& w, const std::uint8_t* row, int column) {
    if (w.id == WeightFormatId::fp8_e4m3) {
#pragma unroll
      for (int i = 0; i < kN; ++i) values[i] = linear_layer::fp8_value(row[column + i]);
      return;
    }
    const std::uint8_t* const block = row + (column >> w.block_shift) * w.block_bytes;
    const int first = column & (w.block_elements - 1);
#pragma unroll
    for (int i = 0; i < kN; ++i) values[i] = linear_layer::block_value(w.id, block, first + i);
  }
  __device__ void fill_nan() {
#pragma unroll
    for (float& value : values) value = __uint_as_float(0x7fffffffU);
  }
  __device__ float value(int i) const { return values[i]; }
};

template <class T, class W>
__global__ void __launch_bounds__(kThreads)
    embedding_vectorized_kernel(const __grid_constant__ ForwardParams p) {
  constexpr int kN = cuda::kPerVector<T>;
  const auto per_row = static_cast<unsigned>(p.dim / kN);
  const auto units = static_cast<unsigned>(p.tokens.count) * per_row;
  const unsigned base = blockIdx.x * (kVectors * kThreads) + threadIdx.x;
  Held<W, kN> held[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const unsigned unit = base + static_cast<unsigned>(j) * kThreads;
    if (unit >= units) break;
    const std::int64_t token = p.tokens[unit / per_row];
    if (token >= 0 && token < p.vocabulary) {
      held[j].load(p.weight, p.weight.data + token * p.weight.row_bytes,
                   static_cast<int>(unit % per_row) * kN);
    } else {
      held[j].fill_nan();
    }
  }
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const unsigned unit = base + static_cast<unsigned>(j) * kThreads;
    if (unit >= units) break;
    float v[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) v[i] = __fmul_rn(p.scale, held[j].value(i));
    T* const to = static_cast<T*>(p.y) + unit / per_row * p.y_stride + unit % per_row * kN;
    *reinterpret_cast<uint4*>(to) = cuda::pack_as<T>(v);
  }
}

template <class T, class W>
void launch_vectorized(const Context& context, const Forward& p) {
  const std::int64_t units = p.tokens.count * (p.dim / cuda::kPerVector<T>);
  cuda::launch(
      context, "embedding vectorized_kernel", embedding_vectorized_kernel<T, W>,
      {.blocks = static_cast<unsigned>(ceil_div(units, kVectors * kThreads)), .threads = kThreads},
      params_of(p));
}

// ---- portable ----------------------------------------------------------------------------------

template <class T>
__global__ void __launch_bounds__(kThreads)
    embedding_portable_kernel(const __grid_constant__ ForwardParams p) {
  const std::int64_t all = p.tokens.count * p.dim;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t n = i / p.dim;
    const std::int64_t d = i % p.dim;
    const std::int64_t token = p.tokens[n];
    float v = __uint_as_float(0x7fffffffU);
    if (token >= 0 && token < p.vocabulary) {
      v = __fmul_rn(p.scale, linear_layer::weight_at(p.weight, token, d));
    }
    static_cast<T*>(p.y)[n * p.y_stride + d] = cuda::narrow<T>(v);
  }
}

template <class F>
void visit(DType dtype, const F& f) {
  if (dtype == DType::f32) return f.template operator()<float>();
  if (dtype == DType::bf16) return f.template operator()<Bf16>();
  return f.template operator()<F16>();
}

}  // namespace

std::string forward_vectorized_refuses(const Context& /*context*/, const Forward& p) {
  const std::int64_t per_vector = 16 / size_of(p.dtype);
  if (p.dim % per_vector != 0) {
    return "E = " + std::to_string(p.dim) + " is no whole number of vectors of 16 bytes";
  }
  const auto misaligned = [](const void* data, std::int64_t stride, std::int64_t bytes) {
    return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) != 0 ||
           stride % bytes != 0;
  };
  if (misaligned(p.y, p.y_stride * size_of(p.dtype), 16))
    return "rows of y are not 16-byte aligned";
  if (p.format->dtype.has_value()) {
    const std::int64_t bytes = std::min<std::int64_t>(per_vector * p.format->block_bytes, 16);
    if (misaligned(p.weight, p.row_bytes, bytes)) {
      return "rows of weight are not " + std::to_string(bytes) + "-byte aligned";
    }
  }
  return p.tokens.count * (p.dim / per_vector) >= std::int64_t{1} << 31 ? "more than 2^31 vectors"
                                                                        : "";
}

void forward_vectorized(Context& context, const Forward& p) {
  const cuda::DeviceScope scope(context.device().index);
  visit(p.dtype, [&]<class T>() {
    if (!p.format->dtype.has_value() || *p.format->dtype == DType::f8_e4m3) {
      return launch_vectorized<T, Blocks>(context, p);
    }
    visit(*p.format->dtype, [&]<class W>() { launch_vectorized<T, W>(context, p); });
  });
}

void forward_portable(Context& context, const Forward& p) {
  const cuda::DeviceScope scope(context.device().index);
  const std::int64_t blocks = std::clamp<std::int64_t>(
      ceil_div(checked_mul(p.tokens.count, p.dim, "embedding"), kThreads), 1, 1 << 16);
  visit(p.dtype, [&]<class T>() {
    cuda::launch(context, "embedding portable_kernel", embedding_portable_kernel<T>,
                 {.blocks = static_cast<unsigned>(blocks), .threads = kThreads}, params_of(p));
  });
}

}  // namespace touchstone::embedding_op
