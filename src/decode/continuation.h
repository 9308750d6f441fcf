// One sample of a request in progress: its tokens, its text, and when it ends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "decode/sampler.h"
#include "decode/stop_matcher.h"
#include "touchstone/decode/draft.h"
#include "touchstone/decode/request.h"
#include "touchstone/decode/scheduler.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::inline v0::decode {

class Continuation {
 public:
  // `request` and `options` outlive it.
  Continuation(RequestId id, const Request& request, std::int32_t sample,
               const SchedulerOptions& options, std::int64_t max_length);

  RequestId id() const { return id_; }
  std::int32_t sample() const { return sample_; }
  const Request& request() const { return request_; }
  std::span<const std::int32_t> tokens() const { return tokens_; }  // of the prompt too
  std::int64_t generated() const;
  bool finished() const { return completion_.finish != FinishReason::none; }
  // False for requests of the log-probabilities of a prompt alone.
  bool generates_tokens() const { return request_.stop.max_tokens > 0; }

  // Tokens that may still follow: of max_tokens and of the context.
  std::int64_t room() const;
  std::int64_t seed() const;  // of this sample
  SampleRow sample_row() const;
  // Words of the tokens that may follow, where the request has a constraint; else none.
  std::vector<std::int32_t> constraint_mask(std::int64_t vocabulary) const;
  // Where no token may follow: whether the text satisfies its constraint as a whole.
  bool complete() const { return constraint_ && constraint_->complete(); }
  // The masks of a draft after the tokens so far, where the request restricts tokens.
  void mask(Draft& draft, std::int64_t vocabulary) const;
  // Appends a token and returns the text that became final. Finishes at a stop condition.
  std::string take(const SampledToken& sampled);
  // Ends here and returns the text that was held back.
  std::string finish(FinishReason reason);
  Completion& completion() { return completion_; }

 private:
  std::string append(std::int32_t token, const SampledToken& sampled);

  RequestId id_;
  const Request& request_;
  std::int32_t sample_;
  const SchedulerOptions& options_;
  std::int64_t max_length_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> ends_;  // eos and stop tokens: forbidden before min_tokens
  std::unique_ptr<TokenConstraint> constraint_;
  std::optional<io::TokenStream> stream_;
  StopMatcher stops_;
  Completion completion_;
};

}  // namespace touchstone::inline v0::decode
