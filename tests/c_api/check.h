// The little that a test in C needs: conditions that name themselves when they fail.
#pragma once

#include <stdint.h>

#include "touchstone/touchstone_c.h"

extern int failures;

void check(int condition, const char* text, const char* file, int line);
void check_near(double got, double expected, double tolerance, const char* text, const char* file,
                int line);
void check_error(ts_status got, ts_status expected, const char* part, const char* file, int line);

#define CHECK(condition) check((condition) != 0, #condition, __FILE__, __LINE__)
#define CHECK_OK(status) check_error((status), TS_OK, "", __FILE__, __LINE__)
// The call fails with this status, and its message holds this text.
#define CHECK_FAILS(status, expected, part) \
  check_error((status), (expected), (part), __FILE__, __LINE__)
#define CHECK_NEAR(got, expected) check_near((got), (expected), 1e-5, #got, __FILE__, __LINE__)

ts_tensor f32(const float* data, int32_t rank, int64_t a, int64_t b, int64_t c, int64_t d);
ts_tensor i32(const int32_t* data, int32_t rank, int64_t a, int64_t b);
ts_tensor i64(const int64_t* data, int64_t a);

// Counts the implementations of an explain function, and remembers the one that would run.
struct reports {
  int count;
  int refused_without_reason;
  char chosen[64];
};
void count_report(void* user, const char* name, int32_t accepted, const char* refusal);
#define CHECK_EXPLAINED(call)                            \
  do {                                                   \
    struct reports seen = {0, 0, ""};                    \
    CHECK_OK(call(context, &args, count_report, &seen)); \
    CHECK(seen.count > 0);                               \
    CHECK(seen.chosen[0] != '\0');                       \
    CHECK(seen.refused_without_reason == 0);             \
  } while (0)

void test_linear(ts_context* context);
void test_activation(ts_context* context);
void test_files(void);
void test_generate(ts_context* context);
void test_grammar(void);
void test_cross_entropy(ts_context* context);
void test_embedding(ts_context* context);
void test_rope(ts_context* context);
void test_norm(ts_context* context);
void test_selection(ts_context* context);
void test_attention(ts_context* context);
void test_kv_cache(ts_context* context);
void test_beam_search(ts_context* context);
void test_speculative(ts_context* context);
void test_ternary(ts_context* context);
void test_chat_template(void);
void test_tokenizer(void);
