// One cached_attention call after its checks, what a query sees, and the implementations.
#pragma once

#include <cstdint>
#include <string>

#include "core/host_device.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/cache/layout.h"
#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"

namespace touchstone::attend {

// Null = absent. Pointers are to memory of the context's device, those inside `pages` too. Where
// nothing is said arrays are contiguous.
struct CachedAttention {
  std::int64_t rows = 0;
  std::int64_t queries = 0;  // tokens of all rows, >= 1
  std::int64_t query_heads = 0;
  std::int64_t heads_per_kv = 1;  // query_heads / layers.kv_heads
  cache::LayerGroup layers{};
  cache::GroupView pages{};
  std::int64_t layer = 0;
  const std::int64_t* lengths = nullptr;       // [rows]
  const std::int64_t* query_starts = nullptr;  // [rows + 1]
  DType query_dtype = DType::f32;
  const void* query = nullptr;              // [queries, query_heads, k_dim]
  std::int64_t query_stride = 0;            // elements from token to token
  const std::int64_t* positions = nullptr;  // [queries]
  const std::uint64_t* tree = nullptr;      // [queries, tree_words]
  std::int64_t tree_words = 0;
  const std::int64_t* tree_starts = nullptr;  // [rows]
  const float* sink_logits = nullptr;         // [query_heads]
  DType output_dtype = DType::f32;
  void* output = nullptr;          // [queries, query_heads, v_dim]
  std::int64_t output_stride = 0;  // elements from token to token
  float* log_sum_exp = nullptr;    // [queries, query_heads]
  float scale = 1;
  float soft_cap = 0;  // 0 = none
  bool causal = true;
};

// What one query sees of its row: [0, sinks), [begin, end), and tree_start + j for every bit j set
// in `tree`, tree_start + j < length. In this order they are ascending and do not overlap.
struct Sight {
  std::int64_t sinks = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  const std::uint64_t* tree = nullptr;
  std::int64_t tree_words = 0;
  std::int64_t tree_start = 0;
  std::int64_t length = 0;
};

TOUCHSTONE_HOST_DEVICE inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
TOUCHSTONE_HOST_DEVICE inline std::int64_t larger(std::int64_t a, std::int64_t b) {
  return a < b ? b : a;
}

// `query` counts over all rows.
TOUCHSTONE_HOST_DEVICE inline Sight sight_of(const CachedAttention& p, std::int64_t row,
                                             std::int64_t query) {
  const std::int64_t length = p.lengths[row];
  const std::int64_t first = length - (p.query_starts[row + 1] - p.query_starts[row]);
  const std::int64_t position =
      p.positions != nullptr ? p.positions[query] : first + (query - p.query_starts[row]);
  Sight sight;
  sight.length = length;
  sight.end = length;
  if (p.causal) sight.end = position < 0 ? 0 : (position < length ? position + 1 : length);
  if (p.tree != nullptr) {
    sight.tree = p.tree + query * p.tree_words;
    sight.tree_words = p.tree_words;
    sight.tree_start = p.tree_starts != nullptr ? p.tree_starts[row] : first;
    sight.end = smaller(sight.end, larger(sight.tree_start, 0));
  }
  const std::int64_t window = p.layers.window;
  if (window > 0 && position >= window) {
    sight.begin = smaller(position - window + 1, sight.end);
    sight.sinks = smaller(p.layers.sinks, sight.begin);
  }
  return sight;
}

TOUCHSTONE_HOST_DEVICE inline bool sees(const Sight& sight, std::int64_t position) {
  if (position < sight.end) return position < sight.sinks || position >= sight.begin;
  const std::int64_t bit = position - sight.tree_start;
  if (sight.tree == nullptr || bit < 0 || bit / 64 >= sight.tree_words) return false;
  return position < sight.length && (sight.tree[bit / 64] >> (bit % 64) & 1) != 0;
}

// One past the last position that may be seen: an upper bound, exact without a tree.
TOUCHSTONE_HOST_DEVICE inline std::int64_t end_of(const Sight& sight) {
  if (sight.tree == nullptr) return sight.end;
  return smaller(sight.length, sight.tree_start + 64 * sight.tree_words);
}

// CPU, Highway, every SIMD target: attention_cpu.cc.
std::string cached_attention_simd_refuses(const Context& context, const CachedAttention& p);
void cached_attention_simd(Context& context, const CachedAttention& p);

// CPU, plain loops, one thread, f64 arithmetic: attention_plain.cc.
void cached_attention_plain(Context& context, const CachedAttention& p);

// CUDA, or src/no_cuda in a CPU-only build: common heads on the tensor cores in attention_tensor.cu
// or without them in attention_registers.cu, MLA in attention_latent.cu, any in attention_cuda.cu.
std::string cached_attention_tensor_refuses(const Context& context, const CachedAttention& p);
void cached_attention_tensor(Context& context, const CachedAttention& p);
std::string cached_attention_latent_refuses(const Context& context, const CachedAttention& p);
void cached_attention_latent(Context& context, const CachedAttention& p);
std::string cached_attention_registers_refuses(const Context& context, const CachedAttention& p);
void cached_attention_registers(Context& context, const CachedAttention& p);
std::string cached_attention_portable_refuses(const Context& context, const CachedAttention& p);
void cached_attention_portable(Context& context, const CachedAttention& p);

}  // namespace touchstone::attend
