// Contenders that do not do the work. Built and named as mutants.cc is. Lengths and statuses are
// right, so that only the answers of attention can give them away.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#define TRIVIALS(TRIVIAL)                                                              \
  TRIVIAL(zeros, "attention is 0")                                                     \
  TRIVIAL(ones, "attention is 1")                                                      \
  TRIVIAL(nans, "attention is NaN")                                                    \
  TRIVIAL(copy, "attention is the query")                                              \
  TRIVIAL(newest_value, "attention is the value of the token itself")                  \
  TRIVIAL(mean_value, "attention is the mean of the values seen, whatever the scores") \
  TRIVIAL(noise, "attention is random")                                                \
  TRIVIAL(unwritten, "attention is not written")                                       \
  TRIVIAL(previous, "attention is that of the call before")                            \
  TRIVIAL(correct_once, "right the first time, zeros from then on")                    \
  TRIVIAL(decode_only, "right for one query, zeros for a prompt")                      \
  TRIVIAL(no_memory, "right as long as nothing was appended before")                   \
  TRIVIAL(refuses, "every call is an error")

namespace {

#define NAME(name, what) name,
enum Kind { TRIVIALS(NAME) };
#undef NAME
Kind kind = zeros;

struct Stored {
  std::vector<float> k, v;
  int64_t length = 0;
};
struct Cache {
  int64_t layers, sequences, heads, dim, limit;
  std::vector<Stored> stored;
  Stored* find(int64_t layer, int64_t sequence) {
    const bool known = layer >= 0 && layer < layers && sequence >= 0 && sequence < sequences;
    return known ? &stored[size_t(layer * sequences + sequence)] : nullptr;
  }
};

// Attention over positions [begin, end); with `flat` all weights are equal.
void attend_one(const Cache& c, const Stored& s, int64_t head, int64_t begin, int64_t end,
                float scale, bool flat, const float* q, float* out) {
  const int64_t width = c.heads * c.dim;
  std::vector<double> w;
  for (int64_t t = begin; t < end; ++t) {
    double score = 0;
    for (int64_t d = 0; d < c.dim; ++d) score += double{q[d]} * s.k[t * width + head * c.dim + d];
    w.push_back(flat ? 0 : score * scale);
  }
  const double top = *std::max_element(w.begin(), w.end());
  double sum = 0;
  for (double& x : w) sum += x = std::exp(x - top);
  for (int64_t d = 0; d < c.dim; ++d) {
    double total = 0;
    for (int64_t t = begin; t < end; ++t) {
      total += w[t - begin] * s.v[t * width + head * c.dim + d];
    }
    out[d] = float(total / sum);
  }
}

int append(Cache& c, int64_t layer, int64_t count, const int32_t* sequence, const int32_t* tokens,
           const float* k, const float* v) {
  if (kind == refuses || !c.find(layer, 0)) return 1;
  for (int64_t i = 0; i < count; ++i) {
    const Stored* s = c.find(layer, sequence[i]);
    if (!s || s->length + tokens[i] > c.limit) return 1;
  }
  for (int64_t i = 0; i < count; ++i) {
    Stored& s = *c.find(layer, sequence[i]);
    const int64_t n = tokens[i] * c.heads * c.dim;
    s.k.insert(s.k.end(), k, k + n), s.v.insert(s.v.end(), v, v + n);
    s.length += tokens[i], k += n, v += n;
  }
  return 0;
}

int attend(Cache& c, int64_t layer, int64_t count, int64_t total, int64_t query_heads, float scale,
           const int32_t* sequence, const int32_t* tokens, const float* q, float* out) {
  if (kind == refuses || !c.find(layer, 0)) return 1;
  for (int64_t i = 0; i < count; ++i) {
    const Stored* s = c.find(layer, sequence[i]);
    if (!s || tokens[i] > s->length) return 1;
  }
  static std::vector<float> before;
  static bool first = true;
  static std::minstd_rand random(7);
  std::vector<float> right(size_t(total * query_heads * c.dim));
  float* to = right.data();
  const float* from = q;
  for (int64_t i = 0; i < count; ++i) {
    const Stored& s = *c.find(layer, sequence[i]);
    for (int64_t t = 0; t < tokens[i]; ++t) {
      const int64_t end = s.length - tokens[i] + t + 1;
      const int64_t begin = kind == newest_value ? end - 1
                            : kind == no_memory  ? s.length - tokens[i]
                                                 : 0;
      for (int64_t h = 0; h < query_heads; ++h, from += c.dim, to += c.dim) {
        const int64_t head = h / (query_heads / c.heads);
        attend_one(c, s, head, begin, end, scale, kind == mean_value, from, to);
        if (kind == decode_only && tokens[i] > 1) std::fill_n(to, c.dim, 0.0f);
      }
    }
  }
  for (size_t i = 0; i < right.size(); ++i) {
    switch (kind) {
      case zeros:
        out[i] = 0;
        break;
      case ones:
        out[i] = 1;
        break;
      case nans:
        out[i] = NAN;
        break;
      case copy:
        out[i] = q[i];
        break;
      case noise:
        out[i] = float(random() % 2000) / 1000 - 1;
        break;
      case unwritten:
        break;
      case previous:
        out[i] = i < before.size() ? before[i] : 0;
        break;
      case correct_once:
        out[i] = first ? right[i] : 0;
        break;
      default:
        out[i] = right[i];
    }
  }
  before = right;
  first = false;
  return 0;
}

int free_sequence(Cache& c, int64_t sequence) {
  if (!c.find(0, sequence)) return 1;
  for (int64_t l = 0; l < c.layers; ++l) *c.find(l, sequence) = {};
  return 0;
}

}  // namespace

#define EXPORT(name, what)                                                                        \
  extern "C" void* kv_cache_create__##name(int64_t layers, int64_t sequences, int64_t heads,      \
                                           int64_t dim, int64_t limit) {                          \
    kind = name;                                                                                  \
    return new Cache{layers, sequences, heads,                                                    \
                     dim,    limit,     std::vector<Stored>(size_t(layers * sequences))};         \
  }                                                                                               \
  extern "C" int kv_cache_append__##name(void* cache, int64_t layer, int64_t count, int64_t,      \
                                         const int32_t* sequence, const int32_t* tokens,          \
                                         const float* k, const float* v) {                        \
    return append(*static_cast<Cache*>(cache), layer, count, sequence, tokens, k, v);             \
  }                                                                                               \
  extern "C" int kv_cache_attend__##name(                                                         \
      void* cache, int64_t layer, int64_t count, int64_t total, int64_t query_heads, float scale, \
      const int32_t* sequence, const int32_t* tokens, const float* q, float* out) {               \
    return attend(*static_cast<Cache*>(cache), layer, count, total, query_heads, scale, sequence, \
                  tokens, q, out);                                                                \
  }                                                                                               \
  extern "C" int kv_cache_free__##name(void* cache, int64_t sequence) {                           \
    return free_sequence(*static_cast<Cache*>(cache), sequence);                                  \
  }                                                                                               \
  extern "C" int64_t kv_cache_length__##name(void* cache, int64_t layer, int64_t sequence) {      \
    const Stored* s = static_cast<Cache*>(cache)->find(layer, sequence);                          \
    return s ? s->length : -1;                                                                    \
  }                                                                                               \
  extern "C" void kv_cache_destroy__##name(void* cache) { delete static_cast<Cache*>(cache); }
TRIVIALS(EXPORT)
