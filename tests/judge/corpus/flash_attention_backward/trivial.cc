// Contenders that do not do the work. Built and named as mutants.cc is; statuses are right.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#define TRIVIALS(TRIVIAL)                                                   \
  TRIVIAL(zeros, "all gradients are 0: small enough for many tolerances")   \
  TRIVIAL(ones, "all gradients are 1")                                      \
  TRIVIAL(nans, "all gradients are NaN")                                    \
  TRIVIAL(copy, "dQ is the gradient of the output, dK and dV are the keys") \
  TRIVIAL(right_dq, "dQ is right, the others are 0")                        \
  TRIVIAL(right_dv, "dV is right, the others are 0")                        \
  TRIVIAL(wrong_dk, "dQ and dV are right, dK is 0")                         \
  TRIVIAL(first_query, "the first query is right, all others repeat it")    \
  TRIVIAL(noise, "random numbers")                                          \
  TRIVIAL(unwritten, "nothing is written")                                  \
  TRIVIAL(previous, "the answer of the call before")                        \
  TRIVIAL(correct_once, "right the first time, zeros from then on")         \
  TRIVIAL(refuses, "every call is an error")

namespace {

#define NAME(name, what) name,
enum Kind { TRIVIALS(NAME) };
#undef NAME

struct Problem {
  int64_t batch, query_heads, kv_heads, queries, keys, dim;
  bool causal;
  float scale;
  const float *dout, *q, *k, *v, *out, *lse;
};

struct Answer {
  std::vector<float> dq, dk, dv;
};

Answer right_answer(const Problem& p) {
  const int64_t rows = p.batch * p.query_heads * p.queries;
  const auto size = static_cast<size_t>(p.batch * p.kv_heads * p.keys * p.dim);
  std::vector<double> dq(static_cast<size_t>(rows * p.dim)), dk(size), dv(size);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t n = row / p.queries, i = row % p.queries;
    const int64_t kv =
        n / p.query_heads * p.kv_heads + n % p.query_heads / (p.query_heads / p.kv_heads);
    const int64_t seen = p.causal ? i + p.keys - p.queries + 1 : p.keys;
    const float *q = p.q + row * p.dim, *dout = p.dout + row * p.dim;
    for (int64_t t = 0; t < seen; ++t) {
      const int64_t at = (kv * p.keys + t) * p.dim;
      double s = 0, dp = 0;
      for (int64_t d = 0; d < p.dim; ++d) {
        s += double{q[d]} * p.k[at + d];
        dp += double{dout[d]} * (double{p.v[at + d]} - p.out[row * p.dim + d]);
      }
      const double w = std::exp(s * p.scale - p.lse[row]), ds = w * dp * p.scale;
      for (int64_t d = 0; d < p.dim; ++d) {
        dq[row * p.dim + d] += ds * p.k[at + d];
        dk[at + d] += ds * q[d];
        dv[at + d] += w * dout[d];
      }
    }
  }
  return {{dq.begin(), dq.end()}, {dk.begin(), dk.end()}, {dv.begin(), dv.end()}};
}

// What one of the three gradients becomes.
void write(Kind kind, char which, const std::vector<float>& right, const std::vector<float>& before,
           const float* input, int64_t dim, bool first, float* to) {
  static std::minstd_rand random(7);
  const bool known = (kind == right_dq && which == 'q') || (kind == right_dv && which == 'v') ||
                     (kind == wrong_dk && which != 'k') || (kind == correct_once && first);
  for (size_t e = 0; e < right.size(); ++e) {
    float value = known ? right[e] : 0;
    if (kind == ones) value = 1;
    if (kind == nans) value = NAN;
    if (kind == copy) value = input[e];
    if (kind == noise) value = float(random() % 2000) / 1000 - 1;
    if (kind == previous) value = e < before.size() ? before[e] : 0;
    if (kind == first_query) value = which == 'q' ? right[e % size_t(dim)] : right[e];
    if (kind != unwritten) to[e] = value;
  }
}

int run(Kind kind, const Problem& p, float* dq, float* dk, float* dv) {
  if (p.kv_heads < 1 || p.query_heads % p.kv_heads || p.dim < 1 || kind == refuses) return 1;
  static Answer before;
  static bool first = true;
  Answer right = right_answer(p);
  write(kind, 'q', right.dq, before.dq, p.dout, p.dim, first, dq);
  write(kind, 'k', right.dk, before.dk, p.k, p.dim, first, dk);
  write(kind, 'v', right.dv, before.dv, p.k, p.dim, first, dv);
  before = std::move(right);
  first = false;
  return 0;
}

}  // namespace

#define EXPORT(name, what)                                                                         \
  extern "C" int flash_attention_backward__##name(                                                 \
      int64_t batch, int64_t query_heads, int64_t kv_heads, int64_t queries, int64_t keys,         \
      int64_t dim, int64_t causal, float scale, const float* dout, const float* q, const float* k, \
      const float* v, const float* out, const float* lse, float* dq, float* dk, float* dv) {       \
    return run(name,                                                                               \
               {batch, query_heads, kv_heads, queries, keys, dim, causal != 0, scale, dout, q, k,  \
                v, out, lse},                                                                      \
               dq, dk, dv);                                                                        \
  }
TRIVIALS(EXPORT)
