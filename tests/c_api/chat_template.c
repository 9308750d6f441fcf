// Chat templates: one rendered with every argument, and what is refused.
#include <stdlib.h>
#include <string.h>

#include "check.h"

static void copy_text(void* user, const char* text, int64_t bytes) {
  char** copy = user;
  *copy = malloc((size_t)bytes + 1);
  memcpy(*copy, text, (size_t)bytes + 1);
}

static const char kSource[] =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] | trim }}{% endfor %}"
    "{{ tools | length }}{{ eos_token is defined }}{{ documents is none }}{{ style }}"
    "{{ strftime_now('%Y-%m-%d') }}{% if add_generation_prompt %}[assistant]{% endif %}";

static void test_refused(ts_chat_template* chat) {
  ts_chat_template_args args = TS_CHAT_TEMPLATE_ARGS;
  char* text = NULL;
  CHECK_FAILS(ts_chat_template_render(chat, &args, copy_text, &text), TS_INVALID_ARGUMENT,
              "messages: is NULL");
  args.messages = "[{";
  CHECK_FAILS(ts_chat_template_render(chat, &args, copy_text, &text), TS_INVALID_ARGUMENT,
              "chat_template_render: messages: ");
  args.messages = "[]";
  CHECK_FAILS(ts_chat_template_render(chat, &args, NULL, NULL), TS_INVALID_ARGUMENT,
              "text: is NULL");
  CHECK_FAILS(ts_chat_template_render(NULL, &args, copy_text, &text), TS_INVALID_ARGUMENT,
              "chat_template: is NULL");
  args.tools = "[]";
  CHECK_FAILS(ts_chat_template_render(chat, &args, copy_text, &text), TS_CORRUPT_DATA,
              "the time was not given");
  args.variables = "[1]";
  CHECK_FAILS(ts_chat_template_render(chat, &args, copy_text, &text), TS_INVALID_ARGUMENT,
              "variables: expected an object");
  args.struct_size = 8;
  CHECK_FAILS(ts_chat_template_render(chat, &args, copy_text, &text), TS_INVALID_ARGUMENT,
              "chat_template_render: struct_size 8");
  CHECK(text == NULL);
}

void test_chat_template(void) {
  ts_chat_template* chat = NULL;
  const char* unknown = "a\n{{ x | shout }}";
  CHECK_FAILS(ts_chat_template_create(unknown, (int64_t)strlen(unknown), &chat), TS_CORRUPT_DATA,
              "chat template:2:8: unknown filter 'shout'");
  CHECK_FAILS(ts_chat_template_create(NULL, 3, &chat), TS_INVALID_ARGUMENT, "source");
  CHECK_FAILS(ts_chat_template_create(kSource, -1, &chat), TS_INVALID_ARGUMENT, "count -1 < 0");
  CHECK_FAILS(ts_chat_template_create(kSource, 1, NULL), TS_INVALID_ARGUMENT, "result: is NULL");
  CHECK(chat == NULL);
  CHECK_OK(ts_chat_template_create(kSource, (int64_t)strlen(kSource), &chat));
  ts_chat_template_args args = TS_CHAT_TEMPLATE_ARGS;
  args.messages = "[{\"role\": \"user\", \"content\": \" Hi \\n\"}]";
  args.tools = "[{}, {}]";
  args.variables = "{\"style\": \"plain\"}";
  args.bos_token = "<s>";
  args.add_generation_prompt = 1;
  args.has_now = 1;
  args.now = 951782400;
  char* text = NULL;
  CHECK_OK(ts_chat_template_render(chat, &args, copy_text, &text));
  CHECK(text != NULL && strcmp(text, "<s>[user]Hi2FalseTrueplain2000-02-29[assistant]") == 0);
  free(text);
  test_refused(chat);
  ts_chat_template_destroy(chat);
  ts_chat_template_destroy(NULL);
}
