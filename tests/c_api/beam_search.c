// Beam search over a function.
#include <math.h>

#include "check.h"

// Probabilities: first 1 .5, 2 .4, 0 .1; after 1: 1 .7, 0 .3; after 2: 0 .9, 1 .1.
static int32_t toy(void* user, const int32_t* tokens, int64_t count, float* logits) {
  static const double rows[3][3] = {{0.1, 0.5, 0.4}, {0.3, 0.7, 0}, {0.9, 0.1, 0}};
  const int row = count == 1 ? 0 : tokens[count - 1];
  int i;
  ++*(int*)user;
  if (count > 100) return 7;
  for (i = 0; i < 3; ++i) logits[i] = (float)log(rows[row][i]);
  return 0;
}

static int32_t failing(void* user, const int32_t* tokens, int64_t count, float* logits) {
  (void)user, (void)tokens, (void)count, (void)logits;
  return 7;
}

void test_beam_search(ts_context* context) {
  static const int32_t prompts[] = {1, 2, 1};
  static const int64_t offsets[] = {0, 1, 2, 3};
  static const int32_t eos[] = {0};
  ts_beam_search_args args = TS_BEAM_SEARCH_ARGS;
  ts_beams* beams = NULL;
  ts_beam beam = TS_BEAM;
  int calls = 0;
  int64_t count = 0;
  args.vocabulary = 3;
  args.logits = toy;
  args.user = &calls;
  args.prompts = prompts;
  args.offsets = offsets;
  args.prompt_count = 3;
  args.max_tokens = 2;
  args.beams = 2;
  args.length_penalty = 0;
  args.eos = eos;
  args.eos_count = 1;
  CHECK_OK(ts_beam_search(context, &args, &beams));
  CHECK(calls > 0);
  CHECK_OK(ts_beams_count(beams, 2, &count));
  CHECK(count == 2);
  CHECK_OK(ts_beams_get(beams, 2, 0, &beam));
  CHECK(beam.token_count == 1 && beam.tokens[0] == 2);
  CHECK(beam.generated_count == 2 && beam.reason == TS_FINISH_EOS && beam.length == 2);
  CHECK_NEAR(beam.log_probability, log(0.36));
  CHECK_NEAR((double)beam.log_probabilities[1], log(0.9));
  CHECK_OK(ts_beams_get(beams, 0, 1, &beam));
  CHECK(beam.token_count == 2 && beam.reason == TS_FINISH_LENGTH);
  CHECK_FAILS(ts_beams_get(beams, 0, 2, &beam), TS_INVALID_ARGUMENT, "rank 2");
  CHECK_FAILS(ts_beams_count(beams, 3, &count), TS_INVALID_ARGUMENT, "prompt 3");
  ts_beams_destroy(beams);
  beams = NULL;
  args.beams = 0;
  CHECK_FAILS(ts_beam_search(context, &args, &beams), TS_INVALID_ARGUMENT, "request 0: beams");
  args.beams = 2;
  args.dialect = 9;
  CHECK_FAILS(ts_beam_search(context, &args, &beams), TS_INVALID_ARGUMENT, "dialect");
  args.dialect = TS_BEAM_VLLM;
  args.logits = failing;
  CHECK_FAILS(ts_beam_search(context, &args, &beams), TS_CORRUPT_DATA, "returned 7");
  args.logits = NULL;
  CHECK_FAILS(ts_beam_search(context, &args, &beams), TS_INVALID_ARGUMENT, "logits: is NULL");
  CHECK(beams == NULL);
  ts_beams_destroy(NULL);
}
