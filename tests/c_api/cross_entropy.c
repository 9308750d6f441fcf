// Two tokens over three columns of equal logits, and their gradients.
#include <math.h>

#include "check.h"

static const float kX[4] = {1, 2, 3, 4};
static const float kWeight[6] = {0, 0, 0, 0, 0, 0};

static void test_forward(ts_context* context) {
  const int32_t targets[2] = {2, -100};
  float loss[2] = {9, 9};
  float mean = 9;
  ts_cross_entropy_args args = TS_CROSS_ENTROPY_ARGS;
  args.x = f32(kX, 2, 2, 2, 0, 0);
  args.weight = f32(kWeight, 2, 3, 2, 0, 0);
  args.targets = i32(targets, 1, 2, 0);
  args.loss = f32(loss, 1, 2, 0, 0, 0);
  args.mean_loss = f32(&mean, 1, 1, 0, 0, 0);
  CHECK_OK(ts_cross_entropy(context, &args));
  CHECK_NEAR(loss[0], log(3));
  CHECK_NEAR(loss[1], 0);
  CHECK_NEAR(mean, log(3));
  CHECK_EXPLAINED(ts_cross_entropy_explain);
  args.ignore_index = -1;
  CHECK_FAILS(ts_cross_entropy(context, &args), TS_INVALID_ARGUMENT, "targets[1]");
  args.label_smoothing = 2;
  CHECK_FAILS(ts_cross_entropy(context, &args), TS_INVALID_ARGUMENT, "label_smoothing");
}

static void test_backward(ts_context* context) {
  const int64_t targets[2] = {0, 1};
  const float third = 1.0F / 3;
  float dx[4] = {9, 9, 9, 9};
  float dweight[6] = {0};
  ts_cross_entropy_backward_args args = TS_CROSS_ENTROPY_BACKWARD_ARGS;
  args.x = f32(kX, 2, 2, 2, 0, 0);
  args.weight = f32(kWeight, 2, 3, 2, 0, 0);
  args.targets = i64(targets, 2);
  args.dx = f32(dx, 2, 2, 2, 0, 0);
  args.dweight = f32(dweight, 2, 3, 2, 0, 0);
  CHECK_OK(ts_cross_entropy_backward(context, &args));
  for (int i = 0; i < 4; ++i) CHECK_NEAR(dx[i], 0);
  // Halves of (softmax - one hot) of each token times its x.
  CHECK_NEAR(dweight[0], (-2 * third * kX[0] + third * kX[2]) / 2);
  CHECK_NEAR(dweight[3], (third * kX[1] - 2 * third * kX[3]) / 2);
  CHECK_NEAR(dweight[4], (third * kX[0] + third * kX[2]) / 2);
  CHECK_EXPLAINED(ts_cross_entropy_backward_explain);
}

void test_cross_entropy(ts_context* context) {
  test_forward(context);
  test_backward(context);
}
