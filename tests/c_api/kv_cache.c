// The cache from creation to a snapshot, and the two operators on it: one head of two values.
#define _POSIX_C_SOURCE 200809L  // mkfifo
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "check.h"

enum { kHeads = 1, kDim = 2, kTokens = 40 };

static ts_kv_cache_args cache_args(const ts_layer_group* group, const int64_t* pages) {
  ts_kv_cache_args args = TS_KV_CACHE_ARGS;
  args.layer_groups = group;
  args.layer_group_count = 1;
  args.pool_pages = pages;
  return args;
}

static ts_layer_group small_group(void) {
  ts_layer_group group;
  memset(&group, 0, sizeof(group));
  group.layers = 1;
  group.kv_heads = kHeads;
  group.k_dim = kDim;
  group.v_dim = kDim;
  group.k.dtype = TS_F32;
  group.k.scale_dtype = TS_F16;
  group.v = group.k;
  return group;
}

static int64_t length_of(const ts_kv_cache* cache, ts_sequence sequence) {
  int64_t length = -1;
  CHECK_OK(ts_kv_cache_length(cache, sequence, &length));
  return length;
}

// All tokens have equal keys, so attention is the mean of the values 0, 1, ..
static void append_all(ts_context* context, ts_kv_cache* cache, ts_cache_view* view,
                       ts_sequence sequence) {
  static float k[kTokens * kDim];
  static float v[kTokens * kDim];
  int32_t rows[kTokens];
  int64_t positions[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    k[t * kDim] = 1;
    v[t * kDim] = (float)t;
    v[t * kDim + 1] = -1;
    rows[t] = 0;
    positions[t] = t;
  }
  CHECK_OK(ts_kv_cache_reserve(cache, &sequence, 1, kTokens));
  CHECK_OK(ts_cache_view_build(context, view, &sequence, 1));
  ts_kv_append_args args = TS_KV_APPEND_ARGS;
  args.cache = view;
  args.k = f32(k, 3, kTokens, kHeads, kDim, 0);
  args.v = f32(v, 3, kTokens, kHeads, kDim, 0);
  args.rows = i32(rows, 1, kTokens, 0);
  args.positions = i64(positions, kTokens);
  CHECK_EXPLAINED(ts_kv_append_explain);
  CHECK_OK(ts_kv_append(context, &args));
  // The same through the call that rotates, here by nothing.
  float q[kTokens * kDim] = {0};
  ts_rope_append_args rotated = TS_ROPE_APPEND_ARGS;
  rotated.cache = view;
  rotated.q = rotated.y = f32(q, 3, kTokens, 1, kDim, 0);
  rotated.k = args.k;
  rotated.v = args.v;
  rotated.rows = args.rows;
  rotated.slots = args.positions;
  CHECK_OK(ts_rope_append(context, &rotated));
  rotated.rows.data = NULL;
  CHECK_FAILS(ts_rope_append(context, &rotated), TS_INVALID_ARGUMENT, "rope_append: rows");
  CHECK_OK(ts_kv_cache_commit(cache, &sequence, 1, kTokens));
  args.cache = NULL;
  CHECK_FAILS(ts_kv_append(context, &args), TS_INVALID_ARGUMENT, "kv_append: cache");
}

static double attend(ts_context* context, ts_cache_view* view, ts_sequence sequence) {
  const float q[kDim] = {1, 0};
  const int64_t offsets[2] = {0, 1};
  float output[kDim] = {0};
  CHECK_OK(ts_cache_view_build(context, view, &sequence, 1));
  ts_cached_attention_args args = TS_CACHED_ATTENTION_ARGS;
  CHECK(args.causal == 1);
  args.q = f32(q, 3, 1, kHeads, kDim, 0);
  args.query_offsets = i64(offsets, 2);
  args.cache = view;
  args.output = f32(output, 3, 1, kHeads, kDim, 0);
  CHECK_EXPLAINED(ts_cached_attention_explain);
  CHECK_OK(ts_cached_attention(context, &args));
  CHECK_NEAR(output[1], -1);
  args.layer = 5;
  CHECK_FAILS(ts_cached_attention(context, &args), TS_INVALID_ARGUMENT, "layer");
  return output[0];
}

static void test_sequences(ts_context* context, ts_kv_cache* cache, ts_cache_view* view) {
  ts_sequence sequence;
  ts_sequence child;
  CHECK_OK(ts_kv_cache_add_sequence(cache, &sequence));
  append_all(context, cache, view, sequence);
  CHECK(length_of(cache, sequence) == kTokens);
  CHECK_NEAR(attend(context, view, sequence), (kTokens - 1) / 2.0);

  CHECK_OK(ts_kv_cache_fork(cache, sequence, &child));
  CHECK_OK(ts_kv_cache_truncate(cache, child, 10));
  CHECK(length_of(cache, child) == 10);
  CHECK_NEAR(attend(context, view, child), 4.5);
  CHECK_FAILS(ts_kv_cache_truncate(cache, child, 11), TS_INVALID_ARGUMENT, "truncate");

  int32_t tokens[kTokens];
  ts_sequence opened;
  int64_t found = 0;
  for (int t = 0; t < kTokens; ++t) tokens[t] = t * 3;
  CHECK_OK(ts_kv_cache_insert_prefix(cache, sequence, tokens, kTokens, 0));
  CHECK_OK(ts_kv_cache_open_prefix(cache, tokens, kTokens, 0, &opened, &found));
  CHECK(found == kTokens);
  CHECK_NEAR(attend(context, view, opened), (kTokens - 1) / 2.0);

  const char* path = "c_api_test.snapshot";
  const ts_sequence saved[2] = {sequence, child};
  ts_sequence restored[2];
  int64_t count = 0;
  CHECK_OK(ts_kv_cache_save(cache, saved, 2, path));
  CHECK_FAILS(ts_kv_cache_restore(cache, path, restored, 1, &count), TS_INVALID_ARGUMENT,
              "capacity 1 < 2");
  CHECK_OK(ts_kv_cache_restore(cache, path, restored, 2, &count));
  CHECK(count == 2);
  CHECK_NEAR(attend(context, view, restored[1]), 4.5);
  remove(path);
  CHECK(ts_kv_cache_restore(cache, path, restored, 2, &count) == TS_FILE_ERROR);

  ts_kv_cache_statistics statistics = TS_KV_CACHE_STATISTICS;
  ts_layer_group_statistics pages = TS_LAYER_GROUP_STATISTICS;
  CHECK_OK(ts_kv_cache_get_statistics(cache, &statistics));
  CHECK(statistics.layer_groups == 1 && statistics.sequences == 5);
  CHECK(statistics.prefix_hit_tokens == kTokens);
  CHECK_OK(ts_kv_cache_get_layer_group_statistics(cache, 0, &pages));
  CHECK(pages.capacity == pages.free + pages.used + pages.cached);
  CHECK_FAILS(ts_kv_cache_get_layer_group_statistics(cache, 1, &pages), TS_INVALID_ARGUMENT,
              "layer_group: 1");

  const ts_sequence all[5] = {sequence, child, opened, restored[0], restored[1]};
  for (int i = 0; i < 5; ++i) CHECK_OK(ts_kv_cache_release(cache, all[i]));
  CHECK_FAILS(ts_kv_cache_release(cache, sequence), TS_INVALID_ARGUMENT, "release");
  int64_t evicted = 0;
  CHECK_OK(ts_kv_cache_evict(cache, 1, &evicted));
  CHECK(evicted >= 1);
}

static void test_keep(ts_context* context, ts_kv_cache* cache) {
  ts_sequence both[2];
  CHECK_OK(ts_kv_cache_add_sequence(cache, &both[0]));
  CHECK_OK(ts_kv_cache_add_sequence(cache, &both[1]));
  const int64_t counts[2] = {3, 5};
  CHECK_OK(ts_kv_cache_reserve_counts(cache, both, counts, 2, 1));
  CHECK(ts_kv_cache_reserve_counts(cache, both, counts, 2, -1) == TS_INVALID_ARGUMENT);
  const int64_t slots[4] = {1, 0, 2, 4};
  const int64_t offsets[3] = {0, 1, 4};
  const int64_t backward[3] = {0, 2, 1};
  const int64_t outside[3] = {0, 0, 4};
  CHECK_FAILS(ts_kv_cache_keep(cache, both, 2, slots, backward), TS_INVALID_ARGUMENT, "offsets");
  CHECK_FAILS(ts_kv_cache_keep(cache, both, 2, slots, outside), TS_INVALID_ARGUMENT, "ascending");
  CHECK_OK(ts_kv_cache_keep(cache, both, 2, slots, offsets));
  CHECK(length_of(cache, both[0]) == 1 && length_of(cache, both[1]) == 3);

  ts_cache_view* fixed = NULL;
  CHECK(ts_cache_view_create_fixed(cache, 0, 8, &fixed) == TS_INVALID_ARGUMENT);
  CHECK_OK(ts_cache_view_create_fixed(cache, 1, 8, &fixed));
  CHECK_OK(ts_cache_view_build(context, fixed, both, 1));
  CHECK_FAILS(ts_cache_view_build(context, fixed, both, 2), TS_INVALID_ARGUMENT, "at most 1");
  ts_cache_view_destroy(fixed);
  for (int i = 0; i < 2; ++i) CHECK_OK(ts_kv_cache_release(cache, both[i]));
}

// A call that has no place for its result is refused before it does anything.
static void test_no_place(ts_context* context, ts_kv_cache* cache) {
  ts_sequence sequence;
  CHECK_OK(ts_kv_cache_add_sequence(cache, &sequence));
  ts_kv_cache_statistics before = TS_KV_CACHE_STATISTICS;
  ts_kv_cache_statistics after = TS_KV_CACHE_STATISTICS;
  CHECK_OK(ts_kv_cache_get_statistics(cache, &before));
  CHECK_FAILS(ts_kv_cache_add_sequence(cache, NULL), TS_INVALID_ARGUMENT, "sequence");
  CHECK_FAILS(ts_kv_cache_fork(cache, sequence, NULL), TS_INVALID_ARGUMENT, "child");
  CHECK_FAILS(ts_kv_cache_evict(cache, 1, NULL), TS_INVALID_ARGUMENT, "evicted");
  CHECK_FAILS(ts_kv_cache_length(cache, sequence, NULL), TS_INVALID_ARGUMENT, "length");
  CHECK_FAILS(ts_cache_view_create(cache, NULL), TS_INVALID_ARGUMENT, "view");
  CHECK_FAILS(ts_cache_view_build(context, NULL, &sequence, 1), TS_INVALID_ARGUMENT, "view");
  CHECK_OK(ts_kv_cache_get_statistics(cache, &after));
  CHECK(after.sequences == before.sequences && after.prefix_entries == before.prefix_entries);
  const char* const pipe = "c_api_kv_cache.pipe";
  CHECK(mkfifo(pipe, 0600) == 0);
  CHECK_FAILS(ts_kv_cache_save(cache, &sequence, 1, pipe), TS_FILE_ERROR, "not a regular file");
  remove(pipe);
  CHECK_OK(ts_kv_cache_release(cache, sequence));
}

void test_kv_cache(ts_context* context) {
  ts_layer_group group = small_group();
  int64_t pages = 0;
  ts_kv_cache_args args = cache_args(&group, &pages);
  ts_kv_cache* cache = NULL;
  ts_cache_view* view = NULL;
  CHECK_OK(ts_kv_cache_pool_pages(&args, kTokens, 6, 1, &pages));
  CHECK(pages >= 6 * kTokens / 16);
  CHECK_OK(ts_kv_cache_create(context, &args, &cache));
  CHECK_OK(ts_cache_view_create(cache, &view));
  if (cache != NULL && view != NULL) test_sequences(context, cache, view);
  if (cache != NULL) test_keep(context, cache);
  if (cache != NULL) test_no_place(context, cache);
  ts_cache_view_destroy(view);
  ts_kv_cache_destroy(cache);
  cache = NULL;

  args.layer_group_size -= 1;
  CHECK_FAILS(ts_kv_cache_create(context, &args, &cache), TS_INVALID_ARGUMENT, "layer_group_size");
  args.layer_group_size += 1;
  group.k.dtype = TS_I64;
  CHECK(ts_kv_cache_create(context, &args, &cache) == TS_INVALID_ARGUMENT);
  args.layer_groups = NULL;
  CHECK_FAILS(ts_kv_cache_create(context, &args, &cache), TS_INVALID_ARGUMENT, "layer_groups");
  CHECK_FAILS(ts_kv_cache_create(NULL, &args, &cache), TS_INVALID_ARGUMENT, "");
  CHECK(cache == NULL);
  ts_kv_cache_destroy(NULL);
  ts_cache_view_destroy(NULL);
}
