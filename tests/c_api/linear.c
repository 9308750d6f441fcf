// linear of two rows of three through two columns, and its backward.
#include <string.h>

#include "check.h"

static const float kX[6] = {1, 2, 3, -1, 0, 1};
static const float kWeight[6] = {1, 0, 1, 2, 1, 0};
static const float kBias[2] = {0.5F, -1};
static const float kDy[4] = {1, 2, 3, 4};

static void test_forward(ts_context* context) {
  static const float kExpected[4] = {4.5F, 3, 0.5F, -3};
  float y[4] = {0};
  ts_linear_args args = TS_LINEAR_ARGS;
  args.x = f32(kX, 2, 2, 3, 0, 0);
  args.weight = f32(kWeight, 2, 2, 3, 0, 0);
  args.bias = f32(kBias, 1, 2, 0, 0, 0);
  args.y = f32(y, 2, 2, 2, 0, 0);
  CHECK_OK(ts_linear(context, &args));
  for (int i = 0; i < 4; ++i) CHECK_NEAR(y[i], kExpected[i]);
  CHECK_EXPLAINED(ts_linear_explain);
  args.implementation = "plain";
  CHECK_OK(ts_linear(context, &args));
  args.implementation = "openblas";
  CHECK_FAILS(ts_linear(context, &args), TS_UNSUPPORTED, "bits_may_depend_on_batch");
  args.implementation = NULL;
  args.gate = 9;
  CHECK_FAILS(ts_linear(context, &args), TS_INVALID_ARGUMENT, "gate 9");
  args.gate = TS_GATE_NONE;
  args.weight_format = "q9";
  CHECK_FAILS(ts_linear(context, &args), TS_INVALID_ARGUMENT, "q4_k");
  CHECK_FAILS(ts_linear(NULL, &args), TS_INVALID_ARGUMENT, "context");
}

static void test_backward(ts_context* context) {
  static const float kDx[6] = {5, 2, 1, 11, 4, 3};
  static const float kDweight[6] = {-2, 2, 6, -2, 4, 10};
  float dx[6] = {0};
  float dweight[6] = {0};
  float dbias[2] = {0};
  ts_linear_backward_args args = TS_LINEAR_BACKWARD_ARGS;
  args.dy = f32(kDy, 2, 2, 2, 0, 0);
  args.x = f32(kX, 2, 2, 3, 0, 0);
  args.weight = f32(kWeight, 2, 2, 3, 0, 0);
  args.dx = f32(dx, 2, 2, 3, 0, 0);
  args.dweight = f32(dweight, 2, 2, 3, 0, 0);
  args.dbias = f32(dbias, 1, 2, 0, 0, 0);
  CHECK_OK(ts_linear_backward(context, &args));
  for (int i = 0; i < 6; ++i) {
    CHECK_NEAR(dx[i], kDx[i]);
    CHECK_NEAR(dweight[i], kDweight[i]);
  }
  CHECK_NEAR(dbias[0], 4);
  CHECK_NEAR(dbias[1], 6);
  CHECK_EXPLAINED(ts_linear_backward_explain);
  args.accumulate = 1;
  CHECK_OK(ts_linear_backward(context, &args));
  for (int i = 0; i < 6; ++i) CHECK_NEAR(dweight[i], 2 * kDweight[i]);
  CHECK_NEAR(dbias[1], 12);
}

void test_linear(ts_context* context) {
  test_forward(context);
  test_backward(context);
}
