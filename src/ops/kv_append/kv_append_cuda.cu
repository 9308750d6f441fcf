// kv_append on CUDA, aligned data. `copy` copies values stored in the dtype they arrive in, one warp
// per token. `paired` and `registers` hold 16 values per thread, so that all accesses are 16 bytes
// wide. They give the bits of codec.h.
#include <bit>
#include <string>

#include "cache/codec.h"
#include "cache/rotation.h"
#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "ops/kv_append/kv_append_cuda.cuh"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0::cache {
namespace {

using tuning::kChunk;
// ---- in registers ------------------------------------------------------------------------------

// A chunk as loaded, so that several loads are in flight before the first is used.
struct RawChunk {
  uint4 vectors[4];  // of 16 bits two
};

__device__ RawChunk load_chunk(const KvAppendPart& part, std::int64_t at) {
  RawChunk raw;
  const bool wide = part.dtype == DType::f32;
  const auto* const from = reinterpret_cast<const uint4*>(static_cast<const std::byte*>(part.from) +
                                                          at * (wide ? 4 : 2));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < 2 || wide) raw.vectors[i] = __ldg(from + i);
  }
  return raw;
}

template <class T>
__device__ void widen_chunk(const RawChunk& raw, float (&x)[kChunk]) {
  constexpr int kN = cuda::kPerVector<T>;
#pragma unroll
  for (int i = 0; i < kChunk / kN; ++i) {
    float part[kN];
    cuda::unpack_as<T>(raw.vectors[i], part);
#pragma unroll
    for (int k = 0; k < kN; ++k) x[i * kN + k] = part[k];
  }
}
__device__ void widen_chunk(DType dtype, const RawChunk& raw, float (&x)[kChunk]) {
  if (dtype == DType::f32) {
    widen_chunk<float>(raw, x);
  } else if (dtype == DType::bf16) {
    widen_chunk<Bf16>(raw, x);
  } else {
    widen_chunk<F16>(raw, x);
  }
}

// rotate() of a vector that lies across lanes: partners are in the same thread up to distance 8,
// then in lanes whose numbers differ in one bit.
__device__ void rotate_chunk(float (&x)[kChunk], unsigned block) {
#pragma unroll
  for (int distance = 1; distance < kChunk; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if ((i & distance) != 0) continue;
      const float a = x[i];
      const float b = x[i + distance];
      x[i] = a + b;
      x[i + distance] = a - b;
    }
  }
  for (unsigned offset = 1; offset * kChunk < block; offset *= 2) {
    const bool upper = (threadIdx.x & offset) != 0;
#pragma unroll
    for (float& value : x) {
      const float partner = __shfl_xor_sync(kAllLanes, value, offset);
      value = upper ? partner - value : value + partner;
    }
  }
  const float factor = rotation_factor(block);
#pragma unroll
  for (float& value : x) value = rotation_scaled(value, factor);
}

// What follows stores chunk number `chunk` of the vector at `to`.
template <class T>
__device__ void store_halves(const float (&x)[kChunk], std::byte* to, unsigned chunk) {
  std::uint32_t words[kChunk / 2];
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) {
    words[i] = stored_bits<T>(x[2 * i]) | stored_bits<T>(x[2 * i + 1]) << 16;
  }
  auto* vectors = reinterpret_cast<uint4*>(to) + chunk * 2;
  vectors[0] = {words[0], words[1], words[2], words[3]};
  vectors[1] = {words[4], words[5], words[6], words[7]};
}

__device__ void store_floats(const float (&x)[kChunk], std::byte* to, unsigned chunk) {
  auto* vectors = reinterpret_cast<float4*>(to) + chunk * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    vectors[i] = {with_quiet_nan(x[4 * i]), with_quiet_nan(x[4 * i + 1]),
                  with_quiet_nan(x[4 * i + 2]), with_quiet_nan(x[4 * i + 3])};
  }
}

template <DType kEncoding, bool kAsymmetric>
__device__ void store_codes(const float (&x)[kChunk], Quantizer with, std::byte* to,
                            unsigned chunk) {
  constexpr QuantFormat kFormat{.dtype = kEncoding, .asymmetric = kAsymmetric};
  constexpr int kBits = kEncoding == DType::i4 ? 4 : 8;
  constexpr int kPerWord = 32 / kBits;
  std::uint32_t words[kChunk / kPerWord] = {};
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    words[i / kPerWord] |= std::uint32_t{encode_value(kFormat, with, x[i])}
                           << (i % kPerWord * kBits);
  }
  if constexpr (kBits == 4) {
    reinterpret_cast<uint2*>(to)[chunk] = {words[0], words[1]};
  } else {
    reinterpret_cast<uint4*>(to)[chunk] = {words[0], words[1], words[2], words[3]};
  }
}

__device__ void store_chunk(const KvAppendPart& part, const float (&x)[kChunk], Quantizer with,
                            std::byte* to, unsigned chunk) {
  switch (part.format.dtype) {
    case DType::f32:
      return store_floats(x, to, chunk);
    case DType::bf16:
      return store_halves<Bf16>(x, to, chunk);
    case DType::f16:
      return store_halves<F16>(x, to, chunk);
    case DType::i8:
      return part.format.asymmetric ? store_codes<DType::i8, true>(x, with, to, chunk)
                                    : store_codes<DType::i8, false>(x, with, to, chunk);
    case DType::i4:
      return part.format.asymmetric ? store_codes<DType::i4, true>(x, with, to, chunk)
                                    : store_codes<DType::i4, false>(x, with, to, chunk);
    case DType::f8_e4m3:
      return store_codes<DType::f8_e4m3, false>(x, with, to, chunk);
    default:
      return;  // no format of a checked layout
  }
}

// The chunks of a part lie side by side in the grid, token by token, head by head. A group and a
// block of the rotation are a power of two of them, at most a warp, and begin on a multiple of it.
struct ChunkOfPart {
  unsigned chunk, head;  // of the vector, of the token
  std::int64_t token;
  bool there;  // threads past the end do the last chunk again, for the shuffles, and store nothing

  __device__ ChunkOfPart(const Slice& slice, const KvAppendPart& part, unsigned block) {
    const auto chunks = static_cast<unsigned>(part.dim) / kChunk;  // of a vector
    const auto heads = static_cast<unsigned>(slice.p.kv_heads);
    const unsigned count = slice.tokens * heads * chunks;
    const unsigned id = block * kThreads + threadIdx.x;
    const unsigned work = min(id, count - 1);
    const unsigned vector = work / chunks;
    chunk = work - vector * chunks;
    const unsigned token_of_slice = vector / heads;
    head = vector - token_of_slice * heads;
    token = slice.first_token + token_of_slice;
    there = id < count;
  }

  __device__ RawChunk load(const KvAppendPart& part) const {
    return load_chunk(part, token * part.stride + head * part.dim + chunk * kChunk);
  }
};

__device__ void append_chunk(const KvAppendProblem& p, const KvAppendPart& part,
                             const ChunkOfPart& of, const RawChunk& raw, const PageSlot& slot) {
  const bool stores = of.there && slot.page >= 0;
  std::byte* page = p.memory + (stores ? slot.page * p.page_bytes : 0);
  const std::int64_t row = of.head * p.page_tokens + slot.slot;

  float x[kChunk];
  widen_chunk(part.dtype, raw, x);
  if (part.rotated) rotate_chunk(x, static_cast<unsigned>(rotation_block(part.dim)));
  Quantizer with{};
  if (is_quantized(part.format.dtype)) {
    const auto lanes = static_cast<unsigned>(group_length(part.format, part.dim)) / kChunk;
    GroupExtremes extremes = extremes_of(x, kChunk);
    join_lanes(extremes, lanes);
    const GroupScale scale = scale_of(part.format, extremes);
    with = quantizer_of(scale);
    if (stores && (of.chunk & (lanes - 1)) == 0) {
      store_scale(part.format, page + part.scales_at + row * part.scale_bytes, of.chunk / lanes,
                  scale);
    }
  }
  if (!stores) return;
  store_chunk(part, x, with, page + part.values_at + row * part.value_bytes, of.chunk);
}

struct RegistersParams {
  Slice slice;
  unsigned k_blocks;
};

__global__ void __launch_bounds__(kThreads)
    append_registers_kernel(const __grid_constant__ RegistersParams params) {
  const KvAppendProblem& p = params.slice.p;
  const bool of_keys = blockIdx.x < params.k_blocks;
  const KvAppendPart& part = p.part[of_keys ? 0 : 1];
  const ChunkOfPart of(params.slice, part, of_keys ? blockIdx.x : blockIdx.x - params.k_blocks);
  const RawChunk raw = of.load(part);
  append_chunk(p, part, of, raw, p.slot_of(of.token));
}

// Keys and values of equal dims: one slot lookup for both, all loads in flight at once.
__global__ void __launch_bounds__(kThreads)
    append_pairs_kernel(const __grid_constant__ RegistersParams params) {
  const KvAppendProblem& p = params.slice.p;
  const ChunkOfPart of(params.slice, p.part[0], blockIdx.x);
  const RawChunk keys = of.load(p.part[0]);
  const RawChunk values = of.load(p.part[1]);
  const PageSlot slot = p.slot_of(of.token);
  append_chunk(p, p.part[0], of, keys, slot);
  append_chunk(p, p.part[1], of, values, slot);
}

// ---- copied ------------------------------------------------------------------------------------

// A part whose numbers stay what they are, in units of 16 bytes.
struct CopiedPart {
  const uint4* from;  // null = nothing to do
  std::int64_t stride;
  unsigned units;       // of a token
  unsigned head_shift;  // log2 of those of a head
  std::int64_t values_at;
  std::int64_t head_bytes;  // from head to head in a page
  std::int64_t value_bytes;
  DType dtype;
};

struct CopiedParams {
  Slice slice;
  CopiedPart part[2];
};

// Without the signs and payloads of NaNs.
template <class Pair>
__device__ std::uint32_t with_quiet_nans(std::uint32_t bits, std::uint32_t nans) {
  const Pair pair = reinterpret_cast<const Pair&>(bits);
  const std::uint32_t is_nan = __hneu2_mask(pair, pair);
  return (bits & ~is_nan) | (nans & is_nan);
}
__device__ uint4 with_quiet_nans(uint4 x, DType dtype) {
  std::uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (std::uint32_t& word : words) {
    if (dtype == DType::f32) {
      word = __float_as_uint(with_quiet_nan(__uint_as_float(word)));
    } else if (dtype == DType::bf16) {
      word = with_quiet_nans<__nv_bfloat162>(word, 0x7fc07fc0);
    } else {
      word = with_quiet_nans<__half2>(word, 0x7e007e00);
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// The loads of both parts are issued before the slot of the token is known.
__global__ void __launch_bounds__(kThreads)
    append_copied_kernel(const __grid_constant__ CopiedParams params) {
  constexpr unsigned kAtOnce = tuning::kCopyUnitsInFlight;
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned token_of_slice = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (token_of_slice >= params.slice.tokens) return;
  const std::int64_t token = params.slice.first_token + token_of_slice;
  const KvAppendProblem& p = params.slice.p;
  const unsigned units = max(params.part[0].units, params.part[1].units);
  for (unsigned first = lane; first < units; first += kAtOnce * kWarp) {
    uint4 x[2][kAtOnce];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const CopiedPart& part = params.part[i];
#pragma unroll
      for (unsigned k = 0; k < kAtOnce; ++k) {
        const unsigned unit = first + k * kWarp;
        if (unit < part.units) x[i][k] = __ldcs(part.from + token * part.stride + unit);
      }
    }
    const PageSlot slot = p.slot_of(token);
    if (slot.page < 0) return;
    std::byte* const page = p.memory + slot.page * p.page_bytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const CopiedPart& part = params.part[i];
      std::byte* const to = page + part.values_at + slot.slot * part.value_bytes;
#pragma unroll
      for (unsigned k = 0; k < kAtOnce; ++k) {
        const unsigned unit = first + k * kWarp;
        const unsigned head = unit >> part.head_shift;
        const unsigned of_head = unit - (head << part.head_shift);
        if (unit < part.units) {
          *reinterpret_cast<uint4*>(to + head * part.head_bytes + of_head * 16) =
              with_quiet_nans(x[i][k], part.dtype);
        }
      }
    }
  }
}

bool is_copied(const KvAppendPart& part) {
  if (part.from == nullptr) return true;
  const bool stays = (part.dtype == DType::f32 && part.format.dtype == DType::f32) ||
                     (part.dtype == DType::bf16 && part.format.dtype == DType::bf16) ||
                     (part.dtype == DType::f16 && part.format.dtype == DType::f16);
  return stays && !part.rotated &&
         std::has_single_bit(static_cast<std::uint64_t>(part.value_bytes)) &&
         part.value_bytes >= 16;
}

CopiedPart copied_part(const KvAppendProblem& p, const KvAppendPart& part) {
  if (part.from == nullptr) return {};
  const std::int64_t head_units = part.value_bytes / 16;
  return {
      .from = static_cast<const uint4*>(part.from),
      .stride = part.stride * size_of(part.dtype) / 16,
      .units = static_cast<unsigned>(p.kv_heads * head_units),
      .head_shift = static_cast<unsigned>(std::countr_zero(static_cast<std::uint64_t>(head_units))),
      .values_at = part.values_at,
      .head_bytes = p.page_tokens * part.value_bytes,
      .value_bytes = part.value_bytes,
      .dtype = part.dtype};
}

void append_copied(Context& context, const KvAppendProblem& p) {
  const std::int64_t step = tokens_per_launch(kWarp);
  for (std::int64_t first = 0; first < p.tokens; first += step) {
    const std::int64_t tokens = std::min(step, p.tokens - first);
    cuda::launch(
        context, "append_copied", append_copied_kernel,
        {.blocks = static_cast<unsigned>(ceil_div(tokens, kThreads / kWarp)), .threads = kThreads},
        CopiedParams{{p, first, static_cast<unsigned>(tokens)},
                     {copied_part(p, p.part[0]), copied_part(p, p.part[1])}});
  }
}

bool is_chunked(std::int64_t length) {
  return length % kChunk == 0 && std::has_single_bit(static_cast<std::uint64_t>(length / kChunk)) &&
         length <= kChunk * std::int64_t{kWarp};
}

bool on_16_bytes(std::uintptr_t address) { return address % 16 == 0; }

}  // namespace

namespace {

std::string alignment_refusal(const KvAppendProblem& p, const KvAppendPart& part) {
  if (!on_16_bytes(reinterpret_cast<std::uintptr_t>(p.memory))) {
    return "pages are not 16-byte aligned";
  }
  if (!on_16_bytes(reinterpret_cast<std::uintptr_t>(part.from)) ||
      part.stride * size_of(part.dtype) % 16 != 0) {
    return "token stride " + std::to_string(part.stride * size_of(part.dtype)) +
           " bytes or data is not 16-byte aligned";
  }
  return {};
}

// What a chunk of 16 values per thread cannot take.
std::string chunk_refusal(const KvAppendProblem& p, const KvAppendPart& part) {
  const std::string dim = "head dim " + std::to_string(part.dim);
  if (part.dim % kChunk != 0) return dim + " is not a multiple of 16";
  const std::int64_t group = group_length(part.format, part.dim);
  if (is_quantized(part.format.dtype) && !is_chunked(group)) {
    return "group_size " + std::to_string(group) + " is not 16, 32, 64, 128, 256 or 512";
  }
  if (part.rotated && !is_chunked(rotation_block(part.dim))) {
    return "rotation over " + std::to_string(rotation_block(part.dim)) + " values is not 16 to 512";
  }
  if (std::string refusal = alignment_refusal(p, part); !refusal.empty()) return refusal;
  if (p.kv_heads > tokens_per_launch(part.dim)) {
    return std::to_string(p.kv_heads) + " heads of " + std::to_string(part.dim) +
           " exceed 2^30 values per token";
  }
  return {};
}

std::int64_t chunks_of(const KvAppendProblem& p, const KvAppendPart& part) {
  return part.from == nullptr ? 0 : p.kv_heads * part.dim / kChunk;
}

}  // namespace

std::string append_registers_refuses(const Context& /*context*/, const KvAppendProblem& p) {
  for (const KvAppendPart& part : p.part) {
    if (part.from == nullptr) continue;
    if (std::string refusal = chunk_refusal(p, part); !refusal.empty()) return refusal;
  }
  return {};
}

std::string append_paired_refuses(const Context& context, const KvAppendProblem& p) {
  if (p.part[1].from == nullptr || p.part[0].dim != p.part[1].dim) {
    return "head dims of K and V differ: " + std::to_string(p.part[0].dim) + " and " +
           std::to_string(p.part[1].from == nullptr ? 0 : p.part[1].dim);
  }
  return append_registers_refuses(context, p);
}

std::string append_copy_refuses(const Context& context, const KvAppendProblem& p) {
  for (const KvAppendPart& part : p.part) {
    if (is_copied(part)) continue;
    if (part.rotated) return "keys are rotated";
    if (part.dtype != part.format.dtype) {
      return std::string(name_of(part.dtype)) + " is stored as " +
             std::string(format_name(part.format.dtype));
    }
    return "vectors of " + std::to_string(part.value_bytes) +
           " bytes are not a power of two of at least 16";
  }
  return append_registers_refuses(context, p);
}

void append_copy(Context& context, const KvAppendProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  append_copied(context, p);
}

void append_paired(Context& context, const KvAppendProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  const std::int64_t chunks = chunks_of(p, p.part[0]);
  const std::int64_t step = tokens_per_launch(2 * chunks);
  for (std::int64_t first = 0; first < p.tokens; first += step) {
    const std::int64_t tokens = std::min(step, p.tokens - first);
    const auto blocks = static_cast<unsigned>(ceil_div(tokens * chunks, kThreads));
    cuda::launch(context, "append_paired", append_pairs_kernel,
                 {.blocks = blocks, .threads = kThreads},
                 RegistersParams{{p, first, static_cast<unsigned>(tokens)}, blocks});
  }
}

void append_registers(Context& context, const KvAppendProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  const std::int64_t k_chunks = chunks_of(p, p.part[0]);
  const std::int64_t v_chunks = chunks_of(p, p.part[1]);
  const std::int64_t step = tokens_per_launch(k_chunks + v_chunks);
  for (std::int64_t first = 0; first < p.tokens; first += step) {
    const std::int64_t tokens = std::min(step, p.tokens - first);
    const auto k_blocks = static_cast<unsigned>(ceil_div(tokens * k_chunks, kThreads));
    const auto v_blocks = static_cast<unsigned>(ceil_div(tokens * v_chunks, kThreads));
    cuda::launch(context, "append_registers", append_registers_kernel,
                 {.blocks = k_blocks + v_blocks, .threads = kThreads},
                 RegistersParams{{p, first, static_cast<unsigned>(tokens)}, k_blocks});
  }
}

}  // namespace touchstone::inline v0::cache
