// kv_append to the bit: every format, shape and slot against codec.h, nothing else written.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/kv_append/kv_append_test_support.h"

namespace touchstone::inline v0::cache {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<QuantFormat> all_formats(std::int64_t group) {
  std::vector<QuantFormat> list = {{DType::f32}, {DType::bf16}, {DType::f16}};
  for (const DType scale : {DType::f16, DType::f32}) {
    for (const bool asymmetric : {false, true}) {
      list.push_back({DType::i8, group, asymmetric, scale});
      list.push_back({DType::i4, group, asymmetric, scale});
    }
    list.push_back({DType::f8_e4m3, group, false, scale});
  }
  return list;
}

// Each format as K and as V, rotated and not, from each dtype.
void check_formats(AppendProblem problem, std::int64_t group) {
  const std::vector<QuantFormat> formats = all_formats(group);
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
  for (std::size_t i = 0; i < formats.size(); ++i) {
    problem.group.k = formats[i];
    problem.group.v = formats[(i + 4) % formats.size()];
    for (std::size_t d = 0; d < 3; ++d) {
      problem.k_dtype = dtypes[d];
      problem.v_dtype = dtypes[(d + i) % 3];
      problem.group.rotate_keys = (i + d) % 2 == 0;
      check_append(problem);
      problem.group.rotate_keys = !problem.group.rotate_keys;
      check_append(problem);
    }
  }
}

// Keys and values that are stored as they come.
TEST(Append, StoredDTypeIsTheDTypeOfTheTokens) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    AppendProblem problem{.committed = {0, 15, 16}, .added = {3, 2, 17}};
    problem.group = {.layers = 2,
                     .kv_heads = 3,
                     .k_dim = 128,
                     .v_dim = 64,
                     .k = {dtype},
                     .v = {dtype},
                     .page_tokens = 16};
    problem.k_dtype = problem.v_dtype = dtype;
    check_append(problem);
  }
}

TEST(Append, EveryFormatHeadsOf128) {
  AppendProblem problem{.committed = {0, 15, 16}, .added = {3, 2, 17}};
  problem.group = {.layers = 2, .kv_heads = 3, .k_dim = 128, .v_dim = 128, .page_tokens = 16};
  check_formats(problem, 32);
  check_formats(problem, 0);
}

TEST(Append, EveryFormatHeadsThatFillNoVector) {
  for (const std::int64_t dim : {2, 6, 10, 22, 38, 80, 96, 100}) {
    AppendProblem problem;
    problem.group.k_dim = dim;
    problem.group.v_dim = dim;
    check_formats(problem, 0);
    check_formats(problem, dim / 2 % 2 == 0 ? dim / 2 : 2);
  }
}

TEST(Append, OddHeads) {
  AppendProblem problem;
  problem.group.k_dim = 7;
  problem.group.v_dim = 1;
  for (const DType encoding : {DType::i8, DType::f8_e4m3, DType::bf16}) {
    problem.group.k = {.dtype = encoding};
    problem.group.v = {.dtype = encoding};
    check_append(problem);
  }
}

TEST(Append, LargeHeads) {
  AppendProblem problem{.committed = {5}, .added = {4}};
  problem.group = {.layers = 1, .kv_heads = 1, .k_dim = 1024, .v_dim = 2048, .page_tokens = 4};
  problem.layer = 0;
  problem.group.rotate_keys = true;
  problem.group.k = {.dtype = DType::i4, .group_size = 64, .asymmetric = true};
  problem.group.v = {.dtype = DType::i8};
  check_append(problem);
}

// The latent of MLA: one head, no V. And K and V of different sizes.
TEST(Append, LatentAndUnequalHeads) {
  AppendProblem problem{.committed = {9, 0}, .added = {1, 20}};
  problem.group = {.layers = 2, .kv_heads = 1, .k_dim = 576, .v_dim = 512, .k_is_v = true};
  for (const QuantFormat& format : all_formats(64)) {
    problem.group.k = format;
    check_append(problem);
  }
  problem.group = {.layers = 2, .kv_heads = 4, .k_dim = 192, .v_dim = 128};
  for (const QuantFormat& format : all_formats(32)) {
    problem.group.k = format;
    check_append(problem);
  }
}

TEST(Append, PagesOfEverySizeAndTheirBorders) {
  for (const std::int64_t page_tokens : {1, 8, 16, 64}) {
    AppendProblem problem{.committed = {}, .added = {}};
    problem.group.page_tokens = page_tokens;
    problem.group.k = {.dtype = DType::i8, .group_size = 32};
    problem.group.v = {.dtype = DType::i4, .group_size = 32, .asymmetric = true};
    for (const std::int64_t before : {page_tokens - 1, page_tokens, page_tokens + 1}) {
      for (const std::int64_t more : {std::int64_t{1}, page_tokens, page_tokens + 1}) {
        problem.committed.push_back(before);
        problem.added.push_back(more);
      }
    }
    check_append(problem);
    problem.shuffled = true;
    check_append(problem);
  }
}

// Parts of one wide tensor of queries, keys and values, at odd addresses.
TEST(Append, TokensApart) {
  for (const test::Layout layout :
       {test::Layout{.row_gap = 64, .offset = 32}, test::Layout{.row_gap = 3, .offset = 1}}) {
    AppendProblem problem{.added = {2, 3, 4}};
    problem.layout = layout;
    problem.group.k = {.dtype = DType::i8, .group_size = 32};
    problem.group.rotate_keys = true;
    check_append(problem);
  }
}

// Many tokens, so that threads share them.
TEST(Append, ManyTokens) {
  AppendProblem problem{.committed = {100, 0, 7}, .added = {300, 1, 250}};
  problem.group = {.layers = 1, .kv_heads = 8, .k_dim = 128, .v_dim = 128, .page_tokens = 16};
  problem.layer = 0;
  problem.group.k = {.dtype = DType::i8, .group_size = 32};
  problem.group.v = {.dtype = DType::i4, .group_size = 32, .asymmetric = true};
  problem.group.rotate_keys = true;
  problem.shuffled = true;
  check_append(problem);
}

// Numbers that are none, that are too large and that are too small.
TEST(Append, SpecialNumbers) {
  const double special[] = {kNan,  kInfinity, -kInfinity, 3e38,  -3e38,  1e-40,    0,    -0.0,
                            1e-45, 65504,     65520,      1e-30, 448e30, -0x1p126, 1e-5, -1e-8};
  for (const std::int64_t every : {1, 5, 33, 130}) {
    AppendProblem problem{.committed = {0, 0}, .added = {40, 3}};
    problem.value = [&](int part, std::int64_t i) {
      const test::Random random(17 + static_cast<std::uint64_t>(part));
      return i % every == 0 ? special[random.bits(i) % 16] : random.normal(i);
    };
    for (const std::int64_t group : {0, 8, 32}) {
      const std::vector<QuantFormat> formats = all_formats(group);
      for (std::size_t i = 0; i < formats.size(); ++i) {
        problem.group.k = formats[i];
        problem.group.v = formats[formats.size() - 1 - i];
        problem.group.rotate_keys = i % 2 == 0;
        problem.k_dtype = i % 3 == 0 ? DType::f16 : DType::f32;
        check_append(problem);
      }
    }
  }
}

// ---- calls -------------------------------------------------------------------------------------

TEST(Append, OneTokenForEachRowNeedsNoPlaces) {
  AppendRun run({});
  test::for_each_implementation(run.accepting(), [&](test::Runner& context) {
    run.fill_pool();
    KvAppendArgs args = run.args(context);
    args.rows = {};
    args.positions = {};
    kv_append(context, context.with(args));
    context.synchronize();
    EXPECT_EQ(run.pool_bytes(), run.expected);
  });
}

TEST(Append, ChunksAreTheSameAsTheWhole) {
  const AppendProblem problem{.committed = {5, 0}, .added = {13, 2}};
  AppendRun run(problem);
  test::for_each_implementation(run.accepting(), [&](test::Runner& context) {
    run.fill_pool();
    const KvAppendArgs whole = run.args(context);
    const auto tokens_of = [](ConstTensorView view, std::int64_t first, std::int64_t count) {
      view.data =
          static_cast<const std::byte*>(view.data) + first * view.stride[0] * size_of(view.dtype);
      view.shape[0] = count;
      return view;
    };
    for (std::int64_t first = 0; first < whole.k.shape[0]; first += 4) {
      const std::int64_t count = std::min<std::int64_t>(4, whole.k.shape[0] - first);
      KvAppendArgs chunk = whole;
      chunk.k = tokens_of(whole.k, first, count);
      chunk.v = tokens_of(whole.v, first, count);
      chunk.rows = tokens_of(whole.rows, first, count);
      chunk.positions = tokens_of(whole.positions, first, count);
      kv_append(context, context.with(chunk));
    }
    context.synchronize();
    EXPECT_EQ(run.pool_bytes(), run.expected);
  });
}

TEST(Append, RowMinusOneIsSkipped) {
  AppendProblem problem{.committed = {0, 4}, .added = {3, 3}};
  AppendRun run(problem);
  const std::vector<std::byte> with_all = run.expected;
  test::for_each_implementation(run.accepting(), [&](test::Runner& context) {
    run.fill_pool();
    const std::vector<std::byte> before = run.pool_bytes();
    const std::vector<double> nowhere(6, -1);
    const test::Guarded none(test::test_device(), DType::i32, {6}, nowhere);
    KvAppendArgs args = run.args(context);
    args.rows = none;
    kv_append(context, context.with(args));
    context.synchronize();
    EXPECT_EQ(run.pool_bytes(), before);
    const std::vector<double> second_only = {-1, -1, -1, 1, 1, 1};
    const test::Guarded second(test::test_device(), DType::i32, {6}, second_only);
    args.rows = second;
    kv_append(context, context.with(args));
    context.synchronize();
    EXPECT_NE(run.pool_bytes(), before);
    EXPECT_NE(run.pool_bytes(), with_all);
  });
}

TEST(Append, NoTokens) {
  AppendProblem problem{.committed = {3}, .added = {0}};
  AppendRun run(problem);
  test::Runner context({.device = test::test_device()});
  run.fill_pool();
  kv_append(context, context.with(run.args(context)));
  context.synchronize();
  EXPECT_EQ(run.pool_bytes(), run.expected);
}

// A fork shares the last page until one of the two grows: what is appended to one is not seen by
// the other, and the beginning of the page is there for both.
TEST(Append, ForksDoNotSeeEachOther) {
  const LayerGroup group{.layers = 1, .kv_heads = 1, .k_dim = 16, .v_dim = 16, .page_tokens = 8};
  KvCache cache = make_cache({.layout = {{group}}, .pool_pages = {8}}, test::test_device());
  test::Runner context({.device = test::test_device()});
  CacheViewBuilder builder(cache);
  const auto add = [&](SequenceId id, std::int64_t tokens, double value) {
    const std::vector<double> numbers(static_cast<std::size_t>(tokens * 16), value);
    const test::Guarded rows(context.device(), DType::f32, {tokens, 1, 16}, numbers);
    std::vector<double> row(static_cast<std::size_t>(tokens), 0);
    std::vector<double> position;
    for (std::int64_t i = 0; i < tokens; ++i) {
      position.push_back(static_cast<double>(cache.length(id) + i));
    }
    const test::Guarded where(context.device(), DType::i32, {tokens}, row);
    const test::Guarded place(context.device(), DType::i64, {tokens}, position);
    cache.reserve(id, tokens);
    kv_append(context, {.cache = builder.build(context, {&id, 1}),
                        .k = rows,
                        .v = rows,
                        .rows = where,
                        .positions = place});
    context.synchronize();
    cache.commit(id, tokens);
  };
  const auto key = [&](SequenceId id, std::int64_t position) {
    const std::span<const std::byte> page = state_of(cache).page_at(id, 0, position);
    const TokenOffsets at = token_offsets(group, state_of(cache).geometry(0), 0, 0, position % 8);
    const std::vector<std::byte> bytes = read_bytes(cache.device(), page.data() + at.k_values, 2);
    return static_cast<float>(Bf16::from_bits(static_cast<std::uint16_t>(
        std::to_integer<int>(bytes[0]) | std::to_integer<int>(bytes[1]) << 8)));
  };
  const SequenceId parent = cache.create();
  add(parent, 5, 1);
  const SequenceId child = cache.fork(parent);
  add(parent, 2, 2);
  add(child, 1, 3);
  EXPECT_EQ(key(parent, 4), 1);
  EXPECT_EQ(key(child, 4), 1);
  EXPECT_EQ(key(parent, 5), 2);
  EXPECT_EQ(key(child, 5), 3);
}

// The last page begins beyond 2^32 bytes; only pages that are touched take memory on the CPU.
TEST(Append, PagesBeyondFourGigabytes) {
  const LayerGroup group{
      .layers = 1, .kv_heads = 8, .k_dim = 128, .v_dim = 128, .page_tokens = 1024};
  KvCache cache = make_cache({.layout = {{group}}, .pool_pages = {1280}}, test::test_device());
  const SequenceId id = cache.create();
  cache.reserve(id, 1280 * 1024);
  cache.commit(id, 1280 * 1024 - 1);
  test::Runner context({.device = test::test_device()});
  CacheViewBuilder builder(cache);
  const std::vector<double> numbers(std::size_t{8} * 128, 1);
  const test::Guarded token(context.device(), DType::bf16, {1, 8, 128}, numbers);
  kv_append(context, {.cache = builder.build(context, {&id, 1}), .k = token, .v = token});
  context.synchronize();
  cache.commit(id, 1);
  const std::span<const std::byte> page = state_of(cache).page_at(id, 0, 1280 * 1024 - 1);
  ASSERT_GT(page.data() - state_of(cache).memory_data(0), std::int64_t{1} << 32);
  for (std::int64_t head = 0; head < 8; ++head) {
    const TokenOffsets at = token_offsets(group, state_of(cache).geometry(0), 0, head, 1023);
    for (const std::int64_t offset : {at.k_values, at.v_values}) {
      const std::vector<std::byte> stored = read_bytes(cache.device(), page.data() + offset, 256);
      for (std::size_t i = 0; i < stored.size(); ++i) {
        ASSERT_EQ(stored[i], std::byte{static_cast<unsigned char>(i % 2 == 0 ? 0x80 : 0x3f)});
      }
    }
  }
}

}  // namespace
}  // namespace touchstone::inline v0::cache
