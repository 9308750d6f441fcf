// What was measured of one contender, as plain numbers with the ids they come from: the rows that
// boards, duels and pages print.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "judge/report/record.h"

namespace touchstone::judge {

inline constexpr double kUnitRoundoff = 0x1p-24;  // of a float

// The largest error in units of the magnitude that the contract rounds to.
double relative_error(const OutputError& error);

// The largest errors of one output.
struct OutputPrecision {
  std::string output;
  double relative = 0.0;  // to the magnitude that the contract rounds to, over all right cases
  std::string relative_case;
  // The same over the nominal cases, and as it is: there all magnitudes are near 1.
  std::optional<double> nominal;
  std::string nominal_case;
  double absolute = 0.0;
};
std::vector<OutputPrecision> precision_of(const Record& record);

// Operations for each byte that has to be moved.
double intensity_of(const SpeedRecord& speed);

// What a probe says. One of stability may lie within its bound and still have lost its digits; one
// of determinism that was refused was not tested.
struct ProbeState {
  bool tested = false;
  bool passed = false;
  std::string word;  // "yes", "no", "not tested", "holds the bound, loses 23.9 of 24 bits"
};
ProbeState probe_state(const Record& record, const ProbeRecord& probe);
// The largest loss over all outputs of a case that passed.
double bits_lost(const CaseRecord& c);

// Gating cases and relations, and those that only cost points; without what was refused because the
// contender lacks it.
struct CaseCount {
  int passed = 0;
  int run = 0;
};
CaseCount gating_cases(const Record& record);
CaseCount point_cases(const Record& record);

// Cases that fail in the same way, and the witnesses that were made of them. What decides the verdict
// comes before what costs points.
struct FailureGroup {
  std::string kind;  // of failure_kind(); of relations with their title
  bool decides = true;
  std::vector<std::string> cases;  // ids
  std::vector<const Witness*> witnesses;

  std::string title() const;  // "wrong dx: 34 cases (c3, c7, c12, ...)"
};
// Without what was refused because the contender lacks it. Points into the record.
std::vector<FailureGroup> failure_groups(const Record& record);

struct EvidenceRow {
  std::string name;
  std::string value;
  std::string note;  // ids, or what the value means
};
struct EvidenceSheet {
  std::string title;
  std::vector<EvidenceRow> rows;
};
bool is_timed_shape(const EvidenceRow& row);  // "s1: rows 64, cols 1024"
bool is_code_fact(std::string_view name);  // one of Record::facts that is on the sheet of the code

// Precision; work, traffic and growth; code; own tests; documentation; claims. Empty ones are left
// out.
std::vector<EvidenceSheet> evidence_sheets(const Record& record);

}  // namespace touchstone::judge
