// What `touchstone train --dflash` trains: the shape of a block draft for a target.
#pragma once

#include "cli/training/settings.h"
#include "touchstone/model/model.h"
#include "touchstone/train/data.h"
#include "touchstone/train/trainer.h"

namespace touchstone::cli {

// What no setting gives is the target's; the mask token the rarest of the text.
train::DraftTraining draft_training(const TrainSettings& settings, model::Model& target,
                                    const train::TokenData& text, const std::string& out);

}  // namespace touchstone::cli
