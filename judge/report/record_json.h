// Records as JSON values. Only record.cc, which owns the file format, includes this.
#pragma once

#include "json/json.h"
#include "judge/report/record.h"

namespace touchstone::judge {

Json record_to_json(const Record& record);
// Throws Json::exception, InvalidArgument or CorruptData for what is not a record.
Record json_to_record(const Json& json);

}  // namespace touchstone::judge
