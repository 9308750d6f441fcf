// cached_attention on CUDA for the common heads: keys and values of 64 or 128 numbers, read 8
// numbers at a time straight into registers.
//
// Groups of lanes read a token together. Each thread issues the loads of kAhead tokens before using
// the first; blocks that share a multiprocessor hide the rest of the waiting.
#include <string>

#include "cache/codec.h"
#include "ops/attention_paged/cuda/paged_split.cuh"

namespace touchstone::paged_attention {
namespace {

constexpr int kChunk = 8;  // numbers of a lane
constexpr int kAhead = 4;

template <DType kEncoding>
inline constexpr int kBits = kEncoding == DType::f32                               ? 32
                             : kEncoding == DType::bf16 || kEncoding == DType::f16 ? 16
                             : kEncoding == DType::i4                              ? 4
                                                                                   : 8;

// What a lane holds of a vector, as stored. Scales are f16.
template <DType kEncoding, bool kAsymmetric>
struct Stored {
  static constexpr int kWords = kChunk * kBits<kEncoding> / 32;

  std::uint32_t words[kWords];
  std::uint32_t scale;  // and the minimum above it

  __device__ void load(const std::byte* values, const std::byte* scales) {
    if constexpr (kWords == 1) {
      words[0] = __ldg(reinterpret_cast<const unsigned*>(values));
    } else if constexpr (kWords == 2) {
      const uint2 pair = __ldg(reinterpret_cast<const uint2*>(values));
      words[0] = pair.x;
      words[1] = pair.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 four = __ldg(reinterpret_cast<const uint4*>(values) + i / 4);
        words[i] = four.x;
        words[i + 1] = four.y;
        words[i + 2] = four.z;
        words[i + 3] = four.w;
      }
    }
    if constexpr (!is_quantized(kEncoding)) {
      scale = 0;
    } else if constexpr (kAsymmetric) {
      scale = __ldg(reinterpret_cast<const unsigned*>(scales));
    } else {
      scale = __ldg(reinterpret_cast<const unsigned short*>(scales));
    }
  }

  // Numbers 4 * half to 4 * half + 3. Exact (codec.h), except for the one rounding of an
  // asymmetric value.
  __device__ void decode(int half, float (&x)[4]) const {
    if constexpr (kEncoding == DType::f32) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = __uint_as_float(words[4 * half + i]);
    } else if constexpr (kEncoding == DType::bf16 || kEncoding == DType::f16) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto bits = static_cast<std::uint16_t>(words[2 * half + i / 2] >> (i % 2 * 16));
        if constexpr (kEncoding == DType::bf16) {
          x[i] = cuda::widen(Bf16::from_bits(bits));
        } else {
          x[i] = cuda::widen(F16::from_bits(bits));
        }
      }
    } else {
      const float factor = cuda::widen(F16::from_bits(static_cast<std::uint16_t>(scale)));
      const float minimum = cuda::widen(F16::from_bits(static_cast<std::uint16_t>(scale >> 16)));
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = fmaf(code(half, i), factor, minimum);
    }
  }

 private:
  // As a number, before it is scaled.
  __device__ float code(int half, int i) const {
    // A small integer in the low bits of 2^23 is that float; conversions are slower.
    constexpr std::uint32_t kShiftBits = 0x4b000000;
    constexpr float kShift = 8388608.0F;
    if constexpr (kEncoding == DType::f8_e4m3) {
      const std::uint32_t byte = words[half] >> (8 * i) & 0xffU;
      // The exponents differ by 120, of subnormals too.
      const float value = __uint_as_float((byte & 0x80U) << 24 | (byte & 0x7fU) << 20) * 0x1p120F;
      return (byte & 0x7fU) == 0x7fU ? __uint_as_float(cache::kNanBits) : value;
    } else if constexpr (kEncoding == DType::i8) {
      constexpr std::uint32_t kFlip = kAsymmetric ? 0 : 0x80;  // signed to offset by 128
      const std::uint32_t bytes = words[half] ^ kFlip * 0x01010101U;
      return __uint_as_float(__byte_perm(bytes, kShiftBits, 0x7540U + i)) -
             (kShift + static_cast<float>(kFlip));
    } else {
      constexpr float kOffset = kAsymmetric ? 0 : 8;
      const std::uint32_t nibble = words[0] >> (16 * half + 4 * i) & 0xfU;
      return __uint_as_float(nibble | kShiftBits) - (kShift + kOffset);
    }
  }
};

// How the lanes of a block share the list of tokens, and where one lane reads.
template <int kDim, class StoredChunk, class Block>
struct LaneGroup {
  static constexpr int kLanes = kDim / kChunk;
  static constexpr int kLaneGroups = 32 / kLanes;  // of a warp
  static constexpr int kStep = kWarps * kLaneGroups * kAhead;
  static_assert(kSplit % kStep == 0);

  __device__ LaneGroup(const Block& block, const Section& section)
      : block(block),
        chunk(static_cast<int>(threadIdx.x) % kLanes),
        first(static_cast<int>(threadIdx.x / 32) * kLaneGroups * kAhead +
              static_cast<int>(threadIdx.x) % 32 / kLanes),
        value_bytes(static_cast<std::uint32_t>(section.value_bytes)),
        scale_bytes(static_cast<std::uint32_t>(section.scale_bytes)) {
    const auto group = static_cast<std::uint32_t>(cache::group_length(section.format, kDim));
    values = block.address({0, 0}, section.values, value_bytes) + chunk * (value_bytes / kLanes);
    scales = block.address({0, 0}, section.scales, scale_bytes) +
             chunk * kChunk / group * (scale_bytes / (kDim / group));
  }

  __device__ int token(int base, int ahead) const { return base + first + ahead * kLaneGroups; }

  __device__ void load(int base, int count, StoredChunk (&stored)[kAhead]) const {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      // Behind the end the last token again, without a branch: its weight there is 0.
      const PageSlot page_slot = block.shared.slots[min(token(base, u), count - 1)];
      stored[u].load(values + page_slot.page + std::uint64_t{page_slot.slot} * value_bytes,
                     scales + page_slot.page + std::uint64_t{page_slot.slot} * scale_bytes);
    }
  }

  const Block& block;
  int chunk;
  int first;
  std::uint32_t value_bytes;
  std::uint32_t scale_bytes;
  const std::byte* values;  // of slot 0 of page 0
  const std::byte* scales;
};

// Sums each of the first `kCount` values over `kLanes` neighboring lanes. Lane l of them ends up
// with the sums of the values l * kCount / kLanes and following, in front. All values are summed in
// one order.
template <int kLanes, int kCount, int kSize>
__device__ void sum_lanes(float (&x)[kSize]) {
  if constexpr (kLanes > 1) {
    constexpr int kHalf = kCount / 2;
    static_assert(kCount % kLanes == 0);
    const bool upper = (threadIdx.x & (kLanes / 2)) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float keep = upper ? x[i + kHalf] : x[i];
      const float give = upper ? x[i] : x[i + kHalf];
      x[i] = __fadd_rn(keep, __shfl_xor_sync(kAllLanes, give, kLanes / 2));
    }
    sum_lanes<kLanes / 2, kHalf>(x);
  }
}

template <int kDim, class StoredChunk, class Block>
__device__ void scores_of(Block& block, int count) {
  constexpr int kVectors = Block::kVectors;
  const LaneGroup<kDim, StoredChunk, Block> lane_group(block, block.work.keys);
#pragma unroll 1
  for (int base = 0; base < count; base += lane_group.kStep) {
    StoredChunk stored[kAhead];
    lane_group.load(base, count, stored);
    float sums[kAhead * kVectors] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x[kAhead][4];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) stored[u].decode(half, x[u]);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const float4 q = *reinterpret_cast<const float4*>(
            &block.shared.query[v][lane_group.chunk * kChunk + half * 4]);
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          float& sum = sums[u * kVectors + v];
          sum = fmaf(q.x, x[u][0], sum);
          sum = fmaf(q.y, x[u][1], sum);
          sum = fmaf(q.z, x[u][2], sum);
          sum = fmaf(q.w, x[u][3], sum);
        }
      }
    }
    sum_lanes<lane_group.kLanes, kAhead * kVectors>(sums);
    constexpr int kOwn = kAhead * kVectors / lane_group.kLanes;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int value = lane_group.chunk * kOwn + k;
      const int i = lane_group.token(base, value / kVectors);
      if (i < count) {
        block.shared.weights[i][value % kVectors] = block.score_of(sums[k]);
      }
    }
  }
}

template <int kDim, class StoredChunk, class Block>
__device__ void accumulate_of(Block& block, int count) {
  constexpr int kVectors = Block::kVectors;
  const LaneGroup<kDim, StoredChunk, Block> lane_group(block, block.work.values);
  float sums[kVectors][kChunk] = {};
#pragma unroll 1
  for (int base = 0; base < count; base += lane_group.kStep) {
    StoredChunk stored[kAhead];
    lane_group.load(base, count, stored);
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      float weights[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; v += 4) {
        const float4 four =
            *reinterpret_cast<const float4*>(&block.shared.weights[lane_group.token(base, u)][v]);
        weights[v] = four.x;
        weights[v + 1] = four.y;
        weights[v + 2] = four.z;
        weights[v + 3] = four.w;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x[4];
        stored[u].decode(half, x);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sums[v][4 * half + i] = fmaf(weights[v], x[i], sums[v][4 * half + i]);
          }
        }
      }
    }
  }
  // Lane groups of a warp, then warps, whose sums lie where the weights were.
  __syncthreads();
  auto* const parts = reinterpret_cast<float(*)[kVectors][kDim]>(block.shared.weights);
  static_assert(sizeof(float) * kWarps * kVectors * kDim <= sizeof(block.shared.weights));
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
#pragma unroll
      for (int offset = lane_group.kLanes; offset < 32; offset *= 2) {
        sums[v][i] = __fadd_rn(sums[v][i], __shfl_xor_sync(kAllLanes, sums[v][i], offset));
      }
      if (threadIdx.x % 32 < lane_group.kLanes) {
        parts[threadIdx.x / 32][v][lane_group.chunk * kChunk + i] = sums[v][i];
      }
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kVectors * kDim; i += kThreads) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum = __fadd_rn(sum, parts[warp][i / kDim][i % kDim]);
    block.store_value(i / kDim, i % kDim, sum);
  }
}

// Calls `use` with the type that holds vectors of a format.
template <class Use>
__device__ void visit_stored(const QuantFormat& format, Use use) {
  switch (format.dtype) {
    case DType::f32:
      return use(Stored<DType::f32, false>());
    case DType::bf16:
      return use(Stored<DType::bf16, false>());
    case DType::f16:
      return use(Stored<DType::f16, false>());
    case DType::i8:
      return format.asymmetric ? use(Stored<DType::i8, true>()) : use(Stored<DType::i8, false>());
    case DType::i4:
      return format.asymmetric ? use(Stored<DType::i4, true>()) : use(Stored<DType::i4, false>());
    case DType::f8_e4m3:
      return use(Stored<DType::f8_e4m3, false>());
    default:
      return;  // no format of a checked layout
  }
}

template <int kDim>
struct RegistersRead : TwoPasses<RegistersRead<kDim>> {
  template <class Block>
  __device__ static void scores(Block& block, int count) {
    visit_stored(block.work.keys.format,
                 [&](auto stored) { scores_of<kDim, decltype(stored)>(block, count); });
  }
  template <class Block>
  __device__ static void accumulate(Block& block, int count) {
    visit_stored(block.work.values.format,
                 [&](auto stored) { accumulate_of<kDim, decltype(stored)>(block, count); });
  }
};

template <int kDim, int kVectors>
__global__ void __launch_bounds__(kThreads, kVectors == 4 ? 5 : 4)
    registers_kernel(const __grid_constant__ SplitWork work) {
  using Shared = SplitShared<kVectors, kDim>;
  __shared__ Shared shared;
  SplitBlock<Shared, RegistersRead<kDim>>(work, shared).run();
}

template <int kDim, int kVectors>
void launch_registers(Context& context, const SplitWork& work, unsigned blocks) {
  cuda::launch(context, "cached_attention registers_kernel", registers_kernel<kDim, kVectors>,
               {.blocks = blocks, .threads = kThreads}, work);
}

std::string refusal_of(const QuantFormat& format, std::int64_t dim) {
  if (dim != 64 && dim != 128) {
    return attention_common::needs("head size", "64 or 128", std::to_string(dim));
  }
  if (!is_quantized(format.dtype)) return {};
  if (format.scale_dtype != DType::f16)
    return attention_common::needs("scales", "f16", name_of(format.scale_dtype));
  const std::int64_t group = cache::group_length(format, dim);
  return group % kChunk != 0 ? attention_common::no_multiple("group_size", group, kChunk) : "";
}

}  // namespace

std::string cached_attention_simt_refuses(const Context& /*context*/,
                                          const PagedAttentionProblem& p) {
  const cache::LayerGroup& layers = p.layers;
  if (layers.k_dim != layers.v_dim)
    return "k_dim " + std::to_string(layers.k_dim) + " != v_dim " + std::to_string(layers.v_dim);
  if (const std::string refusal = refusal_of(layers.k, layers.k_dim); !refusal.empty()) {
    return refusal;
  }
  if (const std::string refusal = refusal_of(layers.k_is_v ? layers.k : layers.v, layers.v_dim);
      !refusal.empty()) {
    return refusal;
  }
  return refuses_pages(p);
}

void cached_attention_simt(Context& context, const PagedAttentionProblem& p) {
  const bool few = p.heads_per_kv <= 4 && p.queries <= p.rows;
  if (p.layers.k_dim == 64) {
    run_splits(context, p, {.run = few ? launch_registers<64, 4> : launch_registers<64, 8>});
  } else {
    run_splits(context, p, {.run = few ? launch_registers<128, 4> : launch_registers<128, 8>});
  }
}

}  // namespace touchstone::paged_attention
