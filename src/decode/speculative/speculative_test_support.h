// Sources for tests: trees around the text that plain decoding gives, right in some nodes, wrong in
// others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "touchstone/core/random.h"
#include "touchstone/decode/draft_source.h"
#include "touchstone/decode/scheduler.h"

namespace touchstone::decode::test {

// Numbers by counter, so that a failure can be repeated.
class Draws {
 public:
  explicit Draws(std::int64_t seed) : seed_(seed) {}
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_uniform(seed_, next_++) * static_cast<double>(limit));
  }
  std::int32_t token(std::int64_t vocabulary) {
    return static_cast<std::int32_t>(below(vocabulary));
  }
  double uniform() { return random_uniform(seed_, next_++); }

 private:
  std::int64_t seed_;
  std::int64_t next_ = 0;
};

// What follows `tokens` in the text that is known, or nothing.
using Future = std::function<std::vector<std::int32_t>(std::span<const std::int32_t> tokens)>;

// A random tree: node i hangs anywhere; its token is the true one at its depth half of the time, so
// that there are matches, wrong roots with children that would match, duplicates and bad branches.
inline TokenTree random_draft(Draws& draws, std::span<const std::int32_t> future,
                              std::int64_t vocabulary, const DraftLimits& limits) {
  TokenTree tree;
  const std::int64_t nodes = draws.below(std::min<std::int64_t>(limits.max_nodes, 16) + 1);
  for (std::int64_t i = 0; i < nodes; ++i) {
    const auto parent = static_cast<std::int32_t>(draws.below(tree.size() + 1)) - 1;
    const std::int64_t depth = parent == kNoNode ? 1 : tree[parent].depth + 1;
    if (depth > limits.max_depth) continue;
    const bool right = depth <= std::ssize(future) && draws.below(2) == 0;
    tree.add(
        {.parent = parent,
         .token = right ? future[static_cast<std::size_t>(depth - 1)] : draws.token(vocabulary),
         .log_probability = static_cast<float>(-draws.uniform())});
  }
  return tree;
}

class RandomSource : public DraftSource {
 public:
  RandomSource(std::int64_t seed, std::int64_t vocabulary, Future future)
      : draws_(seed), vocabulary_(vocabulary), future_(std::move(future)) {}
  std::string name() const override { return "random"; }
  void draft(Context& /*context*/, std::span<DraftRequest> requests) override {
    for (DraftRequest& request : requests) {
      request.draft.tree =
          random_draft(draws_, future_(request.tokens), vocabulary_, request.limits);
      drafts += request.draft.tree.empty() ? 0 : 1;
    }
  }
  void forget(std::int64_t /*id*/) override { ++forgotten; }

  std::int64_t drafts = 0;
  std::int64_t forgotten = 0;

 private:
  Draws draws_;
  std::int64_t vocabulary_;
  Future future_;
};

// The text after a beginning, from completions of requests.
inline Future future_of(std::vector<std::vector<std::int32_t>> texts) {
  return [texts = std::move(texts)](std::span<const std::int32_t> tokens) {
    for (const auto& text : texts) {
      if (text.size() > tokens.size() && std::equal(tokens.begin(), tokens.end(), text.begin())) {
        return std::vector<std::int32_t>(text.begin() + static_cast<std::ptrdiff_t>(tokens.size()),
                                         text.end());
      }
    }
    return std::vector<std::int32_t>{};
  };
}

struct Served {
  std::vector<std::vector<Completion>> completions;
  SpeculationStatistics speculation;
  std::string events;  // of all hooks, in order
};

inline Served serve(Scorer& scorer, Context& context, const std::vector<Request>& requests,
                    SchedulerOptions options) {
  Served served;
  Scheduler scheduler(scorer, std::move(options));
  std::vector<RequestId> ids;
  std::map<std::pair<std::int64_t, std::int32_t>, std::string> streams;
  for (const Request& request : requests) {
    ids.push_back(scheduler.submit(request, [&](const TokenEvent& event) {
      streams[{event.request.id, event.sample}] += std::to_string(event.token) + ":" +
                                                   std::string(event.text) + ":" +
                                                   std::string(name_of(event.finish)) + " ";
    }));
  }
  while (scheduler.step(context)) {
  }
  for (const RequestId id : ids) served.completions.push_back(scheduler.take(id));
  served.speculation = scheduler.speculation();
  for (const auto& [key, text] : streams) served.events += text + "\n";
  return served;
}

// The texts of what was served, prompts included.
inline std::vector<std::vector<std::int32_t>> texts_of(const std::vector<Request>& requests,
                                                       const Served& served) {
  std::vector<std::vector<std::int32_t>> texts;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    for (const Completion& answer : served.completions[i]) {
      std::vector<std::int32_t> text = requests[i].prompt;
      text.insert(text.end(), answer.tokens.begin(), answer.tokens.end());
      texts.push_back(std::move(text));
    }
  }
  return texts;
}

inline bool same(const Completion& a, const Completion& b) {
  if (a.tokens != b.tokens || a.text != b.text || a.finish != b.finish ||
      a.stop_index != b.stop_index || a.log_probabilities.size() != b.log_probabilities.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.log_probabilities.size(); ++i) {
    if (a.log_probabilities[i].own != b.log_probabilities[i].own ||
        a.log_probabilities[i].top != b.log_probabilities[i].top) {
      return false;
    }
  }
  return true;
}

}  // namespace touchstone::decode::test
