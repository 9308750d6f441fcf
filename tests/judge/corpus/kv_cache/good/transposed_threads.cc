// Keys stored transposed, [dim, limit], so that the scores of a query are sums of rows; a pool of
// two threads, kept for the life of the cache, shares the queries of a call.
#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace {

// One worker; run() does the other half in the caller.
class Pair {
 public:
  Pair() : worker_([this] { loop(); }) {}
  ~Pair() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    worker_.join();
  }
  void run(int64_t count, const std::function<void(int64_t, int64_t)>& work) {
    {
      const std::lock_guard lock(mutex_);
      work_ = &work, begin_ = count / 2, end_ = count;
    }
    wake_.notify_all();
    work(0, count / 2);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return work_ == nullptr; });
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stop_ || work_; });
      if (stop_) return;
      const auto* work = work_;
      lock.unlock();
      (*work)(begin_, end_);
      lock.lock();
      work_ = nullptr;
      done_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int64_t, int64_t)>* work_ = nullptr;
  int64_t begin_ = 0, end_ = 0;
  bool stop_ = false;
  std::thread worker_;
};

struct Stored {
  std::vector<double> k;  // [heads, dim, room]
  std::vector<float> v;   // [length, heads, dim]
  int64_t length = 0, room = 0;
};

struct Cache {
  int64_t layers, sequences, heads, dim, limit;
  std::map<std::pair<int64_t, int64_t>, Stored> stored;  // absent: empty
  Pair pair;

  bool known(int64_t layer, int64_t sequence) const {
    return layer >= 0 && layer < layers && sequence >= 0 && sequence < sequences;
  }
  int64_t length(int64_t layer, int64_t sequence) const {
    const auto found = stored.find({layer, sequence});
    return found == stored.end() ? 0 : found->second.length;
  }
};

void make_room(const Cache& cache, Stored& s, int64_t tokens) {
  if (s.length + tokens <= s.room) return;
  const int64_t room = std::max(s.length + tokens, 2 * s.room);
  std::vector<double> k(static_cast<size_t>(cache.heads * cache.dim * room));
  for (int64_t row = 0; row < cache.heads * cache.dim; ++row) {
    std::copy_n(s.k.begin() + row * s.room, s.length, k.begin() + row * room);
  }
  s.k = std::move(k), s.room = room;
}

void attend_one(const Cache& cache, const Stored& s, int64_t head, int64_t seen, double scale,
                const float* q, float* out) {
  std::vector<double> w(static_cast<size_t>(seen));
  for (int64_t d = 0; d < cache.dim; ++d) {
    const double* row = s.k.data() + (head * cache.dim + d) * s.room;
    for (int64_t t = 0; t < seen; ++t) w[t] += q[d] * row[t];
  }
  for (double& x : w) x *= scale;
  const double top = *std::max_element(w.begin(), w.end());
  double sum = 0;
  for (double& x : w) sum += x = std::exp(x - top);
  for (int64_t d = 0; d < cache.dim; ++d) {
    double total = 0;
    for (int64_t t = seen - 1; t >= 0; --t) {
      total += w[t] / sum * s.v[(t * cache.heads + head) * cache.dim + d];
    }
    out[d] = static_cast<float>(total);
  }
}

}  // namespace

extern "C" void* kv_cache_create(int64_t layers, int64_t sequences, int64_t kv_heads,
                                 int64_t head_dim, int64_t max_tokens) {
  return new Cache{layers, sequences, kv_heads, head_dim, max_tokens, {}, {}};
}
extern "C" void kv_cache_destroy(void* cache) { delete static_cast<Cache*>(cache); }

extern "C" int kv_cache_append(void* handle, int64_t layer, int64_t count, int64_t,
                               const int32_t* sequence, const int32_t* tokens, const float* k,
                               const float* v) {
  Cache& cache = *static_cast<Cache*>(handle);
  if (!cache.known(layer, 0)) return 1;
  for (int64_t i = 0; i < count; ++i) {
    if (!cache.known(layer, sequence[i])) return 1;
    if (cache.length(layer, sequence[i]) + tokens[i] > cache.limit) return 1;
  }
  const int64_t width = cache.heads * cache.dim;
  for (int64_t i = 0; i < count; ++i) {
    Stored& s = cache.stored[{layer, sequence[i]}];
    make_room(cache, s, tokens[i]);
    for (int64_t t = 0; t < tokens[i]; ++t, ++s.length, k += width) {
      for (int64_t e = 0; e < width; ++e) s.k[e * s.room + s.length] = k[e];
    }
    s.v.insert(s.v.end(), v, v + tokens[i] * width);
    v += tokens[i] * width;
  }
  return 0;
}

extern "C" int kv_cache_attend(void* handle, int64_t layer, int64_t count, int64_t total,
                               int64_t query_heads, float scale, const int32_t* sequence,
                               const int32_t* tokens, const float* q, float* out) {
  Cache& cache = *static_cast<Cache*>(handle);
  if (!cache.known(layer, 0)) return 1;
  struct Query {
    const Stored* stored;
    int64_t seen;
  };
  std::vector<Query> queries;
  for (int64_t i = 0; i < count; ++i) {
    if (!cache.known(layer, sequence[i])) return 1;
    const int64_t length = cache.length(layer, sequence[i]);
    if (tokens[i] > length) return 1;
    for (int64_t t = 0; t < tokens[i]; ++t) {
      queries.push_back({&cache.stored[{layer, sequence[i]}], length - tokens[i] + t + 1});
    }
  }
  cache.pair.run(total, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t h = 0; h < query_heads; ++h) {
        const int64_t at = (row * query_heads + h) * cache.dim;
        attend_one(cache, *queries[row].stored, h / (query_heads / cache.heads), queries[row].seen,
                   scale, q + at, out + at);
      }
    }
  });
  return 0;
}

extern "C" int kv_cache_free(void* handle, int64_t sequence) {
  Cache& cache = *static_cast<Cache*>(handle);
  if (!cache.known(0, sequence)) return 1;
  for (int64_t l = 0; l < cache.layers; ++l) cache.stored.erase({l, sequence});
  return 0;
}

extern "C" int kv_cache_fork(void* handle, int64_t parent, int64_t child) {
  Cache& cache = *static_cast<Cache*>(handle);
  if (!cache.known(0, parent) || !cache.known(0, child)) return 1;
  for (int64_t l = 0; l < cache.layers; ++l) {
    cache.stored.erase({l, child});
    if (cache.length(l, parent) > 0) cache.stored[{l, child}] = cache.stored[{l, parent}];
  }
  return 0;
}

extern "C" int64_t kv_cache_length(void* handle, int64_t layer, int64_t sequence) {
  const Cache& cache = *static_cast<Cache*>(handle);
  return cache.known(layer, sequence) ? cache.length(layer, sequence) : -1;
}
