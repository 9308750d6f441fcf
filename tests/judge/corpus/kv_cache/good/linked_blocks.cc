// Tokens in a persistent list, newest first: a fork shares it whole, and nothing is ever changed. The scores
// of a query are kept, softmaxed from the largest down, and summed in pairs.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <unordered_set>
#include <vector>

namespace {

struct Token {
  std::shared_ptr<const Token> before;
  std::vector<float> k, v;  // [heads, dim]
  ~Token() {                // a long list is not taken apart by recursion
    std::shared_ptr<const Token> next = std::move(before);
    while (next && next.use_count() == 1) {
      next = std::move(const_cast<Token&>(*next).before);
    }
  }
};

struct List {
  std::shared_ptr<const Token> last;
  int64_t length = 0;
};

class Cache {
 public:
  Cache(int64_t layers, int64_t sequences, int64_t heads, int64_t dim, int64_t most)
      : heads_(heads),
        dim_(dim),
        most_(most),
        lists_(static_cast<size_t>(layers), std::vector<List>(static_cast<size_t>(sequences))) {}

  List* find(int64_t layer, int64_t sequence) {
    if (layer < 0 || layer >= static_cast<int64_t>(lists_.size())) return nullptr;
    auto& row = lists_[static_cast<size_t>(layer)];
    if (sequence < 0 || sequence >= static_cast<int64_t>(row.size())) return nullptr;
    return &row[static_cast<size_t>(sequence)];
  }

  int append(int64_t layer, int64_t count, const int32_t* sequence, const int32_t* tokens,
             const float* k, const float* v) {
    if (!find(layer, 0)) return 1;
    for (int64_t i = 0; i < count; ++i) {
      const List* list = find(layer, sequence[i]);
      if (!list || tokens[i] < 0 || list->length + tokens[i] > most_) return 1;
    }
    const int64_t width = heads_ * dim_;
    for (int64_t i = 0; i < count; ++i) {
      List& list = *find(layer, sequence[i]);
      for (int32_t t = 0; t < tokens[i]; ++t, k += width, v += width) {
        auto token = std::make_shared<Token>();
        token->before = std::move(list.last);
        token->k.assign(k, k + width);
        token->v.assign(v, v + width);
        list.last = std::move(token);
        ++list.length;
      }
    }
    return 0;
  }

  int attend(int64_t layer, int64_t count, int64_t query_heads, float scale,
             const int32_t* sequence, const int32_t* tokens, const float* q, float* out) {
    if (!find(layer, 0) || query_heads % heads_ != 0) return 1;
    for (int64_t i = 0; i < count; ++i) {
      const List* list = find(layer, sequence[i]);
      if (!list || tokens[i] < 0 || tokens[i] > list->length) return 1;
    }
    const int64_t group = query_heads / heads_, row = query_heads * dim_;
    for (int64_t i = 0; i < count; ++i) {
      std::vector<const Token*> newest;
      for (const Token* t = find(layer, sequence[i])->last.get(); t; t = t->before.get()) {
        newest.push_back(t);
      }
      for (int32_t t = 0; t < tokens[i]; ++t, q += row, out += row) {
        const size_t skipped = static_cast<size_t>(tokens[i] - 1 - t);
        for (int64_t h = 0; h < query_heads; ++h) {
          one(newest.data() + skipped, newest.size() - skipped, h / group * dim_, scale,
              q + h * dim_, out + h * dim_);
        }
      }
    }
    return 0;
  }

  int fork(int64_t parent, int64_t child) {
    if (parent == child || !find(0, parent) || !find(0, child)) return 1;
    for (auto& row : lists_) row[static_cast<size_t>(child)] = row[static_cast<size_t>(parent)];
    return 0;
  }
  int clear(int64_t sequence) {
    if (!find(0, sequence)) return 1;
    for (auto& row : lists_) row[static_cast<size_t>(sequence)] = {};
    return 0;
  }
  int64_t bytes() const {
    std::unordered_set<const Token*> all;
    for (const auto& row : lists_) {
      for (const List& list : row) {
        for (const Token* t = list.last.get(); t && all.insert(t).second; t = t->before.get()) {
        }
      }
    }
    const auto each = static_cast<int64_t>(sizeof(Token)) + 8 * heads_ * dim_;
    return static_cast<int64_t>(all.size()) * each;
  }

 private:
  static double pairwise(const double* from, size_t n) {
    if (n < 8) return std::accumulate(from, from + n, 0.0);
    return pairwise(from, n / 2) + pairwise(from + n / 2, n - n / 2);
  }

  void one(const Token* const* tokens, size_t n, int64_t offset, float scale, const float* q,
           float* out) const {
    std::vector<double> weight(n), part(n);
    for (size_t t = 0; t < n; ++t) {
      double score = 0;
      for (int64_t d = 0; d < dim_; ++d) score += double{q[d]} * tokens[t]->k[offset + d];
      weight[t] = score * scale;
    }
    const double top = *std::max_element(weight.begin(), weight.end());
    for (double& w : weight) w = std::exp(w - top);
    const double sum = pairwise(weight.data(), n);
    for (int64_t d = 0; d < dim_; ++d) {
      for (size_t t = 0; t < n; ++t) part[t] = weight[t] * tokens[t]->v[offset + d];
      out[d] = static_cast<float>(pairwise(part.data(), n) / sum);
    }
  }

  int64_t heads_, dim_, most_;
  std::vector<std::vector<List>> lists_;  // [layers][sequences]
};

Cache& at(void* cache) { return *static_cast<Cache*>(cache); }

}  // namespace

extern "C" void* kv_cache_create(int64_t layers, int64_t sequences, int64_t kv_heads,
                                 int64_t head_dim, int64_t max_tokens) {
  return new Cache(layers, sequences, kv_heads, head_dim, max_tokens);
}
extern "C" void kv_cache_destroy(void* cache) { delete &at(cache); }
extern "C" int kv_cache_append(void* cache, int64_t layer, int64_t count, int64_t,
                               const int32_t* sequence, const int32_t* tokens, const float* k,
                               const float* v) {
  return at(cache).append(layer, count, sequence, tokens, k, v);
}
extern "C" int kv_cache_attend(void* cache, int64_t layer, int64_t count, int64_t,
                               int64_t query_heads, float scale, const int32_t* sequence,
                               const int32_t* tokens, const float* q, float* out) {
  return at(cache).attend(layer, count, query_heads, scale, sequence, tokens, q, out);
}
extern "C" int kv_cache_free(void* cache, int64_t sequence) { return at(cache).clear(sequence); }
extern "C" int64_t kv_cache_length(void* cache, int64_t layer, int64_t sequence) {
  const List* list = at(cache).find(layer, sequence);
  return list ? list->length : -1;
}
extern "C" int kv_cache_fork(void* cache, int64_t parent, int64_t child) {
  return at(cache).fork(parent, child);
}
extern "C" int64_t kv_cache_bytes(void* cache) { return at(cache).bytes(); }
