// cached_attention against the oracle, on the same stored bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/attention_paged/paged_test_support.h"

namespace touchstone::test {
namespace {

// Positions that the CPU sums before it merges.
constexpr std::int64_t kSplit = 512;

using cache::LayerGroup;

LayerGroup grouped(std::int64_t kv_heads, std::int64_t k_dim, std::int64_t v_dim, QuantFormat k,
                   QuantFormat v) {
  return {.layers = 2, .kv_heads = kv_heads, .k_dim = k_dim, .v_dim = v_dim, .k = k, .v = v};
}

LayerGroup small_group(std::int64_t page_tokens = 16) {
  LayerGroup layers = grouped(2, 32, 32, {.dtype = DType::f32}, {.dtype = DType::f32});
  layers.page_tokens = page_tokens;
  return layers;
}

// Every format that differs in how it is read.
std::vector<QuantFormat> formats() {
  std::vector<QuantFormat> result;
  for (const DType encoding : kFormatDTypes) {
    result.push_back({.dtype = encoding});
    if (!is_quantized(encoding)) continue;
    result.push_back({.dtype = encoding, .group_size = 32});
    result.push_back({.dtype = encoding, .group_size = 8, .scale_dtype = DType::f32});
    if (encoding == DType::f8_e4m3) continue;
    result.push_back({.dtype = encoding, .group_size = 16, .asymmetric = true});
    result.push_back({.dtype = encoding, .asymmetric = true, .scale_dtype = DType::f32});
  }
  return result;
}

std::string describe(const QuantFormat& format) {
  return std::string(format_name(format.dtype)) + " group " + std::to_string(format.group_size) +
         (format.asymmetric ? " asymmetric" : "") + " scale " +
         std::string(name_of(format.scale_dtype));
}

TEST(CachedAttention, EveryFormatOfKeysAndValues) {
  const std::vector<QuantFormat> all = formats();
  for (std::size_t i = 0; i < all.size(); ++i) {
    // Each format once as K and once as V, beside one that differs.
    const QuantFormat k = all[i];
    const QuantFormat v = all[(i + 7) % all.size()];
    const testing::ScopedTrace trace(__FILE__, __LINE__, describe(k) + ", V " + describe(v));
    check_scene({.layers = grouped(2, 64, 96, k, v),
                 .query_heads = 8,
                 .rows = {{.length = 150}, {.length = 67, .queries = 3, .seed = 2}}});
  }
}

TEST(CachedAttention, TheSameFormatForBoth) {
  for (const DType encoding : kFormatDTypes) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, std::string(name_of(encoding)));
    check_scene({.layers = grouped(2, 128, 128, {.dtype = encoding}, {.dtype = encoding}),
                 .query_heads = 8,
                 .rows = {{.length = 700}, {.length = 1, .seed = 3}}});
  }
}

// Dims that are no multiple of a vector, and every ratio of heads.
TEST(CachedAttention, HeadsAndDims) {
  for (const std::int64_t dim : {2, 6, 20, 40, 64, 80, 112, 256}) {
    for (const std::int64_t ratio : {1, 2, 3, 4, 7, 8}) {
      const testing::ScopedTrace trace(
          __FILE__, __LINE__, "dim " + std::to_string(dim) + ", ratio " + std::to_string(ratio));
      check_scene({.layers = grouped(3, dim, dim + 2, {.dtype = DType::bf16}, {.dtype = DType::i8}),
                   .query_heads = 3 * ratio,
                   .rows = {{.length = 70, .queries = 2}}});
    }
  }
  const auto ints = grouped(1, 20, 12, {.dtype = DType::i4, .group_size = 10},
                            {.dtype = DType::i4, .group_size = 4, .asymmetric = true});
  check_scene({.layers = ints, .query_heads = 5, .rows = {{.length = 40, .queries = 4}}});
}

// One latent for all heads, whose first numbers are the value: the shape of DeepSeek's MLA.
TEST(CachedAttention, LatentsThatAreKeyAndValue) {
  for (const QuantFormat k : {QuantFormat{.dtype = DType::bf16}, QuantFormat{.dtype = DType::i8},
                              QuantFormat{.dtype = DType::i8, .group_size = 64},
                              QuantFormat{.dtype = DType::i4, .group_size = 32, .asymmetric = true},
                              QuantFormat{.dtype = DType::f8_e4m3, .group_size = 64}}) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, describe(k));
    LayerGroup layers = grouped(1, 576, 512, k, k);
    layers.k_is_v = true;
    check_scene({.layers = layers,
                 .query_heads = 16,
                 .rows = {{.length = 90}, {.length = 21, .queries = 2, .seed = 5}}});
  }
}

// More and fewer heads than one pass takes, tokens that do not fill a tile, several splits, and
// what a query may not see in the middle of a tile; a query of one part and of several.
TEST(CachedAttention, LatentsOfManyShapes) {
  LayerGroup layers = grouped(1, 576, 512, {.dtype = DType::bf16}, {.dtype = DType::bf16});
  layers.k_is_v = true;
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const std::int64_t heads : {1, 16, 20}) {
      const testing::ScopedTrace trace(__FILE__, __LINE__, std::to_string(heads) + " heads");
      Scene scene{.layers = layers, .query_heads = heads, .query_dtype = dtype};
      scene.rows = {{.length = 31}, {.length = 33, .queries = 3, .seed = 2}};
      check_scene(scene);
      scene.layers.page_tokens = 8;
      scene.layers.window = 40;
      scene.layers.sinks = 3;
      scene.soft_cap = 20;
      scene.sink_logits = true;
      scene.rows = {{.length = 2 * kSplit + 17, .seed = 3}, {.length = 0, .queries = 0}};
      check_scene(scene);
    }
  }
}

TEST(CachedAttention, PageBorders) {
  for (const std::int64_t page : {1, 8, 16, 64}) {
    for (const std::int64_t tokens : {page - 1, page, page + 1, 4 * page - 1, 4 * page + 1}) {
      const testing::ScopedTrace trace(
          __FILE__, __LINE__,
          "page " + std::to_string(page) + ", length " + std::to_string(tokens));
      check_scene({.layers = small_group(page),
                   .query_heads = 4,
                   .rows = {{.length = tokens}, {.length = tokens + 3, .queries = 2, .seed = 2}}});
    }
  }
}

// Around the borders of the pieces that are merged.
TEST(CachedAttention, SplitBorders) {
  Scene scene{.layers = small_group(), .query_heads = 4};
  for (const std::int64_t length : {kSplit - 1, kSplit, kSplit + 1, 3 * kSplit, 3 * kSplit + 65}) {
    scene.rows.push_back({.length = length, .seed = static_cast<std::uint64_t>(length)});
  }
  check_scene(scene);
}

TEST(CachedAttention, WindowsAndSinks) {
  for (const std::int64_t window : {1, 5, 64, 100, 600}) {
    for (const std::int64_t sinks : {0, 1, 4, 70}) {
      const testing::ScopedTrace trace(
          __FILE__, __LINE__,
          "window " + std::to_string(window) + ", sinks " + std::to_string(sinks));
      Scene scene{.layers = small_group(8), .query_heads = 2};
      scene.layers.window = window;
      scene.layers.sinks = sinks;
      scene.rows = {{.length = 3, .queries = 3},
                    {.length = 130, .queries = 70, .seed = 2},
                    {.length = 700, .queries = 2, .seed = 3}};
      check_scene(scene);
    }
  }
}

TEST(CachedAttention, WithoutCausality) {
  Scene scene{.layers = small_group(), .query_heads = 4, .causal = false};
  scene.rows = {{.length = 100, .queries = 40}, {.length = 9, .queries = 9, .seed = 2}};
  check_scene(scene);
  scene.layers.window = 20;
  check_scene(scene);
}

TEST(CachedAttention, GivenPositions) {
  Scene scene{.layers = small_group(), .query_heads = 4};
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
  scene.rows = {{.length = 100, .queries = 5, .positions = {99, 0, 50, 7, 1000}},
                {.length = 33, .queries = 3, .seed = 2, .positions = {-1, 32, 33}}};
  check_scene(scene);
  scene.rows[1].positions = {kFar - 1, -kFar, 3};
  check_scene(scene);
  scene.layers.window = 10;
  scene.layers.sinks = 2;
  check_scene(scene);
}

TEST(CachedAttention, SoftCapAndScale) {
  for (const double cap : {0.5, 5.0, 50.0, 1e-3, 1e6}) {
    check_scene({.layers = small_group(),
                 .query_heads = 4,
                 .rows = {{.length = 80, .queries = 2}},
                 .scale = 0.7,
                 .soft_cap = cap});
  }
  check_scene({.layers = small_group(),
               .query_heads = 2,
               .rows = {{.length = 80, .queries = 2}},
               .scale = -1});
}

TEST(CachedAttention, LearnedSinks) {
  Scene scene{.layers = small_group(), .query_heads = 8, .sink_logits = true};
  scene.rows = {{.length = 600}, {.length = 0, .seed = 2}, {.length = 5, .queries = 7, .seed = 3}};
  check_scene(scene);
  scene.soft_cap = 3;
  scene.layers.window = 40;
  check_scene(scene);
}

TEST(CachedAttention, RotatedKeys) {
  for (const std::int64_t dim : {32, 48, 128}) {
    Scene scene{.layers = grouped(2, dim, 32, {.dtype = DType::i4, .group_size = 16},
                                  {.dtype = DType::bf16}),
                .query_heads = 4,
                .rows = {{.length = 100, .queries = 2}}};
    scene.layers.rotate_keys = true;
    check_scene(scene);
  }
}

TEST(CachedAttention, DtypesAndStrides) {
  for (const DType query : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType output : {DType::f32, DType::bf16, DType::f16}) {
      check_scene({.layers = small_group(),
                   .query_heads = 4,
                   .rows = {{.length = 80, .queries = 3}},
                   .query_dtype = query,
                   .output_dtype = output,
                   .log_sum_exp = query == DType::f32,
                   .layout = {.row_gap = 5, .offset = 3}});
    }
  }
}

// Rows of any length beside each other, some without queries.
TEST(CachedAttention, RaggedBatches) {
  Scene scene{.layers = small_group(), .query_heads = 4};
  for (std::int64_t i = 0; i < 20; ++i) {
    scene.rows.push_back({.length = i * i % 97,
                          .queries = i % 4 == 0 ? 0 : i % 7,
                          .seed = static_cast<std::uint64_t>(i + 1)});
  }
  check_scene(scene);
}

TEST(CachedAttention, QueriesThatSeeNothing) {
  const Scene scene{.layers = small_group(),
                    .query_heads = 4,
                    .rows = {{.length = 0, .queries = 2},
                             {.length = 2, .queries = 5, .seed = 2},
                             {.length = 40, .queries = 1, .seed = 3}}};
  AttentionRun run(scene);
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    EXPECT_TRUE(run.is_right());
    const auto sums = run.log_sum_exp.values();
    const auto output = run.output.values();
    for (std::size_t i = 0; i < 5 * 4; ++i) {  // both of row 0, the first three of row 1
      EXPECT_EQ(sums[i], -std::numeric_limits<double>::infinity());
    }
    for (std::size_t i = 0; i < 5 * 4 * 32; ++i) {
      EXPECT_EQ(output[i], 0);
      EXPECT_FALSE(std::signbit(output[i]));
    }
  });
  check_scene(
      {.layers = small_group(), .query_heads = 2, .rows = {{.length = 3, .queries = 0}, {}}});
}

// Scores up to 16 and more: few tokens take all the weight, and nothing overflows.
TEST(CachedAttention, LargeScores) {
  Scene scene{.layers = small_group(),
              .query_heads = 4,
              .rows = {{.length = 600, .queries = 2}, {.length = 30, .seed = 2}},
              .key_scale = 4};
  check_scene(scene);
  scene.key_scale = 1000;
  scene.soft_cap = 15;
  check_scene(scene);
}

// Queries that whole numbers would not do for: one number that is far larger than the others, and
// meets keys of 0; zeros; numbers next to nothing; and a score of -inf for every token.
TEST(CachedAttention, QueriesOfEveryMagnitude) {
  for (const std::int64_t dim : {64, 128}) {
    for (const float key : {0.0F, -3.0F}) {
      Scene scene{.layers = grouped(1, dim, 32, {.dtype = DType::i8}, {.dtype = DType::f32}),
                  .query_heads = 6,
                  .rows = {{.length = 140, .queries = 2}, {.length = 5, .seed = 2}}};
      for (SceneRow& row : scene.rows) {
        for (std::int64_t t = 0; t < row.length; ++t) row.keys[t] = key;
      }
      scene.query_number = [=](std::int64_t head, std::int64_t i, double x) {
        if (head == 0 && i == 0) return key == 0 ? 1e5 : std::numeric_limits<double>::infinity();
        if (head == 2) return 0.0;
        return head == 3 ? x * 1e-30 : x;
      };
      check_scene(scene);
    }
  }
}

// [heads, N, dim] of [N, heads, dim].
std::vector<double> heads_first(const std::vector<double>& x, std::int64_t heads,
                                std::int64_t dim) {
  const std::int64_t n = std::ssize(x) / (heads * dim);
  std::vector<double> result;
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t t = 0; t < n; ++t) {
      const auto from = x.begin() + (t * heads + h) * dim;
      result.insert(result.end(), from, from + dim);
    }
  }
  return result;
}

TEST(CachedAttention, HeadMajorMemoryIsATransposedView) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Scene scene{.layers = grouped(2, 64, 64, {.dtype = DType::bf16}, {.dtype = DType::bf16}),
                .query_heads = 6,
                .rows = {{.length = 40, .queries = 3}, {.length = 700, .queries = 2, .seed = 2}},
                .query_dtype = dtype};
    AttentionRun run(scene);
    for_each_runner(run.accepting(), [&](Runner& context) {
      run.run(context);
      const Guarded q(test_device(), dtype, {6, 5, 64}, heads_first(run.query.values(), 6, 64));
      const Guarded output(test_device(), DType::f32, {6, 5, 64});
      const Guarded sums(test_device(), DType::f32, {6, 5});
      CachedAttentionArgs args = run.args;
      args.q = transposed(q.view(), 0, 1);
      args.output = transposed(output.view(), 0, 1);
      args.log_sum_exp = transposed(sums.view(), 0, 1);
      cached_attention(context, context.with(args));
      context.synchronize();
      EXPECT_EQ(output.values(), heads_first(run.output.values(), 6, 64));
      EXPECT_EQ(sums.values(), heads_first(run.log_sum_exp.values(), 6, 1));
      EXPECT_TRUE(output.outside_intact());
      EXPECT_TRUE(sums.outside_intact());
    });
  }
}

}  // namespace
}  // namespace touchstone::test
