// Test caches on any device, and bytes to and from their memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "cache/cache_state.h"
#include "core/cuda_runtime.h"
#include "touchstone/core/context.h"

namespace touchstone::inline v0::cache {

// A cache on a device, on the default stream.
inline KvCache make_cache(KvCacheOptions options, Device device = Device::cpu()) {
  Context context({.device = device, .threads = 1});
  return {context, std::move(options)};
}

// One layer with one head of eight values.
inline LayerGroup small_group(std::int64_t page_tokens) {
  return {.layers = 1, .kv_heads = 1, .k_dim = 8, .v_dim = 8, .page_tokens = page_tokens};
}

inline KvCache small_cache(std::int64_t page_tokens, std::int64_t pages) {
  return make_cache({.layout = {{small_group(page_tokens)}}, .pool_pages = {pages}});
}

// Bytes to and from the memory of a cache.
inline void write_bytes(Device device, std::byte* to, const std::vector<std::byte>& bytes) {
  if (!device.is_cuda()) {
    std::memcpy(to, bytes.data(), bytes.size());
    return;
  }
  cuda::copy(device, to, Device::cpu(), bytes.data(), std::ssize(bytes), nullptr);
  cuda::synchronize(device.index, nullptr);
}

inline std::vector<std::byte> read_bytes(Device device, const void* from, std::size_t count) {
  std::vector<std::byte> bytes(count);
  if (!device.is_cuda()) {
    std::memcpy(bytes.data(), from, count);
    return bytes;
  }
  cuda::copy(Device::cpu(), bytes.data(), device, from, std::ssize(bytes), nullptr);
  cuda::synchronize(device.index, nullptr);
  return bytes;
}

}  // namespace touchstone::inline v0::cache
