// Board, duel and page from records made by hand: well-formed, escaped, alone.
#include "judge/report/html/html_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "judge/report/board.h"
#include "judge/report/duel.h"
#include "judge/report/test_records.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

// Checks that tags nest and that `&` and `<` stand only where markup does. Ours is the subset of
// HTML in which all but the void elements are closed.
std::string fault_of(const std::string& html) {
  const std::set<std::string> kVoid = {"meta", "br", "col", "!DOCTYPE"};
  std::vector<std::string> open;
  std::size_t i = 0;
  while (i < html.size()) {
    if (html[i] == '&') {
      const std::size_t end = html.find(';', i);
      if (end == std::string::npos || end - i > 8) return "a bare & at " + html.substr(i, 40);
      i = end;
    } else if (html[i] == '<') {
      std::size_t end = i + 1;
      char quote = 0;
      for (; end < html.size() && (quote != 0 || html[end] != '>'); ++end) {
        if (html[end] == '"') quote = quote == 0 ? '"' : 0;
        if (html[end] == '<') return "a < inside a tag at " + html.substr(i, 60);
      }
      const std::string tag = html.substr(i + 1, end - i - 1);
      const bool closing = tag.starts_with('/');
      const bool alone = tag.ends_with('/');
      std::string name = tag.substr(closing ? 1 : 0);
      name = name.substr(0, name.find_first_of(" /\n"));
      if (closing) {
        if (open.empty() || open.back() != name) {
          return "unexpected </" + name + "> inside <" + (open.empty() ? "" : open.back()) + ">";
        }
        open.pop_back();
      } else if (!alone && !kVoid.contains(name)) {
        open.push_back(name);
      }
      i = end;
      if (name == "style" && !closing) {
        i = html.find("</style>", i) - 1;
      }
    }
    ++i;
  }
  return open.empty() ? "" : "left open: " + open.back();
}

Record scored(Record record) {
  apply_scores(record);
  return record;
}

std::vector<Record> several(const std::string& odd_name) {
  Record wrong = sample_record(odd_name);
  fail_case(wrong, 0, "dx[2]: got 1 & expected <2>");
  wrong.findings.push_back({"f1", "leak", "<b>grows</b>", "c1"});
  Record broken = sample_record("broken");
  broken.build.built = false;
  broken.build.log = "error: <stdio.h> & \"more\"";
  Record other = sample_record("good", "softmax_topk");
  Record slow = sample_record("slow");
  for (SpeedRecord& s : slow.speeds) s.ratio_to["good"] = {3.0, 2.9, 3.2, 40};
  return {scored(sample_record("good")), scored(slow), scored(wrong), scored(broken),
          scored(other)};
}

TEST(HtmlReport, AnyRecords_GiveWellFormedHtml) {
  EXPECT_EQ(fault_of(html_report(several("odd"))), "");
  EXPECT_EQ(fault_of(html_report({})), "");
  EXPECT_EQ(fault_of(html_report({scored(sample_record("alone"))})), "");
}

TEST(HtmlReport, WellFormednessCheck_FindsFaults) {
  EXPECT_NE(fault_of("<p>a & b</p>"), "");
  EXPECT_NE(fault_of("<p><b>x</p></b>"), "");
  EXPECT_NE(fault_of("<p title=\"<\">x</p>"), "");
  EXPECT_NE(fault_of("<p>"), "");
}

TEST(HtmlReport, ContenderText_IsEscaped) {
  const std::string name = "<script>alert(1)</script>\" onload='x' &amp;\x1b[31m";
  const std::string html = html_report(several(name));
  EXPECT_EQ(fault_of(html), "");
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find("<b>grows"), std::string::npos);
  EXPECT_EQ(html.find("onload='x'"), std::string::npos);
  EXPECT_EQ(html.find('\x1b'), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;"), std::string::npos) << "shown, not obeyed";
}

TEST(HtmlReport, Document_HasNoExternalReferences) {
  const std::string html = html_report(several("odd"));
  for (const char* word :
       {"http:", "https:", "//", "src=", "@import", "url(", "<link", "<script"}) {
    EXPECT_EQ(html.find(word), std::string::npos) << word;
  }
}

TEST(HtmlReport, Document_HasAllSections) {
  const std::string html = html_report(several("odd"));
  for (const char* word : {"<svg", "prefers-color-scheme", "@media print", "max-width: 820px",
                           "Head to head", "Controls and noise", "WRONG", "NOBUILD", "--replay",
                           "Roofline", "Memory", "id=\"matrix\"", "Failures by kind"}) {
    EXPECT_NE(html.find(word), std::string::npos) << word;
  }
}

// The table of criteria of the first pair is not folded shut, and a phone shows ranks.
TEST(HtmlReport, FirstPairAndRank_AreSeen) {
  const std::string html = html_report(several("odd"));
  const std::size_t pair = html.find("Head to head</h2>");
  ASSERT_NE(pair, std::string::npos);
  EXPECT_NE(html.find("<details open>", pair), std::string::npos);
  EXPECT_EQ(html.find("td.rank { display: none"), std::string::npos);
}

TEST(HtmlReport, AuthorsClaimsAndRemarks_AreShownEscaped) {
  std::vector<Record> records = several("odd");
  records[0].author = "<i>me</i>";
  records[0].claims.push_back({"k1", "<u>once</u>", "README.md:1", "reads", 1.0, "", "", ""});
  apply_scores(records[0]);
  const std::string html = html_report(records);
  EXPECT_EQ(fault_of(html), "");
  EXPECT_EQ(html.find("<u>once"), std::string::npos);
  for (const char* part : {"id=\"authors\"", "&lt;i&gt;me", "Strengths", "Weaknesses",
                           "The best of each", "not measurable", "listed, not scored"}) {
    EXPECT_NE(html.find(part), std::string::npos) << part;
  }
}

TEST(HtmlReport, InternalLinks_HaveTargets) {
  const std::string html = html_report(several("odd / name"));
  EXPECT_EQ(html_report({scored(sample_record("alone"))}).find("#duels"), std::string::npos);
  std::size_t at = 0;
  int links = 0;
  while ((at = html.find("href=\"#", at)) != std::string::npos) {
    at += 7;
    const std::string id = html.substr(at, html.find('"', at) - at);
    EXPECT_NE(html.find("id=\"" + id + "\""), std::string::npos) << id;
    ++links;
  }
  EXPECT_GT(links, 5);
}

TEST(HtmlReport, DisabledSandbox_IsStamped) {
  Record record = sample_record("good");
  record.sandbox.enabled = false;
  EXPECT_NE(html_report({scored(record)}).find("NO SANDBOX"), std::string::npos);
  EXPECT_NE(board_text({scored(record)}, false).find("NO SANDBOX"), std::string::npos);
}

TEST(Board, HostileNames_GiveShortLinesWithoutEscapeCodes) {
  Record record = sample_record("evil\x1b[2J");
  for (std::size_t i = 0; i < 4; ++i) fail_case(record, i, "a reason\nwith two lines");
  for (int i = 0; i < 9; ++i) record.findings.push_back({"f", "crashed", "by a signal", "c1"});
  const std::string text = board_text({scored(record)}, false);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  // The line of the task, an empty one, two of the table, an empty one.
  EXPECT_LE(std::ranges::count(text, '\n'), 5 + 12);
  EXPECT_NE(text.find("replay"), std::string::npos);
}

TEST(Board, BestAndWorst_AreMarked) {
  const std::string text = board_text(several("odd"), false);
  EXPECT_NE(text.find("100+"), std::string::npos);
  EXPECT_NE(text.find("33-"), std::string::npos) << text;
  EXPECT_NE(board_text(several("odd"), true).find("\x1b[32m"), std::string::npos);
}

TEST(Duel, TwoRecords_NameWinnerAndEvidence) {
  const std::vector<Record> records = several("odd");
  const Duel d = duel(records[0], records[1]);
  EXPECT_EQ(d.conclusion, "good, under every weighting that was tried.");
  const auto speed = std::ranges::find(d.dimensions, "speed", &Criterion::name);
  ASSERT_NE(speed, d.dimensions.end());
  EXPECT_EQ(speed->edge, Edge::first);
  EXPECT_EQ(duel(records[1], records[0]).dimensions[4].edge, Edge::second);
  EXPECT_EQ(duel(records[0], records[0]).conclusion,
            "A tie, under every weighting that was tried.");
  EXPECT_NE(duel(records[0], records[2]).conclusion.find("does not: WRONG"), std::string::npos);
  for (const Criterion& c : d.dimensions) EXPECT_FALSE(c.evidence.empty()) << c.name;
  EXPECT_THROW(duel(records[0], records[4]), InvalidArgument) << "other tasks";
}

TEST(Duel, ShapesOfOneSession_AreComparedByPairs) {
  std::vector<Record> records = several("odd");
  for (SpeedRecord& s : records[0].speeds) s.ratio_to["slow"] = {0.33, 0.31, 0.34, 40};
  const Duel d = duel(records[0], records[1]);
  const auto time = std::ranges::find_if(
      d.details, [](const Criterion& c) { return c.name.starts_with("time, s"); });
  ASSERT_NE(time, d.details.end());
  EXPECT_EQ(time->edge, Edge::first);
  EXPECT_NE(time->evidence.find("ratio 0.33 (0.31 to 0.34)"), std::string::npos);
  EXPECT_EQ(fault_of(html_duel_report(d, {records[0], records[1]})), "");
}

TEST(Duel, DecidingWeights_AreNamed) {
  Record fast = sample_record("fast");
  Record small = sample_record("small");
  for (MemoryPoint& point : fast.memory.ladder) point.extra_bytes = 15 * point.io_bytes;
  for (SpeedRecord& s : small.speeds) s.ratio_to["fast"] = {2.0, 1.95, 2.05, 40};
  const Duel d = duel(scored(fast), scored(small));
  EXPECT_TRUE(d.conclusion.starts_with("It depends on ")) << d.conclusion;
}

}  // namespace
}  // namespace touchstone::judge
