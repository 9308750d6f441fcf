// Pre-tokenizers by the names of `tokenizer.ggml.pre`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/parts.h"

namespace touchstone::inline v0::io {

extern const std::string_view kTekkenPattern;
extern const std::string_view kGpt4oPattern;

struct NamedPreTokenizer {
  std::vector<PreTokenizer> steps;
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;
};

// Unsupported for a name that is not known.
NamedPreTokenizer named_pre_tokenizer(const std::string& name);

}  // namespace touchstone::inline v0::io
