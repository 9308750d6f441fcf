// Acceptance of drafts: a branching tree beside an empty one.
#include <math.h>

#include "check.h"

void test_speculative(ts_context* context) {
  // Sequence 0: nodes 2, 3, 4 after 2, 5 after 3. Sequence 1: none.
  static const int64_t offsets[] = {0, 5, 6};
  static const int32_t tokens[] = {0, 2, 3, 4, 5, 0};
  static const int32_t parents[] = {0, -1, -1, 0, 1, 0};
  static const int32_t best[] = {3, 4, 5, 1, 0, 2};
  static const int32_t history[] = {1, 2, 1};
  static const int64_t history_offsets[] = {0, 2, 3};
  static const int64_t seeds[] = {7, 8};
  float logits[36] = {0};
  float draft[36];
  int32_t accepted[2], path[6], emitted[6], states[6], i;
  float log_probabilities[6];
  int64_t positions[] = {2, 0};
  ts_accept_args args = TS_ACCEPT_ARGS;
  for (i = 0; i < 6; ++i) logits[6 * i + best[i]] = 9;
  for (i = 0; i < 36; ++i) draft[i] = 1.0f / 6;
  args.logits = f32(logits, 2, 6, 6, 0, 0);
  args.offsets = offsets;
  args.sequences = 2;
  args.node_tokens = tokens;
  args.node_parents = parents;
  args.history = history;
  args.history_offsets = history_offsets;
  args.seeds = seeds;
  args.temperature = 0;
  args.accepted = accepted;
  args.path = path;
  args.tokens = emitted;
  args.log_probabilities = log_probabilities;
  args.states = states;
  for (args.rule = TS_ACCEPT_GREEDY; args.rule <= TS_ACCEPT_REJECTION; ++args.rule) {
    CHECK_OK(ts_accept(context, &args));
    CHECK(accepted[0] == 2 && path[0] == 1 && path[1] == 3 && path[2] == -1);
    CHECK(emitted[0] == 3 && emitted[1] == 5 && emitted[2] == 0 && emitted[3] == -1);
    CHECK(accepted[1] == 0 && emitted[5] == 2);
    CHECK(states[1] == TS_NODE_REJECTED && states[2] == TS_NODE_ACCEPTED);
    CHECK(states[3] == TS_NODE_SKIPPED && states[4] == TS_NODE_ACCEPTED);
    CHECK_NEAR((double)log_probabilities[0], -0.00061686);
  }
  args.rule = TS_ACCEPT_REJECTION;
  args.proposal = TS_PROPOSAL_WITH_REPLACEMENT;
  CHECK_FAILS(ts_accept(context, &args), TS_INVALID_ARGUMENT, "draft: is NULL");
  args.draft = draft;
  CHECK_OK(ts_accept(context, &args));
  CHECK(emitted[0] == 3);
  draft[5] = INFINITY;
  CHECK_FAILS(ts_accept(context, &args), TS_INVALID_ARGUMENT, "draft: expected finite");
  draft[5] = -1;
  CHECK_FAILS(ts_accept(context, &args), TS_INVALID_ARGUMENT, "draft: expected finite");
  draft[5] = 1.0f / 6;
  args.proposal = 9;
  CHECK_FAILS(ts_accept(context, &args), TS_INVALID_ARGUMENT, "proposal: 9");
  args.proposal = TS_PROPOSAL_CHOSEN;
  args.rule = 5;
  CHECK_FAILS(ts_accept(context, &args), TS_INVALID_ARGUMENT, "rule 5");
  args.rule = TS_ACCEPT_TARGET_ONLY;
  args.positions = positions;
  CHECK_FAILS(ts_accept(context, &args), TS_INVALID_ARGUMENT, "positions: expected at least 1");
  positions[1] = 40;
  CHECK_OK(ts_accept(context, &args));
  args.temperature = -1;
  CHECK_FAILS(ts_accept(context, &args), TS_INVALID_ARGUMENT, "temperature");
  args.temperature = 0;
  logits[6] = NAN;  // a row that no path reaches
  CHECK_OK(ts_accept(context, &args));
  logits[0] = NAN;
  CHECK_FAILS(ts_accept(context, &args), TS_CORRUPT_DATA, "sequence 0: the logits are NaN");
  args.seeds = NULL;
  CHECK_FAILS(ts_accept(context, &args), TS_INVALID_ARGUMENT, "seeds: is NULL");
  CHECK_FAILS(ts_accept(context, NULL), TS_INVALID_ARGUMENT, "accept");
}
