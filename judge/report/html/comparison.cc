// What compares: strengths and weaknesses, evidence, head to head, the best of each, authors.
#include <fmt/format.h>

#include <algorithm>

#include "judge/report/evidence.h"
#include "judge/report/html/html_report.h"
#include "judge/report/text_format.h"
#include "report/html.h"

namespace touchstone::judge {
namespace {

std::string remark_items(const char* tone, const char* title, const std::vector<Remark>& list) {
  if (list.empty()) return {};
  std::string items;
  for (const Remark& remark : list) {
    items += fmt::format("<li>{}</li>\n", report::escaped(remark_text(remark)));
  }
  return fmt::format("<div><h4>{}</h4><ul class=\"remarks {}\">{}</ul></div>\n", title, tone,
                     items);
}

std::string edge_class(Edge edge) {
  if (edge == Edge::first) return " class=\"edge-first\"";
  if (edge == Edge::second) return " class=\"edge-second\"";
  return "";
}

// A line for each of the two.
std::string evidence_lines(std::string_view evidence) {
  std::string html = report::escaped(evidence.substr(0, evidence.find('\n')));
  const std::size_t at = evidence.find('\n');
  if (at != std::string_view::npos) html += "<br>" + report::escaped(evidence.substr(at + 1));
  return html;
}

std::string criteria(const Duel& d, const std::vector<Criterion>& list, const char* title) {
  std::string rows;
  for (const Criterion& c : list) {
    rows += fmt::format(
        "<tr{}><td>{}</td><td>{}</td><td>{}</td><td class=\"evidence soft\">{}</td></tr>\n",
        edge_class(c.edge), report::escaped(c.name), report::escaped(c.first),
        report::escaped(c.second), evidence_lines(c.evidence));
  }
  if (rows.empty()) return rows;
  return fmt::format(
      "<table class=\"duel\"><thead><tr><th>{}</th><th>{}</th><th>{}</th><th>evidence</th></tr>"
      "</thead><tbody>{}</tbody></table>\n",
      title, report::escaped(d.first), report::escaped(d.second), rows);
}

std::string claim_badge(const std::string& state) {
  const char* tone = state == "held" ? "good" : state == "broken" ? "bad" : "odd";
  return fmt::format("<span class=\"badge {}\">{}</span>", tone, report::escaped(state));
}

std::string hybrid_table(const Hybrid& best) {
  std::string rows;
  for (const HybridPart& part : best.parts) {
    rows += fmt::format(
        "<tr><td>{}</td><td>{}</td><td class=\"num\">{:.0f}{}</td><td class=\"soft\">{}</td>"
        "</tr>\n",
        dimension_title(part.dimension),
        part.from.empty() ? "<span class=\"soft\">all level</span>" : report::escaped(part.from),
        part.score, part.counted ? "" : " <span class=\"soft small\">not counted</span>",
        report::escaped(part.because));
  }
  return fmt::format(
      "<table><thead><tr><th>criterion</th><th>from</th><th class=\"num\">score</th>"
      "<th>what it does there</th></tr></thead><tbody>{}</tbody></table>\n",
      rows);
}

}  // namespace

std::string html_remarks(const Remarks& said) {
  const std::string both = remark_items("good", "Strengths", said.strengths) +
                           remark_items("bad", "Weaknesses", said.weaknesses);
  return both.empty() ? both : "<div class=\"pair\">" + both + "</div>\n";
}

std::string html_evidence(const Record& record) {
  std::string html;
  for (const EvidenceSheet& sheet : evidence_sheets(record)) {
    const bool claims = sheet.title == "Claims";
    std::string rows;
    for (const EvidenceRow& row : sheet.rows) {
      if (is_timed_shape(row)) continue;  // these have a table of their own
      rows += fmt::format(
          "<tr><td>{}</td><td>{}</td><td class=\"soft\">{}</td></tr>\n", report::escaped(row.name),
          claims ? claim_badge(row.value) : report::escaped(row.value), report::escaped(row.note));
    }
    if (rows.empty()) continue;
    html += fmt::format("<h4>{}</h4>\n<table class=\"evidence-table\"><tbody>{}</tbody></table>\n",
                        report::escaped(sheet.title), rows);
  }
  return html;
}

std::string html_hybrid(const std::vector<Record>& records) {
  const std::optional<Hybrid> best = hybrid(records);
  if (!best.has_value()) return {};
  return fmt::format(
      "<details class=\"hybrid\"><summary><b>The best of each</b> <span class=\"why\">{}</span>"
      "</summary><div class=\"inside\">{}</div></details>\n",
      report::escaped(hybrid_text(*best)), hybrid_table(*best));
}

std::string html_duel(const Duel& d, bool open) {
  std::string html = fmt::format(
      "<details{}><summary><b>{} <span class=\"soft\">against</span> {}</b> <span "
      "class=\"why\">{}</span></summary><div class=\"inside\">\n",
      open ? " open" : "", report::escaped(d.first), report::escaped(d.second),
      report::escaped(d.conclusion));
  if (!d.dimensions.empty()) {
    html += fmt::format("<p>{}</p>\n", report::escaped(score_line(d)));
  }
  for (const auto& [name, said] :
       {std::pair(&d.first, &d.first_remarks), std::pair(&d.second, &d.second_remarks)}) {
    const std::string list = html_remarks(*said);
    if (!list.empty()) html += fmt::format("<h4>{}</h4>\n{}", report::escaped(*name), list);
  }
  html += criteria(d, d.dimensions, "criterion") + criteria(d, d.details, "behind it") +
          criteria(d, d.facts, "listed, not scored");
  if (d.hybrid.has_value()) {
    html += fmt::format("<p>{}</p>\n", report::escaped(hybrid_text(*d.hybrid)));
  }
  return html + "</div></details>\n";
}

std::string html_authors(const std::vector<AuthorPage>& pages) {
  if (pages.empty()) return {};
  std::string html =
      "<h2 id=\"authors\">Authors</h2>\n<p class=\"soft\">Each over all tasks, and what comes "
      "again.</p>\n";
  for (const AuthorPage& page : pages) {
    html += fmt::format("<h3>{} <span class=\"soft small\">{}</span></h3>\n",
                        report::escaped(page.author), author_text(page));
    std::string rows;
    for (const AuthorTask& task : page.tasks) {
      rows += fmt::format(
          "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td>"
          "</tr>\n",
          report::escaped(task.task), report::escaped(task.contender), verdict_badge(task.verdict),
          task.overall.has_value() ? fmt::format("{:.0f}", *task.overall) : "&ndash;",
          task.rank > 0 ? fmt::format("{} of {}", task.rank, task.of) : "&ndash;");
    }
    html += fmt::format(
        "<table><thead><tr><th>task</th><th>contender</th><th>verdict</th><th class=\"num\">overall"
        "</th><th class=\"num\">rank</th></tr></thead><tbody>{}</tbody></table>\n",
        rows);
    std::string items;
    for (const std::string& pattern : page.patterns) {
      items += fmt::format("<li>{}</li>\n", report::escaped(pattern));
    }
    if (!items.empty()) html += fmt::format("<ul class=\"remarks\">{}</ul>\n", items);
  }
  return html;
}

}  // namespace touchstone::judge
