// A vector of keys or values in shared memory, stored by one warp: heads, groups and formats of any kind.
#pragma once

#include <cstdint>

#include "cache/codec.h"
#include "cache/rotation.h"
#include "ops/kv_append/kv_append_cuda.cuh"

namespace touchstone::inline v0::cache {

__device__ inline void rotate_shared(float* x, std::int64_t dim, unsigned lane) {
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

__device__ inline void store_group(const KvAppendPart& part, const float* x, std::int64_t group,
                                   unsigned lane, bool stores, std::byte* values,
                                   std::byte* scales) {
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

__device__ inline void store_plain(const KvAppendPart& part, const float* x, unsigned lane,
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

// Stores x [part.dim], which all lanes have written, as head `head` of the token in `slot`. x is used as
// scratch.
__device__ inline void append_vector(const KvAppendProblem& p, const KvAppendPart& part, float* x,
                                     const PageSlot& slot, std::int64_t head, unsigned lane) {
  if (part.rotated) rotate_shared(x, part.dim, lane);
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

}  // namespace touchstone::inline v0::cache
