// The report as one HTML file: no network, no script, all text of contenders escaped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "judge/report/duel.h"
#include "judge/report/record.h"
#include "judge/report/score.h"

namespace touchstone::judge {

std::string page_html(const std::vector<Record>& records);
// A page of one head-to-head alone.
std::string duel_html(const Duel& duel, const std::vector<Record>& both);

// Text that is safe as content and as an attribute's value.
std::string html_escaped(std::string_view text);

// The parts of the page, one file each.
std::string page_style();                                                    // page_style.cc
std::string page_board(const std::vector<std::vector<Record>>& tasks);       // page_board.cc
std::string page_matrix(const std::vector<std::vector<Record>>& tasks);      // page_board.cc
std::string page_plots(const std::vector<Record>& task_records);             // page_plots.cc
std::string page_contender(const Record& record, const Standing& standing);  // page_details.cc
std::string page_duel(const Duel& duel);                                     // page_details.cc
std::string page_controls(const std::vector<std::vector<Record>>& tasks);    // page_details.cc

// A small bar from 0 to 100 with its interval.
std::string score_bar(const Score& score);
std::string verdict_badge(Verdict verdict);
// An anchor that is made of letters and digits only, whatever the names are.
std::string anchor(std::string_view prefix, const Record& record);
// Which color a contender has in all plots of a page.
std::size_t series_of(const std::vector<Record>& records, std::string_view contender);

}  // namespace touchstone::judge
