// Each running beam hands out its continuations best first, from a heap of its row; a queue merges the
// beams until enough run on. Texts are chains of nodes that know their parent.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <queue>
#include <tuple>
#include <unordered_set>
#include <vector>

namespace {

struct Node {
  const Node* parent;
  int32_t token, state;
  double sum;
};

struct Finished {
  const Node* end;
  double score;
  int32_t length, how;
};

class Row {
 public:
  Row(const float* logits, int64_t vocab, const std::unordered_set<int32_t>& closed) {
    double top = -INFINITY, sum = 0;
    for (int64_t v = 0; v < vocab; ++v) {
      nan_ |= std::isnan(logits[v]);
      top = std::max(top, static_cast<double>(logits[v]));
    }
    if (nan_ || std::isinf(top)) return;
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(logits[v] - top);
    const double log_sum = std::log(sum);
    for (int64_t v = 0; v < vocab; ++v) {
      const auto token = static_cast<int32_t>(v);
      if (std::isinf(logits[v]) || closed.count(token)) continue;
      heap_.emplace_back(logits[v] - top - log_sum, -token);
    }
    std::make_heap(heap_.begin(), heap_.end());
  }
  bool nan() const { return nan_; }
  bool empty() const { return heap_.empty(); }
  std::pair<double, int32_t> pop() {
    std::pop_heap(heap_.begin(), heap_.end());
    const auto [log_p, token] = heap_.back();
    heap_.pop_back();
    return {log_p, -token};
  }

 private:
  std::vector<std::pair<double, int32_t>> heap_;  // equal ones: lower tokens first
  bool nan_ = false;
};

}  // namespace

extern "C" int beam_search(int64_t prompts, int64_t, int64_t vocab, int64_t beams,
                           int64_t max_tokens, int64_t min_tokens, int64_t eos_count,
                           float length_penalty, const float* logits, const int32_t* next,
                           const int32_t* start, const int32_t*, const int32_t* eos,
                           int32_t* tokens, int32_t* lengths, int32_t* finish,
                           float* log_probabilities, float* scores) {
  if (beams < 1) return 1;
  const std::unordered_set<int32_t> ends(eos, eos + eos_count), none;
  const double alpha = length_penalty;
  const auto score_of = [&](double sum, int64_t g) {
    return sum / std::pow(static_cast<double>(g), alpha);
  };
  for (int64_t p = 0; p < prompts; ++p) {
    std::deque<Node> nodes = {{nullptr, -1, start[p], 0}};
    std::vector<const Node*> running = {&nodes.front()};
    std::vector<Finished> pool;
    const auto wanted = static_cast<size_t>(beams);
    for (int64_t g = 1; g <= max_tokens && !running.empty(); ++g) {
      // Sum, then the better parent, then the lower token. A row is popped in the order of its tokens'
      // logarithms; sums of equal ones are equal.
      std::vector<Row> rows;
      using Entry = std::tuple<double, int64_t, int32_t>;
      std::priority_queue<Entry> queue;
      const auto refill = [&](int64_t b) {
        Row& row = rows[static_cast<size_t>(b)];
        if (row.empty()) return;
        const auto [log_p, token] = row.pop();
        queue.emplace(running[static_cast<size_t>(b)]->sum + log_p, -b, -token);
      };
      for (const Node* beam : running) {
        rows.emplace_back(logits + beam->state * vocab, vocab, g <= min_tokens ? ends : none);
        if (rows.back().nan()) return 2;
      }
      for (size_t b = 0; b < rows.size(); ++b) refill(static_cast<int64_t>(b));
      std::vector<const Node*> on;
      for (size_t rank = 0; !queue.empty() && on.size() < wanted; ++rank) {
        if (g == max_tokens && rank >= wanted) break;
        const auto [sum, minus_b, minus_token] = queue.top();
        queue.pop();
        const Node* parent = running[static_cast<size_t>(-minus_b)];
        const int32_t token = -minus_token;
        refill(-minus_b);
        const bool ended = ends.count(token) != 0;
        if (ended && rank >= wanted) continue;
        nodes.push_back({parent, token, next[parent->state * vocab + token], sum});
        if (ended || g == max_tokens) {
          const Finished text{&nodes.back(), score_of(sum, g), static_cast<int32_t>(g),
                              ended ? 1 : 2};
          const auto worse = [](double score, const Finished& other) {
            return score > other.score;
          };
          pool.insert(std::upper_bound(pool.begin(), pool.end(), text.score, worse), text);
          if (pool.size() > wanted) pool.pop_back();
        } else {
          on.push_back(&nodes.back());
        }
      }
      running.swap(on);
      if (running.empty() || pool.size() < wanted) continue;
      const double best = score_of(running[0]->sum, alpha > 0 ? max_tokens : g);
      if (best <= pool.back().score) break;
    }
    for (size_t b = 0; b < wanted; ++b) {
      const size_t at = static_cast<size_t>(p) * wanted + b;
      int32_t* text = tokens + at * static_cast<size_t>(max_tokens);
      std::fill_n(text, max_tokens, -1);
      const bool there = b < pool.size();
      lengths[at] = there ? pool[b].length : 0;
      finish[at] = there ? pool[b].how : 0;
      log_probabilities[at] = there ? static_cast<float>(pool[b].end->sum) : 0;
      scores[at] = there ? static_cast<float>(pool[b].score) : 0;
      int32_t place = lengths[at];
      for (const Node* n = there ? pool[b].end : nullptr; place > 0; n = n->parent) {
        text[--place] = n->token;
      }
    }
  }
  return 0;
}
