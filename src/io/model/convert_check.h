// Whether what a conversion writes describes the same model: a file that reads as another one is
// worse than none.
#pragma once

#include <span>
#include <string_view>

#include "touchstone/io/model_description.h"
#include "touchstone/io/write_tensors.h"

namespace touchstone::inline v0::io {

// Unsupported, with the names of what would be lost.
void check_gguf(const ModelDescription& model, const GgufMetadata& metadata,
                std::span<const OutputTensor> tensors);
void check_config(const ModelDescription& model, std::string_view config,
                  std::string_view generation);

}  // namespace touchstone::inline v0::io
