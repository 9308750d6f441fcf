// The C API of beam search; part of touchstone_c.h, which states its rules. The search is specified
// in touchstone/decode/beam_search.h. The model is a function of the caller.
#pragma once

#include "touchstone/touchstone_c.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t ts_beam_dialect;
enum {
  TS_BEAM_CANONICAL = 0,
  TS_BEAM_HF = 1,
  TS_BEAM_FAIRSEQ = 2,
  TS_BEAM_CTRANSLATE2 = 3,
  TS_BEAM_VLLM = 4
};

// Of the dialect hf.
typedef int32_t ts_early_stopping;
enum { TS_EARLY_STOPPING_FALSE = 0, TS_EARLY_STOPPING_TRUE = 1, TS_EARLY_STOPPING_NEVER = 2 };

typedef int32_t ts_finish_reason;
enum { TS_FINISH_EOS = 1, TS_FINISH_STOP = 2, TS_FINISH_LENGTH = 3 };

// Writes the logits of the token after `tokens`: the prompt and what a beam has generated. 0 is
// success; anything else ends the search with TS_CORRUPT_DATA.
typedef int32_t (*ts_logits_function)(void* user, const int32_t* tokens, int64_t count,
                                      float* logits);

typedef struct ts_beam_search_args {
  size_t struct_size;
  int64_t vocabulary;
  ts_logits_function logits;
  void* user;
  // Prompt i is prompts[offsets[i]] to prompts[offsets[i + 1] - 1]. All have these options.
  const int32_t* prompts;
  const int64_t* offsets;  // [prompt_count + 1]
  int64_t prompt_count;
  int64_t max_tokens;
  int64_t min_tokens;
  int32_t beams;
  int32_t results;  // 0 = beams
  ts_beam_dialect dialect;
  ts_early_stopping early_stopping;
  double length_penalty;
  double patience;
  const int32_t* eos;
  int64_t eos_count;
  const int32_t* stop_tokens;
  int64_t stop_count;
  const int32_t* banned;
  int64_t banned_count;
  const int32_t* forced;  // the token at this position of the text; -1 = free
  int64_t forced_count;
  double diversity;
  int32_t groups;
  int32_t no_repeat_ngram;
  int32_t include_stop;  // the ending token is part of the tokens
  int32_t reserved;      // 0
} ts_beam_search_args;
#define TS_BEAM_SEARCH_ARGS                                                                        \
  {                                                                                                \
    .struct_size = sizeof(ts_beam_search_args), .max_tokens = 16, .beams = 4, .length_penalty = 1, \
    .patience = 1, .groups = 1                                                                     \
  }

// The results of a search. The arrays of a ts_beam are valid until it is destroyed.
typedef struct ts_beams ts_beams;

typedef struct ts_beam {
  size_t struct_size;
  const int32_t* tokens;
  int64_t token_count;
  const float* log_probabilities;  // of each generated token, the ending one included
  int64_t generated_count;
  double log_probability;
  double score;
  int64_t length;  // that the score is computed with
  ts_finish_reason reason;
  int32_t stop_index;
} ts_beam;
#define TS_BEAM \
  { .struct_size = sizeof(ts_beam) }

TOUCHSTONE_API ts_status ts_beam_search(ts_context* context, const ts_beam_search_args* args,
                                        ts_beams** beams);
TOUCHSTONE_API void ts_beams_destroy(ts_beams* beams);
// The number of results for a prompt, and one of them; rank 0 is the best.
TOUCHSTONE_API ts_status ts_beams_count(const ts_beams* beams, int64_t prompt, int64_t* count);
TOUCHSTONE_API ts_status ts_beams_get(const ts_beams* beams, int64_t prompt, int64_t rank,
                                      ts_beam* beam);

#ifdef __cplusplus
}
#endif
