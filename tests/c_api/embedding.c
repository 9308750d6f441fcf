// Two rows of a table of three, and the gradient of the table with a repeated token.
#include "check.h"

static const float kWeight[6] = {1, 2, 3, 4, 5, 6};

static void test_forward(ts_context* context) {
  const int32_t tokens[2] = {2, 0};
  static const float kExpected[4] = {10, 12, 2, 4};
  float y[4] = {0};
  ts_embedding_args args = TS_EMBEDDING_ARGS;
  args.tokens = i32(tokens, 1, 2, 0);
  args.weight = f32(kWeight, 2, 3, 2, 0, 0);
  args.y = f32(y, 2, 2, 2, 0, 0);
  args.scale = 2;
  CHECK_OK(ts_embedding(context, &args));
  for (int i = 0; i < 4; ++i) CHECK_NEAR(y[i], kExpected[i]);
  CHECK_EXPLAINED(ts_embedding_explain);
  const int32_t wrong[2] = {2, 3};
  args.tokens = i32(wrong, 1, 2, 0);
  CHECK_FAILS(ts_embedding(context, &args), TS_INVALID_ARGUMENT, "tokens[1]");
  args.weight_format = "q9";
  CHECK_FAILS(ts_embedding(context, &args), TS_INVALID_ARGUMENT, "q4_k");
}

static void test_backward(ts_context* context) {
  const int64_t tokens[3] = {1, 2, 1};
  static const float kDy[6] = {1, 2, 3, 4, 5, 6};
  static const float kExpected[6] = {0, 0, 6, 8, 3, 4};
  float dweight[6] = {9, 9, 9, 9, 9, 9};
  ts_embedding_backward_args args = TS_EMBEDDING_BACKWARD_ARGS;
  args.tokens = i64(tokens, 3);
  args.dy = f32(kDy, 2, 3, 2, 0, 0);
  args.dweight = f32(dweight, 2, 3, 2, 0, 0);
  CHECK_OK(ts_embedding_backward(context, &args));
  for (int i = 0; i < 6; ++i) CHECK_NEAR(dweight[i], kExpected[i]);
  CHECK_EXPLAINED(ts_embedding_backward_explain);
  args.accumulate = 1;
  CHECK_OK(ts_embedding_backward(context, &args));
  for (int i = 0; i < 6; ++i) CHECK_NEAR(dweight[i], 2 * kExpected[i]);
}

void test_embedding(ts_context* context) {
  test_forward(context);
  test_backward(context);
}
