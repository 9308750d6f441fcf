// The C API of the KV cache: the cache, its views, kv_append, rope_append and cached_attention.
// Part of touchstone_c.h, which states its rules.
#pragma once

#include "touchstone/touchstone_c.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ts_kv_cache ts_kv_cache;
typedef struct ts_cache_view ts_cache_view;

typedef struct ts_quant_format {
  ts_dtype dtype;        // TS_F32, TS_BF16, TS_F16, TS_I8, TS_I4 or TS_F8_E4M3
  ts_dtype scale_dtype;  // TS_F16 or TS_F32, of quantized formats
  int64_t group_size;    // values per scale; 0 = one scale for a head
  int32_t asymmetric;    // not 0: with a zero point
  int32_t reserved;      // 0
} ts_quant_format;

typedef struct ts_layer_group {
  int64_t layers;
  int64_t kv_heads;
  int64_t k_dim;
  int64_t v_dim;
  ts_quant_format k;
  ts_quant_format v;
  int64_t page_tokens;  // 0 = 16
  int64_t window;       // 0 = none
  int64_t sinks;
  int32_t k_is_v;
  int32_t rotate_keys;
} ts_layer_group;

typedef struct ts_kv_cache_args {
  size_t struct_size;
  size_t layer_group_size;             // sizeof(ts_layer_group)
  const ts_layer_group* layer_groups;  // [layer_group_count]
  int64_t layer_group_count;
  const int64_t* pool_pages;    // [layer_group_count]: pages of each group
  int64_t prefix_block_tokens;  // 0 = the default
  uint64_t hash_key[2];
  int32_t page_locked;
  int32_t reserved;  // 0
} ts_kv_cache_args;
#define TS_KV_CACHE_ARGS \
  { .struct_size = sizeof(ts_kv_cache_args), .layer_group_size = sizeof(ts_layer_group) }

typedef struct ts_sequence {
  uint32_t index;
  uint32_t generation;
  uint32_t cache;
} ts_sequence;

// Pages of each group for `sequences` sequences of `tokens` tokens that grow by `chunk` at a time.
TOUCHSTONE_API ts_status ts_kv_cache_pool_pages(const ts_kv_cache_args* args, int64_t tokens,
                                                int64_t sequences, int64_t chunk,
                                                int64_t* pool_pages);
// Device and stream are those of the context.
TOUCHSTONE_API ts_status ts_kv_cache_create(ts_context* context, const ts_kv_cache_args* args,
                                            ts_kv_cache** cache);
TOUCHSTONE_API void ts_kv_cache_destroy(ts_kv_cache* cache);

TOUCHSTONE_API ts_status ts_kv_cache_add_sequence(ts_kv_cache* cache, ts_sequence* sequence);
TOUCHSTONE_API ts_status ts_kv_cache_reserve(ts_kv_cache* cache, const ts_sequence* sequences,
                                             int64_t count, int64_t tokens);
TOUCHSTONE_API ts_status ts_kv_cache_commit(ts_kv_cache* cache, const ts_sequence* sequences,
                                            int64_t count, int64_t tokens);
// The same with a count for each sequence, all or nothing. TS_OUT_OF_MEMORY also when fewer than
// `watermark` free or cached pages would be left.
TOUCHSTONE_API ts_status ts_kv_cache_reserve_counts(ts_kv_cache* cache,
                                                    const ts_sequence* sequences,
                                                    const int64_t* tokens, int64_t count,
                                                    int64_t watermark);
// Moves accepted tokens of the reserved part to its front and commits them: sequence i has the
// slots [offsets[i], offsets[i + 1]) of `slots`, ascending; slot j is position length + j.
TOUCHSTONE_API ts_status ts_kv_cache_keep(ts_kv_cache* cache, const ts_sequence* sequences,
                                          int64_t count, const int64_t* slots,
                                          const int64_t* offsets);
TOUCHSTONE_API ts_status ts_kv_cache_truncate(ts_kv_cache* cache, ts_sequence sequence,
                                              int64_t length);
TOUCHSTONE_API ts_status ts_kv_cache_advance_window(ts_kv_cache* cache, ts_sequence sequence);
TOUCHSTONE_API ts_status ts_kv_cache_fork(ts_kv_cache* cache, ts_sequence parent,
                                          ts_sequence* child);
TOUCHSTONE_API ts_status ts_kv_cache_release(ts_kv_cache* cache, ts_sequence sequence);
TOUCHSTONE_API ts_status ts_kv_cache_length(const ts_kv_cache* cache, ts_sequence sequence,
                                            int64_t* length);

TOUCHSTONE_API ts_status ts_kv_cache_insert_prefix(ts_kv_cache* cache, ts_sequence sequence,
                                                   const int32_t* tokens, int64_t count,
                                                   uint32_t space);
// A new sequence that holds the first `found` of the tokens.
TOUCHSTONE_API ts_status ts_kv_cache_open_prefix(ts_kv_cache* cache, const int32_t* tokens,
                                                 int64_t count, uint32_t space,
                                                 ts_sequence* sequence, int64_t* found);
TOUCHSTONE_API ts_status ts_kv_cache_evict(ts_kv_cache* cache, int64_t pages, int64_t* evicted);

// Statistics of one layer group; page counts are totals of its pool.
typedef struct ts_layer_group_statistics {
  size_t struct_size;
  int64_t page_bytes;
  int64_t capacity;  // pages, = free + used + cached
  int64_t free;
  int64_t used;
  int64_t cached;
  int64_t peak_used;
  int64_t evicted;
  int64_t copied;
} ts_layer_group_statistics;
#define TS_LAYER_GROUP_STATISTICS \
  { .struct_size = sizeof(ts_layer_group_statistics) }

typedef struct ts_kv_cache_statistics {
  size_t struct_size;
  int64_t layer_groups;
  int64_t sequences;
  int64_t tokens;
  int64_t prefix_entries;
  int64_t prefix_lookups;
  int64_t prefix_hit_tokens;
  int64_t prefix_miss_tokens;
  int64_t refused_reservations;
} ts_kv_cache_statistics;
#define TS_KV_CACHE_STATISTICS \
  { .struct_size = sizeof(ts_kv_cache_statistics) }

TOUCHSTONE_API ts_status ts_kv_cache_get_statistics(const ts_kv_cache* cache,
                                                    ts_kv_cache_statistics* statistics);
TOUCHSTONE_API ts_status ts_kv_cache_get_layer_group_statistics(
    const ts_kv_cache* cache, int64_t layer_group, ts_layer_group_statistics* statistics);

TOUCHSTONE_API ts_status ts_kv_cache_save(const ts_kv_cache* cache, const ts_sequence* sequences,
                                          int64_t count, const char* path);
// Fills `sequences` and sets `count`. More than `capacity` of them are refused, and none is kept.
TOUCHSTONE_API ts_status ts_kv_cache_restore(ts_kv_cache* cache, const char* path,
                                             ts_sequence* sequences, int64_t capacity,
                                             int64_t* count);

// The arrays of a cache that kernels read: page tables and lengths of sequences, one row each.
// Built again before operators run whenever the cache has changed.
TOUCHSTONE_API ts_status ts_cache_view_create(ts_kv_cache* cache, ts_cache_view** view);
// Views of fixed sizes, whose arrays on CUDA never move: rows, and tokens of the longest
// sequence.
TOUCHSTONE_API ts_status ts_cache_view_create_fixed(ts_kv_cache* cache, int64_t rows,
                                                    int64_t tokens, ts_cache_view** view);
TOUCHSTONE_API void ts_cache_view_destroy(ts_cache_view* view);
TOUCHSTONE_API ts_status ts_cache_view_build(ts_context* context, ts_cache_view* view,
                                             const ts_sequence* sequences, int64_t rows);

// ---- Operators on a KV cache --------------------------------------------------------------------

typedef struct ts_kv_append_args {
  size_t struct_size;
  const ts_cache_view* cache;
  int64_t layer_group;
  int64_t layer;
  ts_tensor k;          // [T, kv_heads, k_dim]
  ts_tensor v;          // [T, kv_heads, v_dim]; absent with k_is_v
  ts_tensor rows;       // [T], optional together with positions
  ts_tensor positions;  // [T]
  const char* implementation;
} ts_kv_append_args;
#define TS_KV_APPEND_ARGS \
  { .struct_size = sizeof(ts_kv_append_args) }

typedef struct ts_rope_append_args {
  size_t struct_size;
  const ts_cache_view* cache;
  int64_t layer_group;
  int64_t layer;
  ts_tensor q;                  // [T, query_heads, D]
  ts_tensor k;                  // [T, kv_heads, D]
  ts_tensor v;                  // [T, kv_heads, v_dim]
  ts_tensor y;                  // [T, query_heads, D]; may be q
  ts_tensor q_weight;           // [D], optional together with k_weight
  ts_tensor k_weight;           // [D]
  ts_tensor positions;          // [T], needed with frequencies
  ts_tensor frequencies;        // [R / 2], optional
  ts_tensor rows;               // [T]
  ts_tensor slots;              // [T]
  double eps;                   // of the norms
  double scale;                 // of the rotation
  int32_t round_before_weight;  // of the norms: see rms_norm
  int32_t adjacent;             // pairs (2 i, 2 i + 1) instead of (i, i + R / 2)
  const char* implementation;
} ts_rope_append_args;
#define TS_ROPE_APPEND_ARGS \
  { .struct_size = sizeof(ts_rope_append_args), .eps = 1e-6, .scale = 1 }

typedef struct ts_cached_attention_args {
  size_t struct_size;
  ts_tensor q;              // [N, query_heads, k_dim]
  ts_tensor query_offsets;  // [rows + 1]
  const ts_cache_view* cache;
  int64_t layer_group;
  int64_t layer;
  ts_tensor positions;    // [N], optional
  ts_tensor tree;         // [N, words], optional
  ts_tensor tree_starts;  // [rows], optional, with tree only
  ts_tensor sink_logits;  // [query_heads], optional
  ts_tensor output;       // [N, query_heads, v_dim]
  ts_tensor log_sum_exp;  // [N, query_heads], optional
  double scale;           // finite; 0 = 1 / sqrt(k_dim)
  double soft_cap;        // finite, >= 0; 0 = none
  int32_t causal;
  int32_t include_reserved;
  const char* implementation;
} ts_cached_attention_args;
#define TS_CACHED_ATTENTION_ARGS \
  { .struct_size = sizeof(ts_cached_attention_args), .causal = 1 }

TOUCHSTONE_API ts_status ts_kv_append(ts_context* context, const ts_kv_append_args* args);
TOUCHSTONE_API ts_status ts_rope_append(ts_context* context, const ts_rope_append_args* args);
TOUCHSTONE_API ts_status ts_rope_append_explain(ts_context* context,
                                                const ts_rope_append_args* args, ts_report report,
                                                void* user);
TOUCHSTONE_API ts_status ts_cached_attention(ts_context* context,
                                             const ts_cached_attention_args* args);
TOUCHSTONE_API ts_status ts_kv_append_explain(ts_context* context, const ts_kv_append_args* args,
                                              ts_report report, void* user);
TOUCHSTONE_API ts_status ts_cached_attention_explain(ts_context* context,
                                                     const ts_cached_attention_args* args,
                                                     ts_report report, void* user);

#ifdef __cplusplus
}  // extern "C"
#endif
