// A quarter turn of one token with one head, and its backward.
#include "check.h"

void test_rope(ts_context* context) {
  const double quarter = 1.5707963267948966;
  const float x[4] = {1, 2, 3, 4};
  const int64_t position = 1;
  const double frequencies[2] = {quarter, 2 * quarter};
  static const float kHalves[4] = {-3, -2, 1, -4};
  static const float kAdjacent[4] = {-2, 1, -3, -4};
  float y[4] = {0};
  ts_rope_args args = TS_ROPE_ARGS;
  args.x = f32(x, 3, 1, 1, 4, 0);
  args.y = f32(y, 3, 1, 1, 4, 0);
  args.positions = i64(&position, 1);
  args.frequencies = f32((const float*)frequencies, 1, 2, 0, 0, 0);
  CHECK_FAILS(ts_rope(context, &args), TS_INVALID_ARGUMENT, "frequencies");
  args.frequencies.dtype = TS_F64;
  CHECK_OK(ts_rope(context, &args));
  for (int i = 0; i < 4; ++i) CHECK_NEAR(y[i], kHalves[i]);
  args.adjacent = 1;
  CHECK_OK(ts_rope(context, &args));
  for (int i = 0; i < 4; ++i) CHECK_NEAR(y[i], kAdjacent[i]);
  CHECK_EXPLAINED(ts_rope_explain);
  CHECK_EXPLAINED(ts_rope_backward_explain);
  args.x = args.y;
  CHECK_OK(ts_rope_backward(context, &args));
  for (int i = 0; i < 4; ++i) CHECK_NEAR(y[i], x[i]);
  args.implementation = "none";
  CHECK_FAILS(ts_rope(context, &args), TS_UNSUPPORTED, "none");
}
