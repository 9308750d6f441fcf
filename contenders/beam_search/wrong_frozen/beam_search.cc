// Wrong in one famous way: a text that has ended is set aside, and the search ends with whatever
// ended last; texts that ended earlier with a better score are forgotten.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

namespace {

struct Text {
  std::vector<int32_t> tokens;
  int64_t state = 0;
  double sum = 0, score = 0;
  bool ended = false;
};

}  // namespace

extern "C" int beam_search(int64_t prompts, int64_t, int64_t vocab, int64_t beams,
                           int64_t max_tokens, int64_t min_tokens, int64_t eos_count,
                           float length_penalty, const float* logits, const int32_t* next,
                           const int32_t* start, const int32_t*, const int32_t* eos,
                           int32_t* tokens, int32_t* lengths, int32_t* finish, float* sums,
                           float* scores) {
  if (beams < 1) return 1;
  const std::set<int32_t> endings(eos, eos + eos_count);
  const auto k = static_cast<size_t>(beams);
  const auto by_score = [](const Text& a, const Text& b) { return a.score > b.score; };
  for (int64_t p = 0; p < prompts; ++p) {
    std::vector<Text> running(1), pool;
    running[0].state = start[p];
    for (int64_t g = 1; g <= max_tokens && !running.empty(); ++g) {
      std::vector<Text> all;
      for (const Text& beam : running) {
        const float* row = logits + beam.state * vocab;
        double top = -INFINITY, sum = 0;
        for (int64_t v = 0; v < vocab; ++v) {
          if (std::isnan(row[v])) return 1;
          top = std::max<double>(top, row[v]);
        }
        if (std::isinf(top)) continue;
        for (int64_t v = 0; v < vocab; ++v) sum += std::exp(row[v] - top);
        for (int64_t v = 0; v < vocab; ++v) {
          const bool ends = endings.count(static_cast<int32_t>(v)) > 0;
          if (std::isinf(row[v]) || (ends && g <= min_tokens)) continue;
          Text text = beam;
          text.tokens.push_back(static_cast<int32_t>(v));
          text.state = next[beam.state * vocab + v];
          text.sum += row[v] - top - std::log(sum);
          text.score = text.sum / std::pow(g, double(length_penalty));
          text.ended = ends;
          all.push_back(text);
        }
      }
      std::stable_sort(all.begin(), all.end(),
                       [](const Text& a, const Text& b) { return a.sum > b.sum; });
      running.clear();
      std::vector<Text> fresh;
      for (size_t i = 0; i < all.size(); ++i) {
        if (all[i].ended || g == max_tokens) {
          if (i < k) fresh.push_back(all[i]);
        } else if (running.size() < k) {
          running.push_back(all[i]);
        }
      }
      if (!fresh.empty()) pool = fresh;
      std::stable_sort(pool.begin(), pool.end(), by_score);
      if (pool.size() > k) pool.resize(k);
      if (pool.size() < k || running.empty()) continue;
      const double reach =
          running[0].sum / std::pow(length_penalty > 0 ? max_tokens : g, double(length_penalty));
      if (reach <= pool.back().score) break;
    }
    for (size_t b = 0; b < k; ++b) {
      const size_t at = static_cast<size_t>(p) * k + b;
      std::fill_n(tokens + at * max_tokens, max_tokens, -1);
      lengths[at] = finish[at] = 0;
      if (b >= pool.size()) continue;
      std::copy(pool[b].tokens.begin(), pool[b].tokens.end(), tokens + at * max_tokens);
      lengths[at] = static_cast<int32_t>(pool[b].tokens.size());
      finish[at] = pool[b].ended ? 1 : 2;
      sums[at] = static_cast<float>(pool[b].sum);
      scores[at] = static_cast<float>(pool[b].score);
    }
  }
  return 0;
}
