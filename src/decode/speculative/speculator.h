// Per-step speculation: draft, truncate by the controller, verify, update statistics.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "decode/continuation.h"
#include "decode/speculative/controller.h"
#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"
#include "touchstone/decode/speculation.h"

namespace touchstone::inline v0::decode {

// A continuation that is about to score its last token.
struct DraftedContinuation {
  const Continuation* text = nullptr;
  std::int64_t id = 0;  // for the source
  Draft draft{};
};

class Speculator {
 public:
  // `options` outlives it. InvalidArgument where they do not fit the target.
  Speculator(const SpeculationOptions& options, const ScorerShape& shape);

  // Adds drafts to the continuations of a step, together at most `rows` nodes.
  void propose(Context& context, std::span<DraftedContinuation> continuations, std::int64_t rows);
  // Verifies the drafts; logits as in Acceptor::run.
  std::vector<Acceptance> verify(Context& context, const ConstTensorView& logits,
                                 std::span<const DraftedContinuation> continuations);
  // Called after every step that scored no prompt, with its sequences, tokens and seconds.
  void note_step(std::int64_t sequences, std::int64_t tokens, double seconds);
  // Whether the source observes the rows of a continuation from `position` on, in a step of
  // `sequences`. Not where it missed rows before them.
  bool observes(std::int64_t id, std::int64_t position, std::int64_t sequences) const;
  void observe(Context& context, const ObservedRows& rows);
  void copy(Context& context, std::int64_t from, std::int64_t to);
  void forget(std::int64_t id);
  SpeculationStatistics statistics() const;

 private:
  void count(const DraftedContinuation& continuation, const Acceptance& acceptance);

  const SpeculationOptions& options_;
  std::int64_t vocabulary_;
  Acceptor acceptor_;
  SpeculationController controller_{};
  SpeculationStatistics statistics_{};
  double mean_ = 1;  // of plain steps, in medians
  // By number of sequences: plain steps that the tokens would have taken, not yet in
  // plain_seconds because none has been measured.
  std::unordered_map<std::int64_t, double> unpriced_{};
  // By continuation: tokens that the source has observed; the first only where it missed later
  // ones.
  std::unordered_map<std::int64_t, std::int64_t> observed_{};
  bool observing_ = true;  // in the last step
  // Of the step in progress.
  MeasuredStep step_{};
  bool observed_any_ = false;
};

}  // namespace touchstone::inline v0::decode
