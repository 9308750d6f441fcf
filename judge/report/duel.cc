#include "judge/report/duel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "judge/report/evidence.h"
#include "judge/report/score.h"
#include "judge/report/text_format.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

std::string joined(const std::vector<std::string>& ids) {
  constexpr std::size_t kMax = 4;
  const std::vector<std::string> few(
      ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(std::min(kMax, ids.size())));
  return fmt::format("{}{}", fmt::join(few, ", "),
                     ids.size() > kMax ? fmt::format(" and {} more", ids.size() - kMax) : "");
}

// Whose evidence it is stands in front of it.
std::string said(const Record& a, const std::string& first, const Record& b,
                 const std::string& second) {
  if (first == second) return fmt::format("both: {}", first);
  return fmt::format("{}: {}\n{}: {}", a.contender, first, b.contender, second);
}

Edge better(double first, double second, double margin) {
  if (first > second + margin) return Edge::first;
  if (second > first + margin) return Edge::second;
  return Edge::tie;
}

Criterion compare_dimension(const Record& a, const Record& b, const std::string& dimension) {
  const Score& x = a.scores.at(dimension);
  const Score& y = b.scores.at(dimension);
  Criterion c;
  c.name = dimension_title(dimension);
  c.first = format_score(x);
  c.second = format_score(y);
  if (!x.value.has_value() || !y.value.has_value()) {
    c.edge = Edge::unresolved;
    c.evidence = said(a, x.because, b, y.because);
    return c;
  }
  c.edge = better(*x.value, *y.value, kTieMargin);
  // Only where the number is an estimate do its bounds decide; a count is what it is.
  if (dimension == "speed" && c.edge != Edge::tie && x.low <= y.high && y.low <= x.high) {
    c.edge = Edge::unresolved;
  }
  c.evidence = said(a, x.because, b, y.because);
  return c;
}

// Probes that one passes and the other does not.
void compare_probes(const Record& a, const Record& b, std::vector<Criterion>& out) {
  for (const ProbeRecord& p : a.probes) {
    const auto q = std::ranges::find_if(
        b.probes, [&](const ProbeRecord& other) { return other.probe.id == p.probe.id; });
    if (q == b.probes.end()) continue;
    const ProbeState first = probe_state(a, p);
    const ProbeState second = probe_state(b, *q);
    if (!first.tested || !second.tested || first.passed == second.passed) continue;
    const std::vector<std::string>& failed = first.passed ? q->failed : p.failed;
    out.push_back(
        {p.probe.title, first.word, second.word, first.passed ? Edge::first : Edge::second,
         failed.empty() ? std::string("within the bound, and without its digits")
                        : fmt::format("{} fails {}", first.passed ? b.contender : a.contender,
                                      joined(failed))});
  }
}

void compare_speeds(const Record& a, const Record& b, std::vector<Criterion>& out) {
  for (const SpeedRecord& s : a.speeds) {
    const auto ratio = s.ratio_to.find(b.contender);
    const auto t = std::ranges::find(b.speeds, s.id, &SpeedRecord::id);
    if (ratio == s.ratio_to.end() || t == b.speeds.end()) continue;
    Edge edge = Edge::unresolved;
    switch (outcome(ratio->second)) {
      case Outcome::faster:
        edge = Edge::first;
        break;
      case Outcome::slower:
        edge = Edge::second;
        break;
      case Outcome::same:
        edge = Edge::tie;
        break;
      case Outcome::unresolved:
        break;
    }
    out.push_back(
        {fmt::format("time, {}", s.id), format_seconds(s.seconds.value),
         format_seconds(t->seconds.value), edge,
         fmt::format("{}: ratio {}, {} pairs; {} and {:.3g} MFLOP at least, {:.3g} FLOP "
                     "for each byte",
                     format_shape(s.shape), format_interval(ratio->second), ratio->second.samples,
                     format_bytes(s.bytes), 1e-6 * s.flops, intensity_of(s))});
  }
}

void compare_precision(const Record& a, const Record& b, std::vector<Criterion>& out) {
  const std::vector<OutputPrecision> others = precision_of(b);
  for (const OutputPrecision& p : precision_of(a)) {
    const auto q = std::ranges::find(others, p.output, &OutputPrecision::output);
    if (q == others.end()) continue;
    const auto bits = [](double relative) { return std::log2(1.0 + relative / kUnitRoundoff); };
    const bool nominal = p.nominal.has_value() && q->nominal.has_value();
    const double x = nominal ? *p.nominal : p.relative;
    const double y = nominal ? *q->nominal : q->relative;
    const auto worst = [](const OutputPrecision& o) {
      return fmt::format("{:.2g} at worst ({})", o.relative, o.relative_case);
    };
    out.push_back({fmt::format("relative error of {}", p.output), fmt::format("{:.2g}", x),
                   fmt::format("{:.2g}", y), better(-bits(x), -bits(y), 0.5),
                   said(a, worst(p), b, worst(*q))});
  }
}

void compare_memory(const Record& a, const Record& b, std::vector<Criterion>& out) {
  if (!a.memory.ladder.empty() && a.memory.ladder.size() == b.memory.ladder.size()) {
    const MemoryPoint& p = a.memory.ladder.back();
    const MemoryPoint& q = b.memory.ladder.back();
    const auto add = [&](const char* what, int64_t first, int64_t second) {
      const auto x = static_cast<double>(std::max<int64_t>(0, first));
      const auto y = static_cast<double>(std::max<int64_t>(0, second));
      out.push_back({what, format_bytes(x), format_bytes(y),
                     better(-x, -y, 0.05 * std::max(x, y) + 65536.0),
                     fmt::format("at {} {}", a.memory.parameter, p.n)});
    };
    add("memory held", p.extra_bytes, q.extra_bytes);
    add("kept between calls", p.kept_bytes, q.kept_bytes);
  }
  const auto exponent = [&](const char* what, const std::optional<double>& x,
                            const std::optional<double>& y) {
    if (!x.has_value() || !y.has_value()) return;
    out.push_back({what, fmt::format("{:.2f}", *x), fmt::format("{:.2f}", *y),
                   better(-*x, -*y, 0.1), fmt::format("the power of {}", a.memory.parameter)});
  };
  exponent("growth of memory", a.memory.exponent, b.memory.exponent);
  exponent("growth of time", a.memory.time_exponent, b.memory.time_exponent);
  for (const InputReads& p : a.traffic.inputs) {
    const auto q = std::ranges::find(b.traffic.inputs, p.input, &InputReads::input);
    if (q == b.traffic.inputs.end()) continue;
    out.push_back({fmt::format("reads per page of {}", p.input),
                   fmt::format("{:.1f}", p.per_page()), fmt::format("{:.1f}", q->per_page()),
                   better(-p.per_page(), -q->per_page(), 0.2),
                   fmt::format("at {}", format_shape(a.traffic.shape))});
  }
}

// What stands on the sheets of both and was not compared above.
std::vector<Criterion> listed_facts(const Record& a, const Record& b,
                                    const std::vector<Criterion>& compared) {
  std::vector<EvidenceRow> first;
  std::vector<EvidenceRow> second;
  const auto rows = [](const Record& record, std::vector<EvidenceRow>& all) {
    for (const EvidenceSheet& sheet : evidence_sheets(record)) {
      if (sheet.title == "Claims" || sheet.title == "Precision") continue;
      for (const EvidenceRow& row : sheet.rows) {
        if (!is_timed_shape(row)) all.push_back(row);
      }
    }
  };
  rows(a, first);
  rows(b, second);
  std::vector<Criterion> facts;
  const auto value_in = [](const std::vector<EvidenceRow>& all, const std::string& name) {
    const auto found = std::ranges::find(all, name, &EvidenceRow::name);
    return found == all.end() ? std::string("-") : found->value;
  };
  for (const auto* all : {&first, &second}) {
    for (const EvidenceRow& row : *all) {
      const auto same = [&](const Criterion& c) { return c.name == row.name; };
      if (std::ranges::any_of(facts, same) || std::ranges::any_of(compared, same)) continue;
      facts.push_back({row.name, value_in(first, row.name), value_in(second, row.name),
                       Edge::unresolved, row.note});
    }
  }
  return facts;
}

std::string conclusion(const Record& a, const Record& b) {
  const bool a_passes = a.verdict == Verdict::pass;
  const bool b_passes = b.verdict == Verdict::pass;
  const auto quoted = [](const Record& r) {
    return fmt::format("{} ({})", name_of(r.verdict), r.verdict_because);
  };
  for (const Record* record : {&a, &b}) {
    if (record->verdict != Verdict::untested && record->verdict != Verdict::judge_error) continue;
    return fmt::format("Nothing can be said: {} is {}.", record->contender, quoted(*record));
  }
  if (a_passes != b_passes) {
    const Record& winner = a_passes ? a : b;
    const Record& loser = a_passes ? b : a;
    return fmt::format("{} passes, {} does not: {}.", winner.contender, loser.contender,
                       quoted(loser));
  }
  if (a.verdict != b.verdict && (is_right(a.verdict) || is_right(b.verdict))) {
    const Record& winner = is_right(a.verdict) ? a : b;
    const Record& loser = is_right(a.verdict) ? b : a;
    return fmt::format("{} is {}; {} is {}.", winner.contender, quoted(winner), loser.contender,
                       quoted(loser));
  }
  if (!is_right(a.verdict)) {
    return fmt::format("Neither passes: {} is {}, {} is {}.", a.contender, quoted(a), b.contender,
                       quoted(b));
  }
  int first = 0;
  int second = 0;
  int all = 0;
  for_each_weighting(a.weights, [&](const std::map<std::string, double>& weights) {
    ++all;
    const double x = overall(a.scores, weights).value_or(0.0);
    const double y = overall(b.scores, weights).value_or(0.0);
    if (x > y + kTieMargin) ++first;
    if (y > x + kTieMargin) ++second;
  });
  if (first == all) return fmt::format("{}, under every weighting that was tried.", a.contender);
  if (second == all) return fmt::format("{}, under every weighting that was tried.", b.contender);
  if (first == 0 && second == 0) return "A tie, under every weighting that was tried.";
  if (first == 0 || second == 0) {
    return fmt::format("{}, ahead under {:.0f} % of the weightings and level in the others.",
                       second == 0 ? a.contender : b.contender,
                       100.0 * std::max(first, second) / all);
  }
  // The dimension that pulls hardest apart is what the reader must weigh.
  std::string decider;
  double pull = 0.0;
  for (const auto& [dimension, weight] : a.weights) {
    const auto x = a.scores.find(dimension);
    const auto y = b.scores.find(dimension);
    if (x == a.scores.end() || y == b.scores.end()) continue;
    if (!x->second.value.has_value() || !y->second.value.has_value()) continue;
    const double now = weight * std::abs(std::log(std::max(1.0, *x->second.value)) -
                                         std::log(std::max(1.0, *y->second.value)));
    if (now > pull) {
      pull = now;
      decider = dimension;
    }
  }
  return fmt::format(
      "It depends on {}: {} is ahead under {:.0f} % of the weightings, {} under "
      "{:.0f} %.",
      dimension_title(decider), a.contender, 100.0 * first / all, b.contender,
      100.0 * second / all);
}

Edge verdict_edge(Verdict first, Verdict second) {
  const auto silent = [](Verdict v) { return v == Verdict::untested || v == Verdict::judge_error; };
  if (silent(first) || silent(second)) return Edge::unresolved;
  if (first == second) return Edge::tie;
  for (const Verdict right : {Verdict::pass, Verdict::partial}) {
    if (first == right) return Edge::first;
    if (second == right) return Edge::second;
  }
  return Edge::unresolved;
}

// Winner, margin and the criteria of each.
void count_criteria(const Record& a, const Record& b, Duel& result) {
  for (const Criterion& c : result.dimensions) {
    if (c.name == "verdict") continue;
    if (c.edge == Edge::first) result.first_won.push_back(c.name);
    if (c.edge == Edge::second) result.second_won.push_back(c.name);
    if (c.edge == Edge::tie) result.level.push_back(c.name);
  }
  const Edge verdict = verdict_edge(a.verdict, b.verdict);
  if (verdict == Edge::first) result.winner = a.contender;
  if (verdict == Edge::second) result.winner = b.contender;
  const std::optional<double>& x = a.scores.at("overall").value;
  const std::optional<double>& y = b.scores.at("overall").value;
  if (!x.has_value() || !y.has_value()) return;
  result.margin = std::abs(*x - *y);
  if (a.verdict == b.verdict && *result.margin >= kTieMargin)
    result.winner = *x > *y ? a.contender : b.contender;
}

std::string dimmed(const std::string& text, bool color) {
  return color ? fmt::format("\x1b[2m{}\x1b[0m", text) : text;
}

// The numbers in columns, and below them whose evidence says what.
class DuelTable {
 public:
  DuelTable(const Duel& d, bool color) : duel_(d), color_(color) {
    left_ = d.first.size();
    right_ = d.second.size();
    for (const auto* list : {&d.dimensions, &d.details, &d.facts}) {
      for (const Criterion& c : *list) {
        name_ = std::max(name_, std::min(c.name.size(), kWidestName));
        left_ = std::max(left_, std::min(c.first.size(), kWidestValue));
        right_ = std::max(right_, std::min(c.second.size(), kWidestValue));
      }
    }
  }

  std::string heading() const {
    return dimmed(fmt::format("{:<{}}  {:>{}}  {:>{}}  better\n", "criterion", name_, duel_.first,
                              left_, duel_.second, right_),
                  color_);
  }

  std::string rows(const std::vector<Criterion>& list, bool evidence_below) const {
    std::string text;
    for (const Criterion& c : list) {
      const bool below = evidence_below && c.evidence.find('\n') != std::string::npos;
      std::string line = fmt::format("{:<{}}  {:>{}}  {:>{}}  {:<{}}", c.name, name_, c.first,
                                     left_, c.second, right_, better_name(duel_, c.edge),
                                     std::max(duel_.first.size(), duel_.second.size()));
      std::string evidence;
      std::size_t begin = 0;
      while (begin < c.evidence.size()) {
        const std::size_t end = std::min(c.evidence.find('\n', begin), c.evidence.size());
        if (begin > 0) evidence += below ? "\n    " : "; ";
        evidence += printable(c.evidence.substr(begin, end - begin));
        begin = end + 1;
      }
      if (below) {
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + "\n" + dimmed("    " + evidence, color_) + "\n";
        continue;
      }
      line += evidence.empty() ? "" : "  " + dimmed(evidence, color_);
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
    return text;
  }

 private:
  // What is longer sticks out, rather than pushing all other rows apart.
  static constexpr std::size_t kWidestName = 42;
  static constexpr std::size_t kWidestValue = 14;
  const Duel& duel_;
  bool color_;
  std::size_t name_ = 9;
  std::size_t left_ = 0;
  std::size_t right_ = 0;
};

std::string remarks_text(const std::string& name, const Remarks& remarks) {
  std::string text;
  const auto add = [&](const char* what, const std::vector<Remark>& list) {
    if (list.empty()) return;
    text += fmt::format("{}, {}\n", name, what);
    for (const Remark& remark : list) {
      text += fmt::format("  {}\n", printable(remark_text(remark)));
    }
  };
  add("strengths", remarks.strengths);
  add("weaknesses", remarks.weaknesses);
  return text;
}

}  // namespace

Duel duel(const Record& first, const Record& second) {
  if (first.task != second.task) {
    throw InvalidArgument(
        fmt::format("duel: expected one task, got {} and {}", first.task, second.task));
  }
  Duel result;
  result.task = first.task;
  result.first = first.contender;
  result.second = second.contender;
  result.dimensions.push_back({"verdict", std::string(name_of(first.verdict)),
                               std::string(name_of(second.verdict)),
                               verdict_edge(first.verdict, second.verdict),
                               said(first, first.verdict_because, second, second.verdict_because)});
  for (const std::string_view dimension : dimensions()) {
    result.dimensions.push_back(compare_dimension(first, second, std::string(dimension)));
  }
  compare_probes(first, second, result.details);
  compare_speeds(first, second, result.details);
  compare_precision(first, second, result.details);
  compare_memory(first, second, result.details);
  result.facts = listed_facts(first, second, result.details);
  count_criteria(first, second, result);
  result.first_remarks = remarks(first);
  result.second_remarks = remarks(second);
  const std::vector<Record> both = {first, second};
  result.hybrid = hybrid(both);
  result.conclusion = conclusion(first, second);
  return result;
}

std::vector<Duel> duels_of(const std::vector<Record>& records) {
  constexpr std::size_t kAllPairs = 3;
  const std::vector<Standing> standings = rank(records);
  std::vector<Duel> duels;
  for (std::size_t i = 0; i < standings.size(); ++i) {
    for (std::size_t k = i + 1; k < standings.size(); ++k) {
      if (i > 0 && k >= kAllPairs) continue;
      duels.push_back(duel(records[standings[i].index], records[standings[k].index]));
    }
  }
  return duels;
}

std::string better_name(const Duel& d, Edge edge) {
  switch (edge) {
    case Edge::first:
      return d.first;
    case Edge::second:
      return d.second;
    case Edge::tie:
      return "level";
    case Edge::unresolved:
      return "";
  }
  return "";
}

std::string score_line(const Duel& d) {
  const auto won = [](const std::string& name, const std::vector<std::string>& criteria) {
    return fmt::format("{} {}{}", name, criteria.size(),
                       criteria.empty() ? "" : fmt::format(" ({})", fmt::join(criteria, ", ")));
  };
  std::string line = d.winner.empty() ? std::string("No winner") : "Winner: " + d.winner;
  if (d.margin.has_value()) line += fmt::format(", by {:.1f} points", *d.margin);
  return line + fmt::format(". Criteria won: {}, {}; {} level.", won(d.first, d.first_won),
                            won(d.second, d.second_won), d.level.size());
}

std::string duel_text(const Duel& d, bool color) {
  const DuelTable table(d, color);
  std::string text = fmt::format("{}: {} against {}\n\n", d.task, d.first, d.second);
  text += table.heading() + table.rows(d.dimensions, true);
  if (!d.details.empty()) text += "\n" + table.rows(d.details, false);
  if (!d.facts.empty()) text += "\n" + table.rows(d.facts, false);
  for (const std::string& list :
       {remarks_text(d.first, d.first_remarks), remarks_text(d.second, d.second_remarks)}) {
    if (!list.empty()) text += "\n" + list;
  }
  if (d.hybrid.has_value()) text += "\n" + hybrid_text(*d.hybrid) + "\n";
  if (!d.dimensions.empty()) text += "\n" + score_line(d) + "\n";
  return text + d.conclusion + "\n";
}

}  // namespace touchstone::judge
