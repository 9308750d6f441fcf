// Descriptions written back: as keys of GGUF, as config.json and generation_config.json.
#pragma once

#include <string>

#include "touchstone/io/model_description.h"
#include "touchstone/io/write_tensors.h"

namespace touchstone::inline v0::io {

// general.architecture and the keys of the architecture; no vocabulary. Unsupported where GGUF has
// no key for what the description says.
GgufMetadata gguf_metadata(const ModelDescription& description);

// torch_dtype: "bfloat16", ... Unsupported where config.json has no key for what the description
// says.
std::string config_json(const ModelDescription& description, std::string_view torch_dtype);
std::string generation_json(const ModelDescription& description);

}  // namespace touchstone::inline v0::io
