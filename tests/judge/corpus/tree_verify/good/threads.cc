// Requests are shared out to threads; each decodes its request as if there were no tree, keeping the set
// of nodes that still agree with what was emitted.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

struct Arguments {
  int64_t requests, vocab, steps, tree_words, mask_words, history_tokens, capacity, width, rule;
  int64_t top_k, eos;
  float temperature, penalty;
  const float *logits, *draft;
  const int32_t *allowed, *first, *tokens, *parents, *lengths, *limits, *seeds, *history;
  const float* cache;
  int32_t *path, *accepted, *emitted, *finish;
  float* log_probabilities;
  int32_t *positions, *ancestors;
  float* cache_after;
};

double uniform(uint32_t seed, uint32_t position, uint32_t purpose, uint32_t draw) {
  std::array<uint32_t, 4> c = {position, 0, purpose, draw};
  std::array<uint32_t, 2> k = {seed, 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
    c = {uint32_t(b >> 32) ^ c[1] ^ k[0], uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ k[1],
         uint32_t(a)};
    k = {k[0] + 0x9E3779B9u, k[1] + 0xBB67AE85u};
  }
  return (double((uint64_t(c[1]) << 32 | c[0]) >> 12) + 0.5) * 0x1p-52;
}

struct Entry {
  double value, weight;
  int32_t token;
};

int32_t pick(const std::vector<Entry>& list, double u) {
  double total = 0;
  for (const Entry& e : list) total += e.weight;
  double left = u * total;
  int32_t last = -1;
  for (const Entry& e : list) {
    if (e.weight == 0) continue;
    last = e.token;
    if ((left -= e.weight) < 0) break;
  }
  return last;
}

class Decoder {
 public:
  Decoder(const Arguments& arguments, int64_t request) : a(arguments), r(request) {
    begin = a.first[r];
    count = a.first[r + 1] - begin;
  }

  bool run() {
    if (!describe()) return false;
    for (int64_t i = 0; i < a.history_tokens; ++i) {
      const int32_t token = a.history[r * a.history_tokens + i];
      if (token >= 0) seen[token] += 1;
    }
    std::vector<int32_t> path, emitted;
    int32_t finish = 0;
    std::fill_n(a.log_probabilities + r * (a.steps + 1), a.steps + 1, 0.0f);
    while (finish == 0) {
      const int32_t node = path.empty() ? -1 : path.back();
      const int64_t row = node < 0 ? r : a.requests + begin + node;
      std::vector<Entry> all = entries(row);
      double top = -INFINITY, sum = 0;
      for (const Entry& e : all) {
        if (std::isnan(e.value)) return false;
        top = std::max(top, e.value);
      }
      if (all.empty() || std::isinf(top)) {
        finish = 3;
        break;
      }
      const double heat = a.temperature > 0 ? double(a.temperature) : 1;
      for (Entry& e : all) sum += e.weight = std::exp((e.value - top) / heat);
      std::vector<int32_t> candidates;
      for (int32_t n = 0; n < count; ++n) {
        if (a.parents[begin + n] == node) candidates.push_back(n);
      }
      int32_t child = -1;
      const int32_t token =
          choose(all, row, uint32_t(a.lengths[r]) + uint32_t(path.size()), candidates, child);
      double value = 0;
      for (const Entry& e : all) value = e.token == token ? e.value : value;
      a.log_probabilities[r * (a.steps + 1) + int64_t(emitted.size())] =
          float((value - top) / heat - std::log(sum));
      emitted.push_back(token);
      if (token == a.eos) {
        finish = 1;
      } else if (int64_t(emitted.size()) == a.limits[r]) {
        finish = 2;
      }
      if (child < 0) break;
      path.push_back(child);
      seen[token] += 1;
    }
    write(path, emitted, finish);
    return true;
  }

 private:
  bool describe() {
    for (int32_t n = 0; n < count; ++n) {
      const int32_t parent = a.parents[begin + n], token = a.tokens[begin + n];
      if (parent < -1 || parent >= n || token < 0 || token >= a.vocab) return false;
      const int32_t base = parent < 0 ? a.lengths[r] - 1 : a.positions[begin + parent];
      a.positions[begin + n] = base + 1;
      if (base + 2 - a.lengths[r] > a.steps) return false;
      for (int64_t w = 0; w < a.tree_words; ++w) {
        uint32_t bits = parent < 0 ? 0 : uint32_t(a.ancestors[(begin + parent) * a.tree_words + w]);
        if (n / 32 == w) bits |= 1u << (n % 32);
        a.ancestors[(begin + n) * a.tree_words + w] = int32_t(bits);
      }
    }
    return true;
  }

  std::vector<Entry> entries(int64_t row) const {
    std::vector<Entry> all;
    all.reserve(size_t(a.vocab));
    for (int64_t t = 0; t < a.vocab; ++t) {
      double value = a.logits[row * a.vocab + t];
      if (a.mask_words > 0) {
        const auto word = uint32_t(a.allowed[row * a.mask_words + t / 32]);
        if ((word >> (t % 32) & 1u) == 0 && !std::isnan(value)) continue;
      }
      if (a.penalty != 0) {
        const auto found = seen.find(int32_t(t));
        if (found != seen.end()) value -= double(a.penalty) * found->second;
      }
      all.push_back({value, 0, int32_t(t)});
    }
    return all;
  }

  int32_t choose(std::vector<Entry> list, int64_t row, uint32_t position,
                 const std::vector<int32_t>& candidates, int32_t& child) const {
    const auto better = [](const Entry& x, const Entry& y) {
      return x.value != y.value ? x.value > y.value : x.token < y.token;
    };
    size_t most = list.size();
    if (a.temperature == 0) {
      most = 1;
    } else if (a.top_k > 0 && a.top_k < a.vocab) {
      most = std::min(most, size_t(a.top_k));
      std::sort(list.begin(), list.end(), better);
    }
    if (most == 1) std::nth_element(list.begin(), list.begin(), list.end(), better);
    if (a.temperature == 0) list[0].weight = 1;
    list.resize(most);
    const auto seed = uint32_t(a.seeds[r]);
    if (a.rule == 0) {
      const int32_t token = pick(list, uniform(seed, position, 0, 0));
      for (const int32_t n : candidates) {
        if (child < 0 && a.tokens[begin + n] == token) child = n;
      }
      return token;
    }
    std::sort(list.begin(), list.end(),
              [](const Entry& x, const Entry& y) { return x.token < y.token; });
    const float* const q = a.draft + row * a.vocab;
    for (size_t j = 0; j < candidates.size(); ++j) {
      double total = 0, own = 0;
      const int32_t x = a.tokens[begin + candidates[j]];
      for (const Entry& e : list) {
        total += e.weight;
        if (e.token == x) own = e.weight;
      }
      if (uniform(seed, position, 1, uint32_t(j)) * q[x] < own / total) {
        child = candidates[j];
        return x;
      }
      for (Entry& e : list) e.weight = std::max(0.0, e.weight / total - double(q[e.token]));
    }
    return pick(list, uniform(seed, position, 2, 0));
  }

  void write(const std::vector<int32_t>& path, const std::vector<int32_t>& emitted,
             int32_t finish) const {
    std::fill_n(std::copy(path.begin(), path.end(), a.path + r * a.steps),
                a.steps - int64_t(path.size()), -1);
    std::fill_n(std::copy(emitted.begin(), emitted.end(), a.emitted + r * (a.steps + 1)),
                a.steps + 1 - int64_t(emitted.size()), -1);
    a.accepted[r] = int32_t(path.size());
    a.finish[r] = finish;
    const float* const from = a.cache + r * a.capacity * a.width;
    float* const to = a.cache_after + r * a.capacity * a.width;
    float* end = std::copy_n(from, a.lengths[r] * a.width, to);
    for (const int32_t n : path)
      end = std::copy_n(from + (a.lengths[r] + n) * a.width, a.width, end);
    std::fill(end, to + a.capacity * a.width, 0.0f);
  }

  const Arguments& a;
  int64_t r;
  int32_t begin = 0, count = 0;
  std::unordered_map<int32_t, int> seen;
};

}  // namespace

extern "C" int tree_verify(int64_t requests, int64_t, int64_t vocab, int64_t steps,
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
  const Arguments a{requests,
                    vocab,
                    steps,
                    tree_words,
                    mask_words,
                    history_tokens,
                    capacity,
                    width,
                    rule,
                    top_k,
                    eos,
                    temperature,
                    penalty,
                    logits,
                    draft,
                    allowed,
                    first,
                    tokens,
                    parents,
                    lengths,
                    limits,
                    seeds,
                    history,
                    cache,
                    path,
                    accepted,
                    emitted,
                    finish,
                    log_probabilities,
                    positions,
                    ancestors,
                    cache_after};
  std::atomic<int64_t> next{0};
  std::atomic<bool> fine{true};
  const auto work = [&] {
    for (int64_t r = next++; r < requests; r = next++) {
      if (!Decoder(a, r).run()) fine = false;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 2 && i < requests; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return fine ? 0 : 1;
}
