// relu_squared of three numbers, gated, and the backwards.
#include "check.h"

void test_activation(ts_context* context) {
  const float x[3] = {-1, 2, 3};
  const float up[3] = {5, 6, 7};
  const float dy[3] = {1, 2, 3};
  static const float kY[3] = {0, 4, 9};
  static const float kDx[3] = {0, 8, 18};
  static const float kGated[3] = {0, 24, 63};
  static const float kDgate[3] = {0, 48, 126};
  static const float kDup[3] = {0, 8, 27};
  float y[3] = {0};
  float dx[3] = {0};
  float dup[3] = {0};
  ts_activation_args args = TS_ACTIVATION_ARGS;
  args.kind = TS_RELU_SQUARED;
  args.x = f32(x, 1, 3, 0, 0, 0);
  args.y = f32(y, 1, 3, 0, 0, 0);
  args.dy = f32(dy, 1, 3, 0, 0, 0);
  args.dx = f32(dx, 1, 3, 0, 0, 0);
  CHECK_OK(ts_activation(context, &args));
  CHECK_OK(ts_activation_backward(context, &args));
  for (int i = 0; i < 3; ++i) {
    CHECK_NEAR(y[i], kY[i]);
    CHECK_NEAR(dx[i], kDx[i]);
  }
  CHECK_FAILS(ts_gate(context, &args), TS_INVALID_ARGUMENT, "up");
  args.up = f32(up, 1, 3, 0, 0, 0);
  args.dup = f32(dup, 1, 3, 0, 0, 0);
  CHECK_OK(ts_gate(context, &args));
  CHECK_OK(ts_gate_backward(context, &args));
  for (int i = 0; i < 3; ++i) {
    CHECK_NEAR(y[i], kGated[i]);
    CHECK_NEAR(dx[i], kDgate[i]);
    CHECK_NEAR(dup[i], kDup[i]);
  }
  CHECK_EXPLAINED(ts_activation_explain);
  CHECK_EXPLAINED(ts_activation_backward_explain);
  CHECK_EXPLAINED(ts_gate_explain);
  CHECK_EXPLAINED(ts_gate_backward_explain);
  args.kind = 4;
  CHECK_FAILS(ts_activation(context, &args), TS_INVALID_ARGUMENT, "kind 4");
}
