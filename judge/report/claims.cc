#include "judge/report/claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "judge/report/evidence.h"
#include "judge/report/text_format.h"

namespace touchstone::judge {
namespace {

constexpr double kReadSlack = 1.1;
constexpr double kBytesSlack = 64 << 10;  // pages and allocators
constexpr double kExponentSlack = 0.25;
constexpr double kSpeedSlack = 0.95;
// Below this share of the nearer roof neither memory nor arithmetic is what limits.
constexpr double kLimited = 0.1;

struct ClaimOutcome {
  std::optional<bool> held;  // nothing: not measurable
  std::string because;
};

ClaimOutcome reads(const Record& record, double claimed) {
  if (!record.traffic.not_measured.empty() || record.traffic.inputs.empty()) {
    return {std::nullopt, fmt::format("reads were not measured: {}", record.traffic.not_measured)};
  }
  const auto most = std::ranges::max_element(record.traffic.inputs, {}, &InputReads::per_page);
  return {most->per_page() <= kReadSlack * claimed,
          fmt::format("each page of {} is read {:.1f} times", most->input, most->per_page())};
}

std::string sizes_missing(const MemoryRecord& memory) {
  return fmt::format("memory was measured at {} of {} sizes", memory.ladder.size(), memory.sizes);
}

ClaimOutcome memory_bytes(const Record& record, double claimed) {
  if (record.memory.ladder.empty()) return {std::nullopt, "memory was not measured"};
  const MemoryPoint& top = record.memory.ladder.back();
  const bool fits = static_cast<double>(top.extra_bytes) <= claimed + kBytesSlack;
  if (fits && !record.memory.whole()) return {std::nullopt, sizes_missing(record.memory)};
  return {fits, fmt::format("holds {} at {} {}", format_bytes(static_cast<double>(top.extra_bytes)),
                            record.memory.parameter, top.n)};
}

ClaimOutcome memory_growth(const Record& record, double claimed) {
  if (record.memory.ladder.empty()) return {std::nullopt, "memory was not measured"};
  if (!record.memory.whole()) return {std::nullopt, sizes_missing(record.memory)};
  if (!record.memory.exponent.has_value()) {
    return {true, "holds too little for an exponent at any size"};
  }
  return {
      *record.memory.exponent <= claimed + kExponentSlack,
      fmt::format("memory grows as {}^{:.2f}", record.memory.parameter, *record.memory.exponent)};
}

ClaimOutcome time_growth(const Record& record, double claimed) {
  if (!record.memory.time_exponent.has_value()) {
    return {std::nullopt, "the growth of its time was not measured"};
  }
  return {*record.memory.time_exponent <= claimed + kExponentSlack,
          fmt::format("time grows as {}^{:.2f}", record.memory.parameter,
                      *record.memory.time_exponent)};
}

// The largest error over nominal data: a claim is not about hostile inputs.
ClaimOutcome error_of(const Record& record, double claimed, bool absolute) {
  double worst = -1.0;
  std::string where;
  for (const CaseRecord& c : record.cases) {
    if (c.spec.family != "nominal") continue;
    for (const OutputError& e : c.check.errors) {
      const double error = absolute ? e.worst_absolute : relative_error(e);
      if (std::isnan(worst) || error <= worst) continue;
      worst = error;
      where = fmt::format("{} of {}", e.output, c.id);
    }
  }
  if (where.empty()) return {std::nullopt, "no nominal case was run"};
  return {worst <= claimed,
          fmt::format("{} error {:.2g} in {}", absolute ? "absolute" : "relative", worst, where)};
}

ClaimOutcome bound_by(const Record& record, const char* roof) {
  if (record.speeds.empty()) return {std::nullopt, "its speed was not measured"};
  const auto& s =
      *std::ranges::max_element(record.speeds, {}, [](const SpeedRecord& x) { return x.flops; });
  if (s.roof.empty() || !(s.share_of_roof > 0.0)) {
    return {std::nullopt, "the roof of this device is not known"};
  }
  const char* nearer = s.roof == "peak" ? "arithmetic" : "memory";
  if (s.share_of_roof < kLimited) {
    return {false, fmt::format("at {:.0f} % of the nearer roof ({}, {}) neither limits it",
                               100.0 * s.share_of_roof, nearer, s.id)};
  }
  return {s.roof == roof, fmt::format("the nearer roof at {} is {}, of which it reaches {:.0f} %",
                                      s.id, nearer, 100.0 * s.share_of_roof)};
}

ClaimOutcome same_bits(const Record& record) {
  const DeterminismRecord& d = record.determinism;
  if (d.cases == 0) return {std::nullopt, "nothing was run twice"};
  return {d.repeated == d.cases,
          fmt::format("the same bits in {} of {} repeated cases", d.repeated, d.cases)};
}

ClaimOutcome faster_than(const Record& record, double claimed, const std::string& peer) {
  double sum = 0.0;
  double low = 0.0;
  double high = 0.0;
  int count = 0;
  for (const SpeedRecord& s : record.speeds) {
    const auto found = s.ratio_to.find(peer);
    if (found == s.ratio_to.end()) continue;
    sum -= std::log(found->second.value);
    low -= std::log(found->second.high);
    high -= std::log(found->second.low);
    ++count;
  }
  if (count == 0) return {std::nullopt, fmt::format("'{}' was not timed beside it", peer)};
  const Interval speedup{std::exp(sum / count), std::exp(low / count), std::exp(high / count), 0};
  const std::string text = fmt::format("{} as fast as {}", format_interval(speedup, "x"), peer);
  if (speedup.high < kSpeedSlack * claimed) return {false, text};
  if (speedup.value >= kSpeedSlack * claimed) return {true, text};
  return {std::nullopt, text + ": not told apart"};
}

ClaimOutcome test_count(const Record& record, double claimed) {
  const bool enough = record.own_tests.tests >= claimed;
  const std::string found = fmt::format("{} found", plural(record.own_tests.tests, "own test"));
  if (!enough && !record.own_tests.all_counted) {
    return {std::nullopt, found + "; there may be others that were not counted"};
  }
  return {enough, found};
}

constexpr std::array<std::string_view, 11> kMeasures = {
    "reads",          "memory_bytes",   "memory_growth", "time_growth",
    "relative_error", "absolute_error", "compute_bound", "memory_bound",
    "same_bits",      "faster_than",    "own_tests"};

ClaimOutcome measured(const Record& record, const ClaimRecord& claim) {
  const double claimed = claim.claimed.value_or(1.0);
  const std::string& m = claim.measure;
  if (m == "reads") return reads(record, claimed);
  if (m == "memory_bytes") return memory_bytes(record, claimed);
  if (m == "memory_growth") return memory_growth(record, claimed);
  if (m == "time_growth") return time_growth(record, claimed);
  if (m == "relative_error") return error_of(record, claimed, false);
  if (m == "absolute_error") return error_of(record, claimed, true);
  if (m == "compute_bound") return bound_by(record, "peak");
  if (m == "memory_bound") return bound_by(record, "copy");
  if (m == "same_bits") return same_bits(record);
  if (m == "faster_than") return faster_than(record, claimed, claim.peer);
  if (m == "own_tests") return test_count(record, claimed);
  return {std::nullopt, "no pattern of the task's card knows it"};
}

}  // namespace

std::span<const std::string_view> claim_measures() { return kMeasures; }

void check_claims(Record& record) {
  for (ClaimRecord& claim : record.claims) {
    ClaimOutcome outcome = measured(record, claim);
    claim.state = !outcome.held.has_value() ? "not measurable" : *outcome.held ? "held" : "broken";
    claim.because = std::move(outcome.because);
  }
}

}  // namespace touchstone::judge
