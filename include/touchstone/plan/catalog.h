// The models and GPUs that the planner knows by name: the tables data/models.txt and data/gpus.txt,
// compiled into the library. Each entry names its source.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "touchstone/core/export.h"
#include "touchstone/plan/planner.h"

namespace touchstone::inline v0::plan {

struct ModelEntry {
  std::vector<std::string> names;  // the first is that of the spec
  ModelSpec spec;
};

struct GpuEntry {
  std::vector<std::string> names;
  GpuSpec spec;
};

TOUCHSTONE_API const std::vector<ModelEntry>& models();
TOUCHSTONE_API const std::vector<GpuEntry>& gpus();

// By any of its names, without regard to case and punctuation; a beginning will do where only one
// name begins so. For models an owner in front ("Qwen/Qwen3-8B") is ignored. InvalidArgument lists
// the nearest names.
TOUCHSTONE_API const ModelSpec& find_model(std::string_view name);
TOUCHSTONE_API const GpuSpec& find_gpu(std::string_view name);

}  // namespace touchstone::inline v0::plan
