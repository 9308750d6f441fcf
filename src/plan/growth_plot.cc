#include "plan/growth_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "report/svg.h"

namespace touchstone::inline v0::plan {
namespace {

constexpr double kWidth = 920;
constexpr double kHeight = 500;
constexpr double kLeft = 76;
constexpr double kRight = 690;  // the legend stands beyond
constexpr double kTop = 78;
constexpr double kBottom = 430;
constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr int kSamples = 240;

constexpr const char* kInk = "#1e293b";
constexpr const char* kFaint = "#64748b";
constexpr const char* kGrid = "#e2e8f0";
constexpr const char* kWeights = "#94a3b8";
constexpr const char* kOverhead = "#cbd5e1";
constexpr const char* kCache = "#60a5fa";
constexpr const char* kCacheEdge = "#1d4ed8";
constexpr const char* kInt8 = "#0f766e";
constexpr const char* kInt4 = "#7c3aed";
constexpr const char* kLimit = "#dc2626";

// Where tokens and bytes lie on the page.
class Axes {
 public:
  Axes(double most_tokens, double most_bytes) : tokens_(most_tokens), bytes_(most_bytes) {}
  double x(double tokens) const { return kLeft + (kRight - kLeft) * tokens / tokens_; }
  double y(double bytes) const { return kBottom - (kBottom - kTop) * bytes / bytes_; }
  double tokens() const { return tokens_; }
  double bytes() const { return bytes_; }

 private:
  double tokens_;
  double bytes_;
};

double binary_step(double range, double most) {
  return std::max(1.0, std::exp2(std::ceil(std::log2(range / most))));
}

std::string token_label(double tokens) {
  if (tokens >= 1 << 20) return fmt::format("{:g}M", tokens / (1 << 20));
  if (tokens >= 1 << 10) return fmt::format("{:g}K", tokens / (1 << 10));
  return fmt::format("{:g}", tokens);
}

std::string line(double x1, double y1, double x2, double y2, const char* color,
                 const char* more = "") {
  return report::svg_line(x1, y1, x2, y2, fmt::format(" stroke=\"{}\"{}", color, more));
}

std::string words(double x, double y, std::string_view text, const char* color,
                  const char* more = "") {
  return report::svg_text(x, y, text, fmt::format(" fill=\"{}\"{}", color, more));
}

std::string grid(const Axes& axes) {
  std::string svg;
  const double y_step = report::decimal_step(axes.bytes() / kGiB, 8);
  for (int i = 0; i * y_step * kGiB <= axes.bytes(); ++i) {
    const double y = axes.y(i * y_step * kGiB);
    svg += line(kLeft, y, kRight, y, kGrid);
    svg += words(kLeft - 8, y + 4, fmt::format("{:g}", i * y_step), kFaint, " text-anchor=\"end\"");
  }
  const double x_step = binary_step(axes.tokens(), 8);
  for (int i = 0; i * x_step <= axes.tokens(); ++i) {
    const double x = axes.x(i * x_step);
    svg += line(x, kBottom, x, kBottom + 5, kFaint);
    svg += words(x, kBottom + 20, token_label(i * x_step), kFaint, " text-anchor=\"middle\"");
  }
  svg += words((kLeft + kRight) / 2, kBottom + 46, "tokens in each sequence", kInk,
               " text-anchor=\"middle\"");
  svg += fmt::format(
      "<text transform=\"translate(24 {:.1f}) rotate(-90)\" fill=\"{}\" text-anchor=\"middle\">"
      "memory of one GPU, GiB</text>\n",
      (kTop + kBottom) / 2, kInk);
  return svg;
}

// Points of bytes(tokens) from left to right, clipped at the top of the axes by the caller's clip.
std::string points(const Axes& axes, const std::function<double(std::int64_t)>& bytes) {
  std::string text;
  for (int i = 0; i <= kSamples; ++i) {
    const double tokens = std::max(1.0, std::round(axes.tokens() * i / kSamples));
    text += fmt::format("{:.1f},{:.1f} ", axes.x(tokens),
                        axes.y(bytes(static_cast<std::int64_t>(tokens))));
  }
  return text;
}

std::string band(const Axes& axes, double from, double to, const char* color) {
  return report::svg_rect(kLeft, axes.y(to), kRight - kLeft, axes.y(from) - axes.y(to),
                          fmt::format(" fill=\"{}\"", color));
}

struct LegendRow {
  const char* color;
  bool filled;
  std::string text;
};

std::string legend(const std::vector<LegendRow>& rows) {
  std::string svg;
  double y = kTop + 10;
  for (const LegendRow& row : rows) {
    const double x = kRight + 22;
    svg += row.filled ? fmt::format(
                            "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"18\" height=\"12\" "
                            "rx=\"2\" fill=\"{}\"/>\n",
                            x, y - 10, row.color)
                      : line(x, y - 4, x + 18, y - 4, row.color, " stroke-width=\"2.5\"");
    svg += words(x + 26, y, row.text, kInk);
    y += 24;
  }
  return svg;
}

// Bytes of the whole batch with its cache stored as `format`.
std::function<double(std::int64_t)> total_with(const PlanRequest& request, const Plan& plan,
                                               const char* format) {
  const CacheFormat stored = format == nullptr ? request.cache : parse_cache_format(format);
  const cache::Layout layout =
      planned_layout(request.model, stored, request.page_tokens, request.gpus);
  const auto base = static_cast<double>(plan.total_bytes - plan.cache_bytes + plan.state_bytes);
  return [=, batch = static_cast<double>(request.batch), chunk = request.chunk](std::int64_t n) {
    return base + batch * static_cast<double>(cache::peak_bytes_for_tokens(layout, n, chunk));
  };
}

Axes axes_for(const PlanRequest& request, const Plan& plan) {
  // Past the limit where that is near, so that the crossing is visible.
  double tokens = static_cast<double>(plan.context);
  const auto limit = static_cast<double>(plan.max_context);
  if (plan.max_context > 0 && limit < 8 * tokens) tokens = std::max(tokens, limit * 1.15);
  const auto memory = static_cast<double>(request.gpu.memory_bytes);
  const double top = std::max(memory, static_cast<double>(plan.total_bytes - plan.cache_bytes));
  return {std::max(tokens, 16.0), top * 1.12};
}

// The document as far as its title.
std::string beginning(const PlanRequest& request, const Plan& plan) {
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"system-ui, Helvetica, Arial, sans-serif\" font-size=\"13\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n"
      "<clipPath id=\"plot\"><rect x=\"{2}\" y=\"{3}\" width=\"{4}\" height=\"{5}\"/></clipPath>\n",
      kWidth, kHeight, kLeft, kTop, kRight - kLeft, kBottom - kTop);
  svg += words(kLeft, 34, fmt::format("{} on {}", request.model.name, request.gpu.name), kInk,
               " font-size=\"19\" font-weight=\"600\"");
  svg +=
      words(kLeft, 56,
            fmt::format("{} sequence{}, {} GPU{}, weights {}; pages of {} tokens", request.batch,
                        request.batch == 1 ? "" : "s", request.gpus, request.gpus == 1 ? "" : "s",
                        weight_format_name(plan.weights), request.page_tokens),
            kFaint);
  return svg;
}

// Words at the planned length and where the memory ends.
std::string marks(const PlanRequest& request, const Plan& plan, const Axes& axes) {
  const auto memory = static_cast<double>(request.gpu.memory_bytes);
  const auto limit = static_cast<double>(plan.max_context);
  std::string svg;
  const auto context = static_cast<double>(plan.context);
  if (context < 0.9 * axes.tokens()) {
    svg +=
        line(axes.x(context), kTop, axes.x(context), kBottom, kFaint, " stroke-dasharray=\"2 4\"");
    svg += words(axes.x(context) + 6, kTop + 14, "planned", kFaint);
  }
  if (limit > 0 && limit <= axes.tokens()) {
    svg +=
        words(axes.x(limit), axes.y(memory) - 8, fmt::format("full at {} tokens", plan.max_context),
              kLimit, axes.x(limit) > (kLeft + kRight) / 2 ? " text-anchor=\"end\"" : "");
  }
  return svg;
}

}  // namespace

std::string growth_plot(const PlanRequest& request, const Plan& plan) {
  const Axes axes = axes_for(request, plan);
  const auto weights = static_cast<double>(plan.weight_bytes);
  const auto fixed = static_cast<double>(plan.total_bytes - plan.cache_bytes);
  const auto total = total_with(request, plan, nullptr);
  std::string svg = beginning(request, plan);
  svg += grid(axes) + "<g clip-path=\"url(#plot)\">\n";
  svg += fmt::format(
      "<polygon points=\"{:.1f},{:.1f} {}{:.1f},{:.1f}\" fill=\"{}\" "
      "fill-opacity=\"0.55\"/>\n",
      axes.x(0), axes.y(fixed), points(axes, total), axes.x(axes.tokens()), axes.y(fixed), kCache);
  svg += band(axes, 0, weights, kWeights) + band(axes, weights, fixed, kOverhead);
  for (const auto& [format, color] : {std::pair{"int4", kInt4}, std::pair{"int8", kInt8}}) {
    svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n",
                       points(axes, total_with(request, plan, format)), color);
  }
  svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2.5\"/>\n",
                     points(axes, total), kCacheEdge);
  const auto memory = static_cast<double>(request.gpu.memory_bytes);
  const auto limit = static_cast<double>(plan.max_context);
  if (limit > 0 && limit <= axes.tokens()) {
    svg += line(axes.x(limit), axes.y(memory), axes.x(limit), kBottom, kLimit,
                " stroke-dasharray=\"2 4\" stroke-width=\"1.5\"");
  }
  svg += line(kLeft, axes.y(memory), kRight, axes.y(memory), kLimit,
              " stroke-dasharray=\"7 4\" stroke-width=\"2\"");
  svg += "</g>\n";
  svg += marks(request, plan, axes);
  svg += line(kLeft, kBottom, kRight, kBottom, kFaint);
  svg += legend({{kLimit, false, fmt::format("GPU memory, {:.1f} GiB", memory / kGiB)},
                 {kCacheEdge, false, "all, cache as planned"},
                 {kInt8, false, "all, cache in int8"},
                 {kInt4, false, "all, cache in int4"},
                 {kCache, true, "KV cache"},
                 {kOverhead, true, "overhead, estimated"},
                 {kWeights, true, fmt::format("weights, {:.1f} GiB", weights / kGiB)}});
  return svg + "</svg>\n";
}

}  // namespace touchstone::inline v0::plan
