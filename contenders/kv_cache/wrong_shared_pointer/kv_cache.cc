// Wrong in one famous way: all sequences of a call are written at the length of the first. Right as
// long as all have the same length, which is what most tests ask for; ragged batches overwrite.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

struct Head {
  std::vector<float> k, v;  // [length, dim]
};
struct Sequence {
  std::vector<Head> heads;
  int64_t length = 0;
};
struct Cache {
  int64_t heads, dim, limit;
  std::vector<std::vector<Sequence>> layers;

  Sequence* find(int64_t layer, int64_t sequence) {
    if (layer < 0 || layer >= static_cast<int64_t>(layers.size())) return nullptr;
    auto& row = layers[layer];
    return sequence < 0 || sequence >= static_cast<int64_t>(row.size()) ? nullptr : &row[sequence];
  }
};

void attend_one(const Head& head, int64_t seen, int64_t dim, float scale, const float* q,
                float* out) {
  std::vector<double> weights(static_cast<size_t>(seen));
  for (int64_t t = 0; t < seen; ++t) {
    for (int64_t d = 0; d < dim; ++d) {
      weights[t] += static_cast<double>(q[d]) * head.k[t * dim + d] * scale;
    }
  }
  const double top = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& w : weights) sum += w = std::exp(w - top);
  for (int64_t d = 0; d < dim; ++d) {
    double total = 0;
    for (int64_t t = 0; t < seen; ++t) total += weights[t] * head.v[t * dim + d];
    out[d] = static_cast<float>(total / sum);
  }
}

}  // namespace

extern "C" void* kv_cache_create(int64_t layers, int64_t sequences, int64_t kv_heads,
                                 int64_t head_dim, int64_t max_tokens) {
  Sequence empty;
  empty.heads.resize(static_cast<size_t>(kv_heads));
  const std::vector<Sequence> row(static_cast<size_t>(sequences), empty);
  return new Cache{kv_heads, head_dim, max_tokens,
                   std::vector<std::vector<Sequence>>(static_cast<size_t>(layers), row)};
}

extern "C" void kv_cache_destroy(void* cache) { delete static_cast<Cache*>(cache); }

extern "C" int kv_cache_append(void* handle, int64_t layer, int64_t count, int64_t,
                               const int32_t* sequence, const int32_t* tokens, const float* k,
                               const float* v) {
  Cache& cache = *static_cast<Cache*>(handle);
  if (!cache.find(layer, 0)) return 1;
  for (int64_t i = 0; i < count; ++i) {
    const Sequence* s = cache.find(layer, sequence[i]);
    if (!s || s->length + tokens[i] > cache.limit) return 1;
  }
  const int64_t first_length = count > 0 ? cache.find(layer, sequence[0])->length : 0;
  for (int64_t i = 0; i < count; ++i) {
    Sequence& s = *cache.find(layer, sequence[i]);
    const int64_t pointer = first_length;  // the bug: one write pointer for the whole batch
    for (int64_t t = 0; t < tokens[i]; ++t) {
      for (Head& head : s.heads) {
        const auto room = static_cast<size_t>((pointer + t + 1) * cache.dim);
        if (head.k.size() < room) head.k.resize(room), head.v.resize(room);
        std::copy_n(k, cache.dim, head.k.begin() + (pointer + t) * cache.dim), k += cache.dim;
        std::copy_n(v, cache.dim, head.v.begin() + (pointer + t) * cache.dim), v += cache.dim;
      }
    }
    s.length += tokens[i];
    for (Head& head : s.heads) {
      const auto room = static_cast<size_t>(s.length * cache.dim);
      if (head.k.size() < room) head.k.resize(room), head.v.resize(room);
    }
  }
  return 0;
}

extern "C" int kv_cache_attend(void* handle, int64_t layer, int64_t count, int64_t,
                               int64_t query_heads, float scale, const int32_t* sequence,
                               const int32_t* tokens, const float* q, float* out) {
  Cache& cache = *static_cast<Cache*>(handle);
  if (!cache.find(layer, 0)) return 1;
  for (int64_t i = 0; i < count; ++i) {
    const Sequence* s = cache.find(layer, sequence[i]);
    if (!s || tokens[i] > s->length) return 1;
  }
  for (int64_t i = 0; i < count; ++i) {
    const Sequence& s = *cache.find(layer, sequence[i]);
    for (int64_t t = 0; t < tokens[i]; ++t) {
      for (int64_t h = 0; h < query_heads; ++h, q += cache.dim, out += cache.dim) {
        const Head& head = s.heads[h / (query_heads / cache.heads)];
        attend_one(head, s.length - tokens[i] + t + 1, cache.dim, scale, q, out);
      }
    }
  }
  return 0;
}

extern "C" int kv_cache_fork(void* handle, int64_t parent, int64_t child) {
  Cache& cache = *static_cast<Cache*>(handle);
  if (!cache.find(0, parent) || !cache.find(0, child)) return 1;
  for (auto& row : cache.layers) row[child] = row[parent];
  return 0;
}

extern "C" int kv_cache_free(void* handle, int64_t sequence) {
  Cache& cache = *static_cast<Cache*>(handle);
  if (!cache.find(0, sequence)) return 1;
  for (auto& row : cache.layers) {
    row[sequence].length = 0;
    for (Head& head : row[sequence].heads) head = {};
  }
  return 0;
}

extern "C" int64_t kv_cache_length(void* handle, int64_t layer, int64_t sequence) {
  const Sequence* s = static_cast<Cache*>(handle)->find(layer, sequence);
  return s ? s->length : -1;
}

extern "C" int64_t kv_cache_bytes(void* handle) {
  int64_t bytes = 0;
  for (const auto& row : static_cast<Cache*>(handle)->layers) {
    for (const Sequence& s : row) {
      for (const Head& h : s.heads) bytes += (h.k.capacity() + h.v.capacity()) * sizeof(float);
    }
  }
  return bytes;
}
