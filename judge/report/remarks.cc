#include "judge/report/remarks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "judge/report/evidence.h"
#include "judge/report/score.h"
#include "judge/report/text_format.h"

namespace touchstone::judge {
namespace {

// Slack of allocators and pages: less than this is nothing.
constexpr int64_t kNothing = 64 << 10;
constexpr double kManyReads = 1.5;
constexpr double kOneRead = 1.1;
constexpr double kNearRoof = 0.5;
constexpr double kFewBits = 6.0;
constexpr std::size_t kMaxIds = 4;

std::string few(const std::vector<std::string>& words) {
  const std::vector<std::string> first(
      words.begin(), words.begin() + static_cast<std::ptrdiff_t>(std::min(kMaxIds, words.size())));
  return fmt::format(
      "{}{}", fmt::join(first, ", "),
      words.size() > kMaxIds ? fmt::format(" and {} more", words.size() - kMaxIds) : "");
}

void add_correctness(const Record& record, Remarks& out) {
  std::map<std::string, std::vector<std::string>> failed;  // family -> ids
  std::vector<std::string> ids;
  for (const auto* cases : {&record.cases, &record.relations}) {
    for (const CaseRecord& c : *cases) {
      if (c.check.passed || !c.gates || !c.lack.empty()) continue;
      failed[c.title.empty() ? c.spec.family : c.title].push_back(c.id);
      ids.push_back(c.id);
    }
  }
  const CaseCount count = gating_cases(record);
  if (ids.empty()) {
    if (is_right(record.verdict) && count.run > 0) {
      out.strengths.push_back(
          {fmt::format("Right in all {} cases and relations that decide the verdict{}.", count.run,
                       record.lacks.empty() ? "" : " and need nothing that it lacks"),
           {"all cases"}});
    }
    return;
  }
  std::vector<std::string> families;
  for (const auto& [family, of_family] : failed) families.push_back(family);
  out.weaknesses.push_back({fmt::format("Wrong in {} of {} cases that decide the verdict: {}.",
                                        ids.size(), count.run, few(families)),
                            ids});
}

// What is missing, and the one sentence that separates the failing cases from the others.
void add_lacks(const Record& record, Remarks& out) {
  for (const LackRecord& lack : record.lacks) {
    std::vector<std::string> ids;
    for (const auto* cases : {&record.cases, &record.relations}) {
      for (const CaseRecord& c : *cases) {
        if (c.lack == lack.id) ids.push_back(c.id);
      }
    }
    if (ids.empty()) ids.push_back("lacks " + lack.id);
    out.weaknesses.push_back(
        {fmt::format("Lacks {}{}: {} of {} cases with {}.", lack.title,
                     lack.declared ? ", as it says" : "", lack.refused, lack.cases, lack.where),
         ids});
  }
  if (record.diagnosis.empty()) return;
  std::string text = record.diagnosis;
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  if (!text.ends_with('.')) text += '.';
  out.weaknesses.push_back({text, {"all cases"}});
}

void add_probes(const Record& record, Remarks& out) {
  std::map<std::string, std::vector<const ProbeRecord*>> missing;  // by dimension
  for (const ProbeRecord& p : record.probes) {
    const ProbeState state = probe_state(record, p);
    if (state.tested && !state.passed) missing[p.probe.dimension].push_back(&p);
  }
  for (const auto& [dimension, probes] : missing) {
    std::vector<std::string> titles;
    std::vector<std::string> ids;
    for (const ProbeRecord* p : probes) {
      titles.push_back(fmt::format("\"{}\"", p->probe.title));
      ids.insert(ids.end(), p->failed.begin(), p->failed.end());
      if (p->failed.empty()) ids.push_back(p->probe.id);
    }
    std::ranges::stable_sort(ids);
    ids.erase(std::ranges::unique(ids).begin(), ids.end());
    out.weaknesses.push_back(
        {fmt::format("{}: fails {}.", dimension_title(dimension), few(titles)), ids});
    out.weaknesses.back().text[0] =
        static_cast<char>(std::toupper(static_cast<unsigned char>(dimension[0])));
  }
}

void add_stability(const Record& record, Remarks& out) {
  double worst = -1.0;
  std::string id;
  int hard = 0;
  int failed = 0;
  for (const CaseRecord& c : record.cases) {
    const bool stability = std::ranges::any_of(record.probes, [&](const ProbeRecord& p) {
      return p.probe.dimension == "stability" &&
             std::ranges::find(c.probes, p.probe.id) != c.probes.end();
    });
    if (!stability) continue;
    ++hard;
    failed += c.check.passed ? 0 : 1;
    if (c.check.passed && bits_lost(c) > worst) {
      worst = bits_lost(c);
      id = c.id;
    }
  }
  if (hard == 0 || failed > 0 || id.empty()) return;
  const std::string text = fmt::format("Loses at most {:.1f} of 24 bits on {}.", worst,
                                       plural(hard, "numerically hard case"));
  (worst <= kFewBits ? out.strengths : out.weaknesses).push_back({text, {id}});
}

// Its time over that of `peer`, over all shapes; nothing when they were not timed together.
std::optional<Interval> ratio_to(const Record& record, const std::string& peer) {
  double value = 0.0;
  double low = 0.0;
  double high = 0.0;
  int count = 0;
  for (const SpeedRecord& s : record.speeds) {
    const auto found = s.ratio_to.find(peer);
    if (found == s.ratio_to.end()) continue;
    value += std::log(found->second.value);
    low += std::log(found->second.low);
    high += std::log(found->second.high);
    ++count;
  }
  if (count == 0) return std::nullopt;
  return Interval{std::exp(value / count), std::exp(low / count), std::exp(high / count), count};
}

void add_speed(const Record& record, Remarks& out) {
  std::vector<std::string> ids;
  std::map<std::string, Interval> ratios;
  double roof = 0.0;
  const SpeedRecord* nearest = nullptr;
  for (const SpeedRecord& s : record.speeds) {
    ids.push_back(s.id);
    for (const auto& [peer, ratio] : s.ratio_to) {
      if (const auto mean = ratio_to(record, peer); mean.has_value()) ratios[peer] = *mean;
    }
    if (s.share_of_roof > roof) {
      roof = s.share_of_roof;
      nearest = &s;
    }
  }
  if (!ratios.empty()) {
    const auto by_value = [](const auto& a, const auto& b) {
      return a.second.value < b.second.value;
    };
    // The peer against which it looks worst.
    const auto hardest = std::max_element(ratios.begin(), ratios.end(), by_value);
    if (hardest->second.low > 1.01) {  // somebody is surely faster
      out.weaknesses.push_back({fmt::format("Takes {} the time of {}.",
                                            format_interval(hardest->second, "x"), hardest->first),
                                ids});
    } else if (hardest->second.high < 0.99) {
      out.strengths.push_back(
          {fmt::format("The fastest of {}: {} the time of {}, the next.", ratios.size() + 1,
                       format_interval(hardest->second, "x"), hardest->first),
           ids});
    }
  }
  if (nearest != nullptr && roof >= kNearRoof) {
    out.strengths.push_back({fmt::format("Reaches {:.0f} % of what this machine allows at {}.",
                                         100.0 * roof, format_shape(nearest->shape)),
                             {nearest->id}});
  }
}

void add_memory(const Record& record, Remarks& out) {
  const MemoryRecord& memory = record.memory;
  if (memory.ladder.empty()) return;
  const MemoryPoint& top = memory.ladder.back();
  const int64_t more = std::max<int64_t>(0, top.extra_bytes - top.least_bytes);
  const std::string at = fmt::format("{} {}", memory.parameter, top.n);
  if (more <= kNothing) {
    out.strengths.push_back(
        {fmt::format("Holds {} beyond what {} needs.",
                     more < 8192 ? std::string("nothing") : format_bytes(static_cast<double>(more)),
                     at),
         {"memory"}});
  } else if (more > top.io_bytes / 4) {
    out.weaknesses.push_back(
        {fmt::format("Holds {} at {}, {:.1f} times its inputs and outputs.",
                     format_bytes(static_cast<double>(top.extra_bytes)), at,
                     static_cast<double>(top.extra_bytes) / static_cast<double>(top.io_bytes)),
         {"memory"}});
  }
  if (memory.exponent.has_value() && *memory.exponent > 1.2) {
    out.weaknesses.push_back(
        {fmt::format("Its memory grows as {}^{:.2f}.", memory.parameter, *memory.exponent),
         {"memory"}});
  }
  if (top.kept_bytes - top.least_bytes > (int64_t{1} << 20)) {
    out.weaknesses.push_back({fmt::format("Keeps {} after its last call.",
                                          format_bytes(static_cast<double>(top.kept_bytes))),
                              {"memory"}});
  }
}

void add_reads(const Record& record, Remarks& out) {
  if (!record.traffic.not_measured.empty() || record.traffic.inputs.empty()) return;
  const auto most = std::ranges::max_element(record.traffic.inputs, {}, &InputReads::per_page);
  if (most->per_page() <= kOneRead) {
    out.strengths.push_back({"Reads every input once.", {"traffic"}});
  } else if (most->per_page() >= kManyReads) {
    out.weaknesses.push_back(
        {fmt::format("Reads the pages of {} {:.1f} times.", most->input, most->per_page()),
         {"traffic"}});
  }
}

void add_findings(const Record& record, Remarks& out) {
  std::map<std::string, std::vector<std::string>> kinds;
  for (const Finding& f : record.findings) kinds[f.kind].push_back(f.id);
  for (const auto& [kind, ids] : kinds) {
    std::string text(find_kind(kind).title);
    text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
    out.weaknesses.push_back({text + ".", ids});
  }
  const DeterminismRecord& d = record.determinism;
  if (d.cases > 0 && d.repeated == d.cases && d.moved == d.cases) {
    out.strengths.push_back(
        {fmt::format("The same bits in {} repeated cases, at other addresses too.", d.cases),
         {"determinism"}});
  }
}

void add_code(const Record& record, Remarks& out) {
  const auto dead = record.facts.find("dead functions");
  const int dead_count = dead == record.facts.end() ? 0 : std::atoi(dead->second.c_str());
  if (record.build.warnings > 0) {
    out.weaknesses.push_back({plural(record.build.warnings, "compiler warning") + ".", {"build"}});
  }
  if (dead_count > 0) {
    const auto names = record.facts.find("never called");
    out.weaknesses.push_back({fmt::format("{} never called: {}.", plural(dead_count, "function"),
                                          names == record.facts.end() ? "" : names->second),
                              {"code"}});
  }
  const OwnTests& own = record.own_tests;
  if (own.present && own.asserts == 0 && own.tests > 0) {
    out.weaknesses.push_back({"Its own tests assert nothing.", {"own tests"}});
  } else if (own.mutants > 0) {
    const std::string text =
        fmt::format("Its own {} {} {} of {} broken copies.", plural(own.tests, "test"),
                    own.tests == 1 ? "notices" : "notice", own.killed, own.mutants);
    (2 * own.killed >= own.mutants ? out.strengths : out.weaknesses)
        .push_back({text, {"own tests"}});
  }
}

void add_claims(const Record& record, Remarks& out) {
  std::vector<std::string> held;
  for (const ClaimRecord& claim : record.claims) {
    if (claim.state == "held") held.push_back(claim.id);
    if (claim.state != "broken") continue;
    out.weaknesses.push_back({fmt::format("Claims \"{}\" ({}), which does not hold: {}.",
                                          claim.text, claim.source, claim.because),
                              {claim.id}});
  }
  if (!held.empty()) {
    out.strengths.push_back(
        {fmt::format("{} of its own {} measured and held.", plural(std::ssize(held), "claim"),
                     held.size() == 1 ? "was" : "were"),
         held});
  }
}

}  // namespace

Remarks remarks(const Record& record) {
  Remarks out;
  if (!record.build.built || record.verdict == Verdict::untested ||
      record.verdict == Verdict::judge_error) {
    return out;
  }
  add_correctness(record, out);
  add_lacks(record, out);
  add_probes(record, out);
  add_stability(record, out);
  add_speed(record, out);
  add_memory(record, out);
  add_reads(record, out);
  add_findings(record, out);
  add_code(record, out);
  add_claims(record, out);
  return out;
}

std::string remark_text(const Remark& remark) {
  return fmt::format("{} ({})", remark.text, few(remark.evidence));
}

}  // namespace touchstone::judge
