// The dialects as rules: everything in which the engines differ.
#pragma once

#include "touchstone/decode/beam_search.h"

namespace touchstone::inline v0::decode::beam {

enum class EndingRanks { first_k, any };       // continuations that may finish a beam
enum class PoolRule { best_k, first_k, all };  // finished beams that are kept
enum class LengthRule {
  generated,        // the ending token included
  prompt_and_text,  // the prompt counts, the ending token does not
};
enum class StopRule {
  bound,      // the pool is full and no running beam can reach more than its worst
  full_pool,  // the pool is full
  count,      // round(K * patience) are finished; for a penalty of 0 `results`, the best one too
  never,
};
enum class LimitRule { end_first_k, end_running, force_eos };  // in the last step

struct Rules {
  EndingRanks ending = EndingRanks::first_k;
  PoolRule pool = PoolRule::best_k;
  LengthRule length = LengthRule::generated;
  StopRule stop = StopRule::bound;
  LimitRule limit = LimitRule::end_first_k;
  bool bound_at_max = true;        // for a penalty > 0; else at the current length
  bool candidates_per_eos = true;  // (1 + ending tokens) K candidates, else 2K
  bool normalize_allowed = false;  // log-probabilities over the tokens that are not masked
  bool refill_slots = false;       // a finished beam's place is taken by the next candidate
};

inline Rules rules_of(const BeamOptions& options) {
  switch (options.dialect) {
    case BeamDialect::canonical:
      return {};
    case BeamDialect::hf:
      return {.stop = options.early_stopping == EarlyStopping::yes ? StopRule::full_pool
                                                                   : StopRule::bound,
              .bound_at_max = options.early_stopping == EarlyStopping::never};
    case BeamDialect::fairseq:
      return {.pool = PoolRule::first_k,
              .stop = StopRule::full_pool,
              .limit = LimitRule::force_eos,
              .candidates_per_eos = false};
    case BeamDialect::ctranslate2:
      return {.pool = PoolRule::all,
              .stop = StopRule::count,
              .candidates_per_eos = false,
              .normalize_allowed = true,
              .refill_slots = true};
    case BeamDialect::vllm:
      return {.ending = EndingRanks::any,
              .pool = PoolRule::all,
              .length = LengthRule::prompt_and_text,
              .stop = StopRule::never,
              .limit = LimitRule::end_running,
              .candidates_per_eos = false};
  }
  return {};
}

}  // namespace touchstone::inline v0::decode::beam
