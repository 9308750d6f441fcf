// Every row chooses its token before any walk, in 32-bit arithmetic; then paths are followed by links.
// Rows that no walk reads may hold anything: what they choose is not looked at.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace {

class Philox {
 public:
  explicit Philox(uint32_t seed) : seed_(seed) {}
  double operator()(uint32_t position, uint32_t purpose, uint32_t draw) const {
    uint32_t x[4] = {position, 0, purpose, draw};
    uint32_t k0 = seed_, k1 = 0;
    for (int i = 0; i < 10; ++i) {
      const uint64_t a = uint64_t{0xD2511F53} * x[0];
      const uint64_t b = uint64_t{0xCD9E8D57} * x[2];
      const uint32_t y1 = x[1], y3 = x[3];
      x[0] = static_cast<uint32_t>(b >> 32) ^ y1 ^ k0;
      x[1] = static_cast<uint32_t>(b);
      x[2] = static_cast<uint32_t>(a >> 32) ^ y3 ^ k1;
      x[3] = static_cast<uint32_t>(a);
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    const uint64_t bits = (uint64_t{x[1]} << 32 | x[0]) >> 12;
    return (static_cast<double>(bits) + 0.5) * 0x1p-52;
  }

 private:
  uint32_t seed_;
};

enum class State { fine, nan, dead };

struct Decision {
  State state = State::fine;
  int32_t token = -1, child = -1;
  float log_probability = 0;
};

struct RowInput {
  const float* logits;
  const float* draft;      // or null
  const int32_t* allowed;  // or null
  int64_t vocab, top_k;
  float temperature, penalty;
  std::vector<int32_t> seen;
  std::vector<int32_t> children, child_tokens;
  uint32_t position;
};

int32_t draw_from(const std::vector<int32_t>& order, const std::vector<float>& p, double u) {
  float total = 0;
  for (const int32_t t : order) total += p[t];
  const auto goal = static_cast<float>(u * total);
  float sum = 0;
  int32_t last = order.front();
  for (const int32_t t : order) {
    if (p[t] == 0) continue;
    last = t;
    sum += p[t];
    if (sum > goal) break;
  }
  return last;
}

Decision decide(const RowInput& in, const Philox& random) {
  Decision d;
  std::vector<float> v(in.logits, in.logits + in.vocab);
  if (in.penalty != 0) {
    std::vector<int32_t> sorted = in.seen;
    std::sort(sorted.begin(), sorted.end());
    for (auto it = sorted.begin(); it != sorted.end();) {
      const auto end = std::upper_bound(it, sorted.end(), *it);
      v[*it] -= in.penalty * static_cast<float>(end - it);
      it = end;
    }
  }
  float top = -INFINITY;
  for (int64_t t = 0; t < in.vocab; ++t) {
    if (std::isnan(v[t])) d.state = State::nan;
    if (in.allowed && !(static_cast<uint32_t>(in.allowed[t / 32]) >> (t % 32) & 1))
      v[t] = -INFINITY;
    top = std::max(top, v[t]);
  }
  if (d.state == State::nan) return d;
  if (top == -INFINITY) {
    d.state = State::dead;
    return d;
  }
  const bool greedy = in.temperature == 0;
  const float heat = greedy ? 1 : in.temperature;
  std::vector<float> w(v.size());
  float sum = 0;
  for (int64_t begin = 0; begin < in.vocab; begin += 512) {
    float block = 0;
    for (int64_t t = begin; t < std::min(begin + 512, in.vocab); ++t) {
      block += w[t] = std::exp((v[t] - top) / heat);
    }
    sum += block;
  }
  std::vector<int32_t> order(v.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) { return v[a] > v[b] || (v[a] == v[b] && a < b); };
  if (greedy) {
    order = {*std::min_element(order.begin(), order.end(), better)};
  } else if (in.top_k > 0 && in.top_k < in.vocab) {
    std::partial_sort(order.begin(), order.begin() + in.top_k, order.end(), better);
    order.resize(in.top_k);
  }
  if (in.draft == nullptr) {
    d.token = greedy ? order[0] : draw_from(order, w, random(in.position, 0, 0));
    const auto found = std::find(in.child_tokens.begin(), in.child_tokens.end(), d.token);
    if (found != in.child_tokens.end()) d.child = in.children[found - in.child_tokens.begin()];
  } else {
    std::vector<float> p(v.size());
    float total = 0;
    for (const int32_t t : order) total += w[t];
    for (const int32_t t : order) p[t] = w[t] / total;
    for (size_t j = 0; j < in.children.size() && d.child < 0; ++j) {
      const int32_t x = in.child_tokens[j];
      if (random(in.position, 1, static_cast<uint32_t>(j)) * in.draft[x] < p[x]) {
        d.child = in.children[j];
        d.token = x;
        break;
      }
      float left = 0;
      for (size_t t = 0; t < p.size(); ++t) left += p[t] = std::max(0.0f, p[t] - in.draft[t]);
      for (float& share : p) share /= left;
    }
    if (d.child < 0) {
      order.resize(v.size());
      std::iota(order.begin(), order.end(), 0);
      d.token = draw_from(order, p, random(in.position, 2, 0));
    }
  }
  d.log_probability = (v[d.token] - top) / heat - std::log(sum);
  return d;
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
  if (temperature < 0) return 1;
  std::vector<int32_t> depth(nodes), owner(nodes);
  for (int64_t r = 0; r < requests; ++r) {
    for (int32_t i = first[r]; i < first[r + 1]; ++i) {
      const int32_t parent = parents[i];
      if (parent < -1 || parent >= i - first[r] || tokens[i] < 0 || tokens[i] >= vocab) return 1;
      owner[i] = static_cast<int32_t>(r);
      depth[i] = parent < 0 ? 1 : depth[first[r] + parent] + 1;
      if (depth[i] > steps) return 1;
      positions[i] = lengths[r] + depth[i] - 1;
      int32_t* const bits = ancestors + i * tree_words;
      if (parent < 0) {
        std::fill_n(bits, tree_words, 0);
      } else {
        std::copy_n(ancestors + (first[r] + parent) * tree_words, tree_words, bits);
      }
      const int32_t n = i - first[r];
      bits[n / 32] = static_cast<int32_t>(static_cast<uint32_t>(bits[n / 32]) | 1u << (n % 32));
    }
  }
  std::vector<Decision> decisions;
  for (int64_t row = 0; row < requests + nodes; ++row) {
    const int64_t node = row - requests;
    const int64_t r = node < 0 ? row : owner[node];
    const int32_t local = node < 0 ? -1 : static_cast<int32_t>(node - first[r]);
    RowInput in{logits + row * vocab,
                rule == 1 ? draft + row * vocab : nullptr,
                mask_words > 0 ? allowed + row * mask_words : nullptr,
                vocab,
                top_k,
                temperature,
                penalty,
                {},
                {},
                {},
                static_cast<uint32_t>(lengths[r] + (node < 0 ? 0 : depth[node]))};
    for (int64_t i = 0; i < history_tokens; ++i) {
      if (history[r * history_tokens + i] >= 0) in.seen.push_back(history[r * history_tokens + i]);
    }
    for (int32_t a = local; a >= 0; a = parents[first[r] + a])
      in.seen.push_back(tokens[first[r] + a]);
    for (int32_t i = first[r]; i < first[r + 1]; ++i) {
      if (parents[i] != local) continue;
      in.children.push_back(i - first[r]);
      in.child_tokens.push_back(tokens[i]);
    }
    decisions.push_back(decide(in, Philox(static_cast<uint32_t>(seeds[r]))));
  }
  std::fill_n(path, requests * steps, -1);
  std::fill_n(emitted, requests * (steps + 1), -1);
  std::fill_n(log_probabilities, requests * (steps + 1), 0.0f);
  for (int64_t r = 0; r < requests; ++r) {
    int32_t out = 0;
    accepted[r] = finish[r] = 0;
    for (const Decision* d = &decisions[r];;) {
      if (d->state == State::nan) return 1;
      if (d->state == State::dead) {
        finish[r] = 3;
        break;
      }
      log_probabilities[r * (steps + 1) + out] = d->log_probability;
      emitted[r * (steps + 1) + out++] = d->token;
      if (d->child >= 0) path[r * steps + accepted[r]++] = d->child;
      if (d->token == eos) {
        finish[r] = 1;
      } else if (out == limits[r]) {
        finish[r] = 2;
      }
      if (d->child < 0 || finish[r] != 0) break;
      d = &decisions[requests + first[r] + d->child];
    }
    const float* const from = cache + r * capacity * width;
    float* const to = cache_after + r * capacity * width;
    std::copy_n(from, capacity * width, to);
    for (int32_t i = 0; i < accepted[r]; ++i) {
      std::copy_n(from + (lengths[r] + path[r * steps + i]) * width, width,
                  to + (lengths[r] + i) * width);
    }
    std::fill(to + (lengths[r] + accepted[r]) * width, to + capacity * width, 0.0f);
  }
  return 0;
}
