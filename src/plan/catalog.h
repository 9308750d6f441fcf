// The tables of models and GPUs in data/, compiled into the program, and how names are found.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "touchstone/cache/planner.h"

namespace touchstone::plan {

// The text of data/<name>.txt; empty when there is no such table.
std::string_view text(std::string_view name);

struct ModelEntry {
  std::vector<std::string> names;
  cache::ModelSpec spec;
};

struct GpuEntry {
  std::vector<std::string> names;
  cache::GpuSpec spec;
};

// The columns are described at the head of each table. CorruptData names the table and the line.
std::vector<ModelEntry> parse_models(std::string_view text);
std::vector<GpuEntry> parse_gpus(std::string_view text);

const std::vector<ModelEntry>& models();
const std::vector<GpuEntry>& gpus();

// By any of its names, without regard to case and punctuation; a beginning will do where only one
// name begins so. For models an owner in front ("Qwen/Qwen3-8B") is ignored. InvalidArgument lists
// the nearest names.
const cache::ModelSpec& find_model(std::string_view name);
const cache::GpuSpec& find_gpu(std::string_view name);

}  // namespace touchstone::plan
