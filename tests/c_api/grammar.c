// Grammars: masks of a small vocabulary, and what is refused.
#include <string.h>

#include "check.h"

void test_grammar(void) {
  const char* const bytes[] = {"y", "e", "s", "yes", "no", ""};
  const size_t sizes[] = {1, 1, 1, 3, 2, 0};
  const int32_t ends[] = {5};
  const char kText[] = "root ::= \"yes\" | \"no\"";
  ts_grammar* grammar = NULL;
  ts_grammar_vocabulary* vocabulary = NULL;
  ts_grammar_state* state = NULL;
  ts_grammar_state* copy = NULL;
  int32_t mask = -1;
  int32_t can_end = -1;
  CHECK_OK(ts_grammar_from_gbnf(kText, strlen(kText), &grammar));
  CHECK_OK(ts_grammar_vocabulary_create(bytes, sizes, 6, ends, 1, &vocabulary));
  CHECK_OK(ts_grammar_state_create(grammar, vocabulary, &state));
  CHECK_OK(ts_grammar_state_allowed(state, &mask, 1));
  CHECK(mask == 0x19);  // y, yes, no
  CHECK_OK(ts_grammar_state_copy(state, &copy));
  CHECK_OK(ts_grammar_state_accept(state, 3));
  CHECK_OK(ts_grammar_state_can_end(state, &can_end));
  CHECK(can_end == 1);
  CHECK_OK(ts_grammar_state_allowed(state, &mask, 1));
  CHECK(mask == 0x20);  // the end
  CHECK_OK(ts_grammar_state_accept(copy, 0));
  CHECK_FAILS(ts_grammar_state_accept(copy, 2), TS_INVALID_ARGUMENT,
              "token: 2 is not allowed here");
  CHECK_OK(ts_grammar_state_allowed(copy, &mask, 1));
  CHECK(mask == 0x02);
  CHECK_FAILS(ts_grammar_state_allowed(copy, &mask, 2), TS_INVALID_ARGUMENT, "expected 1 words");
  ts_grammar_state_destroy(state);
  ts_grammar_state_destroy(copy);
  ts_grammar_vocabulary_destroy(vocabulary);
  ts_grammar_destroy(grammar);

  CHECK_FAILS(ts_grammar_from_gbnf("root ::= x", 10, &grammar), TS_CORRUPT_DATA,
              "grammar:1:10: the rule 'x' is not defined");
  CHECK_FAILS(ts_grammar_from_json_schema("{\"not\": {}}", 11, TS_JSON_NO_SPACE, &grammar),
              TS_UNSUPPORTED, "the keyword 'not'");
  CHECK_FAILS(ts_grammar_from_json_schema("{}", 2, 7, &grammar), TS_INVALID_ARGUMENT, "whitespace");
  CHECK_OK(ts_grammar_from_json_schema("{}", 2, TS_JSON_ANY_SPACE, &grammar));
  ts_grammar_destroy(grammar);
  CHECK_FAILS(ts_grammar_vocabulary_create(bytes, sizes, 5, ends, 1, &vocabulary),
              TS_INVALID_ARGUMENT, "end_tokens");
  CHECK_FAILS(ts_grammar_vocabulary_from_tokenizer(NULL, 0, ends, 1, &vocabulary),
              TS_INVALID_ARGUMENT, "tokenizer: is NULL");
}
