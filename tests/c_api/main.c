// The C API from C11: every operator once with a known answer, and what is refused.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

int failures = 0;

void check(int condition, const char* text, const char* file, int line) {
  if (condition) return;
  ++failures;
  fprintf(stderr, "%s:%d: not true: %s\n", file, line, text);
}

void check_near(double got, double expected, double tolerance, const char* text, const char* file,
                int line) {
  if (fabs(got - expected) <= tolerance * fmax(1, fabs(expected))) return;
  ++failures;
  fprintf(stderr, "%s:%d: %s is %.9g, expected %.9g\n", file, line, text, got, expected);
}

void check_error(ts_status got, ts_status expected, const char* part, const char* file, int line) {
  const int said = got == TS_OK || strstr(ts_last_error(), part) != NULL;
  if (got == expected && said) return;
  ++failures;
  fprintf(stderr, "%s:%d: %s (%s), expected %s (%s)\n", file, line, ts_status_name(got),
          got == TS_OK ? "" : ts_last_error(), ts_status_name(expected), part);
}

ts_tensor f32(const float* data, int32_t rank, int64_t a, int64_t b, int64_t c, int64_t d) {
  const int64_t shape[4] = {a, b, c, d};
  return ts_make_tensor(data, TS_F32, TS_CPU, rank, shape);
}

ts_tensor i32(const int32_t* data, int32_t rank, int64_t a, int64_t b) {
  const int64_t shape[2] = {a, b};
  return ts_make_tensor(data, TS_I32, TS_CPU, rank, shape);
}

ts_tensor i64(const int64_t* data, int64_t a) {
  return ts_make_tensor(data, TS_I64, TS_CPU, 1, &a);
}

void count_report(void* user, const char* name, int32_t accepted, const char* refusal) {
  struct reports* seen = user;
  ++seen->count;
  if (accepted && seen->chosen[0] == '\0') {
    snprintf(seen->chosen, sizeof(seen->chosen), "%s", name);
  }
  if (!accepted && refusal[0] == '\0') ++seen->refused_without_reason;
}

static void test_context(void) {
  ts_context_args args = TS_CONTEXT_ARGS;
  ts_context* context = NULL;
  CHECK(strchr(ts_version(), '.') != NULL);
  CHECK(strcmp(ts_status_name(TS_OK), "ok") == 0);
  CHECK(strcmp(ts_status_name(99), "unknown status") == 0);
  args.threads = -1;
  CHECK_FAILS(ts_context_create(&args, &context), TS_INVALID_ARGUMENT, "threads");
  args.threads = 1;
  args.device.kind = 7;
  CHECK_FAILS(ts_context_create(&args, &context), TS_INVALID_ARGUMENT, "device kind 7");
  args.device.kind = TS_DEVICE_CPU;
  args.struct_size = sizeof(args) + 8;
  CHECK_FAILS(ts_context_create(&args, &context), TS_INVALID_ARGUMENT, "newer version");
  args.struct_size = sizeof(size_t);
  CHECK_FAILS(ts_context_create(&args, &context), TS_INVALID_ARGUMENT, "struct_size");
  CHECK(context == NULL);
  CHECK_FAILS(ts_context_create(NULL, NULL), TS_INVALID_ARGUMENT, "context");
  CHECK_FAILS(ts_context_synchronize(NULL), TS_INVALID_ARGUMENT, "context: is NULL");
  args.struct_size = sizeof(args);
  CHECK_OK(ts_context_create(&args, &context));
  CHECK_OK(ts_context_reserve_workspace(context, 1 << 20));
  CHECK_OK(ts_context_synchronize(context));
  ts_context_destroy(context);
  ts_context_destroy(NULL);
}

int main(void) {
  ts_context* context = NULL;
  test_context();
  CHECK_OK(ts_context_create(NULL, &context));
  if (failures == 0) {
    test_files();
    test_grammar();
    test_norm(context);
    test_linear(context);
    test_cross_entropy(context);
    test_embedding(context);
    test_rope(context);
    test_activation(context);
    test_selection(context);
    test_attention(context);
    test_kv_cache(context);
    test_beam_search(context);
    test_generate(context);
    test_speculative(context);
  test_ternary(context);
    test_chat_template();
    test_tokenizer();
  }
  ts_context_destroy(context);
  if (failures == 0) puts("c_api: all checks hold");
  return failures == 0 ? 0 : 1;
}
