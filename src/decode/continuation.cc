#include "decode/continuation.h"

#include <algorithm>

#include "core/index.h"
#include "touchstone/core/error.h"
#include "touchstone/decode/acceptance.h"
#include "touchstone/decode/continuation_text.h"

namespace touchstone::inline v0::decode {
namespace {

// The masks of a constraint count the space before a first token as text, which decoders drop where
// the prompt has no text: a letter before it keeps it.
io::TokenStream text_stream(const SchedulerOptions& options, const Request& request) {
  const io::Tokenizer& tokenizer = *options.tokenizer;
  const io::DecodeOptions decoding{.skip_special = options.skip_special};
  const bool empty = std::ranges::all_of(
      request.prompt, [&](std::int32_t token) { return tokenizer.is_special(token); });
  const auto letter = tokenizer.token_to_id("a");
  if (request.constraint && empty && letter) {
    return continuation_stream(tokenizer, {&*letter, 1}, decoding);
  }
  return continuation_stream(tokenizer, request.prompt, decoding);
}

}  // namespace

Continuation::Continuation(RequestId id, const Request& request, std::int32_t sample,
                           const SchedulerOptions& options, std::int64_t max_length)
    : id_(id),
      request_(request),
      sample_(sample),
      options_(options),
      max_length_(max_length),
      tokens_(request.prompt),
      ends_(request.stop.tokens),
      constraint_(request.constraint ? request.constraint->start() : nullptr),
      stops_(request.stop.strings, request.stop.include_stop) {
  if (!request.stop.ignore_eos) {
    ends_.insert(ends_.end(), options.eos_tokens.begin(), options.eos_tokens.end());
  }
  if (options.tokenizer != nullptr) {
    stream_.emplace(text_stream(options, request));
  }
}

std::int64_t Continuation::generated() const {
  return std::ssize(tokens_) - std::ssize(request_.prompt);
}

std::int64_t Continuation::room() const {
  return std::min(request_.stop.max_tokens - generated(), max_length_ - std::ssize(tokens_));
}

std::int64_t Continuation::seed() const {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(request_.sampling.seed) +
                                   static_cast<std::uint64_t>(sample_));
}

void Continuation::mask(Draft& draft, std::int64_t vocabulary) const {
  const std::int64_t early = std::max<std::int64_t>(request_.stop.min_tokens - generated(), 0);
  if (!constraint_ && (early == 0 || ends_.empty())) return;
  try {
    mask_draft(draft, {.constraint = constraint_.get(),
                       .forbidden = ends_,
                       .forbidden_depth = early,
                       .ends = ends_,
                       .vocabulary = vocabulary});
  } catch (const Error&) {
    draft = {};  // a constraint that throws for the text itself does so without a draft, too
  }
}

SampleRow Continuation::sample_row() const {
  const bool early = generated() < request_.stop.min_tokens;
  return {
      .request = &request_,
      .seed = seed(),
      .tokens = tokens_,
      .forbidden = early ? std::span<const std::int32_t>(ends_) : std::span<const std::int32_t>(),
      .constraint = constraint_.get()};
}

std::vector<std::int32_t> Continuation::constraint_mask(std::int64_t vocabulary) const {
  if (!constraint_) return {};
  std::vector<std::int32_t> mask(at((vocabulary + 31) / 32));
  constraint_->allowed(mask);
  if (generated() >= request_.stop.min_tokens) return mask;
  for (const std::int32_t token : ends_) {
    const std::uint32_t bit = std::uint32_t{1} << (token % 32);
    std::int32_t& word = mask[at(token / 32)];
    word = static_cast<std::int32_t>(static_cast<std::uint32_t>(word) & ~bit);
  }
  return mask;
}

std::string Continuation::append(std::int32_t token, const SampledToken& sampled) {
  completion_.tokens.push_back(token);
  if (request_.top_log_probabilities >= 0) {
    completion_.log_probabilities.push_back(sampled.log_probabilities);
  }
  if (!stream_) return {};
  std::string text = stops_.next(stream_->next(token));
  completion_.text += text;
  return text;
}

std::string Continuation::take(const SampledToken& sampled) {
  const std::int32_t token = sampled.token;
  if (constraint_) constraint_->accept(token);
  const StopConditions& stop = request_.stop;
  const auto stopped = std::ranges::find(stop.tokens, token);
  const bool eos = !stop.ignore_eos &&
                   std::ranges::find(options_.eos_tokens, token) != options_.eos_tokens.end();
  tokens_.push_back(token);
  std::string text;
  if ((stopped == stop.tokens.end() && !eos) || stop.include_stop) text = append(token, sampled);
  if (stopped != stop.tokens.end()) {
    completion_.stop_index = static_cast<std::int32_t>(stopped - stop.tokens.begin());
    return text + finish(FinishReason::stop);
  }
  if (eos) return text + finish(FinishReason::eos);
  if (stops_.found() >= 0) {
    completion_.stop_index = stops_.found();
    return text + finish(FinishReason::stop);
  }
  if (generated() >= stop.max_tokens || std::ssize(tokens_) >= max_length_) {
    return text + finish(FinishReason::length);
  }
  return text;
}

std::string Continuation::finish(FinishReason reason) {
  completion_.finish = reason;
  if (!stream_ || stops_.found() >= 0) return {};
  // The rest of a character may complete a stop string; it ends the text either way.
  std::string text = stops_.next(stream_->finish());
  if (stops_.found() < 0) text += stops_.finish();
  completion_.text += text;
  return text;
}

}  // namespace touchstone::inline v0::decode
