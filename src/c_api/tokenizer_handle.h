// The object behind ts_tokenizer.
#pragma once

#include "touchstone/io/tokenizer.h"

struct ts_tokenizer {
  touchstone::io::Tokenizer tokenizer;
};
