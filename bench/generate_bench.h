// How fast a model reads prompts and writes tokens, through the scheduler: sampling, cache and, where
// there is a tokenizer, text included.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/decode/request.h"
#include "touchstone/io/tokenizer.h"
#include "touchstone/model/model.h"

namespace touchstone::bench {

struct GenerateCase {
  std::int64_t batch = 1;     // requests side by side
  std::int64_t context = 0;   // tokens of each prompt, random, no two alike
  std::int64_t tokens = 64;   // decode steps that are timed
  std::int64_t max_rows = 0;  // of a step, as the model has it
  decode::SamplingControls sampling{};
};

struct GenerateRow {
  GenerateCase item{};
  // Until every request has its first token.
  double prefill_seconds = 0;
  std::int64_t prefill_tokens = 0;
  double prefill_flops = 0;  // of matrices and attention
  // Steps of one token for each request.
  std::int64_t steps = 0;
  double decode_seconds = 0;  // of all of them
  double step_us = 0;         // median
  // What a step reads: every matrix once and the cache, at the rate of reads.
  std::int64_t weight_bytes = 0;
  std::int64_t cache_bytes = 0;
  double read_gbs = 0;
  double floor_us = 0;

  double prefill_rate() const;  // tokens per second
  double decode_rate() const;
  double share() const { return floor_us / step_us; }
};

// The model has pages for `batch` sequences of context + tokens + 2 tokens and shares prefixes: prompts
// are read once, timed, and then continued from their pages. read_gbs measures the rate of reads: it
// is called before and after the decode steps.
GenerateRow measure_generate(Context& context, model::Model& model, const io::Tokenizer* tokenizer,
                             const GenerateCase& item, const std::function<double()>& read_gbs);

struct GenerateProfile {
  std::vector<model::StepPart> parts{};  // the last is the whole step
  double score_us = 0;                   // Model::score and waiting for it: with the host's work
};

// A decode step of this case, after measure_generate of it.
GenerateProfile profile_generate(Context& context, model::Model& model, const GenerateCase& item);

// Model::score of a tree of nodes for each sequence, all of whose logits are wanted, in turns with that of
// one row for each: what verifying a draft costs beside a plain step.
struct TreePass {
  std::int64_t nodes = 0;  // of each sequence
  double pass_us = 0;
  double step_us = 0;
  double ratio() const { return pass_us / step_us; }
};
TreePass measure_tree_pass(Context& context, model::Model& model, const GenerateCase& item,
                           std::int64_t nodes);

// Bytes of keys and values of one token in all layers.
std::int64_t cache_bytes_per_token(const model::Model& model);

// Flops per second of cuBLASLt's bf16 product of two matrices of 8192 x 8192.
double cublaslt_rate(Device device);

}  // namespace touchstone::bench
