// Records made by hand, for tests of scores, boards and pages.
#pragma once

#include <string>

#include "judge/report/record.h"

namespace touchstone::judge {

// A record of a contender that passes everything: four cases in three families, one relation, three
// probes, two timed shapes against the peer "naive", a ladder of memory.
Record sample_record(const std::string& contender, const std::string& task = "layer_norm_backward");

// Makes case `index` fail with a witness.
void fail_case(Record& record, std::size_t index, const std::string& reason);

}  // namespace touchstone::judge
