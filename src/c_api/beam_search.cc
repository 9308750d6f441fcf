// Beam search over a function of the caller.
#include "touchstone/decode/beam_search.h"

#include <algorithm>
#include <limits>
#include <map>

#include "c_api/border.h"
#include "touchstone/touchstone_c_beam.h"

struct ts_beams {
  touchstone::decode::BeamResults results;
};

namespace touchstone::c_api {
namespace {

using decode::BeamDialect;
using decode::EarlyStopping;
using decode::FinishReason;

static_assert(TS_BEAM_VLLM == static_cast<int>(BeamDialect::vllm));
static_assert(TS_EARLY_STOPPING_NEVER == static_cast<int>(EarlyStopping::never));
static_assert(TS_FINISH_LENGTH == static_cast<int>(FinishReason::length));

// A model that is a function of all tokens so far: sequences are their tokens.
class FunctionScorer : public decode::Scorer {
 public:
  FunctionScorer(std::int64_t vocabulary, std::int64_t max_length, ts_logits_function logits,
                 void* user)
      : logits_(logits), user_(user) {
    shape_.vocabulary = vocabulary;
    shape_.max_length = max_length;
  }
  const decode::ScorerShape& shape() const override { return shape_; }
  decode::ScorerSequence create() override { return add({}); }
  decode::ScorerSequence fork(decode::ScorerSequence sequence) override {
    return add(sequences_.at(sequence.id));
  }
  void truncate(decode::ScorerSequence sequence, std::int64_t length) override {
    sequences_.at(sequence.id).resize(static_cast<std::size_t>(length));
  }
  void release(decode::ScorerSequence sequence) override { sequences_.erase(sequence.id); }
  std::int64_t length(decode::ScorerSequence sequence) const override {
    return std::ssize(sequences_.at(sequence.id));
  }
  // Beam search only scores chains, in order, and keeps all of their rows.
  void score(Context& /*context*/, const decode::ScoreArgs& args) override {
    decode::check_score_args(*this, args);
    std::size_t wanted = 0;
    for (std::size_t i = 0; i < args.rows.size(); ++i) {
      std::vector<std::int32_t>& tokens = sequences_.at(args.rows[i].sequence.id);
      tokens.push_back(args.rows[i].token);
      if (wanted == args.logit_rows.size() ||
          args.logit_rows[wanted] != static_cast<std::int32_t>(i)) {
        continue;
      }
      auto* const to = static_cast<float*>(args.logits.data) +
                       static_cast<std::int64_t>(wanted++) * shape_.vocabulary;
      const std::int32_t failure = logits_(user_, tokens.data(), std::ssize(tokens), to);
      if (failure != 0) {
        throw CorruptData("beam_search: logits: the function returned " + std::to_string(failure));
      }
    }
  }
  void keep(std::span<const decode::KeptRows> /*kept*/) override {}

 private:
  decode::ScorerSequence add(std::vector<std::int32_t> tokens) {
    sequences_[next_] = std::move(tokens);
    return {next_++};
  }
  ts_logits_function logits_;
  void* user_;
  decode::ScorerShape shape_;
  std::map<std::int64_t, std::vector<std::int32_t>> sequences_;
  std::int64_t next_ = 0;
};

std::vector<std::int32_t> tokens_of(const std::int32_t* data, std::int64_t count,
                                    const char* name) {
  const std::span<const std::int32_t> tokens = list(data, count, name);
  return {tokens.begin(), tokens.end()};
}

decode::BeamRequest converted(const ts_beam_search_args& args) {
  decode::BeamRequest request;
  request.request.top_log_probabilities = 0;
  request.request.stop.max_tokens = args.max_tokens;
  request.request.stop.min_tokens = args.min_tokens;
  request.request.stop.include_stop = flag(args.include_stop);
  request.request.stop.tokens =
      tokens_of(args.stop_tokens, args.stop_count, "beam_search: stop_tokens");
  request.options = {.beams = args.beams,
                     .results = args.results,
                     .length_penalty = args.length_penalty,
                     .dialect = static_cast<BeamDialect>(args.dialect),
                     .early_stopping = static_cast<EarlyStopping>(args.early_stopping),
                     .patience = args.patience,
                     .eos = tokens_of(args.eos, args.eos_count, "beam_search: eos"),
                     .groups = args.groups,
                     .diversity = args.diversity,
                     .no_repeat_ngram = args.no_repeat_ngram,
                     .banned = tokens_of(args.banned, args.banned_count, "beam_search: banned"),
                     .forced = tokens_of(args.forced, args.forced_count, "beam_search: forced")};
  return request;
}

std::vector<decode::BeamRequest> requests_of(const ts_beam_search_args& args) {
  if (args.prompt_count < 0) {
    throw InvalidArgument("beam_search: prompt_count: expected a number >= 0, got " +
                          std::to_string(args.prompt_count));
  }
  std::vector<decode::BeamRequest> requests(static_cast<std::size_t>(args.prompt_count),
                                            converted(args));
  if (requests.empty()) return requests;
  const std::span<const std::int64_t> offsets =
      list(args.offsets, args.prompt_count + 1, "beam_search: offsets");
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (offsets[i] < 0 || offsets[i + 1] < offsets[i]) {
      throw InvalidArgument("beam_search: offsets: expected ascending numbers >= 0");
    }
    const std::int64_t count = offsets[i + 1] - offsets[i];
    if (count > 0) checked(args.prompts, "beam_search: prompts");
    requests[i].request.prompt =
        tokens_of(count == 0 ? nullptr : args.prompts + offsets[i], count, "beam_search: prompts");
    requests[i].request.cancellation = {};
  }
  return requests;
}

const std::vector<decode::BeamHypothesis>& found(const ts_beams* beams, std::int64_t prompt) {
  const auto& all = checked(beams, "beams").results.hypotheses;
  if (prompt < 0 || prompt >= std::ssize(all)) {
    throw InvalidArgument("beams: prompt " + std::to_string(prompt) + " is not in [0, " +
                          std::to_string(all.size()) + ")");
  }
  return all[static_cast<std::size_t>(prompt)];
}

}  // namespace
}  // namespace touchstone::c_api

using touchstone::c_api::checked;
using touchstone::c_api::guarded;

ts_status ts_beam_search(ts_context* context, const ts_beam_search_args* given, ts_beams** beams) {
  return guarded([&] {
    using namespace touchstone;
    checked(context, "context");
    checked(beams, "beams");
    const ts_beam_search_args args = c_api::current(
        given, "beam_search", sizeof(ts_beam_search_args), ts_beam_search_args TS_BEAM_SEARCH_ARGS);
    if (args.logits == nullptr) throw InvalidArgument("beam_search: logits: is NULL");
    if (args.vocabulary < 1) {
      throw InvalidArgument("beam_search: vocabulary: expected a number >= 1, got " +
                            std::to_string(args.vocabulary));
    }
    if (context->context.device().is_cuda()) {
      throw Unsupported("beam_search: the logits of a function are on the CPU");
    }
    const std::vector<decode::BeamRequest> requests = c_api::requests_of(args);
    c_api::FunctionScorer scorer(args.vocabulary, std::numeric_limits<std::int64_t>::max() / 2,
                                 args.logits, args.user);
    auto result = std::make_unique<ts_beams>();
    result->results = decode::beam_search(context->context, scorer, requests);
    *beams = result.release();
  });
}

void ts_beams_destroy(ts_beams* beams) { delete beams; }

ts_status ts_beams_count(const ts_beams* beams, int64_t prompt, int64_t* count) {
  return guarded([&] {
    int64_t& place = checked(count, "count");
    place = std::ssize(touchstone::c_api::found(beams, prompt));
  });
}

ts_status ts_beams_get(const ts_beams* beams, int64_t prompt, int64_t rank, ts_beam* beam) {
  return guarded([&] {
    using namespace touchstone;
    const auto& all = c_api::found(beams, prompt);
    if (rank < 0 || rank >= std::ssize(all)) {
      throw InvalidArgument("beams: rank " + std::to_string(rank) + " is not in [0, " +
                            std::to_string(all.size()) + ")");
    }
    const decode::BeamHypothesis& h = all[static_cast<std::size_t>(rank)];
    c_api::fill(beam, "beam",
                {.struct_size = 0,
                 .tokens = h.tokens.data(),
                 .token_count = std::ssize(h.tokens),
                 .log_probabilities = h.log_probabilities.data(),
                 .generated_count = std::ssize(h.log_probabilities),
                 .log_probability = h.log_probability,
                 .score = h.score,
                 .length = h.length,
                 .reason = static_cast<ts_finish_reason>(h.reason),
                 .stop_index = h.stop_index});
  });
}
