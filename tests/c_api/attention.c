// attention and its backward: two queries on two keys of one head of two, token by token.
#include <math.h>
#include <stddef.h>

#include "check.h"

enum { kTokens = 2, kDim = 2 };
static const float kQ[kTokens * kDim] = {1, 0, 0, 1};
static const float kK[kTokens * kDim] = {1, 0, 0, 2};
static const float kV[kTokens * kDim] = {1, 2, 3, 4};

// A weight is dropped or doubled, the same in both directions; log_sum_exp knows nothing of it.
static void test_dropout(ts_context* context) {
  float output[kTokens * kDim] = {0};
  float log_sum_exp[kTokens] = {0};
  const float doutput[kTokens * kDim] = {0, 0, 1, 0};
  float dq[kTokens * kDim] = {0};
  float dk[kTokens * kDim] = {0};
  float dv[kTokens * kDim] = {0};
  ts_attention_args args = TS_ATTENTION_ARGS;
  args.q = f32(kQ, 4, 1, kTokens, 1, kDim);
  args.k = f32(kK, 4, 1, kTokens, 1, kDim);
  args.v = f32(kV, 4, 1, kTokens, 1, kDim);
  args.output = f32(output, 4, 1, kTokens, 1, kDim);
  args.log_sum_exp = f32(log_sum_exp, 3, 1, kTokens, 1, 0);
  args.options.scale = 1;
  args.dropout.probability = 0.5;
  ts_attention_backward_args backward = TS_ATTENTION_BACKWARD_ARGS;
  backward.doutput = f32(doutput, 4, 1, kTokens, 1, kDim);
  backward.q = args.q, backward.k = args.k, backward.v = args.v;
  backward.output = args.output, backward.log_sum_exp = args.log_sum_exp;
  backward.dq = f32(dq, 4, 1, kTokens, 1, kDim);
  backward.dk = f32(dk, 4, 1, kTokens, 1, kDim);
  backward.dv = f32(dv, 4, 1, kTokens, 1, kDim);
  backward.options.scale = 1;
  const double p = 1 / (1 + exp(-2.0));  // the second query's weight of the second key
  int dropped = 0;
  for (int seed = 0; seed < 16; ++seed) {
    args.dropout.seed = seed;
    backward.dropout = args.dropout;
    CHECK_OK(ts_attention(context, &args));
    CHECK_OK(ts_attention_backward(context, &backward));
    CHECK_NEAR(log_sum_exp[1], log(1 + exp(2.0)));
    CHECK(fabs(dv[0]) < 1e-6 || fabs(dv[0] - 2 * (1 - p)) < 1e-5);
    CHECK(fabs(dv[2]) < 1e-6 || fabs(dv[2] - 2 * p) < 1e-5);
    CHECK_NEAR(output[2], (double)dv[0] * 1 + (double)dv[2] * 3);
    dropped += dv[0] == 0;
    dropped += dv[2] == 0;
  }
  CHECK(dropped > 4 && dropped < 28);
  // A caller of the first version of the struct has no dropout.
  args.dropout.probability = 2;
  CHECK_FAILS(ts_attention(context, &args), TS_INVALID_ARGUMENT, "dropout");
  backward.dropout.probability = -1;
  CHECK_FAILS(ts_attention_backward(context, &backward), TS_INVALID_ARGUMENT, "dropout");
  args.options.bias.rank = 9;
  CHECK_FAILS(ts_attention(context, &args), TS_INVALID_ARGUMENT, "attention: bias: rank 9");
  args.options.bias.rank = 0;
  backward.options.bias.dtype = 99;
  CHECK_FAILS(ts_attention_backward(context, &backward), TS_INVALID_ARGUMENT,
              "attention_backward: bias: dtype 99");
  args.struct_size = offsetof(ts_attention_args, dropout);
  CHECK_OK(ts_attention(context, &args));
  CHECK_NEAR(output[2], 1 + 2 * p);
}

void test_attention(ts_context* context) {
  test_dropout(context);
  float output[kTokens * kDim] = {0};
  float log_sum_exp[kTokens] = {0};
  ts_attention_args args = TS_ATTENTION_ARGS;
  args.q = f32(kQ, 4, 1, kTokens, 1, kDim);
  args.k = f32(kK, 4, 1, kTokens, 1, kDim);
  args.v = f32(kV, 4, 1, kTokens, 1, kDim);
  args.output = f32(output, 4, 1, kTokens, 1, kDim);
  args.log_sum_exp = f32(log_sum_exp, 3, 1, kTokens, 1, 0);
  args.options.scale = 1;
  args.options.causal = 1;
  CHECK_OK(ts_attention(context, &args));
  // The first query sees one key, the second sees scores 0 and 2.
  const double p = 1 / (1 + exp(-2.0));
  CHECK_NEAR(output[0], 1);
  CHECK_NEAR(output[1], 2);
  CHECK_NEAR(output[2], 1 + 2 * p);
  CHECK_NEAR(output[3], 2 + 2 * p);
  CHECK_NEAR(log_sum_exp[0], 1);
  CHECK_NEAR(log_sum_exp[1], log(1 + exp(2.0)));
  CHECK_EXPLAINED(ts_attention_explain);
  args.options.scale = NAN;
  CHECK_FAILS(ts_attention(context, &args), TS_INVALID_ARGUMENT, "scale");

  const float doutput[kTokens * kDim] = {0, 0, 1, 0};
  float dq[kTokens * kDim] = {9, 9, 9, 9};
  float dk[kTokens * kDim] = {0};
  float dv[kTokens * kDim] = {0};
  {
    ts_attention_backward_args args = TS_ATTENTION_BACKWARD_ARGS;
    args.doutput = f32(doutput, 4, 1, kTokens, 1, kDim);
    args.q = f32(kQ, 4, 1, kTokens, 1, kDim);
    args.k = f32(kK, 4, 1, kTokens, 1, kDim);
    args.v = f32(kV, 4, 1, kTokens, 1, kDim);
    args.output = f32(output, 4, 1, kTokens, 1, kDim);
    args.log_sum_exp = f32(log_sum_exp, 3, 1, kTokens, 1, 0);
    args.dq = f32(dq, 4, 1, kTokens, 1, kDim);
    args.dk = f32(dk, 4, 1, kTokens, 1, kDim);
    args.dv = f32(dv, 4, 1, kTokens, 1, kDim);
    args.options.scale = 1;
    args.options.causal = 1;
    CHECK_OK(ts_attention_backward(context, &args));
    // d output[2] / d score of the second key is 2 p (1 - p), of the first its negative.
    const double slope = 2 * p * (1 - p);
    CHECK_NEAR(dq[0], 0);
    CHECK_NEAR(dq[2], -slope);
    CHECK_NEAR(dq[3], 2 * slope);
    CHECK_NEAR(dk[1], -slope);
    CHECK_NEAR(dk[3], slope);
    CHECK_NEAR(dv[0], 1 - p);
    CHECK_NEAR(dv[2], p);
    CHECK_EXPLAINED(ts_attention_backward_explain);
  }
}
