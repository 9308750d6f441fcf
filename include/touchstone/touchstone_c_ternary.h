// The C API of ternary weights and of the formats of weights: touchstone/core/ternary.h,
// ops/ternary_project.h, core/weight_format.h and io/ternary_file.h for C; part of touchstone_c.h,
// which states its rules. Products with ternary weights are ts_linear with weight_format
// "ternary_g128" and so on.
#pragma once

#include "touchstone/touchstone_c.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- Formats of weights -------------------------------------------------------------------------

typedef struct ts_weight_format {
  size_t struct_size;
  int64_t block_elements;  // values in a block; divides a row
  int64_t block_bytes;
  int32_t is_ternary;  // codes -1, 0, 1 and one scale per block
  int32_t can_encode;
} ts_weight_format;
#define TS_WEIGHT_FORMAT \
  { .struct_size = sizeof(ts_weight_format) }

// By name: "q4_k", "tq2_0", "ternary_g128". TS_INVALID_ARGUMENT lists the known names.
TOUCHSTONE_API ts_status ts_weight_format_find(const char* name, ts_weight_format* format);

// touchstone::encode_weights and decode_weights: `count` values, whole blocks, from and to `bytes`
// bytes.
TOUCHSTONE_API ts_status ts_encode_weights(const char* format, const float* values, int64_t count,
                                           void* to, int64_t bytes);
TOUCHSTONE_API ts_status ts_decode_weights(const char* format, const void* from, int64_t bytes,
                                           float* values, int64_t count);

// ---- Projection ---------------------------------------------------------------------------------

typedef int32_t ts_ternary_grouping;
enum { TS_TERNARY_TENSOR = 0, TS_TERNARY_ROW = 1, TS_TERNARY_GROUP = 2 };
typedef int32_t ts_ternary_scale_rule;
enum { TS_TERNARY_MEAN = 0, TS_TERNARY_ABSMAX = 1, TS_TERNARY_LEAST_SQUARES = 2 };
typedef int32_t ts_ternary_scale_type;
enum { TS_TERNARY_SCALE_F16 = 0, TS_TERNARY_SCALE_F32 = 1, TS_TERNARY_SCALE_F16_BF16 = 2 };

typedef struct ts_ternary_project_args {
  size_t struct_size;
  ts_tensor weight;  // [rows, cols], f32; CPU also f64
  ts_tensor values;  // [rows, cols], optional
  ts_tensor codes;   // i8 [rows, cols], optional
  ts_tensor scales;  // f32 [groups], optional
  ts_ternary_grouping grouping;
  ts_ternary_scale_rule scale;
  ts_ternary_scale_type scale_type;
  int32_t reserved;    // 0
  int64_t group_size;  // of TS_TERNARY_GROUP: 32 to 256
  const char* implementation;
} ts_ternary_project_args;
#define TS_TERNARY_PROJECT_ARGS                                                     \
  {                                                                                 \
    .struct_size = sizeof(ts_ternary_project_args), .grouping = TS_TERNARY_GROUP,   \
    .scale = TS_TERNARY_MEAN, .scale_type = TS_TERNARY_SCALE_F16, .group_size = 128 \
  }

TOUCHSTONE_API ts_status ts_ternary_project(ts_context* context,
                                            const ts_ternary_project_args* args);
TOUCHSTONE_API ts_status ts_ternary_project_explain(ts_context* context,
                                                    const ts_ternary_project_args* args,
                                                    ts_report report, void* user);
// Scales that a matrix of this shape has.
TOUCHSTONE_API ts_status ts_ternary_groups(ts_ternary_grouping grouping, int64_t group_size,
                                           int64_t rows, int64_t cols, int64_t* groups);

// ---- Files --------------------------------------------------------------------------------------

typedef struct ts_ternary_inspection {
  size_t struct_size;
  int64_t tensors;  // visited
  int64_t groups;
  int64_t values;
  int64_t zero_codes;
  int64_t faults;
  int32_t is_stated;  // the file states checksums of scales and codes
  int32_t is_ternary;
} ts_ternary_inspection;
#define TS_TERNARY_INSPECTION \
  { .struct_size = sizeof(ts_ternary_inspection) }

// A file that can be read but is not ternary is TS_OK with is_ternary = 0.
TOUCHSTONE_API ts_status ts_inspect_ternary(const char* path, ts_ternary_inspection* inspection);

// ts_convert_model to a ternary type, with weights projected that are not ternary.
TOUCHSTONE_API ts_status ts_convert_model_ternary(const char* in, const char* out, const char* type,
                                                  ts_ternary_scale_rule project);

#ifdef __cplusplus
}  // extern "C"
#endif
