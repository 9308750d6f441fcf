// One cached_attention call after its checks, and the implementations.
#pragma once

#include <cstdint>
#include <string>

#include "core/host_device.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/cache/layout.h"
#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"

namespace touchstone::paged_attention {

// [queries, query_heads, dim] with the numbers of a head side by side, or [queries, query_heads];
// strides in elements.
template <class Pointer>
struct Tokens {
  Pointer data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  TOUCHSTONE_HOST_DEVICE std::int64_t offset(std::int64_t query, std::int64_t head) const {
    return query * token_stride + head * head_stride;
  }
};

// Null = absent. Pointers are to memory of the context's device, those inside `pages` too. Where
// no strides are given arrays are contiguous.
struct PagedAttentionProblem {
  std::int64_t rows = 0;
  std::int64_t queries = 0;  // tokens of all rows, >= 1
  std::int64_t query_heads = 0;
  std::int64_t heads_per_kv = 1;  // query_heads / layers.kv_heads
  cache::LayerGroup layers{};
  cache::GroupView pages{};
  std::int64_t layer = 0;
  const std::int64_t* lengths = nullptr;        // [rows]
  const std::int64_t* query_offsets = nullptr;  // [rows + 1]
  DType q_dtype = DType::f32;
  Tokens<const void*> q;                    // dim: k_dim
  const std::int64_t* positions = nullptr;  // [queries]
  const std::uint64_t* tree = nullptr;      // [queries, tree_words]
  std::int64_t tree_words = 0;
  const std::int64_t* tree_starts = nullptr;  // [rows]
  const float* sink_logits = nullptr;         // [query_heads]
  DType output_dtype = DType::f32;
  Tokens<void*> output;        // dim: v_dim
  Tokens<float*> log_sum_exp;  // [queries, query_heads]
  float scale = 1;
  float soft_cap = 0;  // 0 = none
  bool causal = true;
};

// CPU, Highway, every SIMD target: paged_cpu.cc.
std::string cached_attention_simd_refuses(const Context& context, const PagedAttentionProblem& p);
void cached_attention_simd(Context& context, const PagedAttentionProblem& p);

// CPU, plain loops, one thread, f64 arithmetic: paged_plain.cc.
void cached_attention_plain(Context& context, const PagedAttentionProblem& p);

// CUDA, or src/no_cuda in a CPU-only build: common heads on the tensor cores in
// paged_tensor_core.cu or without them in paged_simt.cu, MLA in paged_mla.cu, any in
// paged_portable.cu.
// wgmma_prefill: rows with many bf16 queries in paged_bf16_prefill.cu, the others as in the next
// two. tensor_core_cta: tensor_core with a CTA for each split.
std::string cached_attention_wgmma_prefill_refuses(const Context& context,
                                                   const PagedAttentionProblem& p);
void cached_attention_wgmma_prefill(Context& context, const PagedAttentionProblem& p);
std::string cached_attention_tensor_core_cta_refuses(const Context& context,
                                                     const PagedAttentionProblem& p);
void cached_attention_tensor_core_cta(Context& context, const PagedAttentionProblem& p);
std::string cached_attention_tensor_core_refuses(const Context& context,
                                                 const PagedAttentionProblem& p);
void cached_attention_tensor_core(Context& context, const PagedAttentionProblem& p);
std::string cached_attention_mla_refuses(const Context& context, const PagedAttentionProblem& p);
void cached_attention_mla(Context& context, const PagedAttentionProblem& p);
std::string cached_attention_simt_refuses(const Context& context, const PagedAttentionProblem& p);
void cached_attention_simt(Context& context, const PagedAttentionProblem& p);
std::string cached_attention_portable_refuses(const Context& context,
                                              const PagedAttentionProblem& p);
void cached_attention_portable(Context& context, const PagedAttentionProblem& p);

}  // namespace touchstone::paged_attention
