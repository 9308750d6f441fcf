// The KV cache, its views, and the operators on them.
#include "touchstone/cache/kv_cache.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "c_api/border.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/cache/snapshot.h"
#include "touchstone/ops/cached_attention.h"
#include "touchstone/ops/kv_append.h"
#include "touchstone/ops/rope_append.h"

struct ts_kv_cache {
  touchstone::cache::KvCache cache;
};

struct ts_cache_view {
  touchstone::cache::CacheViewBuilder builder;
  touchstone::cache::CacheView view;
};

namespace touchstone::c_api {
namespace {

using cache::KvCache;
using cache::SequenceId;

cache::LayerGroup layer_group(const ts_layer_group& given) {
  return {.layers = given.layers,
          .kv_heads = given.kv_heads,
          .k_dim = given.k_dim,
          .v_dim = given.v_dim,
          .k = quant_format(given.k, "layer group: k"),
          .v = quant_format(given.v, "layer group: v"),
          .page_tokens = given.page_tokens == 0 ? 16 : given.page_tokens,
          .window = given.window,
          .sinks = given.sinks,
          .k_is_v = flag(given.k_is_v),
          .rotate_keys = flag(given.rotate_keys)};
}

ts_kv_cache_args current_cache_args(const ts_kv_cache_args* args) {
  const ts_kv_cache_args known =
      current(args, "kv_cache", sizeof(ts_kv_cache_args), ts_kv_cache_args(TS_KV_CACHE_ARGS));
  check_struct_size("kv_cache: layer_group_size", known.layer_group_size, sizeof(ts_layer_group),
                    sizeof(ts_layer_group));
  return known;
}

cache::Layout layout(const ts_kv_cache_args& args) {
  cache::Layout layout;
  for (const ts_layer_group& group :
       list(args.layer_groups, args.layer_group_count, "kv_cache: layer_groups")) {
    layout.groups.push_back(layer_group(group));
  }
  return layout;
}

SequenceId id(ts_sequence sequence) {
  return {.index = sequence.index, .generation = sequence.generation, .cache = sequence.cache};
}

ts_sequence plain(SequenceId sequence) {
  return {sequence.index, sequence.generation, sequence.cache};
}

std::vector<SequenceId> ids(const ts_sequence* sequences, std::int64_t count) {
  std::vector<SequenceId> result;
  for (const ts_sequence& sequence : list(sequences, count, "sequences")) {
    result.push_back(id(sequence));
  }
  return result;
}

KvCache& cache_of(ts_kv_cache* cache) { return checked(cache, "cache").cache; }
const KvCache& cache_of(const ts_kv_cache* cache) { return checked(cache, "cache").cache; }

KvAppendArgs converted(const ts_kv_append_args* given) {
  const ts_kv_append_args args =
      current(given, "kv_append", offsetof(ts_kv_append_args, implementation),
              ts_kv_append_args(TS_KV_APPEND_ARGS));
  return {.cache = checked(args.cache, "kv_append: cache").view,
          .layer_group = args.layer_group,
          .layer = args.layer,
          .k = view(args.k, "kv_append: k"),
          .v = view(args.v, "kv_append: v"),
          .rows = view(args.rows, "kv_append: rows"),
          .positions = view(args.positions, "kv_append: positions"),
          .implementation = text(args.implementation)};
}

RopeAppendArgs converted(const ts_rope_append_args* given) {
  const ts_rope_append_args args =
      current(given, "rope_append", offsetof(ts_rope_append_args, implementation),
              ts_rope_append_args(TS_ROPE_APPEND_ARGS));
  return {.cache = checked(args.cache, "rope_append: cache").view,
          .layer_group = args.layer_group,
          .layer = args.layer,
          .q = view(args.q, "rope_append: q"),
          .k = view(args.k, "rope_append: k"),
          .v = view(args.v, "rope_append: v"),
          .y = view(args.y, "rope_append: y"),
          .q_weight = view(args.q_weight, "rope_append: q_weight"),
          .k_weight = view(args.k_weight, "rope_append: k_weight"),
          .eps = args.eps,
          .rounding = flag(args.round_before_weight) ? RmsNormRounding::before_weight
                                                     : RmsNormRounding::once,
          .positions = view(args.positions, "rope_append: positions"),
          .frequencies = view(args.frequencies, "rope_append: frequencies"),
          .pairs = flag(args.adjacent) ? RopePairs::adjacent : RopePairs::halves,
          .scale = args.scale,
          .rows = view(args.rows, "rope_append: rows"),
          .slots = view(args.slots, "rope_append: slots"),
          .implementation = text(args.implementation)};
}

CachedAttentionArgs converted(const ts_cached_attention_args* given) {
  const ts_cached_attention_args args =
      current(given, "cached_attention", offsetof(ts_cached_attention_args, implementation),
              ts_cached_attention_args(TS_CACHED_ATTENTION_ARGS));
  return {.q = view(args.q, "cached_attention: q"),
          .query_offsets = view(args.query_offsets, "cached_attention: query_offsets"),
          .cache = checked(args.cache, "cached_attention: cache").view,
          .layer_group = args.layer_group,
          .layer = args.layer,
          .positions = view(args.positions, "cached_attention: positions"),
          .tree = view(args.tree, "cached_attention: tree"),
          .tree_starts = view(args.tree_starts, "cached_attention: tree_starts"),
          .sink_logits = view(args.sink_logits, "cached_attention: sink_logits"),
          .output = view(args.output, "cached_attention: output"),
          .log_sum_exp = view(args.log_sum_exp, "cached_attention: log_sum_exp"),
          .scale = args.scale,
          .soft_cap = args.soft_cap,
          .causal = flag(args.causal),
          .include_reserved = flag(args.include_reserved),
          .implementation = text(args.implementation)};
}

}  // namespace
}  // namespace touchstone::c_api

namespace c_api = touchstone::c_api;
using c_api::cache_of;
using c_api::checked;
using c_api::guarded;

ts_status ts_kv_cache_pool_pages(const ts_kv_cache_args* args, int64_t tokens, int64_t sequences,
                                 int64_t chunk, int64_t* pool_pages) {
  return guarded([&] {
    const std::vector<int64_t> pages = touchstone::cache::pool_pages_for(
        c_api::layout(c_api::current_cache_args(args)), tokens, sequences, chunk);
    std::ranges::copy(pages, &checked(pool_pages, "pool_pages"));
  });
}

ts_status ts_kv_cache_create(ts_context* context, const ts_kv_cache_args* args,
                             ts_kv_cache** cache) {
  return guarded([&] {
    const ts_kv_cache_args given = c_api::current_cache_args(args);
    const auto pages =
        c_api::list(given.pool_pages, given.layer_group_count, "kv_cache: pool_pages");
    checked(cache, "cache");
    *cache = new ts_kv_cache{touchstone::cache::KvCache(
        checked(context, "context").context, {.layout = c_api::layout(given),
                                              .pool_pages = {pages.begin(), pages.end()},
                                              .page_locked = c_api::flag(given.page_locked),
                                              .prefix_block_tokens = given.prefix_block_tokens,
                                              .hash_key = {given.hash_key[0], given.hash_key[1]}})};
  });
}

void ts_kv_cache_destroy(ts_kv_cache* cache) { delete cache; }

ts_status ts_kv_cache_add_sequence(ts_kv_cache* cache, ts_sequence* sequence) {
  return guarded([&] {
    ts_sequence& place = checked(sequence, "sequence");
    place = c_api::plain(cache_of(cache).create());
  });
}

ts_status ts_kv_cache_reserve(ts_kv_cache* cache, const ts_sequence* sequences, int64_t count,
                              int64_t tokens) {
  return guarded([&] { cache_of(cache).reserve(c_api::ids(sequences, count), tokens); });
}

ts_status ts_kv_cache_commit(ts_kv_cache* cache, const ts_sequence* sequences, int64_t count,
                             int64_t tokens) {
  return guarded([&] { cache_of(cache).commit(c_api::ids(sequences, count), tokens); });
}

ts_status ts_kv_cache_reserve_counts(ts_kv_cache* cache, const ts_sequence* sequences,
                                     const int64_t* tokens, int64_t count, int64_t watermark) {
  return guarded([&] {
    const auto ids = c_api::ids(sequences, count);
    const auto each = c_api::list(tokens, count, "tokens");
    std::vector<touchstone::cache::TokenCount> counts;
    for (std::size_t i = 0; i < ids.size(); ++i) counts.push_back({ids[i], each[i]});
    cache_of(cache).reserve(counts, watermark);
  });
}

ts_status ts_kv_cache_keep(ts_kv_cache* cache, const ts_sequence* sequences, int64_t count,
                           const int64_t* slots, const int64_t* offsets) {
  return guarded([&] {
    const auto ids = c_api::ids(sequences, count);
    const auto bounds = c_api::list(offsets, count + 1, "offsets");
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (bounds[0] != 0 || bounds[i + 1] < bounds[i]) {
        throw touchstone::InvalidArgument("kv_cache: keep: offsets: expected ascending from 0");
      }
    }
    const auto all = c_api::list(slots, bounds.back(), "slots");
    std::vector<touchstone::cache::KeptSlots> kept;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      kept.push_back({ids[i], all.subspan(static_cast<std::size_t>(bounds[i]),
                                          static_cast<std::size_t>(bounds[i + 1] - bounds[i]))});
    }
    cache_of(cache).keep(kept);
  });
}

ts_status ts_kv_cache_truncate(ts_kv_cache* cache, ts_sequence sequence, int64_t length) {
  return guarded([&] { cache_of(cache).truncate(c_api::id(sequence), length); });
}

ts_status ts_kv_cache_advance_window(ts_kv_cache* cache, ts_sequence sequence) {
  return guarded([&] { cache_of(cache).advance_window(c_api::id(sequence)); });
}

ts_status ts_kv_cache_fork(ts_kv_cache* cache, ts_sequence parent, ts_sequence* child) {
  return guarded([&] {
    ts_sequence& place = checked(child, "child");
    place = c_api::plain(cache_of(cache).fork(c_api::id(parent)));
  });
}

ts_status ts_kv_cache_release(ts_kv_cache* cache, ts_sequence sequence) {
  return guarded([&] { cache_of(cache).release(c_api::id(sequence)); });
}

ts_status ts_kv_cache_length(const ts_kv_cache* cache, ts_sequence sequence, int64_t* length) {
  return guarded([&] {
    int64_t& place = checked(length, "length");
    place = cache_of(cache).length(c_api::id(sequence));
  });
}

ts_status ts_kv_cache_insert_prefix(ts_kv_cache* cache, ts_sequence sequence, const int32_t* tokens,
                                    int64_t count, uint32_t space) {
  return guarded([&] {
    cache_of(cache).insert_prefix(c_api::id(sequence), c_api::list(tokens, count, "tokens"), space);
  });
}

ts_status ts_kv_cache_open_prefix(ts_kv_cache* cache, const int32_t* tokens, int64_t count,
                                  uint32_t space, ts_sequence* sequence, int64_t* found) {
  return guarded([&] {
    checked(sequence, "sequence");
    checked(found, "found");
    const touchstone::cache::PrefixHit hit =
        cache_of(cache).open_prefix(c_api::list(tokens, count, "tokens"), space);
    *sequence = c_api::plain(hit.sequence);
    *found = hit.tokens;
  });
}

ts_status ts_kv_cache_evict(ts_kv_cache* cache, int64_t pages, int64_t* evicted) {
  return guarded([&] {
    int64_t& place = checked(evicted, "evicted");
    place = cache_of(cache).evict(pages);
  });
}

ts_status ts_kv_cache_get_statistics(const ts_kv_cache* cache, ts_kv_cache_statistics* statistics) {
  return guarded([&] {
    const touchstone::cache::Statistics now = cache_of(cache).statistics();
    c_api::fill(statistics, "statistics",
                {.struct_size = 0,
                 .layer_groups = static_cast<int64_t>(now.groups.size()),
                 .sequences = now.sequences,
                 .tokens = now.tokens,
                 .prefix_entries = now.prefix_entries,
                 .prefix_lookups = now.prefix_lookups,
                 .prefix_hit_tokens = now.prefix_hit_tokens,
                 .prefix_miss_tokens = now.prefix_miss_tokens,
                 .refused_reservations = now.refused_reservations});
  });
}

ts_status ts_kv_cache_get_layer_group_statistics(const ts_kv_cache* cache, int64_t layer_group,
                                                 ts_layer_group_statistics* statistics) {
  return guarded([&] {
    const touchstone::cache::Statistics now = cache_of(cache).statistics();
    const auto groups = static_cast<int64_t>(now.groups.size());
    if (layer_group < 0 || layer_group >= groups) {
      throw touchstone::InvalidArgument("layer_group: " + std::to_string(layer_group) +
                                        " is not 0 to " + std::to_string(groups - 1));
    }
    const touchstone::cache::GroupStatistics& group =
        now.groups[static_cast<std::size_t>(layer_group)];
    c_api::fill(statistics, "statistics",
                {.struct_size = 0,
                 .page_bytes = group.page_bytes,
                 .capacity = group.capacity,
                 .free = group.free,
                 .used = group.used,
                 .cached = group.cached,
                 .peak_used = group.peak_used,
                 .evicted = group.evicted,
                 .copied = group.copied});
  });
}

ts_status ts_kv_cache_save(const ts_kv_cache* cache, const ts_sequence* sequences, int64_t count,
                           const char* path) {
  return guarded([&] {
    checked(path, "path");
    touchstone::cache::save(cache_of(cache), c_api::ids(sequences, count),
                            std::filesystem::path(path));
  });
}

ts_status ts_kv_cache_restore(ts_kv_cache* cache, const char* path, ts_sequence* sequences,
                              int64_t capacity, int64_t* count) {
  return guarded([&] {
    checked(path, "path");
    checked(count, "count");
    const std::span<ts_sequence> room = c_api::list(sequences, capacity, "sequences");
    const std::vector<touchstone::cache::SequenceId> restored =
        touchstone::cache::restore(cache_of(cache), std::filesystem::path(path));
    if (restored.size() > room.size()) {
      for (const auto& id : restored) cache_of(cache).release(id);
      throw touchstone::InvalidArgument("restore: capacity " + std::to_string(capacity) + " < " +
                                        std::to_string(restored.size()) + " sequences");
    }
    std::ranges::transform(restored, room.begin(), c_api::plain);
    *count = static_cast<int64_t>(restored.size());
  });
}

ts_status ts_cache_view_create(ts_kv_cache* cache, ts_cache_view** view) {
  return guarded([&] {
    ts_cache_view*& place = checked(view, "view");
    place = new ts_cache_view{touchstone::cache::CacheViewBuilder(cache_of(cache)), {}};
  });
}

ts_status ts_cache_view_create_fixed(ts_kv_cache* cache, int64_t rows, int64_t tokens,
                                     ts_cache_view** view) {
  return guarded([&] {
    ts_cache_view*& place = checked(view, "view");
    place = new ts_cache_view{
        touchstone::cache::CacheViewBuilder(cache_of(cache), {.rows = rows, .tokens = tokens}), {}};
  });
}

void ts_cache_view_destroy(ts_cache_view* view) { delete view; }

ts_status ts_cache_view_build(ts_context* context, ts_cache_view* view,
                              const ts_sequence* sequences, int64_t rows) {
  return guarded([&] {
    ts_cache_view& of = checked(view, "view");
    of.view = of.builder.build(checked(context, "context").context, c_api::ids(sequences, rows));
  });
}

TOUCHSTONE_C_OPERATOR(kv_append, ts_kv_append_args, converted);
TOUCHSTONE_C_OPERATOR(rope_append, ts_rope_append_args, converted);
TOUCHSTONE_C_OPERATOR(cached_attention, ts_cached_attention_args, converted);
