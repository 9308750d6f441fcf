// What ts_grammar_state is.
#pragma once

#include "touchstone/decode/grammar.h"

struct ts_grammar_state {
  touchstone::decode::GrammarConstraint value;
};
