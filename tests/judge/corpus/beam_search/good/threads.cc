// One thread per share of the prompts; log-softmax of a state computed once and kept for the call.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

namespace {

struct Row {
  std::once_flag once;
  double top = 0, log_sum = 0;
  bool nan = false;
};
struct Text {
  std::vector<int32_t> tokens;
  int32_t state;
  double sum, score;
  int how;
};

}  // namespace

extern "C" int beam_search(int64_t prompts, int64_t states, int64_t vocab, int64_t beams,
                           int64_t max_tokens, int64_t min_tokens, int64_t eos_count,
                           float length_penalty, const float* logits, const int32_t* next,
                           const int32_t* start, const int32_t*, const int32_t* eos,
                           int32_t* tokens, int32_t* lengths, int32_t* finish, float* sums,
                           float* scores) {
  if (beams < 1) return 1;
  std::vector<Row> rows(static_cast<size_t>(states));
  std::vector<bool> ends(static_cast<size_t>(vocab));
  for (int64_t i = 0; i < eos_count; ++i) ends[eos[i]] = true;
  const auto k = static_cast<size_t>(beams);
  std::atomic<bool> nan{false};
  const auto row_of = [&](int32_t s) -> const Row& {
    Row& row = rows[s];
    std::call_once(row.once, [&] {
      const float* v = logits + int64_t{s} * vocab;
      row.nan = std::any_of(v, v + vocab, [](float x) { return std::isnan(x); });
      row.top = *std::max_element(v, v + vocab);
      double sum = 0;
      for (int64_t i = 0; i < vocab && !std::isinf(row.top); ++i) sum += std::exp(v[i] - row.top);
      row.log_sum = std::log(sum);
    });
    return row;
  };
  const auto search = [&](int64_t p) {
    std::vector<Text> running{{{}, start[p], 0, 0, 0}}, pool;
    for (int64_t g = 1; g <= max_tokens && !running.empty(); ++g) {
      std::vector<std::tuple<double, size_t, int32_t>> all;  // negative sum, parent, token
      for (size_t b = 0; b < running.size(); ++b) {
        const Row& row = row_of(running[b].state);
        if (row.nan) nan = true;
        if (row.nan || std::isinf(row.top)) continue;
        const float* v = logits + int64_t{running[b].state} * vocab;
        for (int64_t i = 0; i < vocab; ++i) {
          if (std::isinf(v[i]) || (ends[i] && g <= min_tokens)) continue;
          all.emplace_back(-(running[b].sum + (v[i] - row.top - row.log_sum)), b, int32_t(i));
        }
      }
      const size_t most = std::min(all.size(), k * (1 + static_cast<size_t>(eos_count)) + 1);
      std::partial_sort(all.begin(), all.begin() + most, all.end());
      std::vector<Text> on;
      for (size_t i = 0; i < most; ++i) {
        const auto [negative, parent, token] = all[i];
        const bool end = ends[token] || g == max_tokens;
        if (end ? i >= k : on.size() == k) continue;
        Text text = running[parent];
        text.tokens.push_back(token);
        text.sum = -negative;
        text.score = text.sum / std::pow(double(g), double(length_penalty));
        text.how = ends[token] ? 1 : 2;
        text.state = next[int64_t{running[parent].state} * vocab + token];
        (end ? pool : on).push_back(std::move(text));
      }
      std::stable_sort(pool.begin(), pool.end(),
                       [](const Text& a, const Text& b) { return a.score > b.score; });
      if (pool.size() > k) pool.resize(k);
      running = std::move(on);
      if (pool.size() == k && !running.empty() &&
          running[0].sum /
                  std::pow(double(length_penalty > 0 ? max_tokens : g), double(length_penalty)) <=
              pool.back().score) {
        break;
      }
    }
    for (size_t b = 0; b < k; ++b) {
      const size_t at = static_cast<size_t>(p) * k + b;
      std::fill_n(tokens + at * max_tokens, max_tokens, -1);
      lengths[at] = finish[at] = 0;
      if (b >= pool.size()) continue;
      std::copy(pool[b].tokens.begin(), pool[b].tokens.end(), tokens + at * max_tokens);
      lengths[at] = static_cast<int32_t>(pool[b].tokens.size());
      finish[at] = pool[b].how;
      sums[at] = float(pool[b].sum);
      scores[at] = float(pool[b].score);
    }
  };
  std::atomic<int64_t> turn{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int64_t p; (p = turn++) < prompts;) search(p);
    });
  }
  for (std::thread& t : threads) t.join();
  return nan ? 1 : 0;
}
