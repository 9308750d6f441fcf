// softmax_topk and sample over a vocabulary of five.
#include <math.h>

#include "check.h"

enum { kVocabulary = 5, kKept = 2 };
static const float kLogits[kVocabulary] = {0, 3, 1, 2, -1};

static void test_softmax_topk(ts_context* context) {
  float probabilities[kKept] = {0};
  int32_t indices[kKept] = {0};
  int32_t status = -1;
  ts_softmax_topk_args args = TS_SOFTMAX_TOPK_ARGS;
  args.logits = f32(kLogits, 2, 1, kVocabulary, 0, 0);
  args.probabilities = f32(probabilities, 2, 1, kKept, 0, 0);
  args.indices = i32(indices, 2, 1, kKept);
  args.status = i32(&status, 1, 1, 0);
  CHECK_OK(ts_softmax_topk(context, &args));
  double sum = 0;
  for (int i = 0; i < kVocabulary; ++i) sum += exp(kLogits[i]);
  CHECK(indices[0] == 1 && indices[1] == 3);
  CHECK_NEAR(probabilities[0], exp(3) / sum);
  CHECK_NEAR(probabilities[1], exp(2) / sum);
  CHECK((status & ~TS_ROW_TWO_PASS) == 0);
  CHECK_EXPLAINED(ts_softmax_topk_explain);
  args.renormalize = 1;
  CHECK_OK(ts_softmax_topk(context, &args));
  CHECK_NEAR(probabilities[0] + probabilities[1], 1);
  args.temperature_scale = 0;
  CHECK_FAILS(ts_softmax_topk(context, &args), TS_INVALID_ARGUMENT, "temperature_scale");
}

static void test_sample(ts_context* context) {
  const int32_t only_one = 1;
  const int64_t seed = 7;
  const int64_t position = 3;
  int32_t token = -1;
  float log_probability = 1;
  ts_sample_args args = TS_SAMPLE_ARGS;
  args.logits = f32(kLogits, 2, 1, kVocabulary, 0, 0);
  args.top_k = i32(&only_one, 1, 1, 0);
  args.seed = i64(&seed, 1);
  args.position = i64(&position, 1);
  args.token = i32(&token, 1, 1, 0);
  args.log_probability = f32(&log_probability, 1, 1, 0, 0, 0);
  CHECK_OK(ts_sample(context, &args));
  CHECK(token == 1);
  CHECK(log_probability <= 0);
  CHECK_EXPLAINED(ts_sample_explain);
  args.struct_size = 16;
  CHECK_FAILS(ts_sample(context, &args), TS_INVALID_ARGUMENT, "sample: struct_size 16");
}

void test_selection(ts_context* context) {
  test_softmax_topk(context);
  test_sample(context);
}
