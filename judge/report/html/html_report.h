// The report as one HTML file: no network, no script, all text of contenders escaped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "judge/report/duel.h"
#include "judge/report/record.h"
#include "judge/report/score.h"

namespace touchstone::judge {

std::string html_report(const std::vector<Record>& records);
// A page of one head-to-head alone.
std::string html_duel_report(const Duel& duel, const std::vector<Record>& both);

// The parts of the page, one file each.
std::string html_style();                                                // style.cc
std::string html_board(const std::vector<std::vector<Record>>& tasks);   // board.cc
std::string html_matrix(const std::vector<std::vector<Record>>& tasks);  // board.cc
std::string html_plots(const std::vector<Record>& task_records);         // plots.cc
std::string html_contender(const Record& record, const Standing& standing,
                           bool open);                                     // details.cc
std::string html_remarks(const Remarks& remarks);                          // comparison.cc
std::string html_evidence(const Record& record);                           // comparison.cc
std::string html_hybrid(const std::vector<Record>& task_records);          // comparison.cc
std::string html_duel(const Duel& duel, bool open);                        // comparison.cc
std::string html_authors(const std::vector<AuthorPage>& pages);            // comparison.cc
std::string html_controls(const std::vector<std::vector<Record>>& tasks);  // details.cc

// A small bar from 0 to 100 with its interval.
std::string score_bar(const Score& score);
std::string verdict_badge(Verdict verdict);
// An anchor that is made of letters and digits only, whatever the names are.
std::string anchor(std::string_view prefix, const Record& record);
// Which color a contender has in all plots of a page.
std::size_t series_of(const std::vector<Record>& records, std::string_view contender);

}  // namespace touchstone::judge
