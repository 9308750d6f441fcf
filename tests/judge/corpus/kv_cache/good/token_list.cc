// Tokens as a linked tree: a fork is one more reference, nothing is ever copied. Attention walks
// from the newest token to the oldest with an online softmax: the order is reversed.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <vector>

namespace {

struct Token {
  std::shared_ptr<Token> before;
  std::vector<float> kv;  // keys, then values
  // By hand, because a chain of destructors would be as deep as the sequence is long.
  ~Token() {
    while (before && before.use_count() == 1) before = std::move(before->before);
  }
};

struct Chain {
  std::shared_ptr<Token> last;
  int64_t length = 0;
};

struct Cache {
  int64_t layers, sequences, heads, dim, limit;
  std::vector<Chain> chains;
  bool known(int64_t layer, int64_t sequence) const {
    return layer >= 0 && layer < layers && sequence >= 0 && sequence < sequences;
  }
  Chain& at(int64_t layer, int64_t sequence) { return chains[layer * sequences + sequence]; }
};

void attend_one(const Cache& cache, const Token* token, int64_t head, float scale, const float* q,
                float* out) {
  const int64_t dim = cache.dim, width = cache.heads * dim;
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  std::vector<double> total(static_cast<size_t>(dim));
  for (; token; token = token->before.get()) {
    const float* k = token->kv.data() + head * dim;
    double s = 0;
    for (int64_t d = 0; d < dim; ++d) s += double{q[d]} * k[d];
    s *= scale;
    double w = 1;
    if (s > top) {
      const double factor = sum > 0 ? std::exp(top - s) : 0;
      sum *= factor;
      for (double& t : total) t *= factor;
      top = s;
    } else {
      w = std::exp(s - top);
    }
    sum += w;
    for (int64_t d = 0; d < dim; ++d) total[d] += w * k[width + d];
  }
  for (int64_t d = 0; d < dim; ++d) out[d] = static_cast<float>(total[d] / sum);
}

}  // namespace

extern "C" void* kv_cache_create(int64_t layers, int64_t sequences, int64_t kv_heads,
                                 int64_t head_dim, int64_t max_tokens) {
  return new Cache{layers,     sequences,
                   kv_heads,   head_dim,
                   max_tokens, std::vector<Chain>(static_cast<size_t>(layers * sequences))};
}
extern "C" void kv_cache_destroy(void* cache) { delete static_cast<Cache*>(cache); }

extern "C" int kv_cache_append(void* handle, int64_t layer, int64_t count, int64_t,
                               const int32_t* sequence, const int32_t* tokens, const float* k,
                               const float* v) {
  Cache& cache = *static_cast<Cache*>(handle);
  if (!cache.known(layer, 0)) return 1;
  for (int64_t i = 0; i < count; ++i) {
    if (!cache.known(layer, sequence[i])) return 1;
    if (cache.at(layer, sequence[i]).length + tokens[i] > cache.limit) return 1;
  }
  const int64_t width = cache.heads * cache.dim;
  for (int64_t i = 0; i < count; ++i) {
    Chain& chain = cache.at(layer, sequence[i]);
    for (int64_t t = 0; t < tokens[i]; ++t, k += width, v += width) {
      auto token = std::make_shared<Token>();
      token->kv.assign(k, k + width);
      token->kv.insert(token->kv.end(), v, v + width);
      token->before = std::move(chain.last);
      chain.last = std::move(token);
      ++chain.length;
    }
  }
  return 0;
}

extern "C" int kv_cache_attend(void* handle, int64_t layer, int64_t count, int64_t,
                               int64_t query_heads, float scale, const int32_t* sequence,
                               const int32_t* tokens, const float* q, float* out) {
  Cache& cache = *static_cast<Cache*>(handle);
  if (!cache.known(layer, 0)) return 1;
  for (int64_t i = 0; i < count; ++i) {
    if (!cache.known(layer, sequence[i])) return 1;
    if (tokens[i] > cache.at(layer, sequence[i]).length) return 1;
  }
  const int64_t width = query_heads * cache.dim;
  int64_t row = 0;
  for (int64_t i = 0; i < count; row += tokens[i++]) {
    const Token* token = cache.at(layer, sequence[i]).last.get();
    for (int64_t t = tokens[i] - 1; t >= 0; --t, token = token->before.get()) {
      for (int64_t h = 0; h < query_heads; ++h) {
        const int64_t at = (row + t) * width + h * cache.dim;
        attend_one(cache, token, h / (query_heads / cache.heads), scale, q + at, out + at);
      }
    }
  }
  return 0;
}

extern "C" int kv_cache_fork(void* handle, int64_t parent, int64_t child) {
  Cache& cache = *static_cast<Cache*>(handle);
  if (!cache.known(0, parent) || !cache.known(0, child)) return 1;
  for (int64_t l = 0; l < cache.layers; ++l) cache.at(l, child) = cache.at(l, parent);
  return 0;
}

extern "C" int kv_cache_free(void* handle, int64_t sequence) {
  Cache& cache = *static_cast<Cache*>(handle);
  if (!cache.known(0, sequence)) return 1;
  for (int64_t l = 0; l < cache.layers; ++l) cache.at(l, sequence) = {};
  return 0;
}

extern "C" int64_t kv_cache_length(void* handle, int64_t layer, int64_t sequence) {
  Cache& cache = *static_cast<Cache*>(handle);
  return cache.known(layer, sequence) ? cache.at(layer, sequence).length : -1;
}

extern "C" int64_t kv_cache_bytes(void* handle) {
  Cache& cache = *static_cast<Cache*>(handle);
  std::set<const Token*> tokens;
  for (const Chain& chain : cache.chains) {
    for (const Token* t = chain.last.get(); t && tokens.insert(t).second;) t = t->before.get();
  }
  return static_cast<int64_t>(tokens.size()) * (cache.heads * cache.dim * 8 + 64);
}
