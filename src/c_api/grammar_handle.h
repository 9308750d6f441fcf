// The object behind ts_grammar_state.
#pragma once

#include "touchstone/decode/grammar.h"

struct ts_grammar_state {
  touchstone::decode::GrammarConstraint value;
};
