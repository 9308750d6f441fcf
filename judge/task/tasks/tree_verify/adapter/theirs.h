// Somebody's verifier of draft trees, as it was found: one request at a time, nodes as objects,
// logits behind a function. Nothing in here is changed for the judge.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

struct DraftNode {
  int token = 0;
  int parent = -1;  // an earlier node, or -1
};

struct VerifyOptions {
  double temperature = 0;
  int top_k = 0;
  double frequency_penalty = 0;
  int stop_token = -1;
  int max_new = 1;
  bool rejection = false;
  uint32_t seed = 0;
};

// What the target says after a node (-1: after the text so far).
struct Scores {
  std::vector<double> logits;  // -inf: not allowed
  std::vector<double> draft;   // of its children, for rejection
};

enum class Stop { none, stop_token, length, nothing_allowed };

struct Verified {
  std::vector<int> nodes;   // accepted
  std::vector<int> tokens;  // new ones, the target's own last
  std::vector<double> logprobs;
  Stop stop = Stop::none;
};

// Throws std::invalid_argument on NaN.
Verified verify_tree(const std::vector<DraftNode>& tree, const std::vector<int>& recent,
                     int text_length, const VerifyOptions& options,
                     const std::function<Scores(int)>& scores_after);
