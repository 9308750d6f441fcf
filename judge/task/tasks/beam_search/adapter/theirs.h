// Somebody's beam search, as it was found: one prompt at a time, a model behind two functions, results
// as objects. Nothing in here is changed for the judge.
#pragma once

#include <functional>
#include <vector>

struct Hypothesis {
  std::vector<int> ids;
  double logprob = 0;
  double score = 0;
  bool ended = false;
};

struct BeamConfig {
  int width = 4;
  int max_length = 20;
  int min_length = 0;
  double length_penalty = 1;
  std::vector<int> end_ids;
};

// log_probs(state) gives one number per token, step(state, token) the next state.
std::vector<Hypothesis> decode(int state, const BeamConfig& config,
                               const std::function<std::vector<double>(int)>& log_probs,
                               const std::function<int(int, int)>& step);
