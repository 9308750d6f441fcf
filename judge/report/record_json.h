// Records as JSON values. Only record.cc, which owns the file format, includes this.
#pragma once

#include <nlohmann/json.hpp>

#include "judge/report/record.h"

namespace touchstone::judge {

using Json = nlohmann::ordered_json;

Json record_to_json(const Record& record);
// Throws Json::exception, InvalidArgument or CorruptData for what is not a record.
Record json_to_record(const Json& json);

}  // namespace touchstone::judge
