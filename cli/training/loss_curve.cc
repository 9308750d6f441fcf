#include "cli/training/loss_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "report/svg.h"

namespace touchstone::cli {
namespace {

constexpr double kWidth = 720;
constexpr double kHeight = 360;
constexpr double kLeft = 56;
constexpr double kRight = 16;
constexpr double kTop = 36;
constexpr double kBottom = 40;

struct CurveFrame {
  double steps = 1;
  double least = 0;
  double most = 1;
  double x(double step) const { return kLeft + step / steps * (kWidth - kLeft - kRight); }
  double y(double loss) const {
    return kTop + (most - loss) / (most - least) * (kHeight - kTop - kBottom);
  }
};

std::vector<std::pair<double, double>> smoothed(const std::vector<train::StepReport>& steps) {
  const std::size_t width = std::max<std::size_t>(1, steps.size() / 200);
  std::vector<std::pair<double, double>> points;
  for (std::size_t first = 0; first < steps.size(); first += width) {
    const std::size_t end = std::min(steps.size(), first + width);
    double sum = 0;
    for (std::size_t i = first; i < end; ++i) sum += steps[i].loss;
    points.emplace_back(static_cast<double>(steps[end - 1].step),
                        sum / static_cast<double>(end - first));
  }
  return points;
}

}  // namespace

std::string loss_csv(const std::vector<train::StepReport>& steps,
                     const std::vector<train::EvaluationReport>& evaluations) {
  std::map<std::int64_t, double> validation;
  for (const train::EvaluationReport& e : evaluations) validation[e.step] = e.loss;
  std::string csv = "step,loss,norm,learning_rate,validation_loss\n";
  for (const train::StepReport& s : steps) {
    csv += fmt::format("{},{:.6f},{:.6f},{:.9g},", s.step, s.loss, s.norm, s.learning_rate);
    if (const auto found = validation.find(s.step); found != validation.end()) {
      csv += fmt::format("{:.6f}", found->second);
    }
    csv += '\n';
  }
  return csv;
}

std::string loss_svg(const std::string& title, const std::vector<train::StepReport>& steps,
                     const std::vector<train::EvaluationReport>& evaluations) {
  const auto points = smoothed(steps);
  CurveFrame frame;
  frame.least = 1e300;
  frame.most = -1e300;
  const auto include = [&](double step, double loss) {
    frame.steps = std::max(frame.steps, step);
    frame.least = std::min(frame.least, loss);
    frame.most = std::max(frame.most, loss);
  };
  for (const auto& [step, loss] : points) include(step, loss);
  for (const train::EvaluationReport& e : evaluations) include(static_cast<double>(e.step), e.loss);
  if (!(frame.most > frame.least)) {
    frame.least -= 0.5;
    frame.most = frame.least + 1;
  }
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" "
      "font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n<rect width=\"{0}\" "
      "height=\"{1}\" fill=\"white\"/>\n",
      kWidth, kHeight);
  svg += report::svg_text(kLeft, 20, title, " font-size=\"14\"");
  for (const double tick : report::linear_ticks(frame.least, frame.most)) {
    svg +=
        report::svg_line(kLeft, frame.y(tick), kWidth - kRight, frame.y(tick), " stroke=\"#ddd\"");
    svg += report::svg_text(kLeft - 6, frame.y(tick) + 4, fmt::format("{:g}", tick),
                            " text-anchor=\"end\"");
  }
  for (const double tick : report::linear_ticks(0, frame.steps)) {
    svg += report::svg_text(frame.x(tick), kHeight - 18, fmt::format("{:g}", tick),
                            " text-anchor=\"middle\"");
  }
  svg += report::svg_text(kWidth / 2, kHeight - 3, "step", " text-anchor=\"middle\"");
  std::string path;
  for (const auto& [step, loss] : points) {
    path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", frame.x(step), frame.y(loss));
  }
  svg += fmt::format(
      "<polyline points=\"{}\" fill=\"none\" stroke=\"#2b6cb0\" stroke-width=\"1.5\"/>\n", path);
  for (const train::EvaluationReport& e : evaluations) {
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"#c53030\"/>\n",
                       frame.x(static_cast<double>(e.step)), frame.y(e.loss));
  }
  svg += report::svg_text(kWidth - kRight, 20, "line: training, dots: validation",
                          " text-anchor=\"end\"");
  return svg + "</svg>\n";
}

}  // namespace touchstone::cli
