// Records as JSON values. Only record.cc, which owns the file format, includes this.
#pragma once

#include "json/json.h"
#include "judge/report/record.h"

namespace touchstone::judge {

Json record_to_json(const Record& record);
// Throws Json::exception, InvalidArgument or CorruptData for what is not a record.
// `path` is where the record is found in its file, "records[3]": errors begin with it.
Record json_to_record(const Json& json, const std::string& path);

}  // namespace touchstone::judge
