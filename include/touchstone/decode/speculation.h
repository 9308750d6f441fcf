// Speculative decoding in a scheduler: a source drafts, the target verifies the drafts of all
// continuations in one pass, the accepted path is kept. With the rules greedy and target_only the
// completions are those of plain decoding, token for token, log-probabilities included.
//
//   options.speculation = {.source = suffix_source({}), .tree_nodes = 32};
//   decode::Scheduler scheduler(model, options);
//
// Controller    With `adaptive`, nodes are verified only where the cost model predicts a speed-up;
//               the source is disabled once its cumulative overhead exceeds 1 % of run time plus
//               one step, until run time has made up for it. Overhead is everything the source
//               costs, DraftSource::observe included. Where observing alone, in steps without
//               drafts, exceeds 0.5 % plus half a step, hidden states are no longer computed, and a
//               continuation that missed some is decoded plainly to its end. Measurements are
//               recent ones: acceptance falls over long texts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "touchstone/core/export.h"
#include "touchstone/decode/acceptance.h"
#include "touchstone/decode/draft_source.h"

namespace touchstone::inline v0::decode {

// One verified draft. Valid during the call.
struct SpeculationTrace {
  std::int64_t request = 0;
  std::int32_t sample = 0;
  std::int64_t position = 0;  // of the roots
  const TokenTree* tree = nullptr;
  const Acceptance* acceptance = nullptr;
};

struct SpeculationOptions {
  std::shared_ptr<DraftSource> source{};  // null: plain decoding
  std::int64_t tree_nodes = 16;           // of a draft, at most
  std::int64_t max_depth = 16;
  AcceptanceRule rule = AcceptanceRule::target_only;
  bool adaptive = true;  // false: every draft is verified whole
  std::function<void(const SpeculationTrace&)> trace{};
};

struct SpeculationStatistics {
  std::int64_t passes = 0;               // of one sequence through the target, after its prompt
  std::int64_t drafted_passes = 0;       // that verified at least one node
  std::int64_t tokens = 0;               // that the passes yielded, the target's own included
  std::int64_t nodes = 0;                // that were verified
  std::vector<std::int64_t> offered{};   // [d]: drafts whose accepted path reached a node with
                                         // children of depth d + 1
  std::vector<std::int64_t> accepted{};  // [d]: of those, one of the children was accepted
  double draft_seconds = 0;              // in the source: draft() and observe()
  double seconds = 0;                    // of steps without prompts
  // Of plain steps for the same tokens, from the measured ones; 0: none was measured.
  double plain_seconds = 0;
  std::string controller{};  // its present decision, and why
};

}  // namespace touchstone::inline v0::decode
