// The model of a verb: options that generate and score share, and what they open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "touchstone/core/context.h"
#include "touchstone/core/error.h"
#include "touchstone/io/model_file.h"
#include "touchstone/io/tokenizer.h"
#include "touchstone/model/model.h"

namespace touchstone::cli {

struct ModelChoice {
  std::string path{};
  std::string compute = "f32";
  std::string cache{};  // "" = as compute
  std::string activations = "compute";
  std::string weights = "file";
  std::string device = "cpu";
  int threads = 0;
  std::int64_t page_tokens = 16;
};

void add_model_options(Options& verb, ModelChoice& choice);

// The path itself, or where it is empty that of the model that comes with the program. InvalidArgument
// where there is none.
std::string model_path(const std::string& given);

// A model that is opened, not yet loaded.
struct OpenedModel {
  io::ModelFile file;
  io::Tokenizer tokenizer;
};

// InvalidArgument, the text of the program, when no path is given.
OpenedModel open_model(const ModelChoice& choice);
// Of the options; `cache` overrides that of the choice. int4 has groups of 32 values with a minimum
// each where heads are multiples of 32: see docs/notes/decoding.md.
model::ModelOptions model_options(const ModelChoice& choice, const std::string& cache,
                                  const io::ModelDescription& description);
Context make_context(const ModelChoice& choice);

// Text to tokens; one BOS token where it is empty. InvalidArgument names `what` where the text is not
// UTF-8, or where it is empty and the model has no BOS token.
std::vector<std::int32_t> encode_prompt(const OpenedModel& opened, const std::string& text,
                                        const std::string& what);

// Runs `body`; where it throws CorruptData and the model has a weight that is not finite, the message
// names the weight.
template <class Body>
auto with_weight_names(const model::Model& model, const Body& body) {
  try {
    return body();
  } catch (const CorruptData& error) {
    const std::string weight = model.find_nonfinite_weight();
    if (weight.empty()) throw;
    throw CorruptData(std::string(error.what()) + ": weight '" + weight +
                      "' has values that are not finite");
  }
}

}  // namespace touchstone::cli
