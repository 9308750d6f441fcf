// The C API of tokenizers; part of touchstone_c.h, which states its rules.
#pragma once

#include "touchstone/touchstone_c.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ts_tokenizer ts_tokenizer;
typedef struct ts_token_stream ts_token_stream;

// The tokens that the post-processor adds (BOS, ...); special tokens written in the text.
enum { TS_ENCODE_ADD_SPECIAL = 1, TS_ENCODE_PARSE_SPECIAL = 2 };
enum { TS_DECODE_SKIP_SPECIAL = 1 };

// A tokenizer.json, a GGUF file, or a folder with one of them.
TOUCHSTONE_API ts_status ts_tokenizer_open(const char* path, ts_tokenizer** tokenizer);
// The text of a tokenizer.json.
TOUCHSTONE_API ts_status ts_tokenizer_from_json(const char* text, size_t bytes,
                                                ts_tokenizer** tokenizer);
TOUCHSTONE_API void ts_tokenizer_destroy(ts_tokenizer* tokenizer);
TOUCHSTONE_API ts_status ts_tokenizer_size(const ts_tokenizer* tokenizer, int64_t* tokens,
                                           int64_t* id_end);
// "byte-level BPE, 49152 tokens, 48900 merges, 17 added": calls `text` once.
TOUCHSTONE_API ts_status ts_tokenizer_describe(const ts_tokenizer* tokenizer, ts_text text,
                                               void* user);
// A token as the vocabulary writes it, and whether it is a special one (`special` may be NULL). As
// ts_tokenizer_decode with capacity and bytes; TS_INVALID_ARGUMENT for an id without a token.
TOUCHSTONE_API ts_status ts_tokenizer_token(const ts_tokenizer* tokenizer, int32_t id, char* text,
                                            int64_t capacity, int64_t* bytes, int32_t* special);
// *id is -1 where there is no such token.
TOUCHSTONE_API ts_status ts_tokenizer_find(const ts_tokenizer* tokenizer, const char* token,
                                           size_t bytes, int32_t* id);
// *count becomes the number of ids of the text. The ids are written only when they all fit in
// `capacity`: a call with capacity 0 queries the size.
TOUCHSTONE_API ts_status ts_tokenizer_encode(const ts_tokenizer* tokenizer, const char* text,
                                             size_t bytes, int32_t flags, int32_t* ids,
                                             int64_t capacity, int64_t* count);
// The same for text, which is UTF-8 without a NUL at its end.
TOUCHSTONE_API ts_status ts_tokenizer_decode(const ts_tokenizer* tokenizer, const int32_t* ids,
                                             int64_t count, int32_t flags, char* text,
                                             int64_t capacity, int64_t* bytes);
// Text of tokens one by one, in whole characters. The text is valid until the next call on the
// stream; *bytes is 0 while no character is complete. The tokenizer must outlive the stream.
TOUCHSTONE_API ts_status ts_token_stream_create(const ts_tokenizer* tokenizer, int32_t flags,
                                                ts_token_stream** stream);
TOUCHSTONE_API void ts_token_stream_destroy(ts_token_stream* stream);
TOUCHSTONE_API ts_status ts_token_stream_next(ts_token_stream* stream, int32_t id,
                                              const char** text, int64_t* bytes);
TOUCHSTONE_API ts_status ts_token_stream_finish(ts_token_stream* stream, const char** text,
                                                int64_t* bytes);

typedef struct ts_tokenizer_train_args {
  size_t struct_size;
  const char* const* texts;
  const size_t* text_bytes;
  int64_t text_count;
  int64_t vocabulary;
  int64_t min_frequency;
  const char* const* special;
  int64_t special_count;
} ts_tokenizer_train_args;
#define TS_TOKENIZER_TRAIN_ARGS \
  { .struct_size = sizeof(ts_tokenizer_train_args), .vocabulary = 32000 }

// Writes a tokenizer.json.
TOUCHSTONE_API ts_status ts_tokenizer_train(const ts_tokenizer_train_args* args, const char* path);

#ifdef __cplusplus
}  // extern "C"
#endif
