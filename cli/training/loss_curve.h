// The losses of a run as a table and as a picture.
#pragma once

#include <string>
#include <vector>

#include "touchstone/train/trainer.h"

namespace touchstone::cli {

// step,loss,norm,learning_rate,validation_loss; the last is empty where there was no evaluation.
std::string loss_csv(const std::vector<train::StepReport>& steps,
                     const std::vector<train::EvaluationReport>& evaluations);
// A document of its own: training loss smoothed over 1/200 of the run, validation loss as dots.
std::string loss_svg(const std::string& title, const std::vector<train::StepReport>& steps,
                     const std::vector<train::EvaluationReport>& evaluations);

}  // namespace touchstone::cli
