// From evidence to numbers: a pure function of a record, so that old records can be scored by new
// rules without touching a contender. What each number means is in docs/judge.md.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "judge/report/record.h"

namespace touchstone::judge {

// The order of columns on a board; scores has "overall" besides.
std::span<const std::string_view> dimensions();

// What a finding means: the verdict it alone leads to, and what it costs in robustness.
struct FindingKind {
  std::string_view kind;
  Verdict verdict;   // pass: it costs points only
  double deduction;  // of robustness
  std::string_view title;
};
std::span<const FindingKind> finding_kinds();
const FindingKind& find_kind(std::string_view kind);  // InvalidArgument

struct Judgment {
  Verdict verdict = Verdict::untested;
  std::string because;
  std::map<std::string, Score> scores;
};
Judgment score(const Record& record);
// The same, written into the record.
void apply_scores(Record& record);

bool is_right(Verdict verdict);  // PASS, and PARTIAL: right in all it does

// One case of stability: 100 less 10 per bit lost beyond those of a good float32 implementation.
double stability_points(const CaseRecord& c);
bool tests_stability(const Record& record, const CaseRecord& c);

// intervals.cc: cases are drawn again with replacement, speeds from the interval that drawing their
// processes again gave; the 95 % of the scores that come of it are the bounds, never narrower than
// those already there.
void draw_intervals(const Record& record, std::map<std::string, Score>& scores);
// And what other seeds gave lies within them.
void widen_by_seeds(const Record& record, std::map<std::string, Score>& scores);
SeedRun seed_run(const Record& record);
// The records of another seed, added to those of the same contenders. The gravest verdict stays,
// with its evidence.
void merge_seeds(std::vector<Record>& merged, std::vector<Record> again);

// Where a contender stands among those of its task.
struct Standing {
  std::size_t index = 0;  // into the records that were ranked
  // From 1; those that lack something come behind all that pass. 0: not ranked, it is not right.
  int rank = 0;
  int best = 0;  // under any weights within a factor 2 of the task's
  int worst = 0;
  double share = 1.0;      // of those weightings that give `rank`
  std::string depends_on;  // the dimension whose weight decides; empty when none does
};
// Records of one task; the standings come in the order of the board.
std::vector<Standing> rank(std::span<const Record> records);

// The overall score under other weights; nothing when nothing was tested.
std::optional<double> overall(const std::map<std::string, Score>& scores,
                              const std::map<std::string, double>& weights);

// Calls visit(weights) for every weighting with each weight halved, kept or doubled.
void for_each_weighting(const std::map<std::string, double>& weights,
                        const std::function<void(const std::map<std::string, double>&)>& visit);

// What must be apart by more than this, in points, is called different; closer is a tie.
inline constexpr double kTieMargin = 1.0;

enum class Outcome { faster, slower, same, unresolved };
// `ratio` is mine over the peer's. Same: the whole interval within the margin of 1.
Outcome outcome(const Interval& ratio, double margin = 0.01);

}  // namespace touchstone::judge
