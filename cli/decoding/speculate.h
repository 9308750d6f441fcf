// Options of `touchstone generate --speculate`: draft sources, the trace and the report.
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
  // Of --speculate LIST: ngram, lookup, suffix, suffix=FILE, draft=PATH, dflash=PATH, by commas.
  // Nothing for an empty list. InvalidArgument for another name, or a draft model with another
  // vocabulary. The model, made with the options `target`, outlives it.
  Speculation(const GenerateOptions& o, const OpenedModel& opened, Context& context,
              model::Model& model, const model::ModelOptions& target);

  const decode::SpeculationOptions& options() const { return options_; }

 private:
  std::unique_ptr<model::Model> draft_{};
  decode::SpeculationOptions options_{};
};

// Tokens per pass, acceptance by depth, speed-up, the controller's state: on standard error.
void report_speculation(const decode::SpeculationStatistics& statistics);

}  // namespace touchstone::cli
