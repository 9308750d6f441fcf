// Sorts the row of a state once and merges the rows of the beams; texts are chains of parents.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <queue>
#include <vector>

namespace {

struct Node {
  int64_t parent;
  int32_t token, state;
  double sum;
};
struct Finished {
  int64_t node;
  double score;
  int how;
};
struct Candidate {
  double sum;
  size_t beam, rank;  // rank: in the sorted row
  int32_t token;
  bool operator<(const Candidate& o) const {  // the best is the largest
    if (sum != o.sum) return sum < o.sum;
    return beam != o.beam ? beam > o.beam : token > o.token;
  }
};

// The tokens of a state that can follow, the likeliest first, with their log-probabilities.
struct Row {
  std::vector<int32_t> tokens;
  std::vector<double> log_probability;
  bool nan = false;

  Row() = default;
  Row(const float* logits, int64_t vocab) {
    for (int64_t v = 0; v < vocab; ++v) {
      nan = nan || std::isnan(logits[v]);
      if (logits[v] > -INFINITY) tokens.push_back(static_cast<int32_t>(v));
    }
    if (nan || tokens.empty()) return;
    std::stable_sort(tokens.begin(), tokens.end(),
                     [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    const double top = logits[tokens[0]];
    const double total = std::accumulate(
        tokens.rbegin(), tokens.rend(), 0.0,
        [&](double sum, int32_t token) { return sum + std::exp(logits[token] - top); });
    for (int32_t token : tokens) log_probability.push_back(logits[token] - top - std::log(total));
  }
};

}  // namespace

extern "C" int beam_search(int64_t prompts, int64_t, int64_t vocab, int64_t beams,
                           int64_t max_tokens, int64_t min_tokens, int64_t eos_count,
                           float length_penalty, const float* logits, const int32_t* next,
                           const int32_t* start, const int32_t*, const int32_t* eos,
                           int32_t* tokens, int32_t* lengths, int32_t* finish, float* sums,
                           float* scores) {
  if (beams < 1) return 1;
  std::map<int32_t, Row> rows;
  const auto row_of = [&](int32_t state) -> const Row& {
    const auto [at, fresh] = rows.try_emplace(state);
    if (fresh) at->second = Row(logits + int64_t{state} * vocab, vocab);
    return at->second;
  };
  const auto k = static_cast<size_t>(beams);
  const double alpha = length_penalty;
  for (int64_t p = 0; p < prompts; ++p) {
    std::vector<Node> nodes{{-1, -1, start[p], 0}};
    std::vector<int64_t> running{0};
    std::vector<Finished> pool;
    for (int64_t g = 1; g <= max_tokens && !running.empty(); ++g) {
      std::priority_queue<Candidate> heads;
      const auto push = [&](size_t beam, size_t rank) {
        const Node& node = nodes[running[beam]];
        const Row& row = row_of(node.state);
        for (; rank < row.tokens.size(); ++rank) {
          const int32_t token = row.tokens[rank];
          if (g <= min_tokens && std::find(eos, eos + eos_count, token) != eos + eos_count)
            continue;
          heads.push({node.sum + row.log_probability[rank], beam, rank, token});
          return;
        }
      };
      for (size_t b = 0; b < running.size(); ++b) {
        if (row_of(nodes[running[b]].state).nan) return 1;
        push(b, 0);
      }
      std::vector<int64_t> following;
      for (size_t i = 0; !heads.empty() && (i < k || following.size() < k); ++i) {
        const Candidate best = heads.top();
        heads.pop();
        const bool ended = std::find(eos, eos + eos_count, best.token) != eos + eos_count;
        if (ended || g == max_tokens ? i < k : following.size() < k) {
          const int64_t parent = running[best.beam];
          const int32_t state = next[int64_t{nodes[parent].state} * vocab + best.token];
          nodes.push_back({parent, best.token, state, best.sum});
          const auto node = static_cast<int64_t>(nodes.size()) - 1;
          if (ended || g == max_tokens) {
            pool.push_back({node, best.sum / std::pow(double(g), alpha), ended ? 1 : 2});
          } else {
            following.push_back(node);
          }
        }
        push(best.beam, best.rank + 1);
      }
      running = following;
      std::stable_sort(pool.begin(), pool.end(),
                       [](const Finished& a, const Finished& b) { return a.score > b.score; });
      if (pool.size() > k) pool.resize(k);
      if (pool.size() < k || running.empty()) continue;
      const double length = alpha > 0 ? double(max_tokens) : double(g);
      if (nodes[running[0]].sum / std::pow(length, alpha) <= pool.back().score) break;
    }
    for (size_t b = 0; b < k; ++b) {
      const size_t at = static_cast<size_t>(p) * k + b;
      int32_t* const text = tokens + at * static_cast<size_t>(max_tokens);
      std::fill_n(text, max_tokens, -1);
      lengths[at] = finish[at] = 0;
      if (b >= pool.size()) continue;
      int32_t length = 0;
      for (int64_t n = pool[b].node; nodes[n].parent >= 0; n = nodes[n].parent)
        text[length++] = nodes[n].token;
      std::reverse(text, text + length);
      lengths[at] = length;
      finish[at] = pool[b].how;
      sums[at] = static_cast<float>(nodes[pool[b].node].sum);
      scores[at] = static_cast<float>(pool[b].score);
    }
  }
  return 0;
}
