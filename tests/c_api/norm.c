// layer_norm and rms_norm, forward and backward, of one row of four.
#include <math.h>
#include <string.h>

#include "check.h"

enum { kCols = 4 };
static const float kX[kCols] = {1, 2, 3, 4};
static const float kDy[kCols] = {1, 0, 0, 0};

static void test_layer_norm(ts_context* context) {
  const double rstd_expected = 1 / sqrt(1.25 + 1e-5);
  float y[kCols] = {0};
  float mean = 0;
  float rstd = 0;
  ts_layer_norm_args args = TS_LAYER_NORM_ARGS;
  CHECK(args.eps == 1e-5);
  args.x = f32(kX, 2, 1, kCols, 0, 0);
  args.y = f32(y, 2, 1, kCols, 0, 0);
  args.mean = f32(&mean, 1, 1, 0, 0, 0);
  args.rstd = f32(&rstd, 1, 1, 0, 0, 0);
  CHECK_OK(ts_layer_norm(context, &args));
  CHECK_NEAR(mean, 2.5);
  CHECK_NEAR(rstd, rstd_expected);
  for (int i = 0; i < kCols; ++i) CHECK_NEAR(y[i], (kX[i] - 2.5) * rstd_expected);
  CHECK_EXPLAINED(ts_layer_norm_explain);
  args.implementation = "plain";
  CHECK_OK(ts_layer_norm(context, &args));

  float dx[kCols] = {0};
  float dweight[kCols] = {0};
  float dbias[kCols] = {0};
  {
    ts_layer_norm_backward_args args = TS_LAYER_NORM_BACKWARD_ARGS;
    args.dy = f32(kDy, 2, 1, kCols, 0, 0);
    args.x = f32(kX, 2, 1, kCols, 0, 0);
    args.mean = f32(&mean, 1, 1, 0, 0, 0);
    args.rstd = f32(&rstd, 1, 1, 0, 0, 0);
    args.dx = f32(dx, 2, 1, kCols, 0, 0);
    args.dweight = f32(dweight, 1, kCols, 0, 0, 0);
    args.dbias = f32(dbias, 1, kCols, 0, 0, 0);
    CHECK_OK(ts_layer_norm_backward(context, &args));
    const double first = (kX[0] - 2.5) * rstd_expected;
    for (int i = 0; i < kCols; ++i) {
      const double normal = (kX[i] - 2.5) * rstd_expected;
      CHECK_NEAR(dx[i], rstd_expected * (kDy[i] - 0.25 - normal * first / kCols));
      CHECK_NEAR(dbias[i], kDy[i]);
      CHECK_NEAR(dweight[i], kDy[i] * normal);
    }
    CHECK_EXPLAINED(ts_layer_norm_backward_explain);
    CHECK_FAILS(ts_layer_norm_backward(NULL, &args), TS_INVALID_ARGUMENT, "context");
  }
}

static void test_rms_norm(ts_context* context) {
  const double rstd_expected = 1 / sqrt(7.5 + 1e-6);
  float y[kCols] = {0};
  float rstd = 0;
  ts_rms_norm_args args = TS_RMS_NORM_ARGS;
  args.x = f32(kX, 2, 1, kCols, 0, 0);
  args.y = f32(y, 2, 1, kCols, 0, 0);
  args.rstd = f32(&rstd, 1, 1, 0, 0, 0);
  CHECK_OK(ts_rms_norm(context, &args));
  for (int i = 0; i < kCols; ++i) CHECK_NEAR(y[i], kX[i] * rstd_expected);
  CHECK_EXPLAINED(ts_rms_norm_explain);
  args.rounding = 9;
  CHECK_FAILS(ts_rms_norm(context, &args), TS_INVALID_ARGUMENT, "rounding 9");

  float dx[kCols] = {0};
  {
    ts_rms_norm_backward_args args = TS_RMS_NORM_BACKWARD_ARGS;
    args.dy = f32(kDy, 2, 1, kCols, 0, 0);
    args.x = f32(kX, 2, 1, kCols, 0, 0);
    args.rstd = f32(&rstd, 1, 1, 0, 0, 0);
    args.dx = f32(dx, 2, 1, kCols, 0, 0);
    CHECK_OK(ts_rms_norm_backward(context, &args));
    const double first = kX[0] * rstd_expected;
    for (int i = 0; i < kCols; ++i) {
      CHECK_NEAR(dx[i], rstd_expected * (kDy[i] - kX[i] * rstd_expected * first / kCols));
    }
    CHECK_EXPLAINED(ts_rms_norm_backward_explain);
  }
}

// What comes from another version of the header, or from nowhere.
static void test_refusals(ts_context* context) {
  float y[kCols] = {9, 9, 9, 9};
  ts_layer_norm_args args = TS_LAYER_NORM_ARGS;
  args.x = f32(kX, 2, 1, kCols, 0, 0);
  args.y = f32(y, 2, 1, kCols, 0, 0);

  // An older caller does not have the last field; its bytes are not read.
  struct {
    ts_layer_norm_args args;
    char beyond[sizeof(void*)];
  } older;
  memset(&older, 0xff, sizeof(older));
  memcpy(&older.args, &args, offsetof(ts_layer_norm_args, implementation));
  older.args.struct_size = offsetof(ts_layer_norm_args, implementation);
  CHECK_OK(ts_layer_norm(context, &older.args));
  CHECK(y[0] != 9);
  y[0] = 9;

  args.struct_size = sizeof(args) + 1;
  CHECK_FAILS(ts_layer_norm(context, &args), TS_INVALID_ARGUMENT, "layer_norm: struct_size");
  args.struct_size = sizeof(args) - 4;
  CHECK_FAILS(ts_layer_norm(context, &args), TS_INVALID_ARGUMENT, "is not a multiple of 8");
  args.struct_size = 0;
  CHECK_FAILS(ts_layer_norm(context, &args), TS_INVALID_ARGUMENT, "layer_norm: struct_size 0 <");
  args.struct_size = sizeof(args);
  CHECK_FAILS(ts_layer_norm(context, NULL), TS_INVALID_ARGUMENT, "layer_norm: is NULL");
  CHECK_FAILS(ts_layer_norm_explain(context, &args, NULL, NULL), TS_INVALID_ARGUMENT, "report");

  args.x.dtype = 77;
  CHECK_FAILS(ts_layer_norm(context, &args), TS_INVALID_ARGUMENT, "x: dtype 77");
  args.x.dtype = TS_F32;
  args.x.rank = -1;
  CHECK_FAILS(ts_layer_norm(context, &args), TS_INVALID_ARGUMENT, "x: rank -1");
  args.x.rank = TS_MAX_RANK + 1;
  CHECK_FAILS(ts_layer_norm(context, &args), TS_INVALID_ARGUMENT, "x: rank 9");
  args.x = f32(kX, 2, 1, kCols - 1, 0, 0);
  CHECK_FAILS(ts_layer_norm(context, &args), TS_INVALID_ARGUMENT, "layer_norm");
  args.x = f32(kX, 2, 1, kCols, 0, 0);
  args.implementation = "nonesuch";
  CHECK(ts_layer_norm(context, &args) != TS_OK);
  CHECK(strstr(ts_last_error(), "nonesuch") != NULL);
  CHECK(y[0] == 9);
}

void test_norm(ts_context* context) {
  test_layer_norm(context);
  test_rms_norm(context);
  test_refusals(context);
}
