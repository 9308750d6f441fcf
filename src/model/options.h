// The options of a model, checked.
#pragma once

#include <cstdint>
#include <string>

#include "touchstone/io/model_description.h"
#include "touchstone/model/model.h"

namespace touchstone::inline v0::model {

// InvalidArgument, `model: option: expected .., got ..`, unless it holds.
void require(bool holds, const char* option, const std::string& expected, std::int64_t got);

// With max_length filled in. InvalidArgument names the option that does not fit the description.
ModelOptions checked_options(ModelOptions options, const io::ModelDescription& description);

}  // namespace touchstone::inline v0::model
