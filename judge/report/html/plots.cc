// The plots of one task: time, roofline, error against scale, memory against N.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "judge/report/html/html_report.h"
#include "judge/report/text_format.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/svg.h"

namespace touchstone::judge {
namespace {

// An answer that is no number at all is drawn this far outside its bound.
constexpr double kWorstDrawn = 1e6;
constexpr double kMinDrawn = 1e-3;

std::string roofline(const std::vector<Record>& records) {
  report::Plot plot("Roofline", "bytes one call must move", "GB/s", report::Scale::logarithmic,
                    report::Scale::logarithmic);
  report::Plot::Points roof;
  for (const Record& record : records) {
    report::Plot::Points points;
    for (const SpeedRecord& s : record.speeds) {
      points.emplace_back(s.bytes, s.bytes / s.seconds.value * 1e-9);
      if (s.floor_seconds > 0) roof.emplace_back(s.bytes, s.bytes / s.floor_seconds * 1e-9);
    }
    plot.line(series_of(records, record.contender), points, record.contender);
  }
  std::ranges::sort(roof);
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  roof.erase(std::unique(roof.begin(), roof.end(), same), roof.end());
  plot.reference(roof, "roof");
  return plot.figure("achieved, and what this machine allows at most");
}

// The parameter that says how hard the numbers are, with its axis.
std::string error_against(const std::vector<Record>& records, const std::string& parameter,
                          const std::string& title, const std::string& label) {
  report::Plot plot(title, label, "largest error in units of its bound", report::Scale::linear,
                    report::Scale::logarithmic);
  bool any = false;
  for (const Record& record : records) {
    std::map<double, double> worst;
    for (const CaseRecord& c : record.cases) {
      const auto found = c.spec.parameters.find(parameter);
      if (found == c.spec.parameters.end()) continue;
      // A case that ended without an answer is as wrong as can be drawn.
      double error = c.check.errors.empty() && !c.check.passed ? kWorstDrawn : kMinDrawn;
      for (const OutputError& e : c.check.errors) {
        error = std::max(error, std::isfinite(e.worst) ? e.worst : kWorstDrawn);
      }
      double& kept = worst[static_cast<double>(found->second)];
      kept = std::clamp(std::max(kept, error), kMinDrawn, kWorstDrawn);
    }
    if (worst.size() < 2) continue;
    any = true;
    plot.line(series_of(records, record.contender), {worst.begin(), worst.end()}, record.contender);
  }
  if (!any) return {};
  double least = 1e9;
  double most = -1e9;
  for (const Record& record : records) {
    for (const CaseRecord& c : record.cases) {
      const auto found = c.spec.parameters.find(parameter);
      if (found == c.spec.parameters.end()) continue;
      least = std::min(least, static_cast<double>(found->second));
      most = std::max(most, static_cast<double>(found->second));
    }
  }
  plot.reference({{least, 1.0}, {most, 1.0}}, "bound");
  return plot.figure("above the line is wrong");
}

std::string memory_plot(const std::vector<Record>& records) {
  std::string parameter = "N";
  for (const Record& record : records) {
    if (!record.memory.parameter.empty()) parameter = record.memory.parameter;
  }
  report::Plot plot("Memory", parameter, "MiB beyond inputs and outputs",
                    report::Scale::logarithmic, report::Scale::logarithmic);
  report::Plot::Points io;
  for (const Record& record : records) {
    report::Plot::Points points;
    for (const MemoryPoint& p : record.memory.ladder) {
      points.emplace_back(p.n, std::max(1.0 / 1024, static_cast<double>(p.extra_bytes) / 1048576));
      io.emplace_back(p.n, static_cast<double>(p.io_bytes) / 1048576);
    }
    plot.line(series_of(records, record.contender), points, record.contender);
  }
  std::ranges::sort(io);
  io.erase(std::unique(io.begin(), io.end()), io.end());
  plot.reference(io, "inputs and outputs");
  return plot.figure("held at most, against the size of the problem");
}

// One row per contender: its time over the fastest, a dot per shape with its interval.
std::string time_rows(const std::vector<Record>& records) {
  struct Dot {
    Interval ratio;
    std::string title;
  };
  std::vector<std::pair<const Record*, std::vector<Dot>>> rows;
  double most = 1.2;
  for (const Standing& standing : rank(records)) {
    const Record& record = records[standing.index];
    std::vector<Dot> dots;
    for (const SpeedRecord& s : record.speeds) {
      Interval ratio{1.0, 1.0, 1.0, 0};
      for (const auto& [peer, to_peer] : s.ratio_to) {
        if (to_peer.value > ratio.value) ratio = to_peer;
      }
      most = std::max(most, ratio.high);
      dots.push_back({ratio, fmt::format("{}: {}", s.id, format_shape(s.shape))});
    }
    if (!dots.empty()) rows.emplace_back(&record, std::move(dots));
  }
  if (rows.empty()) return {};
  constexpr double kLeft = 96;
  constexpr double kRight = 350;
  constexpr double kStep = 26;
  const double height = 26 + kStep * static_cast<double>(rows.size()) + 18;
  const double decades = std::log10(most * 1.15);
  const auto at = [&](double ratio) {
    return kLeft +
           (kRight - kLeft) * std::clamp(std::log10(std::max(0.9, ratio)) / decades, -0.02, 1.0);
  };
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 360 {:.0f}\" role=\"img\" aria-label=\"Time over the fastest\">", height);
  for (const double tick : {1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0}) {
    if (tick > most * 1.15) continue;
    svg += fmt::format(
        "<path class=\"axis\" d=\"M{0:.1f} 6V{1:.1f}\"/><text x=\"{0:.1f}\" y=\"{2:.1f}\" "
        "text-anchor=\"middle\">{3:g}x</text>\n",
        at(tick), height - 26, height - 10, tick);
  }
  double y = 22;
  for (const auto& [record, dots] : rows) {
    std::string name = record->contender.substr(0, 14);
    svg += report::svg_text(kLeft - 10, y + 4, name, " text-anchor=\"end\"");
    const std::size_t series = series_of(records, record->contender);
    double offset = -4.0;
    for (const Dot& dot : dots) {
      svg += fmt::format(
          "<g><title>{0}</title><path d=\"M{1:.1f} {3:.1f}H{2:.1f}\" stroke=\"var(--s{4})\" "
          "stroke-width=\"1.2\"/><circle cx=\"{5:.1f}\" cy=\"{3:.1f}\" r=\"3\" "
          "fill=\"var(--s{4})\"/></g>\n",
          report::escaped(dot.title), at(dot.ratio.low), at(dot.ratio.high), y + offset, series,
          at(dot.ratio.value));
      offset += dots.size() > 1 ? 8.0 / static_cast<double>(dots.size() - 1) : 0.0;
    }
    y += kStep;
  }
  return fmt::format(
      "<figure><figcaption><b>Time</b> over that of the fastest<br>a dot per shape, with its "
      "interval</figcaption>{}</svg></figure>\n",
      svg);
}

}  // namespace

std::string html_plots(const std::vector<Record>& records) {
  std::string figures = time_rows(records);
  figures += roofline(records);
  figures += error_against(records, "scale10", "Error against scale", "power of ten of the scale");
  figures +=
      error_against(records, "mean10", "Error against mean", "power of ten of mean over deviation");
  figures += error_against(records, "shift10", "Error against shift", "power of ten of the shift");
  figures += memory_plot(records);
  if (figures.empty()) return {};
  std::string legend = "<ul class=\"legend\">";
  for (const Standing& standing : rank(records)) {
    const Record& record = records[standing.index];
    if (!record.build.built || record.verdict == Verdict::untested) continue;  // in no plot
    legend += fmt::format("<li><i style=\"background:var(--s{})\"></i>{}</li>",
                          series_of(records, record.contender), report::escaped(record.contender));
  }
  std::size_t count = 0;
  for (std::size_t at = figures.find("<figure>"); at != std::string::npos;
       at = figures.find("<figure>", at + 1)) {
    ++count;
  }
  // Two even rows rather than a full one and a straggler.
  return fmt::format("{}</ul>\n<div class=\"plots{}\">{}</div>\n", legend,
                     count == 5 || count == 6 ? " three" : "", figures);
}

}  // namespace touchstone::judge
