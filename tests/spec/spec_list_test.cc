// The list of specifications is complete: every operator has cases, a page, a row in the README, two C
// functions, and every case of every list can be made. touchstone.h is complete, too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "spec/spec.h"
#include "touchstone/core/error.h"

namespace touchstone::spec {
namespace {

using testing::HasSubstr;

std::string contents(const std::string& path) {
  const std::ifstream file(std::string(TOUCHSTONE_SOURCE) + "/" + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> public_headers() {
  const std::filesystem::path include = std::filesystem::path(TOUCHSTONE_SOURCE) / "include";
  std::vector<std::string> headers;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(include)) {
    if (entry.is_regular_file()) {
      headers.push_back(entry.path().lexically_relative(include).generic_string());
    }
  }
  return headers;
}

TEST(SpecList, AnOptionOfAnUnknownNameIsRefused) {
  const std::pair<const char*, const char*> options[] = {
      {"linear", "gate"},          {"embedding", "tokens"},   {"cross_entropy", "target"},
      {"cross_entropy", "ignore"}, {"cross_entropy", "only"}, {"rope", "pairs"},
      {"rope_append", "pairs"},    {"activation", "kind"},    {"gate", "kind"},
      {"attention", "bias"},       {"attention", "order"},    {"softmax_topk", "bias"},
      {"softmax_topk", "mask"},    {"sample", "controls"},    {"ternary_project", "stored"}};
  for (const auto& [name, option] : options) {
    const Operator& op = *find(name);
    const cases::Case item = op.of_rows(2, 64, cases::Case{.dtype = op.cpu.back()});
    EXPECT_NO_THROW(op.make(item)) << name;
    cases::Case other = item;
    other.options[option] = "nothing";
    EXPECT_THAT([&] { op.make(other); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr(std::string(option) + ": ")));
  }
}

// What the headers declare is what the library has. docs/design/layout.md says why some are exempt.
TEST(SpecList, PublicHeaders_EveryOperatorIsListed) {
  const std::set<std::string> exempt = {"cast", "add_to", "dropout", "gradient_norm", "adamw"};
  const std::string reasons = contents("docs/design/layout.md");
  const std::regex declaration(
      R"(TOUCHSTONE_API void (\w+)\(Context& context,\s+const \w+Args& args\);)");
  std::set<std::string> operators;
  for (const std::string& header : public_headers()) {
    const std::string text = contents("include/" + header);
    for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it) {
      const std::string name = (*it)[1];
      if (exempt.contains(name)) {
        EXPECT_EQ(header, "touchstone/train/operators.h") << name;
        EXPECT_THAT(reasons, HasSubstr("`" + name + "`"));
      } else {
        operators.insert(name);
        EXPECT_NE(find(name), nullptr) << name << " of " << header;
      }
    }
  }
  EXPECT_EQ(operators.size(), all().size());
}

TEST(PublicHeaders, TouchstoneIncludesAll) {
  std::set<std::string> reached;
  std::vector<std::string> open = {"touchstone/touchstone.h"};
  const std::regex directive(R"re(#include "(touchstone/[\w/]+\.h)")re");
  while (!open.empty()) {
    const std::string header = open.back();
    open.pop_back();
    if (!reached.insert(header).second) continue;
    const std::string text = contents("include/" + header);
    for (std::sregex_iterator it(text.begin(), text.end(), directive), end; it != end; ++it) {
      open.push_back((*it)[1]);
    }
  }
  for (const std::string& header : public_headers()) {
    const bool left_out = header.starts_with("touchstone/touchstone_c") ||
                          header.starts_with("touchstone/gradcheck") ||
                          header == "touchstone/dual.h" || header == "touchstone/core/testing.h";
    EXPECT_EQ(reached.contains(header), !left_out) << header;
  }
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
  for (const Operator& op : all()) {
    EXPECT_THAT(header, HasSubstr("ts_" + op.name + "("));
    EXPECT_THAT(header, HasSubstr("ts_" + op.name + "_explain("));
  }
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
