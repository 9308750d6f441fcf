// Bad arguments of append: one error that names the argument, and nothing written.
#include <gtest/gtest.h>

#include <functional>

#include "ops/kv_append/kv_append_test_support.h"
#include "tests/support/refusal.h"

namespace touchstone::inline v0::cache {
namespace {

struct Mistake {
  std::string argument;  // named by the message
  std::function<void(KvAppendArgs&)> make;
};

Device other_device() { return test::on_gpu() ? Device::cpu() : Device::cuda(); }

void expect_refused(AppendRun& run, Context& context, const std::vector<Mistake>& mistakes) {
  run.fill_pool();
  const std::vector<std::byte> before = run.pool_bytes();
  for (std::size_t i = 0; i < mistakes.size(); ++i) {
    SCOPED_TRACE("mistake " + std::to_string(i));
    KvAppendArgs args = run.args(context);
    mistakes[i].make(args);
    test::expect_refusal("kv_append: " + mistakes[i].argument + ":",
                         [&] { kv_append(context, args); });
    test::expect_refusal("kv_append: " + mistakes[i].argument + ":",
                         [&] { explain(context, args); });
  }
  EXPECT_EQ(run.pool_bytes(), before);
}

TEST(AppendErrors, ShapesTypesAndDevices) {
  AppendRun run({.added = {2, 1, 3}});
  Context context({.device = test::test_device()});
  std::vector<Mistake> mistakes = {
      {"layer_group", [](KvAppendArgs& a) { a.layer_group = -1; }},
      {"layer_group", [](KvAppendArgs& a) { a.layer_group = 1; }},
      {"layer", [](KvAppendArgs& a) { a.layer = -1; }},
      {"layer", [](KvAppendArgs& a) { a.layer = 2; }},
      {"cache", [](KvAppendArgs& a) { a.cache.device = other_device(); }},
      {"cache", [](KvAppendArgs& a) { a.cache.lengths = a.cache.lengths.first(2); }},
      {"cache", [](KvAppendArgs& a) { a.cache.rows = 2; }},
      {"v", [](KvAppendArgs& a) { a.v = {}; }},
      {"v", [](KvAppendArgs& a) { a.v.shape[0] -= 1; }},
      {"k", [](KvAppendArgs& a) { a.k = {}; }},
      {"k", [](KvAppendArgs& a) { a.k.stride[2] = 2; }},
      {"k", [](KvAppendArgs& a) { a.k.stride[1] = 65; }},
      {"k", [](KvAppendArgs& a) { a.k.stride[0] = -128; }},
      {"k", [](KvAppendArgs& a) { a.k.rank = 2; }},
      {"k", [](KvAppendArgs& a) { a.k.rank = 0; }},
      {"rows", [](KvAppendArgs& a) { a.rows = {}; }},
      {"rows", [](KvAppendArgs& a) { a.rows.dtype = DType::i64; }},
      {"rows", [](KvAppendArgs& a) { a.rows.shape[0] = 5; }},
      {"rows", [](KvAppendArgs& a) { a.rows.stride[0] = 2; }},
      {"positions", [](KvAppendArgs& a) { a.positions = {}; }},
      {"positions", [](KvAppendArgs& a) { a.positions.dtype = DType::i32; }},
      {"positions", [](KvAppendArgs& a) { a.positions.shape[0] = 7; }},
      // Six tokens, and three rows that would take one each.
      {"k", [](KvAppendArgs& a) { a.rows = a.positions = {}; }},
      {"cache",
       [](KvAppendArgs& a) {
         a.k.data = a.cache.groups[0].memory;  // the pages themselves
       }},
  };
  for (ConstTensorView KvAppendArgs::*member : {&KvAppendArgs::k, &KvAppendArgs::v}) {
    const std::string name = member == &KvAppendArgs::k ? "k" : "v";
    mistakes.push_back({name, [=](KvAppendArgs& a) { (a.*member).data = nullptr; }});
    mistakes.push_back({name, [=](KvAppendArgs& a) { (a.*member).device = other_device(); }});
    mistakes.push_back({name, [=](KvAppendArgs& a) { (a.*member).dtype = DType::f64; }});
    mistakes.push_back({name, [=](KvAppendArgs& a) { (a.*member).shape[1] = 3; }});
    mistakes.push_back({name, [=](KvAppendArgs& a) { (a.*member).shape[2] = 63; }});
    mistakes.push_back({name, [=](KvAppendArgs& a) { (a.*member).stride[0] = INT64_MAX / 2; }});
  }
  expect_refused(run, context, mistakes);
}

TEST(AppendErrors, ValuesBesideALatent) {
  AppendProblem problem;
  problem.group.k_is_v = true;
  AppendRun run(problem);
  Context context({.device = test::test_device()});
  expect_refused(run, context, {{"v", [](KvAppendArgs& a) { a.v = a.k; }}});
}

// A slot is checked on the CPU and skipped on CUDA, where the host does not know it.
TEST(AppendErrors, PlacesThatAreNotReserved) {
  struct Case {
    std::string argument;
    double row;
    double position;
  };
  AppendRun run({.committed = {0, 3, 8}, .added = {2, 1, 0}});
  Context context({.device = test::test_device()});
  const std::vector<Case> cases = {
      {"rows", -2, 0},        {"rows", 3, 0},      {"rows", 1e9, 0},
      {"positions", 0, -1},   {"positions", 0, 2}, {"positions", 1, 2},  // committed
      {"positions", 1, 4},  // in its page, not reserved
      {"positions", 2, 8},  // nothing is reserved
      {"positions", 0, 1e18},
  };
  run.fill_pool();
  const std::vector<std::byte> before = run.pool_bytes();
  for (const Case& c : cases) {
    const std::vector<double> one_row = {-1, c.row, -1};
    const std::vector<double> one_position = {0, c.position, 0};
    const test::Guarded rows(context.device(), DType::i32, {3}, one_row);
    const test::Guarded positions(context.device(), DType::i64, {3}, one_position);
    KvAppendArgs args = run.args(context);
    args.rows = rows;
    args.positions = positions;
    if (test::on_gpu()) {
      kv_append(context, args);
      context.synchronize();
    } else {
      test::expect_refusal("kv_append: " + c.argument + ":", [&] { kv_append(context, args); });
    }
    EXPECT_EQ(run.pool_bytes(), before);
  }
}

TEST(AppendErrors, OnePlaceForTwoTokens) {
  if (test::on_gpu()) GTEST_SKIP() << "slots are not checked on CUDA";
  AppendRun run({.committed = {0, 3, 8}, .added = {2, 1, 0}});
  Context context({.device = test::test_device()});
  run.fill_pool();
  const std::vector<double> numbers = {0, 1, 0};
  const std::vector<double> places = {1, 3, 1};
  const test::Guarded rows(context.device(), DType::i32, {3}, numbers);
  const test::Guarded positions(context.device(), DType::i64, {3}, places);
  KvAppendArgs args = run.args(context);
  args.rows = rows;
  args.positions = positions;
  const std::vector<std::byte> before = run.pool_bytes();
  test::expect_refusal("kv_append: positions: expected a slot for each token",
                       [&] { kv_append(context, args); });
  EXPECT_EQ(run.pool_bytes(), before);
}

TEST(AppendErrors, NothingReservedForTheNextToken) {
  if (test::on_gpu()) GTEST_SKIP() << "slots are not checked on CUDA";
  AppendRun run({.committed = {0, 3, 8}, .added = {1, 1, 1}});
  Context context({.device = test::test_device()});
  KvAppendArgs args = run.args(context);
  args.rows = args.positions = {};
  run.cache.commit(run.ids[1], 1);
  args.cache = run.builder.build(context, run.ids);
  test::expect_refusal("kv_append: positions: expected one of the reserved [4, 4) of token 1",
                       [&] { kv_append(context, args); });
}

}  // namespace
}  // namespace touchstone::inline v0::cache
