// Honest attention that does what cheats do, for good reasons; see softmax_topk.cc.
#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#define LOOKALIKES(LOOKALIKE)                                                               \
  LOOKALIKE(workspace_reused, "", "scratch memory is kept between calls and never cleared") \
  LOOKALIKE(shape_cache, "", "keeps its tiles for each shape it has seen")                  \
  LOOKALIKE(thread_kept, "", "a thread waits between calls for the next one")               \
  LOOKALIKE(skips_masked_tiles, "", "does half the work where a mask allows it")            \
  LOOKALIKE(output_as_scratch, "", "accumulates in the output array")

namespace {

#define NAME(name, flags, what) name,
enum Kind { LOOKALIKES(NAME) };
#undef NAME

struct Problem {
  int64_t batch, query_heads, kv_heads, queries, keys, dim;
  bool causal;
  float scale;
  const float *q, *k, *v;
  float *out, *lse;
};

// One row over the keys that it sees, tile by tile, with the scores in `s`.
void one_row(const Problem& p, int64_t row, int64_t tile, std::vector<double>& s) {
  const int64_t n = row / p.queries, i = row % p.queries;
  const int64_t kv =
      n / p.query_heads * p.kv_heads + n % p.query_heads / (p.query_heads / p.kv_heads);
  const int64_t seen =
      p.causal ? std::clamp<int64_t>(i + p.keys - p.queries + 1, 0, p.keys) : p.keys;
  if (static_cast<int64_t>(s.size()) < seen) s.resize(static_cast<size_t>(seen));
  double top = -HUGE_VAL, sum = 0;
  for (int64_t t0 = 0; t0 < seen; t0 += tile) {
    for (int64_t t = t0; t < std::min(t0 + tile, seen); ++t) {
      s[t] = 0;
      for (int64_t d = 0; d < p.dim; ++d) {
        s[t] += double{p.q[row * p.dim + d]} * p.k[(kv * p.keys + t) * p.dim + d];
      }
      s[t] *= p.scale;
      top = std::max(top, s[t]);
    }
  }
  float* out = p.out + row * p.dim;
  std::fill(out, out + p.dim, 0.0f);
  for (int64_t t = 0; t < seen; ++t) sum += s[t] = std::exp(s[t] - top);
  for (int64_t t = 0; t < seen; ++t) {
    const auto w = static_cast<float>(s[t] / sum);
    for (int64_t d = 0; d < p.dim; ++d) out[d] += w * p.v[(kv * p.keys + t) * p.dim + d];
  }
  p.lse[row] = seen ? static_cast<float>(top + std::log(sum)) : -HUGE_VALF;
}

void rows_of(const Problem& p, int64_t begin, int64_t end, int64_t tile, std::vector<double>& s) {
  for (int64_t row = begin; row < end; ++row) one_row(p, row, tile, s);
}

// Does the second half of the rows of whatever call there is.
class Helper {
 public:
  Helper() : thread_([this] { work(); }) { thread_.detach(); }

  void start(const Problem& p, int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex_);
    problem_ = p, begin_ = begin, end_ = end, busy_ = true;
    wake_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return !busy_; });
  }

 private:
  void work() {
    std::vector<double> s;
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return busy_; });
      rows_of(problem_, begin_, end_, 64, s);
      busy_ = false;
      wake_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  Problem problem_{};
  int64_t begin_ = 0, end_ = 0;
  bool busy_ = false;
  std::thread thread_;
};

int run(Kind kind, const Problem& p) {
  if (p.kv_heads < 1 || p.query_heads % p.kv_heads || p.dim < 1) return 1;
  const int64_t rows = p.batch * p.query_heads * p.queries;
  if (kind == workspace_reused) {
    static std::vector<double> scratch;
    rows_of(p, 0, rows, 64, scratch);
  } else if (kind == shape_cache) {
    static std::map<std::tuple<int64_t, int64_t, int64_t>, int64_t> tiles;
    int64_t& tile = tiles[{p.queries, p.keys, p.dim}];
    if (tile == 0) tile = std::max<int64_t>(1, 4096 / p.dim);
    std::vector<double> s;
    rows_of(p, 0, rows, tile, s);
  } else if (kind == thread_kept && rows > 1) {
    static auto* helper = new Helper;
    helper->start(p, rows / 2, rows);
    std::vector<double> s;
    rows_of(p, 0, rows / 2, 64, s);
    helper->wait();
  } else {
    std::vector<double> s;
    rows_of(p, 0, rows, kind == skips_masked_tiles ? 16 : 64, s);
  }
  return 0;
}

}  // namespace

#define EXPORT(name, flags, what)                                                                 \
  extern "C" int flash_attention_forward__##name(                                                 \
      int64_t batch, int64_t query_heads, int64_t kv_heads, int64_t queries, int64_t keys,        \
      int64_t dim, int64_t causal, float scale, const float* q, const float* k, const float* v,   \
      float* out, float* lse) {                                                                   \
    return run(name, {batch, query_heads, kv_heads, queries, keys, dim, causal != 0, scale, q, k, \
                      v, out, lse});                                                              \
  }
LOOKALIKES(EXPORT)
