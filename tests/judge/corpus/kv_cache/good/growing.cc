// Vectors that grow, one pair for each sequence, layer and head; float arithmetic, online softmax
// in blocks of 32 tokens, compensated where sums are long.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
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
  constexpr int64_t kBlock = 32;
  float top = -std::numeric_limits<float>::infinity(), sum = 0;
  std::vector<float> total(static_cast<size_t>(dim));
  for (int64_t begin = 0; begin < seen; begin += kBlock) {
    const int64_t end = std::min(seen, begin + kBlock);
    float scores[kBlock], block_top = top;
    for (int64_t t = begin; t < end; ++t) {
      float s = 0;
      for (int64_t d = 0; d < dim; ++d) s = std::fma(q[d], head.k[t * dim + d], s);
      scores[t - begin] = s * scale;
      block_top = std::max(block_top, scores[t - begin]);
    }
    const float factor = begin == 0 ? 0 : std::exp(top - block_top);
    top = block_top;
    sum *= factor;
    for (float& f : total) f *= factor;
    for (int64_t t = begin; t < end; ++t) {
      const float w = std::exp(scores[t - begin] - top);
      sum += w;
      for (int64_t d = 0; d < dim; ++d) total[d] += w * head.v[t * dim + d];
    }
  }
  for (int64_t d = 0; d < dim; ++d) out[d] = total[d] / sum;
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
  for (int64_t i = 0; i < count; ++i) {
    Sequence& s = *cache.find(layer, sequence[i]);
    for (int64_t t = 0; t < tokens[i]; ++t) {
      for (Head& head : s.heads) {
        head.k.insert(head.k.end(), k, k + cache.dim), k += cache.dim;
        head.v.insert(head.v.end(), v, v + cache.dim), v += cache.dim;
      }
    }
    s.length += tokens[i];
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
