// This library as a contender: the task's session in terms of its C API. Layers of the task grow one
// by one, those of a cache together, so each layer has a cache of its own.
#include <touchstone/touchstone_c.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace {

struct Layer {
  ts_kv_cache* cache = nullptr;
  ts_cache_view* view = nullptr;
  std::vector<ts_sequence> sequences{};

  Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
  ~Layer() {
    ts_cache_view_destroy(view);
    ts_kv_cache_destroy(cache);
  }
  ts_sequence& at(int64_t sequence) { return sequences[static_cast<size_t>(sequence)]; }
  int64_t length(int64_t sequence) {
    int64_t tokens = -1;
    ts_kv_cache_length(cache, at(sequence), &tokens);
    return tokens;
  }
};

struct Session {
  int64_t sequences = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_tokens = 0;
  ts_context* context = nullptr;
  std::vector<std::unique_ptr<Layer>> layers{};
  // Of the call in hand.
  std::vector<ts_sequence> rows{};
  std::vector<int32_t> token_rows{};
  std::vector<int64_t> numbers{};

  Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    layers.clear();
    ts_context_destroy(context);
  }
  bool knows(int64_t layer, int64_t sequence) const {
    return layer >= 0 && layer < static_cast<int64_t>(layers.size()) && sequence >= 0 &&
           sequence < sequences;
  }
  bool knows(int64_t layer, int64_t count, const int32_t* sequence) const {
    bool all = knows(layer, 0);
    for (int64_t i = 0; i < count; ++i) all = all && knows(layer, sequence[i]);
    return all;
  }
  bool build_view(Layer& layer, int64_t count, const int32_t* sequence) {
    rows.clear();
    for (int64_t i = 0; i < count; ++i) rows.push_back(layer.at(sequence[i]));
    return ts_cache_view_build(context, layer.view, rows.data(), count) == TS_OK;
  }
  ts_tensor heads(const float* data, int64_t tokens, int64_t count) const {
    const int64_t shape[] = {tokens, count, head_dim};
    return ts_make_tensor(data, TS_F32, TS_CPU, 3, shape);
  }
};

bool add_layer(Session& session, const ts_quant_format& format) {
  ts_layer_group group = {};
  group.layers = 1;
  group.kv_heads = session.kv_heads;
  group.k_dim = session.head_dim;
  group.v_dim = session.head_dim;
  group.k = format;
  group.v = format;
  int64_t pages = 0;
  ts_kv_cache_args args = TS_KV_CACHE_ARGS;
  args.layer_groups = &group;
  args.layer_group_count = 1;
  args.pool_pages = &pages;
  session.layers.push_back(std::make_unique<Layer>());
  Layer& layer = *session.layers.back();
  if (ts_kv_cache_pool_pages(&args, session.max_tokens, session.sequences, 1, &pages) != TS_OK ||
      ts_kv_cache_create(session.context, &args, &layer.cache) != TS_OK ||
      ts_cache_view_create(layer.cache, &layer.view) != TS_OK) {
    return false;
  }
  layer.sequences.resize(static_cast<size_t>(session.sequences));
  for (ts_sequence& sequence : layer.sequences) {
    if (ts_kv_cache_add_sequence(layer.cache, &sequence) != TS_OK) return false;
  }
  return true;
}

void* create(int64_t layers, int64_t sequences, int64_t kv_heads, int64_t head_dim,
             int64_t max_tokens, ts_dtype dtype) {
  auto session = std::make_unique<Session>();
  session->sequences = sequences;
  session->kv_heads = kv_heads;
  session->head_dim = head_dim;
  session->max_tokens = max_tokens;
  if (ts_context_create(nullptr, &session->context) != TS_OK) return nullptr;
  const ts_quant_format format = {dtype, TS_F32, 0, 0, 0};
  for (int64_t l = 0; l < layers; ++l) {
    if (!add_layer(*session, format)) return nullptr;
  }
  return session.release();
}

}  // namespace

extern "C" void* kv_cache_create(int64_t layers, int64_t sequences, int64_t kv_heads,
                                 int64_t head_dim, int64_t max_tokens) {
  return create(layers, sequences, kv_heads, head_dim, max_tokens, TS_F32);
}

extern "C" void* kv_cache_create_quantised(int64_t layers, int64_t sequences, int64_t kv_heads,
                                           int64_t head_dim, int64_t max_tokens, int64_t bits) {
  if (bits != 8 && bits != 4) return nullptr;
  return create(layers, sequences, kv_heads, head_dim, max_tokens, bits == 8 ? TS_I8 : TS_I4);
}

extern "C" void kv_cache_destroy(void* handle) { delete static_cast<Session*>(handle); }

extern "C" int kv_cache_append(void* handle, int64_t layer, int64_t count, int64_t total_tokens,
                               const int32_t* sequence, const int32_t* tokens, const float* k,
                               const float* v) {
  Session& session = *static_cast<Session*>(handle);
  if (!session.knows(layer, count, sequence)) return 1;
  Layer& to = *session.layers[static_cast<size_t>(layer)];
  for (int64_t i = 0; i < count; ++i) {
    if (to.length(sequence[i]) + tokens[i] > session.max_tokens) return 1;
  }
  session.token_rows.clear();
  session.numbers.clear();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = to.length(sequence[i]);
    if (ts_kv_cache_reserve(to.cache, &to.at(sequence[i]), 1, tokens[i]) != TS_OK) return 1;
    for (int64_t t = 0; t < tokens[i]; ++t) {
      session.token_rows.push_back(static_cast<int32_t>(i));
      session.numbers.push_back(first + t);
    }
  }
  if (!session.build_view(to, count, sequence)) return 1;
  ts_kv_append_args args = TS_KV_APPEND_ARGS;
  args.cache = to.view;
  args.k = session.heads(k, total_tokens, session.kv_heads);
  args.v = session.heads(v, total_tokens, session.kv_heads);
  args.rows = ts_make_tensor(session.token_rows.data(), TS_I32, TS_CPU, 1, &total_tokens);
  args.positions = ts_make_tensor(session.numbers.data(), TS_I64, TS_CPU, 1, &total_tokens);
  if (ts_kv_append(session.context, &args) != TS_OK) return 1;
  for (int64_t i = 0; i < count; ++i) {
    if (ts_kv_cache_commit(to.cache, &to.at(sequence[i]), 1, tokens[i]) != TS_OK) return 1;
  }
  return 0;
}

extern "C" int kv_cache_attend(void* handle, int64_t layer, int64_t count, int64_t total_tokens,
                               int64_t query_heads, float scale, const int32_t* sequence,
                               const int32_t* tokens, const float* q, float* out) {
  Session& session = *static_cast<Session*>(handle);
  if (!session.knows(layer, count, sequence)) return 1;
  Layer& from = *session.layers[static_cast<size_t>(layer)];
  session.numbers.assign(1, 0);
  for (int64_t i = 0; i < count; ++i) {
    if (tokens[i] > from.length(sequence[i])) return 1;
    session.numbers.push_back(session.numbers.back() + tokens[i]);
  }
  if (total_tokens == 0) return 0;
  if (!session.build_view(from, count, sequence)) return 1;
  const int64_t offsets = count + 1;
  ts_cached_attention_args args = TS_CACHED_ATTENTION_ARGS;
  args.q = session.heads(q, total_tokens, query_heads);
  args.query_offsets = ts_make_tensor(session.numbers.data(), TS_I64, TS_CPU, 1, &offsets);
  args.cache = from.view;
  args.output = session.heads(out, total_tokens, query_heads);
  // 0 would ask the library for its default.
  args.scale = scale == 0 ? 1e-300 : static_cast<double>(scale);
  return ts_cached_attention(session.context, &args) == TS_OK ? 0 : 1;
}

extern "C" int kv_cache_fork(void* handle, int64_t parent, int64_t child) {
  Session& session = *static_cast<Session*>(handle);
  if (!session.knows(0, parent) || !session.knows(0, child) || parent == child) return 1;
  for (auto& layer : session.layers) {
    if (ts_kv_cache_release(layer->cache, layer->at(child)) != TS_OK ||
        ts_kv_cache_fork(layer->cache, layer->at(parent), &layer->at(child)) != TS_OK) {
      return 1;
    }
  }
  return 0;
}

extern "C" int kv_cache_free(void* handle, int64_t sequence) {
  Session& session = *static_cast<Session*>(handle);
  if (!session.knows(0, sequence)) return 1;
  for (auto& layer : session.layers) {
    if (ts_kv_cache_release(layer->cache, layer->at(sequence)) != TS_OK ||
        ts_kv_cache_add_sequence(layer->cache, &layer->at(sequence)) != TS_OK) {
      return 1;
    }
  }
  return 0;
}

extern "C" int64_t kv_cache_length(void* handle, int64_t layer, int64_t sequence) {
  const Session& session = *static_cast<const Session*>(handle);
  if (!session.knows(layer, sequence)) return -1;
  return session.layers[static_cast<size_t>(layer)]->length(sequence);
}

extern "C" int64_t kv_cache_bytes(void* handle) {
  int64_t bytes = 0;
  for (const auto& layer : static_cast<const Session*>(handle)->layers) {
    ts_layer_group_statistics pages = TS_LAYER_GROUP_STATISTICS;
    ts_kv_cache_get_layer_group_statistics(layer->cache, 0, &pages);
    bytes += pages.used * pages.page_bytes;
  }
  return bytes;
}
