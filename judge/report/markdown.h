// The whole report as Markdown that can live in a repository. All text of contenders is escaped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "judge/report/duel.h"
#include "judge/report/record.h"

namespace touchstone::judge {

std::string markdown_report(const std::vector<Record>& records);
std::string markdown_duel_report(const Duel& duel, const std::vector<Record>& both);

// Text that is text, in a table cell too: nothing in it is markup, and it is one line.
std::string markdown_escaped(std::string_view text);

}  // namespace touchstone::judge
