// Single precision throughout; a heap of the best continuations, texts as nodes with parents.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

struct Candidate {
  float sum;
  int32_t parent, token;
  bool operator<(const Candidate& o) const {  // better first
    if (sum != o.sum) return sum > o.sum;
    return parent != o.parent ? parent < o.parent : token < o.token;
  }
};
struct Node {
  int32_t token, parent;
};
struct Beam {
  int32_t node, state;
  float sum;
};
struct Done {
  int32_t node, length, how;
  float sum, score;
};

}  // namespace

extern "C" int beam_search(int64_t prompts, int64_t, int64_t vocab, int64_t beams,
                           int64_t max_tokens, int64_t min_tokens, int64_t eos_count,
                           float length_penalty, const float* logits, const int32_t* next,
                           const int32_t* start, const int32_t*, const int32_t* eos,
                           int32_t* tokens, int32_t* lengths, int32_t* finish, float* sums,
                           float* scores) {
  if (beams < 1) return 1;
  std::vector<char> ends(static_cast<size_t>(vocab));
  for (int64_t i = 0; i < eos_count; ++i) ends[eos[i]] = 1;
  // The K best that run on are among the first K + endings of each beam.
  const auto keep = static_cast<size_t>(beams * (1 + eos_count) + 1);
  std::vector<Candidate> heap;
  for (int64_t p = 0; p < prompts; ++p) {
    std::vector<Node> nodes;
    std::vector<Beam> running{{-1, start[p], 0}};
    std::vector<Done> pool;
    for (int64_t g = 1; g <= max_tokens && !running.empty(); ++g) {
      heap.clear();
      for (size_t b = 0; b < running.size(); ++b) {
        const float* row = logits + running[b].state * vocab;
        float top = row[0], sum = 0;
        for (int64_t v = 0; v < vocab; ++v) {
          if (std::isnan(row[v])) return 1;
          top = std::max(top, row[v]);
        }
        if (std::isinf(top)) continue;
        for (int64_t v = 0; v < vocab; ++v) sum += std::exp(row[v] - top);
        const float lg = std::log(sum);
        for (int64_t v = 0; v < vocab; ++v) {
          if (std::isinf(row[v]) || (ends[v] && g <= min_tokens)) continue;
          const Candidate c{running[b].sum + ((row[v] - top) - lg), static_cast<int32_t>(b),
                            static_cast<int32_t>(v)};
          if (heap.size() == keep && !(c < heap.front())) continue;
          if (heap.size() == keep) {
            std::pop_heap(heap.begin(), heap.end());
            heap.pop_back();
          }
          heap.push_back(c);
          std::push_heap(heap.begin(), heap.end());
        }
      }
      std::sort_heap(heap.begin(), heap.end());
      std::vector<Beam> on;
      for (size_t i = 0; i < heap.size(); ++i) {
        const Candidate& c = heap[i];
        const bool first = i < static_cast<size_t>(beams), end = ends[c.token] || g == max_tokens;
        if (end ? !first : on.size() == static_cast<size_t>(beams)) continue;
        nodes.push_back({c.token, running[c.parent].node});
        const auto node = static_cast<int32_t>(nodes.size()) - 1;
        if (!end) {
          on.push_back({node, next[running[c.parent].state * vocab + c.token], c.sum});
          continue;
        }
        const Done done{node, static_cast<int32_t>(g), ends[c.token] ? 1 : 2, c.sum,
                        c.sum / std::pow(static_cast<float>(g), length_penalty)};
        const auto at = std::find_if(pool.begin(), pool.end(),
                                     [&](const Done& d) { return d.score < done.score; });
        pool.insert(at, done);
        if (pool.size() > static_cast<size_t>(beams)) pool.pop_back();
      }
      running = on;
      if (pool.size() < static_cast<size_t>(beams) || running.empty()) continue;
      const auto far = static_cast<float>(length_penalty > 0 ? max_tokens : g);
      if (running[0].sum / std::pow(far, length_penalty) <= pool.back().score) break;
    }
    for (int64_t b = 0; b < beams; ++b) {
      const int64_t at = p * beams + b;
      std::fill_n(tokens + at * max_tokens, max_tokens, -1);
      lengths[at] = finish[at] = 0;
      if (b >= static_cast<int64_t>(pool.size())) continue;
      const Done& d = pool[b];
      int32_t place = d.length;
      for (int32_t n = d.node; n >= 0; n = nodes[n].parent) {
        tokens[at * max_tokens + --place] = nodes[n].token;
      }
      lengths[at] = d.length;
      finish[at] = d.how;
      sums[at] = d.sum;
      scores[at] = d.score;
    }
  }
  return 0;
}
