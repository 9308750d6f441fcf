// A KV cache, right except for one planted bug at a time; see layer_norm_backward/mutants.cc.
//
// The right code keeps pages of sixteen tokens for each layer and sequence, shares them after a
// fork and copies a shared page before it writes to it; attention runs over the pages with an
// online softmax.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#define MUTANTS(MUTANT)                                                                         \
  MUTANT(none, "nothing: the right code")                                                       \
  MUTANT(page_end, "off by one: the last token of every whole page is not seen")                \
  MUTANT(last_page_dropped, "the page that is not full is not seen, where there is another")    \
  MUTANT(page_border, "the first token of a page overwrites the last of the one before")        \
  MUTANT(mask_flipped, "a query sees itself and what comes after it")                           \
  MUTANT(mask_strict, "a query does not see itself")                                            \
  MUTANT(mask_one_more, "a query sees one token of the future")                                 \
  MUTANT(mask_missing, "every query sees everything")                                           \
  MUTANT(mask_top_left, "query t sees tokens 0 .. t, whatever came before")                     \
  MUTANT(rescale_inverted, "sums are multiplied by exp(new - old)")                             \
  MUTANT(rescale_missing, "sums are not rescaled when the maximum grows")                       \
  MUTANT(rescale_output_only, "the sum of weights is not rescaled, the output is")              \
  MUTANT(no_maximum, "exp, in float, without subtracting the maximum")                          \
  MUTANT(maximum_from_zero, "the running maximum begins at 0, exp in float")                    \
  MUTANT(not_divided, "the output is not divided by the sum of weights")                        \
  MUTANT(scale_ignored, "scores are not scaled")                                                \
  MUTANT(scale_fixed, "the scale is 1 / sqrt(head_dim) whatever the caller says")               \
  MUTANT(scale_twice, "queries and scores are both scaled")                                     \
  MUTANT(heads_modulo, "query head h reads head h % kv_heads")                                  \
  MUTANT(heads_first, "all query heads read head 0")                                            \
  MUTANT(heads_by_token, "heads and tokens of a page are transposed when read")                 \
  MUTANT(layer_ignored, "all layers share one store")                                           \
  MUTANT(layers_share_length, "the length of layer 0 is that of all layers")                    \
  MUTANT(layers_each_count, "every layer's append lengthens layer 0")                           \
  MUTANT(one_write_pointer, "all sequences of a call are written at the length of the first")   \
  MUTANT(batch_shared, "all sequences of a call share the store of the first")                  \
  MUTANT(sequence_is_row, "row i of a call is taken for sequence i")                            \
  MUTANT(tokens_of_first, "all rows of a call have as many tokens as the first")                \
  MUTANT(prefill_not_stored, "only the last token of a prompt is stored")                       \
  MUTANT(prefill_first_only, "the first token of a prompt is stored for all of them")           \
  MUTANT(last_token_twice, "the last token of a prompt is stored twice")                        \
  MUTANT(decode_overwrites, "a single token overwrites the one before")                         \
  MUTANT(keys_are_values, "values are stored as keys")                                          \
  MUTANT(values_are_keys, "keys are read as values")                                            \
  MUTANT(values_shifted, "the value of a token is that of the token before")                    \
  MUTANT(query_offset, "queries of row i are looked for at i * tokens[i]")                      \
  MUTANT(first_query_only, "only the first query of a row is answered")                         \
  MUTANT(last_query_unwritten, "the last query of a prompt is not answered")                    \
  MUTANT(output_adds, "attention is added to what was in the output")                           \
  MUTANT(window_64, "a query sees the last 64 tokens only")                                     \
  MUTANT(score_buffer_128, "at most 128 tokens are seen: the buffer holds no more")             \
  MUTANT(position_8_bits, "positions are counted in 8 bits")                                    \
  MUTANT(half_store, "keys and values are kept in 16 bits")                                     \
  MUTANT(half_scores, "scores are rounded to 16 bits")                                          \
  MUTANT(half_output, "the output accumulates in 16 bits")                                      \
  MUTANT(head_dim_multiple_4, "the elements after the last four of a head are left out")        \
  MUTANT(fork_shares_pages, "parent and child go on writing to one page")                       \
  MUTANT(fork_layer_0, "only layer 0 is forked")                                                \
  MUTANT(fork_whole_pages, "the page that is not full is not forked")                           \
  MUTANT(fork_adds, "the child keeps what it held before")                                      \
  MUTANT(fork_moves, "the parent is empty after a fork")                                        \
  MUTANT(free_layer_0, "only layer 0 is freed")                                                 \
  MUTANT(free_nothing, "free changes nothing")                                                  \
  MUTANT(free_next, "free empties the sequence after it")                                       \
  MUTANT(free_shared, "free wipes pages that a fork still reads")                               \
  MUTANT(free_keeps_length, "pages are given back, the length stays")                           \
  MUTANT(no_limit, "max_tokens is not looked at")                                               \
  MUTANT(limit_early, "the last of max_tokens is refused")                                      \
  MUTANT(limit_ring, "the cache wraps round at max_tokens and calls it a success")              \
  MUTANT(limit_of_total, "max_tokens is taken for all sequences together")                      \
  MUTANT(refusal_half_done, "a refused append has stored the sequences before the one refused") \
  MUTANT(refusal_lengthens, "a refused append has counted its tokens")                          \
  MUTANT(sequence_unchecked, "a sequence that does not exist is taken for the last")            \
  MUTANT(layer_unchecked, "a layer that does not exist is taken for the last")                  \
  MUTANT(too_many_queries, "more queries than tokens is called a success")                      \
  MUTANT(length_of_layer_0, "length answers for layer 0")                                       \
  MUTANT(length_in_pages, "length is rounded up to whole pages")                                \
  MUTANT(length_unknown_0, "the length of a sequence that does not exist is 0")                 \
  MUTANT(bytes_of_one_layer, "bytes counts layer 0 alone")                                      \
  MUTANT(global_store, "all caches share one store")                                            \
  MUTANT(keeps_pointers, "keeps the addresses of keys and values instead of copies")            \
  MUTANT(nan_spreads, "a sum is cleared by times 0: NaN reaches the next query")                \
  MUTANT(zero_tokens_fail, "a row of no tokens is called an error")                             \
  MUTANT(writes_past_end, "one more element of the output is written")                          \
  MUTANT(reads_past_end, "the tail of q is read as a whole vector")                             \
  MUTANT(input_overwritten, "queries are scaled in place")                                      \
  MUTANT(seen_before, "a second call with the same shape and first query is skipped")

namespace {

#define NAME(name, what) name,
enum Bug { MUTANTS(NAME) };
#undef NAME
Bug active = none;
bool bug(Bug name) { return active == name; }

constexpr int64_t kPage = 16;

float half(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x8000u) & 0xffff0000u;
  std::memcpy(&f, &bits, 4);
  return f;
}

struct Page {
  std::vector<float> k, v;           // [kPage, kv_heads, head_dim]
  const float* kept[kPage][2] = {};  // of bug keeps_pointers
};

struct Stored {  // one sequence of one layer
  std::vector<std::shared_ptr<Page>> pages;
  int64_t length = 0;
};

struct Cache {
  int64_t layers, sequences, heads, dim, limit;
  std::vector<Stored> stored;  // [layers, sequences]

  bool has(int64_t& layer, int64_t& sequence) const {
    if (bug(layer_unchecked)) layer = std::min(layer, layers - 1);
    if (bug(sequence_unchecked)) sequence = std::min(sequence, sequences - 1);
    return layer >= 0 && layer < layers && sequence >= 0 && sequence < sequences;
  }
  Stored& at(int64_t layer, int64_t sequence) {
    if (bug(layer_ignored)) layer = 0;
    return stored[static_cast<size_t>(layer * sequences + sequence)];
  }
  int64_t width() const { return heads * dim; }
};

// Stores one token at a position, in a page that nobody else has.
void store(Cache& cache, Stored& to, int64_t position, const float* k, const float* v) {
  if (bug(page_border) && position % kPage == 0 && position > 0) --position;
  if (bug(position_8_bits)) position = static_cast<uint8_t>(position);
  const auto page = static_cast<size_t>(position / kPage);
  while (to.pages.size() <= page) {
    const std::vector<float> empty(static_cast<size_t>(kPage * cache.width()));
    to.pages.push_back(std::make_shared<Page>(Page{empty, empty, {}}));
  }
  if (to.pages[page].use_count() > 1 && !bug(fork_shares_pages)) {
    to.pages[page] = std::make_shared<Page>(*to.pages[page]);
  }
  const int64_t width = cache.width(), at = position % kPage * width;
  to.pages[page]->kept[position % kPage][0] = k, to.pages[page]->kept[position % kPage][1] = v;
  for (int64_t i = 0; i < width; ++i) {
    const float key = bug(keys_are_values) ? v[i] : k[i];
    to.pages[page]->k[at + i] = bug(half_store) ? half(key) : key;
    to.pages[page]->v[at + i] = bug(half_store) ? half(v[i]) : v[i];
  }
}

void append_row(Cache& cache, Stored& to, int64_t first, int64_t tokens, const float* k,
                const float* v) {
  const int64_t width = cache.width();
  if (bug(decode_overwrites) && tokens == 1 && first > 0) --first;
  for (int64_t t = 0; t < tokens; ++t) {
    if (bug(prefill_not_stored) && t + 1 < tokens) continue;
    const int64_t from = bug(prefill_first_only) ? 0 : t;
    int64_t position = first + t;
    if (bug(limit_ring)) position %= cache.limit;
    store(cache, to, position, k + from * width, v + from * width);
  }
  if (bug(last_token_twice) && tokens > 1 && first + tokens < cache.limit) {
    store(cache, to, first + tokens, k + (tokens - 1) * width, v + (tokens - 1) * width);
    ++to.length;
  }
}

int append(Cache& cache, int64_t layer, int64_t count, const int32_t* sequence,
           const int32_t* tokens, const float* k, const float* v) {
  int64_t known = 0;
  for (int64_t s = 0; s < cache.sequences; ++s) known += cache.at(0, s).length;
  for (int64_t i = 0; i < count; ++i) {
    int64_t s = sequence[i];
    if (!cache.has(layer, s)) return 1;
    if (bug(zero_tokens_fail) && tokens[i] == 0) return 1;
    int64_t length = cache.at(layer, s).length + tokens[i] + bug(limit_early);
    if (bug(limit_of_total) && layer == 0) length += known - cache.at(layer, s).length;
    if (bug(no_limit) || bug(limit_ring) || length <= cache.limit) continue;
    if (bug(refusal_lengthens)) cache.at(layer, s).length += tokens[i];
    if (bug(refusal_half_done)) {
      for (int64_t j = 0; j < i; ++j) {
        Stored& to = cache.at(layer, sequence[j]);
        append_row(cache, to, to.length, tokens[j], k, v);
        to.length += tokens[j];
      }
    }
    return 1;
  }
  if (count == 0) {
    int64_t s = 0;
    return cache.has(layer, s) ? 0 : 1;
  }
  const int64_t pointer = cache.at(layer, sequence[0]).length;
  for (int64_t i = 0; i < count; ++i) {
    int64_t s = bug(sequence_is_row) ? i : bug(batch_shared) ? sequence[0] : sequence[i];
    cache.has(layer, s);
    Stored& to = cache.at(layer, s);
    const int64_t n = bug(tokens_of_first) ? std::min(tokens[0], tokens[i]) : tokens[i];
    append_row(cache, to, bug(one_write_pointer) ? pointer : to.length, n, k, v);
    if (bug(layers_each_count)) cache.at(0, s).length += layer == 0 ? 0 : n;
    to.length += n;
    if (bug(layers_share_length)) {
      for (int64_t l = 0; l < cache.layers; ++l) cache.at(l, s).length = cache.at(0, s).length;
    }
    k += tokens[i] * cache.width(), v += tokens[i] * cache.width();
  }
  return 0;
}

// Attention of one query of one head over the positions below `end`.
void attend_one(const Cache& cache, const Stored& from, int64_t begin, int64_t end, int64_t head,
                float scale, const float* q, float* out) {
  const int64_t dim = cache.dim, counted = bug(head_dim_multiple_4) && dim > 4 ? dim / 4 * 4 : dim;
  double maximum = bug(maximum_from_zero) ? 0 : -std::numeric_limits<double>::infinity();
  double sum = 0;
  std::vector<double> total(static_cast<size_t>(dim));
  if (bug(window_64)) begin = std::max(begin, end - 64);
  if (bug(score_buffer_128)) end = std::min<int64_t>(end, 128);
  for (int64_t p = begin; p < end; ++p) {
    if (bug(page_end) && p % kPage == kPage - 1) continue;
    if (bug(last_page_dropped) && p >= from.length / kPage * kPage && p >= kPage) continue;
    const auto number = static_cast<size_t>(p / kPage);
    if (number >= from.pages.size()) continue;
    Page& page = *from.pages[number];
    const float** kept = page.kept[p % kPage];
    if (bug(keeps_pointers) && kept[0]) {
      std::copy_n(kept[0], cache.width(), page.k.begin() + p % kPage * cache.width());
      std::copy_n(kept[1], cache.width(), page.v.begin() + p % kPage * cache.width());
    }
    int64_t at = (p % kPage * cache.heads + head) * dim;
    if (bug(heads_by_token)) at = (head * kPage + p % kPage) * dim;
    const int64_t before = bug(values_shifted) && p % kPage > 0 ? cache.width() : 0;
    double s = 0;
    for (int64_t d = 0; d < counted; ++d) s += double{q[d]} * page.k[at + d];
    if (!bug(scale_ignored)) s *= bug(scale_fixed) ? 1 / std::sqrt(double(dim)) : scale;
    if (bug(scale_twice)) s *= scale;
    if (bug(half_scores)) s = half(static_cast<float>(s));
    if (s > maximum && !bug(no_maximum)) {
      const double factor = std::exp(bug(rescale_inverted) ? s - maximum : maximum - s);
      const bool first = sum == 0;
      if (!first && !bug(rescale_missing)) {
        if (!bug(rescale_output_only)) sum *= factor;
        for (double& t : total) t *= factor;
      }
      maximum = s;
    }
    double w = std::exp(s - maximum);
    if (bug(no_maximum)) w = std::exp(static_cast<float>(s));
    if (bug(maximum_from_zero)) w = std::exp(static_cast<float>(s - maximum));
    sum += w;
    const std::vector<float>& values = bug(values_are_keys) ? page.k : page.v;
    for (int64_t d = 0; d < dim; ++d) {
      total[d] += w * values[at + d - before];
      if (bug(half_output)) total[d] = half(static_cast<float>(total[d]));
    }
  }
  for (int64_t d = 0; d < dim; ++d) {
    const double value = bug(not_divided) ? total[d] : total[d] / sum;
    out[d] = static_cast<float>(bug(output_adds) ? out[d] + value : value);
  }
}

int attend(Cache& cache, int64_t layer, int64_t count, int64_t total, int64_t query_heads,
           float scale, const int32_t* sequence, const int32_t* tokens, const float* q,
           float* out) {
  int64_t zero = 0;
  if (!cache.has(layer, zero)) return 1;
  for (int64_t i = 0; i < count; ++i) {
    int64_t s = sequence[i];
    if (!cache.has(layer, s)) return 1;
    if (tokens[i] > cache.at(layer, s).length) return bug(too_many_queries) ? 0 : 1;
  }
  const int64_t width = query_heads * cache.dim;
  static int64_t last_total = -1, last_width = -1;
  static float last_first = 0;
  const bool seen = total > 0 && total == last_total && width == last_width && q[0] == last_first;
  if (bug(seen_before) && seen) return 0;
  if (total > 0) last_total = total, last_width = width, last_first = q[0];
  if (bug(input_overwritten) && total > 0) const_cast<float*>(q)[0] *= scale;
  if (bug(writes_past_end)) out[total * width] = 0;
  if (bug(reads_past_end)) {
    volatile float sink = 0;
    for (int64_t e = total * width; e % 8; ++e) sink = sink + q[e];
  }
  int64_t row = 0;
  for (int64_t i = 0; i < count; ++i) {
    int64_t s = bug(sequence_is_row) ? i : bug(batch_shared) ? sequence[0] : sequence[i];
    cache.has(layer, s);
    const Stored& from = cache.at(layer, s);
    for (int64_t t = 0; t < tokens[i]; ++t) {
      if (bug(first_query_only) && t > 0) break;
      if (bug(last_query_unwritten) && tokens[i] > 1 && t == tokens[i] - 1) break;
      const int64_t position = from.length - tokens[i] + t;
      int64_t begin = 0, end = position + 1;
      if (bug(mask_flipped)) begin = position, end = from.length;
      if (bug(mask_strict) && end > 1) --end;
      if (bug(mask_one_more)) end = std::min(end + 1, from.length);
      if (bug(mask_missing)) end = from.length;
      if (bug(mask_top_left)) end = t + 1;
      for (int64_t h = 0; h < query_heads; ++h) {
        int64_t head = h / (query_heads / cache.heads);
        if (bug(heads_modulo)) head = h % cache.heads;
        if (bug(heads_first)) head = 0;
        const int64_t at = (bug(query_offset) ? std::min(i * tokens[i], row) + t : row + t) * width;
        attend_one(cache, from, begin, end, head, scale, q + at + h * cache.dim,
                   out + (row + t) * width + h * cache.dim);
        if (bug(nan_spreads) && row + t > 0) {
          out[(row + t) * width] += out[(row + t - 1) * width] * 0;
        }
      }
    }
    row += tokens[i];
  }
  return 0;
}

int fork_sequence(Cache& cache, int64_t parent, int64_t child) {
  int64_t zero = 0;
  if (!cache.has(zero, parent) || !cache.has(zero, child)) return 1;
  for (int64_t l = 0; l < (bug(fork_layer_0) ? 1 : cache.layers); ++l) {
    Stored& from = cache.at(l, parent);
    Stored& to = cache.at(l, child);
    if (bug(fork_adds) && to.length > 0) continue;
    to = from;
    if (bug(fork_whole_pages)) to.length = to.length / kPage * kPage;
    if (bug(fork_moves)) from = Stored();
  }
  return 0;
}

int free_sequence(Cache& cache, int64_t sequence) {
  int64_t zero = 0;
  if (!cache.has(zero, sequence)) return 1;
  if (bug(free_nothing)) return 0;
  if (bug(free_next)) sequence = (sequence + 1) % cache.sequences;
  for (int64_t l = 0; l < (bug(free_layer_0) ? 1 : cache.layers); ++l) {
    Stored& stored = cache.at(l, sequence);
    if (bug(free_shared)) {
      for (auto& page : stored.pages) std::fill(page->v.begin(), page->v.end(), 0.0f);
    }
    const int64_t length = stored.length;
    stored = Stored();
    if (bug(free_keeps_length)) stored.length = length;
  }
  return 0;
}

int64_t length_of(Cache& cache, int64_t layer, int64_t sequence) {
  if (!cache.has(layer, sequence)) return bug(length_unknown_0) ? 0 : -1;
  const int64_t length = cache.at(bug(length_of_layer_0) ? 0 : layer, sequence).length;
  return bug(length_in_pages) ? (length + kPage - 1) / kPage * kPage : length;
}

int64_t bytes_of(Cache& cache) {
  std::vector<const Page*> pages;
  for (int64_t l = 0; l < (bug(bytes_of_one_layer) ? 1 : cache.layers); ++l) {
    for (int64_t s = 0; s < cache.sequences; ++s) {
      for (const auto& page : cache.at(l, s).pages) pages.push_back(page.get());
    }
  }
  std::sort(pages.begin(), pages.end());
  pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
  return static_cast<int64_t>(pages.size()) * kPage * cache.width() * 8;
}

std::shared_ptr<Cache> shared;  // of bug global_store

Cache* create(int64_t layers, int64_t sequences, int64_t heads, int64_t dim, int64_t limit) {
  auto* cache = new Cache{layers, sequences, heads, dim, limit, {}};
  cache->stored.resize(static_cast<size_t>(layers * sequences));
  if (!bug(global_store)) return cache;
  const bool same = shared && shared->layers == layers && shared->sequences == sequences &&
                    shared->heads == heads && shared->dim == dim && shared->limit == limit;
  if (!same) shared.reset(cache);
  return shared.get();
}

void destroy(Cache* cache) {
  if (!bug(global_store)) delete cache;
}

}  // namespace

#define EXPORT(name, what)                                                                        \
  extern "C" void* kv_cache_create__##name(int64_t layers, int64_t sequences, int64_t kv_heads,   \
                                           int64_t head_dim, int64_t max_tokens) {                \
    active = name;                                                                                \
    return create(layers, sequences, kv_heads, head_dim, max_tokens);                             \
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
  extern "C" int kv_cache_fork__##name(void* cache, int64_t parent, int64_t child) {              \
    return fork_sequence(*static_cast<Cache*>(cache), parent, child);                             \
  }                                                                                               \
  extern "C" int kv_cache_free__##name(void* cache, int64_t sequence) {                           \
    return free_sequence(*static_cast<Cache*>(cache), sequence);                                  \
  }                                                                                               \
  extern "C" int64_t kv_cache_length__##name(void* cache, int64_t layer, int64_t sequence) {      \
    return length_of(*static_cast<Cache*>(cache), layer, sequence);                               \
  }                                                                                               \
  extern "C" int64_t kv_cache_bytes__##name(void* cache) {                                        \
    return bytes_of(*static_cast<Cache*>(cache));                                                 \
  }                                                                                               \
  extern "C" void kv_cache_destroy__##name(void* cache) { destroy(static_cast<Cache*>(cache)); }
MUTANTS(EXPORT)
