// The tables of models and GPUs as text, and their parsers.
#pragma once

#include <string_view>
#include <vector>

#include "touchstone/plan/catalog.h"

namespace touchstone::inline v0::plan {

// The text of data/<name>.txt; empty when there is no such table.
std::string_view text(std::string_view name);

// The columns are described at the head of each table. CorruptData names the table and the line.
std::vector<ModelEntry> parse_models(std::string_view text);
std::vector<GpuEntry> parse_gpus(std::string_view text);

}  // namespace touchstone::inline v0::plan
