// The C API of acceptance in speculative decoding; part of touchstone_c.h, which states its
// rules. The acceptance rules are specified in touchstone/decode/acceptance.h.
#pragma once

#include "touchstone/touchstone_c.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t ts_acceptance_rule;
enum { TS_ACCEPT_GREEDY = 0, TS_ACCEPT_TARGET_ONLY = 1, TS_ACCEPT_REJECTION = 2 };

// How the children of the nodes were proposed; the same for all nodes of a call.
typedef int32_t ts_proposal_kind;
enum {
  TS_PROPOSAL_CHOSEN = 0,
  TS_PROPOSAL_WITH_REPLACEMENT = 1,
  TS_PROPOSAL_WITHOUT_REPLACEMENT = 2
};

typedef int32_t ts_node_state;
enum { TS_NODE_ACCEPTED = 0, TS_NODE_REJECTED = 1, TS_NODE_SKIPPED = 2 };

// Sequence i has the rows offsets[i] to offsets[i + 1] - 1 of the logits: one after its tokens,
// then one after each node of its draft. Arrays per row have an entry for the first row of a
// sequence too; that of node_tokens and node_parents is ignored. All arrays but the logits are on
// the CPU.
typedef struct ts_accept_args {
  size_t struct_size;
  ts_tensor logits;        // [rows, V] f32, bf16 or f16, contiguous
  const int64_t* offsets;  // [sequences + 1]; offsets[0] is 0, the last is rows
  int64_t sequences;
  const int32_t* node_tokens;  // [rows]
  const int32_t*
      node_parents;        // [rows]: number of a node of the same draft that comes before, or -1
  const int32_t* history;  // tokens of all sequences, one after the other
  const int64_t* history_offsets;  // [sequences + 1]
  const int64_t* prompt_lengths;   // [sequences], NULL: 0
  const int64_t* positions;    // [sequences] of the tokens after the histories, NULL: their lengths
  const int64_t* seeds;        // [sequences]
  const int32_t* token_masks;  // [rows, ceil(V / 32)], NULL: all tokens
  const float* draft;          // [rows, V]: what the children of each row were drawn from
  ts_proposal_kind proposal;   // other than chosen: draft is needed
  ts_acceptance_rule rule;
  double temperature;
  double top_p;
  double min_p;
  double repetition_penalty;
  double frequency_penalty;
  double presence_penalty;
  int32_t top_k;
  int32_t reserved;  // 0
  // Results. Those of sequence i begin at its first row, where arrays are per row.
  int32_t* accepted;         // [sequences]: nodes of the accepted path
  int32_t* path;             // [rows]: their numbers in the draft, then -1
  int32_t* tokens;           // [rows]: their tokens and the target's, then -1
  float* log_probabilities;  // [rows] of those tokens, NULL: none
  ts_node_state* states;     // [rows] of each row's node, NULL: none
} ts_accept_args;
#define TS_ACCEPT_ARGS                                                                      \
  {                                                                                         \
    .struct_size = sizeof(ts_accept_args), .rule = TS_ACCEPT_TARGET_ONLY, .temperature = 1, \
    .top_p = 1, .repetition_penalty = 1                                                     \
  }

// TS_CORRUPT_DATA where the logits of a row that a path reaches are NaN. A sequence whose path
// reaches a row with every token masked has one token less than accepted + 1.
TOUCHSTONE_API ts_status ts_accept(ts_context* context, const ts_accept_args* args);

#ifdef __cplusplus
}
#endif
