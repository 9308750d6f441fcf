// The C API of chat templates: touchstone/io/chat_template.h for C. Part of touchstone_c.h.
#pragma once

#include "touchstone/touchstone_c.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ts_chat_template ts_chat_template;

// TS_CORRUPT_DATA with line and column for a template that is refused. The limits are the default
// ones.
TOUCHSTONE_API ts_status ts_chat_template_create(const char* source, int64_t bytes,
                                                 ts_chat_template** result);
// The template of a model: a folder, a GGUF file (touchstone::io::read_chat_template).
// TS_UNSUPPORTED where it has none.
TOUCHSTONE_API ts_status ts_chat_template_open(const char* path, ts_chat_template** result);
TOUCHSTONE_API void ts_chat_template_destroy(ts_chat_template* chat_template);

// The pointers are texts that end with 0; JSON can hold a 0 as \u0000.
typedef struct ts_chat_template_args {
  size_t struct_size;
  const char* messages;   // JSON array
  const char* tools;      // JSON array; NULL: null
  const char* documents;  // JSON array; NULL: null
  const char* variables;  // JSON object of every other variable; NULL: none
  const char* bos_token;  // NULL: undefined
  const char* eos_token;  // NULL: undefined
  int32_t add_generation_prompt;
  int32_t has_now;
  int64_t now;  // seconds since 1970 in the zone to show; read where has_now is set
} ts_chat_template_args;
#define TS_CHAT_TEMPLATE_ARGS \
  { .struct_size = sizeof(ts_chat_template_args) }

// Calls `text` once. TS_CORRUPT_DATA with line and column where the template raises or fails,
// TS_INVALID_ARGUMENT for arguments that are not JSON. Any number of threads may call it at once.
TOUCHSTONE_API ts_status ts_chat_template_render(const ts_chat_template* chat_template,
                                                 const ts_chat_template_args* args, ts_text text,
                                                 void* user);

#ifdef __cplusplus
}  // extern "C"
#endif
