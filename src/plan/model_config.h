// A model from the config.json that Hugging Face repositories carry.
#pragma once

#include <string>
#include <string_view>

#include "plan/config_reader.h"
#include "touchstone/cache/planner.h"

namespace touchstone::plan {

// `name` is that of the file, for messages. Understands GPT-2, and the Llama family of keys with
// grouped heads, MLA, sliding windows, layer lists and linear layers; of a model with several parts
// the text part. CorruptData names the file and the key.
cache::ModelSpec parse_model_config(const std::string& name, std::string_view json);

// The same from a file, or from config.json in a folder. CorruptData when it cannot be read.
cache::ModelSpec read_model_config(const std::string& path);

struct ParameterCount {
  std::int64_t total = 0;
  std::int64_t active = 0;  // those one token passes through
  bool exact = false;       // the family is known; otherwise its blocks are taken for Llama's
};

// `tied`: the embedding is used again as the last matrix. `config` is the text part.
ParameterCount count_parameters(const ConfigReader& config, const cache::ModelSpec& model,
                                bool tied);

}  // namespace touchstone::plan
