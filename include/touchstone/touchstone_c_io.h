// The C API of model files (touchstone/io/*.h): opening, listing, reading and decoding tensors,
// converting. Part of touchstone_c.h, which states its rules.
//
//   ts_tensor_file* file = NULL;
//   ts_tensor_info info = TS_TENSOR_INFO;
//   if (ts_tensor_file_open("model.gguf", &file) != TS_OK) return fail(ts_last_error());
//   for (int64_t i = 0; i < ts_tensor_file_count(file); ++i) {
//     if (ts_tensor_file_info(file, i, &info) == TS_OK) printf("%s %s\n", info.name, info.type);
//   }
//   ts_tensor_file_close(file);
#pragma once

#include "touchstone/touchstone_c.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ts_tensor_file ts_tensor_file;

// A safetensors or GGUF file, an index, or a folder. TS_CORRUPT_DATA, TS_UNSUPPORTED,
// TS_FILE_ERROR.
TOUCHSTONE_API ts_status ts_tensor_file_open(const char* path, ts_tensor_file** file);
TOUCHSTONE_API void ts_tensor_file_close(ts_tensor_file* file);

// Tensors in the file; 0 for NULL.
TOUCHSTONE_API int64_t ts_tensor_file_count(const ts_tensor_file* file);

// Pointers are valid until the file is closed.
typedef struct ts_tensor_info {
  size_t struct_size;
  const char* name;
  const char* type;  // "bf16", "q4_k", "i64"
  const void* data;  // in the mapped file; no alignment is promised
  int64_t bytes;     // of data
  int64_t elements;  // product of the shape
  int32_t rank;
  int32_t is_weights;  // 1: ts_tensor_file_decode can decode it
  int64_t shape[TS_MAX_RANK];
} ts_tensor_info;
#define TS_TENSOR_INFO                                          \
  {                                                             \
    sizeof(ts_tensor_info), NULL, NULL, NULL, 0, 0, 0, 0, { 0 } \
  }

TOUCHSTONE_API ts_status ts_tensor_file_info(const ts_tensor_file* file, int64_t index,
                                             ts_tensor_info* info);
// TS_CORRUPT_DATA where the file has no tensor of that name.
TOUCHSTONE_API ts_status ts_tensor_file_find(const ts_tensor_file* file, const char* name,
                                             int64_t* index);
// All elements as f32; `count` must be their number. TS_UNSUPPORTED where is_weights is 0.
TOUCHSTONE_API ts_status ts_tensor_file_decode(const ts_tensor_file* file, int64_t index,
                                               float* values, int64_t count);

// touchstone inspect's checksum of the bytes: reads all of them.
TOUCHSTONE_API ts_status ts_tensor_file_checksum(const ts_tensor_file* file, int64_t index,
                                                 uint64_t* checksum);

// Pointers are valid until the file is closed.
typedef struct ts_tensor_file_summary {
  size_t struct_size;
  const char* container;  // "safetensors", "gguf"
  int64_t files;
  int64_t bytes;  // of all files together
  int64_t tensors;
  int64_t metadata;  // keys
} ts_tensor_file_summary;
#define TS_TENSOR_FILE_SUMMARY \
  { sizeof(ts_tensor_file_summary), NULL, 0, 0, 0, 0 }
TOUCHSTONE_API ts_status ts_tensor_file_summarize(const ts_tensor_file* file,
                                                  ts_tensor_file_summary* summary);

// A key of the metadata and its value, in the mapped file; valid until the file is closed.
typedef struct ts_metadata_info {
  size_t struct_size;
  const char* key;
  const char* type;          // "u32", "string", "array"
  const char* element_type;  // of an array; else type
  int64_t size;              // elements of an array; else 1
  const void* data;  // little-endian numbers back to back; the bytes of a string; in an array of
                     // strings a 64-bit length before each
  int64_t bytes;     // of data
} ts_metadata_info;
#define TS_METADATA_INFO \
  { sizeof(ts_metadata_info), NULL, NULL, NULL, 0, NULL, 0 }
TOUCHSTONE_API ts_status ts_tensor_file_metadata(const ts_tensor_file* file, int64_t index,
                                                 ts_metadata_info* info);

// A string of the metadata; *text is NULL where there is no such key. Not terminated by 0.
TOUCHSTONE_API ts_status ts_tensor_file_metadata_string(const ts_tensor_file* file, const char* key,
                                                        const char** text, int64_t* length);

// touchstone::io::describe: one call for each line of the description that `touchstone inspect`
// prints. TS_UNSUPPORTED or TS_CORRUPT_DATA with the reason where the file is no model.
typedef void (*ts_key_value)(void* user, const char* key, const char* value);
TOUCHSTONE_API ts_status ts_model_file_describe(const char* path, ts_key_value line, void* user);

// touchstone::io::ConvertOptions.
typedef struct ts_convert_args {
  size_t struct_size;
  const char* in;
  const char* out;
  const char* type;         // of matrices: "f16", "q4_k", ...; NULL: as they are
  const char* project;      // to a ternary type: "mean", "absmax", "least_squares"; NULL: none
  int64_t max_shard_bytes;  // safetensors; 0: one file
  ts_text note;             // one call for each item that was changed or dropped; NULL: none
  void* user;
} ts_convert_args;
#define TS_CONVERT_ARGS \
  { .struct_size = sizeof(ts_convert_args) }
TOUCHSTONE_API ts_status ts_convert(const ts_convert_args* args);
// The same with in, out and type alone.
TOUCHSTONE_API ts_status ts_convert_model(const char* in, const char* out, const char* type);

#ifdef __cplusplus
}
#endif
