// A tokenizer trained, read, used, and text of tokens one by one.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static ts_tokenizer* trained(const char* path) {
  static const char* const kTexts[] = {"low lower lowest\n", "new newer newest\n"};
  static const char* const kSpecial[] = {"<s>"};
  const size_t bytes[] = {strlen(kTexts[0]), strlen(kTexts[1])};
  ts_tokenizer* tokenizer = NULL;
  ts_tokenizer_train_args args = TS_TOKENIZER_TRAIN_ARGS;
  CHECK(args.vocabulary == 32000);
  args.texts = kTexts;
  args.text_bytes = bytes;
  args.text_count = 2;
  args.special = kSpecial;
  args.special_count = 1;
  args.vocabulary = 100;
  CHECK_FAILS(ts_tokenizer_train(&args, path), TS_INVALID_ARGUMENT, "vocabulary");
  args.vocabulary = 270;
  CHECK_FAILS(ts_tokenizer_train(&args, NULL), TS_INVALID_ARGUMENT, "path");
  CHECK_OK(ts_tokenizer_train(&args, path));
  CHECK_OK(ts_tokenizer_open(path, &tokenizer));
  return tokenizer;
}

static void test_stream(const ts_tokenizer* tokenizer, const int32_t* ids, int64_t count,
                        const char* expected) {
  ts_token_stream* stream = NULL;
  char joined[64] = "";
  const char* text = NULL;
  int64_t bytes = 0;
  CHECK_FAILS(ts_token_stream_create(NULL, 0, &stream), TS_INVALID_ARGUMENT, "tokenizer");
  CHECK_OK(ts_token_stream_create(tokenizer, 0, &stream));
  CHECK_FAILS(ts_token_stream_next(stream, ids[0], NULL, &bytes), TS_INVALID_ARGUMENT, "text");
  CHECK_FAILS(ts_token_stream_finish(stream, &text, NULL), TS_INVALID_ARGUMENT, "bytes");
  for (int64_t i = 0; i <= count; ++i) {
    CHECK_OK(i < count ? ts_token_stream_next(stream, ids[i], &text, &bytes)
                       : ts_token_stream_finish(stream, &text, &bytes));
    strncat(joined, text, (size_t)bytes);
  }
  CHECK(strcmp(joined, expected) == 0);
  ts_token_stream_destroy(stream);
  ts_token_stream_destroy(NULL);
}

static void keep_line(void* user, const char* text, int64_t bytes) {
  if (bytes < 100) strcpy(user, text);
}

static void test_tokens(const ts_tokenizer* tokenizer) {
  char line[100] = "";
  CHECK_OK(ts_tokenizer_describe(tokenizer, keep_line, line));
  CHECK(strstr(line, "270 tokens") != NULL);
  char token[8] = "";
  int64_t bytes = 0;
  int32_t special = 0;
  int32_t id = 7;
  CHECK_OK(ts_tokenizer_token(tokenizer, 0, token, 8, &bytes, &special));
  CHECK(bytes == 3 && memcmp(token, "<s>", 3) == 0 && special == 1);
  CHECK_OK(ts_tokenizer_find(tokenizer, "<s>", 3, &id));
  CHECK(id == 0);
  CHECK_OK(ts_tokenizer_find(tokenizer, "a", 1, &id));
  CHECK_OK(ts_tokenizer_token(tokenizer, id, token, 8, &bytes, NULL));
  CHECK(bytes == 1 && token[0] == 'a');
  CHECK_OK(ts_tokenizer_find(tokenizer, "nothing", 7, &id));
  CHECK(id == -1);
  CHECK_FAILS(ts_tokenizer_token(tokenizer, 270, token, 8, &bytes, NULL), TS_INVALID_ARGUMENT,
              "270");
  CHECK_FAILS(ts_tokenizer_token(tokenizer, -1, token, 8, &bytes, NULL), TS_INVALID_ARGUMENT, "-1");
}

void test_tokenizer(void) {
  const char* path = "c_api_tokenizer.json";
  const char* text = "<s>lowest \xc3\xa9";
  ts_tokenizer* tokenizer = trained(path);
  ts_tokenizer* none = NULL;
  int32_t ids[32] = {0};
  char back[32] = {0};
  int64_t count = 0;
  int64_t bytes = 0;
  int64_t tokens = 0;
  CHECK_OK(ts_tokenizer_size(tokenizer, &tokens, &count));
  CHECK(tokens == 270 && count == 270);
  CHECK_OK(
      ts_tokenizer_encode(tokenizer, text, strlen(text), TS_ENCODE_PARSE_SPECIAL, NULL, 0, &count));
  CHECK(count > 2 && count < 32);
  CHECK_OK(
      ts_tokenizer_encode(tokenizer, text, strlen(text), TS_ENCODE_PARSE_SPECIAL, ids, 32, &count));
  CHECK(ids[0] == 0);
  CHECK_OK(ts_tokenizer_decode(tokenizer, ids, count, 0, back, 32, &bytes));
  CHECK(bytes == (int64_t)strlen(text) && memcmp(back, text, strlen(text)) == 0);
  CHECK_OK(ts_tokenizer_decode(tokenizer, ids, count, TS_DECODE_SKIP_SPECIAL, back, 32, &bytes));
  CHECK(bytes == (int64_t)strlen(text) - 3);
  test_stream(tokenizer, ids, count, text);

  test_tokens(tokenizer);

  CHECK_FAILS(ts_tokenizer_encode(tokenizer, "\xff", 1, 0, ids, 32, &count), TS_INVALID_ARGUMENT,
              "UTF-8");
  CHECK_FAILS(ts_tokenizer_encode(tokenizer, "a", 1, 8, ids, 32, &count), TS_INVALID_ARGUMENT,
              "flags");
  CHECK_FAILS(ts_tokenizer_encode(NULL, "a", 1, 0, ids, 32, &count), TS_INVALID_ARGUMENT,
              "tokenizer");
  CHECK_FAILS(ts_tokenizer_encode(tokenizer, NULL, 1, 0, ids, 32, &count), TS_INVALID_ARGUMENT,
              "text");
  CHECK_FAILS(ts_tokenizer_encode(tokenizer, "a", 1, 0, ids, -1, &count), TS_INVALID_ARGUMENT,
              "count -1");
  CHECK_FAILS(ts_tokenizer_from_json("{}", 2, &none), TS_CORRUPT_DATA, "model");
  CHECK_FAILS(ts_tokenizer_open("no/such/file.json", &none), TS_FILE_ERROR, "no/such/file.json");
  CHECK(none == NULL);
  ts_tokenizer_destroy(tokenizer);
  ts_tokenizer_destroy(NULL);
  remove(path);
}
