// Ternary weights from C: projection, encoding, the product from bytes, inspection of files.
#include <stddef.h>
#include <string.h>

#include "check.h"

enum { kIn = 128, kOut = 2, kBytes = 34 };

static ts_tensor bytes(const void* data, ts_dtype dtype, int64_t rows, int64_t cols) {
  const int64_t shape[2] = {rows, cols};
  return ts_make_tensor(data, dtype, TS_CPU, 2, shape);
}

static void test_formats(void) {
  ts_weight_format format = TS_WEIGHT_FORMAT;
  CHECK_OK(ts_weight_format_find("ternary_g128", &format));
  CHECK(format.block_elements == kIn && format.block_bytes == kBytes);
  CHECK(format.is_ternary == 1 && format.can_encode == 1);
  CHECK_OK(ts_weight_format_find("fp8_e4m3", &format));
  CHECK(format.is_ternary == 0 && format.can_encode == 0);
  CHECK_FAILS(ts_weight_format_find("t9", &format), TS_INVALID_ARGUMENT, "ternary_g128");
  CHECK_FAILS(ts_weight_format_find(NULL, &format), TS_INVALID_ARGUMENT, "name");
}

static void test_product(ts_context* context) {
  float weight[kOut * kIn];
  float projected[kOut * kIn];
  float decoded[kOut * kIn];
  int8_t codes[kOut * kIn];
  float scales[kOut];
  uint8_t packed[kOut * kBytes];
  float x[kIn];
  float y[kOut];
  for (int i = 0; i < kOut * kIn; ++i) weight[i] = i % 4 == 0 ? 0.0F : i % 3 == 0 ? -0.5F : 0.5F;
  ts_ternary_project_args project = TS_TERNARY_PROJECT_ARGS;
  const int64_t groups[1] = {kOut};
  project.weight = f32(weight, 2, kOut, kIn, 0, 0);
  project.values = f32(projected, 2, kOut, kIn, 0, 0);
  project.codes = bytes(codes, TS_I8, kOut, kIn);
  project.scales = ts_make_tensor(scales, TS_F32, TS_CPU, 1, groups);
  CHECK_OK(ts_ternary_project(context, &project));
  CHECK_NEAR(scales[0], 0.375);  // 96 of 128 values are not 0
  CHECK(codes[0] == 0 && codes[1] == 1 && codes[3] == -1);
  project.scale = TS_TERNARY_LEAST_SQUARES;
  CHECK_OK(ts_ternary_project(context, &project));
  CHECK(memcmp(projected, weight, sizeof weight) == 0);
  {
    const ts_ternary_project_args args = project;
    CHECK_EXPLAINED(ts_ternary_project_explain);
  }
  project.implementation = "no_such_kernel";
  CHECK_FAILS(ts_ternary_project(context, &project), TS_UNSUPPORTED, "no_such_kernel");
  // A caller of the first version of the struct has no such field.
  project.struct_size = offsetof(ts_ternary_project_args, implementation);
  CHECK_OK(ts_ternary_project(context, &project));
  project = (ts_ternary_project_args)TS_TERNARY_PROJECT_ARGS;
  project.weight = f32(weight, 2, kOut, kIn, 0, 0);
  project.values = f32(projected, 2, kOut, kIn, 0, 0);
  project.scale = TS_TERNARY_LEAST_SQUARES;
  CHECK_OK(ts_ternary_project(context, &project));
  project.group_size = 8;
  CHECK_FAILS(ts_ternary_project(context, &project), TS_INVALID_ARGUMENT, "group size");
  project.scale = 5;
  CHECK_FAILS(ts_ternary_project(context, &project), TS_INVALID_ARGUMENT, "scale");

  CHECK_OK(ts_encode_weights("ternary_g128", projected, kOut * kIn, packed, sizeof packed));
  CHECK_OK(ts_decode_weights("ternary_g128", packed, sizeof packed, decoded, kOut * kIn));
  CHECK(memcmp(decoded, projected, sizeof decoded) == 0);
  CHECK_FAILS(ts_encode_weights("ternary_g128", projected, 130, packed, sizeof packed),
              TS_INVALID_ARGUMENT, "multiple of 128");
  CHECK_FAILS(ts_decode_weights("ternary_g128", NULL, sizeof packed, decoded, kOut * kIn),
              TS_INVALID_ARGUMENT, "from");

  for (int i = 0; i < kIn; ++i) x[i] = (float)(i % 5 - 2);
  double expected[kOut] = {0};
  for (int i = 0; i < kOut * kIn; ++i) expected[i / kIn] += (double)weight[i] * (double)x[i % kIn];
  ts_linear_args args = TS_LINEAR_ARGS;
  args.x = f32(x, 2, 1, kIn, 0, 0);
  args.weight = bytes(packed, TS_U8, kOut, kBytes);
  args.weight_format = "ternary_g128";
  args.y = f32(y, 2, 1, kOut, 0, 0);
  CHECK_OK(ts_linear(context, &args));
  for (int o = 0; o < kOut; ++o) CHECK_NEAR(y[o], expected[o]);
  args.int8_activations = 1;
  args.implementation = "ternary";
  CHECK_OK(ts_linear(context, &args));
  // Integers of at most 127: 2 becomes 127 steps of 2 / 127, 1 becomes 64 of them, not 63.5.
  for (int o = 0; o < kOut; ++o) CHECK(y[o] > expected[o] - 1 && y[o] < expected[o] + 1);
}

static void test_files_of_ternary(void) {
  int64_t groups = 0;
  CHECK_OK(ts_ternary_groups(TS_TERNARY_GROUP, 128, 3, 130, &groups));
  CHECK(groups == 6);
  CHECK_FAILS(ts_ternary_groups(7, 128, 3, 130, &groups), TS_INVALID_ARGUMENT, "grouping");
  ts_ternary_inspection inspection = TS_TERNARY_INSPECTION;
  CHECK_OK(ts_inspect_ternary(TOUCHSTONE_IO_TESTDATA "/models/llama.gguf", &inspection));
  CHECK(inspection.is_ternary == 0 && inspection.tensors == 0 && inspection.faults > 0);
  CHECK_FAILS(ts_inspect_ternary("/nowhere", &inspection), TS_FILE_ERROR, "/nowhere");
  CHECK_FAILS(ts_convert_model_ternary(TOUCHSTONE_IO_TESTDATA "/models/llama.gguf", "/tmp/x.gguf",
                                       "ternary_g128", TS_TERNARY_MEAN),
              TS_INVALID_ARGUMENT, "whole groups of 128");
}

void test_ternary(ts_context* context) {
  test_formats();
  test_product(context);
  test_files_of_ternary();
}
