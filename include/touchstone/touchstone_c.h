// The C API for C11, and for every language that can call C.
//
//   ts_context* context = NULL;
//   ts_layer_norm_args args = TS_LAYER_NORM_ARGS;
//   if (ts_context_create(NULL, &context) != TS_OK) return fail(ts_last_error());
//   args.x = ts_make_tensor(x, TS_F32, TS_CPU, 2, (const int64_t[]){rows, cols});
//   args.y = ts_make_tensor(y, TS_F32, TS_CPU, 2, (const int64_t[]){rows, cols});
//   if (ts_layer_norm(context, &args) != TS_OK) return fail(ts_last_error());
//   ts_context_destroy(context);
//
// Shapes, dtypes, optional arguments, devices and errors are those of the C++ functions of the same
// names (touchstone/ops/*.h, touchstone/cache/*.h), which are the reference. Beyond
// them:
//
// - Every function that can fail returns a ts_status. ts_last_error() is the message of the last
//   failure on the calling thread. A call that is refused writes nothing. No exception escapes.
// - Argument structs begin with struct_size, which the macros TS_*_ARGS set together with the
//   defaults. Later versions append fields: a library accepts the shorter struct of an older caller
//   and fills in the defaults, and refuses (TS_INVALID_ARGUMENT) the longer struct of a newer one.
//   Structs of results begin with struct_size too; it must be that of the library.
// - An absent optional tensor is a zeroed ts_tensor. Tensors that are only read have no const.
// - A NULL handle or pointer where one is needed is TS_INVALID_ARGUMENT. Destroying NULL is
//   allowed.
// - A context and all objects created with it are used by one thread at a time. A context must
//   outlive the caches made with it, a cache its views.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "touchstone/core/export.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- Status -------------------------------------------------------------------------------------

typedef int32_t ts_status;
enum {
  TS_OK = 0,
  TS_INVALID_ARGUMENT = 1,
  TS_UNSUPPORTED = 2,
  TS_OUT_OF_MEMORY = 3,
  TS_CORRUPT_DATA = 4,
  TS_FILE_ERROR = 5,
  TS_DEVICE_ERROR = 6,
  TS_INTERNAL_ERROR = 7  // a fault of the library: please report the message
};

// "" when nothing failed on this thread. Valid until the next call on this thread.
TOUCHSTONE_API const char* ts_last_error(void);
TOUCHSTONE_API const char* ts_status_name(ts_status status);
TOUCHSTONE_API const char* ts_version(void);  // "MAJOR.MINOR.PATCH"

// ---- Tensors ------------------------------------------------------------------------------------

typedef int32_t ts_dtype;
enum {
  TS_F64 = 0,
  TS_F32 = 1,
  TS_BF16 = 2,
  TS_F16 = 3,
  TS_I64 = 4,
  TS_I32 = 5,
  TS_I8 = 6,
  TS_U8 = 7,
  TS_F8_E4M3 = 8,  // of a KV cache or weights
  TS_I4 = 9        // of a KV cache
};

typedef int32_t ts_device_kind;
enum { TS_DEVICE_CPU = 0, TS_DEVICE_CUDA = 1 };

typedef struct ts_device {
  ts_device_kind kind;
  int32_t index;
} ts_device;

static const ts_device TS_CPU = {TS_DEVICE_CPU, 0};

enum { TS_MAX_RANK = 8 };

// Memory of the caller. Strides count elements.
typedef struct ts_tensor {
  void* data;
  ts_dtype dtype;
  int32_t rank;
  ts_device device;
  int64_t shape[TS_MAX_RANK];
  int64_t stride[TS_MAX_RANK];
} ts_tensor;

// Contiguous, last dimension fastest. A rank outside 0 to TS_MAX_RANK is kept as it is, without
// shape, and refused by the operator.
TOUCHSTONE_API ts_tensor ts_make_tensor(const void* data, ts_dtype dtype, ts_device device,
                                        int32_t rank, const int64_t* shape);

// ---- Context ------------------------------------------------------------------------------------

// Receives a text, which is valid during the call and ends with a 0 that `bytes` does not count.
typedef void (*ts_text)(void* user, const char* text, int64_t bytes);

typedef struct ts_context ts_context;

typedef struct ts_context_args {
  size_t struct_size;
  ts_device device;
  int32_t threads;          // CPU; 0 = every core
  int32_t reserved;         // 0
  void* stream;             // CUDA: a cudaStream_t of the caller; NULL = the default stream
  int64_t workspace_bytes;  // CUDA
} ts_context_args;
#define TS_CONTEXT_ARGS \
  { sizeof(ts_context_args), {TS_DEVICE_CPU, 0}, 0, 0, NULL, (int64_t)64 << 20 }

// args may be NULL: the defaults.
TOUCHSTONE_API ts_status ts_context_create(const ts_context_args* args, ts_context** context);
TOUCHSTONE_API void ts_context_destroy(ts_context* context);
TOUCHSTONE_API ts_status ts_context_synchronize(ts_context* context);
TOUCHSTONE_API ts_status ts_context_reserve_workspace(ts_context* context, int64_t bytes);

// Called by the ts_*_explain functions once for each implementation, in the order of preference:
// the first accepted one is the one that would run. `refusal` is "" when accepted. The strings are
// valid during the call.
typedef void (*ts_report)(void* user, const char* name, int32_t accepted, const char* refusal);

// ---- Normalization ------------------------------------------------------------------------------

typedef struct ts_layer_norm_args {
  size_t struct_size;
  ts_tensor x;                 // [.., D]
  ts_tensor residual;          // [.., D], optional
  ts_tensor weight;            // [D], optional: 1
  ts_tensor bias;              // [D], optional: 0
  ts_tensor y;                 // [.., D]
  ts_tensor sum;               // [.., D], x + residual; given exactly when residual is
  ts_tensor mean;              // [..], optional
  ts_tensor rstd;              // [..], optional
  double eps;                  // finite, >= 0
  const char* implementation;  // NULL or "": the first that accepts
} ts_layer_norm_args;
#define TS_LAYER_NORM_ARGS \
  { .struct_size = sizeof(ts_layer_norm_args), .eps = 1e-5 }

typedef struct ts_layer_norm_backward_args {
  size_t struct_size;
  ts_tensor dy;       // [.., D]
  ts_tensor x;        // [.., D], what the forward normalized: its x, or its sum when fused
  ts_tensor mean;     // [..]
  ts_tensor rstd;     // [..]
  ts_tensor weight;   // [D], optional: 1
  ts_tensor dsum;     // [.., D], optional: the gradient that reaches sum directly
  ts_tensor dx;       // [.., D]
  ts_tensor dweight;  // [D], optional
  ts_tensor dbias;    // [D], optional
  const char* implementation;
} ts_layer_norm_backward_args;
#define TS_LAYER_NORM_BACKWARD_ARGS \
  { .struct_size = sizeof(ts_layer_norm_backward_args) }

typedef int32_t ts_rms_norm_rounding;
enum { TS_ROUND_ONCE = 0, TS_ROUND_BEFORE_WEIGHT = 1 };

typedef struct ts_rms_norm_args {
  size_t struct_size;
  ts_tensor x;           // [.., D]
  ts_tensor residual;    // [.., D], optional
  ts_tensor weight;      // [D], optional: weight_offset + weight = 1
  ts_tensor y;           // [.., D]
  ts_tensor sum;         // [.., D], x + residual; given exactly when residual is
  ts_tensor rstd;        // [..], optional
  double eps;            // finite, >= 0
  double weight_offset;  // finite
  ts_rms_norm_rounding rounding;
  int32_t reserved;  // 0
  const char* implementation;
} ts_rms_norm_args;
#define TS_RMS_NORM_ARGS \
  { .struct_size = sizeof(ts_rms_norm_args), .eps = 1e-6 }

typedef struct ts_rms_norm_backward_args {
  size_t struct_size;
  ts_tensor dy;       // [.., D]
  ts_tensor x;        // [.., D], what the forward normalized: its x, or its sum when fused
  ts_tensor rstd;     // [..]
  ts_tensor weight;   // [D], optional
  ts_tensor dsum;     // [.., D], optional
  ts_tensor dx;       // [.., D]
  ts_tensor dweight;  // [D], optional
  double weight_offset;
  const char* implementation;
} ts_rms_norm_backward_args;
#define TS_RMS_NORM_BACKWARD_ARGS \
  { .struct_size = sizeof(ts_rms_norm_backward_args) }

TOUCHSTONE_API ts_status ts_layer_norm(ts_context* context, const ts_layer_norm_args* args);
TOUCHSTONE_API ts_status ts_layer_norm_backward(ts_context* context,
                                                const ts_layer_norm_backward_args* args);
TOUCHSTONE_API ts_status ts_rms_norm(ts_context* context, const ts_rms_norm_args* args);
TOUCHSTONE_API ts_status ts_rms_norm_backward(ts_context* context,
                                              const ts_rms_norm_backward_args* args);
TOUCHSTONE_API ts_status ts_layer_norm_explain(ts_context* context, const ts_layer_norm_args* args,
                                               ts_report report, void* user);
TOUCHSTONE_API ts_status ts_layer_norm_backward_explain(ts_context* context,
                                                        const ts_layer_norm_backward_args* args,
                                                        ts_report report, void* user);
TOUCHSTONE_API ts_status ts_rms_norm_explain(ts_context* context, const ts_rms_norm_args* args,
                                             ts_report report, void* user);
TOUCHSTONE_API ts_status ts_rms_norm_backward_explain(ts_context* context,
                                                      const ts_rms_norm_backward_args* args,
                                                      ts_report report, void* user);

// ---- Linear layers ------------------------------------------------------------------------------

typedef int32_t ts_linear_gate;
enum { TS_GATE_NONE = 0, TS_GATE_SILU = 1, TS_GATE_GELU = 2, TS_GATE_GELU_TANH = 3 };

typedef struct ts_linear_args {
  size_t struct_size;
  ts_tensor x;                // [.., in]
  ts_tensor weight;           // [out, in], or bytes [out, bytes of a row]
  ts_tensor bias;             // [out], optional
  ts_tensor residual;         // like y in the dtype of x, optional
  ts_tensor y;                // [.., out], or [.., out / 2] with a gate
  const char* weight_format;  // of bytes, "q4_k"; NULL = the dtype of weight
  double soft_cap;            // finite, >= 0; 0 = none
  ts_linear_gate gate;
  int32_t int8_activations;          // not 0: x rounded to int8, one scale per row
  int32_t bits_may_depend_on_batch;  // not 0: libraries may be named as implementation
  int32_t constant_weight;           // not 0: no work queued on the stream writes weight
  const char* implementation;
} ts_linear_args;
#define TS_LINEAR_ARGS \
  { .struct_size = sizeof(ts_linear_args) }

typedef struct ts_linear_backward_args {
  size_t struct_size;
  ts_tensor dy;                      // [.., out]
  ts_tensor x;                       // [.., in], for dweight
  ts_tensor weight;                  // [out, in], for dx
  ts_tensor dx;                      // [.., in], optional
  ts_tensor dweight;                 // [out, in], optional
  ts_tensor dbias;                   // [out], optional
  const char* weight_format;         // as forward
  int32_t accumulate;                // not 0: gradients are added to dweight and dbias
  int32_t bits_may_depend_on_batch;  // as forward
  const char* implementation;
} ts_linear_backward_args;
#define TS_LINEAR_BACKWARD_ARGS \
  { .struct_size = sizeof(ts_linear_backward_args) }

TOUCHSTONE_API ts_status ts_linear(ts_context* context, const ts_linear_args* args);
TOUCHSTONE_API ts_status ts_linear_backward(ts_context* context,
                                            const ts_linear_backward_args* args);
TOUCHSTONE_API ts_status ts_linear_explain(ts_context* context, const ts_linear_args* args,
                                           ts_report report, void* user);
TOUCHSTONE_API ts_status ts_linear_backward_explain(ts_context* context,
                                                    const ts_linear_backward_args* args,
                                                    ts_report report, void* user);

// ---- Activation functions -----------------------------------------------------------------------

enum { TS_SILU = 0, TS_GELU = 1, TS_GELU_TANH = 2, TS_RELU_SQUARED = 3 };
typedef int32_t ts_activation_kind;

// activation: x, y. activation_backward: dy, x, dx. gate: x is the gate; up, y. gate_backward: dy,
// x, up, dx, dup. Tensors that a function does not use stay empty.
typedef struct ts_activation_args {
  size_t struct_size;
  ts_tensor x;
  ts_tensor up;
  ts_tensor y;
  ts_tensor dy;
  ts_tensor dx;
  ts_tensor dup;
  ts_activation_kind kind;
  int32_t reserved;
  const char* implementation;
} ts_activation_args;
#define TS_ACTIVATION_ARGS \
  { .struct_size = sizeof(ts_activation_args) }
TOUCHSTONE_API ts_status ts_activation(ts_context* context, const ts_activation_args* args);
TOUCHSTONE_API ts_status ts_activation_explain(ts_context* context, const ts_activation_args* args,
                                               ts_report report, void* user);
TOUCHSTONE_API ts_status ts_activation_backward(ts_context* context,
                                                const ts_activation_args* args);
TOUCHSTONE_API ts_status ts_activation_backward_explain(ts_context* context,
                                                        const ts_activation_args* args,
                                                        ts_report report, void* user);
TOUCHSTONE_API ts_status ts_gate(ts_context* context, const ts_activation_args* args);
TOUCHSTONE_API ts_status ts_gate_explain(ts_context* context, const ts_activation_args* args,
                                         ts_report report, void* user);
TOUCHSTONE_API ts_status ts_gate_backward(ts_context* context, const ts_activation_args* args);
TOUCHSTONE_API ts_status ts_gate_backward_explain(ts_context* context,
                                                  const ts_activation_args* args, ts_report report,
                                                  void* user);

// ---- Cross entropy ------------------------------------------------------------------------------

typedef struct ts_cross_entropy_args {
  size_t struct_size;
  ts_tensor x;                // [.., E]
  ts_tensor weight;           // [V, E]
  ts_tensor targets;          // [..], i32 or i64
  ts_tensor loss;             // [..], optional, as are the next three
  ts_tensor log_probability;  // [..]
  ts_tensor lse;              // [..]
  ts_tensor mean_loss;        // [1]
  double label_smoothing;
  double z_loss;
  double soft_cap;  // 0 = none
  int64_t ignore_index;
  const char* implementation;
} ts_cross_entropy_args;
#define TS_CROSS_ENTROPY_ARGS \
  { .struct_size = sizeof(ts_cross_entropy_args), .ignore_index = -100 }

// Computes the outputs of the forward too, where they are given.
typedef struct ts_cross_entropy_backward_args {
  size_t struct_size;
  ts_tensor x;        // [.., E]
  ts_tensor weight;   // [V, E]
  ts_tensor targets;  // [..]
  ts_tensor dloss;    // [..]; absent: the gradient of mean_loss
  ts_tensor dx;       // [.., E], optional
  ts_tensor dweight;  // [V, E], optional
  ts_tensor loss;
  ts_tensor log_probability;
  ts_tensor lse;
  ts_tensor mean_loss;
  double label_smoothing;
  double z_loss;
  double soft_cap;
  int64_t ignore_index;
  int32_t accumulate;  // not 0: dweight is added to
  int32_t reserved;    // 0
  const char* implementation;
} ts_cross_entropy_backward_args;
#define TS_CROSS_ENTROPY_BACKWARD_ARGS \
  { .struct_size = sizeof(ts_cross_entropy_backward_args), .ignore_index = -100 }

TOUCHSTONE_API ts_status ts_cross_entropy(ts_context* context, const ts_cross_entropy_args* args);
TOUCHSTONE_API ts_status ts_cross_entropy_backward(ts_context* context,
                                                   const ts_cross_entropy_backward_args* args);
TOUCHSTONE_API ts_status ts_cross_entropy_explain(ts_context* context,
                                                  const ts_cross_entropy_args* args,
                                                  ts_report report, void* user);
TOUCHSTONE_API ts_status ts_cross_entropy_backward_explain(
    ts_context* context, const ts_cross_entropy_backward_args* args, ts_report report, void* user);

// ---- Token embedding ----------------------------------------------------------------------------

typedef struct ts_embedding_args {
  size_t struct_size;
  ts_tensor tokens;           // [..], i32 or i64
  ts_tensor weight;           // [V, E], or bytes [V, bytes of a row]
  ts_tensor y;                // [.., E]
  const char* weight_format;  // of bytes, "q4_k"; NULL = the dtype of weight
  double scale;
  const char* implementation;
} ts_embedding_args;
#define TS_EMBEDDING_ARGS \
  { .struct_size = sizeof(ts_embedding_args), .scale = 1 }

typedef struct ts_embedding_backward_args {
  size_t struct_size;
  ts_tensor tokens;   // [..]
  ts_tensor dy;       // [.., E]
  ts_tensor dweight;  // [V, E]
  double scale;
  int32_t accumulate;  // not 0: dweight is added to
  int32_t reserved;    // 0
  const char* implementation;
} ts_embedding_backward_args;
#define TS_EMBEDDING_BACKWARD_ARGS \
  { .struct_size = sizeof(ts_embedding_backward_args), .scale = 1 }

TOUCHSTONE_API ts_status ts_embedding(ts_context* context, const ts_embedding_args* args);
TOUCHSTONE_API ts_status ts_embedding_backward(ts_context* context,
                                               const ts_embedding_backward_args* args);
TOUCHSTONE_API ts_status ts_embedding_explain(ts_context* context, const ts_embedding_args* args,
                                              ts_report report, void* user);
TOUCHSTONE_API ts_status ts_embedding_backward_explain(ts_context* context,
                                                       const ts_embedding_backward_args* args,
                                                       ts_report report, void* user);

// ---- Rotary position embedding ------------------------------------------------------------------

typedef struct ts_rope_args {
  size_t struct_size;
  ts_tensor x;            // [N, H, D]
  ts_tensor positions;    // [N] i64
  ts_tensor frequencies;  // [R / 2] f64
  ts_tensor y;            // [N, H, D]; may be x
  int32_t adjacent;       // pairs (2 i, 2 i + 1) instead of (i, i + R / 2)
  int32_t reserved;
  double scale;
  const char* implementation;
} ts_rope_args;
#define TS_ROPE_ARGS \
  { .struct_size = sizeof(ts_rope_args), .scale = 1 }
// rope_backward: x is dy, y is dx.
TOUCHSTONE_API ts_status ts_rope(ts_context* context, const ts_rope_args* args);
TOUCHSTONE_API ts_status ts_rope_backward(ts_context* context, const ts_rope_args* args);
TOUCHSTONE_API ts_status ts_rope_explain(ts_context* context, const ts_rope_args* args,
                                         ts_report report, void* user);
TOUCHSTONE_API ts_status ts_rope_backward_explain(ts_context* context, const ts_rope_args* args,
                                                  ts_report report, void* user);

// ---- Selection of tokens ------------------------------------------------------------------------

// Bits of the status of a row: touchstone/ops/row_status.h.
enum {
  TS_ROW_HAS_NAN = 1,
  TS_ROW_HAS_INFINITY = 2,
  TS_ROW_ALL_MASKED = 4,
  TS_ROW_FEWER_THAN_K = 8,
  TS_ROW_BAD_PARAMETER = 16,
  TS_ROW_TWO_PASS = 32
};

typedef struct ts_softmax_topk_args {
  size_t struct_size;
  ts_tensor logits;             // [.., V]
  ts_tensor temperature;        // [..], optional: per row, times temperature_scale
  ts_tensor bias;               // [V] or [.., V], optional
  ts_tensor token_mask;         // [W] or [.., W], optional: packed bits
  ts_tensor probabilities;      // [.., k]
  ts_tensor indices;            // [.., k]
  ts_tensor log_probabilities;  // [.., k], optional
  ts_tensor log_sum_exp;        // [..], optional
  ts_tensor status;             // [..], optional: TS_ROW_*
  double temperature_scale;     // finite, > 0
  int32_t renormalize;          // not 0: probabilities sum to 1 over the k that are kept
  int32_t reserved;             // 0
  const char* implementation;
} ts_softmax_topk_args;
#define TS_SOFTMAX_TOPK_ARGS \
  { .struct_size = sizeof(ts_softmax_topk_args), .temperature_scale = 1.0 }

typedef struct ts_sample_args {
  size_t struct_size;
  ts_tensor logits;                 // [.., V]
  ts_tensor bias;                   // [V] or [.., V], optional
  ts_tensor token_mask;             // [W] or [.., W], optional: packed bits
  ts_tensor temperature;            // [..], optional: 1
  ts_tensor top_k;                  // [..], optional: 0 = all
  ts_tensor top_p;                  // [..], optional: 1
  ts_tensor min_p;                  // [..], optional: 0
  ts_tensor repetition_penalty;     // [..], optional: 1
  ts_tensor frequency_penalty;      // [..], optional: 0
  ts_tensor presence_penalty;       // [..], optional: 0
  ts_tensor history;                // [.., L], optional; needed by the penalties
  ts_tensor prompt_length;          // [..], optional: 0
  ts_tensor seed;                   // [..]
  ts_tensor position;               // [..]
  ts_tensor token;                  // [..]
  ts_tensor log_probability;        // [..], optional
  ts_tensor top_tokens;             // [.., n], optional
  ts_tensor top_log_probabilities;  // [.., n], optional
  ts_tensor status;                 // [..], optional: TS_ROW_*
  const char* implementation;
  ts_tensor history_row;  // [..], optional: the row itself
  ts_tensor parent;       // [..], optional, with tree_token: a row before, or -1
  ts_tensor tree_token;   // [..], optional, with parent
  int64_t max_depth;      // with parent: nodes of the longest path
} ts_sample_args;
#define TS_SAMPLE_ARGS \
  { .struct_size = sizeof(ts_sample_args) }

TOUCHSTONE_API ts_status ts_softmax_topk(ts_context* context, const ts_softmax_topk_args* args);
TOUCHSTONE_API ts_status ts_sample(ts_context* context, const ts_sample_args* args);
TOUCHSTONE_API ts_status ts_softmax_topk_explain(ts_context* context,
                                                 const ts_softmax_topk_args* args, ts_report report,
                                                 void* user);
TOUCHSTONE_API ts_status ts_sample_explain(ts_context* context, const ts_sample_args* args,
                                           ts_report report, void* user);

// ---- Attention ----------------------------------------------------------------------------------

// Part of the argument structs below, which are versioned as a whole.
typedef struct ts_attention_options {
  ts_tensor query_offsets;  // [B + 1], packed only
  ts_tensor key_offsets;    // [B + 1], packed only
  ts_tensor bias;           // [B or 1, H or 1, Sq, Sk], optional, dense only
  ts_tensor alibi_slopes;   // [H], optional
  ts_tensor sink_logits;    // [H], optional
  double scale;             // finite; 0 = 1 / sqrt(D)
  double soft_cap;          // finite, >= 0; 0 = none
  int64_t window;           // >= 0; 0 = none
  int64_t sinks;            // >= 0, with a window only
  int32_t causal;           // not 0: a query attends to no later key
  int32_t reserved;         // 0
} ts_attention_options;

// touchstone::AttentionDropout: the dropped weights are a function of these numbers.
typedef struct ts_attention_dropout {
  double probability;  // 0 <= p < 1; 0 = none
  int64_t seed;
  int64_t step;         // 0 <= step < 2^23
  int64_t first_token;  // of query 0, among the tokens of the step
  uint32_t draw;        // < 2^16
  int32_t reserved;     // 0
} ts_attention_dropout;

typedef struct ts_attention_args {
  size_t struct_size;
  ts_tensor q;            // [B, Sq, H, D] or [N, H, D]
  ts_tensor k;            // [B, Sk, Hk, D] or [M, Hk, D]
  ts_tensor v;            // [B, Sk, Hk, Dv] or [M, Hk, Dv]
  ts_tensor output;       // [B, Sq, H, Dv] or [N, H, Dv]
  ts_tensor log_sum_exp;  // [B, Sq, H] or [N, H], optional
  ts_attention_options options;
  const char* implementation;
  ts_attention_dropout dropout;
} ts_attention_args;
#define TS_ATTENTION_ARGS \
  { .struct_size = sizeof(ts_attention_args) }

typedef struct ts_attention_backward_args {
  size_t struct_size;
  ts_tensor doutput;       // as output
  ts_tensor dlog_sum_exp;  // as log_sum_exp, optional
  ts_tensor q;             // inputs of the forward
  ts_tensor k;
  ts_tensor v;
  ts_tensor output;       // results of the forward
  ts_tensor log_sum_exp;  // likewise
  ts_tensor dq;
  ts_tensor dk;
  ts_tensor dv;
  ts_tensor dbias;         // as bias, optional, contiguous
  ts_tensor dsink_logits;  // [H], optional
  ts_attention_options options;
  const char* implementation;
  ts_attention_dropout dropout;  // as in the forward; not with dbias
} ts_attention_backward_args;
#define TS_ATTENTION_BACKWARD_ARGS \
  { .struct_size = sizeof(ts_attention_backward_args) }

TOUCHSTONE_API ts_status ts_attention(ts_context* context, const ts_attention_args* args);
TOUCHSTONE_API ts_status ts_attention_backward(ts_context* context,
                                               const ts_attention_backward_args* args);
TOUCHSTONE_API ts_status ts_attention_explain(ts_context* context, const ts_attention_args* args,
                                              ts_report report, void* user);
TOUCHSTONE_API ts_status ts_attention_backward_explain(ts_context* context,
                                                       const ts_attention_backward_args* args,
                                                       ts_report report, void* user);

#ifdef __cplusplus
}  // extern "C"
#endif

#include "touchstone/touchstone_c_beam.h"         // IWYU pragma: export
#include "touchstone/touchstone_c_cache.h"        // IWYU pragma: export
#include "touchstone/touchstone_c_chat.h"         // IWYU pragma: export
#include "touchstone/touchstone_c_generate.h"     // IWYU pragma: export
#include "touchstone/touchstone_c_grammar.h"      // IWYU pragma: export
#include "touchstone/touchstone_c_io.h"           // IWYU pragma: export
#include "touchstone/touchstone_c_speculative.h"  // IWYU pragma: export
#include "touchstone/touchstone_c_ternary.h"      // IWYU pragma: export
#include "touchstone/touchstone_c_tokenizer.h"    // IWYU pragma: export
