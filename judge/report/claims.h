// What a contender says of itself, held against what was measured. A pure function of a record.
#pragma once

#include <span>
#include <string_view>

#include "judge/report/record.h"

namespace touchstone::judge {

// The measures that the patterns of a card may name.
std::span<const std::string_view> claim_measures();

// Fills state and reason of every claim.
void check_claims(Record& record);

}  // namespace touchstone::judge
