// The C API of generation: models, requests, the scheduler that serves them. Part of
// touchstone_c.h, which states its rules. The fields are documented in touchstone/model/model.h,
// touchstone/decode/request.h, touchstone/decode/scheduler.h and touchstone/decode/speculation.h.
//
//   ts_model_open(context, "SmolLM2.gguf", NULL, &model);
//   ts_scheduler_create(model, NULL, &scheduler);
//   ts_scheduler_submit(scheduler, &request, &id);
//   do ts_scheduler_step(scheduler, &more); while (more);
//   ts_scheduler_take(scheduler, id, &completions);
#pragma once

#include "touchstone/touchstone_c.h"
#include "touchstone/touchstone_c_beam.h"
#include "touchstone/touchstone_c_cache.h"
#include "touchstone/touchstone_c_speculative.h"

#ifdef __cplusplus
extern "C" {
#endif

// Also in the headers named here: a program that includes one of those first reads this header
// before their declarations, because touchstone_c.h includes all of them.
typedef int32_t ts_finish_reason;    // its values: touchstone_c_beam.h
typedef int32_t ts_acceptance_rule;  // its values: touchstone_c_speculative.h
typedef struct ts_quant_format ts_quant_format;

typedef struct ts_model ts_model;
typedef struct ts_scheduler ts_scheduler;
typedef struct ts_cancellation ts_cancellation;
typedef struct ts_completions ts_completions;
typedef struct ts_grammar_state ts_grammar_state;
typedef struct ts_tokenizer ts_tokenizer;

// Beside those of touchstone_c_beam.h.
enum { TS_FINISH_NONE = 0, TS_FINISH_CANCELLED = 4, TS_FINISH_NO_TOKEN = 5, TS_FINISH_FAILED = 6 };

typedef struct ts_model_args {
  size_t struct_size;
  ts_dtype compute;  // TS_F32, TS_BF16 or TS_F16
  int32_t reserved;  // 0
  // How keys and values are cached; NULL = in the dtype of `compute`.
  const ts_quant_format* keys;
  const ts_quant_format* values;
  int64_t max_length;  // 0 = the context of the model
  int64_t sequences;
  int64_t host_sequences;
  int64_t page_tokens;
  int64_t max_rows;
  int32_t share_prefixes;
  int32_t graphs;
  int32_t int8_activations;
  int32_t reserved2;  // 0
  int32_t expand_weights;
  int32_t reserved3;  // 0
} ts_model_args;
#define TS_MODEL_ARGS                                                                           \
  {                                                                                             \
    .struct_size = sizeof(ts_model_args), .compute = TS_F32, .sequences = 1, .page_tokens = 16, \
    .max_rows = 256, .share_prefixes = 1, .graphs = 1                                           \
  }

typedef struct ts_model_info {
  size_t struct_size;
  int64_t vocabulary;
  int64_t max_length;
  int64_t layers;
  int64_t width;
  int64_t weight_bytes;
  int64_t cache_bytes;
  int64_t bos_token;  // -1: none
  int64_t eos_count;
  const int64_t* eos_tokens;  // valid as long as the model
} ts_model_info;
#define TS_MODEL_INFO \
  { .struct_size = sizeof(ts_model_info) }

// A GGUF file or a folder. The model runs with this context, which outlives it.
TOUCHSTONE_API ts_status ts_model_open(ts_context* context, const char* path,
                                       const ts_model_args* args, ts_model** model);
TOUCHSTONE_API void ts_model_destroy(ts_model* model);
TOUCHSTONE_API ts_status ts_model_describe(const ts_model* model, ts_model_info* info);

// Called with every draft that was verified; `text` has one line per node with its verdict, as
// touchstone generate --trace prints it, tokens by their numbers. It is valid during the call.
typedef void (*ts_speculation_trace)(void* user, int64_t request, int32_t sample, int64_t position,
                                     const char* text);

// Speculative decoding: the completions stay those of plain decoding, but for the rule rejection.
typedef struct ts_speculation_args {
  size_t struct_size;
  // By commas, as touchstone generate --speculate takes them: "ngram", "lookup", "suffix", "draft"
  // (the model below), "dflash=FOLDER". Several are merged into one tree.
  const char* sources;
  // A smaller model with the vocabulary of the target and the same context, used by nothing else;
  // outlives the scheduler. It needs twice the target's sequences.
  ts_model* draft;
  int64_t tree_nodes;  // of a draft, at most
  int64_t max_depth;
  ts_acceptance_rule rule;
  int32_t adaptive;  // 0: every draft is verified whole
  // Tokens of a text that "suffix" takes drafts from, beside the sequence itself; copied. NULL:
  // none.
  const int32_t* corpus;
  int64_t corpus_tokens;
  ts_speculation_trace trace;  // NULL: none
  void* trace_user;
} ts_speculation_args;
#define TS_SPECULATION_ARGS                                                        \
  {                                                                                \
    .struct_size = sizeof(ts_speculation_args), .tree_nodes = 16, .max_depth = 16, \
    .rule = TS_ACCEPT_TARGET_ONLY, .adaptive = 1                                   \
  }

typedef struct ts_scheduler_args {
  size_t struct_size;
  int64_t max_rows;
  int64_t max_running;
  int64_t swap_min_tokens;
  const int32_t* eos_tokens;
  int64_t eos_count;              // -1: those of the model
  const ts_tokenizer* tokenizer;  // for text and stop strings; outlives the scheduler. NULL: none
  int32_t share_prefixes;
  int32_t skip_special;
  const ts_speculation_args* speculation;  // NULL: plain decoding
} ts_scheduler_args;
#define TS_SCHEDULER_ARGS                                                          \
  {                                                                                \
    .struct_size = sizeof(ts_scheduler_args), .max_rows = 256, .max_running = 32,  \
    .swap_min_tokens = 64, .eos_count = -1, .share_prefixes = 1, .skip_special = 1 \
  }

// The model outlives it and is used by nothing else meanwhile.
TOUCHSTONE_API ts_status ts_scheduler_create(ts_model* model, const ts_scheduler_args* args,
                                             ts_scheduler** scheduler);
TOUCHSTONE_API void ts_scheduler_destroy(ts_scheduler* scheduler);

// A flag that ends requests, from any thread. It may be destroyed before they end.
TOUCHSTONE_API ts_status ts_cancellation_create(ts_cancellation** cancellation);
TOUCHSTONE_API void ts_cancellation_destroy(ts_cancellation* cancellation);
TOUCHSTONE_API ts_status ts_cancellation_cancel(const ts_cancellation* cancellation);

// A token as soon as it is chosen (-1: the end of a sample alone), and the text that is final.
typedef struct ts_token_event {
  size_t struct_size;
  int64_t request;
  int32_t sample;
  int32_t token;
  const char* text;  // `text_bytes` bytes, valid during the call
  int64_t text_bytes;
  ts_finish_reason finish;
  int32_t reserved;
} ts_token_event;
typedef void (*ts_token_hook)(void* user, const ts_token_event* event);

typedef struct ts_request_args {
  size_t struct_size;
  const int32_t* prompt;
  int64_t prompt_count;
  double temperature;  // 0 = greedy
  double top_p;
  double min_p;
  double repetition_penalty;
  double frequency_penalty;
  double presence_penalty;
  int64_t seed;
  int64_t max_tokens;
  int64_t min_tokens;
  const int32_t* stop_tokens;
  int64_t stop_token_count;
  const char* const* stop_strings;
  int64_t stop_string_count;
  int32_t top_k;  // 0 = all
  int32_t samples;
  int32_t top_log_probabilities;  // -1 = no log-probabilities
  int32_t prompt_log_probabilities;
  int32_t ignore_eos;
  int32_t include_stop;
  const ts_grammar_state* constraint;   // copied; NULL = none
  const ts_cancellation* cancellation;  // NULL = none
  ts_token_hook hook;                   // called by ts_scheduler_step; NULL = none
  void* user;
  const int32_t* bias_tokens;  // added to the logits of these tokens: bias_values
  const float* bias_values;
  int64_t bias_count;
} ts_request_args;
#define TS_REQUEST_ARGS                                                                            \
  {                                                                                                \
    .struct_size = sizeof(ts_request_args), .top_p = 1, .repetition_penalty = 1, .max_tokens = 16, \
    .samples = 1, .top_log_probabilities = -1                                                      \
  }

TOUCHSTONE_API ts_status ts_scheduler_submit(ts_scheduler* scheduler, const ts_request_args* args,
                                             int64_t* request);
// One step; *more is 0 when every request is finished.
TOUCHSTONE_API ts_status ts_scheduler_step(ts_scheduler* scheduler, int32_t* more);
TOUCHSTONE_API ts_status ts_scheduler_finished(const ts_scheduler* scheduler, int64_t request,
                                               int32_t* finished);
// The results of a finished request, which is forgotten then.
TOUCHSTONE_API ts_status ts_scheduler_take(ts_scheduler* scheduler, int64_t request,
                                           ts_completions** completions);

typedef struct ts_scheduler_counts {
  size_t struct_size;
  int64_t steps;
  int64_t prompt_rows;
  int64_t decode_rows;
  int64_t prefix_tokens;
  int64_t preemptions;
  int64_t swaps;
} ts_scheduler_counts;
#define TS_SCHEDULER_COUNTS \
  { .struct_size = sizeof(ts_scheduler_counts) }
TOUCHSTONE_API ts_status ts_scheduler_statistics(const ts_scheduler* scheduler,
                                                 ts_scheduler_counts* counts);

// Counters of speculation; all 0 without it. Arrays and text are valid until the next call that
// takes the scheduler.
typedef struct ts_speculation_counts {
  size_t struct_size;
  int64_t passes;           // of one sequence through the target, after its prompt
  int64_t drafted_passes;   // that verified at least one node
  int64_t tokens;           // that the passes yielded, the target's own included
  int64_t nodes;            // that were verified
  int64_t depths;           // of the two arrays
  const int64_t* offered;   // [d]: drafts whose path reached a node with children of depth d + 1
  const int64_t* accepted;  // [d]: of those, one of the children was accepted
  double draft_seconds;
  double seconds;
  double plain_seconds;    // that plain steps take for the same tokens; 0: none was measured
  const char* controller;  // its present decision, and why
} ts_speculation_counts;
#define TS_SPECULATION_COUNTS \
  { .struct_size = sizeof(ts_speculation_counts) }
TOUCHSTONE_API ts_status ts_scheduler_speculation(ts_scheduler* scheduler,
                                                  ts_speculation_counts* counts);

// One sample. Its arrays are valid until the completions are destroyed.
typedef struct ts_completion {
  size_t struct_size;
  const int32_t* tokens;
  int64_t token_count;
  const char* text;  // ends with a zero byte; "" without a tokenizer
  int64_t text_bytes;
  const float* log_probabilities;  // [token_count], NULL unless requested
  // [token_count, top_count]: the likeliest tokens; -1 where there are fewer.
  const int32_t* top_tokens;
  const float* top_log_probabilities;
  int64_t top_count;
  const float* prompt_log_probabilities;  // of prompt tokens 1, 2, ...
  int64_t prompt_count;
  ts_finish_reason finish;
  int32_t stop_index;
} ts_completion;
#define TS_COMPLETION \
  { .struct_size = sizeof(ts_completion) }

TOUCHSTONE_API ts_status ts_completions_count(const ts_completions* completions, int64_t* samples);
TOUCHSTONE_API ts_status ts_completions_get(const ts_completions* completions, int64_t sample,
                                            ts_completion* completion);
TOUCHSTONE_API void ts_completions_destroy(ts_completions* completions);

#ifdef __cplusplus
}  // extern "C"
#endif
