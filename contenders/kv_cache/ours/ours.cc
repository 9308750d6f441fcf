// This library as a contender: the task's session in terms of touchstone::cache and
// cached_attention. Layers of the task grow one by one, those of a KvCache together, so each layer
// has a KvCache of its own.
#include <touchstone/touchstone.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

namespace {

using touchstone::DType;
using touchstone::make_view;
using touchstone::QuantFormat;
using touchstone::cache::CacheView;
using touchstone::cache::CacheViewBuilder;
using touchstone::cache::KvCache;
using touchstone::cache::Layout;
using touchstone::cache::SequenceId;

struct Layer {
  Layer(touchstone::Context& context, const Layout& layout, int64_t sequences, int64_t max_tokens)
      : cache(context,
              {.layout = layout,
               .pool_pages = touchstone::cache::pool_pages_for(layout, max_tokens, sequences)}),
        builder(cache) {
    for (int64_t s = 0; s < sequences; ++s) ids.push_back(cache.create());
  }
  int64_t length(int64_t sequence) const {
    return cache.length(ids[static_cast<size_t>(sequence)]);
  }

  KvCache cache;
  CacheViewBuilder builder;
  std::vector<SequenceId> ids;
};

struct Session {
  int64_t sequences, kv_heads, head_dim, max_tokens;
  std::vector<std::unique_ptr<Layer>> layers{};
  touchstone::Context context{};
  // Of the call in hand.
  std::vector<SequenceId> rows{};
  std::vector<int32_t> token_rows{};
  std::vector<int64_t> numbers{};

  bool knows(int64_t layer, int64_t sequence) const {
    return layer >= 0 && layer < static_cast<int64_t>(layers.size()) && sequence >= 0 &&
           sequence < sequences;
  }
  bool knows(int64_t layer, int64_t count, const int32_t* sequence) const {
    bool all = knows(layer, 0);
    for (int64_t i = 0; i < count; ++i) all = all && knows(layer, sequence[i]);
    return all;
  }
  const CacheView& view(Layer& layer, int64_t count, const int32_t* sequence) {
    rows.clear();
    for (int64_t i = 0; i < count; ++i) rows.push_back(layer.ids[static_cast<size_t>(sequence[i])]);
    return layer.builder.build(context, rows);
  }
};

void* create(int64_t layers, int64_t sequences, int64_t kv_heads, int64_t head_dim,
             int64_t max_tokens, const QuantFormat& format) try {
  auto session = std::make_unique<Session>(Session{sequences, kv_heads, head_dim, max_tokens});
  const Layout layout{{{.layers = 1,
                        .kv_heads = kv_heads,
                        .k_dim = head_dim,
                        .v_dim = head_dim,
                        .k = format,
                        .v = format}}};
  for (int64_t l = 0; l < layers; ++l) {
    session->layers.push_back(
        std::make_unique<Layer>(session->context, layout, sequences, max_tokens));
  }
  return session.release();
} catch (const std::exception&) {
  return nullptr;
}

}  // namespace

extern "C" void* kv_cache_create(int64_t layers, int64_t sequences, int64_t kv_heads,
                                 int64_t head_dim, int64_t max_tokens) {
  return create(layers, sequences, kv_heads, head_dim, max_tokens, {.dtype = DType::f32});
}

extern "C" void* kv_cache_create_quantised(int64_t layers, int64_t sequences, int64_t kv_heads,
                                           int64_t head_dim, int64_t max_tokens, int64_t bits) {
  if (bits != 8 && bits != 4) return nullptr;
  return create(layers, sequences, kv_heads, head_dim, max_tokens,
                {.dtype = bits == 8 ? DType::i8 : DType::i4, .scale_dtype = DType::f32});
}

extern "C" void kv_cache_destroy(void* handle) { delete static_cast<Session*>(handle); }

extern "C" int kv_cache_append(void* handle, int64_t layer, int64_t count, int64_t total_tokens,
                               const int32_t* sequence, const int32_t* tokens, const float* k,
                               const float* v) try {
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
    to.cache.reserve(to.ids[static_cast<size_t>(sequence[i])], tokens[i]);
    for (int64_t t = 0; t < tokens[i]; ++t) {
      session.token_rows.push_back(static_cast<int32_t>(i));
      session.numbers.push_back(first + t);
    }
  }
  touchstone::kv_append(session.context,
                        {.cache = session.view(to, count, sequence),
                         .k = make_view(k, {total_tokens, session.kv_heads, session.head_dim}),
                         .v = make_view(v, {total_tokens, session.kv_heads, session.head_dim}),
                         .rows = make_view(session.token_rows.data(), {total_tokens}),
                         .positions = make_view(session.numbers.data(), {total_tokens})});
  for (int64_t i = 0; i < count; ++i) {
    to.cache.commit(to.ids[static_cast<size_t>(sequence[i])], tokens[i]);
  }
  return 0;
} catch (const std::exception&) {
  return 1;
}

extern "C" int kv_cache_attend(void* handle, int64_t layer, int64_t count, int64_t total_tokens,
                               int64_t query_heads, float scale, const int32_t* sequence,
                               const int32_t* tokens, const float* q, float* out) try {
  Session& session = *static_cast<Session*>(handle);
  if (!session.knows(layer, count, sequence)) return 1;
  Layer& from = *session.layers[static_cast<size_t>(layer)];
  session.numbers.assign(1, 0);
  for (int64_t i = 0; i < count; ++i) {
    if (tokens[i] > from.length(sequence[i])) return 1;
    session.numbers.push_back(session.numbers.back() + tokens[i]);
  }
  if (total_tokens == 0) return 0;
  touchstone::cached_attention(
      session.context, {.q = make_view(q, {total_tokens, query_heads, session.head_dim}),
                        .query_offsets = make_view(session.numbers.data(), {count + 1}),
                        .cache = session.view(from, count, sequence),
                        .output = make_view(out, {total_tokens, query_heads, session.head_dim}),
                        .scale = static_cast<double>(scale)});
  return 0;
} catch (const std::exception&) {
  return 1;
}

extern "C" int kv_cache_fork(void* handle, int64_t parent, int64_t child) try {
  Session& session = *static_cast<Session*>(handle);
  if (!session.knows(0, parent) || !session.knows(0, child) || parent == child) return 1;
  for (auto& layer : session.layers) {
    SequenceId& id = layer->ids[static_cast<size_t>(child)];
    layer->cache.release(id);
    id = layer->cache.fork(layer->ids[static_cast<size_t>(parent)]);
  }
  return 0;
} catch (const std::exception&) {
  return 1;
}

extern "C" int kv_cache_free(void* handle, int64_t sequence) try {
  Session& session = *static_cast<Session*>(handle);
  if (!session.knows(0, sequence)) return 1;
  for (auto& layer : session.layers) {
    SequenceId& id = layer->ids[static_cast<size_t>(sequence)];
    layer->cache.release(id);
    id = layer->cache.create();
  }
  return 0;
} catch (const std::exception&) {
  return 1;
}

extern "C" int64_t kv_cache_length(void* handle, int64_t layer, int64_t sequence) {
  const Session& session = *static_cast<const Session*>(handle);
  if (!session.knows(layer, sequence)) return -1;
  return session.layers[static_cast<size_t>(layer)]->length(sequence);
}

extern "C" int64_t kv_cache_bytes(void* handle) {
  int64_t bytes = 0;
  for (const auto& layer : static_cast<const Session*>(handle)->layers) {
    const auto group = layer->cache.statistics().groups[0];
    bytes += group.used * group.page_bytes;
  }
  return bytes;
}
