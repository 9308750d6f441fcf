// This library as a contender: the task's function in terms of its C API. A state is found from the
// tokens so far; the search itself keeps no more than that.
#include <touchstone/touchstone_c.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

struct Model {
  int64_t vocab;
  const float* logits;
  const int32_t* next;
  const int32_t* start;
};

int32_t logits_after(void* user, const int32_t* tokens, int64_t count, float* logits) {
  const auto& model = *static_cast<const Model*>(user);
  int64_t state = model.start[0];  // token 0 is the prompt
  for (int64_t i = 1; i < count; ++i) state = model.next[state * model.vocab + tokens[i]];
  std::copy_n(model.logits + state * model.vocab, model.vocab, logits);
  return 0;
}

}  // namespace

extern "C" int beam_search(int64_t prompts, int64_t /*states*/, int64_t vocab, int64_t beams,
                           int64_t max_tokens, int64_t min_tokens, int64_t eos_count,
                           float length_penalty, const float* logits, const int32_t* next,
                           const int32_t* start, const int32_t* /*prompt_tokens*/,
                           const int32_t* eos, int32_t* tokens, int32_t* lengths, int32_t* finish,
                           float* log_probabilities, float* scores) {
  static ts_context* context = nullptr;  // makes threads once; calls come from one thread
  if (context == nullptr && ts_context_create(nullptr, &context) != TS_OK) return 1;
  std::fill_n(tokens, prompts * std::max<int64_t>(0, beams) * max_tokens, -1);
  for (int64_t p = 0; p < std::max<int64_t>(prompts, beams < 1 ? 1 : 0); ++p) {
    Model model{vocab, logits, next, start + p};
    const int32_t prompt = 0;  // one token, which the model does not look at
    const int64_t offsets[] = {0, 1};
    ts_beam_search_args args = TS_BEAM_SEARCH_ARGS;
    args.vocabulary = vocab;
    args.logits = logits_after;
    args.user = &model;
    args.prompts = &prompt;
    args.offsets = offsets;
    args.prompt_count = 1;
    args.max_tokens = max_tokens;
    args.min_tokens = min_tokens;
    args.beams = static_cast<int32_t>(beams);
    args.length_penalty = static_cast<double>(length_penalty);
    args.eos = eos;
    args.eos_count = eos_count;
    args.include_stop = 1;
    ts_beams* found = nullptr;
    if (ts_beam_search(context, &args, &found) != TS_OK) return 1;
    int64_t count = 0;
    ts_beams_count(found, 0, &count);
    for (int64_t b = 0; b < beams; ++b) {
      const int64_t at = p * beams + b;
      ts_beam beam = TS_BEAM;
      if (b < count) ts_beams_get(found, 0, b, &beam);
      std::copy_n(beam.tokens, beam.token_count, tokens + at * max_tokens);
      lengths[at] = static_cast<int32_t>(beam.token_count);
      finish[at] = b >= count ? 0 : beam.reason == TS_FINISH_EOS ? 1 : 2;
      log_probabilities[at] = static_cast<float>(beam.log_probability);
      scores[at] = static_cast<float>(beam.score);
    }
    ts_beams_destroy(found);
  }
  return 0;
}
