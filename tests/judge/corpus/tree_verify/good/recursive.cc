// The walk as a recursion over nodes, weights as logarithms, uniforms held against the mass that is left
// behind a token.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <vector>

namespace {

using Row = std::vector<double>;

double uniform(uint64_t seed, uint64_t position, uint64_t purpose, uint64_t draw) {
  constexpr uint64_t low = 0xffffffffu;
  uint64_t x = position, y = 0, z = purpose, w = draw, a = seed & low, b = 0;
  for (int round = 0; round != 10; ++round) {
    const uint64_t first = 0xD2511F53u * x, second = 0xCD9E8D57u * z;
    x = (second >> 32) ^ y ^ a;
    z = (first >> 32) ^ w ^ b;
    y = second & low;
    w = first & low;
    a = (a + 0x9E3779B9u) & low;
    b = (b + 0xBB67AE85u) & low;
  }
  return std::ldexp(static_cast<double>((y << 32 | x) >> 12) + 0.5, -52);
}

double log_sum(const Row& values) {
  const double top = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (const double v : values) sum += std::exp(v - top);
  return top + std::log(sum);
}

// The last token whose mass and that behind it exceed 1 - u.
int32_t pick(const std::vector<int32_t>& order, const Row& p, double u) {
  double behind = 0, total = 0;
  for (const int32_t t : order) total += p[t];
  for (size_t i = order.size(); i-- > 0;) {
    if (p[order[i]] == 0) continue;
    behind += p[order[i]];
    if (behind >= (1 - u) * total) return order[i];
  }
  for (const int32_t t : order) {
    if (p[t] > 0) return t;
  }
  return order[0];
}

struct Walk {
  std::vector<int32_t> path, tokens;
  std::vector<float> scores;
  int32_t finish = 0;
  bool nan = false;
};

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
  std::fill(ancestors, ancestors + nodes * tree_words, 0);
  for (int64_t r = 0; r < requests; ++r) {
    const int32_t begin = first[r], end = first[r + 1];
    std::vector<std::vector<int32_t>> children(static_cast<size_t>(end - begin) + 1);
    std::vector<std::set<int32_t>> line(children.size());
    for (int32_t i = begin; i < end; ++i) {
      const int32_t n = i - begin, parent = parents[i];
      if (parent >= n || parent < -1 || tokens[i] >= vocab || tokens[i] < 0) return 1;
      children[parent + 1].push_back(n);
      line[n + 1] = line[parent + 1];
      line[n + 1].insert(n);
      if (static_cast<int64_t>(line[n + 1].size()) > steps) return 1;
      positions[i] = lengths[r] - 1 + static_cast<int32_t>(line[n + 1].size());
      for (const int32_t a : line[n + 1]) {
        ancestors[i * tree_words + a / 32] += static_cast<int32_t>(1u << (a % 32));
      }
    }
    Walk walk;
    const double heat = temperature == 0 ? 1 : static_cast<double>(temperature);
    const std::function<void(int32_t)> visit = [&](int32_t node) {
      const int64_t row = node < 0 ? r : requests + begin + node;
      Row v(logits + row * vocab, logits + (row + 1) * vocab);
      for (const double x : v) walk.nan = walk.nan || std::isnan(x);
      if (walk.nan) return;
      for (int64_t i = 0; i < history_tokens; ++i) {
        const int32_t t = history[r * history_tokens + i];
        if (t >= 0) v[t] -= penalty;
      }
      for (const int32_t n : walk.path) v[tokens[begin + n]] -= penalty;
      for (int64_t t = 0; t < vocab && mask_words > 0; ++t) {
        const auto word = static_cast<uint32_t>(allowed[row * mask_words + t / 32]);
        if (!(word & 1u << (t % 32))) v[t] = -std::numeric_limits<double>::infinity();
      }
      if (std::all_of(v.begin(), v.end(), [](double x) { return std::isinf(x); })) {
        walk.finish = 3;
        return;
      }
      std::vector<int32_t> order(static_cast<size_t>(vocab)), by_token(order);
      for (int32_t t = 0; t < vocab; ++t) order[t] = by_token[t] = t;
      const int64_t most = temperature == 0 ? 1 : top_k > 0 && top_k < vocab ? top_k : vocab;
      if (most < vocab || temperature == 0) {
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return v[a] > v[b]; });
        order.resize(static_cast<size_t>(most));
      }
      for (double& x : v) x /= heat;
      const double all = log_sum(v);
      Row kept;
      for (const int32_t t : order) kept.push_back(v[t]);
      const double share = log_sum(kept);
      Row p(v.size(), 0.0);
      for (const int32_t t : order) p[t] = std::exp(v[t] - share);
      const auto seed = static_cast<uint32_t>(seeds[r]);
      const uint64_t position = static_cast<uint64_t>(lengths[r]) + walk.path.size();
      std::optional<int32_t> next;
      int32_t token = -1;
      if (rule == 1) {
        const float* const q = draft + row * vocab;
        for (size_t j = 0; j < children[node + 1].size() && !next; ++j) {
          const int32_t n = children[node + 1][j], x = tokens[begin + n];
          if (uniform(seed, position, 1, j) * q[x] < p[x]) {
            next = n;
            token = x;
          } else {
            double left = 0;
            for (int64_t t = 0; t < vocab; ++t) left += std::max(0.0, p[t] - q[t]);
            for (int64_t t = 0; t < vocab; ++t) p[t] = std::max(0.0, p[t] - q[t]) / left;
          }
        }
        if (!next) token = pick(by_token, p, uniform(seed, position, 2, 0));
      } else {
        token = pick(order, p, uniform(seed, position, 0, 0));
        for (const int32_t n : children[node + 1]) {
          if (!next && tokens[begin + n] == token) next = n;
        }
      }
      walk.tokens.push_back(token);
      walk.scores.push_back(static_cast<float>(v[token] - all));
      if (next) walk.path.push_back(*next);
      walk.finish = token == eos                                            ? 1
                    : static_cast<int64_t>(walk.tokens.size()) == limits[r] ? 2
                                                                            : 0;
      if (next && walk.finish == 0) visit(*next);
    };
    visit(-1);
    if (walk.nan) return 1;
    walk.path.resize(static_cast<size_t>(steps), -1);
    walk.tokens.resize(static_cast<size_t>(steps) + 1, -1);
    walk.scores.resize(static_cast<size_t>(steps) + 1, 0.0f);
    const auto kept = static_cast<int32_t>(
        std::count_if(walk.path.begin(), walk.path.end(), [](int32_t n) { return n >= 0; }));
    std::copy(walk.path.begin(), walk.path.end(), path + r * steps);
    std::copy(walk.tokens.begin(), walk.tokens.end(), emitted + r * (steps + 1));
    std::copy(walk.scores.begin(), walk.scores.end(), log_probabilities + r * (steps + 1));
    accepted[r] = kept;
    finish[r] = walk.finish;
    for (int64_t k = 0; k < capacity; ++k) {
      const int64_t d = k - lengths[r];
      for (int64_t i = 0; i < width; ++i) {
        const int64_t from = d < 0 ? k : d < kept ? lengths[r] + walk.path[d] : -1;
        cache_after[(r * capacity + k) * width + i] =
            from < 0 ? 0.0f : cache[(r * capacity + from) * width + i];
      }
    }
  }
  return 0;
}
