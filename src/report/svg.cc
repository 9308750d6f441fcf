#include "report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/html.h"

namespace touchstone::report {

std::string svg_text(double x, double y, std::string_view content, std::string_view attributes) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y, attributes,
                     escaped(content));
}

std::string svg_line(double x1, double y1, double x2, double y2, std::string_view attributes) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"{}/>\n", x1, y1,
                     x2, y2, attributes);
}

std::string svg_rect(double x, double y, double width, double height, std::string_view attributes) {
  return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"{}/>\n", x,
                     y, width, height, attributes);
}

double decimal_step(double range, double count) {
  const double power = std::pow(10.0, std::floor(std::log10(range / count)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (range / (power * factor) <= count) return power * factor;
  }
  return power * 10;
}

std::vector<double> linear_ticks(double least, double most) {
  const double step = decimal_step(most - least, 5.0);
  std::vector<double> ticks;
  for (double tick = std::ceil(least / step) * step; tick <= most + 1e-9; tick += step) {
    ticks.push_back(std::abs(tick) < step * 1e-6 ? 0.0 : tick);
  }
  return ticks;
}

std::vector<double> log_ticks(double least, double most) {
  std::vector<double> ticks;
  const double decades = most - least;
  if (decades < 2.0) {
    for (double power = std::floor(least); power <= most; power += 1.0) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double tick = power + std::log10(factor);
        if (tick >= least - 1e-9 && tick <= most + 1e-9) ticks.push_back(tick);
      }
    }
    return ticks;
  }
  const double step = std::max(1.0, std::ceil(decades / 6.0));
  for (double tick = std::ceil(least / step) * step; tick <= most + 1e-9; tick += step) {
    ticks.push_back(tick);
  }
  return ticks;
}

}  // namespace touchstone::report
