// The C API of grammars, touchstone/decode/grammar.h for C; part of touchstone_c.h, which
// states its rules.
#pragma once

#include "touchstone/touchstone_c.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ts_tokenizer ts_tokenizer;
typedef struct ts_grammar ts_grammar;
typedef struct ts_grammar_vocabulary ts_grammar_vocabulary;
typedef struct ts_grammar_state ts_grammar_state;

// Between the symbols of JSON: nothing, one space behind commas and colons, up to 20 characters.
enum { TS_JSON_NO_SPACE = 0, TS_JSON_SINGLE_SPACE = 1, TS_JSON_ANY_SPACE = 2 };

// TS_CORRUPT_DATA with line and column for a grammar that is refused.
TOUCHSTONE_API ts_status ts_grammar_from_gbnf(const char* text, size_t bytes, ts_grammar** grammar);
// TS_UNSUPPORTED for a keyword outside the subset.
TOUCHSTONE_API ts_status ts_grammar_from_json_schema(const char* schema, size_t bytes,
                                                     int32_t whitespace, ts_grammar** grammar);
TOUCHSTONE_API void ts_grammar_destroy(ts_grammar* grammar);

// Token i is sizes[i] bytes at bytes[i]; of size 0 it is never allowed. End tokens are allowed
// where the text may end.
TOUCHSTONE_API ts_status ts_grammar_vocabulary_create(const char* const* bytes, const size_t* sizes,
                                                      int64_t count, const int32_t* end_tokens,
                                                      int64_t end_count,
                                                      ts_grammar_vocabulary** vocabulary);
// Of a tokenizer, with `size` tokens or those of the tokenizer, whichever is more.
TOUCHSTONE_API ts_status ts_grammar_vocabulary_from_tokenizer(const ts_tokenizer* tokenizer,
                                                              int64_t size,
                                                              const int32_t* end_tokens,
                                                              int64_t end_count,
                                                              ts_grammar_vocabulary** vocabulary);
TOUCHSTONE_API void ts_grammar_vocabulary_destroy(ts_grammar_vocabulary* vocabulary);

// A text under construction. Grammar and vocabulary may be destroyed before it.
TOUCHSTONE_API ts_status ts_grammar_state_create(const ts_grammar* grammar,
                                                 const ts_grammar_vocabulary* vocabulary,
                                                 ts_grammar_state** state);
// A copy advances independently; computed masks are shared.
TOUCHSTONE_API ts_status ts_grammar_state_copy(const ts_grammar_state* state,
                                               ts_grammar_state** copy);
TOUCHSTONE_API void ts_grammar_state_destroy(ts_grammar_state* state);
// All words of the mask: bit t % 32 of word t / 32 is token t.
TOUCHSTONE_API ts_status ts_grammar_state_allowed(const ts_grammar_state* state, int32_t* mask,
                                                  int64_t words);
// TS_INVALID_ARGUMENT for a token that is not allowed; the state stays.
TOUCHSTONE_API ts_status ts_grammar_state_accept(ts_grammar_state* state, int32_t token);
TOUCHSTONE_API ts_status ts_grammar_state_can_end(const ts_grammar_state* state, int32_t* can_end);

#ifdef __cplusplus
}  // extern "C"
#endif
