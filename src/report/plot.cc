#include "report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/html.h"
#include "report/svg.h"

namespace touchstone::report {
namespace {

constexpr double kWidth = 360;
constexpr double kHeight = 220;
constexpr double kLeft = 46;
constexpr double kRight = 350;
constexpr double kTop = 10;
constexpr double kBottom = 178;
constexpr double kTouching = 3;  // lines nearer than this cover each other

double on_scale(double value, Scale scale) {
  return scale == Scale::linear ? value : std::log10(value);
}

std::string tick_label(double value) {
  const double magnitude = std::abs(value);
  for (const auto& [least, unit] :
       {std::pair(1e9, "G"), std::pair(1e6, "M"), std::pair(1e4, "k")}) {
    if (magnitude >= least && magnitude < 1e12) {
      return fmt::format("{:g}{}", value / (least == 1e4 ? 1e3 : least), unit);
    }
  }
  if (magnitude != 0 && (magnitude >= 1e5 || magnitude < 1e-2)) {
    const double power = std::floor(std::log10(magnitude) + 1e-9);
    const double factor = value / std::pow(10.0, power);
    return std::abs(factor - 1.0) < 1e-6 ? fmt::format("1e{:.0f}", power)
                                         : fmt::format("{:g}e{:.0f}", factor, power);
  }
  return fmt::format("{:g}", value);
}

}  // namespace

Plot::Plot(std::string title, std::string x_label, std::string y_label, Scale x, Scale y)
    : title_(std::move(title)),
      x_label_(std::move(x_label)),
      y_label_(std::move(y_label)),
      x_scale_(x),
      y_scale_(y) {}

bool Plot::shown(std::pair<double, double> point) const {
  const auto good = [](double value, Scale scale) {
    return std::isfinite(value) && (scale == Scale::linear || value > 0.0);
  };
  return good(point.first, x_scale_) && good(point.second, y_scale_);
}

void Plot::line(std::size_t series, Points points, const std::string& name) {
  std::erase_if(points, [&](const auto& point) { return !shown(point); });
  std::ranges::sort(points);
  if (!points.empty()) marks_.push_back({series, std::move(points), name, true});
}

void Plot::dots(std::size_t series, Points points, const std::string& name) {
  std::erase_if(points, [&](const auto& point) { return !shown(point); });
  if (!points.empty()) marks_.push_back({series, std::move(points), name, false});
}

void Plot::reference(Points points, const std::string& label) {
  std::erase_if(points, [&](const auto& point) { return !shown(point); });
  std::ranges::sort(points);
  if (!points.empty()) references_.emplace_back(std::move(points), label);
}

void Plot::include_y(double y) { included_.push_back(y); }

Plot::Axis Plot::fitted(Scale scale, bool x) const {
  Axis axis;
  axis.scale = scale;
  axis.least = 1e300;
  axis.most = -1e300;
  const auto take = [&](double value) {
    axis.least = std::min(axis.least, on_scale(value, scale));
    axis.most = std::max(axis.most, on_scale(value, scale));
  };
  for (const Mark& mark : marks_) {
    for (const auto& point : mark.points) take(x ? point.first : point.second);
  }
  for (const auto& [points, label] : references_) {
    for (const auto& point : points) take(x ? point.first : point.second);
  }
  if (!x) {
    for (const double y : included_) take(y);
  }
  // A margin, and never an axis of no length.
  const double margin =
      std::max(0.04 * (axis.most - axis.least), scale == Scale::linear ? 1e-9 : 0.1);
  axis.least -= margin;
  axis.most += margin;
  if (axis.most - axis.least < 1e-6) axis.most = axis.least + 1.0;
  return axis;
}

namespace {

double place(double value, double least, double most, double from, double to) {
  return from + (value - least) / (most - least) * (to - from);
}

}  // namespace

std::string Plot::grid(const Axis& x, const Axis& y) const {
  std::string svg;
  const auto ticks = [](const Axis& axis) {
    return axis.scale == Scale::linear ? linear_ticks(axis.least, axis.most)
                                       : log_ticks(axis.least, axis.most);
  };
  const auto label = [](const Axis& axis, double tick) {
    return tick_label(axis.scale == Scale::linear ? tick : std::pow(10.0, tick));
  };
  for (const double tick : ticks(y)) {
    const double at = place(tick, y.least, y.most, kBottom, kTop);
    svg += fmt::format("<path class=\"axis\" d=\"M{} {:.1f}H{}\"/>", kLeft, at, kRight);
    svg += svg_text(kLeft - 6, at + 3.5, label(y, tick), " text-anchor=\"end\"");
  }
  for (const double tick : ticks(x)) {
    const double at = place(tick, x.least, x.most, kLeft, kRight);
    svg += fmt::format("<path class=\"axis\" d=\"M{:.1f} {}v4\"/>", at, kBottom);
    svg += svg_text(at, kBottom + 17, label(x, tick), " text-anchor=\"middle\"");
  }
  svg += fmt::format("<path class=\"axis\" d=\"M{0} {1}H{2}\"/>", kLeft, kBottom, kRight);
  svg += svg_text((kLeft + kRight) / 2, kBottom + 35, x_label_, " text-anchor=\"middle\"");
  return svg;
}

std::string Plot::marks(const Axis& x, const Axis& y) const {
  std::string svg;
  const auto at_x = [&](double value) {
    return place(on_scale(value, x.scale), x.least, x.most, kLeft, kRight);
  };
  const auto at_y = [&](double value) {
    return place(on_scale(value, y.scale), y.least, y.most, kBottom, kTop);
  };
  const auto path = [&](const Points& points) {
    std::string d;
    for (const auto& [px, py] : points) {
      d += fmt::format("{}{:.1f} {:.1f}", d.empty() ? "M" : "L", at_x(px), at_y(py));
    }
    return d;
  };
  for (const auto& [points, label] : references_) {
    svg += fmt::format("<path class=\"roof\" d=\"{}\"/>", path(points));
    const auto& [last_x, last_y] = points.back();
    svg += svg_text(at_x(last_x), at_y(last_y) - 6, label, " text-anchor=\"end\"");
  }
  // Whether two lines cannot be told apart on the page.
  const auto covers = [&](const Mark& one, const Mark& other) {
    return one.joined && other.joined &&
           std::ranges::equal(one.points, other.points, [&](const auto& a, const auto& b) {
             return std::abs(at_x(a.first) - at_x(b.first)) < kTouching &&
                    std::abs(at_y(a.second) - at_y(b.second)) < kTouching;
           });
  };
  for (std::size_t i = 0; i < marks_.size(); ++i) {
    const Mark& mark = marks_[i];
    const auto below =
        std::count_if(marks_.begin(), marks_.begin() + static_cast<std::ptrdiff_t>(i),
                      [&](const Mark& other) { return covers(other, mark); });
    svg += fmt::format("<g><title>{}</title>", escaped(mark.name));
    if (mark.joined && mark.points.size() > 1) {
      svg += fmt::format("<path class=\"series\" stroke=\"var(--s{})\"{} d=\"{}\"/>", mark.series,
                         below == 0 ? ""
                                    : fmt::format(" stroke-dasharray=\"{} {}\"", 7,
                                                  7 + 7 * static_cast<int>(below)),
                         path(mark.points));
    }
    const double radius = std::max(1.0, 3.0 - static_cast<double>(below));
    for (const auto& [px, py] : mark.points) {
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:g}\" fill=\"var(--s{})\"/>",
                         at_x(px), at_y(py), radius, mark.series);
    }
    svg += "</g>\n";
  }
  return svg;
}

std::string Plot::figure(const std::string& note) const {
  if (empty()) return {};
  const Axis x = fitted(x_scale_, true);
  const Axis y = fitted(y_scale_, false);
  std::string svg = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">",
                                kWidth, kHeight, escaped(title_));
  svg += grid(x, y) + marks(x, y) + "</svg>";
  return fmt::format("<figure><figcaption><b>{}</b> {}<br>{}</figcaption>{}</figure>\n",
                     escaped(title_), escaped(note), escaped(y_label_), svg);
}

}  // namespace touchstone::report
