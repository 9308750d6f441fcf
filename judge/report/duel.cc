#include "judge/report/duel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

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
    c.evidence = fmt::format("{}; {}", x.because, y.because);
    return c;
  }
  c.edge = better(*x.value, *y.value, kTieMargin);
  // Only where the number is an estimate do its bounds decide; a count is what it is.
  if (dimension == "speed" && c.edge != Edge::tie && x.low <= y.high && y.low <= x.high) {
    c.edge = Edge::unresolved;
  }
  c.evidence = x.because == y.because ? x.because : fmt::format("{}; {}", x.because, y.because);
  return c;
}

// Probes that one passes and the other does not.
void compare_probes(const Record& a, const Record& b, std::vector<Criterion>& out) {
  for (const ProbeRecord& p : a.probes) {
    const auto q = std::ranges::find_if(
        b.probes, [&](const ProbeRecord& other) { return other.probe.id == p.probe.id; });
    if (q == b.probes.end() || !p.tested || !q->tested || p.passed == q->passed) continue;
    out.push_back({p.probe.title, p.passed ? "yes" : "no", q->passed ? "yes" : "no",
                   p.passed ? Edge::first : Edge::second,
                   fmt::format("fails {}", joined(p.passed ? q->failed : p.failed))});
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
    out.push_back({fmt::format("time at {}", format_shape(s.shape)),
                   format_seconds(s.seconds.value), format_seconds(t->seconds.value), edge,
                   fmt::format("{}: ratio {}, {} pairs", s.id, format_interval(ratio->second),
                               ratio->second.samples)});
  }
}

// The largest error over all cases that both got right, in bits of the contract's rounding.
std::pair<double, std::string> worst_bits(const Record& record) {
  double bits = -std::numeric_limits<double>::infinity();
  std::string id;
  for (const CaseRecord& c : record.cases) {
    for (const OutputError& e : c.check.errors) {
      if (c.check.passed && std::isfinite(e.worst_bits) && e.worst_bits > bits) {
        bits = e.worst_bits;
        id = c.id;
      }
    }
  }
  return {bits, id};
}

void compare_numbers(const Record& a, const Record& b, std::vector<Criterion>& out) {
  const auto [a_bits, a_id] = worst_bits(a);
  const auto [b_bits, b_id] = worst_bits(b);
  if (!a_id.empty() && !b_id.empty()) {
    out.push_back({"largest error, bits", fmt::format("{:.1f}", a_bits),
                   fmt::format("{:.1f}", b_bits), better(-a_bits, -b_bits, 0.5),
                   fmt::format("{}; {}", a_id, b_id)});
  }
  if (!a.memory.ladder.empty() && a.memory.ladder.size() == b.memory.ladder.size()) {
    const MemoryPoint& p = a.memory.ladder.back();
    const MemoryPoint& q = b.memory.ladder.back();
    const auto x = static_cast<double>(p.extra_bytes);
    const auto y = static_cast<double>(q.extra_bytes);
    out.push_back({fmt::format("memory held at {} {}", a.memory.parameter, p.n), format_bytes(x),
                   format_bytes(y), better(-x, -y, 0.05 * std::max(x, y) + 65536.0), "memory"});
  }
  if (a.memory.exponent.has_value() && b.memory.exponent.has_value()) {
    out.push_back({"memory grows as the power", fmt::format("{:.2f}", *a.memory.exponent),
                   fmt::format("{:.2f}", *b.memory.exponent),
                   better(-*a.memory.exponent, -*b.memory.exponent, 0.1), "memory"});
  }
  const auto fact = [&](const char* name) {
    const auto x = a.facts.find(name);
    const auto y = b.facts.find(name);
    if (x == a.facts.end() || y == b.facts.end() || x->second == y->second) return;
    out.push_back({name, x->second, y->second, Edge::unresolved, "a fact, not a score"});
  };
  fact("lines");
  fact("code bytes");
  fact("warnings");
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
  if (!a_passes) {
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
  if (first == Verdict::pass) return Edge::first;
  if (second == Verdict::pass) return Edge::second;
  return Edge::unresolved;
}

const char* edge_mark(Edge edge) {
  switch (edge) {
    case Edge::first:
      return "<";
    case Edge::second:
      return ">";
    case Edge::tie:
      return "=";
    case Edge::unresolved:
      return " ";
  }
  return " ";
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
  result.dimensions.push_back(
      {"verdict", std::string(name_of(first.verdict)), std::string(name_of(second.verdict)),
       verdict_edge(first.verdict, second.verdict),
       fmt::format("{}; {}", first.verdict_because, second.verdict_because)});
  for (const std::string_view dimension : dimensions()) {
    result.dimensions.push_back(compare_dimension(first, second, std::string(dimension)));
  }
  compare_probes(first, second, result.details);
  compare_speeds(first, second, result.details);
  compare_numbers(first, second, result.details);
  result.conclusion = conclusion(first, second);
  return result;
}

std::string duel_text(const Duel& d, bool color) {
  std::size_t name = 9;
  std::size_t left = d.first.size();
  std::size_t right = d.second.size();
  for (const auto* list : {&d.dimensions, &d.details}) {
    for (const Criterion& c : *list) {
      name = std::max(name, c.name.size());
      left = std::max(left, c.first.size());
      right = std::max(right, c.second.size());
    }
  }
  const auto dim = [&](const std::string& text) {
    return color ? fmt::format("\x1b[2m{}\x1b[0m", text) : text;
  };
  std::string text = fmt::format("{}: {} against {}\n\n", d.task, d.first, d.second);
  text += dim(fmt::format("{:<{}}  {:>{}}   {:<{}}  evidence", "criterion", name, d.first, left,
                          d.second, right)) +
          "\n";
  for (const auto* list : {&d.dimensions, &d.details}) {
    for (const Criterion& c : *list) {
      text += fmt::format("{:<{}}  {:>{}} {} {:<{}}  {}\n", c.name, name, c.first, left,
                          edge_mark(c.edge), c.second, right, c.evidence);
    }
    if (list == &d.dimensions && !d.details.empty()) text += "\n";
  }
  return text + "\n" + d.conclusion + "\n";
}

}  // namespace touchstone::judge
