// Models, requests and the scheduler, on a model of a few kilobytes.
#define _XOPEN_SOURCE 700  // mkdtemp
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

#define MODEL TOUCHSTONE_IO_TESTDATA "/models/llama.gguf"

struct seen {
  int tokens;
  int ends;
  ts_cancellation* cancel_at_third;
};

static void count_events(void* user, const ts_token_event* event) {
  struct seen* seen = user;
  CHECK(event->struct_size == sizeof(*event));
  if (event->token >= 0) ++seen->tokens;
  if (event->finish != TS_FINISH_NONE) ++seen->ends;
  if (seen->tokens == 3 && seen->cancel_at_third != NULL) {
    CHECK_OK(ts_cancellation_cancel(seen->cancel_at_third));
  }
}

static void run(ts_scheduler* scheduler) {
  int32_t more = 1;
  while (more) {
    CHECK_OK(ts_scheduler_step(scheduler, &more));
    if (failures > 0) return;
  }
}

static void test_requests(ts_scheduler* scheduler) {
  static const int32_t prompt[] = {3, 1, 4, 1, 5};
  ts_request_args args = TS_REQUEST_ARGS;
  struct seen seen = {0, 0, NULL};
  int64_t greedy = -1, sampled = -1, count = 0;
  int32_t finished = -1;
  ts_completions* completions = NULL;
  ts_completion first = TS_COMPLETION, second = TS_COMPLETION;
  args.prompt = prompt;
  args.prompt_count = 5;
  args.max_tokens = 8;
  args.ignore_eos = 1;
  args.top_log_probabilities = 2;
  args.prompt_log_probabilities = 1;
  args.hook = count_events;
  args.user = &seen;
  CHECK_OK(ts_scheduler_submit(scheduler, &args, &greedy));
  args.temperature = 0.9;
  args.seed = 4;
  args.samples = 2;
  args.prompt_log_probabilities = 0;
  CHECK_OK(ts_scheduler_submit(scheduler, &args, &sampled));
  CHECK_OK(ts_scheduler_finished(scheduler, greedy, &finished));
  CHECK(finished == 0);
  CHECK_FAILS(ts_scheduler_take(scheduler, greedy, &completions), TS_INVALID_ARGUMENT,
              "not finished");
  run(scheduler);
  CHECK(seen.tokens == 3 * 8 && seen.ends == 3);
  CHECK_OK(ts_scheduler_take(scheduler, greedy, &completions));
  CHECK_OK(ts_completions_count(completions, &count));
  CHECK(count == 1);
  CHECK_OK(ts_completions_get(completions, 0, &first));
  CHECK(first.token_count == 8 && first.finish == TS_FINISH_LENGTH && first.text_bytes == 0);
  CHECK(first.top_count == 2 && first.prompt_count == 4 && first.text[0] == 0);
  // Greedy: the token is the likeliest one.
  CHECK(first.top_tokens[0] == first.tokens[0]);
  CHECK_NEAR((double)first.log_probabilities[0], (double)first.top_log_probabilities[0]);
  CHECK(first.prompt_log_probabilities[0] < 0);
  CHECK_FAILS(ts_completions_get(completions, 1, &second), TS_INVALID_ARGUMENT, "sample 1");
  ts_completions_destroy(completions);
  CHECK_OK(ts_scheduler_take(scheduler, sampled, &completions));
  CHECK_OK(ts_completions_get(completions, 0, &first));
  CHECK_OK(ts_completions_get(completions, 1, &second));
  CHECK(memcmp(first.tokens, second.tokens, 8 * sizeof(int32_t)) != 0);
  ts_completions_destroy(completions);
}

static void test_cancellation(ts_scheduler* scheduler) {
  static const int32_t prompt[] = {2, 7};
  ts_request_args args = TS_REQUEST_ARGS;
  struct seen seen = {0, 0, NULL};
  ts_completions* completions = NULL;
  ts_completion completion = TS_COMPLETION;
  int64_t request = -1;
  CHECK_OK(ts_cancellation_create(&seen.cancel_at_third));
  args.prompt = prompt;
  args.prompt_count = 2;
  args.max_tokens = 20;
  args.ignore_eos = 1;
  args.cancellation = seen.cancel_at_third;
  args.hook = count_events;
  args.user = &seen;
  CHECK_OK(ts_scheduler_submit(scheduler, &args, &request));
  run(scheduler);
  CHECK_OK(ts_scheduler_take(scheduler, request, &completions));
  CHECK_OK(ts_completions_get(completions, 0, &completion));
  CHECK(completion.finish == TS_FINISH_CANCELLED && completion.token_count == 3);
  ts_completions_destroy(completions);
  ts_cancellation_destroy(seen.cancel_at_third);
}

// A grammar over the ids: what it does not allow is never chosen.
static void test_constraint(ts_scheduler* scheduler, int64_t vocabulary) {
  static const char text[] = "root ::= \"ab\" | \"aab\"";
  static const int32_t prompt[] = {2, 7};
  const char* bytes[4096];
  size_t sizes[4096];
  const int32_t end = 2;
  ts_grammar* grammar = NULL;
  ts_grammar_vocabulary* words = NULL;
  ts_grammar_state* state = NULL;
  ts_request_args args = TS_REQUEST_ARGS;
  ts_completions* completions = NULL;
  ts_completion completion = TS_COMPLETION;
  int64_t request = -1;
  for (int64_t i = 0; i < vocabulary; ++i) {
    bytes[i] = i % 2 == 0 ? "a" : "b";
    sizes[i] = 1;
  }
  CHECK_OK(ts_grammar_from_gbnf(text, strlen(text), &grammar));
  CHECK_OK(ts_grammar_vocabulary_create(bytes, sizes, vocabulary, &end, 1, &words));
  CHECK_OK(ts_grammar_state_create(grammar, words, &state));
  args.prompt = prompt;
  args.prompt_count = 2;
  args.temperature = 1;
  args.constraint = state;
  args.stop_tokens = &end;
  args.stop_token_count = 1;
  CHECK_OK(ts_scheduler_submit(scheduler, &args, &request));
  run(scheduler);
  CHECK_OK(ts_scheduler_take(scheduler, request, &completions));
  CHECK_OK(ts_completions_get(completions, 0, &completion));
  CHECK(completion.token_count == 2 || completion.token_count == 3);
  CHECK(completion.tokens[0] % 2 == 0);
  CHECK(completion.tokens[completion.token_count - 1] % 2 == 1);
  CHECK(completion.finish == TS_FINISH_STOP && completion.stop_index == 0);
  ts_completions_destroy(completions);
  ts_grammar_state_destroy(state);
  ts_grammar_vocabulary_destroy(words);
  ts_grammar_destroy(grammar);
}

// Completions of two requests, by a scheduler with these options.
static void complete(ts_model* model, const ts_speculation_args* speculation, int32_t tokens[2][24],
                     ts_speculation_counts* counts) {
  static const int32_t prompt[] = {3, 1, 4, 3, 1, 4, 3, 1};
  ts_scheduler_args args = TS_SCHEDULER_ARGS;
  ts_scheduler* scheduler = NULL;
  int64_t ids[2] = {-1, -1};
  args.speculation = speculation;
  CHECK_OK(ts_scheduler_create(model, &args, &scheduler));
  if (scheduler == NULL) return;
  for (int i = 0; i < 2; ++i) {
    ts_request_args request = TS_REQUEST_ARGS;
    request.prompt = prompt;
    request.prompt_count = 8;
    request.max_tokens = 24;
    request.ignore_eos = 1;
    request.temperature = i * 0.7;
    request.repetition_penalty = 1 + 0.1 * i;
    CHECK_OK(ts_scheduler_submit(scheduler, &request, &ids[i]));
  }
  run(scheduler);
  CHECK_OK(ts_scheduler_speculation(scheduler, counts));
  CHECK(counts->controller != NULL && counts->depths >= 0);
  for (int64_t d = 0; d < counts->depths; ++d) CHECK(counts->accepted[d] <= counts->offered[d]);
  for (int i = 0; i < 2; ++i) {
    ts_completions* completions = NULL;
    ts_completion completion = TS_COMPLETION;
    CHECK_OK(ts_scheduler_take(scheduler, ids[i], &completions));
    CHECK_OK(ts_completions_get(completions, 0, &completion));
    CHECK(completion.token_count == 24);
    if (completion.token_count == 24) memcpy(tokens[i], completion.tokens, sizeof(tokens[i]));
    ts_completions_destroy(completions);
  }
  ts_scheduler_destroy(scheduler);
}

// A block draft of one layer with some weights, for the model above.
static void write_draft(const char* folder) {
  static const struct {
    const char* name;
    int rows, cols;  // cols 0: a vector
  } tensors[] = {{"fc", 16, 32},
                 {"hidden_norm", 16, 0},
                 {"norm", 16, 0},
                 {"layers.0.input_layernorm", 16, 0},
                 {"layers.0.post_attention_layernorm", 16, 0},
                 {"layers.0.self_attn.q_proj", 16, 16},
                 {"layers.0.self_attn.k_proj", 8, 16},
                 {"layers.0.self_attn.v_proj", 8, 16},
                 {"layers.0.self_attn.o_proj", 16, 16},
                 {"layers.0.self_attn.q_norm", 4, 0},
                 {"layers.0.self_attn.k_norm", 4, 0},
                 {"layers.0.mlp.gate_proj", 24, 16},
                 {"layers.0.mlp.up_proj", 24, 16},
                 {"layers.0.mlp.down_proj", 16, 24}};
  enum { COUNT = sizeof(tensors) / sizeof(tensors[0]) };
  char path[512], header[4096];
  int length = 0, offset = 0;
  snprintf(path, sizeof(path), "%s/config.json", folder);
  FILE* file = fopen(path, "wb");
  fputs(
      "{\"hidden_size\": 16, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, "
      "\"num_key_value_heads\": 2, \"head_dim\": 4, \"intermediate_size\": 24, "
      "\"vocab_size\": 12, \"block_size\": 4, \"dflash_config\": {\"mask_token_id\": 0, "
      "\"target_layer_ids\": [0, 1]}}",
      file);
  fclose(file);
  for (int i = 0; i < COUNT; ++i) {
    const int count = tensors[i].rows * (tensors[i].cols > 0 ? tensors[i].cols : 1);
    char shape[32];
    snprintf(shape, sizeof(shape), tensors[i].cols > 0 ? "[%d, %d]" : "[%d]", tensors[i].rows,
             tensors[i].cols);
    length += snprintf(header + length, sizeof(header) - (size_t)length,
                       "%s\"%s.weight\": {\"dtype\": \"F32\", \"shape\": %s, "
                       "\"data_offsets\": [%d, %d]}",
                       i == 0 ? "{" : ", ", tensors[i].name, shape, offset, offset + 4 * count);
    offset += 4 * count;
  }
  length += snprintf(header + length, sizeof(header) - (size_t)length, "}");
  snprintf(path, sizeof(path), "%s/model.safetensors", folder);
  file = fopen(path, "wb");
  const uint64_t bytes = (uint64_t)length;
  fwrite(&bytes, 8, 1, file);
  fwrite(header, 1, (size_t)length, file);
  for (int i = 0; i < offset / 4; ++i) {
    const float value = (float)(i * 37 % 101 - 50) / 100;
    fwrite(&value, 4, 1, file);
  }
  fclose(file);
}

static void remove_draft(const char* folder) {
  static const char* const names[] = {"config.json", "model.safetensors"};
  char path[512];
  for (int i = 0; i < 2; ++i) {
    snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
    remove(path);
  }
  rmdir(folder);
}

static void count_traces(void* user, int64_t request, int32_t sample, int64_t position,
                         const char* text) {
  CHECK(request >= 0 && sample == 0 && position > 0);
  CHECK(strstr(text, " accepted, then ") != NULL);
  ++*(int*)user;
}

// Every source gives the tokens of plain decoding.
static void test_speculation(ts_context* context, ts_model* model) {
  char folder[] = "/tmp/touchstone_dflash_XXXXXX";
  char dflash[64];
  const char* const sources[] = {"ngram", "lookup", "suffix",
                                 "draft", dflash,   "suffix,ngram,draft"};
  ts_model_args args = TS_MODEL_ARGS;
  ts_speculation_args speculation = TS_SPECULATION_ARGS;
  ts_speculation_counts counts = TS_SPECULATION_COUNTS;
  ts_scheduler_args scheduler_args = TS_SCHEDULER_ARGS;
  ts_scheduler* scheduler = NULL;
  ts_model* draft = NULL;
  int32_t plain[2][24], drafted[2][24];
  CHECK(mkdtemp(folder) != NULL);
  write_draft(folder);
  snprintf(dflash, sizeof(dflash), "dflash=%s", folder);
  args.max_length = 32;
  args.sequences = 8;
  CHECK_OK(ts_model_open(context, MODEL, &args, &draft));
  complete(model, NULL, plain, &counts);
  CHECK(counts.passes == 0 && counts.nodes == 0);
  speculation.adaptive = 0;
  speculation.draft = draft;
  for (int i = 0; i < 6; ++i) {
    speculation.sources = sources[i];
    memset(drafted, -1, sizeof(drafted));
    complete(model, &speculation, drafted, &counts);
    CHECK(memcmp(plain, drafted, sizeof(plain)) == 0);
    CHECK(counts.tokens >= counts.passes && counts.passes > 0);
    if (i >= 3) CHECK(counts.nodes > 0);
  }
  CHECK(counts.nodes > 0 && counts.drafted_passes > 0 && counts.depths > 0);
  CHECK(counts.draft_seconds > 0 && counts.seconds >= counts.draft_seconds);
  // A corpus of the text itself: more is accepted than the sequence alone gives. Drafts are traced.
  int64_t passes = 0;
  int traces = 0;
  speculation.sources = "suffix";
  complete(model, &speculation, drafted, &counts);
  passes = counts.passes;
  speculation.corpus = plain[0];
  speculation.corpus_tokens = 24;
  speculation.trace = count_traces;
  speculation.trace_user = &traces;
  complete(model, &speculation, drafted, &counts);
  CHECK(memcmp(plain, drafted, sizeof(plain)) == 0);
  CHECK(counts.passes < passes);
  CHECK(traces == counts.drafted_passes && traces > 0);
  speculation.trace = NULL;
  // A caller that was compiled before there was a corpus.
  speculation.struct_size = offsetof(ts_speculation_args, corpus);
  complete(model, &speculation, drafted, &counts);
  CHECK(counts.passes == passes);
  speculation.struct_size = sizeof(speculation);
  scheduler_args.speculation = &speculation;
  drafted[0][0] = -1;
  speculation.corpus = drafted[0];
  CHECK_FAILS(ts_scheduler_create(model, &scheduler_args, &scheduler), TS_INVALID_ARGUMENT,
              "corpus: token -1 is outside");
  speculation.corpus = NULL;
  // Rejection sampling of a draft model: texts of the same lengths, greedy ones the same.
  speculation.sources = "draft";
  speculation.rule = TS_ACCEPT_REJECTION;
  complete(model, &speculation, drafted, &counts);
  CHECK(counts.nodes > 0);
  speculation.rule = TS_ACCEPT_TARGET_ONLY;
  speculation.sources = "suffix,oracle";
  CHECK_FAILS(ts_scheduler_create(model, &scheduler_args, &scheduler), TS_INVALID_ARGUMENT,
              "got 'oracle'");
  speculation.sources = NULL;
  CHECK_FAILS(ts_scheduler_create(model, &scheduler_args, &scheduler), TS_INVALID_ARGUMENT,
              "sources: is NULL");
  speculation.sources = "draft";
  speculation.draft = NULL;
  CHECK_FAILS(ts_scheduler_create(model, &scheduler_args, &scheduler), TS_INVALID_ARGUMENT,
              "draft: is NULL");
  speculation.sources = "dflash=/nowhere";
  CHECK_FAILS(ts_scheduler_create(model, &scheduler_args, &scheduler), TS_FILE_ERROR, "nowhere");
  speculation.sources = "ngram";
  speculation.rule = 3;
  CHECK_FAILS(ts_scheduler_create(model, &scheduler_args, &scheduler), TS_INVALID_ARGUMENT, "rule");
  CHECK(scheduler == NULL);
  ts_model_destroy(draft);
  remove_draft(folder);
}

// EOS tokens are written to masks by their number.
static void test_eos(ts_model* model, int64_t vocabulary) {
  const int32_t outside[][2] = {{2, (int32_t)vocabulary}, {-1, 2}, {2, 1 << 30}};
  static const int32_t inside[] = {0, 2};
  static const int32_t prompt[] = {3, 1};
  ts_scheduler_args args = TS_SCHEDULER_ARGS;
  ts_request_args request = TS_REQUEST_ARGS;
  ts_scheduler* scheduler = NULL;
  int64_t id = -1;
  args.eos_count = 2;
  for (int i = 0; i < 3; ++i) {
    args.eos_tokens = outside[i];
    CHECK_FAILS(ts_scheduler_create(model, &args, &scheduler), TS_INVALID_ARGUMENT,
                "eos_tokens: expected tokens in [0, ");
  }
  CHECK(scheduler == NULL);
  args.eos_tokens = inside;
  CHECK_OK(ts_scheduler_create(model, &args, &scheduler));
  request.prompt = prompt;
  request.prompt_count = 2;
  request.max_tokens = request.min_tokens = 6;
  CHECK_OK(ts_scheduler_submit(scheduler, &request, &id));
  run(scheduler);
  ts_scheduler_destroy(scheduler);
}

// The token that a bias makes the likeliest one.
static int32_t biased_token(ts_scheduler* scheduler, size_t struct_size, int32_t token) {
  static const int32_t prompt[] = {3, 1};
  const float value = 1000;
  ts_request_args args = TS_REQUEST_ARGS;
  ts_completions* completions = NULL;
  ts_completion completion = TS_COMPLETION;
  int64_t id = -1;
  int32_t first = -1;
  args.struct_size = struct_size;
  args.prompt = prompt;
  args.prompt_count = 2;
  args.max_tokens = 1;
  args.ignore_eos = 1;
  args.bias_tokens = &token;
  args.bias_values = &value;
  args.bias_count = 1;
  CHECK_OK(ts_scheduler_submit(scheduler, &args, &id));
  run(scheduler);
  CHECK_OK(ts_scheduler_take(scheduler, id, &completions));
  CHECK_OK(ts_completions_get(completions, 0, &completion));
  if (completion.token_count == 1) first = completion.tokens[0];
  ts_completions_destroy(completions);
  return first;
}

static void test_bias(ts_scheduler* scheduler, int64_t vocabulary) {
  const size_t older = offsetof(ts_request_args, bias_tokens);  // has no bias
  ts_request_args args = TS_REQUEST_ARGS;
  static const int32_t prompt[] = {3};
  int32_t outside = (int32_t)vocabulary;
  float value = 1;
  int64_t id = -1;
  for (int32_t token = 5; token < 8; ++token) {
    CHECK(biased_token(scheduler, sizeof(ts_request_args), token) == token);
  }
  CHECK(biased_token(scheduler, older, 5) == biased_token(scheduler, older, 6));
  args.prompt = prompt;
  args.prompt_count = 1;
  args.bias_tokens = &outside;
  args.bias_values = &value;
  args.bias_count = 1;
  CHECK_FAILS(ts_scheduler_submit(scheduler, &args, &id), TS_INVALID_ARGUMENT, "bias");
  args.bias_values = NULL;
  CHECK_FAILS(ts_scheduler_submit(scheduler, &args, &id), TS_INVALID_ARGUMENT, "bias_values");
}

// Weights in blocks, decoded when they are loaded: a step reads more bytes.
static void test_expanded_weights(ts_context* context) {
  const char* const built_in = TOUCHSTONE_IO_TESTDATA "/../../../data/model/touchstone.gguf";
  ts_model_args args = TS_MODEL_ARGS;
  ts_model_info info[3] = {TS_MODEL_INFO, TS_MODEL_INFO, TS_MODEL_INFO};
  if (access(built_in, R_OK) != 0) return;
  args.compute = TS_BF16;
  args.max_length = 8;
  args.max_rows = 1;
  for (int i = 0; i < 3; ++i) {
    ts_model* model = NULL;
    args.expand_weights = i > 0;
    // The last caller was compiled before the option was added.
    args.struct_size = i < 2 ? sizeof(args) : offsetof(ts_model_args, expand_weights);
    CHECK_OK(ts_model_open(context, built_in, &args, &model));
    if (model == NULL) return;
    CHECK_OK(ts_model_describe(model, &info[i]));
    ts_model_destroy(model);
  }
  CHECK(info[1].weight_bytes > info[0].weight_bytes);
  CHECK(info[2].weight_bytes == info[0].weight_bytes);
}

// A caller that was compiled before speculation was added.
static void test_older_caller(ts_model* model) {
  ts_scheduler_args args = TS_SCHEDULER_ARGS;
  ts_scheduler* scheduler = NULL;
  args.struct_size = offsetof(ts_scheduler_args, speculation);
  args.speculation = (const ts_speculation_args*)&args;  // is not looked at
  CHECK_OK(ts_scheduler_create(model, &args, &scheduler));
  ts_scheduler_destroy(scheduler);
}

void test_generate(ts_context* context) {
  ts_model_args args = TS_MODEL_ARGS;
  ts_model_info info = TS_MODEL_INFO;
  ts_scheduler_args scheduler_args = TS_SCHEDULER_ARGS;
  ts_scheduler_counts counts = TS_SCHEDULER_COUNTS;
  ts_quant_format int8 = {TS_I8, TS_F16, 0, 0, 0};
  ts_request_args request = TS_REQUEST_ARGS;
  ts_model* model = NULL;
  ts_scheduler* scheduler = NULL;
  int64_t id = -1;
  args.max_length = 32;
  args.sequences = 4;
  args.page_tokens = 0;
  CHECK_FAILS(ts_model_open(context, MODEL, &args, &model), TS_INVALID_ARGUMENT, "page_tokens");
  args.page_tokens = 4;
  args.keys = args.values = &int8;
  CHECK_FAILS(ts_model_open(context, "/nowhere.gguf", &args, &model), TS_FILE_ERROR, "nowhere");
  CHECK_FAILS(ts_model_open(context, NULL, &args, &model), TS_INVALID_ARGUMENT, "path: is NULL");
  CHECK(model == NULL);
  CHECK_OK(ts_model_open(context, MODEL, &args, &model));
  if (model == NULL) return;
  CHECK_OK(ts_model_describe(model, &info));
  CHECK(info.max_length == 32 && info.vocabulary > 0 && info.vocabulary < 4096);
  CHECK(info.weight_bytes > 0 && info.cache_bytes > 0);
  scheduler_args.max_rows = 0;
  CHECK_FAILS(ts_scheduler_create(model, &scheduler_args, &scheduler), TS_INVALID_ARGUMENT,
              "max_rows");
  CHECK_OK(ts_scheduler_create(model, NULL, &scheduler));
  CHECK_FAILS(ts_scheduler_submit(scheduler, &request, &id), TS_INVALID_ARGUMENT, "prompt");
  test_requests(scheduler);
  test_cancellation(scheduler);
  test_constraint(scheduler, info.vocabulary);
  test_bias(scheduler, info.vocabulary);
  CHECK_OK(ts_scheduler_statistics(scheduler, &counts));
  CHECK(counts.steps > 10 && counts.decode_rows > 10);
  ts_scheduler_destroy(scheduler);
  test_speculation(context, model);
  test_older_caller(model);
  test_eos(model, info.vocabulary);
  ts_model_destroy(model);
  test_expanded_weights(context);
}
