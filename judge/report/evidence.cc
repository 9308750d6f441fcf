#include "judge/report/evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "judge/report/text_format.h"

namespace touchstone::judge {
namespace {

constexpr double kDigits = 24.0;  // bits of a float
// A probe of stability that lost more than half of the digits does not say yes.
constexpr double kMaxBitsLost = 12.0;

constexpr std::array<std::string_view, 11> kCodeFacts = {
    "lines",          "functions",    "longest function", "complexity", "duplicated lines",
    "dead functions", "never called", "unused imports",   "warnings",   "code bytes",
    "build seconds"};

const CaseRecord* find_case(const Record& record, const std::string& id) {
  for (const auto* cases : {&record.cases, &record.relations}) {
    const auto found = std::ranges::find(*cases, id, &CaseRecord::id);
    if (found != cases->end()) return &*found;
  }
  return nullptr;
}

CaseCount counted(const Record& record, bool gates) {
  CaseCount count;
  for (const auto* cases : {&record.cases, &record.relations}) {
    for (const CaseRecord& c : *cases) {
      if (c.gates != gates || !c.lack.empty()) continue;
      ++count.run;
      count.passed += c.check.passed ? 1 : 0;
    }
  }
  return count;
}

EvidenceSheet precision_sheet(const Record& record) {
  EvidenceSheet sheet{"Precision", {}};
  for (const OutputPrecision& p : precision_of(record)) {
    if (p.relative == 0.0 && p.absolute == 0.0) {
      sheet.rows.push_back(
          {fmt::format("largest error of {}", p.output), "none", "all right cases"});
      continue;
    }
    const std::string worst =
        fmt::format("{:.2g} relative at worst ({})", p.relative, p.relative_case);
    if (!p.nominal.has_value()) {
      sheet.rows.push_back({fmt::format("largest error of {}", p.output), worst, ""});
      continue;
    }
    sheet.rows.push_back({fmt::format("largest error of {}", p.output),
                          fmt::format("{:.2g} relative, {:.2g} absolute", *p.nominal, p.absolute),
                          fmt::format("on nominal data ({}); {}", p.nominal_case, worst)});
  }
  return sheet;
}

void add_growth(const MemoryRecord& memory, EvidenceSheet& sheet) {
  if (memory.ladder.empty()) return;
  const MemoryPoint& top = memory.ladder.back();
  const std::string at = fmt::format("{} {}", memory.parameter, top.n);
  sheet.rows.push_back(
      {"memory beyond inputs and outputs",
       format_bytes(static_cast<double>(std::max<int64_t>(0, top.extra_bytes))),
       fmt::format("at {}; {} needed", at,
                   top.least_bytes == 0 ? "nothing is"
                                        : format_bytes(static_cast<double>(top.least_bytes)))});
  sheet.rows.push_back({"memory grows as",
                        memory.exponent.has_value()
                            ? fmt::format("{}^{:.2f}", memory.parameter, *memory.exponent)
                        : memory.whole() ? std::string("too little for an exponent")
                                         : std::string("not measured at all sizes"),
                        "memory"});
  if (memory.time_exponent.has_value()) {
    sheet.rows.push_back({"time grows as",
                          fmt::format("{}^{:.2f}", memory.parameter, *memory.time_exponent),
                          fmt::format("{} to {}", memory.ladder.front().n, top.n)});
  } else {
    sheet.rows.push_back({"time grows as", "not measured",
                          "fewer than three sizes took long enough on an undisturbed machine"});
  }
  sheet.rows.push_back({"kept between calls", format_bytes(static_cast<double>(top.kept_bytes)),
                        fmt::format("after the last call at {}", at)});
  if (memory.leaked_bytes_per_call.has_value()) {
    sheet.rows.push_back({"memory gained with each call",
                          format_bytes(std::max(0.0, *memory.leaked_bytes_per_call)), "memory"});
  }
}

void add_reads(const TrafficRecord& traffic, EvidenceSheet& sheet) {
  if (!traffic.not_measured.empty()) {
    sheet.rows.push_back({"reads per input page", "not measured", traffic.not_measured});
    return;
  }
  for (const InputReads& reads : traffic.inputs) {
    sheet.rows.push_back({fmt::format("reads per page of {}", reads.input),
                          fmt::format("{:.1f}", reads.per_page()),
                          fmt::format("{} pages at {}, {} readable at a time", reads.pages,
                                      format_shape(traffic.shape), traffic.window_pages)});
  }
}

EvidenceSheet work_sheet(const Record& record) {
  EvidenceSheet sheet{"Work, traffic and growth", {}};
  for (const SpeedRecord& s : record.speeds) {
    sheet.rows.push_back(
        {fmt::format("{}: {}", s.id, format_shape(s.shape)), format_seconds(s.seconds.value),
         fmt::format("{} and {:.3g} MFLOP at least: {:.3g} FLOP for each byte; {:.3g} GB/s, {:.3g} "
                     "GFLOP/s{}",
                     format_bytes(s.bytes), 1e-6 * s.flops, intensity_of(s),
                     1e-9 * s.bytes / s.seconds.value, 1e-9 * s.flops / s.seconds.value,
                     s.roof.empty() ? ""
                                    : fmt::format("; {:.0f} % of the roof, which is {}",
                                                  100.0 * s.share_of_roof,
                                                  s.roof == "peak" ? "arithmetic" : "memory"))});
  }
  if (record.build.built && record.verdict != Verdict::untested) {
    add_growth(record.memory, sheet);
    add_reads(record.traffic, sheet);
  }
  return sheet;
}

EvidenceSheet code_sheet(const Record& record) {
  EvidenceSheet sheet{"Code", {}};
  for (const std::string_view name : kCodeFacts) {
    const auto found = record.facts.find(std::string(name));
    if (found != record.facts.end()) {
      sheet.rows.push_back({std::string(name), found->second, ""});
    }
  }
  return sheet;
}

EvidenceSheet tests_sheet(const Record& record) {
  EvidenceSheet sheet{"Own tests", {}};
  const OwnTests& own = record.own_tests;
  if (!own.present) {
    if (record.build.built) sheet.rows.push_back({"own tests", "none", own.detail});
    return sheet;
  }
  sheet.rows.push_back({"own tests", fmt::format("{}", own.tests), own.detail});
  sheet.rows.push_back({"places that can fail a test", fmt::format("{}", own.asserts),
                        own.asserts == 0 ? "they assert nothing" : ""});
  std::string note;
  if (own.not_ended > 0) note += fmt::format("on {} of these they did not end", own.not_ended);
  if (own.not_run > 0) {
    note += fmt::format("{}{} more not run", note.empty() ? "" : "; ", own.not_run);
  }
  sheet.rows.push_back(
      {"broken copies noticed",
       own.mutants == 0 ? "not run" : fmt::format("{} of {}", own.killed, own.mutants), note});
  return sheet;
}

EvidenceSheet documentation_sheet(const Record& record) {
  EvidenceSheet sheet{"Beside the code (listed, not scored)", {}};
  const DocumentationRecord& d = record.documentation;
  if (d.files.empty()) return sheet;
  sheet.rows.push_back(
      {"documentation", fmt::format("{}", fmt::join(d.files, ", ")), plural(d.words, "word")});
  if (!d.topics.empty()) {
    sheet.rows.push_back({"writes about", fmt::format("{}", fmt::join(d.topics, "; ")), ""});
  }
  if (!d.missing.empty()) {
    sheet.rows.push_back({"not found", fmt::format("{}", fmt::join(d.missing, "; ")), ""});
  }
  return sheet;
}

EvidenceSheet claims_sheet(const Record& record) {
  EvidenceSheet sheet{"Claims", {}};
  for (const ClaimRecord& claim : record.claims) {
    sheet.rows.push_back({fmt::format("{} \"{}\"", claim.id, claim.text), claim.state,
                          fmt::format("{} ({})", claim.because, claim.source)});
  }
  return sheet;
}

}  // namespace

std::string FailureGroup::title() const {
  constexpr std::size_t kMaxNamed = 4;
  std::string named;
  for (std::size_t i = 0; i < std::min(cases.size(), kMaxNamed); ++i) {
    named += fmt::format("{}{}", i == 0 ? "" : ", ", cases[i]);
  }
  if (cases.size() > kMaxNamed) named += ", ...";
  return fmt::format("{}{}: {} case{} ({})", kind, decides ? "" : ", costs points", cases.size(),
                     cases.size() == 1 ? "" : "s", named);
}

std::vector<FailureGroup> failure_groups(const Record& record) {
  std::vector<FailureGroup> groups;
  for (const bool decides : {true, false}) {
    for (const auto* cases : {&record.cases, &record.relations}) {
      for (const CaseRecord& c : *cases) {
        if (c.check.passed || !c.lack.empty() || c.gates != decides) continue;
        std::string kind = failure_kind(c.ending, c.check);
        if (!c.title.empty()) kind += ", " + c.title;
        const auto known = std::ranges::find_if(groups, [&](const FailureGroup& group) {
          return group.kind == kind && group.decides == decides;
        });
        FailureGroup& group = known == groups.end()
                                  ? groups.emplace_back(FailureGroup{kind, decides, {}, {}})
                                  : *known;
        group.cases.push_back(c.id);
        for (const Witness& witness : record.witnesses) {
          if (witness.case_id == c.id) group.witnesses.push_back(&witness);
        }
      }
    }
  }
  return groups;
}

bool is_timed_shape(const EvidenceRow& row) {
  const std::size_t colon = row.name.find(": ");
  return colon != std::string::npos && row.name.starts_with("s") &&
         row.name.find_first_not_of("0123456789", 1) == colon;
}

bool is_code_fact(std::string_view name) {
  return std::ranges::find(kCodeFacts, name) != kCodeFacts.end();
}

double relative_error(const OutputError& error) {
  return (std::exp2(error.worst_bits) - 1.0) * kUnitRoundoff;
}

double bits_lost(const CaseRecord& c) {
  double bits = 0.0;
  for (const OutputError& e : c.check.errors) {
    if (std::isfinite(e.worst_bits)) bits = std::max(bits, e.worst_bits);
  }
  return bits;
}

CaseCount gating_cases(const Record& record) { return counted(record, true); }

CaseCount point_cases(const Record& record) { return counted(record, false); }

double intensity_of(const SpeedRecord& speed) {
  return speed.bytes > 0.0 ? speed.flops / speed.bytes : 0.0;
}

std::vector<OutputPrecision> precision_of(const Record& record) {
  std::vector<OutputPrecision> all;
  for (const CaseRecord& c : record.cases) {
    if (!c.check.passed) continue;
    for (const OutputError& e : c.check.errors) {
      if (!std::isfinite(e.worst_bits) || e.output.empty()) continue;
      auto found = std::ranges::find(all, e.output, &OutputPrecision::output);
      if (found == all.end()) found = all.insert(all.end(), {e.output, -1.0, "", {}, "", 0.0});
      const double relative = relative_error(e);
      if (relative > found->relative) {
        found->relative = relative;
        found->relative_case = c.id;
      }
      if (c.spec.family != "nominal") continue;
      if (!found->nominal.has_value() || relative > *found->nominal) {
        found->nominal = relative;
        found->nominal_case = c.id;
      }
      if (std::isfinite(e.worst_absolute)) {
        found->absolute = std::max(found->absolute, e.worst_absolute);
      }
    }
  }
  return all;
}

ProbeState probe_state(const Record& record, const ProbeRecord& probe) {
  if (!probe.tested) return {false, false, "not tested"};
  if (!probe.passed) {
    const bool refused = probe.probe.dimension == "determinism" && !probe.failed.empty() &&
                         std::ranges::all_of(probe.failed, [&](const std::string& id) {
                           const CaseRecord* c = find_case(record, id);
                           return c != nullptr && c->check.refused;
                         });
    if (refused) return {false, false, "not tested: the call was refused"};
    return {true, false, "no"};
  }
  if (probe.probe.dimension != "stability") return {true, true, "yes"};
  double worst = 0.0;
  for (const CaseRecord& c : record.cases) {
    if (std::ranges::find(c.probes, probe.probe.id) == c.probes.end()) continue;
    worst = std::max(worst, bits_lost(c));
  }
  if (worst <= kMaxBitsLost) return {true, true, "yes"};
  return {true, false,
          fmt::format("holds the bound, loses {:.1f} of {:.0f} bits", std::min(worst, kDigits),
                      kDigits)};
}

std::vector<EvidenceSheet> evidence_sheets(const Record& record) {
  std::vector<EvidenceSheet> sheets;
  for (EvidenceSheet sheet :
       {precision_sheet(record), work_sheet(record), code_sheet(record), tests_sheet(record),
        documentation_sheet(record), claims_sheet(record)}) {
    if (!sheet.rows.empty()) sheets.push_back(std::move(sheet));
  }
  return sheets;
}

}  // namespace touchstone::judge
