// From the contract of the task to the class that was found. An adapter passes things on: it keeps
// the stores together, checks what the contract wants checked, and computes nothing.
#include <cstdint>
#include <vector>

#include "theirs.h"

namespace {

struct Cache {
  int64_t layers, sequences, kv_heads, head_dim, max_tokens;
  std::vector<TokenStore> stores;  // [layers, sequences]

  bool has(int64_t layer) const { return layer >= 0 && layer < layers; }
  bool has(int64_t layer, int64_t sequence) const {
    return has(layer) && sequence >= 0 && sequence < sequences;
  }
  TokenStore& at(int64_t layer, int64_t sequence) { return stores[layer * sequences + sequence]; }
};

Cache& cache_of(void* cache) { return *static_cast<Cache*>(cache); }

}  // namespace

extern "C" void* kv_cache_create(int64_t layers, int64_t sequences, int64_t kv_heads,
                                 int64_t head_dim, int64_t max_tokens) {
  const TokenStore empty(static_cast<int>(kv_heads), static_cast<int>(head_dim));
  return new Cache{layers,   sequences,  kv_heads,
                   head_dim, max_tokens, std::vector<TokenStore>(layers * sequences, empty)};
}

extern "C" void kv_cache_destroy(void* cache) { delete static_cast<Cache*>(cache); }

extern "C" int kv_cache_append(void* cache, int64_t layer, int64_t count, int64_t,
                               const int32_t* sequence, const int32_t* tokens, const float* k,
                               const float* v) {
  Cache& c = cache_of(cache);
  if (!c.has(layer)) return 1;
  for (int64_t i = 0; i < count; ++i) {
    if (!c.has(layer, sequence[i]) || tokens[i] < 0) return 1;
    if (int64_t(c.at(layer, sequence[i]).size()) + tokens[i] > c.max_tokens) return 1;
  }
  const int64_t step = c.kv_heads * c.head_dim;
  for (int64_t i = 0; i < count; ++i) {
    for (int32_t t = 0; t < tokens[i]; ++t, k += step, v += step) {
      c.at(layer, sequence[i]).push(k, v);
    }
  }
  return 0;
}

extern "C" int kv_cache_attend(void* cache, int64_t layer, int64_t count, int64_t,
                               int64_t query_heads, float scale, const int32_t* sequence,
                               const int32_t* tokens, const float* q, float* out) {
  Cache& c = cache_of(cache);
  if (!c.has(layer)) return 1;
  for (int64_t i = 0; i < count; ++i) {
    if (!c.has(layer, sequence[i]) || tokens[i] < 0) return 1;
    if (int64_t(c.at(layer, sequence[i]).size()) < tokens[i]) return 1;
  }
  const int64_t group = query_heads / c.kv_heads;
  for (int64_t i = 0; i < count; ++i) {
    const TokenStore& store = c.at(layer, sequence[i]);
    for (int32_t t = 0; t < tokens[i]; ++t) {
      for (int64_t h = 0; h < query_heads; ++h, q += c.head_dim, out += c.head_dim) {
        store.look(q, static_cast<int>(h / group), store.size() - tokens[i] + t + 1, scale, out);
      }
    }
  }
  return 0;
}

extern "C" int kv_cache_fork(void* cache, int64_t parent, int64_t child) {
  Cache& c = cache_of(cache);
  if (!c.has(0, parent) || !c.has(0, child) || parent == child) return 1;
  for (int64_t layer = 0; layer < c.layers; ++layer) c.at(layer, child) = c.at(layer, parent);
  return 0;
}

extern "C" int kv_cache_free(void* cache, int64_t sequence) {
  Cache& c = cache_of(cache);
  if (!c.has(0, sequence)) return 1;
  for (int64_t layer = 0; layer < c.layers; ++layer) c.at(layer, sequence).clear();
  return 0;
}

extern "C" int64_t kv_cache_length(void* cache, int64_t layer, int64_t sequence) {
  Cache& c = cache_of(cache);
  return c.has(layer, sequence) ? int64_t(c.at(layer, sequence).size()) : -1;
}

extern "C" int64_t kv_cache_bytes(void* cache) {
  int64_t bytes = 0;
  for (const TokenStore& store : cache_of(cache).stores) bytes += int64_t(store.bytes());
  return bytes;
}
