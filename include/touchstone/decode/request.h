// A request: what to continue, how to choose tokens, when to stop, what to report. The program, the
// C++ API and the C API fill the same object; schedulers, beam search and speculation read it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "touchstone/core/export.h"
#include "touchstone/core/language.h"  // IWYU pragma: keep: before everything that needs C++20

namespace touchstone::inline v0::decode {

// The controls of sample(), of one request. Out-of-range values are refused by check_request.
struct SamplingControls {
  double temperature = 0;  // 0 = greedy
  std::int32_t top_k = 0;  // 0 = all
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  double frequency_penalty = 0;
  double presence_penalty = 0;
  std::int64_t seed = 0;
  std::vector<std::pair<std::int32_t, float>> bias{};  // added to the logits of these tokens
};

struct StopConditions {
  std::int64_t max_tokens = 16;        // generated; 0 = none are
  std::int64_t min_tokens = 0;         // before this many, eos and stop tokens are masked
  std::vector<std::int32_t> tokens{};  // end the text; part of it only if include_stop
  std::vector<std::string> strings{};  // of the decoded text, also across tokens; none empty
  bool ignore_eos = false;
  bool include_stop = false;
};

// Cancels a request from another thread. Copies share one flag.
class TOUCHSTONE_API Cancellation {
 public:
  Cancellation() : flag_(std::make_shared<std::atomic<bool>>(false)) {}
  void cancel() const;
  bool cancelled() const { return flag_->load(std::memory_order_acquire); }
  // Grows with every cancel() of any flag: a scheduler with thousands of requests
  // tests their flags only when it has.
  static std::uint64_t count();

 private:
  std::shared_ptr<std::atomic<bool>> flag_;
};

// Which tokens may follow: a grammar, a list of words. One object per continuation holds its state.
class TOUCHSTONE_API TokenConstraint {
 public:
  virtual ~TokenConstraint();
  // The state before the first token of a continuation.
  virtual std::unique_ptr<TokenConstraint> start() const = 0;
  // The state as it is now, for a branch of a draft.
  virtual std::unique_ptr<TokenConstraint> copy() const = 0;
  // Writes all words of `mask`, one bit per token as sample's token_mask: bit t % 32 of word t /
  // 32. Tokens that end the text are allowed where it may end. No bit: the text ends, with finish
  // reason stop where it is complete, else no_token.
  virtual void allowed(std::span<std::int32_t> mask) const = 0;
  // Whether the text so far satisfies the constraint as a whole.
  virtual bool complete() const { return false; }
  // An allowed token was chosen.
  virtual void accept(std::int32_t token) = 0;
};

struct Request {
  std::vector<std::int32_t> prompt{};
  SamplingControls sampling{};
  StopConditions stop{};
  std::int32_t samples = 1;  // continuations, sample i with seed sampling.seed + i
  // Tokens with the largest log-probability to report per generated token; 0 = only the generated
  // token's own, -1 = no log-probabilities.
  std::int32_t top_log_probabilities = -1;
  bool prompt_log_probabilities = false;
  std::shared_ptr<const TokenConstraint> constraint{};
  Cancellation cancellation{};
};

enum class FinishReason : std::int32_t {
  none = 0,    // still running
  eos = 1,     // an end-of-sequence token of the model
  stop = 2,    // a stop token, a stop string, or a complete text that nothing may follow
  length = 3,  // max_tokens or the context of the model
  cancelled = 4,
  no_token = 5,  // every token masked, and the text is not complete
  failed = 6,    // step() threw an error that names the request
};
TOUCHSTONE_API std::string_view name_of(FinishReason reason);

struct TokenLogProbabilities {
  float own = 0;  // of the token that was chosen
  std::vector<std::pair<std::int32_t, float>> top{};
};

// One continuation.
struct Completion {
  std::vector<std::int32_t> tokens{};
  std::vector<TokenLogProbabilities> log_probabilities{};  // per token, if requested
  // Of prompt tokens 1, 2, ... after those before them, if requested; of the first sample.
  std::vector<float> prompt_log_probabilities{};
  std::string text{};  // of the tokens, without what a stop string cut off; needs a tokenizer
  FinishReason finish = FinishReason::none;
  std::int32_t stop_index = -1;  // of the stop token or string that ended it
};

// The limits that a request is checked against.
struct RequestLimits {
  std::int64_t vocabulary = 0;
  std::int64_t max_length = 0;  // prompt and generated tokens together
};

// InvalidArgument, `request: field: expected .., got ..`, for a request that cannot be served: an
// empty prompt, tokens outside the vocabulary, a prompt that leaves no space for one token,
// controls out of range, an empty stop string, samples < 1, min_tokens > max_tokens.
TOUCHSTONE_API void check_request(const Request& request, const RequestLimits& limits);
// Checks the sampling controls alone.
TOUCHSTONE_API void check_sampling(const SamplingControls& sampling, std::int64_t vocabulary);

}  // namespace touchstone::inline v0::decode
