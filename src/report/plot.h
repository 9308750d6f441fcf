// A small plot as inline SVG for an HTML document, whose style colors the series (--s0 to --s7).
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace touchstone::report {

enum class Scale { linear, logarithmic };

class Plot {
 public:
  Plot(std::string title, std::string x_label, std::string y_label, Scale x, Scale y);

  using Points = std::vector<std::pair<double, double>>;
  // Points that are not finite are left out; on a logarithmic axis so are those not above 0. A line
  // that lies on earlier ones is dashed, so that they show through.
  void line(std::size_t series, Points points, const std::string& name);
  void dots(std::size_t series, Points points, const std::string& name);
  void reference(Points points, const std::string& label);  // a dashed line, labeled at its end
  // Extends the axis to `y` even where no point is there.
  void include_y(double y);

  bool empty() const { return marks_.empty(); }
  std::string figure(const std::string& note) const;  // <figure> with its caption

 private:
  struct Mark {
    std::size_t series = 0;
    Points points;
    std::string name;
    bool joined = true;
  };
  struct Axis {
    Scale scale = Scale::linear;
    double least = 0.0;
    double most = 1.0;
  };
  Axis fitted(Scale scale, bool x) const;
  bool shown(std::pair<double, double> point) const;
  std::string grid(const Axis& x, const Axis& y) const;
  std::string marks(const Axis& x, const Axis& y) const;

  std::string title_;
  std::string x_label_;
  std::string y_label_;
  Scale x_scale_;
  Scale y_scale_;
  std::vector<Mark> marks_;
  std::vector<std::pair<Points, std::string>> references_;
  std::vector<double> included_;
};

}  // namespace touchstone::report
