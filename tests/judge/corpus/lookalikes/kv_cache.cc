// Honest caches that do what cheats do, for good reasons; see softmax_topk.cc.
#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#define LOOKALIKES(LOOKALIKE)                                                        \
  LOOKALIKE(workspace_reused, "", "scores are kept between calls and never cleared") \
  LOOKALIKE(arrays_recycled, "",                                                     \
            "a new cache gets the arrays that a destroyed one left, uncleared")      \
  LOOKALIKE(thread_kept, "", "a thread waits between calls for the next one")

namespace {

#define NAME(name, flags, what) name,
enum Kind { LOOKALIKES(NAME) };
#undef NAME

using Shape = std::tuple<int64_t, int64_t, int64_t, int64_t>;
using Arrays = std::vector<std::vector<float>>;

std::map<Shape, std::vector<Arrays>>& shelf() {
  static std::map<Shape, std::vector<Arrays>> arrays;
  return arrays;
}

// Keys and values of layer l and sequence s are arrays 2 (l sequences + s) and the one behind it:
// [tokens, heads, dim], of which the first `length` tokens count.
struct Cache {
  Shape shape;
  int64_t layers, sequences, heads, dim, limit;
  bool recycled;
  Arrays arrays;
  std::vector<int64_t> length;

  int64_t place(int64_t layer, int64_t sequence) const { return layer * sequences + sequence; }
  bool knows(int64_t layer, int64_t sequence) const {
    return layer >= 0 && layer < layers && sequence >= 0 && sequence < sequences;
  }
};

void* create(Kind kind, int64_t layers, int64_t sequences, int64_t heads, int64_t dim,
             int64_t limit) {
  const Shape shape{layers, sequences, heads, dim};
  auto* cache =
      new Cache{shape, layers, sequences, heads, dim, limit, kind == arrays_recycled, {}, {}};
  if (cache->recycled && !shelf()[shape].empty()) {
    cache->arrays = std::move(shelf()[shape].back());
    shelf()[shape].pop_back();
  }
  cache->arrays.resize(static_cast<size_t>(2 * layers * sequences));
  cache->length.assign(static_cast<size_t>(layers * sequences), 0);
  return cache;
}

void destroy(Cache* cache) {
  if (cache->recycled && shelf()[cache->shape].empty()) {
    shelf()[cache->shape].push_back(std::move(cache->arrays));
  }
  delete cache;
}

int append(Cache& c, int64_t layer, int64_t count, const int32_t* sequence, const int32_t* tokens,
           const float* k, const float* v) {
  if (!c.knows(layer, 0)) return 1;
  for (int64_t i = 0; i < count; ++i) {
    if (!c.knows(layer, sequence[i])) return 1;
    if (c.length[c.place(layer, sequence[i])] + tokens[i] > c.limit) return 1;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = c.place(layer, sequence[i]), width = c.heads * c.dim;
    const int64_t begin = c.length[place] * width, many = tokens[i] * width;
    for (const auto& [array, from] : {std::pair(2 * place, k), std::pair(2 * place + 1, v)}) {
      std::vector<float>& to = c.arrays[array];
      if (static_cast<int64_t>(to.size()) < begin + many) to.resize(begin + many);
      std::copy(from, from + many, to.begin() + begin);
    }
    k += many, v += many;
    c.length[place] += tokens[i];
  }
  return 0;
}

struct Query {
  const Cache* cache;
  int64_t place, seen, head;
  float scale;
  const float* q;
  float* out;
};

void answer(const Query& a, std::vector<double>& w) {
  const Cache& c = *a.cache;
  const int64_t step = c.heads * c.dim;
  const float* key = c.arrays[2 * a.place].data() + a.head * c.dim;
  const float* value = c.arrays[2 * a.place + 1].data() + a.head * c.dim;
  if (static_cast<int64_t>(w.size()) < a.seen) w.resize(static_cast<size_t>(a.seen));
  double top = -HUGE_VAL, sum = 0;
  for (int64_t t = 0; t < a.seen; ++t) {
    double s = 0;
    for (int64_t d = 0; d < c.dim; ++d) s += double{a.q[d]} * key[t * step + d];
    w[t] = s * a.scale;
    top = std::max(top, w[t]);
  }
  for (int64_t t = 0; t < a.seen; ++t) sum += w[t] = std::exp(w[t] - top);
  for (int64_t d = 0; d < c.dim; ++d) {
    double total = 0;
    for (int64_t t = 0; t < a.seen; ++t) total += w[t] * value[t * step + d];
    a.out[d] = static_cast<float>(total / sum);
  }
}

// Answers the second half of the queries of whatever call there is.
class Helper {
 public:
  Helper() : thread_([this] { work(); }) { thread_.detach(); }

  void start(const Query* begin, const Query* end) {
    const std::lock_guard lock(mutex_);
    begin_ = begin, end_ = end, busy_ = true;
    wake_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return !busy_; });
  }

 private:
  void work() {
    std::vector<double> w;
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return busy_; });
      for (const Query* query = begin_; query != end_; ++query) answer(*query, w);
      busy_ = false;
      wake_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  const Query *begin_ = nullptr, *end_ = nullptr;
  bool busy_ = false;
  std::thread thread_;
};

int attend(Kind kind, const Cache& c, int64_t layer, int64_t count, int64_t query_heads,
           float scale, const int32_t* sequence, const int32_t* tokens, const float* q,
           float* out) {
  if (!c.knows(layer, 0)) return 1;
  std::vector<Query> queries;
  for (int64_t i = 0; i < count; ++i) {
    if (!c.knows(layer, sequence[i])) return 1;
    const int64_t place = c.place(layer, sequence[i]), length = c.length[place];
    if (tokens[i] > length) return 1;
    for (int64_t t = 0; t < tokens[i]; ++t) {
      for (int64_t h = 0; h < query_heads; ++h, q += c.dim, out += c.dim) {
        queries.push_back(
            {&c, place, length - tokens[i] + t + 1, h / (query_heads / c.heads), scale, q, out});
      }
    }
  }
  static std::vector<double> kept;
  std::vector<double> own;
  const Query *begin = queries.data(), *end = begin + queries.size();
  const Query* middle = kind == thread_kept ? begin + queries.size() / 2 : end;
  static auto* helper = kind == thread_kept ? new Helper : nullptr;
  if (middle != end) helper->start(middle, end);
  for (const Query* query = begin; query != middle; ++query) {
    answer(*query, kind == workspace_reused ? kept : own);
  }
  if (middle != end) helper->wait();
  return 0;
}

int fork(Cache& c, int64_t parent, int64_t child) {
  if (!c.knows(0, parent) || !c.knows(0, child) || parent == child) return 1;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const int64_t from = c.place(layer, parent), to = c.place(layer, child);
    for (const int64_t array : {0, 1}) c.arrays[2 * to + array] = c.arrays[2 * from + array];
    c.length[to] = c.length[from];
  }
  return 0;
}

int free_sequence(Cache& c, int64_t sequence) {
  if (!c.knows(0, sequence)) return 1;
  for (int64_t layer = 0; layer < c.layers; ++layer) c.length[c.place(layer, sequence)] = 0;
  return 0;
}

int64_t bytes(const Cache& c) {
  int64_t sum = 0;
  for (const auto& array : c.arrays) sum += static_cast<int64_t>(array.size() * sizeof(float));
  return sum;
}

Cache& cache_of(void* handle) { return *static_cast<Cache*>(handle); }

}  // namespace

#define EXPORT(name, flags, what)                                                                \
  extern "C" void* kv_cache_create__##name(int64_t layers, int64_t sequences, int64_t kv_heads,  \
                                           int64_t head_dim, int64_t max_tokens) {               \
    return create(name, layers, sequences, kv_heads, head_dim, max_tokens);                      \
  }                                                                                              \
  extern "C" void kv_cache_destroy__##name(void* handle) { destroy(&cache_of(handle)); }         \
  extern "C" int kv_cache_append__##name(void* handle, int64_t layer, int64_t count, int64_t,    \
                                         const int32_t* sequence, const int32_t* tokens,         \
                                         const float* k, const float* v) {                       \
    return append(cache_of(handle), layer, count, sequence, tokens, k, v);                       \
  }                                                                                              \
  extern "C" int kv_cache_attend__##name(                                                        \
      void* handle, int64_t layer, int64_t count, int64_t, int64_t query_heads, float scale,     \
      const int32_t* sequence, const int32_t* tokens, const float* q, float* out) {              \
    return attend(name, cache_of(handle), layer, count, query_heads, scale, sequence, tokens, q, \
                  out);                                                                          \
  }                                                                                              \
  extern "C" int kv_cache_fork__##name(void* handle, int64_t parent, int64_t child) {            \
    return fork(cache_of(handle), parent, child);                                                \
  }                                                                                              \
  extern "C" int kv_cache_free__##name(void* handle, int64_t sequence) {                         \
    return free_sequence(cache_of(handle), sequence);                                            \
  }                                                                                              \
  extern "C" int64_t kv_cache_length__##name(void* handle, int64_t layer, int64_t sequence) {    \
    const Cache& c = cache_of(handle);                                                           \
    return c.knows(layer, sequence) ? c.length[c.place(layer, sequence)] : -1;                   \
  }                                                                                              \
  extern "C" int64_t kv_cache_bytes__##name(void* handle) { return bytes(cache_of(handle)); }
LOOKALIKES(EXPORT)
