// Beam search over a Scorer: for each prompt the K continuations with the best score, found by
// extending the K best beginnings by one token at a time.
//
//   S       raw log-probability of the generated tokens, the ending token included: the sum, from
//           the first token on, of f32 log-softmax values in f64
//   score   S / length^length_penalty, what results are ranked by
//   step    of all one-token continuations of the K running beams the best C by S, in one pass over
//           the K x V logits: C = (1 + max(1, ending tokens)) K, so 2K with one EOS. Those of the
//           first K that end go to the pool of finished beams; the best K that do not end run on.
//   pool    the K best finished beams by score. They stay, and compete until the end.
//   end     when the pool is full and no running beam can beat its worst, when no beam runs, or
//           after max_tokens, where the first K continuations end with the reason `length`.
//           A running beam can reach S / max_tokens^p for a penalty p > 0, else S / (its length)^p.
//
// Order       By S descending; ties go to the better parent, then to the larger logit, then to the
//             lower token. In the pool by score, ties to the beam that finished first.
// Dialects    `canonical` is the text above. The others reproduce what an engine does: which
//             continuations may end, what a length is, when the search stops
//             (docs/beam_search.md has them side by side).
// Constraints Masked tokens (minimum length, banned, forced, repeated n-grams, trie) are never
//             chosen. The log-probabilities of the others stay those of the whole vocabulary,
//             except in the dialect ctranslate2, which normalizes over what is allowed.
// Minus infinity
//             A continuation of probability 0 is never taken and never returned: fewer than K
//             results come back instead, none if nothing could be finished.
// Guarantees  The results of a request, to the bit, depend on its tokens and options and on the
//             logits of its own paths: not on other requests, their order, threads or page size.
//             Beams share a sequence of the scorer up to where they part (Scorer::fork). On CUDA
//             logits stay on the device; each step reads back 24 bytes per continuation, once.
// Memory      At most K sequences per request are alive, and they share the pages of the prompt.
//             Long prompts are read in chunks of at most 256 rows, smaller where the scorer has no
//             memory for them.
// Errors      InvalidArgument names the request, the option, the limit and what came, before
//             anything is scored. CorruptData: the logits of a beam contain NaN. After an error the
//             scorer has the sequences it had before.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/decode/request.h"
#include "touchstone/decode/scorer.h"
#include "touchstone/decode/token_trie.h"

namespace touchstone::inline v0::decode {

inline constexpr std::int32_t kMaxBeams = 1024;

enum class BeamDialect : std::int32_t {
  canonical = 0,
  hf = 1,           // transformers
  fairseq = 2,      // fairseq
  ctranslate2 = 3,  // CTranslate2
  vllm = 4,         // vLLM
};
TOUCHSTONE_API std::string_view name_of(BeamDialect dialect);
// InvalidArgument lists the names.
TOUCHSTONE_API BeamDialect parse_beam_dialect(std::string_view name);

// When the dialect hf stops; a beam's best possible score is computed at this length.
enum class EarlyStopping : std::int32_t {
  no = 0,     // `false`: the current length
  yes = 1,    // `true`: as soon as K beams are finished, whatever the running ones could reach
  never = 2,  // `never`: max_tokens for a penalty > 0, else the current length
};
TOUCHSTONE_API std::string_view name_of(EarlyStopping stopping);
TOUCHSTONE_API EarlyStopping parse_early_stopping(std::string_view name);

struct BeamOptions {
  std::int32_t beams = 4;     // K, in [1, kMaxBeams]
  std::int32_t results = 0;   // at most K; 0 = K
  double length_penalty = 1;  // finite
  BeamDialect dialect = BeamDialect::canonical;
  EarlyStopping early_stopping = EarlyStopping::no;  // dialect hf only
  double patience = 1;  // dialect ctranslate2 only: stops at round(K * patience) finished beams
  std::vector<std::int32_t> eos{};  // tokens that end a text; Request::stop.tokens end it, too
  // Diverse beam search: `groups` (a divisor of K) searches of K / groups beams. In each step they
  // choose one after the other, by S - diversity * (beams of earlier groups that have just chosen
  // the token). S and score stay raw.
  std::int32_t groups = 1;
  double diversity = 0;              // finite, >= 0; not 0 needs groups > 1
  std::int32_t no_repeat_ngram = 0;  // n: no n tokens in a row twice in prompt and text; 0 = off
  std::vector<std::int32_t> banned{};
  std::vector<std::int32_t> forced{};       // the token at this place of the text; -1 = free
  std::shared_ptr<const TokenTrie> trie{};  // texts to choose from; they end by eos or stop token
};

// Of `request` a search uses the prompt, max_tokens, min_tokens, stop tokens, ignore_eos,
// include_stop, cancellation, and top_log_probabilities >= 0 for the log-probability of each token.
// Sampling controls, several samples, stop strings and constraints other than a trie are refused.
struct BeamRequest {
  Request request{};
  BeamOptions options{};
};

struct BeamHypothesis {
  std::vector<std::int32_t> tokens{};  // with the ending token only if include_stop
  double log_probability = 0;          // S
  double score = 0;
  std::int64_t length = 0;  // that `score` is computed with; canonical: tokens generated
  bool finished = false;    // by its own ending: reason eos or stop
  FinishReason reason = FinishReason::none;  // eos, stop, length, cancelled
  std::int32_t stop_index = -1;              // of the stop token that ended it
  // Of each generated token, the ending one included; if requested.
  std::vector<float> log_probabilities{};
};

struct BeamStatistics {
  std::int64_t steps = 0;            // calls of score()
  std::int64_t rows = 0;             // rows scored, prompts included
  std::int64_t forks = 0;            // sequences that were forked
  std::int64_t logit_passes = 0;     // reads of all logits of a step; 1 per step without masks
  std::int64_t read_backs = 0;       // device to host, 1 per step; 0 on the CPU
  std::int64_t read_back_bytes = 0;  // in all
  std::int64_t prompt_rows = 0;      // of `rows`
  double prompt_seconds = 0;         // until the first tokens of the beams are chosen
  double decode_seconds = 0;         // after that
};

struct BeamResults {
  std::vector<std::vector<BeamHypothesis>> hypotheses{};  // per request, best first
  BeamStatistics statistics{};
};

// Searches all requests side by side; they join one call of the scorer per step and leave it when
// they are done.
TOUCHSTONE_API BeamResults beam_search(Context& context, Scorer& scorer,
                                       std::span<const BeamRequest> requests);

// The checks of beam_search, without a search. `index` is the request's number in messages.
TOUCHSTONE_API void check_beam_request(const BeamRequest& request, const RequestLimits& limits,
                                       std::int64_t index = 0);

}  // namespace touchstone::inline v0::decode
