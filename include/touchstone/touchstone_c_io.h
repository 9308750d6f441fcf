// The C API of model files (touchstone/io/*.h): opening, listing, reading and decoding tensors,
// converting. touchstone_c.h includes it, and its rules hold here.
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

// A safetensors or GGUF file, an index, or a folder. TS_CORRUPT_DATA, TS_UNSUPPORTED, TS_FILE_ERROR.
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
// All elements as f32; `count` must be their number. TS_UNSUPPORTED for what is no weights.
TOUCHSTONE_API ts_status ts_tensor_file_decode(const ts_tensor_file* file, int64_t index,
                                               float* values, int64_t count);

// A string of the metadata; *text is NULL where there is no such key. Not terminated by 0.
TOUCHSTONE_API ts_status ts_tensor_file_metadata_string(const ts_tensor_file* file, const char* key,
                                                        const char** text, int64_t* length);

// touchstone::io::convert_model. `type` of matrices: "f16", "q4_k", ...; NULL: as they are.
TOUCHSTONE_API ts_status ts_convert_model(const char* in, const char* out, const char* type);

#ifdef __cplusplus
}
#endif
