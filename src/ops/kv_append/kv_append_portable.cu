// kv_append on CUDA for heads, groups and alignments of any kind: one warp per vector, in shared
// memory.
#include <algorithm>
#include <string>

#include "cache/codec.h"
#include "cache/rotation.h"
#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "ops/kv_append/kv_append_cuda.cuh"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0::cache {
namespace {

struct PortableParams {
  Slice slice;
  KvAppendPart part;
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

__device__ void store_group(const KvAppendPart& part, const float* x, std::int64_t group,
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

__device__ void store_plain(const KvAppendPart& part, const float* x, unsigned lane,
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
  const KvAppendProblem& p = params.slice.p;
  const KvAppendPart& part = params.part;
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

  const PageSlot slot = p.slot_of(token);
  const bool stores = slot.page >= 0;  // the same for all lanes
  std::byte* page = p.memory + (stores ? slot.page * p.page_bytes : 0);
  const std::int64_t row = head * p.page_tokens + slot.slot;
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

std::string append_portable_refuses(const Context& /*context*/, const KvAppendProblem& p) {
  for (const KvAppendPart& part : p.part) {
    if (part.dim * std::int64_t{sizeof(float)} > tuning::kPortableSharedBytes) {
      return "head dim " + std::to_string(part.dim) + " > 12288";
    }
  }
  if (p.kv_heads > tokens_per_launch(1)) return std::to_string(p.kv_heads) + " heads > 2^30";
  return {};
}

void append_portable(Context& context, const KvAppendProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  const std::int64_t step = tokens_per_launch(p.kv_heads);
  for (const KvAppendPart& part : p.part) {
    if (part.from == nullptr) continue;
    const std::int64_t vector_bytes = part.dim * std::int64_t{sizeof(float)};
    const std::int64_t warps =
        std::min<std::int64_t>(kThreads / kWarp, tuning::kPortableSharedBytes / vector_bytes);
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

}  // namespace touchstone::inline v0::cache
