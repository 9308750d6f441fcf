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

static void count_line(void* user, const char* key, const char* value) {
  int* lines = user;
  if (strcmp(key, "family") == 0 && strcmp(value, "llama") == 0) *lines += 1000;
  *lines += 1;
}

static void count_note(void* user, const char* text, int64_t bytes) {
  int* notes = user;
  CHECK((int64_t)strlen(text) == bytes);
  *notes += 1;
}

static void test_inspection(const char* path) {
  ts_tensor_file* file = NULL;
  CHECK_OK(ts_tensor_file_open(path, &file));
  ts_tensor_file_summary summary = TS_TENSOR_FILE_SUMMARY;
  CHECK_OK(ts_tensor_file_summarize(file, &summary));
  CHECK(strcmp(summary.container, "gguf") == 0);
  CHECK(summary.files == 1 && summary.tensors == 21 && summary.metadata > 10);
  CHECK(summary.bytes > 1000);
  int architecture = 0;
  ts_metadata_info value = TS_METADATA_INFO;
  for (int64_t i = 0; i < summary.metadata; ++i) {
    CHECK_OK(ts_tensor_file_metadata(file, i, &value));
    if (strcmp(value.key, "general.architecture") != 0) continue;
    ++architecture;
    CHECK(strcmp(value.type, "string") == 0 && strcmp(value.element_type, "string") == 0);
    CHECK(value.size == 1 && value.bytes == 5 && memcmp(value.data, "llama", 5) == 0);
  }
  CHECK(architecture == 1);
  CHECK_FAILS(ts_tensor_file_metadata(file, summary.metadata, &value), TS_INVALID_ARGUMENT,
              "index");
  uint64_t first = 0;
  uint64_t second = 0;
  CHECK_OK(ts_tensor_file_checksum(file, 0, &first));
  CHECK_OK(ts_tensor_file_checksum(file, 1, &second));
  CHECK(first != second);
  CHECK_FAILS(ts_tensor_file_checksum(file, -1, &first), TS_INVALID_ARGUMENT, "index");
  ts_tensor_file_close(file);
  int lines = 0;
  CHECK_OK(ts_model_file_describe(path, count_line, &lines));
  CHECK(lines > 1005);
  CHECK_FAILS(ts_model_file_describe(path, NULL, NULL), TS_INVALID_ARGUMENT, "line");
  CHECK_FAILS(ts_model_file_describe("/nowhere", count_line, &lines), TS_FILE_ERROR, "/nowhere");
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
  test_inspection(out);
  CHECK(remove(out) == 0);
  int notes = 0;
  ts_convert_args args = TS_CONVERT_ARGS;
  args.in = TOUCHSTONE_IO_TESTDATA "/models/llama";
  args.out = out;
  args.type = "bf16";
  args.note = count_note;
  args.user = &notes;
  CHECK_OK(ts_convert(&args));
  CHECK(notes > 0 && remove(out) == 0);
  args.max_shard_bytes = -1;
  CHECK_FAILS(ts_convert(&args), TS_INVALID_ARGUMENT, "max_shard_bytes");
  args.max_shard_bytes = 0;
  args.project = "median";
  CHECK_FAILS(ts_convert(&args), TS_INVALID_ARGUMENT, "median");
  CHECK_FAILS(ts_convert_model(TOUCHSTONE_IO_TESTDATA "/models/llama", out, "q9"),
              TS_INVALID_ARGUMENT, "q4_k");
}
