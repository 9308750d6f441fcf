// Two sweeps, as on a GPU: dQ by tiles of queries, then dK and dV by tiles of keys, each with its
// own P made again. Nothing is added to by two. Float.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

constexpr int64_t kTile = 24;

struct Problem {
  int64_t batch, query_heads, kv_heads, queries, keys, dim;
  bool causal;
  float scale;
  const float *dout, *q, *k, *v, *lse;
  std::vector<float> delta;

  bool sees(int64_t i, int64_t t) const { return !causal || t <= i + keys - queries; }
};

float dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t d = 0; d < n; ++d) sum = std::fma(a[d], b[d], sum);
  return sum;
}

struct Pair {
  float p, ds;
};

Pair pair_of(const Problem& x, int64_t row, int64_t at) {
  const float s = dot(x.q + row * x.dim, x.k + at, x.dim) * x.scale;
  const float p = std::exp(s - x.lse[row]);
  return {p, p * (dot(x.dout + row * x.dim, x.v + at, x.dim) - x.delta[row])};
}

void queries_sweep(const Problem& x, float* dq) {
  std::vector<float> sums;
  for (int64_t n = 0; n < x.batch * x.query_heads; ++n) {
    const int64_t kv =
        n / x.query_heads * x.kv_heads + n % x.query_heads / (x.query_heads / x.kv_heads);
    for (int64_t first = 0; first < x.queries; first += kTile) {
      const int64_t end = std::min(first + kTile, x.queries);
      sums.assign((end - first) * x.dim, 0.0f);
      for (int64_t t = 0; t < x.keys && x.sees(end - 1, t); ++t) {
        const int64_t at = (kv * x.keys + t) * x.dim;
        for (int64_t i = first; i < end; ++i) {
          if (!x.sees(i, t)) continue;
          const float ds = pair_of(x, n * x.queries + i, at).ds;
          for (int64_t d = 0; d < x.dim; ++d) sums[(i - first) * x.dim + d] += ds * x.k[at + d];
        }
      }
      for (size_t e = 0; e < sums.size(); ++e) {
        dq[(n * x.queries + first) * x.dim + static_cast<int64_t>(e)] = sums[e] * x.scale;
      }
    }
  }
}

void keys_sweep(const Problem& x, float* dk, float* dv) {
  const int64_t group = x.query_heads / x.kv_heads;
  std::vector<float> for_k(x.dim), for_v(x.dim);
  for (int64_t n = 0; n < x.batch * x.kv_heads; ++n) {
    for (int64_t t = 0; t < x.keys; ++t) {
      const int64_t at = (n * x.keys + t) * x.dim;
      std::fill(for_k.begin(), for_k.end(), 0.0f);
      std::fill(for_v.begin(), for_v.end(), 0.0f);
      for (int64_t g = 0; g < group; ++g) {
        const int64_t head = n / x.kv_heads * x.query_heads + n % x.kv_heads * group + g;
        for (int64_t i = 0; i < x.queries; ++i) {
          if (!x.sees(i, t)) continue;
          const int64_t row = head * x.queries + i;
          const Pair both = pair_of(x, row, at);
          for (int64_t d = 0; d < x.dim; ++d) {
            for_k[d] += both.ds * x.q[row * x.dim + d];
            for_v[d] += both.p * x.dout[row * x.dim + d];
          }
        }
      }
      for (int64_t d = 0; d < x.dim; ++d) {
        dk[at + d] = for_k[d] * x.scale;
        dv[at + d] = for_v[d];
      }
    }
  }
}

}  // namespace

extern "C" int flash_attention_backward(int64_t batch, int64_t query_heads, int64_t kv_heads,
                                        int64_t queries, int64_t keys, int64_t dim, int64_t causal,
                                        float scale, const float* dout, const float* q,
                                        const float* k, const float* v, const float* out,
                                        const float* lse, float* dq, float* dk, float* dv) {
  if (kv_heads < 1 || query_heads % kv_heads != 0 || dim < 1) return 1;
  Problem x{batch, query_heads, kv_heads, queries, keys, dim, causal != 0,
            scale, dout,        q,        k,       v,    lse, {}};
  for (int64_t row = 0; row < batch * query_heads * queries; ++row) {
    x.delta.push_back(dot(dout + row * dim, out + row * dim, dim));
  }
  queries_sweep(x, dq);
  keys_sweep(x, dk, dv);
  return 0;
}
