#include "theirs.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

namespace {

double random_number(uint32_t seed, uint32_t position, uint32_t stream, uint32_t index) {
  uint32_t x0 = position, x1 = 0, x2 = stream, x3 = index, k0 = seed, k1 = 0;
  for (int i = 0; i < 10; ++i) {
    const uint64_t a = 0xD2511F53ull * x0, b = 0xCD9E8D57ull * x2;
    x0 = static_cast<uint32_t>(b >> 32) ^ x1 ^ k0;
    x1 = static_cast<uint32_t>(b);
    x2 = static_cast<uint32_t>(a >> 32) ^ x3 ^ k1;
    x3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return (static_cast<double>((static_cast<uint64_t>(x1) << 32 | x0) >> 12) + 0.5) /
         4503599627370496.0;
}

struct Candidate {
  int token;
  double value, weight;
};

int pick(const std::vector<Candidate>& list, double u) {
  double total = 0, sum = 0;
  for (const Candidate& c : list) total += c.weight;
  int last = -1;
  for (const Candidate& c : list) {
    if (c.weight == 0) continue;
    sum += c.weight;
    last = c.token;
    if (sum > u * total) break;
  }
  return last;
}

// All candidates by token, weighted; `logs` gets the log-probability of each.
std::vector<Candidate> weigh(const std::vector<double>& logits, const std::map<int, int>& counts,
                             const VerifyOptions& o, std::vector<double>& logs) {
  std::vector<Candidate> list;
  double best = -INFINITY;
  for (int t = 0; t < static_cast<int>(logits.size()); ++t) {
    const auto seen = counts.find(t);
    const double v = logits[t] - (seen == counts.end() ? 0 : o.frequency_penalty * seen->second);
    list.push_back({t, v, 0});
    best = std::max(best, v);
  }
  if (std::isinf(best)) return {};
  const double t = o.temperature > 0 ? o.temperature : 1;
  double total = 0;
  for (Candidate& c : list) total += c.weight = std::exp((c.value - best) / t);
  for (const Candidate& c : list) logs.push_back((c.value - best) / t - std::log(total));
  return list;
}

void keep_best(std::vector<Candidate>& list, size_t count) {
  std::stable_sort(list.begin(), list.end(),
                   [](const Candidate& a, const Candidate& b) { return a.value > b.value; });
  list.resize(std::min(count, list.size()));
}

}  // namespace

Verified verify_tree(const std::vector<DraftNode>& tree, const std::vector<int>& recent,
                     int text_length, const VerifyOptions& o,
                     const std::function<Scores(int)>& scores_after) {
  Verified result;
  std::map<int, int> counts;
  for (const int token : recent) ++counts[token];
  for (int node = -1;;) {
    const auto position = static_cast<uint32_t>(text_length + result.nodes.size());
    const Scores scores = scores_after(node);
    for (const double v : scores.logits) {
      if (std::isnan(v)) throw std::invalid_argument("NaN");
    }
    std::vector<double> logs;
    std::vector<Candidate> list = weigh(scores.logits, counts, o, logs);
    if (list.empty()) {
      result.stop = Stop::nothing_allowed;
      return result;
    }
    const size_t vocabulary = list.size();
    const bool cut = o.top_k > 0 && static_cast<size_t>(o.top_k) < vocabulary;
    if (o.temperature == 0 || cut) keep_best(list, o.temperature == 0 ? 1 : o.top_k);
    int chosen = -1, next = -1;
    if (o.rejection) {
      std::vector<double> p(vocabulary);
      double total = 0;
      for (const Candidate& c : list) total += c.weight;
      for (const Candidate& c : list) p[c.token] = c.weight / total;
      uint32_t child = 0;
      for (int i = 0; i < static_cast<int>(tree.size()) && next < 0; ++i) {
        if (tree[i].parent != node) continue;
        const int x = tree[i].token;
        if (random_number(o.seed, position, 1, child++) * scores.draft[x] < p[x]) {
          chosen = x;
          next = i;
          break;
        }
        double left = 0;
        for (size_t t = 0; t < vocabulary; ++t) left += std::max(0.0, p[t] - scores.draft[t]);
        for (size_t t = 0; t < vocabulary && left > 0; ++t) {
          p[t] = std::max(0.0, p[t] - scores.draft[t]) / left;
        }
      }
      if (next < 0) {
        std::vector<Candidate> rest;
        for (size_t t = 0; t < vocabulary; ++t) rest.push_back({static_cast<int>(t), 0, p[t]});
        chosen = pick(rest, random_number(o.seed, position, 2, 0));
      }
    } else {
      chosen =
          o.temperature == 0 ? list[0].token : pick(list, random_number(o.seed, position, 0, 0));
      for (int i = static_cast<int>(tree.size()) - 1; i >= 0; --i) {
        if (tree[i].parent == node && tree[i].token == chosen) next = i;
      }
    }
    result.tokens.push_back(chosen);
    result.logprobs.push_back(logs[chosen]);
    if (next >= 0) result.nodes.push_back(next);
    if (chosen == o.stop_token) {
      result.stop = Stop::stop_token;
    } else if (static_cast<int>(result.tokens.size()) == o.max_new) {
      result.stop = Stop::length;
    }
    if (next < 0 || result.stop != Stop::none) return result;
    ++counts[chosen];
    node = next;
  }
}
