// cached_attention on CUDA on the tensor cores: heads of 64 and 128 in bf16, int8, int4 and fp8.
#include <algorithm>
#include <iterator>
#include <string>

#include "ops/attention_paged/cuda/paged_tensor_core.cuh"
#include "touchstone/core/checked.h"

namespace touchstone::paged_attention {
namespace {

template <class Shared>
struct TensorCorePass {
  // A query that is bf16 goes from global memory to where it is an operand; with minima its sums
  // are wanted too.
  static constexpr int kProducts = Shared::kDim / 16 / kWarps;  // of a warp
  static constexpr bool kHalf = Shared::Keys::kHalf;
  struct Fetched {
    uint2 parts[kProducts];
  };
  __device__ static bool fetches(const PagedAttentionProblem& p) {
    return is_exact(p) && Shared::Keys::kScaling != Scaling::kGrouped;
  }

  template <class Block>
  __device__ static Fetched fetch(const Block& block) {
    using C = typename Shared::Keys::C;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const bool there = lane / 4 < block.vectors;
    const auto* const query =
        static_cast<const std::uint16_t*>(block.p.q.data) + (there ? block.query_at(lane / 4) : 0);
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
        both[operand] = (high << 16 | low) ^ (block.p.scale < 0 ? 0x80008000U : 0U);
      }
      result.parts[i] = {both[0], both[1]};
    }
    return result;
  }

  template <class Block>
  __device__ static void put(Block& block, const Fetched& fetched) {
    float factor = 1;
    if constexpr (kHalf) {
      const unsigned vector = threadIdx.x % 32 / 4;
      float largest = 0;
#pragma unroll
      for (const uint2 part : fetched.parts) {
        for (const std::uint32_t pair : {part.x, part.y}) {
          largest = fmaxf(largest, fmaxf(fabsf(low_bf16(pair)), fabsf(high_bf16(pair))));
        }
      }
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
      }
      if (threadIdx.x % 4 == 0) block.shared.maxima[vector][threadIdx.x / 32] = largest;
      __syncthreads();
      factor = power_of_two(query_exponent<kWarps>(block.shared, vector));
    }
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      uint2 part = fetched.parts[i];
      if constexpr (kHalf) part = {half_of(part.x, factor), half_of(part.y, factor)};
      put_part(block, threadIdx.x / 32 + i * kWarps, part, {0, 0});
    }
    put_multipliers<kWarps>(block);
  }

  template <class Block>
  __device__ static void start(Block& block) {
    if (threadIdx.x == 0) WarpPass<Block>::start(block);
  }

  template <class Block>
  __device__ static void attend(Block& block) {
    if (is_exact(block.p)) {
      WarpPass<Block>(block).template run<true>();
    } else {
      WarpPass<Block>(block).template run<false>();
    }
    __syncthreads();
    merge_warps(block);
  }

  // The query as operands. It gets the sign of `scale`, so that larger products are larger scores.
  template <class Block>
  __device__ static void prepare(Block& block) {
    auto& shared = block.shared;
    using C = typename Shared::Keys::C;
    const int lane = static_cast<int>(threadIdx.x % 32);
    float factor = block.p.scale < 0 ? -1.0F : 1.0F;
    if constexpr (kHalf) {
      measure_queries(shared);
      __syncthreads();
      if constexpr (Shared::Keys::kScaling == Scaling::kGrouped) {
        if (threadIdx.x < 32) prepare_offsets(block, factor);
      }
      factor = __fmul_rn(factor, power_of_two(query_exponent<kGroups>(shared, lane / 4)));
    }
    put_multipliers<kGroups>(block);
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const int m = static_cast<int>(threadIdx.x / 32) + i * kWarps;
      float x[2][2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          x[r][k] =
              __fmul_rn(shared.query[lane / 4][key_number<C>(2 * m + r, lane % 4, k)], factor);
        }
      }
      uint2 parts[kParts];
#pragma unroll
      for (uint2& part : parts) {
        part = {take_pair<kHalf>(x[0][0], x[0][1]), take_pair<kHalf>(x[1][0], x[1][1])};
      }
      put_part(block, m, parts[0], parts[1]);
      if (is_exact(block.p)) continue;
#pragma unroll
      for (int part = 1; part < kParts; ++part) shared.rest[part - 1][m][lane] = parts[part];
    }
  }

 private:
  template <class Block>
  __device__ static void put_part(Block& block, unsigned m, uint2 first, uint2 second) {
    auto& parts = block.shared.first_part;
    const unsigned lane = threadIdx.x % 32;
    const bool exact = is_exact(block.p);
    if constexpr (Shared::kWholeOperands) {
      parts[m][lane] = {first.x, exact ? 0U : second.x, first.y, exact ? 0U : second.y};
    } else {
      auto* const words = reinterpret_cast<std::uint32_t*>(&parts[m / 2][lane]);
      words[m % 2] = first.x;
      words[m % 2 + 2] = first.y;
    }
  }

  // f16 reaches less far than bf16: the query is multiplied with a power of two such that its
  // largest number is between 2^13 and 2^14. What is 2^-32 of that is still exact if it is bf16.
  static constexpr int kGroups = Shared::kDim / kGroup;
  template <int kCount>
  __device__ static int query_exponent(const Shared& shared, unsigned vector) {
    if constexpr (!kHalf) return 0;
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) largest = fmaxf(largest, shared.maxima[vector][i]);
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    return largest > 0 ? min(13 - exponent, 90) : 0;
  }
  __device__ static std::uint32_t half_of(std::uint32_t bf16_pair, float factor) {
    return pack_f16(__fmul_rn(low_bf16(bf16_pair), factor),
                    __fmul_rn(high_bf16(bf16_pair), factor));
  }

  // What scores are still to be multiplied with; the query has the sign of `scale` already. Never
  // 0, so that -inf stays -inf.
  template <int kCount, class Block>
  __device__ static void put_multipliers(Block& block) {
    if (threadIdx.x >= kVectors) return;
    auto& shared = block.shared;
    const float factor =
        power_of_two(kScoreExponent<Shared> - query_exponent<kCount>(shared, threadIdx.x));
    shared.multipliers[threadIdx.x] = fmaxf(__fmul_rn(fabsf(block.p.scale), factor), 0x1p-100F);
  }

  // Sums of the query, and its largest magnitudes, over each kGroup numbers, a warp for each.
  __device__ static void measure_queries(Shared& shared) {
    static_assert(kGroup == 32 && kGroups <= kWarps);
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x / 32); i < kVectors * kGroups; i += kWarps) {
      float sum = shared.query[i / kGroups][i % kGroups * kGroup + lane];
      float largest = fabsf(sum);
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) {
        sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, offset));
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
      }
      if (lane != 0) continue;
      shared.query_sums[i / kGroups][i % kGroups] = sum;
      shared.maxima[i / kGroups][i % kGroups] = largest;
    }
  }

  // What the scale and the minimum of a key's group are multiplied with: the sum of the query over
  // the group, for the scale times what decoding leaves to be added. In f16, two parts. By one
  // warp; lane 4 * n + c for vector n and group c.
  template <class Block>
  __device__ static void prepare_offsets(Block& block, float sign) {
    auto& shared = block.shared;
    const unsigned vector = threadIdx.x / 4;
    const unsigned group = threadIdx.x % 4;
    float sum = group < kGroups ? shared.query_sums[vector][group] : 0.0F;
    const int exponent = query_exponent<kGroups>(shared, vector) - kScoreExponent<Shared>;
    sum = __fmul_rn(sum, __fmul_rn(sign, power_of_two(exponent)));
    const float offset = Shared::Keys::C::key_offset(block.work.keys.format.asymmetric);
    float both[2] = {__fmul_rn(offset, sum), sum};
    const std::uint32_t first = take_pair<true>(both[0], both[1]);
    shared.key_offsets[threadIdx.x] = {first, pack_f16(both[0], both[1])};
  }

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
      block.finish_vector(v, largest, sum);
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < block.vectors * kDim; i += kThreads) {
      float value = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const auto& sums = shared.sums(w);
        value = fmaf(sums.values[i / kDim][i % kDim], sums.factor[i / kDim], value);
      }
      block.store_value(i / kDim, i % kDim, value);
    }
  }
};

// On a multiprocessor at the same time. Hopper has 228 KiB, of which every block takes one. Codes
// of 8 bits take more registers than four blocks leave.
template <class Shared>
constexpr bool kTakesMuch = Shared::kDim == 128 && Shared::Keys::C::kBits == 8;
template <class Shared>
constexpr int kBlocks = 4 * (Shared::bytes(true) + 1024) <= 228 * 1024 && !kTakesMuch<Shared> ? 4
                                                                                              : 3;

template <class Shared>
__global__ void __launch_bounds__(kThreads, kBlocks<Shared>)
    tensor_core_kernel(const __grid_constant__ SplitWork work) {
  extern __shared__ __align__(128) std::byte memory[];
  if constexpr (cuda::kHopper) cuda::pdl_launch_dependents();
  auto& shared = keep_address(*reinterpret_cast<Shared*>(memory));
  SplitBlock<Shared, TensorCorePass<Shared>>(work, shared).run();
}

template <class Keys, class Values, int kDim>
void launch_tensor_core(Context& context, const SplitWork& work, unsigned blocks) {
  using Shared = TensorCoreShared<Keys, Values, kDim>;
  cuda::allow_shared(context, tensor_core_kernel<Shared>);
  cuda::launch(
      context, "cached_attention tensor_core_kernel", tensor_core_kernel<Shared>,
      {.blocks = blocks, .threads = kThreads, .shared_bytes = Shared::bytes(is_exact(work.p))},
      work);
}

// The kernels there are: a kind of keys with a kind of values.
struct Kind {
  DType dtype;
  Scaling scaling;

  friend bool operator==(const Kind&, const Kind&) = default;
};

constexpr Kind kInt8{DType::i8, Scaling::kWhole};
constexpr Kind kInt8Groups{DType::i8, Scaling::kGrouped};
constexpr Kind kInt4Groups{DType::i4, Scaling::kGrouped};
constexpr Kind kFp8{DType::f8_e4m3, Scaling::kWhole};

template <int kDim, Kind kKeys, Kind kValues>
constexpr SplitLaunch kLaunch = {
    TensorCoreShared<Operand<kKeys.dtype, kKeys.scaling, kDim>,
                     Operand<kValues.dtype, kValues.scaling, kDim>, kDim>::kSplit,
    launch_tensor_core<Operand<kKeys.dtype, kKeys.scaling, kDim>,
                       Operand<kValues.dtype, kValues.scaling, kDim>, kDim>};

struct Kernel {
  Kind keys, values;
  SplitLaunch of_64, of_128;
};

constexpr Kernel kKernels[] = {
    {kInt8, kInt8, kLaunch<64, kInt8, kInt8>, kLaunch<128, kInt8, kInt8>},
    {kInt8Groups, kInt8Groups, kLaunch<64, kInt8Groups, kInt8Groups>,
     kLaunch<128, kInt8Groups, kInt8Groups>},
    {kInt4Groups, kInt4Groups, kLaunch<64, kInt4Groups, kInt4Groups>,
     kLaunch<128, kInt4Groups, kInt4Groups>},
    {kInt8, kInt4Groups, kLaunch<64, kInt8, kInt4Groups>, kLaunch<128, kInt8, kInt4Groups>},
    {kFp8, kFp8, kLaunch<64, kFp8, kFp8>, kLaunch<128, kFp8, kFp8>},
};

Kind kind_of(const QuantFormat& format, std::int64_t dim) {
  if (!is_quantized(format.dtype)) return {format.dtype, Scaling::kNone};
  const bool whole = cache::group_length(format, dim) == dim && !format.asymmetric;
  return {format.dtype, whole ? Scaling::kWhole : Scaling::kGrouped};
}

const Kernel* kernel_for(const cache::LayerGroup& layers) {
  const Kind keys = kind_of(layers.k, layers.k_dim);
  const Kind values = kind_of(layers.v, layers.v_dim);
  const auto* const found = std::ranges::find_if(kKernels, [&](const Kernel& kernel) {
    return kernel.keys == keys && kernel.values == values;
  });
  return found == std::end(kKernels) ? nullptr : found;
}

// Those have kernels of their own.
bool is_bf16(const cache::LayerGroup& layers) {
  return layers.k.dtype == DType::bf16 && layers.v.dtype == DType::bf16;
}

std::string scales_refusal(const QuantFormat& format, std::int64_t dim) {
  if (!is_quantized(format.dtype)) return {};
  if (format.scale_dtype != DType::f16)
    return attention_common::needs("scales", "f16", name_of(format.scale_dtype));
  const std::int64_t group = cache::group_length(format, dim);
  return group % kGroup != 0 ? attention_common::no_multiple("group_size", group, kGroup) : "";
}

}  // namespace

std::string cached_attention_tensor_core_refuses(const Context& /*context*/,
                                                 const PagedAttentionProblem& p) {
  const cache::LayerGroup& layers = p.layers;
  if (layers.k_is_v) return "k_is_v";
  if (layers.k_dim != layers.v_dim) {
    return "k_dim " + std::to_string(layers.k_dim) + " != v_dim " + std::to_string(layers.v_dim);
  }
  if (layers.k_dim != 64 && layers.k_dim != 128) {
    return attention_common::needs("head size", "64 or 128", std::to_string(layers.k_dim));
  }
  for (const QuantFormat& format : {layers.k, layers.v}) {
    const std::string refusal = scales_refusal(format, layers.k_dim);
    if (!refusal.empty()) return refusal;
  }
  if (!is_bf16(layers) && kernel_for(layers) == nullptr) {
    return "no kernel for keys of " + std::string(name_of(layers.k.dtype)) + " with values of " +
           std::string(name_of(layers.v.dtype));
  }
  constexpr std::int64_t kMaxPageBytes = (std::int64_t{1} << 32) - 1;
  constexpr std::int64_t kMaxPageVectors = (std::int64_t{1} << 31) - 1;
  if (p.pages.geometry.page_bytes > kMaxPageBytes) {
    return attention_common::above("page bytes", p.pages.geometry.page_bytes, kMaxPageBytes);
  }
  const std::int64_t vectors = checked_mul(layers.kv_heads, p.pages.page_tokens);
  if (vectors > kMaxPageVectors) {
    return attention_common::above("kv_heads * page_tokens", vectors, kMaxPageVectors);
  }
  return refuses_pages(p);
}

void cached_attention_tensor_core(Context& context, const PagedAttentionProblem& p) {
  if (is_bf16(p.layers)) return cached_attention_bf16(context, p, false);
  const Kernel& kernel = *kernel_for(p.layers);
  run_splits(context, p, p.layers.k_dim == 64 ? kernel.of_64 : kernel.of_128);
}

}  // namespace touchstone::paged_attention
