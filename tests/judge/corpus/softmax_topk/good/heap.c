// A heap of the k best, smallest on top, and three passes in float with pairwise sums. Among equal
// values the later column wins, which the task allows.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

static float sum_exp(const float* row, int64_t begin, int64_t end, float top) {
  if (end - begin > 32) {
    const int64_t middle = begin + (end - begin) / 2;
    return sum_exp(row, begin, middle, top) + sum_exp(row, middle, end, top);
  }
  float sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += expf(row[i] - top);
  return sum;
}

static void sift_down(const float* row, int32_t* heap, int64_t at, int64_t size) {
  for (;;) {
    int64_t child = 2 * at + 1;
    if (child >= size) return;
    if (child + 1 < size && row[heap[child + 1]] < row[heap[child]]) ++child;
    if (row[heap[at]] <= row[heap[child]]) return;
    const int32_t t = heap[at];
    heap[at] = heap[child];
    heap[child] = t;
    at = child;
  }
}

int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits, float* probabilities,
                 int32_t* indices) {
  if (k < 1 || k > vocab) return 1;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = logits + r * vocab;
    int32_t* heap = indices + r * k;
    float top = -INFINITY;
    int has_nan = 0;
    for (int64_t i = 0; i < vocab; ++i) {
      if (row[i] > top) top = row[i];
      has_nan |= row[i] != row[i];
    }
    for (int64_t j = 0; j < k; ++j) heap[j] = (int32_t)j;
    for (int64_t j = k / 2; j-- > 0;) sift_down(row, heap, j, k);
    for (int64_t i = k; i < vocab; ++i) {
      if (row[i] >= row[heap[0]]) {
        heap[0] = (int32_t)i;
        sift_down(row, heap, 0, k);
      }
    }
    for (int64_t size = k; size > 1;) {  // the smallest goes to the end
      const int32_t smallest = heap[0];
      heap[0] = heap[--size];
      heap[size] = smallest;
      sift_down(row, heap, 0, size);
    }
    const float sum = top == -INFINITY ? 1 : sum_exp(row, 0, vocab, top);
    for (int64_t j = 0; j < k; ++j) {
      const float v = row[heap[j]];
      probabilities[r * k + j] = has_nan ? NAN : v == -INFINITY ? 0 : expf(v - top) / sum;
    }
  }
  return 0;
}
