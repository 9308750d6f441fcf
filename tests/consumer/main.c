/* Normalizes one row through the installed C header and library. */
#include <math.h>
#include <stdio.h>
#include <touchstone/touchstone_c.h>

int main(void) {
  const float x[4] = {0, 1, 2, 3};
  const int64_t shape[2] = {1, 4};
  float y[4] = {0};
  ts_context* context = NULL;
  ts_layer_norm_args args = TS_LAYER_NORM_ARGS;
  args.x = ts_make_tensor(x, TS_F32, TS_CPU, 2, shape);
  args.y = ts_make_tensor(y, TS_F32, TS_CPU, 2, shape);
  args.eps = 0;
  if (ts_context_create(NULL, &context) != TS_OK || ts_layer_norm(context, &args) != TS_OK) {
    fprintf(stderr, "%s\n", ts_last_error());
    return 1;
  }
  ts_context_destroy(context);
  printf("touchstone %s: %.7f\n", ts_version(), (double)y[0]);
  return fabs((double)y[0] + 1.5 / sqrt(1.25)) <= 1e-6 ? 0 : 1;
}
