// Names of models in checkpoints: a run that is resumed must have the models that it began with.
#pragma once

#include <string>

#include "touchstone/decode/scorer.h"
#include "touchstone/io/model_description.h"

namespace touchstone::inline v0::train {

// Everything of a description that decides the bits of a forward or backward pass.
std::string architecture_text(const io::ModelDescription& description);

// A model::Model by a checksum of its weights and by the options that decide its bits; another
// scorer, whose weights are out of reach, by its shape.
std::string identity_text(const decode::Scorer& scorer);

}  // namespace touchstone::inline v0::train
