// Views that no constructor makes, for every operand of every operator: one error that names the
// argument, before a shape is read or anything is written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "spec/spec.h"
#include "tests/support/guarded_operands.h"
#include "tests/support/runners.h"
#include "touchstone/core/error.h"

namespace touchstone::spec {
namespace {

using ::testing::StartsWith;

// Parts of a cache::CacheView, which has no views of tensors.
const std::set<std::string> kOfTheCache = {"pages", "page_table", "lengths", "reserved"};
constexpr std::int64_t kMaxElements = 1 << 16;

std::vector<TensorView> bad_ranks(const TensorView& good) {
  std::vector<TensorView> bad;
  for (const int rank : {-1, kMaxRank + 1, -1000000}) {
    bad.push_back(good);
    bad.back().rank = rank;
  }
  // Not defined by its data, only by its rank.
  bad.emplace_back().rank = -1;
  return bad;
}

void expect_refused(const std::string& prefix, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << prefix << ": accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), StartsWith(prefix + ": "));
  } catch (const std::exception& error) {
    ADD_FAILURE() << prefix << ": expected InvalidArgument, got " << error.what();
  }
}

void check_case(const Operator& op, const cases::Case& item, const Problem& problem) {
  SCOPED_TRACE(op.name + " " + item.describe());
  const std::vector<Operand> list = problem.operands();
  test::GuardedOperands operands(list, item, 1);
  test::Runner context({.device = test::test_device(), .threads = 1});
  problem.prepare(context, operands.views());
  operands.accept_inputs();
  operands.poison();
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].defined() || kOfTheCache.contains(list[i].name)) continue;
    for (const TensorView& bad : bad_ranks(operands.views()[i])) {
      SCOPED_TRACE("rank " + std::to_string(bad.rank));
      std::vector<TensorView> views(operands.views().begin(), operands.views().end());
      views[i] = bad;
      const std::string prefix = op.name + ": " + list[i].name;
      expect_refused(prefix, [&] { problem.call(context, views, ""); });
      expect_refused(prefix, [&] { (void)problem.explain(context, views); });
    }
  }
  context.synchronize();
  operands.expect_nothing_written();
}

class SpecRefusal : public ::testing::TestWithParam<std::string> {};

// One small case for every set of operands.
TEST_P(SpecRefusal, RanksThatDoNotExist) {
  const Operator& op = *find(GetParam());
  std::set<std::set<std::string>> seen;
  for (const cases::Case& item :
       select(op, {.tier = cases::Tier::sweep, .device = test::test_device().kind})) {
    const std::unique_ptr<Problem> problem = op.make(item);
    std::set<std::string> names;
    bool small = true;
    for (const Operand& operand : problem->operands()) {
      if (!operand.defined()) continue;
      names.insert(operand.name);
      small = small && operand.elements() <= kMaxElements;
    }
    if (small && seen.insert(names).second) check_case(op, item, *problem);
  }
  EXPECT_FALSE(seen.empty());
}

INSTANTIATE_TEST_SUITE_P(All, SpecRefusal, ::testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const Operator& op : all()) names.push_back(op.name);
                           return names;
                         }()),
                         [](const auto& parameter) { return parameter.param; });

}  // namespace
}  // namespace touchstone::spec
