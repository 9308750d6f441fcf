#include "judge/report/board.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "judge/report/evidence.h"
#include "judge/report/remarks.h"
#include "judge/report/score.h"
#include "judge/report/summary.h"
#include "judge/report/text_format.h"

namespace touchstone::judge {
namespace {

struct Cell {
  std::string text;
  const char* code = "";  // of the color
};

constexpr const char* kGood = "32";
constexpr const char* kBad = "31";
constexpr const char* kDim = "2";
constexpr const char* kOdd = "33";

std::string painted(const std::string& text, const char* code, bool color) {
  if (!color || *code == '\0') return text;
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

std::string shortened(std::string_view text, std::size_t most) {
  std::string result = printable(text);
  if (result.size() > most) result = result.substr(0, most - 3) + "...";
  return result;
}

// Least and most of one column, among those that pass: only they are compared.
struct Range {
  std::optional<double> least, most;
};

Range column_range(const std::vector<Record>& records, const std::string& dimension) {
  Range range;
  for (const Record& record : records) {
    const auto found = record.scores.find(dimension);
    if (record.verdict != Verdict::pass) continue;
    if (found == record.scores.end() || !found->second.value.has_value()) continue;
    const double value = *found->second.value;
    range.least = std::min(value, range.least.value_or(value));
    range.most = std::max(value, range.most.value_or(value));
  }
  return range;
}

const char* verdict_code(Verdict verdict) {
  if (verdict == Verdict::pass) return kGood;
  if (verdict == Verdict::partial) return kOdd;
  return verdict == Verdict::untested || verdict == Verdict::judge_error ? kDim : kBad;
}

Cell score_cell(const Record& record, const std::string& dimension, const Range& range) {
  const auto found = record.scores.find(dimension);
  if (found == record.scores.end() || !found->second.value.has_value()) return {"- ", kDim};
  const double value = *found->second.value;
  if (record.verdict != Verdict::pass) return {format_score(found->second) + " ", kDim};
  // Where all are alike nothing is best.
  if (range.most.value_or(0) - range.least.value_or(0) < kTieMargin) {
    return {format_score(found->second) + " ", ""};
  }
  if (value >= *range.most - kTieMargin / 2) return {format_score(found->second) + "+", kGood};
  if (value <= *range.least + kTieMargin / 2) return {format_score(found->second) + "-", kBad};
  return {format_score(found->second) + " ", ""};
}

std::string table(const std::vector<std::vector<Cell>>& rows, bool color) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], row[i].text.size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      // Names and verdicts to the left, numbers to the right.
      const std::string cell = i == 1 || i == 2 ? fmt::format("{:<{}}", row[i].text, widths[i])
                                                : fmt::format("{:>{}}", row[i].text, widths[i]);
      if (i > 0) line += i > 3 ? " " : "  ";
      line += painted(cell, row[i].code, color);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::vector<Cell> heading(const std::vector<std::size_t>& columns) {
  std::vector<Cell> cells = {
      {"#", kDim}, {"contender", kDim}, {"verdict", kDim}, {"overall ", kDim}};
  for (const std::size_t i : columns) {
    cells.push_back({dimension_short(dimensions()[i]) + " ", kDim});
  }
  return cells;
}

// Dimensions in which anyone was tested.
std::vector<std::size_t> tested_columns(const std::vector<Record>& records) {
  std::vector<std::size_t> columns;
  for (std::size_t i = 0; i < dimensions().size(); ++i) {
    const std::string dimension(dimensions()[i]);
    const bool tested = std::ranges::any_of(records, [&](const Record& record) {
      const auto found = record.scores.find(dimension);
      return found != record.scores.end() && found->second.value.has_value();
    });
    if (tested) columns.push_back(i);
  }
  return columns;
}

std::string task_line(const std::vector<Record>& records) {
  const Record& first = records.front();
  std::string line = fmt::format("{} v{}", first.task, first.task_version);
  if (first.small) line += ", short form";
  if (const std::string noise = format_noise(records); !noise.empty()) line += ", " + noise;
  return line + ", " + format_sandbox(first.sandbox);
}

// At most 12 lines: why, strengths and weaknesses, the first failures and how to see them.
std::string details(const Record& record, const Standing& standing, bool color) {
  std::vector<std::string> lines;
  const auto overall = record.scores.find("overall");
  const bool graded = overall != record.scores.end() && overall->second.value.has_value();
  lines.push_back(fmt::format(
      "{} {} {}{}", shortened(record.contender, 40),
      painted(std::string(name_of(record.verdict)), verdict_code(record.verdict), color),
      graded ? fmt::format("{} ({} to {}): ", format_score(overall->second),
                           format_points(overall->second.low), format_points(overall->second.high))
             : std::string(),
      shortened(record.verdict_because, 150)));
  Remarks said = remarks(record);
  // The line above says so already.
  std::erase_if(said.strengths, [](const Remark& r) { return r.evidence.front() == "all cases"; });
  const auto add = [&](const char* mark, const std::vector<Remark>& list, std::size_t most) {
    for (std::size_t i = 0; i < std::min(most, list.size()); ++i) {
      lines.push_back(fmt::format("  {} {}", mark, shortened(remark_text(list[i]), 150)));
    }
  };
  add("+", said.strengths, 2);
  add("-", said.weaknesses, 3);
  if (!standing.depends_on.empty()) {
    lines.push_back(
        fmt::format("  {:<10}{} in {:.0f} % of weightings, {} to {} in all: depends on {}", "rank",
                    standing.rank, 100.0 * standing.share, standing.best, standing.worst,
                    dimension_title(standing.depends_on)));
  }
  if (!record.findings.empty()) {
    const Finding& finding = record.findings.front();
    lines.push_back(fmt::format("  {:<10}{} {}{}{}", "found", finding.id, finding.case_id,
                                finding.case_id.empty() ? "" : " ", shortened(finding.text, 120)));
  }
  constexpr std::size_t kMaxShown = 2;
  std::size_t shown = 0;
  for (const FailureGroup& group : failure_groups(record)) {
    if (group.witnesses.empty() || shown++ >= kMaxShown) continue;
    const Witness& witness = *group.witnesses.front();
    lines.push_back(
        fmt::format("  {:<10}{}", group.decides ? "fails" : "points", printable(group.title())));
    lines.push_back(fmt::format("  {:<10}{} {}, {}: {}", "smallest", witness.case_id,
                                witness.smallest.family, format_shape(witness.smallest),
                                shortened(witness.reason, 120)));
    lines.push_back(fmt::format("  {:<10}{}", "replay", printable(witness.replay)));
  }
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::string author_lines(const AuthorPage& page) {
  std::string text = fmt::format("author {}: {}\n", printable(page.author), author_text(page));
  for (const AuthorTask& task : page.tasks) {
    text += fmt::format("  {:<26}{:<20}{:<13}{:>4}  {}\n", task.task, shortened(task.contender, 19),
                        name_of(task.verdict),
                        task.overall.has_value() ? fmt::format("{:.0f}", *task.overall) : "-",
                        task.rank > 0 ? fmt::format("{} of {}", task.rank, task.of) : "");
  }
  for (const std::string& pattern : page.patterns)
    text += fmt::format("  {}\n", printable(pattern));
  return text;
}

std::string task_board(const std::vector<Record>& records, bool color) {
  const std::vector<Standing> standings = rank(records);
  const std::vector<std::size_t> columns = tested_columns(records);
  std::vector<std::vector<Cell>> rows = {heading(columns)};
  for (const Standing& standing : standings) {
    const Record& record = records[standing.index];
    const std::string place =
        standing.rank == 0
            ? "-"
            : fmt::format("{}{}", standing.rank, standing.depends_on.empty() ? "" : "?");
    std::vector<Cell> row = {{place, ""},
                             {shortened(record.contender, 28), ""},
                             {std::string(name_of(record.verdict)), verdict_code(record.verdict)}};
    row.push_back(score_cell(record, "overall", column_range(records, "overall")));
    for (const std::size_t i : columns) {
      const std::string name(dimensions()[i]);
      row.push_back(score_cell(record, name, column_range(records, name)));
    }
    rows.push_back(std::move(row));
  }
  std::string text = task_line(records) + "\n\n" + table(rows, color) + "\n";
  for (const Standing& standing : standings) {
    text += details(records[standing.index], standing, color);
  }
  if (const std::optional<Hybrid> best = hybrid(records); best.has_value()) {
    text += printable(hybrid_text(*best)) + "\n";
  }
  return text;
}

}  // namespace

std::string board_text(const std::vector<Record>& records, bool color) {
  std::string text;
  for (const std::vector<Record>& group : by_task(records)) {
    if (!text.empty()) text += "\n";
    text += task_board(group, color);
  }
  for (const AuthorPage& page : author_pages(records)) text += "\n" + author_lines(page);
  return text;
}

}  // namespace touchstone::judge
