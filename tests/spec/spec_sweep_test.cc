// Every operator on its check and sweep cases: all implementations on guarded buffers, held against
// the reference of the specification. Every SIMD target runs the small cases, ragged rows among
// them; what a large case adds is how rows are shared out, which the best target shows alone.
#include <gtest/gtest.h>

#include <memory>

#include "spec/spec.h"
#include "tests/support/guarded_operands.h"
#include "tests/support/run_log.h"
#include "tests/support/runners.h"

namespace touchstone::spec {
namespace {

// Rows of many that are compared, evenly spread. Of top-k fewer: the reference sorts each of them.
constexpr std::int64_t kSampledRows = 256;
constexpr std::int64_t kSampledSortedRows = 24;
constexpr std::int64_t kManyElements = std::int64_t{1} << 18;

// Attention is small in every case, and its elements are not rows times columns.
bool is_large(const Labels& labels) {
  return labels.heads.empty() && labels.rows * labels.cols >= kManyElements;
}

std::int64_t rows_to_compare(const Labels& labels) {
  if (!is_large(labels)) return kAllRows;
  return labels.k > 0 ? kSampledSortedRows : kSampledRows;
}

void check_case(const Operator& op, const cases::Case& item, std::uint64_t seed) {
  SCOPED_TRACE(op.name + " " + item.describe());
  const std::unique_ptr<Problem> problem = op.make(item);
  const std::vector<Operand> list = problem->operands();
  test::GuardedOperands operands(list, item, seed);
  test::Runner context({.device = test::test_device(), .threads = 1});
  problem->prepare(context, operands.views());
  operands.accept_inputs();
  std::vector<std::string> names;
  for (const ImplementationReport& report : problem->explain(context, operands.views())) {
    // A library that the call does not allow, or that is not installed, owes no run, nor do instructions
    // that the processor has not.
    if (report.refusal.find("bits_may_depend_on_batch") == std::string::npos &&
        report.refusal.find("is not installed") == std::string::npos &&
        report.refusal.find("on this processor") == std::string::npos) {
      test::log_offered(op.name, report.name);
    }
    if (report.accepted) names.push_back(report.name);
  }
  const Labels labels = problem->labels();
  const std::int64_t rows = rows_to_compare(labels);
  std::vector<OutputReference> reference;
  if (!problem->reference_reads_outputs()) {
    reference = problem->reference(Reader(operands.views()), rows);
  }
  const test::Targets targets = is_large(labels) ? test::Targets::best : test::Targets::all;
  test::for_each_on(targets, names, [&](test::Runner& runner) {
    operands.poison();
    problem->call(runner, operands.views(), runner.implementation());
    runner.synchronize();
    test::log_ran(op.name, runner.implementation());
    operands.expect_nothing_else_written();
    const Reader reader(operands.views());
    const Verdict verdict = problem->reference_reads_outputs() ? check(*problem, list, reader, rows)
                                                               : check(reference, list, reader);
    EXPECT_TRUE(verdict.right()) << verdict.outside << " of " << verdict.compared << ": "
                                 << verdict.where;
  });
}

class SpecSweep : public testing::TestWithParam<std::string> {};

TEST_P(SpecSweep, EveryCase_MatchesTheReference) {
  const Operator& op = *find(GetParam());
  const std::vector<cases::Case> items =
      select(op, {.tier = test::kSanitized ? cases::Tier::check : cases::Tier::sweep,
                  .device = test::test_device().kind});
  ASSERT_FALSE(items.empty());
  std::uint64_t seed = 0;
  for (const cases::Case& item : items) check_case(op, item, ++seed);
}

INSTANTIATE_TEST_SUITE_P(All, SpecSweep, testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const Operator& op : all()) names.push_back(op.name);
                           return names;
                         }()),
                         [](const auto& parameter) { return parameter.param; });

}  // namespace
}  // namespace touchstone::spec
