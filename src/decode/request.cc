#include "touchstone/decode/request.h"

#include <fmt/format.h>

#include <cmath>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode {
namespace {

std::atomic<std::uint64_t>& cancellations() {
  static std::atomic<std::uint64_t> count{0};
  return count;
}

}  // namespace

void Cancellation::cancel() const {
  flag_->store(true, std::memory_order_release);
  cancellations().fetch_add(1, std::memory_order_release);
}

std::uint64_t Cancellation::count() { return cancellations().load(std::memory_order_acquire); }

TokenConstraint::~TokenConstraint() = default;

namespace {

template <class Value>
[[noreturn]] void refuse(std::string_view field, std::string_view expected, const Value& got) {
  throw InvalidArgument(fmt::format("request: {}: expected {}, got {}", field, expected, got));
}

template <class Value>
void require(bool holds, std::string_view field, std::string_view expected, const Value& got) {
  if (!holds) refuse(field, expected, got);
}

void check_token(std::string_view field, std::int32_t token, std::int64_t vocabulary) {
  require(token >= 0 && token < vocabulary, field, fmt::format("a token in [0, {})", vocabulary),
          token);
}

void check_stop(const StopConditions& stop, std::int64_t vocabulary) {
  require(stop.max_tokens >= 0, "max_tokens", "a number >= 0", stop.max_tokens);
  require(stop.min_tokens >= 0 && stop.min_tokens <= stop.max_tokens, "min_tokens",
          fmt::format("a number in [0, max_tokens = {}]", stop.max_tokens), stop.min_tokens);
  for (const std::int32_t token : stop.tokens) check_token("stop token", token, vocabulary);
  for (const std::string& text : stop.strings) {
    require(!text.empty(), "stop string", "at least one byte", "an empty string");
  }
}

}  // namespace

std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::none:
      return "none";
    case FinishReason::eos:
      return "eos";
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::no_token:
      return "no_token";
    case FinishReason::failed:
      return "failed";
  }
  return "unknown";
}

void check_sampling(const SamplingControls& sampling, std::int64_t vocabulary) {
  // sample() takes f32: what is beyond it would become infinite, or 0. Written so that NaN is
  // refused.
  const auto finite = [](double value) { return std::isfinite(static_cast<float>(value)); };
  require(finite(sampling.temperature) && sampling.temperature >= 0, "temperature",
          "a finite number >= 0 (f32)", sampling.temperature);
  require(sampling.top_k >= 0, "top_k", "a number >= 0", sampling.top_k);
  require(sampling.top_p >= 0 && sampling.top_p <= 1, "top_p", "a number in [0, 1]",
          sampling.top_p);
  require(sampling.min_p >= 0 && sampling.min_p <= 1, "min_p", "a number in [0, 1]",
          sampling.min_p);
  require(
      finite(sampling.repetition_penalty) && static_cast<float>(sampling.repetition_penalty) > 0,
      "repetition_penalty", "a finite number > 0 (f32)", sampling.repetition_penalty);
  require(finite(sampling.frequency_penalty), "frequency_penalty", "a finite number (f32)",
          sampling.frequency_penalty);
  require(finite(sampling.presence_penalty), "presence_penalty", "a finite number (f32)",
          sampling.presence_penalty);
  for (const auto& [token, value] : sampling.bias) {
    check_token("bias", token, vocabulary);
    require(!std::isnan(value), "bias", "a number", value);
  }
}

void check_request(const Request& request, const RequestLimits& limits) {
  require(!request.prompt.empty(), "prompt", "at least one token", "none");
  for (const std::int32_t token : request.prompt) check_token("prompt", token, limits.vocabulary);
  const auto length = static_cast<std::int64_t>(request.prompt.size());
  require(
      length < limits.max_length || (length == limits.max_length && request.stop.max_tokens == 0),
      "prompt", fmt::format("fewer than {} tokens, the context", limits.max_length), length);
  check_sampling(request.sampling, limits.vocabulary);
  check_stop(request.stop, limits.vocabulary);
  require(request.samples >= 1, "samples", "a number >= 1", request.samples);
  require(request.top_log_probabilities >= -1 && request.top_log_probabilities <= limits.vocabulary,
          "top_log_probabilities", fmt::format("a number in [-1, {}]", limits.vocabulary),
          request.top_log_probabilities);
}

}  // namespace touchstone::inline v0::decode
