#include "judge/report/html/html_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "judge/report/text_format.h"
#include "report/html.h"

namespace touchstone::judge {
namespace {

std::string head(std::string_view title) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n",
      report::escaped(title), html_style());
}

constexpr const char* kPageTail = "</main>\n</body>\n</html>\n";

std::string machine_line(const Record& record) {
  const auto get = [&](const char* key) {
    const auto found = record.machine.find(key);
    return found == record.machine.end() ? std::string() : found->second;
  };
  return fmt::format("{} &middot; {} cores &middot; {} &middot; touchstone {}",
                     report::escaped(get("cpu")), report::escaped(get("cores")),
                     report::escaped(get("date")), report::escaped(get("touchstone")));
}

bool has_authors(const std::vector<Record>& records) {
  return std::ranges::any_of(records, [](const Record& r) { return !r.author.empty(); });
}

std::string introduction(const std::vector<Record>& records,
                         const std::vector<std::vector<Record>>& tasks) {
  const auto passed = std::ranges::count(records, Verdict::pass, &Record::verdict);
  const auto silent = std::ranges::count_if(records, [](const Record& r) {
    return r.verdict == Verdict::untested || r.verdict == Verdict::judge_error;
  });
  const auto partial = std::ranges::count(records, Verdict::partial, &Record::verdict);
  const auto failed = std::ssize(records) - passed - partial - silent;
  std::string html = "<h1>Judgment</h1>\n";
  html += fmt::format(
      "<p class=\"lead\">{} contender{} in {} task{}: {} pass{}, {}{} do{} not{}.</p>\n",
      records.size(), records.size() == 1 ? "" : "s", tasks.size(), tasks.size() == 1 ? "" : "s",
      passed, passed == 1 ? "es" : "",
      partial == 0 ? "" : fmt::format("{} lack{} something, ", partial, partial == 1 ? "s" : ""),
      failed, failed == 1 ? "es" : "",
      silent == 0 ? "" : fmt::format(", {} could not be judged here", silent));
  html += fmt::format("<p class=\"soft small\">{}</p>\n", machine_line(records.front()));
  std::set<std::string> stamps;
  for (const Record& record : records) {
    if (!record.sandbox.enabled || !record.sandbox.missing.empty()) {
      stamps.insert(format_sandbox(record.sandbox));
    }
  }
  for (const std::string& stamp : stamps) {
    html += fmt::format("<p class=\"stamp\">{}</p>\n", report::escaped(stamp));
  }
  html += "<nav><a href=\"#board\">Board</a>";
  if (tasks.size() > 1) html += "<a href=\"#matrix\">Grades</a>";
  html += "<a href=\"#contenders\">Contenders</a>";
  const bool pairs = std::ranges::any_of(tasks, [](const auto& task) { return task.size() > 1; });
  if (pairs) html += "<a href=\"#duels\">Head to head</a>";
  if (has_authors(records)) html += "<a href=\"#authors\">Authors</a>";
  html += "<a href=\"#controls\">Controls</a></nav>\n";
  return html;
}

std::string duels(const std::vector<std::vector<Record>>& tasks) {
  std::string html;
  for (const std::vector<Record>& records : tasks) {
    std::string list;
    // The first pair lies open: who turns the page sees what is in the others.
    for (const Duel& d : duels_of(records)) list += html_duel(d, list.empty());
    if (!list.empty()) {
      html += fmt::format("<h3>{}</h3>\n{}", report::escaped(records.front().task), list);
    }
  }
  if (html.empty()) return html;
  return "<h2 id=\"duels\">Head to head</h2>\n<p class=\"soft\">Criterion by criterion, who has "
         "the edge and by what evidence.</p>\n" +
         html;
}

std::string glossary() {
  return "<footer><p>PASS: every case and relation is right. PARTIAL: right in all it does, and "
         "refuses what the task allows it to lack. WRONG: a case is not, or was not "
         "answered. UNSAFE: memory that is not the contender's was touched, or it crashed. "
         "UNSTABLE: "
         "the same case has other bits when run again. LIMIT: too much time or memory. RULE: a "
         "system call the sandbox refuses. PROVEN-CHEAT: an experiment shows an answer that was "
         "not "
         "computed. IMPOSSIBLE: faster than the memory of the machine, twice. JUDGE-ERROR: a "
         "control "
         "of the judge failed, nothing is said.</p><p>Scores run from 0 to 100; whiskers are 95 % "
         "intervals; a dash was not tested. Ids such as c17, r3, s1, f2, k1 name cases, "
         "relations, timed shapes, findings and claims in the JSON record.</p></footer>\n";
}

}  // namespace

std::string verdict_badge(Verdict verdict) {
  const bool silent = verdict == Verdict::untested || verdict == Verdict::judge_error;
  const char* tone = verdict == Verdict::pass                ? "good"
                     : verdict == Verdict::partial || silent ? "odd"
                                                             : "bad";
  return fmt::format("<span class=\"badge {}\">{}</span>", tone, name_of(verdict));
}

std::string anchor(std::string_view prefix, const Record& record) {
  std::string id(prefix);
  for (const std::string& part : {record.task, record.contender}) {
    id += '-';
    for (const char c : part) {
      if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
        id += c;
      } else {
        id += fmt::format("_{:02x}", static_cast<unsigned char>(c));
      }
    }
  }
  return id;
}

std::size_t series_of(const std::vector<Record>& records, std::string_view contender) {
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (records[i].contender == contender) return i % 8;
  }
  return 6;
}

std::string html_report(const std::vector<Record>& records) {
  std::string html = head("Touchstone: judgment");
  if (records.empty()) return html + "<h1>Judgment</h1>\n<p>No contender.</p>\n" + kPageTail;
  const std::vector<std::vector<Record>> tasks = by_task(records);
  html += introduction(records, tasks);
  html += html_board(tasks);
  if (tasks.size() > 1) html += html_matrix(tasks);
  html +=
      "<h2 id=\"contenders\">Contenders</h2>\n<p class=\"soft\">What was found, with the command "
      "that shows each failure again.</p>\n";
  for (const std::vector<Record>& group : tasks) {
    html += fmt::format("<h3>{}</h3>\n", report::escaped(group.front().task));
    for (const Standing& standing : rank(group)) {
      const Record& record = group[standing.index];
      html +=
          html_contender(record, standing, record.verdict != Verdict::pass || records.size() == 1);
    }
  }
  html += duels(tasks);
  html += html_authors(author_pages(records));
  html += html_controls(tasks);
  return html + glossary() + kPageTail;
}

std::string html_duel_report(const Duel& d, const std::vector<Record>& both) {
  std::string html = head(fmt::format("Touchstone: {} against {}", d.first, d.second));
  html +=
      fmt::format("<h1>{} against {}</h1>\n", report::escaped(d.first), report::escaped(d.second));
  html += fmt::format("<p class=\"soft small\">{} &middot; {}</p>\n", report::escaped(d.task),
                      machine_line(both.front()));
  html += html_duel(d, true);
  html += html_board(by_task(both));
  html += "<h2 id=\"contenders\">Contenders</h2>\n";
  for (const Standing& standing : rank(both)) {
    html += html_contender(both[standing.index], standing, false);
  }
  html += html_controls(by_task(both));
  return html + glossary() + kPageTail;
}

}  // namespace touchstone::judge
