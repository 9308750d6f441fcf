#include "judge/report/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "judge/report/claims.h"
#include "judge/report/evidence.h"
#include "judge/report/text_format.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

constexpr std::array<std::string_view, 9> kDimensions = {
    "correctness", "completeness", "stability", "speed",    "memory",
    "robustness",  "determinism",  "code",      "own_tests"};

constexpr std::array<FindingKind, 14> kKinds = {{
    {"cached_answer", Verdict::proven_cheat, 50, "an answer that was not computed"},
    {"work_skipped", Verdict::proven_cheat, 50, "work skipped when an input comes again"},
    {"wrote_outside", Verdict::unsafe, 50, "touched memory beside its own"},
    {"wrote_input", Verdict::unsafe, 40, "wrote to its inputs"},
    {"crashed", Verdict::unsafe, 50, "crashed"},
    {"sanitizer", Verdict::unsafe, 40, "a sanitizer reports an error"},
    {"heap", Verdict::unsafe, 40, "relies on heap memory that is not its own or not filled"},
    {"forbidden", Verdict::rule, 40, "a system call the sandbox refuses"},
    {"hung", Verdict::limit, 40, "no answer in time"},
    {"out_of_memory", Verdict::limit, 40, "over the memory limit"},
    {"exited", Verdict::wrong, 40, "left without answering"},
    {"other_bits", Verdict::unstable, 10, "other bits when the same case is run again"},
    {"flipped", Verdict::unstable, 30, "the same case right once and wrong once"},
    {"leak", Verdict::pass, 20, "memory grows from call to call"},
}};

// Verdicts by weight: what is listed first wins when a contender earned several.
constexpr std::array<Verdict, 6> kGravest = {Verdict::proven_cheat, Verdict::unsafe,
                                             Verdict::rule,         Verdict::limit,
                                             Verdict::wrong,        Verdict::unstable};

// A good float32 implementation loses about this many bits on the cases of stability.
constexpr double kFreeBits = 3.0;
// All tasks so far allow memory that grows as fast as the inputs do; the rest is for noise.
constexpr double kMaxExponent = 1.2;
// Geometric means must survive a zero.
constexpr double kMinScore = 1.0;

double clipped(double value) { return std::clamp(value, 0.0, 100.0); }

// Wilson's 95 % interval for a share of `passed` in `count`.
std::pair<double, double> share_interval(int passed, int count) {
  if (count == 0) return {0.0, 1.0};
  constexpr double kZ = 1.96;
  const double n = count;
  const double p = passed / n;
  const double center = (p + kZ * kZ / (2 * n)) / (1 + kZ * kZ / n);
  const double half = kZ * std::sqrt(p * (1 - p) / n + kZ * kZ / (4 * n * n)) / (1 + kZ * kZ / n);
  return {std::max(0.0, center - half), passed == count ? 1.0 : std::min(1.0, center + half)};
}

std::string described(const CaseRecord& c) {
  const std::string what = c.title.empty() ? c.spec.family : c.title;
  return fmt::format("{} ({}): {}", c.id, what, c.check.reason);
}

Score untested(std::string why) {
  Score score;
  score.because = std::move(why);
  score.high = 100.0;
  return score;
}

Score exact(double value, std::string because, std::vector<std::string> evidence) {
  Score score;
  score.value = clipped(value);
  score.low = score.high = *score.value;
  score.because = std::move(because);
  score.evidence = std::move(evidence);
  return score;
}

Score correctness(const Record& record) {
  std::map<std::string, std::pair<int, int>> families;  // passed, run
  std::vector<std::string> failed;
  int passed = 0;
  int run = 0;
  for (const auto* cases : {&record.cases, &record.relations}) {
    for (const CaseRecord& c : *cases) {
      if (!c.gates || !c.lack.empty()) continue;  // what is lacked costs completeness
      auto& [family_passed, family_run] =
          families[c.title.empty() ? c.spec.family : "relation: " + c.title];
      ++family_run;
      ++run;
      if (c.check.passed) {
        ++family_passed;
        ++passed;
      } else {
        failed.push_back(c.id);
      }
    }
  }
  if (run == 0) return untested("no case was run");
  double sum = 0.0;
  int whole = 0;
  for (const auto& [name, counted] : families) {
    sum += static_cast<double>(counted.first) / counted.second;
    if (counted.first == counted.second) ++whole;
  }
  Score score;
  score.value = 100.0 * sum / static_cast<double>(families.size());
  const auto [low, high] = share_interval(passed, run);
  score.low = std::min(*score.value, 100.0 * low);
  score.high = std::max(*score.value, 100.0 * high);
  score.because =
      fmt::format("{} of {} cases, {} of {} families whole", passed, run, whole, families.size());
  score.evidence = failed.empty() ? std::vector<std::string>{"all cases"} : failed;
  return score;
}

// The probes of one dimension; nothing when it has none.
struct ProbeShare {
  int passed = 0;
  int tested = 0;
  std::vector<std::string> failed;
};

ProbeShare probe_share(const Record& record, std::string_view dimension) {
  ProbeShare share;
  for (const ProbeRecord& p : record.probes) {
    if (p.probe.dimension != dimension || !p.tested) continue;
    ++share.tested;
    if (p.passed) {
      ++share.passed;
    } else {
      share.failed.push_back(p.probe.id);
    }
  }
  return share;
}

Score completeness(const Record& record) {
  const ProbeShare share = probe_share(record, "completeness");
  if (share.tested == 0) return untested("the task has no probe for it");
  std::string because = fmt::format("{} of {} probes", share.passed, share.tested);
  if (!share.failed.empty())
    because += "; not: " + fmt::format("{}", fmt::join(share.failed, ", "));
  return exact(100.0 * share.passed / share.tested, because, share.failed);
}

Score stability(const Record& record) {
  double sum = 0.0;
  double worst = -1.0;
  std::string worst_id;
  int count = 0;
  int failed = 0;
  std::vector<std::string> evidence;
  for (const CaseRecord& c : record.cases) {
    if (!tests_stability(record, c)) continue;
    ++count;
    if (!c.check.passed) {
      ++failed;
      evidence.push_back(c.id);
      continue;  // adds no points: all is lost
    }
    if (bits_lost(c) > worst) {
      worst = bits_lost(c);
      worst_id = c.id;
    }
    sum += stability_points(c);
  }
  if (count == 0) return untested("the task has no case for it");
  std::string because = failed > 0   ? fmt::format("{} of {} hard cases fail", failed, count)
                        : count == 1 ? std::string("the one hard case holds")
                                     : fmt::format("all {} hard cases hold", count);
  if (!worst_id.empty()) {
    because += fmt::format("{} at most {:.1f} bits ({})",
                           failed > 0 ? "; the others lose" : ", losing", worst, worst_id);
    evidence.push_back(worst_id);
  }
  return exact(sum / count, because, evidence);
}

Score speed(const Record& record, Verdict verdict) {
  if (!is_right(verdict)) {
    return untested("not ranked: it did not pass");
  }
  if (!record.speeds_withheld.empty()) return untested("withheld: " + record.speeds_withheld);
  if (record.speeds.empty()) {
    return untested(verdict == Verdict::partial
                        ? "not measured: every timed shape needs what it lacks"
                        : "not measured");
  }
  double sum = 0.0;
  double low = 0.0;
  double high = 0.0;
  Score score;
  double roof = 0.0;
  for (const SpeedRecord& s : record.speeds) {
    // The fastest right peer of the session, or, alone, nine tenths of what the memory allows.
    Interval ratio{1.0, 1.0, 1.0, 0};
    if (s.ratio_to.empty() && s.floor_seconds > 0.0) {
      const double target = s.floor_seconds / 0.9;
      ratio = {s.seconds.value / target, s.seconds.low / target, s.seconds.high / target, 0};
    }
    for (const auto& [peer, to_peer] : s.ratio_to) {
      if (to_peer.value > ratio.value) ratio = to_peer;
    }
    sum += std::log(std::max(1.0, ratio.value));
    low += std::log(std::max(1.0, ratio.high));
    high += std::log(std::max(1.0, ratio.low));
    roof += std::log(std::max(1e-6, s.share_of_roof));
    score.evidence.push_back(s.id);
  }
  const auto shapes = static_cast<double>(record.speeds.size());
  const bool alone =
      std::ranges::all_of(record.speeds, [](const SpeedRecord& s) { return s.ratio_to.empty(); });
  score.value = clipped(100.0 * std::exp(-sum / shapes));
  score.low = clipped(100.0 * std::exp(-low / shapes));
  score.high = clipped(100.0 * std::exp(-high / shapes));
  const char* const peer = alone ? "nine tenths of the roof" : "the fastest";
  if (sum / shapes < 0.005) {
    score.because = fmt::format("{} on {} shape{}", alone ? "at the roof" : peer,
                                record.speeds.size(), record.speeds.size() == 1 ? "" : "s");
  } else if (high / shapes < 0.005) {
    // The interval reaches down to the fastest: the two cannot be told apart.
    score.because = fmt::format("not told apart from {}, at most {:.2f}x its time", peer,
                                std::exp(low / shapes));
  } else {
    score.because = fmt::format("{:.3g}x the time of {} ({:.3g} to {:.3g})", std::exp(sum / shapes),
                                peer, std::exp(high / shapes), std::exp(low / shapes));
  }
  if (std::ranges::all_of(record.speeds,
                          [](const SpeedRecord& s) { return s.share_of_roof > 0; })) {
    score.because += fmt::format("; {:.0f} % of the roof", 100.0 * std::exp(roof / shapes));
  }
  if (record.facts.contains("shapes not timed")) {
    score.because += fmt::format("; on {} only, the others need what it lacks",
                                 plural(static_cast<int64_t>(record.speeds.size()), "shape"));
  }
  return score;
}

Score memory(const Record& record) {
  const auto& ladder = record.memory.ladder;
  if (ladder.empty()) {
    return untested(record.language == "cuda" ? "not measured on a GPU" : "not measured");
  }
  // The large half: on the small rungs a page of slack is most of what is seen.
  double sum = 0.0;
  const std::size_t first = ladder.size() / 2;
  for (std::size_t i = first; i < ladder.size(); ++i) {
    const MemoryPoint& p = ladder[i];
    const auto least = static_cast<double>(p.io_bytes + p.least_bytes);
    const auto used = static_cast<double>(p.io_bytes + std::max(p.extra_bytes, p.least_bytes));
    sum += std::log(std::max(1.0, least) / std::max(1.0, used));
  }
  double value = 100.0 * std::exp(sum / static_cast<double>(ladder.size() - first));
  const MemoryPoint& top = ladder.back();
  std::string because = fmt::format(
      "holds {} at {} {} where {} needed; {} in and out",
      format_bytes(static_cast<double>(std::max<int64_t>(0, top.extra_bytes))),
      record.memory.parameter, top.n,
      top.least_bytes == 0 ? "nothing is"
                           : format_bytes(static_cast<double>(top.least_bytes)) + " are",
      format_bytes(static_cast<double>(top.io_bytes)));
  if (!record.memory.whole()) {
    because += fmt::format("; measured at {} of {} sizes", ladder.size(), record.memory.sizes);
  }
  if (record.memory.exponent.has_value()) {
    because +=
        fmt::format("; grows as {}^{:.2f}", record.memory.parameter, *record.memory.exponent);
    if (*record.memory.exponent > kMaxExponent) {
      value /= 2.0;
      because += ", faster than needed";
    }
  }
  return exact(value, because, {"memory"});
}

Score robustness(const Record& record) {
  const ProbeShare share = probe_share(record, "robustness");
  if (share.tested == 0 && record.cases.empty()) return untested("no case was run");
  double value = share.tested == 0 ? 100.0 : 100.0 * share.passed / share.tested;
  std::string because = share.tested == 0
                            ? "no probe of its own"
                            : fmt::format("{} of {} probes", share.passed, share.tested);
  std::vector<std::string> evidence = share.failed;
  std::set<std::string> seen;  // a class of findings costs once
  for (const Finding& f : record.findings) {
    evidence.push_back(f.id);
    if (!seen.insert(f.kind).second) continue;
    const FindingKind& kind = find_kind(f.kind);
    value -= kind.deduction;
    because += fmt::format("; {} ({})", kind.title, f.id);
  }
  return exact(value, because, evidence);
}

Score determinism(const Record& record) {
  const DeterminismRecord& d = record.determinism;
  if (d.cases == 0) return untested("nothing was run twice");
  const double repeated = static_cast<double>(d.repeated) / d.cases;
  const double moved = static_cast<double>(d.moved) / d.cases;
  std::string because =
      d.repeated == d.cases
          ? fmt::format("the same bits in {} repeated cases", d.cases)
          : fmt::format("other bits in {} of {} repeated cases", d.cases - d.repeated, d.cases);
  if (d.moved != d.cases) {
    because += fmt::format("; other bits at other addresses in {}", d.cases - d.moved);
  }
  return exact(100.0 * (0.8 * repeated + 0.2 * moved), because, d.differing);
}

Score code(const Record& record) {
  if (record.build.source_lines == 0) return untested("no source");
  const auto dead = record.facts.find("dead functions");
  const int dead_count = dead == record.facts.end() ? 0 : std::atoi(dead->second.c_str());
  const bool python = record.language == "numpy";
  if (python && dead == record.facts.end()) return untested("nothing looked at it");
  std::string because =
      python ? plural(record.build.source_lines, "line")
             : fmt::format("{} in {} lines", plural(record.build.warnings, "warning"),
                           record.build.source_lines);
  if (dead_count > 0) {
    because += fmt::format(", {} never called", plural(dead_count, "function"));
  } else if (python) {
    because += ", every function is called";
  }
  return exact(100.0 - 5.0 * record.build.warnings - 5.0 * dead_count, because, {"build"});
}

Score own_tests(const Record& record) {
  const OwnTests& tests = record.own_tests;
  if (!tests.present) return untested("brings none");
  if (tests.mutants == 0) return untested(tests.detail.empty() ? "not run" : tests.detail);
  std::string because =
      fmt::format("{} {} {} of {} broken copies", plural(tests.tests, "test"),
                  tests.tests == 1 ? "notices" : "notice", tests.killed, tests.mutants);
  if (tests.not_ended > 0) because += fmt::format(", on {} by not ending", tests.not_ended);
  if (tests.not_run > 0) because += fmt::format("; {} not run", tests.not_run);
  return exact(100.0 * tests.killed / tests.mutants, because, {"own tests"});
}

// The first error; compilers print where a file is included from before it.
std::string build_error(const std::string& log) {
  std::string first;
  std::size_t begin = 0;
  while (begin < log.size()) {
    const std::size_t end = std::min(log.find('\n', begin), log.size());
    const std::string line = log.substr(begin, end - begin);
    for (const char* mark : {"error: ", "undefined reference", "Error: ", "Error in "}) {
      if (line.find(mark) != std::string::npos) return line;
    }
    if (first.empty() && !line.starts_with("In file included")) first = line;
    begin = end + 1;
  }
  return first;
}

// What decides the verdict apart from what only costs points.
std::string pass_words(const Record& record) {
  const CaseCount gating = gating_cases(record);
  const CaseCount points = point_cases(record);
  std::string words = fmt::format("all {} cases and relations that decide it", gating.run);
  if (points.passed < points.run) {
    words += fmt::format("; {} of {} that only cost points fail", points.run - points.passed,
                         points.run);
  }
  return words;
}

// "lacks grouped heads (refuses 76 of 76 cases with group > 1), the log-sum-exp".
std::string lacks_sentence(const Record& record) {
  std::vector<std::string> parts;
  for (const LackRecord& lack : record.lacks) {
    parts.push_back(lack.where == lack.id
                        ? lack.title
                        : fmt::format("{} (refuses {} of {} cases with {})", lack.title,
                                      lack.refused, lack.cases, lack.where));
  }
  return fmt::format("right in all it does; lacks {}", fmt::join(parts, ", "));
}

// The gravest verdict of findings and failed cases, and the line that says why.
std::pair<Verdict, std::string> verdict_of(const Record& record) {
  if (!record.judge_error.empty()) return {Verdict::judge_error, record.judge_error};
  if (!record.untested.empty()) return {Verdict::untested, record.untested};
  if (!record.build.built) return {Verdict::nobuild, build_error(record.build.log)};
  if (record.cases.empty() && record.findings.empty())
    return {Verdict::untested, "no case was run"};
  std::map<Verdict, std::string> earned;
  for (const Finding& f : record.findings) {
    const FindingKind& kind = find_kind(f.kind);
    if (kind.verdict == Verdict::pass) continue;
    earned.try_emplace(kind.verdict, fmt::format("{}: {}", f.id, f.text));
  }
  for (const auto* cases : {&record.cases, &record.relations}) {
    for (const CaseRecord& c : *cases) {
      if (c.check.passed || !c.gates || !c.lack.empty()) continue;
      earned.try_emplace(Verdict::wrong, described(c));
    }
  }
  for (const Verdict verdict : kGravest) {
    const auto found = earned.find(verdict);
    if (found != earned.end()) return *found;
  }
  for (const SpeedRecord& s : record.speeds) {
    if (s.impossible) {
      return {Verdict::impossible,
              fmt::format("{}: {:.3g} s is under the {:.3g} s that the {} needs, twice", s.id,
                          s.seconds.value, s.floor_seconds,
                          s.roof == "peak" ? "arithmetic" : "memory")};
    }
  }
  if (!record.lacks.empty()) return {Verdict::partial, lacks_sentence(record)};
  return {Verdict::pass, pass_words(record)};
}

Score overall_score(const std::map<std::string, Score>& scores,
                    const std::map<std::string, double>& weights) {
  const std::optional<double> value = overall(scores, weights);
  if (!value.has_value()) return untested("nothing was tested");
  Score score;
  score.value = score.low = score.high = *value;
  score.because = "weighted geometric mean of what was tested";
  for (const auto& [dimension, tested] : scores) {
    if (tested.value.has_value()) score.evidence.push_back(dimension);
  }
  return score;
}

}  // namespace

bool is_right(Verdict verdict) { return verdict == Verdict::pass || verdict == Verdict::partial; }

bool tests_stability(const Record& record, const CaseRecord& c) {
  return std::ranges::any_of(record.probes, [&](const ProbeRecord& p) {
    return p.probe.dimension == "stability" &&
           std::ranges::find(c.probes, p.probe.id) != c.probes.end();
  });
}

double stability_points(const CaseRecord& c) {
  if (!c.check.passed) return 0.0;
  return clipped(100.0 - 10.0 * std::max(0.0, bits_lost(c) - kFreeBits));
}

std::span<const std::string_view> dimensions() { return kDimensions; }

std::span<const FindingKind> finding_kinds() { return kKinds; }

const FindingKind& find_kind(std::string_view kind) {
  const auto found = std::ranges::find(kKinds, kind, &FindingKind::kind);
  if (found == kKinds.end()) {
    throw InvalidArgument(fmt::format("finding: there is no kind '{}'", kind));
  }
  return *found;
}

Judgment score(const Record& record) {
  Judgment judgment;
  std::tie(judgment.verdict, judgment.because) = verdict_of(record);
  auto& scores = judgment.scores;
  if (judgment.verdict == Verdict::nobuild) {
    for (const std::string_view dimension : kDimensions) {
      scores[std::string(dimension)] = untested("it does not build");
    }
    scores["correctness"] = exact(0.0, "it does not build", {"build"});
  } else if (judgment.verdict == Verdict::untested) {
    for (const std::string_view dimension : kDimensions) {
      scores[std::string(dimension)] = untested(judgment.because);
    }
  } else {
    scores["correctness"] = correctness(record);
    scores["completeness"] = completeness(record);
    scores["stability"] = stability(record);
    scores["speed"] = speed(record, judgment.verdict);
    scores["memory"] = memory(record);
    scores["robustness"] = robustness(record);
    scores["determinism"] = determinism(record);
    scores["code"] = code(record);
    scores["own_tests"] = own_tests(record);
  }
  // One number for all would hide that it must not be used.
  scores["overall"] = is_right(judgment.verdict) ? overall_score(scores, record.weights)
                      : judgment.verdict == Verdict::untested ? untested(judgment.because)
                                                              : untested("it did not pass");
  if (judgment.verdict != Verdict::nobuild && judgment.verdict != Verdict::untested) {
    draw_intervals(record, scores);
    widen_by_seeds(record, scores);
  }
  return judgment;
}

void apply_scores(Record& record) {
  Judgment judgment = score(record);
  record.verdict = judgment.verdict;
  record.verdict_because = std::move(judgment.because);
  record.scores = std::move(judgment.scores);
  check_claims(record);
}

std::optional<double> overall(const std::map<std::string, Score>& scores,
                              const std::map<std::string, double>& weights) {
  double sum = 0.0;
  double total = 0.0;
  for (const auto& [dimension, weight] : weights) {
    const auto found = scores.find(dimension);
    if (found == scores.end() || !found->second.value.has_value() || !(weight > 0.0)) continue;
    sum += weight * std::log(std::max(kMinScore, *found->second.value));
    total += weight;
  }
  if (total == 0.0) return std::nullopt;
  return clipped(std::exp(sum / total));  // the exponential may end a hair above
}

Outcome outcome(const Interval& ratio, double margin) {
  if (ratio.low >= 1.0 - margin && ratio.high <= 1.0 + margin) return Outcome::same;
  if (ratio.high < 1.0) return Outcome::faster;
  if (ratio.low > 1.0) return Outcome::slower;
  return Outcome::unresolved;
}

}  // namespace touchstone::judge
