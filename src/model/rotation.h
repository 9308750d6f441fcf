// The rotation of a model's positions: the frequencies and the scale of rope().
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "touchstone/core/tensor.h"
#include "touchstone/io/model_description.h"

namespace touchstone::inline v0::model {

struct Rotation {
  Tensor frequencies{};  // [dims / 2] f64, on the device; empty: nothing is rotated
  double scale = 1;
};

// The longest sequence a model can run: where its rotation changes with the length (dynamic NTK) that
// is the length of training, so that a token's bits never depend on what follows it.
std::int64_t longest_sequence(const io::ModelDescription& description);

// For sequences of at most `max_length` tokens. InvalidArgument for factors that do not fit.
Rotation make_rotation(const io::RopeDescription& rope, std::int64_t max_length, Device device);

}  // namespace touchstone::inline v0::model
