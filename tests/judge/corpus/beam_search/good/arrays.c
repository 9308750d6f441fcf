// C11: plain arrays, insertion into a sorted list of candidates, texts copied between two buffers.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  double sum;
  int64_t parent, token;
} Candidate;

static int is_end(int64_t token, const int32_t* eos, int64_t count) {
  int64_t i;
  for (i = 0; i < count; ++i) {
    if (eos[i] == token) return 1;
  }
  return 0;
}

/* Keeps the best `most`, equal ones in the order in which they come. */
static int64_t insert(Candidate* list, int64_t count, int64_t most, Candidate c) {
  int64_t at = count;
  if (count == most && !(c.sum > list[count - 1].sum)) return count;
  while (at > 0 && list[at - 1].sum < c.sum) --at;
  if (count == most) --count;
  memmove(list + at + 1, list + at, (size_t)(count - at) * sizeof(*list));
  list[at] = c;
  return count + 1;
}

static int search(int64_t vocab, int64_t k, int64_t longest, int64_t least, int64_t eos_count,
                  double alpha, const float* logits, const int32_t* next, int32_t start,
                  const int32_t* eos, int32_t* tokens, int32_t* lengths, int32_t* finish,
                  float* sums, float* scores, Candidate* list, int32_t* text, int32_t* other,
                  int32_t* state, double* total, double* pool) {
  const int64_t most = k * (1 + eos_count) + 1;
  int64_t running = 1, done = 0, g, b, v, i;
  int32_t new_state[1024];
  double new_total[1024];
  state[0] = start;
  total[0] = 0;
  for (g = 1; g <= longest && running > 0; ++g) {
    int64_t count = 0, on = 0;
    for (b = 0; b < running; ++b) {
      const float* row = logits + (int64_t)state[b] * vocab;
      double top = -INFINITY, sum = 0;
      for (v = 0; v < vocab; ++v) {
        if (isnan(row[v])) return 1;
        if (row[v] > top) top = row[v];
      }
      if (isinf(top)) continue;
      for (v = 0; v < vocab; ++v) sum += exp(row[v] - top);
      for (v = 0; v < vocab; ++v) {
        Candidate c = {total[b] + (row[v] - top - log(sum)), b, v};
        if (isinf(row[v]) || (g <= least && is_end(v, eos, eos_count))) continue;
        count = insert(list, count, most, c);
      }
    }
    for (i = 0; i < count; ++i) {
      const Candidate c = list[i];
      const int ends = is_end(c.token, eos, eos_count);
      if (ends || g == longest) {
        const double score = c.sum / pow((double)g, alpha);
        int64_t at = done;
        if (i >= k || (done == k && !(score > pool[k - 1]))) continue;
        while (at > 0 && pool[at - 1] < score) --at;
        if (done == k) --done;
        memmove(pool + at + 1, pool + at, (size_t)(done - at) * sizeof(*pool));
        memmove(tokens + (at + 1) * longest, tokens + at * longest,
                (size_t)((done - at) * longest) * 4);
        memmove(lengths + at + 1, lengths + at, (size_t)(done - at) * 4);
        memmove(finish + at + 1, finish + at, (size_t)(done - at) * 4);
        memmove(sums + at + 1, sums + at, (size_t)(done - at) * 4);
        memmove(scores + at + 1, scores + at, (size_t)(done - at) * 4);
        pool[at] = score;
        for (v = 0; v < longest; ++v) {
          tokens[at * longest + v] = v < g - 1 ? text[c.parent * longest + v] : -1;
        }
        tokens[at * longest + g - 1] = (int32_t)c.token;
        lengths[at] = (int32_t)g;
        finish[at] = ends ? 1 : 2;
        sums[at] = (float)c.sum;
        scores[at] = (float)score;
        ++done;
      } else if (on < k) {
        memcpy(other + on * longest, text + c.parent * longest, (size_t)longest * 4);
        other[on * longest + g - 1] = (int32_t)c.token;
        new_state[on] = next[(int64_t)state[c.parent] * vocab + c.token];
        new_total[on++] = c.sum;
      }
    }
    running = on;
    memcpy(text, other, (size_t)(on * longest) * 4);
    memcpy(state, new_state, (size_t)on * sizeof(*state));
    memcpy(total, new_total, (size_t)on * sizeof(*total));
    if (done == k && on > 0 &&
        total[0] / pow((double)(alpha > 0 ? longest : g), alpha) <= pool[k - 1])
      break;
  }
  return 0;
}

int beam_search(int64_t prompts, int64_t states, int64_t vocab, int64_t beams, int64_t max_tokens,
                int64_t min_tokens, int64_t eos_count, float length_penalty, const float* logits,
                const int32_t* next, const int32_t* start, const int32_t* prompt_tokens,
                const int32_t* eos, int32_t* tokens, int32_t* lengths, int32_t* finish, float* sums,
                float* scores) {
  int status = 0;
  int64_t p, i;
  (void)states, (void)prompt_tokens;
  if (beams < 1 || beams > 1024) return 1;
  Candidate* list = malloc((size_t)(beams * (1 + eos_count) + 2) * sizeof(*list));
  int32_t* text = malloc((size_t)(2 * beams * max_tokens) * 4);
  int32_t* state = malloc((size_t)beams * 4);
  double* total = malloc((size_t)(2 * beams + 1) * sizeof(*total));
  for (i = 0; i < prompts * beams * max_tokens; ++i) tokens[i] = -1;
  for (i = 0; i < prompts * beams; ++i) {
    lengths[i] = finish[i] = 0;
    sums[i] = scores[i] = 0;
  }
  for (p = 0; p < prompts && status == 0; ++p) {
    status = search(vocab, beams, max_tokens, min_tokens, eos_count, length_penalty, logits, next,
                    start[p], eos, tokens + p * beams * max_tokens, lengths + p * beams,
                    finish + p * beams, sums + p * beams, scores + p * beams, list, text,
                    text + beams * max_tokens, state, total, total + beams);
  }
  free(list);
  free(text);
  free(state);
  free(total);
  return status;
}
