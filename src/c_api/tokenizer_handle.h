// What ts_tokenizer is.
#pragma once

#include "touchstone/io/tokenizer.h"

struct ts_tokenizer {
  touchstone::io::Tokenizer tokenizer;
};
