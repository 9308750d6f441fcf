// cached_attention against the oracle, on the same stored bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/attention_paged/paged_test_support.h"

namespace touchstone::test {
namespace {

using cache::Encoding;
using cache::Format;
using cache::LayerGroup;

LayerGroup grouped(std::int64_t kv_heads, std::int64_t k_dim, std::int64_t v_dim, Format k,
                   Format v) {
  return {.layers = 2, .kv_heads = kv_heads, .k_dim = k_dim, .v_dim = v_dim, .k = k, .v = v};
}

LayerGroup small_group(std::int64_t page_tokens = 16) {
  LayerGroup layers = grouped(2, 32, 32, {.encoding = Encoding::f32}, {.encoding = Encoding::f32});
  layers.page_tokens = page_tokens;
  return layers;
}

// Every format that differs in how it is read.
std::vector<Format> formats() {
  std::vector<Format> result;
  for (const Encoding encoding : cache::kAllEncodings) {
    result.push_back({.encoding = encoding});
    if (!cache::is_quantized(encoding)) continue;
    result.push_back({.encoding = encoding, .group = 32});
    result.push_back({.encoding = encoding, .group = 8, .scale = DType::f32});
    if (encoding == Encoding::fp8_e4m3) continue;
    result.push_back({.encoding = encoding, .group = 16, .asymmetric = true});
    result.push_back({.encoding = encoding, .asymmetric = true, .scale = DType::f32});
  }
  return result;
}

std::string describe(const Format& format) {
  return std::string(name_of(format.encoding)) + " group " + std::to_string(format.group) +
         (format.asymmetric ? " asymmetric" : "") + " scale " + std::string(name_of(format.scale));
}

TEST(CachedAttention, EveryFormatOfKeysAndValues) {
  const std::vector<Format> all = formats();
  for (std::size_t i = 0; i < all.size(); ++i) {
    // Each format once as K and once as V, beside one that differs.
    const Format k = all[i];
    const Format v = all[(i + 7) % all.size()];
    const testing::ScopedTrace trace(__FILE__, __LINE__, describe(k) + ", V " + describe(v));
    check_scene({.layers = grouped(2, 64, 96, k, v),
                 .query_heads = 8,
                 .rows = {{.length = 150}, {.length = 67, .queries = 3, .seed = 2}}});
  }
}

TEST(CachedAttention, TheSameFormatForBoth) {
  for (const Encoding encoding : cache::kAllEncodings) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, std::string(name_of(encoding)));
    check_scene({.layers = grouped(2, 128, 128, {.encoding = encoding}, {.encoding = encoding}),
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
      check_scene({.layers = grouped(3, dim, dim + 2, {.encoding = Encoding::bf16},
                                     {.encoding = Encoding::int8}),
                   .query_heads = 3 * ratio,
                   .rows = {{.length = 70, .queries = 2}}});
    }
  }
  const auto ints = grouped(1, 20, 12, {.encoding = Encoding::int4, .group = 10},
                            {.encoding = Encoding::int4, .group = 4, .asymmetric = true});
  check_scene({.layers = ints, .query_heads = 5, .rows = {{.length = 40, .queries = 4}}});
}

// One latent for all heads, whose first numbers are the value: the shape of DeepSeek's MLA.
TEST(CachedAttention, LatentsThatAreKeyAndValue) {
  for (const Format k : {Format{.encoding = Encoding::bf16}, Format{.encoding = Encoding::int8},
                         Format{.encoding = Encoding::int8, .group = 64},
                         Format{.encoding = Encoding::int4, .group = 32, .asymmetric = true},
                         Format{.encoding = Encoding::fp8_e4m3, .group = 64}}) {
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
  LayerGroup layers =
      grouped(1, 576, 512, {.encoding = Encoding::bf16}, {.encoding = Encoding::bf16});
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
      scene.rows = {{.length = 2 * kAttentionSplit + 17, .seed = 3}, {.length = 0, .queries = 0}};
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
  for (const std::int64_t length : {kAttentionSplit - 1, kAttentionSplit, kAttentionSplit + 1,
                                    3 * kAttentionSplit, 3 * kAttentionSplit + 65}) {
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
    Scene scene{.layers = grouped(2, dim, 32, {.encoding = Encoding::int4, .group = 16},
                                  {.encoding = Encoding::bf16}),
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
      Scene scene{
          .layers = grouped(1, dim, 32, {.encoding = Encoding::int8}, {.encoding = Encoding::f32}),
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

}  // namespace
}  // namespace touchstone::test
