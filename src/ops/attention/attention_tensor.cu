// cached_attention on CUDA on the tensor cores: heads of 64 and 128 in bf16, int8, int4 and fp8.
#include <algorithm>
#include <iterator>
#include <string>

#include "ops/attention/attention_tensor.cuh"
#include "touchstone/core/checked.h"

namespace touchstone::attend {
namespace {

template <class Shared>
struct TensorPass {
  // A query that is bf16 goes from global memory to where it is an operand; with minima its sums
  // are wanted too.
  static constexpr int kProducts = Shared::kDim / 16 / kWarps;  // of a warp
  struct Fetched {
    uint2 parts[kProducts];
  };
  __device__ static bool fetches(const CachedAttention& p) {
    return is_exact(p) && Shared::Keys::kScaling != Scaling::kGrouped;
  }

  template <class Block>
  __device__ static Fetched fetch(const Block& block) {
    using C = typename Shared::Keys::C;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const bool there = lane / 4 < block.vectors;
    const auto* const query =
        static_cast<const std::uint16_t*>(block.p.query) + (there ? block.query_at(lane / 4) : 0);
    Fetched result;
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const int m = static_cast<int>(threadIdx.x / 32) + i * kWarps;
      std::uint32_t both[2] = {};
#pragma unroll
      for (int operand = 0; operand < 2; ++operand) {
        if (!there) continue;
        const std::uint32_t low = query[key_number<C>(2 * m + operand, lane % 4, 0)];
        const std::uint32_t high = query[key_number<C>(2 * m + operand, lane % 4, 1)];
        both[operand] = high << 16 | low;
      }
      result.parts[i] = {both[0], both[1]};
    }
    return result;
  }

  template <class Block>
  __device__ static void put(Block& block, const Fetched& fetched) {
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      block.shared.first_part[threadIdx.x / 32 + i * kWarps][threadIdx.x % 32] = fetched.parts[i];
    }
  }

  template <class Block>
  __device__ static void attend(Block& block, int count) {
    if (is_exact(block.p)) {
      WarpPass<Block>(block, count).template run<true>();
    } else {
      WarpPass<Block>(block, count).template run<false>();
    }
    __syncthreads();
    merge_warps(block);
  }

  // The query as operands, and its sums over each kGroup numbers.
  template <class Block>
  __device__ static void prepare(Block& block) {
    auto& shared = block.shared;
    using C = typename Shared::Keys::C;
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const int m = static_cast<int>(threadIdx.x / 32) + i * kWarps;
      float x[2][2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        x[r][0] = shared.query[lane / 4][key_number<C>(2 * m + r, lane % 4, 0)];
        x[r][1] = shared.query[lane / 4][key_number<C>(2 * m + r, lane % 4, 1)];
      }
      shared.first_part[m][lane] = {take_bf16(x[0][0], x[0][1]), take_bf16(x[1][0], x[1][1])};
      if (is_exact(block.p)) continue;
#pragma unroll
      for (int part = 0; part < kParts - 1; ++part) {
        shared.rest[part][m][lane] = {take_bf16(x[0][0], x[0][1]), take_bf16(x[1][0], x[1][1])};
      }
    }
    constexpr int kGroups = Shared::Keys::kGroups;
    if constexpr (Shared::Keys::kScaling == Scaling::kGrouped) {
      if (threadIdx.x < kVectors * kGroups) {
        const float* const x = &shared.query[threadIdx.x / kGroups][threadIdx.x % kGroups * kGroup];
        float sum = 0;
#pragma unroll 8
        for (int i = 0; i < kGroup; ++i) sum = __fadd_rn(sum, x[i]);
        shared.query_sums[threadIdx.x / kGroups][threadIdx.x % kGroups] = sum;
      }
    }
  }

 private:
  template <class Block>
  __device__ static void merge_warps(Block& block) {
    auto& shared = block.shared;
    constexpr int kDim = Shared::kDim;
    if (static_cast<int>(threadIdx.x) < block.vectors) {
      const int v = static_cast<int>(threadIdx.x);
      float largest = minus_infinity();
#pragma unroll
      for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shared.sums(w).largest[v]);
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        auto& sums = shared.sums(w);
        sums.factor[v] = weight_of(sums.largest[v], largest);
        sum = fmaf(sums.weights[v], sums.factor[v], sum);
      }
      block.end_vector(v, largest, sum);
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < block.vectors * kDim; i += kThreads) {
      float value = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const auto& sums = shared.sums(w);
        value = fmaf(sums.values[i / kDim][i % kDim], sums.factor[i / kDim], value);
      }
      block.put_value(i / kDim, i % kDim, value);
    }
  }
};

// Groups take more registers.
template <class Shared>
constexpr int kBlocks =
    Shared::Keys::kScaling == Scaling::kGrouped || Shared::Values::kScaling == Scaling::kGrouped
        ? 3
        : 4;

template <class Shared>
__global__ void __launch_bounds__(kThreads, kBlocks<Shared>)
    tensor_kernel(const __grid_constant__ SplitWork work) {
  extern __shared__ __align__(128) std::byte memory[];
  if constexpr (cuda::kHopper) cuda::let_next_grid_start();
  SplitBlock<Shared, TensorPass<Shared>>(work, *reinterpret_cast<Shared*>(memory)).run();
}

template <class Keys, class Values, int kDim>
void launch_tensor(Context& context, const SplitWork& work, unsigned blocks) {
  using Shared = TensorShared<Keys, Values, kDim>;
  cuda::allow_shared(context, tensor_kernel<Shared>);
  cuda::launch(
      context, "cached_attention tensor_kernel", tensor_kernel<Shared>,
      {.blocks = blocks, .threads = kThreads, .shared_bytes = Shared::bytes(is_exact(work.p))},
      work);
}

// The kernels there are: a kind of keys with a kind of values.
struct Kind {
  Encoding encoding;
  Scaling scaling;

  friend bool operator==(const Kind&, const Kind&) = default;
};

constexpr Kind kBf16{Encoding::bf16, Scaling::kNone};
constexpr Kind kInt8{Encoding::int8, Scaling::kWhole};
constexpr Kind kInt8Groups{Encoding::int8, Scaling::kGrouped};
constexpr Kind kInt4Groups{Encoding::int4, Scaling::kGrouped};
constexpr Kind kFp8{Encoding::fp8_e4m3, Scaling::kWhole};

template <int kDim, Kind kKeys, Kind kValues>
constexpr SplitLaunch kLaunch =
    launch_tensor<Operand<kKeys.encoding, kKeys.scaling, kDim>,
                  Operand<kValues.encoding, kValues.scaling, kDim>, kDim>;

struct Kernel {
  Kind keys, values;
  SplitLaunch of_64, of_128;
};

constexpr Kernel kKernels[] = {
    {kBf16, kBf16, kLaunch<64, kBf16, kBf16>, kLaunch<128, kBf16, kBf16>},
    {kInt8, kInt8, kLaunch<64, kInt8, kInt8>, kLaunch<128, kInt8, kInt8>},
    {kInt8Groups, kInt8Groups, kLaunch<64, kInt8Groups, kInt8Groups>,
     kLaunch<128, kInt8Groups, kInt8Groups>},
    {kInt4Groups, kInt4Groups, kLaunch<64, kInt4Groups, kInt4Groups>,
     kLaunch<128, kInt4Groups, kInt4Groups>},
    {kInt8, kInt4Groups, kLaunch<64, kInt8, kInt4Groups>, kLaunch<128, kInt8, kInt4Groups>},
    {kFp8, kFp8, kLaunch<64, kFp8, kFp8>, kLaunch<128, kFp8, kFp8>},
};

Kind kind_of(const cache::Format& format, std::int64_t dim) {
  if (!cache::is_quantized(format.encoding)) return {format.encoding, Scaling::kNone};
  const bool whole = cache::group_length(format, dim) == dim && !format.asymmetric;
  return {format.encoding, whole ? Scaling::kWhole : Scaling::kGrouped};
}

const Kernel* kernel_for(const cache::LayerGroup& layers) {
  const Kind keys = kind_of(layers.k, layers.k_dim);
  const Kind values = kind_of(layers.v, layers.v_dim);
  const auto* const found = std::ranges::find_if(kKernels, [&](const Kernel& kernel) {
    return kernel.keys == keys && kernel.values == values;
  });
  return found == std::end(kKernels) ? nullptr : found;
}

std::string scales_refusal(const cache::Format& format, std::int64_t dim) {
  if (!cache::is_quantized(format.encoding)) return {};
  if (format.scale != DType::f16) return "scales that are not f16";
  return cache::group_length(format, dim) % kGroup != 0 ? "groups that are no multiple of 32" : "";
}

}  // namespace

std::string cached_attention_tensor_refuses(const Context& /*context*/, const CachedAttention& p) {
  const cache::LayerGroup& layers = p.layers;
  if (layers.k_is_v) return "values inside keys";
  if (layers.k_dim != layers.v_dim) return "keys and values of different dims";
  if (layers.k_dim != 64 && layers.k_dim != 128) return "dims other than 64 and 128";
  for (const cache::Format& format : {layers.k, layers.v}) {
    const std::string refusal = scales_refusal(format, layers.k_dim);
    if (!refusal.empty()) return refusal;
  }
  if (kernel_for(layers) == nullptr) return "this pair of formats";
  if (reinterpret_cast<std::uintptr_t>(p.pages.memory) % cache::kSectionAlignment != 0) {
    return "pages not on 16 bytes";
  }
  if (p.pages.geometry.page_bytes >= std::int64_t{1} << 32) return "pages of 4 GiB or more";
  if (checked_mul(layers.kv_heads, p.pages.page_tokens) >= std::int64_t{1} << 31) {
    return "pages of 2^31 vectors or more";
  }
  return {};
}

void cached_attention_tensor(Context& context, const CachedAttention& p) {
  const Kernel& kernel = *kernel_for(p.layers);
  run_splits(context, p, p.layers.k_dim == 64 ? kernel.of_64 : kernel.of_128);
}

}  // namespace touchstone::attend
