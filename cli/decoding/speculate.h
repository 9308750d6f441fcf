// --speculate: the sources of drafts that generate is told, and what is said about them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cli/decoding/generate.h"
#include "touchstone/decode/speculation.h"
#include "touchstone/model/model.h"

namespace touchstone::cli {

// Outlives the scheduler that uses it.
class Speculation {
 public:
  // Of --speculate LIST: ngram, lookup, suffix, draft=PATH, dflash=PATH, by commas. Nothing for an
  // empty list. InvalidArgument for another name, or a draft model with another vocabulary. The model,
  // made with the options `target`, outlives it.
  Speculation(const GenerateOptions& o, const OpenedModel& opened, Context& context,
              model::Model& model, const model::ModelOptions& target);

  const decode::SpeculationOptions& options() const { return options_; }

 private:
  std::unique_ptr<model::Model> draft_{};
  decode::SpeculationOptions options_{};
};

// Tokens per pass, acceptance by depth, speed-up, what the controller says: on standard error.
void report_speculation(const decode::SpeculationStatistics& statistics);

}  // namespace touchstone::cli
