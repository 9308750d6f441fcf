// `touchstone generate --corpus`: a corpus sampled from a model.
//
// Document i is the answer to a prompt that random numbers of (seed, i) pick, sampled with a seed
// of its own: it depends on the settings and i alone, not on the batch, on what was there already
// or on when a run stopped. A folder holds
//   manifest.json       the settings, written first
//   shard-00000.txt     texts of --shard-documents documents, each ended by a line of train::kEndOfText
//   shard-00000.jsonl   one line per document: its place in the text, prompt, seed, tokens, finish
// Shards appear complete or not at all; a later run makes those that are missing, and those that
// more --documents make longer.
#pragma once

#include <cstdint>
#include <string>

#include "cli/decoding/generate.h"
#include "cli/decoding/open_model.h"

namespace touchstone::cli {

// The prompt of a document: one of a few hundred thousand, or a line of `lines`.
std::string corpus_prompt(std::int64_t seed, std::int64_t document,
                          const std::vector<std::string>& lines);

// The exit code.
int sample_corpus(const GenerateOptions& o);

}  // namespace touchstone::cli
