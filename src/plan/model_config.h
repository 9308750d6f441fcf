// A model from the config.json that Hugging Face repositories carry.
#pragma once

#include <string>
#include <string_view>

#include "plan/config_reader.h"
#include "touchstone/plan/planner.h"

namespace touchstone::inline v0::plan {

// `name` is that of the file, for messages. Understands GPT-2, and the Llama family of keys with
// grouped heads, MLA, sliding windows, layer lists and linear layers; of a model with several parts
// the text part. CorruptData names the file and the key.
ModelSpec parse_model_config(const std::string& name, std::string_view json);

// The same from a file, or from config.json in a folder. CorruptData when it cannot be read.
ModelSpec read_model_config(const std::string& path);

struct ParameterCount {
  std::int64_t total = 0;
  std::int64_t experts = 0;    // those of routed experts
  std::int64_t embedding = 0;  // embeddings, output head and norms
  std::int64_t active = 0;     // those one token passes through
  bool known = false;          // the family is; otherwise its blocks are taken for Llama's
  bool exact = false;          // every shape is known
};

// `tied`: the embedding is used again as the last matrix. `config` is the text part.
ParameterCount count_parameters(const ConfigReader& config, const ModelSpec& model, bool tied);

// The format of a quantization_config (awq, gptq, fp8, bitsandbytes, compressed-tensors, mxfp4,
// nvfp4 of modelopt), and how many parameters it leaves in 16 bits. CorruptData for another method.
void read_quantization(const ConfigReader& config, const Json& quantization,
                       const ParameterCount& count, ModelSpec& model);

}  // namespace touchstone::inline v0::plan
