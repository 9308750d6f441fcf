// Contenders that do not do the work. Built and named as mutants.cc is. Statuses are right, and so
// are rows that see nothing, so that only the answers can give them away.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#define TRIVIALS(TRIVIAL)                                                     \
  TRIVIAL(zeros, "output and lse are 0")                                      \
  TRIVIAL(ones, "output and lse are 1")                                       \
  TRIVIAL(nans, "output and lse are NaN")                                     \
  TRIVIAL(copy, "the output is the query")                                    \
  TRIVIAL(first_value, "the output is the first value")                       \
  TRIVIAL(own_value, "the output is the value at the query's own place")      \
  TRIVIAL(mean_value, "the output is the mean of the values, lse is right")   \
  TRIVIAL(right_lse, "lse is right, the output is 0")                         \
  TRIVIAL(right_output, "the output is right, lse is 0")                      \
  TRIVIAL(noise, "random numbers")                                            \
  TRIVIAL(unwritten, "nothing is written")                                    \
  TRIVIAL(previous, "the answer of the call before")                          \
  TRIVIAL(correct_once, "right the first time, zeros from then on")           \
  TRIVIAL(first_head, "the first head is right, all others are copies of it") \
  TRIVIAL(refuses, "every call is an error")

namespace {

#define NAME(name, what) name,
enum Kind { TRIVIALS(NAME) };
#undef NAME

struct Answer {
  std::vector<float> out, lse;
};

struct Problem {
  int64_t batch, query_heads, kv_heads, queries, keys, dim;
  bool causal;
  float scale;
  const float *q, *k, *v;
};

Answer right_answer(const Problem& p, bool flat) {
  Answer answer;
  std::vector<double> w(static_cast<size_t>(p.keys));
  for (int64_t row = 0; row < p.batch * p.query_heads * p.queries; ++row) {
    const int64_t n = row / p.queries, i = row % p.queries;
    const int64_t kv =
        n / p.query_heads * p.kv_heads + n % p.query_heads / (p.query_heads / p.kv_heads);
    const int64_t seen =
        p.causal ? std::clamp<int64_t>(i + p.keys - p.queries + 1, 0, p.keys) : p.keys;
    double top = -HUGE_VAL, sum = 0;
    for (int64_t t = 0; t < seen; ++t) {
      w[t] = 0;
      for (int64_t d = 0; d < p.dim; ++d) {
        w[t] += double{p.q[row * p.dim + d]} * p.k[(kv * p.keys + t) * p.dim + d];
      }
      w[t] *= p.scale;
      top = std::max(top, w[t]);
    }
    for (int64_t t = 0; t < seen; ++t) sum += w[t] = std::exp(w[t] - top);
    answer.lse.push_back(seen ? static_cast<float>(top + std::log(sum)) : -HUGE_VALF);
    for (int64_t d = 0; d < p.dim; ++d) {
      double o = 0;
      for (int64_t t = 0; t < seen; ++t) {
        o += (flat ? 1 / double(seen) : w[t] / sum) * p.v[(kv * p.keys + t) * p.dim + d];
      }
      answer.out.push_back(static_cast<float>(o));
    }
  }
  return answer;
}

float out_of(Kind kind, const Problem& p, const Answer& right, const Answer& before, bool first,
             int64_t at, std::minstd_rand& random) {
  const int64_t row = at / p.dim, d = at % p.dim, n = row / p.queries, i = row % p.queries;
  const int64_t kv =
      n / p.query_heads * p.kv_heads + n % p.query_heads / (p.query_heads / p.kv_heads);
  const float* v = p.v + kv * p.keys * p.dim;
  if (kind == ones) return 1;
  if (kind == nans) return NAN;
  if (kind == copy) return p.q[at];
  if (kind == first_value) return p.keys ? v[d] : 0;
  if (kind == own_value) return p.keys ? v[std::min(i, p.keys - 1) * p.dim + d] : 0;
  if (kind == right_output || kind == mean_value) return right.out[at];
  if (kind == noise) return float(random() % 2000) / 1000 - 1;
  if (kind == previous) return size_t(at) < before.out.size() ? before.out[at] : 0;
  if (kind == correct_once) return first ? right.out[at] : 0;
  if (kind == first_head) return right.out[at % (p.queries * p.dim)];
  return 0;
}

float lse_of(Kind kind, const Problem& p, const Answer& right, const Answer& before, bool first,
             int64_t row, std::minstd_rand& random) {
  if (std::isinf(right.lse[row])) return right.lse[row];
  if (kind == ones) return 1;
  if (kind == nans) return NAN;
  if (kind == mean_value || kind == right_lse) return right.lse[row];
  if (kind == noise) return float(random() % 1000) / 100;
  if (kind == previous) return size_t(row) < before.lse.size() ? before.lse[row] : 0;
  if (kind == correct_once) return first ? right.lse[row] : 0;
  if (kind == first_head) return right.lse[row % p.queries];
  return 0;
}

int run(Kind kind, const Problem& p, float* out, float* lse) {
  if (p.kv_heads < 1 || p.query_heads % p.kv_heads || p.dim < 1 || kind == refuses) return 1;
  static Answer before;
  static bool first = true;
  static std::minstd_rand random(7);
  Answer right = right_answer(p, kind == mean_value);
  for (size_t at = 0; at < right.out.size() && kind != unwritten; ++at) {
    out[at] = out_of(kind, p, right, before, first, int64_t(at), random);
  }
  for (size_t row = 0; row < right.lse.size() && kind != unwritten; ++row) {
    lse[row] = lse_of(kind, p, right, before, first, int64_t(row), random);
  }
  before = std::move(right);
  first = false;
  return 0;
}

}  // namespace

#define EXPORT(name, what)                                                                      \
  extern "C" int flash_attention_forward__##name(                                               \
      int64_t batch, int64_t query_heads, int64_t kv_heads, int64_t queries, int64_t keys,      \
      int64_t dim, int64_t causal, float scale, const float* q, const float* k, const float* v, \
      float* out, float* lse) {                                                                 \
    return run(name,                                                                            \
               {batch, query_heads, kv_heads, queries, keys, dim, causal != 0, scale, q, k, v}, \
               out, lse);                                                                       \
  }
TRIVIALS(EXPORT)
