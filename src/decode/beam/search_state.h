// The search of one request: running beams, finished beams, and what the dialect does with the
// candidates of a step. Knows no scorer and no logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decode/beam/constraints.h"
#include "decode/beam/dialect.h"
#include "decode/beam/select.h"
#include "touchstone/decode/beam_search.h"

namespace touchstone::inline v0::decode::beam {

struct RunningBeam {
  std::int32_t node = kNoNode;  // of the tree; kNoNode = the prompt
  std::int32_t trie_node = TokenTrie::kRoot;
  std::int32_t parent = 0;  // among the running beams of the step before
  double score = 0;         // S
};

struct FinishedBeam {
  std::int32_t node = kNoNode;
  double score = 0;
  std::int64_t length = 0;
  FinishReason reason = FinishReason::none;
  std::int32_t stop_index = -1;
};

class SearchState {
 public:
  SearchState(const BeamRequest& request, const ScorerShape& shape);

  bool done() const { return running_.empty(); }
  // Group by group, in each the better parent first.
  std::span<const RunningBeam> running() const { return running_; }
  // The token that was chosen last for a beam.
  std::int32_t token_of(const RunningBeam& beam) const { return tree_[beam.node].token; }
  const Constraints& constraints() const { return constraints_; }
  std::int64_t generated() const { return generated_; }
  const std::vector<std::int32_t>& prompt() const { return request_.request.prompt; }
  bool normalize_allowed() const { return rules_.normalize_allowed; }
  // Prompt and generated tokens.
  std::vector<std::int32_t> text_of(const RunningBeam& beam) const;

  // Tokens of a row that can be candidates, and the segments of this step when the request's first
  // row is `row`.
  std::int64_t tokens_per_row() const;
  void add_segments(std::int64_t row, std::vector<Segment>& segments) const;
  // Takes the lists of those segments; rows count from `row`.
  void advance(std::span<const std::vector<Candidate>> lists, std::int64_t row);
  // The running beams end as they are.
  void cancel();

  std::vector<BeamHypothesis> results() const;

 private:
  struct Group {
    std::vector<FinishedBeam> pool;
    std::int64_t begin = 0;  // its running beams are [begin, end)
    std::int64_t end = 0;
    bool best_finished = false;
  };

  // Whether each row of the request is a segment of its own, merged here.
  bool row_segments() const { return row_segments_; }
  // The candidates of a group, best first. `chosen` are the tokens of earlier groups in this step,
  // ending ones included.
  std::vector<Candidate> merge(const Group& group, std::span<const std::vector<Candidate>> lists,
                               std::span<const std::int32_t> chosen) const;
  void advance_group(Group& group, std::span<const Candidate> candidates, std::int64_t row,
                     std::vector<RunningBeam>& next, std::vector<std::int32_t>& chosen);
  // The reason and the stop index for which a token ends a text; `none` if it does not.
  FinishedBeam ending_of(std::int32_t token) const;
  std::int32_t add_node(const Candidate& candidate, std::int64_t row);
  void finish(Group& group, FinishedBeam beam);
  bool stops(const Group& group, std::span<const RunningBeam> running) const;
  double ranking(double log_probability, std::int64_t length) const;
  void compact(std::vector<RunningBeam>& next);
  BeamHypothesis hypothesis_of(const FinishedBeam& beam) const;

  const BeamRequest& request_;
  const BeamOptions& options_;
  Rules rules_;
  std::int64_t vocabulary_;
  std::int64_t max_tokens_;
  std::vector<std::int32_t> ending_;
  Constraints constraints_;
  std::int64_t width_;       // beams of a group
  std::int64_t candidates_;  // of a group and step
  bool row_segments_;
  TokenTree tree_;
  std::int32_t compact_at_ = 1 << 12;  // nodes
  std::vector<RunningBeam> running_;
  std::vector<Group> groups_;
  std::int64_t generated_ = 0;
};

}  // namespace touchstone::inline v0::decode::beam
