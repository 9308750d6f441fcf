// Models from one container to the other, or to another weight format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "touchstone/core/export.h"
#include "touchstone/core/ternary.h"
#include "touchstone/core/weight_format.h"
#include "touchstone/io/write_tensors.h"

namespace touchstone::inline v0::io {

struct ConvertOptions {
  // Of matrices; null: as they are. Blocks become f32 in safetensors, which has none. A row that is
  // no whole number of blocks falls back to q8_0, then to f16.
  // Ternary formats fall back to nothing: what they cannot hold is refused by name.
  const WeightFormat* format = nullptr;
  // To a ternary format: how weights become ternary that are not. Without a rule such weights are
  // refused, and those that are ternary already, in groups that the format has, are kept exactly.
  std::optional<TernaryScaleRule> project = {};
  std::uint64_t max_shard_bytes = 0;  // safetensors: 0 = one file
  WriteProgress progress = {};
};

struct ConvertReport {
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;         // of the tensors written
  std::vector<std::string> notes;  // what was not carried over as it is, one line each
};

// `out` ends in .gguf: a GGUF file, which replaces one that is there. Else a folder in the layout
// of Hugging Face: config.json, generation_config.json, model.safetensors (or its shards and
// index), and what there is of the tokenizer; it must not exist or be empty. Rows of q and k are
// put into the order of the container. Weights whose format and container allow it keep their
// bytes: there and back is the same tensor. Unsupported, with the names, where the container has no
// key for what the description says, so that what is written would read as another model.
//
// A file of tensors that is no model (no config.json, no general.architecture) keeps its names and
// goes to a file *.safetensors or *.gguf.
//
// The vocabulary: GGUF to GGUF as it is; tokenizer.json goes into GGUF whole (key
// tokenizer.huggingface.json) and comes out of it; a vocabulary that only GGUF has goes to a folder
// as tokenizer.gguf, a GGUF file without tensors.
TOUCHSTONE_API ConvertReport convert_model(const std::filesystem::path& in,
                                           const std::filesystem::path& out,
                                           const ConvertOptions& options = {});

}  // namespace touchstone::inline v0::io
