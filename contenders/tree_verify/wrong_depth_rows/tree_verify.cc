// Verifies a tree as if it were a chain: a node at depth d is judged by the row of node d - 1. Chains are
// right.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

double uniform(uint32_t seed, uint32_t position, uint32_t purpose, uint32_t draw) {
  uint32_t c[4] = {position, 0, purpose, draw}, k[2] = {seed, 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
    const uint32_t next[4] = {uint32_t(b >> 32) ^ c[1] ^ k[0], uint32_t(b),
                              uint32_t(a >> 32) ^ c[3] ^ k[1], uint32_t(a)};
    std::copy_n(next, 4, c);
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return (double((uint64_t(c[1]) << 32 | c[0]) >> 12) + 0.5) * 0x1p-52;
}

// Where the running sum of the weights of `order` first exceeds u of the total.
int32_t pick(const std::vector<int32_t>& order, const std::vector<double>& weight, double u) {
  double total = 0, sum = 0;
  for (const int32_t t : order) total += weight[t];
  int32_t last = order[0];
  for (const int32_t t : order) {
    if (weight[t] == 0) continue;
    sum += weight[t];
    last = t;
    if (sum > u * total) break;
  }
  return last;
}

}  // namespace

extern "C" int tree_verify(int64_t requests, int64_t nodes, int64_t vocab, int64_t steps,
                           int64_t tree_words, int64_t mask_words, int64_t history_tokens,
                           int64_t capacity, int64_t width, int64_t rule, int64_t top_k,
                           int64_t eos, float temperature, float penalty, const float* logits,
                           const float* draft, const int32_t* allowed, const int32_t* first,
                           const int32_t* tokens, const int32_t* parents, const int32_t* lengths,
                           const int32_t* limits, const int32_t* seeds, const int32_t* history,
                           const float* cache, int32_t* path, int32_t* accepted, int32_t* emitted,
                           int32_t* finish, float* log_probabilities, int32_t* positions,
                           int32_t* ancestors, float* cache_after) {
  if (!(temperature >= 0)) return 1;
  std::fill_n(ancestors, nodes * tree_words, 0);
  std::fill_n(cache_after, requests * capacity * width, 0.0f);
  std::fill_n(path, requests * steps, -1);
  std::fill_n(emitted, requests * (steps + 1), -1);
  std::fill_n(log_probabilities, requests * (steps + 1), 0.0f);
  for (int64_t r = 0; r < requests; ++r) {
    const int32_t* const parent = parents + first[r];
    const int32_t* const token = tokens + first[r];
    const int32_t count = first[r + 1] - first[r];
    for (int32_t n = 0; n < count; ++n) {
      if (parent[n] < -1 || parent[n] >= n || token[n] < 0 || token[n] >= vocab) return 1;
      int32_t depth = 0;
      for (int32_t a = n; a >= 0; a = parent[a], ++depth) {
        ancestors[(first[r] + n) * tree_words + a / 32] |= int32_t(1u << (a % 32));
      }
      if (depth > steps) return 1;
      positions[first[r] + n] = lengths[r] + depth - 1;
    }
    std::vector<double> seen(vocab);
    for (int64_t i = 0; i < history_tokens; ++i) {
      const int32_t t = history[r * history_tokens + i];
      if (t >= 0) seen[t] += 1;
    }
    int64_t taken = 0, written = 0;
    int32_t reason = 0;
    for (int32_t node = -1, child = 0; child >= 0 && reason == 0; node = child) {
      const int64_t row = node < 0 ? r : requests + first[r] + taken - 1;
      const uint32_t position = uint32_t(lengths[r] + taken);
      std::vector<double> v(vocab), w(vocab);
      for (int64_t t = 0; t < vocab; ++t) {
        v[t] = logits[row * vocab + t] - penalty * seen[t];
        if (std::isnan(v[t])) return 1;
        const bool open =
            mask_words == 0 || (uint32_t(allowed[row * mask_words + t / 32]) >> (t % 32) & 1u) != 0;
        if (!open) v[t] = -INFINITY;
      }
      const double top = *std::max_element(v.begin(), v.end());
      if (std::isinf(top)) {
        reason = 3;
        break;
      }
      const double heat = temperature == 0 ? 1 : temperature;
      double sum = 0;
      for (int64_t t = 0; t < vocab; ++t) sum += w[t] = std::exp((v[t] - top) / heat);
      std::vector<int32_t> order(vocab);
      for (int64_t t = 0; t < vocab; ++t) order[t] = int32_t(t);
      const bool cut = top_k > 0 && top_k < vocab;
      if (temperature == 0 || cut) {
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return v[a] > v[b]; });
        order.resize(temperature == 0 ? 1 : top_k);
      }
      int32_t chosen = -1;
      child = -1;
      if (rule == 0) {
        chosen = pick(order, w, uniform(seeds[r], position, 0, 0));
        for (int32_t n = count - 1; n >= 0; --n) {
          if (parent[n] == node && token[n] == chosen) child = n;
        }
      } else {
        const float* const q = draft + row * vocab;
        std::vector<double> p(vocab);
        double total = 0;
        for (const int32_t t : order) total += w[t];
        for (const int32_t t : order) p[t] = w[t] / total;
        uint32_t sibling = 0;
        for (int32_t n = 0; n < count && child < 0; ++n) {
          if (parent[n] != node) continue;
          if (uniform(seeds[r], position, 1, sibling++) * q[token[n]] < p[token[n]]) {
            child = n;
            chosen = token[n];
            continue;
          }
          double left = 0;
          for (int64_t t = 0; t < vocab; ++t) left += p[t] = std::max(0.0, p[t] - q[t]);
          for (double& share : p) share /= left;
        }
        order.resize(vocab);
        for (int64_t t = 0; t < vocab; ++t) order[t] = int32_t(t);
        if (child < 0) chosen = pick(order, p, uniform(seeds[r], position, 2, 0));
      }
      log_probabilities[r * (steps + 1) + written] =
          float((v[chosen] - top) / heat - std::log(sum));
      emitted[r * (steps + 1) + written++] = chosen;
      if (child >= 0) {
        path[r * steps + taken++] = child;
        seen[chosen] += 1;
      }
      if (chosen == eos) {
        reason = 1;
      } else if (written == limits[r]) {
        reason = 2;
      }
    }
    accepted[r] = int32_t(taken);
    finish[r] = reason;
    const float* const from = cache + r * capacity * width;
    float* to = std::copy_n(from, lengths[r] * width, cache_after + r * capacity * width);
    for (int64_t d = 0; d < taken; ++d) {
      to = std::copy_n(from + (lengths[r] + path[r * steps + d]) * width, width, to);
    }
  }
  return 0;
}
