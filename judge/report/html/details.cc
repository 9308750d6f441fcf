// A section per contender, and the controls of the session.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "judge/report/evidence.h"
#include "judge/report/html/html_report.h"
#include "judge/report/text_format.h"
#include "report/html.h"

namespace touchstone::judge {
namespace {

constexpr std::size_t kMaxFailures = 8;

std::string score_with_interval(const Score& score) {
  if (score.high - score.low < 1.0) return format_score(score);
  return fmt::format("{} <span class=\"soft small\">{:.0f}&ndash;{:.0f}</span>",
                     format_score(score), score.low, score.high);
}

std::string scores_table(const Record& record) {
  std::string html =
      "<table><thead><tr><th>dimension</th><th class=\"num\">score</th><th>because"
      "</th></tr></thead><tbody>\n";
  for (const std::string_view dimension : dimensions()) {
    const auto found = record.scores.find(std::string(dimension));
    if (found == record.scores.end()) continue;
    const Score& score = found->second;
    std::string because = report::escaped(score.because);
    html += fmt::format("<tr><td>{}</td><td class=\"num\">{}</td><td>{}</td></tr>\n",
                        dimension_title(dimension),
                        score.value.has_value() ? score_with_interval(score) : "&ndash;", because);
  }
  return html + "</tbody></table>\n";
}

std::string witnesses(const Record& record) {
  std::string html;
  for (const FailureGroup& group : failure_groups(record)) {
    html += fmt::format("<h5>{}</h5>\n", report::escaped(group.title()));
    for (const Witness* witness : group.witnesses) {
      html +=
          fmt::format("<p><b>{}</b> {}, smallest: {}<br>{}</p>\n<pre>{}</pre>\n",
                      report::escaped(witness->case_id), report::escaped(witness->smallest.family),
                      report::escaped(format_shape(witness->smallest)),
                      report::escaped(witness->reason), report::escaped(witness->replay));
    }
  }
  return html.empty() ? html : "<h4>Failures by kind</h4>\n" + html;
}

std::string failures(const Record& record) {
  std::string rows;
  std::size_t count = 0;
  for (const auto* cases : {&record.cases, &record.relations}) {
    for (const CaseRecord& c : *cases) {
      if (c.check.passed || ++count > kMaxFailures) continue;
      rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", report::escaped(c.id),
                          report::escaped(c.title.empty() ? c.spec.family : c.title),
                          report::escaped(c.check.reason));
    }
  }
  if (rows.empty()) return rows;
  std::string html = "<h4>Cases that fail</h4>\n<table><tbody>" + rows + "</tbody></table>\n";
  if (count > kMaxFailures) {
    html += fmt::format("<p class=\"soft small\">and {} more in the JSON record</p>\n",
                        count - kMaxFailures);
  }
  return html;
}

std::string findings(const Record& record) {
  std::string rows;
  for (const Finding& f : record.findings) {
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{} {}</td></tr>\n", report::escaped(f.id),
                        report::escaped(find_kind(f.kind).title), report::escaped(f.text),
                        f.case_id.empty() ? "" : fmt::format("({})", report::escaped(f.case_id)));
  }
  if (rows.empty()) return rows;
  return "<h4>Findings</h4>\n<table><tbody>" + rows + "</tbody></table>\n";
}

std::string probes(const Record& record) {
  std::string rows;
  for (const ProbeRecord& p : record.probes) {
    const std::string word = report::escaped(probe_state(record, p).word);
    rows += fmt::format("<tr><td>{}{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                        report::escaped(p.probe.title),
                        p.probe.optional ? " <span class=\"soft\">optional</span>" : "",
                        report::escaped(p.probe.dimension), word,
                        report::escaped(fmt::format("{}", fmt::join(p.failed, ", "))));
  }
  if (rows.empty()) return rows;
  return "<h4>Probes</h4>\n<table><thead><tr><th>probe</th><th>counts for</th><th></th><th>fails"
         "</th></tr></thead><tbody>" +
         rows + "</tbody></table>\n";
}

// The nearer bound first: it is the one that counts.
std::string floor_words(const SpeedRecord& s) {
  if (!(s.floor_seconds > 0.0)) return "not known";
  std::string copy = format_seconds(s.copy_seconds) + " to move the bytes";
  std::string peak = format_seconds(s.compute_seconds) + " for the arithmetic";
  if (s.compute_seconds == 0.0) return copy;
  return s.roof == "peak" ? peak + ", " + copy : copy + ", " + peak;
}

std::string speeds(const Record& record) {
  std::string rows;
  for (const SpeedRecord& s : record.speeds) {
    std::string ratios;
    for (const auto& [peer, ratio] : s.ratio_to) {
      ratios += fmt::format("{}{} x {}", ratios.empty() ? "" : "; ", format_interval(ratio), peer);
    }
    rows += fmt::format(
        "<tr><td>{}</td><td>{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td>"
        "<td class=\"num\">{:.3g} MFLOP</td><td class=\"num\">{:.3g}</td>"
        "<td class=\"num\">{:.0f} %</td><td>{}</td><td>{}</td></tr>\n",
        report::escaped(s.id), report::escaped(format_shape(s.shape)),
        report::escaped(format_seconds(s.seconds.value)), format_bytes(s.bytes), 1e-6 * s.flops,
        intensity_of(s), 100.0 * s.share_of_roof, report::escaped(floor_words(s)),
        report::escaped(ratios));
  }
  if (rows.empty()) return rows;
  return "<h4>Speed</h4>\n<div class=\"scroll\"><table><thead><tr><th></th><th>shape</th>"
         "<th class=\"num\">time</th><th class=\"num\">bytes</th><th class=\"num\">operations"
         "</th><th class=\"num\">FLOP/byte</th>"
         "<th class=\"num\">of the roof</th><th>at least needed</th>"
         "<th>time over that of</th>"
         "</tr></thead><tbody>" +
         rows + "</tbody></table></div>\n";
}

std::string facts(const Record& record) {
  std::string html = "<dl>";
  const auto add = [&](std::string_view term, std::string_view text) {
    html += fmt::format("<dt>{}</dt><dd>{}</dd>", report::escaped(term), report::escaped(text));
  };
  add("path", record.path);
  if (record.binding.proposed) add("binding", "proposed by the judge from the signatures");
  for (const auto& [name, text] : record.facts) {
    if (!is_code_fact(name)) add(name, text);  // those have a table of their own
  }
  add("source", record.source_hash);
  add("seed", fmt::format("{} (committed to as {})", record.seed, record.seed_commitment));
  add("judged in", fmt::format("{:.1f} s", record.seconds));
  return html + "</dl>\n";
}

}  // namespace

std::string html_contender(const Record& record, const Standing& standing, bool open) {
  std::string html = fmt::format(
      "<details id=\"{}\"{}><summary>{} <b>{}</b> <span class=\"why\">{}</span></summary>"
      "<div class=\"inside\">\n",
      anchor("c", record), open ? " open" : "", verdict_badge(record.verdict),
      report::escaped(record.contender), report::escaped(record.verdict_because));
  if (!standing.depends_on.empty()) {
    html += fmt::format(
        "<p>Rank {} under {:.0f} % of the weightings within a factor 2, {} to {} in "
        "all: depends on {}.</p>\n",
        standing.rank, 100.0 * standing.share, standing.best, standing.worst,
        report::escaped(dimension_title(standing.depends_on)));
  }
  if (!record.build.log.empty() && !record.build.built) {
    html += fmt::format("<pre>{}</pre>\n", report::escaped(record.build.log.substr(0, 4000)));
  }
  html += html_remarks(remarks(record));
  html += witnesses(record) + findings(record) + failures(record);
  if (record.build.built && record.verdict != Verdict::untested) {
    html += scores_table(record) + speeds(record) + html_evidence(record) + probes(record);
  }
  return html + facts(record) + "</div></details>\n";
}

std::string html_controls(const std::vector<std::vector<Record>>& tasks) {
  std::string rows;
  for (const std::vector<Record>& records : tasks) {
    const auto twin =
        std::ranges::find_if(records, [](const Record& r) { return r.twin.has_value(); });
    std::string precision = "&ndash;";  // the same for all that were examined
    for (const Record& record : records) {
      const auto found = record.facts.find("control: next lower precision");
      if (found != record.facts.end()) precision = report::escaped(found->second);
    }
    std::string speeds = "not measured";
    if (twin != records.end()) {
      speeds = twin->speeds_withheld.empty() ? "given" : "withheld: " + twin->speeds_withheld;
    }
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                        report::escaped(records.front().task),
                        twin == records.end()
                            ? "&ndash;"
                            : fmt::format("{:.3f} ({:.3f} to {:.3f})", twin->twin->value,
                                          twin->twin->low, twin->twin->high),
                        report::escaped(speeds), precision,
                        report::escaped(format_sandbox(records.front().sandbox)));
  }
  return "<h2 id=\"controls\">Controls and noise</h2>\n<p class=\"soft\">In every session the same "
         "code runs twice under two names. By what these twins differ, the intervals of all speeds "
         "are widened; where they differ by more than 10 %, or surely by more than 2 %, speeds are "
         "withheld. The answer computed in the next lower precision must fail.</p>\n"
         "<div "
         "class=\"scroll\"><table><thead><tr><th>task</th><th>twin</th><th>speeds</th><th>lower "
         "precision</th><th>sandbox</th></tr></thead><tbody>" +
         rows + "</tbody></table></div>\n";
}

}  // namespace touchstone::judge
