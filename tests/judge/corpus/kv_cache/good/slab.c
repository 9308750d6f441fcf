// One slab for everything, as large as the cache can grow, in C; scores of a query in a buffer, two
// passes over them.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  int64_t layers, sequences, heads, dim, limit;
  float *k, *v;     // [layers, sequences, limit, heads, dim]
  int64_t* length;  // [layers, sequences]
  double* scores;   // [limit]
} Cache;

static int known(const Cache* c, int64_t layer, int64_t sequence) {
  return layer >= 0 && layer < c->layers && sequence >= 0 && sequence < c->sequences;
}

static int64_t place(const Cache* c, int64_t layer, int64_t sequence) {
  return (layer * c->sequences + sequence) * c->limit * c->heads * c->dim;
}

void kv_cache_destroy(void* cache) {
  Cache* c = cache;
  if (!c) return;
  free(c->k);
  free(c->v);
  free(c->length);
  free(c->scores);
  free(c);
}

void* kv_cache_create(int64_t layers, int64_t sequences, int64_t kv_heads, int64_t head_dim,
                      int64_t max_tokens) {
  Cache* c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->layers = layers, c->sequences = sequences, c->heads = kv_heads, c->dim = head_dim;
  c->limit = max_tokens;
  const size_t slots = (size_t)(layers * sequences);
  const size_t numbers = slots * (size_t)(max_tokens * kv_heads * head_dim);
  c->k = malloc(numbers * sizeof(float));
  c->v = malloc(numbers * sizeof(float));
  c->length = calloc(slots, sizeof(int64_t));
  c->scores = malloc((size_t)max_tokens * sizeof(double));
  if (c->k && c->v && c->length && c->scores) return c;
  kv_cache_destroy(c);
  return NULL;
}

int kv_cache_append(void* cache, int64_t layer, int64_t count, int64_t total_tokens,
                    const int32_t* sequence, const int32_t* tokens, const float* k,
                    const float* v) {
  Cache* c = cache;
  (void)total_tokens;
  if (!known(c, layer, 0)) return 1;
  int64_t* length = c->length + layer * c->sequences;
  for (int64_t i = 0; i < count; ++i) {
    if (!known(c, layer, sequence[i])) return 2;
    if (length[sequence[i]] + tokens[i] > c->limit) return 3;
  }
  const int64_t width = c->heads * c->dim;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = place(c, layer, sequence[i]) + length[sequence[i]] * width;
    const size_t bytes = (size_t)(tokens[i] * width) * sizeof(float);
    memcpy(c->k + at, k, bytes);
    memcpy(c->v + at, v, bytes);
    length[sequence[i]] += tokens[i];
    k += tokens[i] * width;
    v += tokens[i] * width;
  }
  return 0;
}

static void attend_one(const Cache* c, const float* k, const float* v, int64_t seen, float scale,
                       const float* q, float* out) {
  const int64_t width = c->heads * c->dim;
  double top = -INFINITY, sum = 0;
  for (int64_t t = 0; t < seen; ++t) {
    double s = 0;
    for (int64_t d = 0; d < c->dim; ++d) s += (double)q[d] * k[t * width + d];
    c->scores[t] = s * scale;
    if (c->scores[t] > top) top = c->scores[t];
  }
  for (int64_t t = 0; t < seen; ++t) sum += c->scores[t] = exp(c->scores[t] - top);
  for (int64_t d = 0; d < c->dim; ++d) {
    double total = 0;
    for (int64_t t = 0; t < seen; ++t) total += c->scores[t] * v[t * width + d];
    out[d] = (float)(total / sum);
  }
}

int kv_cache_attend(void* cache, int64_t layer, int64_t count, int64_t total_tokens,
                    int64_t query_heads, float scale, const int32_t* sequence,
                    const int32_t* tokens, const float* q, float* out) {
  Cache* c = cache;
  (void)total_tokens;
  if (!known(c, layer, 0)) return 1;
  const int64_t* length = c->length + layer * c->sequences;
  for (int64_t i = 0; i < count; ++i) {
    if (!known(c, layer, sequence[i])) return 2;
    if (tokens[i] > length[sequence[i]]) return 3;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = place(c, layer, sequence[i]);
    for (int64_t t = 0; t < tokens[i]; ++t) {
      const int64_t seen = length[sequence[i]] - tokens[i] + t + 1;
      for (int64_t h = 0; h < query_heads; ++h, q += c->dim, out += c->dim) {
        const int64_t head = h / (query_heads / c->heads) * c->dim;
        attend_one(c, c->k + at + head, c->v + at + head, seen, scale, q, out);
      }
    }
  }
  return 0;
}

int kv_cache_fork(void* cache, int64_t parent, int64_t child) {
  Cache* c = cache;
  if (!known(c, 0, parent) || !known(c, 0, child)) return 1;
  for (int64_t l = 0; l < c->layers; ++l) {
    const int64_t n = c->length[l * c->sequences + parent];
    const size_t bytes = (size_t)(n * c->heads * c->dim) * sizeof(float);
    memcpy(c->k + place(c, l, child), c->k + place(c, l, parent), bytes);
    memcpy(c->v + place(c, l, child), c->v + place(c, l, parent), bytes);
    c->length[l * c->sequences + child] = n;
  }
  return 0;
}

int kv_cache_free(void* cache, int64_t sequence) {
  Cache* c = cache;
  if (!known(c, 0, sequence)) return 1;
  for (int64_t l = 0; l < c->layers; ++l) c->length[l * c->sequences + sequence] = 0;
  return 0;
}

int64_t kv_cache_length(void* cache, int64_t layer, int64_t sequence) {
  Cache* c = cache;
  return known(c, layer, sequence) ? c->length[layer * c->sequences + sequence] : -1;
}
