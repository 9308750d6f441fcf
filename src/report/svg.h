// Elements of SVG documents and the ticks of their axes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace touchstone::report {

// One element each, with a newline. `attributes` begin with a space; `content` is escaped.
std::string svg_text(double x, double y, std::string_view content,
                     std::string_view attributes = {});
std::string svg_line(double x1, double y1, double x2, double y2, std::string_view attributes);
std::string svg_rect(double x, double y, double width, double height, std::string_view attributes);

// The smallest step of 1, 2 or 5 times a power of ten that divides `range` into at most `count`.
double decimal_step(double range, double count);

std::vector<double> linear_ticks(double least, double most);
// Exponents of ten: whole decades, thinned to at most six; 1, 2, 5 within fewer than two decades.
std::vector<double> log_ticks(double least, double most);

}  // namespace touchstone::report
