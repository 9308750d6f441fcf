#include "judge/report/markdown.h"

#include <fmt/format.h>

#include <algorithm>

#include "judge/report/evidence.h"
#include "judge/report/remarks.h"
#include "judge/report/score.h"
#include "judge/report/summary.h"
#include "judge/report/text_format.h"

namespace touchstone::judge {
namespace {

std::string md(std::string_view text) { return markdown_escaped(text); }

// A command as an indented block: no fence that its text could close.
std::string command_block(std::string_view text) {
  return fmt::format("\n    {}\n\n", printable(text));
}

std::string table_row(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) line += " " + cell + " |";
  return line + "\n";
}

std::string table_head(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (std::size_t i = 0; i < cells.size(); ++i) line += "---|";
  return table_row(cells) + line + "\n";
}

std::string md_score(const Score& score) {
  if (!score.value.has_value()) return "-";
  if (score.high - score.low < 1.0) return format_score(score);
  return fmt::format("{} ({:.0f} to {:.0f})", format_score(score), score.low, score.high);
}

std::string score_of(const Record& record, const std::string& dimension) {
  const auto found = record.scores.find(dimension);
  return found == record.scores.end() ? "-" : md_score(found->second);
}

std::string md_board(const std::vector<Record>& records) {
  std::vector<std::string> heading = {"#", "contender", "verdict", "overall"};
  for (const std::string_view dimension : dimensions()) {
    heading.push_back(dimension_title(dimension));
  }
  std::string text = table_head(heading);
  for (const Standing& standing : rank(records)) {
    const Record& record = records[standing.index];
    std::vector<std::string> cells = {
        standing.rank == 0
            ? "-"
            : fmt::format("{}{}", standing.rank, standing.depends_on.empty() ? "" : "?"),
        md(record.contender), std::string(name_of(record.verdict)), score_of(record, "overall")};
    for (const std::string_view dimension : dimensions()) {
      cells.push_back(score_of(record, std::string(dimension)));
    }
    text += table_row(cells);
  }
  return text + "\n";
}

std::string remark_list(const char* title, const std::vector<Remark>& list) {
  if (list.empty()) return {};
  std::string text = fmt::format("{}:\n\n", title);
  for (const Remark& remark : list) text += fmt::format("- {}\n", md(remark_text(remark)));
  return text + "\n";
}

std::string witness_list(const Record& record) {
  std::string text;
  for (const FailureGroup& group : failure_groups(record)) {
    text += fmt::format("- **{}**{}\n", md(group.title()),
                        group.witnesses.empty() ? "" : ", smallest:");
    for (const Witness* witness : group.witnesses) {
      text += fmt::format("  {} {}: {}. {}\n", md(witness->case_id), md(witness->smallest.family),
                          md(format_shape(witness->smallest)), md(witness->reason));
      text += command_block(witness->replay);
    }
  }
  return text.empty()
             ? text
             : "Failures by kind, and the commands that show them again:\n\n" + text + "\n";
}

std::string contender_section(const Record& record) {
  std::string text = fmt::format("#### {}: {}\n\n{}\n\n", md(record.contender),
                                 name_of(record.verdict), md(record.verdict_because));
  const Remarks said = remarks(record);
  text += remark_list("Strengths", said.strengths) + remark_list("Weaknesses", said.weaknesses);
  text += witness_list(record);
  if (record.build.built && record.verdict != Verdict::untested) {
    text += table_head({"criterion", "score", "because"});
    for (const std::string_view dimension : dimensions()) {
      const auto found = record.scores.find(std::string(dimension));
      if (found == record.scores.end()) continue;
      text += table_row(
          {dimension_title(dimension), md_score(found->second), md(found->second.because)});
    }
    text += "\n";
  }
  for (const EvidenceSheet& sheet : evidence_sheets(record)) {
    text += table_head({fmt::format("{}", sheet.title), "", ""});
    for (const EvidenceRow& row : sheet.rows) {
      text += table_row({md(row.name), md(row.value), md(row.note)});
    }
    text += "\n";
  }
  if (!record.seeds.empty()) {
    text += table_head({"seed", "verdict", "overall"});
    for (const SeedRun& run : record.seeds) {
      const auto found = run.scores.find("overall");
      text += table_row({fmt::format("{}", run.seed), std::string(name_of(run.verdict)),
                         found == run.scores.end() ? "-" : fmt::format("{:.0f}", found->second)});
    }
    text += "\n";
  }
  return text;
}

std::string md_criteria(const Duel& d, const std::vector<Criterion>& list) {
  if (list.empty()) return {};
  std::string text = table_head({"criterion", md(d.first), md(d.second), "better", "evidence"});
  for (const Criterion& c : list) {
    std::string evidence = c.evidence;
    if (const auto at = evidence.find('\n'); at != std::string::npos) evidence.replace(at, 1, "; ");
    text += table_row(
        {md(c.name), md(c.first), md(c.second), md(better_name(d, c.edge)), md(evidence)});
  }
  return text + "\n";
}

std::string duel_section(const Duel& d) {
  std::string text = fmt::format("#### {} against {}\n\n{} {}\n\n", md(d.first), md(d.second),
                                 md(score_line(d)), md(d.conclusion));
  return text + md_criteria(d, d.dimensions) + md_criteria(d, d.details) + md_criteria(d, d.facts);
}

std::string hybrid_section(const std::vector<Record>& records) {
  const std::optional<Hybrid> best = hybrid(records);
  if (!best.has_value()) return {};
  std::string text = fmt::format("### The best of each\n\n{}\n\n", md(hybrid_text(*best)));
  text += table_head({"criterion", "from", "score", "what it does there"});
  for (const HybridPart& part : best->parts) {
    text +=
        table_row({dimension_title(part.dimension), part.from.empty() ? "all level" : md(part.from),
                   fmt::format("{:.0f}{}", part.score, part.counted ? "" : ", not counted"),
                   md(part.because)});
  }
  return text + "\n";
}

std::string author_section(const std::vector<Record>& records) {
  std::string text;
  for (const AuthorPage& page : author_pages(records)) {
    text += fmt::format("### {}\n\n{}.\n\n", md(page.author), author_text(page));
    text += table_head({"task", "contender", "verdict", "overall", "rank"});
    for (const AuthorTask& task : page.tasks) {
      text += table_row({md(task.task), md(task.contender), std::string(name_of(task.verdict)),
                         task.overall.has_value() ? fmt::format("{:.0f}", *task.overall) : "-",
                         task.rank > 0 ? fmt::format("{} of {}", task.rank, task.of) : "-"});
    }
    text += "\n";
    for (const std::string& pattern : page.patterns) text += fmt::format("- {}\n", md(pattern));
    text += "\n";
  }
  return text.empty() ? text : "## Authors\n\n" + text;
}

std::string session_line(const std::vector<Record>& records) {
  const Record& first = records.front();
  const auto machine = [&](const char* key) {
    const auto found = first.machine.find(key);
    return found == first.machine.end() ? std::string("?") : found->second;
  };
  std::string line =
      fmt::format("{}, {} cores, {}, touchstone {}. ", md(machine("cpu")), md(machine("cores")),
                  md(machine("date")), md(machine("touchstone")));
  if (const std::string noise = format_noise(records); !noise.empty()) line += md(noise) + ", ";
  return line + fmt::format("{}. Seed {}.\n\n", md(format_sandbox(first.sandbox)), first.seed);
}

std::string duel_sections(const std::vector<Record>& records) {
  std::string text;
  for (const Duel& d : duels_of(records)) text += duel_section(d);
  return text.empty() ? text : "### Head to head\n\n" + text;
}

constexpr const char* kMarkdownTail =
    "Scores run from 0 to 100; in brackets their 95 % intervals; a dash was not tested. Ids such "
    "as "
    "c17, r3, s1, f2, k1 name cases, relations, timed shapes, findings and claims in the JSON "
    "record.\n";

}  // namespace

std::string markdown_escaped(std::string_view text) {
  std::string line(text);
  std::ranges::replace_if(
      line, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  std::string result;
  for (const char c : printable(line)) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else {
      if (std::string_view("\\`*_[]|#~!$").find(c) != std::string_view::npos) result += '\\';
      result += c;
    }
  }
  return result;
}

std::string markdown_report(const std::vector<Record>& records) {
  std::string text = "# Judgment\n\n";
  if (records.empty()) return text + "No contender.\n";
  for (const std::vector<Record>& group : by_task(records)) {
    text +=
        fmt::format("## {}\n\n", md(group.front().task)) + session_line(group) + md_board(group);
    text += hybrid_section(group) + "### Contenders\n\n";
    for (const Standing& standing : rank(group)) text += contender_section(group[standing.index]);
    text += duel_sections(group);
  }
  return text + author_section(records) + kMarkdownTail;
}

std::string markdown_duel_report(const Duel& d, const std::vector<Record>& both) {
  std::string text =
      fmt::format("# {} against {}\n\n## {}\n\n", md(d.first), md(d.second), md(d.task)) +
      session_line(both) + duel_section(d) + hybrid_section(both) + "### Contenders\n\n";
  for (const Record& record : both) text += contender_section(record);
  return text + kMarkdownTail;
}

}  // namespace touchstone::judge
