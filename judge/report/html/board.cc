// The board and the matrix of grades.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "judge/report/html/html_report.h"
#include "judge/report/text_format.h"
#include "report/html.h"

namespace touchstone::judge {
namespace {

// A name that may go on in the next line after an underscore, rather than anywhere.
std::string breakable(std::string_view name) {
  std::string html = report::escaped(name);
  for (std::size_t at = 0; (at = html.find('_', at)) != std::string::npos; at += 6) {
    html.insert(at + 1, "<wbr>");
  }
  return html;
}

struct AxisRange {
  double least = 1e9;
  double most = -1e9;
};

AxisRange column(const std::vector<Record>& records, const std::string& dimension) {
  AxisRange range;
  for (const Record& record : records) {
    if (record.verdict != Verdict::pass) continue;  // only those that pass are compared
    const auto found = record.scores.find(dimension);
    if (found == record.scores.end() || !found->second.value.has_value()) continue;
    range.least = std::min(range.least, *found->second.value);
    range.most = std::max(range.most, *found->second.value);
  }
  return range;
}

std::string cell(const Record& record, const std::string& dimension, const AxisRange& range) {
  const std::string label = report::escaped(dimension_title(dimension));
  const auto found = record.scores.find(dimension);
  if (found == record.scores.end() || !found->second.value.has_value()) {
    const std::string why = found == record.scores.end() ? "" : found->second.because;
    return fmt::format("<td class=\"score untested\" data-label=\"{}\" title=\"{}\">&ndash;</td>",
                       label, report::escaped(why));
  }
  const Score& score = found->second;
  const char* mark = "";
  if (record.verdict == Verdict::pass && range.most - range.least >= kTieMargin) {
    if (*score.value >= range.most - kTieMargin / 2) mark = " best";
    if (*score.value <= range.least + kTieMargin / 2) mark = " worst";
  }
  return fmt::format("<td class=\"score{}\" data-label=\"{}\" title=\"{}\"><b>{}</b>{}</td>", mark,
                     label, report::escaped(score.because), format_score(score), score_bar(score));
}

// Dimensions in which anyone was tested.
std::vector<std::string> tested_dimensions(const std::vector<Record>& records) {
  std::vector<std::string> tested;
  for (const std::string_view dimension : dimensions()) {
    const bool any = std::ranges::any_of(records, [&](const Record& record) {
      const auto found = record.scores.find(std::string(dimension));
      return found != record.scores.end() && found->second.value.has_value();
    });
    if (any) tested.emplace_back(dimension);
  }
  return tested;
}

std::string row(const std::vector<Record>& records, const Standing& standing,
                const std::vector<std::string>& columns) {
  const Record& record = records[standing.index];
  std::string sub = record.language == "shared_library" ? "shared library" : record.language;
  if (!standing.depends_on.empty()) {
    sub += fmt::format(", {} to {}: depends on {}", standing.best, standing.worst,
                       dimension_title(standing.depends_on));
  }
  std::string html = fmt::format(
      "<tr{}><td class=\"num rank\">{}</td><td class=\"who\"><span class=\"name\"><a "
      "href=\"#{}\">{}</a></span><span class=\"sub\">{}</span></td><td class=\"verdict\">{}</td>",
      record.verdict == Verdict::pass ? "" : " class=\"out\"",
      standing.rank == 0 ? "" : fmt::format("{}", standing.rank), anchor("c", record),
      breakable(record.contender), report::escaped(sub), verdict_badge(record.verdict));
  html += cell(record, "overall", column(records, "overall"));
  for (const std::string& name : columns) html += cell(record, name, column(records, name));
  return html + "</tr>\n";
}

}  // namespace

std::string score_bar(const Score& score) {
  if (!score.value.has_value()) return {};
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 100 9\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect "
      "width=\"100\" height=\"4\" y=\"2.5\" fill=\"var(--bar-track)\"/><rect width=\"{:.1f}\" "
      "height=\"4\" y=\"2.5\" fill=\"var(--bar)\"/>",
      *score.value);
  if (score.high - score.low >= 0.5) {
    svg += fmt::format(
        "<path d=\"M{0:.1f} 4.5H{1:.1f}\" stroke=\"var(--whisker)\" stroke-width=\"1\"/>"
        "<path d=\"M{0:.1f} 2V7M{1:.1f} 2V7\" stroke=\"var(--whisker)\" stroke-width=\"1\" "
        "vector-effect=\"non-scaling-stroke\"/>",
        score.low, score.high);
  }
  return svg + "</svg>";
}

std::string html_board(const std::vector<std::vector<Record>>& tasks) {
  std::string html = "<h2 id=\"board\">Board</h2>\n";
  for (const std::vector<Record>& records : tasks) {
    const Record& first = records.front();
    const std::string noise = format_noise(records);
    html += fmt::format("<h3>{} <span class=\"soft small\">version {}{}{}{}</span></h3>\n",
                        report::escaped(first.task), first.task_version,
                        first.small ? ", short form" : "", noise.empty() ? "" : ", ", noise);
    const std::vector<std::string> columns = tested_dimensions(records);
    html +=
        "<table class=\"board\"><colgroup><col class=\"rank\"><col class=\"who\">"
        "<col class=\"verdict\"></colgroup><thead><tr><th class=\"num\">#</th>"
        "<th>contender</th><th>verdict</th><th>overall</th>";
    for (const std::string& dimension : columns) {
      html += fmt::format("<th title=\"{}\">{}</th>", dimension_title(dimension),
                          dimension_short(dimension));
    }
    html += "</tr></thead><tbody>\n";
    for (const Standing& standing : rank(records)) html += row(records, standing, columns);
    html += "</tbody></table>\n";
    html += html_hybrid(records);
    html += html_plots(records);
  }
  return html;
}

std::string html_matrix(const std::vector<std::vector<Record>>& tasks) {
  std::vector<std::string> names;
  for (const std::vector<Record>& records : tasks) {
    for (const Standing& standing : rank(records)) {
      const std::string& name = records[standing.index].contender;
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  // Those that took part in most come first.
  std::ranges::stable_sort(names, std::greater<>(), [&](const std::string& name) {
    return std::ranges::count_if(tasks, [&](const std::vector<Record>& records) {
      return std::ranges::find(records, name, &Record::contender) != records.end();
    });
  });
  std::string html =
      "<h2 id=\"matrix\">Grades</h2>\n<p class=\"soft\">All contenders over all tasks: overall "
      "score "
      "and verdict.</p>\n<div class=\"scroll\"><table class=\"matrix\"><thead><tr><th></th>";
  for (const std::vector<Record>& records : tasks) {
    html += fmt::format("<th>{}</th>", report::escaped(records.front().task));
  }
  html += "</tr></thead><tbody>\n";
  for (const std::string& name : names) {
    html += fmt::format("<tr><td>{}</td>", report::escaped(name));
    for (const std::vector<Record>& records : tasks) {
      const auto record = std::ranges::find(records, name, &Record::contender);
      if (record == records.end()) {
        html += "<td class=\"soft\"></td>";
        continue;
      }
      const auto overall = record->scores.find("overall");
      const bool graded = overall != record->scores.end() && overall->second.value.has_value();
      html +=
          fmt::format("<td><span class=\"big\">{}</span>{}</td>",
                      graded ? format_score(overall->second) : "", verdict_badge(record->verdict));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

}  // namespace touchstone::judge
