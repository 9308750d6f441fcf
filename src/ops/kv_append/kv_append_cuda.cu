// append on CUDA. Three kernels that give the bits of codec.h: one copies what is stored in the
// dtype it comes in, a warp for each token; one holds vectors in registers, 16 numbers per thread,
// so that everything is read and written 16 bytes at a time; the last holds them in shared memory,
// one warp each, and takes heads and groups of any length.
#include <bit>
#include <string>

#include "cache/codec.h"
#include "cache/rotation.h"
#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "ops/kv_append/kv_append.h"
#include "touchstone/core/checked.h"

namespace touchstone::cache {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 16;  // numbers of a thread: 32 bytes of bf16 in, 16 bytes of int8 out
constexpr unsigned kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffff;

// What one launch does: some of the tokens, so that counts fit in 32 bits.
struct Slice {
  Append p;
  std::int64_t first_token;
  unsigned tokens;
};

// Tokens per launch when a token takes so many threads or warps.
std::int64_t tokens_per_launch(std::int64_t per_token) {
  return (std::int64_t{1} << 30) / per_token;
}

__device__ void join(GroupExtremes& of, const GroupExtremes& by) {
  of.magnitude_bits = max(of.magnitude_bits, by.magnitude_bits);
  of.least = fminf(of.least, by.least);
  of.most = fmaxf(of.most, by.most);
}

// Over lanes whose numbers differ in the bits below `lanes`, a power of two.
__device__ void join_lanes(GroupExtremes& of, unsigned lanes) {
  for (unsigned offset = lanes / 2; offset > 0; offset /= 2) {
    const GroupExtremes other{__shfl_xor_sync(kAllLanes, of.magnitude_bits, offset),
                              __shfl_xor_sync(kAllLanes, of.least, offset),
                              __shfl_xor_sync(kAllLanes, of.most, offset)};
    join(of, other);
  }
}

// CUDA's own conversions have another NaN than the format.
template <class T>
__device__ std::uint32_t stored_bits(float x) {
  constexpr std::uint32_t kNan = std::is_same_v<T, Bf16> ? 0x7fc0 : 0x7e00;
  return x == x ? cuda::narrow<T>(x).bits : kNan;
}

// ---- in registers ------------------------------------------------------------------------------

// A chunk as it comes, so that several can be asked for before one is looked at.
struct RawChunk {
  uint4 vectors[4];  // of 16 bits two
};

__device__ RawChunk load_chunk(const AppendPart& part, std::int64_t at) {
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

__device__ void store_chunk(const AppendPart& part, const float (&x)[kChunk], Quantizer with,
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
  }
}

// The chunks of a part lie side by side in the grid, token by token, head by head. A group and a
// block of the rotation are a power of two of them, at most a warp, and begin on a multiple of it.
struct ChunkOfPart {
  unsigned chunk, head;  // of the vector, of the token
  std::int64_t token;
  bool there;  // threads past the end do the last chunk again, for the shuffles, and store nothing

  __device__ ChunkOfPart(const Slice& slice, const AppendPart& part, unsigned block) {
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

  __device__ RawChunk load(const AppendPart& part) const {
    return load_chunk(part, token * part.stride + head * part.dim + chunk * kChunk);
  }
};

__device__ void append_chunk(const Append& p, const AppendPart& part, const ChunkOfPart& of,
                             const RawChunk& raw, const Append::Place& place) {
  const bool stores = of.there && place.page >= 0;
  std::byte* page = p.memory + (stores ? place.page * p.page_bytes : 0);
  const std::int64_t row = of.head * p.page_tokens + place.slot;

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
  const Append& p = params.slice.p;
  const bool of_keys = blockIdx.x < params.k_blocks;
  const AppendPart& part = p.part[of_keys ? 0 : 1];
  const ChunkOfPart of(params.slice, part, of_keys ? blockIdx.x : blockIdx.x - params.k_blocks);
  const RawChunk raw = of.load(part);
  append_chunk(p, part, of, raw, p.place_of(of.token));
}

// Keys and values of equal dims: the same place for both, and all of it asked for at once.
__global__ void __launch_bounds__(kThreads)
    append_pairs_kernel(const __grid_constant__ RegistersParams params) {
  const Append& p = params.slice.p;
  const ChunkOfPart of(params.slice, p.part[0], blockIdx.x);
  const RawChunk keys = of.load(p.part[0]);
  const RawChunk values = of.load(p.part[1]);
  const Append::Place place = p.place_of(of.token);
  append_chunk(p, p.part[0], of, keys, place);
  append_chunk(p, p.part[1], of, values, place);
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

// Several units of both parts are under way before the place of the token is known.
__global__ void __launch_bounds__(kThreads)
    append_copied_kernel(const __grid_constant__ CopiedParams params) {
  constexpr unsigned kAtOnce = 4;
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned token_of_slice = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (token_of_slice >= params.slice.tokens) return;
  const std::int64_t token = params.slice.first_token + token_of_slice;
  const Append& p = params.slice.p;
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
    const Append::Place place = p.place_of(token);
    if (place.page < 0) return;
    std::byte* const page = p.memory + place.page * p.page_bytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const CopiedPart& part = params.part[i];
      std::byte* const to = page + part.values_at + place.slot * part.value_bytes;
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

bool is_copied(const AppendPart& part) {
  if (part.from == nullptr) return true;
  const bool stays = (part.dtype == DType::f32 && part.format.dtype == DType::f32) ||
                     (part.dtype == DType::bf16 && part.format.dtype == DType::bf16) ||
                     (part.dtype == DType::f16 && part.format.dtype == DType::f16);
  return stays && !part.rotated &&
         std::has_single_bit(static_cast<std::uint64_t>(part.value_bytes)) &&
         part.value_bytes >= 16;
}

CopiedPart copied_part(const Append& p, const AppendPart& part) {
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

void append_copied(Context& context, const Append& p) {
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

// ---- in shared memory --------------------------------------------------------------------------

constexpr std::int64_t kSharedBytes = 48 << 10;

struct PortableParams {
  Slice slice;
  AppendPart part;
};

__device__ void rotate_shared(float* x, std::int64_t dim, unsigned lane) {
  const std::int64_t block = rotation_block(dim);
  if (block == 1) return;
  for (std::int64_t distance = 1; distance < block; distance *= 2) {
    for (std::int64_t pair = lane; pair < dim / 2; pair += kWarp) {
      const std::int64_t within = pair & (distance - 1);
      const std::int64_t i = 2 * (pair - within) + within;
      const float a = x[i];
      const float b = x[i + distance];
      x[i] = a + b;
      x[i + distance] = a - b;
    }
    __syncwarp();
  }
  const float factor = rotation_factor(block);
  for (std::int64_t i = lane; i < dim; i += kWarp) x[i] = rotation_scaled(x[i], factor);
  __syncwarp();
}

__device__ void store_group(const AppendPart& part, const float* x, std::int64_t group,
                            unsigned lane, bool stores, std::byte* values, std::byte* scales) {
  const std::int64_t length = group_length(part.format, part.dim);
  const std::int64_t first = group * length;
  GroupExtremes extremes = extremes_of(x + first, 1);
  for (std::int64_t i = first + lane; i < first + length; i += kWarp) {
    join(extremes, extremes_of(x + i, 1));
  }
  join_lanes(extremes, kWarp);
  if (!stores) return;
  const GroupScale scale = scale_of(part.format, extremes);
  if (lane == 0) store_scale(part.format, scales, group, scale);
  const Quantizer with = quantizer_of(scale);
  if (part.format.dtype == DType::i4) {
    for (std::int64_t i = first + 2 * lane; i < first + length; i += 2 * kWarp) {
      const unsigned low = encode_value(part.format, with, x[i]);
      const unsigned high = encode_value(part.format, with, x[i + 1]);
      values[i / 2] = static_cast<std::byte>(low | high << 4);
    }
  } else {
    for (std::int64_t i = first + lane; i < first + length; i += kWarp) {
      values[i] = static_cast<std::byte>(encode_value(part.format, with, x[i]));
    }
  }
}

__device__ void store_plain(const AppendPart& part, const float* x, unsigned lane,
                            std::byte* values) {
  for (std::int64_t i = lane; i < part.dim; i += kWarp) {
    if (part.format.dtype == DType::f32) {
      reinterpret_cast<float*>(values)[i] = with_quiet_nan(x[i]);
    } else {
      const bool bf16 = part.format.dtype == DType::bf16;
      const std::uint32_t bits = bf16 ? stored_bits<Bf16>(x[i]) : stored_bits<F16>(x[i]);
      reinterpret_cast<std::uint16_t*>(values)[i] = static_cast<std::uint16_t>(bits);
    }
  }
}

__global__ void __launch_bounds__(kThreads) append_portable_kernel(PortableParams params) {
  extern __shared__ float shared[];
  const Append& p = params.slice.p;
  const AppendPart& part = params.part;
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  const auto heads = static_cast<unsigned>(p.kv_heads);
  const unsigned vector = blockIdx.x * (blockDim.x / kWarp) + warp;
  if (vector >= params.slice.tokens * heads) return;  // a whole warp
  const std::int64_t token = params.slice.first_token + vector / heads;
  const unsigned head = vector % heads;

  float* x = shared + warp * part.dim;
  const std::int64_t from = token * part.stride + head * part.dim;
  for (std::int64_t i = lane; i < part.dim; i += kWarp) {
    x[i] = cuda::load_any(part.from, part.dtype, from + i);
  }
  __syncwarp();
  if (part.rotated) rotate_shared(x, part.dim, lane);

  const Append::Place place = p.place_of(token);
  const bool stores = place.page >= 0;  // the same for all lanes
  std::byte* page = p.memory + (stores ? place.page * p.page_bytes : 0);
  const std::int64_t row = head * p.page_tokens + place.slot;
  std::byte* values = page + part.values_at + row * part.value_bytes;
  std::byte* scales = page + part.scales_at + row * part.scale_bytes;
  if (!is_quantized(part.format.dtype)) {
    if (stores) store_plain(part, x, lane, values);
    return;
  }
  const std::int64_t groups = part.dim / group_length(part.format, part.dim);
  for (std::int64_t group = 0; group < groups; ++group) {
    store_group(part, x, group, lane, stores, values, scales);
  }
}

}  // namespace

std::string append_registers_refuses(const Context& /*context*/, const Append& p) {
  if (!on_16_bytes(reinterpret_cast<std::uintptr_t>(p.memory))) return "pages not on 16 bytes";
  for (const AppendPart& part : p.part) {
    if (part.from == nullptr) continue;
    if (part.dim % kChunk != 0) return "a head dim that is not a multiple of 16";
    const bool grouped = is_quantized(part.format.dtype);
    if (grouped && !is_chunked(group_length(part.format, part.dim))) {
      return "a group other than 16, 32, 64, 128, 256 or 512";
    }
    if (part.rotated && !is_chunked(rotation_block(part.dim))) return "a rotation beyond 512";
    if (!on_16_bytes(reinterpret_cast<std::uintptr_t>(part.from)) ||
        part.stride * size_of(part.dtype) % 16 != 0) {
      return "tokens that do not begin on 16 bytes";
    }
    if (p.kv_heads > tokens_per_launch(part.dim)) return "more numbers per token than 2^30";
  }
  return {};
}

void append_registers(Context& context, const Append& p) {
  const cuda::DeviceScope scope(context.device().index);
  if (is_copied(p.part[0]) && is_copied(p.part[1])) return append_copied(context, p);
  const auto chunks_of = [&](const AppendPart& part) {
    return part.from == nullptr ? 0 : p.kv_heads * part.dim / kChunk;
  };
  const std::int64_t k_chunks = chunks_of(p.part[0]);
  const std::int64_t v_chunks = chunks_of(p.part[1]);
  const std::int64_t step = tokens_per_launch(k_chunks + v_chunks);
  for (std::int64_t first = 0; first < p.tokens; first += step) {
    const std::int64_t tokens = std::min(step, p.tokens - first);
    const auto k_blocks = static_cast<unsigned>(ceil_div(tokens * k_chunks, kThreads));
    const auto v_blocks = static_cast<unsigned>(ceil_div(tokens * v_chunks, kThreads));
    const RegistersParams params{{p, first, static_cast<unsigned>(tokens)}, k_blocks};
    if (k_chunks == v_chunks) {
      cuda::launch(context, "append_registers", append_pairs_kernel,
                   {.blocks = k_blocks, .threads = kThreads}, params);
      continue;
    }
    cuda::launch(context, "append_registers", append_registers_kernel,
                 {.blocks = k_blocks + v_blocks, .threads = kThreads}, params);
  }
}

std::string append_portable_refuses(const Context& /*context*/, const Append& p) {
  for (const AppendPart& part : p.part) {
    if (part.dim * std::int64_t{sizeof(float)} > kSharedBytes) return "a head dim above 12288";
    if (p.kv_heads > tokens_per_launch(1)) return "more than 2^30 heads";
  }
  return {};
}

void append_portable(Context& context, const Append& p) {
  const cuda::DeviceScope scope(context.device().index);
  const std::int64_t step = tokens_per_launch(p.kv_heads);
  for (const AppendPart& part : p.part) {
    if (part.from == nullptr) continue;
    const std::int64_t vector_bytes = part.dim * std::int64_t{sizeof(float)};
    const std::int64_t warps =
        std::min<std::int64_t>(kThreads / kWarp, kSharedBytes / vector_bytes);
    for (std::int64_t first = 0; first < p.tokens; first += step) {
      const std::int64_t tokens = std::min(step, p.tokens - first);
      cuda::launch(context, "append_portable", append_portable_kernel,
                   {.blocks = static_cast<unsigned>(ceil_div(tokens * p.kv_heads, warps)),
                    .threads = static_cast<unsigned>(warps) * kWarp,
                    .shared_bytes = warps * vector_bytes},
                   PortableParams{{p, first, static_cast<unsigned>(tokens)}, part});
    }
  }
}

}  // namespace touchstone::cache
