// Names and checks of beam search.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "touchstone/core/error.h"
#include "touchstone/decode/beam_search.h"

namespace touchstone::inline v0::decode {

namespace {

constexpr std::array<std::string_view, 5> kDialects = {"canonical", "hf", "fairseq", "ctranslate2",
                                                       "vllm"};
constexpr std::array<std::string_view, 3> kStoppings = {"false", "true", "never"};

template <std::size_t kCount>
std::int32_t index_of(const std::array<std::string_view, kCount>& names, std::string_view what,
                      std::string_view name) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (names[i] == name) return static_cast<std::int32_t>(i);
  }
  throw InvalidArgument(
      fmt::format("{}: expected one of {}, got '{}'", what, fmt::join(names, ", "), name));
}

// Throws the one error of a request, with its number.
class OptionCheck {
 public:
  explicit OptionCheck(std::int64_t index) : index_(index) {}

  template <class Value>
  void require(bool holds, std::string_view option, std::string_view expected,
               const Value& got) const {
    if (holds) return;
    throw InvalidArgument(fmt::format("beam_search: request {}: {}: expected {}, got {}", index_,
                                      option, expected, got));
  }
  void token(std::string_view option, std::int32_t token, std::int64_t vocabulary) const {
    require(token >= 0 && token < vocabulary, option, fmt::format("a token in [0, {})", vocabulary),
            token);
  }

 private:
  std::int64_t index_;
};

// What contradicts a search that draws nothing and has no text.
void check_unsampled(const OptionCheck& check, const Request& r) {
  const SamplingControls& s = r.sampling;
  check.require(s.temperature == 0, "temperature", "0: beam search does not sample", s.temperature);
  check.require(s.top_k == 0, "top_k", "0: beam search does not sample", s.top_k);
  check.require(s.top_p == 1, "top_p", "1: beam search does not sample", s.top_p);
  check.require(s.min_p == 0, "min_p", "0: beam search does not sample", s.min_p);
  check.require(s.repetition_penalty == 1, "repetition_penalty", "1: beam search has none",
                s.repetition_penalty);
  check.require(s.frequency_penalty == 0, "frequency_penalty", "0: beam search has none",
                s.frequency_penalty);
  check.require(s.presence_penalty == 0, "presence_penalty", "0: beam search has none",
                s.presence_penalty);
  check.require(s.bias.empty(), "bias", "none", s.bias.size());
  check.require(!r.constraint, "constraint", "none: beam search takes a trie", "one");
  check.require(r.samples == 1, "samples", "1: beam search returns `results`", r.samples);
  check.require(r.stop.strings.empty(), "stop strings", "none: beams are tokens",
                r.stop.strings.size());
  check.require(r.top_log_probabilities <= 0, "top_log_probabilities", "-1 or 0",
                r.top_log_probabilities);
  check.require(!r.prompt_log_probabilities, "prompt_log_probabilities", "false", true);
}

void check_tokens(const OptionCheck& check, const BeamOptions& o, const RequestLimits& limits) {
  for (const std::int32_t token : o.eos) check.token("eos", token, limits.vocabulary);
  for (const std::int32_t token : o.banned) check.token("banned", token, limits.vocabulary);
  for (const std::int32_t token : o.forced) {
    if (token == -1) continue;
    check.token("forced", token, limits.vocabulary);
    for (const std::int32_t banned : o.banned) {
      check.require(token != banned, "forced", "tokens that are not banned", token);
    }
  }
  if (o.trie) {
    check.require(o.trie->vocabulary() <= limits.vocabulary, "trie",
                  fmt::format("a vocabulary of at most {}", limits.vocabulary),
                  o.trie->vocabulary());
  }
}

}  // namespace

std::string_view name_of(BeamDialect dialect) {
  const auto i = static_cast<std::size_t>(dialect);
  return i < kDialects.size() ? kDialects[i] : "unknown";
}
BeamDialect parse_beam_dialect(std::string_view name) {
  return static_cast<BeamDialect>(index_of(kDialects, "dialect", name));
}
std::string_view name_of(EarlyStopping stopping) {
  const auto i = static_cast<std::size_t>(stopping);
  return i < kStoppings.size() ? kStoppings[i] : "unknown";
}
EarlyStopping parse_early_stopping(std::string_view name) {
  return static_cast<EarlyStopping>(index_of(kStoppings, "early_stopping", name));
}

void check_beam_request(const BeamRequest& request, const RequestLimits& limits,
                        std::int64_t index) {
  const OptionCheck check(index);
  try {
    check_request(request.request, limits);
  } catch (const InvalidArgument& e) {
    throw InvalidArgument(fmt::format("beam_search: request {}: {}", index,
                                      std::string_view(e.what()).substr(sizeof("request: ") - 1)));
  }
  check_unsampled(check, request.request);
  const BeamOptions& o = request.options;
  check.require(o.beams >= 1 && o.beams <= kMaxBeams, "beams",
                fmt::format("a number in [1, {}]", kMaxBeams), o.beams);
  check.require(o.results >= 0 && o.results <= o.beams, "results",
                fmt::format("a number in [0, beams = {}]", o.beams), o.results);
  check.require(std::isfinite(o.length_penalty), "length_penalty", "a finite number",
                o.length_penalty);
  check.require(name_of(o.dialect) != "unknown", "dialect", "a dialect",
                static_cast<std::int32_t>(o.dialect));
  check.require(name_of(o.early_stopping) != "unknown", "early_stopping", "no, yes or never",
                static_cast<std::int32_t>(o.early_stopping));
  check.require(o.early_stopping == EarlyStopping::no || o.dialect == BeamDialect::hf,
                "early_stopping", "the dialect hf", name_of(o.dialect));
  check.require(std::isfinite(o.patience) && o.patience > 0, "patience", "a finite number > 0",
                o.patience);
  check.require(o.patience == 1 || o.dialect == BeamDialect::ctranslate2, "patience",
                "the dialect ctranslate2", name_of(o.dialect));
  check.require(o.groups >= 1 && o.beams % o.groups == 0, "groups",
                fmt::format("a divisor of beams = {}", o.beams), o.groups);
  check.require(std::isfinite(o.diversity) && o.diversity >= 0, "diversity", "a finite number >= 0",
                o.diversity);
  check.require(o.diversity == 0 || o.groups > 1, "diversity", "groups > 1", o.groups);
  check.require(o.no_repeat_ngram >= 0, "no_repeat_ngram", "a number >= 0", o.no_repeat_ngram);
  check.require(std::ssize(o.eos) + std::ssize(request.request.stop.tokens) <= kMaxBeams, "eos",
                fmt::format("at most {} ending tokens", kMaxBeams), o.eos.size());
  check_tokens(check, o, limits);
}

}  // namespace touchstone::inline v0::decode
