/* Plain C: first child and next sibling, counts of tokens in an array, weights in double. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static double uniform(uint32_t seed, uint32_t position, uint32_t purpose, uint32_t draw) {
  uint32_t c0 = position, c1 = 0, c2 = purpose, c3 = draw, k0 = seed, k1 = 0;
  int round;
  for (round = 0; round < 10; ++round) {
    const uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return ((double)(((uint64_t)c1 << 32 | c0) >> 12) + 0.5) / 4503599627370496.0;
}

/* The best token that is not taken yet, or -1. */
static int64_t next_best(const double* v, const char* taken, int64_t vocab) {
  int64_t best = -1, t;
  for (t = 0; t < vocab; ++t) {
    if (!taken[t] && v[t] > -INFINITY && (best < 0 || v[t] > v[best])) best = t;
  }
  return best;
}

typedef struct {
  double *v, *p, *count;
  char* taken;
  int32_t *order, *child, *sibling, *depth;
} Scratch;

/* Fills order with the kept tokens and p with their weights; the number of them, 0: none, -1: NaN. */
static int64_t weigh(const float* row, const int32_t* mask, int64_t vocab, int64_t top_k,
                     double heat, double penalty, Scratch* s, double* top, double* sum) {
  int64_t t, kept = 0, most = heat == 0 ? 1 : top_k;
  *top = -INFINITY;
  *sum = 0;
  for (t = 0; t < vocab; ++t) {
    if (isnan(row[t])) return -1;
    s->v[t] = row[t] - penalty * s->count[t];
    if (mask && !((uint32_t)mask[t / 32] >> (t % 32) & 1u)) s->v[t] = -INFINITY;
    if (s->v[t] > *top) *top = s->v[t];
  }
  if (isinf(*top)) return 0;
  for (t = 0; t < vocab; ++t) {
    s->p[t] = exp((s->v[t] - *top) / (heat == 0 ? 1 : heat));
    *sum += s->p[t];
  }
  if (most == 0 || most >= vocab) {
    for (t = 0; t < vocab; ++t) {
      if (s->v[t] > -INFINITY) s->order[kept++] = (int32_t)t;
    }
    return kept;
  }
  memset(s->taken, 0, (size_t)vocab);
  while (kept < most) {
    const int64_t best = next_best(s->v, s->taken, vocab);
    if (best < 0) break;
    s->taken[best] = 1;
    s->order[kept++] = (int32_t)best;
  }
  return kept;
}

static int32_t pick(const int32_t* order, int64_t kept, const double* p, double u) {
  double total = 0, sum = 0;
  int64_t i, last = 0;
  for (i = 0; i < kept; ++i) total += p[order[i]];
  for (i = 0; i < kept; ++i) {
    if (p[order[i]] == 0) continue;
    last = i;
    sum += p[order[i]];
    if (sum > u * total) break;
  }
  return order[last];
}

static int32_t reject(const float* q, const int32_t* token, int32_t child, int64_t kept,
                      int64_t vocab, uint32_t seed, uint32_t position, Scratch* s, int32_t* next) {
  double total = 0;
  int64_t i, t;
  uint32_t j = 0;
  for (i = 0; i < kept; ++i) total += s->p[s->order[i]];
  memset(s->taken, 0, (size_t)vocab);
  for (i = 0; i < kept; ++i) s->taken[s->order[i]] = 1;
  for (t = 0; t < vocab; ++t) s->p[t] = s->taken[t] ? s->p[t] / total : 0;
  for (; child >= 0; child = s->sibling[child], ++j) {
    const int32_t x = token[child];
    double left = 0;
    if (uniform(seed, position, 1, j) * q[x] < s->p[x]) {
      *next = child;
      return x;
    }
    for (t = 0; t < vocab; ++t) {
      s->p[t] = s->p[t] > q[t] ? s->p[t] - q[t] : 0;
      left += s->p[t];
    }
    for (t = 0; t < vocab; ++t) s->p[t] /= left;
  }
  for (t = 0; t < vocab; ++t) s->order[t] = (int32_t)t;
  return pick(s->order, vocab, s->p, uniform(seed, position, 2, 0));
}

int tree_verify(int64_t requests, int64_t nodes, int64_t vocab, int64_t steps, int64_t tree_words,
                int64_t mask_words, int64_t history_tokens, int64_t capacity, int64_t width,
                int64_t rule, int64_t top_k, int64_t eos, float temperature, float penalty,
                const float* logits, const float* draft, const int32_t* allowed,
                const int32_t* first, const int32_t* tokens, const int32_t* parents,
                const int32_t* lengths, const int32_t* limits, const int32_t* seeds,
                const int32_t* history, const float* cache, int32_t* path, int32_t* accepted,
                int32_t* emitted, int32_t* finish, float* log_probabilities, int32_t* positions,
                int32_t* ancestors, float* cache_after) {
  Scratch s;
  int status = temperature >= 0 ? 0 : 1;
  int64_t r, i;
  s.v = malloc((size_t)(3 * vocab) * sizeof(double));
  s.p = s.v + vocab;
  s.count = s.p + vocab;
  s.taken = malloc((size_t)vocab);
  s.order = malloc((size_t)(vocab + 3 * nodes + 1) * 4);
  s.child = s.order + vocab;
  s.sibling = s.child + nodes + 1;
  s.depth = s.sibling + nodes;
  memset(ancestors, 0, (size_t)(nodes * tree_words) * 4);
  for (r = 0; r < requests && status == 0; ++r) {
    const int32_t begin = first[r], count = first[r + 1] - begin;
    int32_t n, node = -1, next = -1, root = -1, a;
    int64_t taken = 0, out = 0;
    for (n = 0; n < count; ++n) {
      const int32_t parent = parents[begin + n], token = tokens[begin + n];
      if (parent < -1 || parent >= n || token < 0 || token >= vocab) status = 1;
      if (status) break;
      s.depth[n] = parent < 0 ? 1 : s.depth[parent] + 1;
      if (s.depth[n] > steps) status = 1;
      positions[begin + n] = lengths[r] + s.depth[n] - 1;
      for (a = n; a >= 0; a = parents[begin + a]) {
        ancestors[(begin + n) * tree_words + a / 32] |= (int32_t)(1u << (a % 32));
      }
      s.child[n] = -1;
    }
    if (status) break;
    for (n = count - 1; n >= 0; --n) {
      int32_t* const list = parents[begin + n] < 0 ? &root : &s.child[parents[begin + n]];
      s.sibling[n] = *list;
      *list = n;
    }
    for (i = 0; i < vocab; ++i) s.count[i] = 0;
    for (i = 0; i < history_tokens; ++i) {
      if (history[r * history_tokens + i] >= 0) s.count[history[r * history_tokens + i]] += 1;
    }
    for (i = 0; i < steps; ++i) path[r * steps + i] = -1;
    for (i = 0; i <= steps; ++i) emitted[r * (steps + 1) + i] = -1;
    for (i = 0; i <= steps; ++i) log_probabilities[r * (steps + 1) + i] = 0;
    finish[r] = 0;
    for (;;) {
      const int64_t row = node < 0 ? r : requests + begin + node;
      const uint32_t position = (uint32_t)(lengths[r] + taken), seed = (uint32_t)seeds[r];
      const int32_t children = node < 0 ? root : s.child[node];
      double top, sum;
      int32_t chosen;
      const int64_t kept =
          weigh(logits + row * vocab, mask_words > 0 ? allowed + row * mask_words : NULL, vocab,
                top_k, temperature, penalty, &s, &top, &sum);
      if (kept < 0) status = 1;
      if (kept == 0) finish[r] = 3;
      if (kept <= 0) break;
      next = -1;
      if (rule == 1) {
        chosen = reject(draft + row * vocab, tokens + begin, children, kept, vocab, seed, position,
                        &s, &next);
      } else {
        chosen = pick(s.order, kept, s.p, uniform(seed, position, 0, 0));
        for (n = children; n >= 0 && next < 0; n = s.sibling[n]) {
          if (tokens[begin + n] == chosen) next = n;
        }
      }
      log_probabilities[r * (steps + 1) + out] =
          (float)((s.v[chosen] - top) / (temperature == 0 ? 1 : temperature) - log(sum));
      emitted[r * (steps + 1) + out++] = chosen;
      if (next >= 0) path[r * steps + taken++] = next;
      if (next >= 0) s.count[chosen] += 1;
      finish[r] = chosen == eos ? 1 : out == limits[r] ? 2 : 0;
      if (next < 0 || finish[r] != 0) break;
      node = next;
    }
    accepted[r] = (int32_t)taken;
    for (i = 0; i < capacity; ++i) {
      float* const to = cache_after + (r * capacity + i) * width;
      int64_t from = i < lengths[r] ? i : -1;
      if (i >= lengths[r] && i < lengths[r] + taken) {
        from = lengths[r] + path[r * steps + i - lengths[r]];
      }
      if (from < 0) memset(to, 0, (size_t)width * 4);
      if (from >= 0) memcpy(to, cache + (r * capacity + from) * width, (size_t)width * 4);
    }
  }
  free(s.v);
  free(s.taken);
  free(s.order);
  return status;
}
