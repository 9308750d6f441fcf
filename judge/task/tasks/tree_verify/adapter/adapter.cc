// From the contract of the task to the function that was found. Positions, attention and the cache
// follow from the trees and the accepted path; the other side leaves them to its caller.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "theirs.h"

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
  VerifyOptions options;
  options.temperature = temperature;
  options.top_k = static_cast<int>(std::min(top_k, vocab));
  options.frequency_penalty = penalty;
  options.stop_token = static_cast<int>(eos);
  options.rejection = rule == 1;
  std::fill_n(path, requests * steps, -1);
  std::fill_n(emitted, requests * (steps + 1), -1);
  std::fill_n(log_probabilities, requests * (steps + 1), 0.0f);
  std::fill_n(ancestors, nodes * tree_words, 0);
  std::fill_n(cache_after, requests * capacity * width, 0.0f);
  for (int64_t r = 0; r < requests; ++r) {
    std::vector<DraftNode> tree;
    for (int32_t i = first[r]; i < first[r + 1]; ++i) {
      const int32_t n = i - first[r], parent = parents[i];
      if (parent < -1 || parent >= n || tokens[i] < 0 || tokens[i] >= vocab) return 1;
      tree.push_back({tokens[i], parent});
      int32_t depth = 0;
      for (int32_t a = n; a >= 0; a = tree[a].parent, ++depth) {
        ancestors[i * tree_words + a / 32] |= static_cast<int32_t>(1u << (a % 32));
      }
      if (depth > steps) return 1;
      positions[i] = lengths[r] + depth - 1;
    }
    std::vector<int> recent;
    for (int64_t j = 0; j < history_tokens; ++j) {
      if (history[r * history_tokens + j] >= 0) recent.push_back(history[r * history_tokens + j]);
    }
    options.max_new = limits[r];
    options.seed = static_cast<uint32_t>(seeds[r]);
    const auto scores_after = [&](int node) {
      const int64_t row = node < 0 ? r : requests + first[r] + node;
      Scores scores;
      scores.logits.assign(logits + row * vocab, logits + (row + 1) * vocab);
      for (int64_t t = 0; t < vocab && mask_words > 0; ++t) {
        const auto word = static_cast<uint32_t>(allowed[row * mask_words + t / 32]);
        if ((word >> (t % 32) & 1u) == 0 && !std::isnan(scores.logits[t]))
          scores.logits[t] = -INFINITY;
      }
      if (rule == 1) scores.draft.assign(draft + row * vocab, draft + (row + 1) * vocab);
      return scores;
    };
    try {
      const Verified v = verify_tree(tree, recent, lengths[r], options, scores_after);
      std::copy(v.nodes.begin(), v.nodes.end(), path + r * steps);
      std::copy(v.tokens.begin(), v.tokens.end(), emitted + r * (steps + 1));
      std::copy(v.logprobs.begin(), v.logprobs.end(), log_probabilities + r * (steps + 1));
      accepted[r] = static_cast<int32_t>(v.nodes.size());
      finish[r] = static_cast<int32_t>(v.stop);
      const float* const from = cache + r * capacity * width;
      float* to = std::copy_n(from, lengths[r] * width, cache_after + r * capacity * width);
      for (const int n : v.nodes) to = std::copy_n(from + (lengths[r] + n) * width, width, to);
    } catch (const std::invalid_argument&) {
      return 1;
    }
  }
  return 0;
}
