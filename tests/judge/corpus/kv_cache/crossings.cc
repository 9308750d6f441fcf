// A cache in pages of 16 tokens, shared after a fork and copied when written. Faults in counters of few
// bits, where two sizes meet and at borders of pages.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#define MUTANTS(MUTANT)                                                                          \
  MUTANT(layers_7_bits, "layers are counted in 7 bits")                                          \
  MUTANT(layers_11, "of 11, 22, 33 layers the last one has the keys of the first")               \
  MUTANT(sequences_8_bits, "sequences are counted in 8 bits")                                    \
  MUTANT(sequences_13, "of 13, 26, 39 sequences the last is asked about a token too early")      \
  MUTANT(heads_8_bits, "key-value heads are counted in 8 bits")                                  \
  MUTANT(heads_5, "of 5, 10, 15 key-value heads the last one has no value")                      \
  MUTANT(heads_23, "of 23, 46, 69 key-value heads the last one has no value")                    \
  MUTANT(query_heads_9_bits, "query heads are counted in 9 bits")                                \
  MUTANT(group_16_several, "of groups above 16 of several heads the rest reads the next head")   \
  MUTANT(group_64_several, "of groups above 64 of several heads the rest reads the next head")   \
  MUTANT(group_19, "groups of 19 are taken for groups of 20")                                    \
  MUTANT(group_tail, "grouped heads of 8 n + 5 numbers leave the last out of scores")            \
  MUTANT(dim_256, "scores are made of 256 numbers")                                              \
  MUTANT(dim_512, "values have 512 numbers")                                                     \
  MUTANT(frees_8_bits, "large", "the frees of a cache are counted in 8 bits")                    \
  MUTANT(tokens_12_bits, "large", "tokens from 4096 on are not seen")                            \
  MUTANT(tokens_16_bits, "large", "positions are kept in 16 bits")                               \
  MUTANT(attends_9_bits, "large", "the 512th attend does not see the first token")               \
  MUTANT(maximum_1e4, "the running maximum begins at -1e4")                                      \
  MUTANT(maximum_1e5, "the running maximum begins at -1e5")                                      \
  MUTANT(maximum_1e9, "the running maximum begins at -1e9")                                      \
  MUTANT(maximum_1e29, "the running maximum begins at -1e29")                                    \
  MUTANT(references_8_bits, "large", "the sequences of a page are counted in 8 bits")            \
  MUTANT(fork_at_border, "a fork at the border of a page lacks the last token")                  \
  MUTANT(fork_at_border_64, "a fork behind whole 64 tokens lacks the last token")                \
  MUTANT(append_over_page, "an append from inside a page over a whole one loses what is behind") \
  MUTANT(chunk_over_64, "more than 64 queries behind other tokens see as far as the first 64")   \
  MUTANT(chunk_over_32, "more than 32 queries behind other tokens: the last sees one less")

namespace {

#define NAME(name, ...) name,
enum Bug { MUTANTS(NAME) };
#undef NAME
Bug active;
bool bug(Bug name) { return active == name; }

constexpr int64_t kPage = 16;

struct Page {
  std::vector<float> k, v;  // [kPage, heads, dim]
  int64_t users = 1;
};
struct Sequence {
  std::vector<Page*> pages;
  int64_t length = 0;
};
struct Cache {
  int64_t layers, sequences, heads, dim, limit;
  std::vector<Sequence> all;  // [layers, sequences]
  int64_t frees = 0, attends = 0;

  bool has(int64_t layer, int64_t sequence) const {
    return layer >= 0 && layer < layers && sequence >= 0 && sequence < sequences;
  }
  Sequence& at(int64_t layer, int64_t sequence) {
    if (bug(layers_7_bits)) layer &= 127;
    if (bug(sequences_8_bits)) sequence &= 255;
    return all[static_cast<size_t>(layer * sequences + sequence)];
  }
  int64_t width() const { return heads * dim; }
};

void release(Sequence& s) {
  for (Page* page : s.pages) {
    if (--page->users == 0) delete page;
  }
  s.pages.clear();
  s.length = 0;
}

// The page that a token is written to, a copy where others read it.
Page& page_for(const Cache& cache, Sequence& s, int64_t token) {
  const auto number = static_cast<size_t>(token / kPage);
  const auto numbers = static_cast<size_t>(kPage * cache.width());
  if (number == s.pages.size()) {
    s.pages.push_back(new Page{std::vector<float>(numbers), std::vector<float>(numbers)});
  }
  Page*& page = s.pages[number];
  const int64_t users = bug(references_8_bits) ? page->users & 0xff : page->users;
  if (users > 1) {
    --page->users;
    page = new Page{page->k, page->v};
  }
  return *page;
}

int append(Cache& cache, int64_t layer, int64_t count, const int32_t* sequence,
           const int32_t* tokens, const float* k, const float* v) {
  if (!cache.has(layer, 0)) return 1;
  for (int64_t i = 0; i < count; ++i) {
    if (!cache.has(layer, sequence[i]) || tokens[i] < 0) return 1;
    if (cache.at(layer, sequence[i]).length + tokens[i] > cache.limit) return 1;
  }
  const int64_t width = cache.width();
  for (int64_t i = 0; i < count; ++i) {
    Sequence& s = cache.at(layer, sequence[i]);
    const int64_t begin = s.length;
    for (int64_t t = 0; t < tokens[i]; ++t, k += width, v += width) {
      Page& page = page_for(cache, s, s.length);
      float* const to_k = page.k.data() + s.length % kPage * width;
      float* const to_v = page.v.data() + s.length % kPage * width;
      std::copy_n(k, width, to_k), std::copy_n(v, width, to_v);
      if (bug(layers_11) && cache.layers % 11 == 0 && layer == cache.layers - 1) {
        const Sequence& first = cache.at(0, sequence[i]);
        if (first.length > s.length) {
          const Page& page_0 = *first.pages[static_cast<size_t>(s.length / kPage)];
          std::copy_n(page_0.k.data() + s.length % kPage * width, width, to_k);
        }
      }
      if (bug(append_over_page) && begin % kPage != 0 && s.length / kPage > begin / kPage + 1) {
        std::fill_n(to_v, width, 0.0f);
      }
      ++s.length;
    }
  }
  return 0;
}

// Attention of one query head over the first `end` tokens.
void attend_one(const Cache& cache, const Sequence& s, int64_t end, int64_t head, double scale,
                const float* q, float* out, bool grouped) {
  double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
  if (bug(maximum_1e4)) maximum = -1e4;
  if (bug(maximum_1e5)) maximum = -1e5;
  if (bug(maximum_1e9)) maximum = -1e9;
  if (bug(maximum_1e29)) maximum = -1e29;
  std::vector<double> total(static_cast<size_t>(cache.dim));
  int64_t used = cache.dim;
  if (bug(dim_256)) used = std::min<int64_t>(used, 256);
  if (bug(group_tail) && grouped && cache.dim % 8 == 5) --used;
  if (bug(tokens_12_bits)) end = std::min<int64_t>(end, 4096);
  const int64_t begin = (bug(attends_9_bits) && cache.attends % 512 == 0 && end > 1) ? 1 : 0;
  for (int64_t t = begin; t < end; ++t) {
    const Page& page = *s.pages[static_cast<size_t>(t / kPage)];
    const int64_t at = (t % kPage * cache.heads + head) * cache.dim;
    double score = 0;
    for (int64_t d = 0; d < used; ++d) {
      score += static_cast<double>(q[d]) * page.k[static_cast<size_t>(at + d)];
    }
    score *= scale;
    if (score > maximum) {
      const double factor = sum == 0 ? 0 : std::exp(maximum - score);
      sum *= factor;
      for (double& x : total) x *= factor;
      maximum = score;
    }
    const double w = std::exp(score - maximum);
    sum += w;
    for (int64_t d = 0; d < cache.dim; ++d) {
      if (bug(dim_512) && d >= 512) break;
      total[static_cast<size_t>(d)] += w * page.v[static_cast<size_t>(at + d)];
    }
  }
  for (int64_t d = 0; d < cache.dim; ++d) {
    out[d] = static_cast<float>(total[static_cast<size_t>(d)] / sum);
  }
  if (bug(heads_5) && cache.heads % 5 == 0 && head == cache.heads - 1)
    std::fill_n(out, cache.dim, 0.0f);
  if (bug(heads_23) && cache.heads % 23 == 0 && head == cache.heads - 1) {
    std::fill_n(out, cache.dim, 0.0f);
  }
}

int64_t head_of(const Cache& cache, int64_t h, int64_t group) {
  int64_t head = h / group;
  const bool several = cache.heads > 1;
  if (bug(group_19) && group == 19) head = h / 20;
  if (bug(group_16_several) && several && group > 16 && h % group >= 16) ++head;
  if (bug(group_64_several) && several && group > 64 && h % group >= 64) ++head;
  if (bug(heads_8_bits)) head &= 255;
  return head % cache.heads;
}

int attend(Cache& cache, int64_t layer, int64_t count, int64_t query_heads, float scale,
           const int32_t* sequence, const int32_t* tokens, const float* q, float* out) {
  if (!cache.has(layer, 0) || query_heads % cache.heads != 0) return 1;
  for (int64_t i = 0; i < count; ++i) {
    if (!cache.has(layer, sequence[i]) || tokens[i] < 0) return 1;
    if (tokens[i] > cache.at(layer, sequence[i]).length) return 1;
  }
  ++cache.attends;
  const int64_t group = query_heads / cache.heads;
  for (int64_t i = 0; i < count; ++i) {
    const Sequence& s = cache.at(layer, sequence[i]);
    const int64_t before = s.length - tokens[i];
    for (int64_t t = 0; t < tokens[i]; ++t) {
      int64_t end = before + t + 1;
      if (bug(tokens_16_bits) && end > 1 << 16) end &= 0xffff;
      if (bug(chunk_over_64) && before > 0 && t >= 64) end = before + t % 64 + 1;
      if (bug(chunk_over_32) && before > 0 && t >= 32 && t == tokens[i] - 1) --end;
      const bool last = bug(sequences_13) && cache.sequences % 13 == 0 && i > 0;
      if (last && sequence[i] == cache.sequences - 1 && end > 1) --end;
      for (int64_t h = 0; h < query_heads; ++h, q += cache.dim, out += cache.dim) {
        const float* const query = bug(query_heads_9_bits) && h >= 512 ? q - 512 * cache.dim : q;
        attend_one(cache, s, end, head_of(cache, h, group), scale, query, out, group > 1);
      }
    }
  }
  return 0;
}

int fork_sequence(Cache& cache, int64_t parent, int64_t child) {
  if (!cache.has(0, parent) || !cache.has(0, child) || parent == child) return 1;
  for (int64_t l = 0; l < cache.layers; ++l) {
    const Sequence& from = cache.at(l, parent);
    Sequence& to = cache.at(l, child);
    release(to);
    to = from;
    for (Page* page : to.pages) ++page->users;
    const int64_t length = to.length;
    if (length == 0) continue;
    const bool lost = (bug(fork_at_border) && length % kPage == 0) ||
                      (bug(fork_at_border_64) && length % 64 == 0);
    if (!lost) continue;
    Page& page = page_for(cache, to, length - 1);
    std::fill_n(page.v.data() + (length - 1) % kPage * cache.width(), cache.width(), 0.0f);
  }
  return 0;
}

int free_sequence(Cache& cache, int64_t sequence) {
  if (!cache.has(0, sequence)) return 1;
  if (++cache.frees % 256 == 0 && bug(frees_8_bits)) return 0;
  for (int64_t l = 0; l < cache.layers; ++l) release(cache.at(l, sequence));
  return 0;
}

Cache* create(int64_t layers, int64_t sequences, int64_t heads, int64_t dim, int64_t limit) {
  auto* cache = new Cache{layers, sequences, heads, dim, limit, {}};
  cache->all.resize(static_cast<size_t>(layers * sequences));
  return cache;
}

int64_t bytes_of(const Cache& cache) {
  int64_t pages = 0;
  for (const Sequence& s : cache.all) pages += static_cast<int64_t>(s.pages.size());
  return pages * kPage * cache.width() * 8;
}

void destroy(Cache* cache) {
  for (Sequence& s : cache->all) release(s);
  delete cache;
}

}  // namespace

#define EXPORT(name, ...)                                                                          \
  extern "C" void* kv_cache_create__##name(int64_t layers, int64_t sequences, int64_t kv_heads,    \
                                           int64_t head_dim, int64_t max_tokens) {                 \
    active = name;                                                                                 \
    return create(layers, sequences, kv_heads, head_dim, max_tokens);                              \
  }                                                                                                \
  extern "C" int kv_cache_append__##name(void* cache, int64_t layer, int64_t count, int64_t,       \
                                         const int32_t* sequence, const int32_t* tokens,           \
                                         const float* k, const float* v) {                         \
    return append(*static_cast<Cache*>(cache), layer, count, sequence, tokens, k, v);              \
  }                                                                                                \
  extern "C" int kv_cache_attend__##name(                                                          \
      void* cache, int64_t layer, int64_t count, int64_t, int64_t query_heads, float scale,        \
      const int32_t* sequence, const int32_t* tokens, const float* q, float* out) {                \
    return attend(*static_cast<Cache*>(cache), layer, count, query_heads, scale, sequence, tokens, \
                  q, out);                                                                         \
  }                                                                                                \
  extern "C" int kv_cache_fork__##name(void* cache, int64_t parent, int64_t child) {               \
    return fork_sequence(*static_cast<Cache*>(cache), parent, child);                              \
  }                                                                                                \
  extern "C" int kv_cache_free__##name(void* cache, int64_t sequence) {                            \
    return free_sequence(*static_cast<Cache*>(cache), sequence);                                   \
  }                                                                                                \
  extern "C" int64_t kv_cache_length__##name(void* cache, int64_t layer, int64_t sequence) {       \
    Cache& c = *static_cast<Cache*>(cache);                                                        \
    return c.has(layer, sequence) ? c.at(layer, sequence).length : -1;                             \
  }                                                                                                \
  extern "C" int64_t kv_cache_bytes__##name(void* cache) {                                         \
    return bytes_of(*static_cast<const Cache*>(cache));                                            \
  }                                                                                                \
  extern "C" void kv_cache_destroy__##name(void* cache) { destroy(static_cast<Cache*>(cache)); }
MUTANTS(EXPORT)
