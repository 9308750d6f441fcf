// Bad arguments: one exception of the right class, whose message names the operator and the
// argument, and nothing written.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "ops/attention_paged/paged_test_support.h"
#include "tests/support/refusal.h"

namespace touchstone::test {
namespace {

using A = CachedAttentionArgs;

using Mistake = test::Mistake<A>;
using Mistakes = std::vector<Mistake>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Mistakes with one tensor argument, whatever it is.
template <class View>
void common(Mistakes& list, const std::string& name, View A::*member) {
  const auto wrong = [&](const std::string& what, auto edit) {
    list.push_back({name + " " + what, name, [=](A& a) { edit(a.*member); }});
  };
  wrong("on the wrong device", [](View& v) { v.device = other_device(); });
  wrong("with null data", [](View& v) { v.data = nullptr; });
  wrong("of type f64", [](View& v) { v.dtype = DType::f64; });
  wrong("of type u8", [](View& v) { v.dtype = DType::u8; });
  wrong("with a negative extent", [](View& v) { v.shape[0] = -1; });
  wrong("with one more", [](View& v) { v.shape[static_cast<std::size_t>(v.rank - 1)] += 1; });
  wrong("of rank 0", [](View& v) { v.rank = 0; });
  wrong("of a higher rank", [](View& v) {
    const auto end = static_cast<std::size_t>(v.rank++);
    v.shape[end] = v.stride[end] = 1;
  });
}

template <class View>
void contiguous(Mistakes& list, const std::string& name, View A::*member) {
  list.push_back({name + " apart", name, [=](A& a) {
                    View& v = a.*member;
                    v.stride[static_cast<std::size_t>(v.rank - 1)] = 2;
                  }});
}

// Query and output: [N, heads, dim].
template <class View>
void token_vectors(Mistakes& list, const std::string& name, View A::*member) {
  const auto wrong = [&](const std::string& what, auto edit) {
    list.push_back({name + " " + what, name, [=](A& a) { edit(a.*member); }});
  };
  wrong("with numbers apart", [](View& v) { v.stride[2] = 2; });
  wrong("with a negative stride", [](View& v) { v.stride[0] = -v.stride[0]; });
  wrong("with a dim less", [](View& v) { v.shape[2] -= 1; });
  wrong("with a head more", [](View& v) { v.shape[1] += 1; });
}

void cache_mistakes(Mistakes& list) {
  const auto add = [&](const char* what, const char* argument, std::function<void(A&)> make) {
    list.push_back({what, argument, std::move(make)});
  };
  add("no cache", "cache", [](A& a) { a.cache = {}; });
  add("a cache elsewhere", "cache", [](A& a) { a.cache.device = other_device(); });
  add("no lengths", "cache", [](A& a) { a.cache.lengths = {}; });
  add("too few rows", "cache", [](A& a) { a.cache.rows -= 1; });
  add("nothing reserved", "cache", [](A& a) { a.include_reserved = true; });
  add("layer_group below 0", "layer_group", [](A& a) { a.layer_group = -1; });
  add("layer_group too large", "layer_group", [](A& a) { a.layer_group = 1; });
  add("layer below 0", "layer", [](A& a) { a.layer = -1; });
  add("layer too large", "layer", [](A& a) { a.layer = 2; });
}

template <class View>
View placed_on(View view, const void* data) {
  view.data = const_cast<void*>(data);
  return view;
}

void overlaps(Mistakes& list) {
  const auto add = [&](const char* what, const char* argument, std::function<void(A&)> make) {
    list.push_back({what, argument, std::move(make)});
  };
  add("output on q", "output", [](A& a) { a.output = placed_on(a.output, a.q.data); });
  add("output on the tree", "output", [](A& a) { a.output = placed_on(a.output, a.tree.data); });
  add("output on query_offsets", "output",
      [](A& a) { a.output = placed_on(a.output, a.query_offsets.data); });
  add("output on log_sum_exp", "output",
      [](A& a) { a.output = placed_on(a.output, a.log_sum_exp.data); });
  add("log_sum_exp on sink_logits", "log_sum_exp",
      [](A& a) { a.log_sum_exp = placed_on(a.log_sum_exp, a.sink_logits.data); });
  add("log_sum_exp on positions", "log_sum_exp",
      [](A& a) { a.log_sum_exp = placed_on(a.log_sum_exp, a.positions.data); });
}

Mistakes all_mistakes() {
  Mistakes list;
  common(list, "q", &A::q);
  token_vectors(list, "q", &A::q);
  common(list, "output", &A::output);
  token_vectors(list, "output", &A::output);
  common(list, "query_offsets", &A::query_offsets);
  contiguous(list, "query_offsets", &A::query_offsets);
  common(list, "positions", &A::positions);
  contiguous(list, "positions", &A::positions);
  common(list, "tree_starts", &A::tree_starts);
  contiguous(list, "tree_starts", &A::tree_starts);
  common(list, "sink_logits", &A::sink_logits);
  contiguous(list, "sink_logits", &A::sink_logits);
  common(list, "log_sum_exp", &A::log_sum_exp);
  const auto add = [&](const char* what, const char* argument, std::function<void(A&)> make) {
    list.push_back({what, argument, std::move(make)});
  };
  add("no q", "q", [](A& a) { a.q = {}; });
  add("rows of log_sum_exp on top of each other", "log_sum_exp",
      [](A& a) { a.log_sum_exp.stride[0] = 1; });
  add("no output", "output", [](A& a) { a.output = {}; });
  add("no query_offsets", "query_offsets", [](A& a) { a.query_offsets = {}; });
  add("tree_starts without a tree", "tree_starts", [](A& a) { a.tree = {}; });
  add("a tree elsewhere", "tree", [](A& a) { a.tree.device = other_device(); });
  add("a tree of i32", "tree", [](A& a) { a.tree.dtype = DType::i32; });
  add("a tree with a row less", "tree", [](A& a) { a.tree.shape[0] -= 1; });
  add("a tree without words", "tree", [](A& a) { a.tree.shape[1] = 0; });
  add("a tree of rank 1", "tree", [](A& a) { a.tree.rank = 1; });
  add("tokens of the output on top of each other", "output",
      [](A& a) { a.output.stride[0] = a.output.stride[0] - 1; });
  add("heads of the output on top of each other", "output",
      [](A& a) { a.output.stride[1] = a.output.stride[1] - 1; });
  for (const double scale : {kNan, kInfinity, -kInfinity, 1e39}) {
    list.push_back({"scale " + std::to_string(scale), "scale", [=](A& a) { a.scale = scale; }});
  }
  for (const double cap : {kNan, kInfinity, -1.0, 1e39, 1e-50}) {
    list.push_back(
        {"soft_cap " + std::to_string(cap), "soft_cap", [=](A& a) { a.soft_cap = cap; }});
  }
  cache_mistakes(list);
  overlaps(list);
  return list;
}

Scene good_scene() {
  Scene scene{.layers = {.layers = 2,
                         .kv_heads = 2,
                         .k_dim = 16,
                         .v_dim = 16,
                         .k = {.dtype = DType::f32},
                         .v = {.dtype = DType::f32}},
              .query_heads = 4,
              .sink_logits = true,
              .give_tree_starts = true};
  for (std::uint64_t i = 1; i < 4; ++i) {
    scene.rows.push_back({.length = 40,
                          .queries = 2,
                          .seed = i,
                          .positions = {38, 39},
                          .tree = {{true, false}, {true, true}},
                          .tree_start = 38});
  }
  return scene;
}

void expect_untouched(const AttentionRun& run) {
  for (const Guarded* buffer :
       {&run.query, &run.query_offsets, &run.positions, &run.tree, &run.tree_starts,
        &run.sink_logits, &run.output, &run.log_sum_exp}) {
    EXPECT_TRUE(buffer->unchanged());
  }
}

TEST(CachedAttentionErrors, EveryMistake) {
  AttentionRun run(good_scene());
  Runner context({.device = test_device(), .threads = 2});
  for (const Mistake& mistake : all_mistakes()) {
    SCOPED_TRACE(mistake.name);
    A args = run.args;
    mistake.make(args);
    const std::string prefix = "cached_attention: " + mistake.argument + ": ";
    expect_refusal(prefix, [&] { cached_attention(context, args); });
    // Asking which implementation would run is held to the same standard.
    expect_refusal(prefix, [&] { explain(context, args); });
    context.synchronize();
    expect_untouched(run);
  }
  // The arguments were good before they were spoilt, or the mistakes prove nothing.
  EXPECT_NO_THROW(run.run(context));
}

// What the arrays hold is looked at on the CPU only.
TEST(CachedAttentionErrors, ArraysThatMakeNoSense) {
  if (on_gpu()) GTEST_SKIP() << "not checked on a device";
  AttentionRun run(good_scene());
  Runner context({.threads = 2});
  const cache::GroupView good = run.args.cache.groups[0];
  const auto refuses = [&](const std::string& message, const std::function<void(A&)>& spoil) {
    SCOPED_TRACE(message);
    A args = run.args;
    spoil(args);
    expect_refusal("cached_attention: " + message, [&] { cached_attention(context, args); });
    expect_untouched(run);
  };
  std::int64_t starts[4] = {0, 2, 4, 6};
  const auto with_starts = [&](std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    return [&starts, a, b, c, d](A& args) {
      std::ranges::copy(std::initializer_list<std::int64_t>{a, b, c, d}, starts);
      args.query_offsets = make_view(static_cast<const std::int64_t*>(starts), {4});
    };
  };
  refuses("query_offsets: expected 0 first, got 1", with_starts(1, 2, 4, 6));
  refuses("query_offsets: expected 6 last, got 5", with_starts(0, 2, 4, 5));
  refuses("query_offsets: expected ascending numbers", with_starts(0, 5, 4, 6));
  refuses("query_offsets: expected ascending numbers", with_starts(0, 9, 9, 6));

  std::int64_t lengths[3] = {40, 40, 40};
  const auto with_length = [&](std::int64_t length) {
    return [&lengths, length](A& args) {
      lengths[1] = length;
      args.cache.lengths = lengths;
    };
  };
  refuses("cache: expected a length of row 1 of 0 to 64, got 65", with_length(65));
  refuses("cache: expected a length of row 1 of 0 to 64, got -1", with_length(-1));
  refuses("tree_starts: expected a position of row 1 from 0 to 37, got 38", with_length(37));

  std::vector<std::int32_t> table(good.page_table.begin(), good.page_table.end());
  cache::GroupView group = good;
  group.page_table = table;
  const auto with_page = [&](std::int32_t number) {
    return [&, number](A& args) {
      table[static_cast<std::size_t>(good.table_stride)] = number;
      args.cache.groups = {&group, 1};
    };
  };
  refuses("cache: expected a page for position 0 of row 1, got -1", with_page(-1));
  refuses("cache: expected a page for position 0 of row 1, got 1000000", with_page(1000000));
  EXPECT_NO_THROW(run.run(context));
}

// Page 1 lies between the window, which is empty before the tree, and the tree's only token.
TEST(CachedAttentionErrors, PagesThatNoQueryAttendsToMayBeMissing) {
  if (on_gpu()) GTEST_SKIP() << "nobody looks into the memory of a GPU";
  Scene scene = good_scene();
  scene.layers.window = 4;
  scene.rows = {{.length = 40, .queries = 1, .positions = {36}, .tree_start = 20}};
  scene.rows[0].tree = {std::vector<bool>(20)};
  scene.rows[0].tree[0][16] = true;
  AttentionRun run(scene);
  cache::GroupView group = run.args.cache.groups[0];
  std::vector<std::int32_t> table(group.page_table.begin(), group.page_table.end());
  table[0] = table[1] = -1;
  group.page_table = table;
  run.args.cache.groups = {&group, 1};
  Runner context({.threads = 1});
  EXPECT_NO_THROW(run.run(context));
  EXPECT_TRUE(run.is_right());
}

TEST(CachedAttentionErrors, UnknownImplementation) {
  AttentionRun run(good_scene());
  Context context({.device = test_device(), .threads = 1});
  run.args.implementation = "abacus";
  EXPECT_THROW(cached_attention(context, run.args), Unsupported);
  expect_untouched(run);
}

TEST(CachedAttentionErrors, NoQueriesIsNoMistake) {
  Scene scene = good_scene();
  for (SceneRow& row : scene.rows) row = {.length = 40, .queries = 0, .seed = row.seed};
  scene.give_tree_starts = false;
  AttentionRun run(scene);
  Context context({.device = test_device(), .threads = 1});
  EXPECT_NO_THROW(cached_attention(context, run.args));
}

// Dims beyond the SIMD code's buffers use the plain one.
TEST(CachedAttentionErrors, LargeDims) {
  Scene scene = good_scene();
  scene.layers.k_dim = 1040;
  check_scene(scene);
}

}  // namespace
}  // namespace touchstone::test
