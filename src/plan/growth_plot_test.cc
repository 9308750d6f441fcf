#include "plan/growth_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "touchstone/plan/catalog.h"

namespace touchstone::inline v0::plan {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string plot(const PlanRequest& request) { return growth_plot(request, make_plan(request)); }

PlanRequest request_for(const ModelEntry& model, const char* gpu) {
  PlanRequest request;
  request.model = model.spec;
  request.gpu = find_gpu(gpu);
  request.context = model.spec.native_context;
  return request;
}

// Opening and closing tags pair up, and no number went wrong.
void expect_well_formed(const std::string& svg) {
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  int depth = 0;
  for (std::size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const std::size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    if (svg[at + 1] == '/') {
      --depth;
    } else if (svg[end - 1] != '/') {
      ++depth;
    }
    ASSERT_GE(depth, 0);
  }
  EXPECT_EQ(depth, 0);
  EXPECT_EQ(std::ranges::count(svg, '"') % 2, 0);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(GrowthPlot, IsWellFormedForEveryModel) {
  for (const ModelEntry& model : models()) {
    for (const char* gpu : {"t4", "h200"}) expect_well_formed(plot(request_for(model, gpu)));
  }
}

TEST(GrowthPlot, LabelsItsAxes) {
  const std::string svg = plot(request_for(models().front(), "h200"));
  EXPECT_THAT(svg, HasSubstr("tokens in each sequence"));
  EXPECT_THAT(svg, HasSubstr("GiB"));
  EXPECT_THAT(svg, HasSubstr("GPT-2 on H200 SXM"));
}

TEST(GrowthPlot, NamesCannotBreakOut) {
  PlanRequest request = request_for(models().front(), "t4");
  request.model.name = "<script>\"&\x01\xff";
  const std::string svg = plot(request);
  EXPECT_THAT(svg, HasSubstr("&lt;script&gt;&quot;&amp;\uFFFD\uFFFD"));
  expect_well_formed(svg);
}

TEST(GrowthPlot, TinyContexts) {
  PlanRequest request = request_for(models().front(), "t4");
  request.context = 1;
  expect_well_formed(plot(request));
}

}  // namespace
}  // namespace touchstone::inline v0::plan
