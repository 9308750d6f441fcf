// Model files: a tensor listed, found and decoded; what is refused.
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "touchstone/touchstone_c_io.h"

static void test_reading(void) {
  ts_tensor_file* file = NULL;
  CHECK_OK(ts_tensor_file_open(TOUCHSTONE_IO_TESTDATA "/weights.safetensors", &file));
  CHECK(ts_tensor_file_count(file) > 20);
  int64_t index = -1;
  CHECK_OK(ts_tensor_file_find(file, "q4_k.values", &index));
  ts_tensor_info info = TS_TENSOR_INFO;
  CHECK_OK(ts_tensor_file_info(file, index, &info));
  CHECK(strcmp(info.name, "q4_k.values") == 0);
  CHECK(strcmp(info.type, "f32") == 0);
  CHECK(info.rank == 2 && info.shape[1] == 256 && info.is_weights == 1);
  CHECK(info.bytes == 4 * info.elements);
  float values[6 * 256];
  CHECK_OK(ts_tensor_file_decode(file, index, values, info.elements));
  CHECK(memcmp(values, info.data, sizeof values) == 0);
  CHECK_FAILS(ts_tensor_file_decode(file, index, values, 7), TS_INVALID_ARGUMENT, "expected 1536");
  CHECK_OK(ts_tensor_file_find(file, "q4_k.blocks", &index));
  CHECK_FAILS(ts_tensor_file_decode(file, index, values, 6 * 144), TS_UNSUPPORTED, "u8");
  CHECK_FAILS(ts_tensor_file_find(file, "nothing", &index), TS_CORRUPT_DATA, "no tensor 'nothing'");
  CHECK_FAILS(ts_tensor_file_info(file, 1000, &info), TS_INVALID_ARGUMENT, "index");
  const char* text = NULL;
  int64_t length = 0;
  CHECK_OK(ts_tensor_file_metadata_string(file, "quote", &text, &length));
  CHECK(length == 15 && text[2] == '"');
  CHECK_OK(ts_tensor_file_metadata_string(file, "nothing", &text, &length));
  CHECK(text == NULL);
  ts_tensor_file_close(file);
  ts_tensor_file_close(NULL);
  CHECK(ts_tensor_file_count(NULL) == 0);
}

void test_files(void) {
  test_reading();
  ts_tensor_file* file = NULL;
  CHECK_FAILS(ts_tensor_file_open("/nowhere", &file), TS_FILE_ERROR, "/nowhere");
  CHECK_FAILS(ts_tensor_file_open(TOUCHSTONE_IO_TESTDATA "/hostile/gguf/magic_alone.gguf", &file),
              TS_CORRUPT_DATA, "version");
  CHECK_FAILS(ts_tensor_file_open(TOUCHSTONE_IO_TESTDATA "/hostile/gguf/type_q2_k.gguf", &file),
              TS_UNSUPPORTED, "q2_k");
  CHECK_FAILS(ts_tensor_file_open(NULL, &file), TS_INVALID_ARGUMENT, "path");
  CHECK(file == NULL);
  const char* const out = "c_api_files_test.gguf";
  CHECK_OK(ts_convert_model(TOUCHSTONE_IO_TESTDATA "/models/llama", out, "f32"));
  CHECK_OK(ts_tensor_file_open(out, &file));
  CHECK(ts_tensor_file_count(file) == 21);
  ts_tensor_file_close(file);
  CHECK(remove(out) == 0);
  CHECK_FAILS(ts_convert_model(TOUCHSTONE_IO_TESTDATA "/models/llama", out, "q9"), TS_INVALID_ARGUMENT,
              "q4_k");
}
