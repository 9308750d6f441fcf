#include "theirs.h"

#include <algorithm>
#include <cmath>

namespace {

struct Node {
  Hypothesis text;
  int state;
};

double normalized(double logprob, int length, double penalty) {
  return logprob / std::pow(length, penalty);
}

}  // namespace

std::vector<Hypothesis> decode(int state, const BeamConfig& config,
                               const std::function<std::vector<double>(int)>& log_probs,
                               const std::function<int(int, int)>& step) {
  std::vector<Node> live{{{}, state}};
  std::vector<Hypothesis> done;
  const auto width = static_cast<size_t>(config.width);
  for (int length = 1; length <= config.max_length && !live.empty(); ++length) {
    std::vector<Node> options;
    for (const Node& node : live) {
      const std::vector<double> values = log_probs(node.state);
      for (int id = 0; id < static_cast<int>(values.size()); ++id) {
        const bool ends = std::count(config.end_ids.begin(), config.end_ids.end(), id) > 0;
        if (std::isinf(values[id]) || (ends && length <= config.min_length)) continue;
        Node option{node.text, node.state};
        option.text.ids.push_back(id);
        option.text.logprob += values[id];
        option.text.ended = ends;
        options.push_back(option);
      }
    }
    std::stable_sort(options.begin(), options.end(),
                     [](const Node& a, const Node& b) { return a.text.logprob > b.text.logprob; });
    live.clear();
    for (size_t rank = 0; rank < options.size(); ++rank) {
      Node& option = options[rank];
      if (option.text.ended || length == config.max_length) {
        option.text.score = normalized(option.text.logprob, length, config.length_penalty);
        if (rank < width) done.push_back(option.text);
      } else if (live.size() < width) {
        option.state = step(option.state, option.text.ids.back());
        live.push_back(option);
      }
    }
    std::stable_sort(done.begin(), done.end(),
                     [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; });
    if (done.size() > width) done.resize(width);
    if (done.size() < width || live.empty()) continue;
    const int reach = config.length_penalty > 0 ? config.max_length : length;
    const double best = normalized(live[0].text.logprob, reach, config.length_penalty);
    if (best <= done.back().score) break;
  }
  return done;
}
