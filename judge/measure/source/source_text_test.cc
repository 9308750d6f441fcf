#include "judge/measure/source/source_text.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace touchstone::judge {
namespace {

constexpr const char* kSource = R"cc(
#include <math.h>
#define TWICE(x) ((x) + (x))
  /* a + b
   in a comment */
  static float helper(float a) { return a * 2.0f; }  // a - b
  namespace inner {
  const char* text = "x + y { } \" /* no */";
  }
  extern "C" int entry(int n, const float* x) {
    float sum = 0;
    for (int i = 0; i < n; ++i) {
      if (x[i] > 0 && n) sum += x[i];
    }
    char brace = '{';
    return sum > 1'000 ? 1 : 0;
  }
)cc";

TEST(SourceText, Mask_HidesCommentsLiteralsAndDirectives) {
  const std::string text = kSource;
  const std::string masked = masked_source(text);
  ASSERT_EQ(masked.size(), text.size()) << "every byte stays where it was";
  for (const char* hidden : {"in a comment", "x + y", "TWICE", "no */", "a - b", "'{'"}) {
    EXPECT_EQ(masked.find(hidden), std::string::npos) << hidden;
  }
  for (const char* kept : {"helper", "entry", "sum += x[i]", "return a * 2.0f"}) {
    EXPECT_EQ(masked.find(kept), text.find(kept)) << kept;
  }
  EXPECT_EQ(masked_source("R\"x(a + b)x\" + c").find("a + b"), std::string::npos);
  EXPECT_NE(masked_source("R\"x(a + b)x\" + c").find("+ c"), std::string::npos);
  EXPECT_EQ(masked_source("\"never closed"), "             ");
}

TEST(SourceText, Functions_HaveLinesAndBranches) {
  const std::vector<FunctionText> functions = functions_of(masked_source(kSource));
  ASSERT_EQ(functions.size(), 2U);
  EXPECT_EQ(functions[0].name, "helper");
  EXPECT_EQ(functions[0].complexity, 1);
  EXPECT_EQ(functions[1].name, "entry");
  EXPECT_EQ(functions[1].lines, 8);
  EXPECT_EQ(functions[1].complexity, 5) << "for, if, &&, ?";
}

TEST(SourceText, Mutations_LieInCodeOnly) {
  const std::string text = kSource;
  const std::vector<Mutation> all = mutations_of(masked_source(text));
  ASSERT_EQ(all.size(), 5U) << "*, <, >, +=, >";
  for (const Mutation& mutation : all) {
    std::string broken = text;
    broken.replace(mutation.at, mutation.length, mutation.by);
    EXPECT_EQ(masked_source(broken).find("in a comment"), std::string::npos);
    EXPECT_NE(masked_source(broken), masked_source(text)) << "a change that a compiler sees";
  }
  EXPECT_EQ(spread(all, 2).size(), 2U);
  EXPECT_EQ(spread(all, 9).size(), 5U);
}

TEST(SourceText, Duplicates_AreBlocksOfLines) {
  std::string block;
  for (int i = 0; i < 7; ++i) block += "  total" + std::to_string(i) + " = x;\n";
  EXPECT_EQ(duplicated_lines({block + "int y;\n" + block}), 14);
  EXPECT_EQ(duplicated_lines({block, block}), 14);
  EXPECT_EQ(duplicated_lines({block}), 0);
}

// Neither the missing end of a statement nor the missing function makes it look at all of the text again
// and again.
TEST(SourceText, Tests_OfTextThatIsWrittenForTheScanner) {
  std::string text = "int main() {";
  while (text.size() < (1U << 20)) text += " return 1 ";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_GT(tests_of(text).asserts, 100000);
  EXPECT_EQ(tests_of(text.substr(12)).asserts, 0);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), 10.0);
}

TEST(SourceText, Tests_CountWhatCanFail) {
  const TestText none = tests_of(masked_source("int main() { run(); return 0; }"));
  EXPECT_EQ(none.tests, 1);
  EXPECT_EQ(none.asserts, 0);
  const TestText some = tests_of(
      masked_source("void test_a() { assert(f() == 1); }\nvoid test_b() { if (!g()) abort(); }\n"
                    "int main() { test_a(); test_b(); return failed; }"));
  EXPECT_EQ(some.tests, 2);
  EXPECT_EQ(some.asserts, 3);
}

}  // namespace
}  // namespace touchstone::judge
