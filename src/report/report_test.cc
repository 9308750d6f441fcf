#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/html.h"
#include "report/svg.h"

namespace touchstone::report {
namespace {

using testing::ElementsAre;

TEST(Escaped, Markup_BecomesEntities) {
  EXPECT_EQ(escaped("<a href=\"x\">'&'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
}

TEST(Escaped, ValidUtf8_IsKept) {
  EXPECT_EQ(escaped("\u00e9\u4e2d\U0001f600\n\t"), "\u00e9\u4e2d\U0001f600\n\t");
}

TEST(Escaped, ControlAndInvalidBytes_AreReplaced) {
  EXPECT_EQ(escaped("\x01\x1b\x7f"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(escaped("a\xff"), "a\uFFFD");
  EXPECT_EQ(escaped("\xc3"), "\uFFFD") << "cut off";
  EXPECT_EQ(escaped("\xc0\xaf"), "\uFFFD\uFFFD") << "overlong";
  EXPECT_EQ(escaped("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD") << "a surrogate";
}

TEST(Svg, Text_IsEscapedAndPlaced) {
  EXPECT_EQ(svg_text(1, 2.25, "a<b", " fill=\"red\""),
            "<text x=\"1.0\" y=\"2.2\" fill=\"red\">a&lt;b</text>\n");
}

TEST(Ticks, LinearAxis_HasAtMostFiveRoundSteps) {
  EXPECT_THAT(linear_ticks(0, 10), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_DOUBLE_EQ(decimal_step(79, 8), 10);
  EXPECT_DOUBLE_EQ(decimal_step(0.3, 3), 0.1);
}

TEST(Ticks, LogarithmicAxis_HasWholeDecadesWhereItIsLong) {
  EXPECT_THAT(log_ticks(-3, 3), ElementsAre(-3, -2, -1, 0, 1, 2, 3));
  EXPECT_EQ(log_ticks(0, 1).size(), 4U) << "1, 2, 5, 10";
}

}  // namespace
}  // namespace touchstone::report
