// The list of specifications is complete: every operator has cases, a page, a row in the README, a C
// function, and every case of every list can be made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "spec/spec.h"

namespace touchstone::spec {
namespace {

using testing::HasSubstr;

std::string contents(const std::string& path) {
  const std::ifstream file(std::string(TOUCHSTONE_SOURCE) + "/" + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The public headers of the operators are what the library has.
TEST(SpecList, PublicHeaders_EveryOperatorIsListed) {
  const auto directory =
      std::filesystem::path(TOUCHSTONE_SOURCE) / "include" / "touchstone" / "ops";
  int operators = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().stem().string();
    const std::string text = contents("include/touchstone/ops/" + name + ".h");
    if (text.find("Args {") == std::string::npos) continue;  // no operator in it
    EXPECT_NE(find(name), nullptr) << name;
    const bool backward = text.find("void " + name + "_backward(") != std::string::npos;
    EXPECT_EQ(find(name + "_backward") != nullptr, backward) << name;
    operators += backward ? 2 : 1;
  }
  EXPECT_EQ(static_cast<std::size_t>(operators), all().size());
}

TEST(SpecList, EveryOperator_HasItsCases) {
  for (const Operator& op : all()) {
    for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
      const auto count = [&](cases::Tier tier) {
        return select(op, {.tier = tier, .device = device}).size();
      };
      EXPECT_GT(count(cases::Tier::smoke), 0U) << op.name;
      EXPECT_GT(count(cases::Tier::full), count(cases::Tier::smoke)) << op.name;
      EXPECT_GT(count(cases::Tier::check), 0U) << op.name;
      EXPECT_GT(count(cases::Tier::sweep), count(cases::Tier::check)) << op.name;
    }
  }
}

TEST(SpecList, EveryCase_CanBeMadeAndHasACost) {
  for (const Operator& op : all()) {
    for (const cases::Case& item : cases::parse(op.list, cases::text(op.list))) {
      SCOPED_TRACE(op.name + " " + item.describe());
      const std::unique_ptr<Problem> problem = op.make(item);
      EXPECT_GT(problem->cost().bytes, 0);
      EXPECT_GT(problem->labels().rows, 0);
      for (const Operand& operand : problem->operands()) {
        if (operand.defined()) {
          EXPECT_GT(operand.bytes(), 0) << operand.name;
        }
      }
    }
  }
}

TEST(SpecList, EveryOperator_HasItsPage) {
  for (const Operator& op : all()) {
    EXPECT_THAT(contents("docs/ops/" + op.page + ".md"), HasSubstr(op.forward_name()));
  }
}

TEST(SpecList, EveryOperator_HasItsCFunction) {
  const std::string header = contents("include/touchstone/touchstone_c.h") +
                             contents("include/touchstone/touchstone_c_cache.h") +
                             contents("include/touchstone/touchstone_c_ternary.h");
  if (header.empty()) GTEST_SKIP() << "there is no C API";
  for (const Operator& op : all()) EXPECT_THAT(header, HasSubstr("ts_" + op.name + "("));
}

// `touchstone info --markdown` prints the table.
TEST(SpecList, Readme_HasTheTableOfSupportedDtypes) {
  EXPECT_THAT(contents("README.md"), HasSubstr(support_table()));
}

TEST(SpecList, UnknownOptions_AreRefused) {
  for (const Operator& op : all()) {
    cases::Case item = select(op, {.tier = cases::Tier::smoke}).front();
    item.options["no_such_option"] = "1";
    EXPECT_THROW(op.make(item), InvalidArgument) << op.name;
    item.options.erase("no_such_option");
    item.shape = "1x2x3";
    EXPECT_THROW(op.make(item), InvalidArgument) << op.name;
  }
}

}  // namespace
}  // namespace touchstone::spec
