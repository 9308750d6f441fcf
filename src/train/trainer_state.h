// Shared by the parts of Trainer: steps (trainer.cc), files (checkpoint.cc, model_output.cc).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"
#include "touchstone/train/trainer.h"
#include "train/decoder_trainee.h"
#include "train/draft/draft_trainee.h"
#include "train/trainee.h"

namespace touchstone::inline v0::train {

// Removes temporary files of killed processes beside this one.
void remove_unfinished(const std::filesystem::path& path);

struct Trainer::State {
  State(Context& context_, const TrainingOptions& options_, std::unique_ptr<Trainee> made,
        const TokenData& training_, const TokenData& validation_);

  Context& context;
  TrainingOptions options;
  std::unique_ptr<Trainee> trainee;
  DecoderTrainee* text = nullptr;  // the trainee, where it is that
  DraftTrainee* draft = nullptr;   // likewise
  const TokenData& training;
  const TokenData& validation;
  std::int64_t passes;  // of a step
  Tensor losses;        // [passes]
  Tensor norm;          // [1] f64

  std::int64_t done = 0;
  std::vector<StepReport> history;
  std::vector<EvaluationReport> evaluations;
  std::vector<std::int8_t> codes;  // ternary codes at the last evaluation
  std::vector<std::int8_t> alive;  // 1: not 0 at some evaluation

  // AdamW with the gradients and their norm.
  void update(std::int64_t step);
  std::vector<float> compute_values(const MatrixBlock& block);
  void count_codes(EvaluationReport& report);
  std::map<std::string, std::string> decisions() const;
};

}  // namespace touchstone::inline v0::train
