// cached_attention on CUDA: the kernel for keys and values of any kind.
#include <string>

#include "cache/codec.h"
#include "ops/attention_paged/cuda/paged_split.cuh"

namespace touchstone::paged_attention {
namespace {

constexpr int kPortableVectors = 4;
constexpr int kPortableDim = 1536;

__device__ float element(const Section& section, const std::byte* values, const std::byte* scales,
                         std::int64_t d) {
  const QuantFormat& format = section.format;
  if (format.dtype == DType::f32) return reinterpret_cast<const float*>(values)[d];
  if (format.dtype == DType::bf16) {
    return cuda::widen(reinterpret_cast<const Bf16*>(values)[d]);
  }
  if (format.dtype == DType::f16) {
    return cuda::widen(reinterpret_cast<const F16*>(values)[d]);
  }
  // In 32 bits, where a division is cheap.
  const std::uint32_t group = static_cast<std::uint32_t>(d) /
                              static_cast<std::uint32_t>(cache::group_length(format, section.dim));
  return cache::decode_value(format, cache::load_scale(format, scales, group),
                             cache::load_code(format, values, d));
}

struct PortableRead : TwoPasses<PortableRead> {
  // A warp for each token.
  template <class Block>
  __device__ static void scores(Block& block, int count) {
    const Section& keys = block.work.keys;
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int i = static_cast<int>(threadIdx.x / 32); i < count; i += kWarps) {
      const PageSlot page_slot = block.shared.slots[i];
      const std::byte* const values = block.address(page_slot, keys.values, keys.value_bytes);
      const std::byte* const scales = block.address(page_slot, keys.scales, keys.scale_bytes);
      float sums[Block::kVectors] = {};
#pragma unroll 4
      for (std::int64_t d = lane; d < keys.dim; d += 32) {
        const float x = element(keys, values, scales, d);
#pragma unroll
        for (int v = 0; v < Block::kVectors; ++v) {
          sums[v] = fmaf(block.shared.query[v][d], x, sums[v]);
        }
      }
#pragma unroll
      for (int v = 0; v < Block::kVectors; ++v) {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
          sums[v] += __shfl_xor_sync(kAllLanes, sums[v], offset);
        }
        if (lane == 0) block.shared.weights[i][v] = block.score_of(sums[v]);
      }
    }
  }

  // A thread for each number of the vector.
  template <class Block>
  __device__ static void accumulate(Block& block, int count) {
    const Section& section = block.work.values;
    for (std::int64_t d = threadIdx.x; d < block.p.layers.v_dim; d += kThreads) {
      float sums[Block::kVectors] = {};
#pragma unroll 4
      for (int i = 0; i < count; ++i) {
        const PageSlot page_slot = block.shared.slots[i];
        const float x =
            element(section, block.address(page_slot, section.values, section.value_bytes),
                    block.address(page_slot, section.scales, section.scale_bytes), d);
#pragma unroll
        for (int v = 0; v < Block::kVectors; ++v) {
          sums[v] = fmaf(block.shared.weights[i][v], x, sums[v]);
        }
      }
#pragma unroll
      for (int v = 0; v < Block::kVectors; ++v) block.store_value(v, d, sums[v]);
    }
  }
};

__global__ void __launch_bounds__(kThreads)
    portable_kernel(const __grid_constant__ SplitWork work) {
  using Shared = SplitShared<kPortableVectors, kPortableDim>;
  __shared__ Shared shared;
  SplitBlock<Shared, PortableRead>(work, shared).run();
}

void launch_portable(Context& context, const SplitWork& work, unsigned blocks) {
  cuda::launch(context, "cached_attention portable_kernel", portable_kernel,
               {.blocks = blocks, .threads = kThreads}, work);
}

}  // namespace

std::string cached_attention_portable_refuses(const Context& /*context*/,
                                              const PagedAttentionProblem& p) {
  constexpr std::int64_t kMaxPageTokens = (std::int64_t{1} << 31) - 1;
  if (p.layers.k_dim > kPortableDim) {
    return attention_common::above("k_dim", p.layers.k_dim, kPortableDim);
  }
  if (p.pages.page_tokens > kMaxPageTokens) {
    return attention_common::above("page_tokens", p.pages.page_tokens, kMaxPageTokens);
  }
  return {};
}

void cached_attention_portable(Context& context, const PagedAttentionProblem& p) {
  run_splits(context, p, {.run = launch_portable});
}

}  // namespace touchstone::paged_attention
