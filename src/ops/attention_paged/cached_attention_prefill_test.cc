// Prefill over pages: many queries of a row in one call, in any chunks and beside rows of one query,
// have the bits of tokens that are decoded one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ops/attention_paged/paged_test_support.h"
#include "tests/support/guarded_call.h"

namespace touchstone::test {
namespace {

constexpr QuantFormat kStoredF32{.dtype = DType::f32};
constexpr QuantFormat kStoredBf16{.dtype = DType::bf16};
constexpr QuantFormat kStoredInt8{.dtype = DType::i8};
constexpr QuantFormat kStoredInt4{.dtype = DType::i4, .group_size = 32, .asymmetric = true};
constexpr QuantFormat kStoredFp8{.dtype = DType::f8_e4m3};

Scene prefill_scene(const QuantFormat& format, std::int64_t dim, std::int64_t length,
                    std::int64_t queries) {
  return {.layers = {.layers = 1,
                     .kv_heads = 1,
                     .k_dim = dim,
                     .v_dim = dim,
                     .k = format,
                     .v = format,
                     .page_tokens = 16},
          .query_heads = 3,
          .rows = {{.length = length, .queries = queries}},
          .query_dtype = DType::bf16,
          .output_dtype = DType::bf16};
}

// Queries [begin, end) of the only row of a scene, alone.
Scene part_of(const Scene& scene, std::int64_t begin, std::int64_t end) {
  Scene part = scene;
  SceneRow& row = part.rows[0];
  row.length = end;
  row.queries = end - begin;
  return part;
}

// The last `queries` tokens of a row in chunks of several sizes, against all of them in one call.
// Small chunks are taken around `borders`.
void expect_chunks(const Scene& scene, const std::vector<std::int64_t>& chunks,
                   const std::vector<std::int64_t>& borders, bool check_oracle = false) {
  const std::int64_t length = scene.rows[0].length;
  const std::int64_t first = length - scene.rows[0].queries;
  AttentionRun whole(scene);
  struct Part {
    std::int64_t begin, end;
    std::unique_ptr<AttentionRun> run;
  };
  std::vector<Part> parts;
  for (const std::int64_t chunk : chunks) {
    for (std::int64_t begin = first; begin < length; begin += chunk) {
      const std::int64_t end = std::min(begin + chunk, length);
      const bool near = std::ranges::any_of(borders, [&](std::int64_t border) {
        return begin - 2 * chunk <= border && border <= end + chunk;
      });
      if (chunk < 64 && !near && end < length) continue;
      parts.push_back({begin, end, std::make_unique<AttentionRun>(part_of(scene, begin, end))});
    }
  }
  for_each_implementation(whole.accepting(), [&](Runner& context) {
    whole.run(context);
    if (check_oracle) {
      EXPECT_TRUE(whole.is_right());
    }
    for (const Part& part : parts) {
      run_like(*part.run, context);
      ASSERT_EQ(part.run->row_bytes(0),
                whole.query_bytes(part.begin - first, part.end - part.begin))
          << "tokens " << part.begin << " to " << part.end << " of " << length;
    }
  });
}

// Splits end at 512, on a GPU at 1024 and 2048 for short vectors.
std::vector<std::int64_t> split_borders() {
  return on_gpu() ? std::vector<std::int64_t>{512, 1024} : std::vector<std::int64_t>{512};
}

TEST(CachedAttentionPrefill, ChunksOfOneTo512) {
  const std::vector<std::int64_t> chunks =
      on_gpu() ? std::vector<std::int64_t>{1, 2, 15, 16, 17, 63, 64, 100, 128, 129, 256, 511, 512}
               : std::vector<std::int64_t>{1, 17, 512};
  for (const QuantFormat& format :
       {kStoredBf16, kStoredF32, kStoredInt8, kStoredInt4, kStoredFp8}) {
    for (const std::int64_t dim : {64, 128}) {
      if (!on_gpu() && dim == 128 && format != kStoredBf16) continue;
      const std::int64_t length = on_gpu() ? 1100 : 530;
      const std::int64_t queries = on_gpu() && format == kStoredBf16 ? length : 40;
      expect_chunks(prefill_scene(format, dim, length, queries), chunks, split_borders());
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(CachedAttentionPrefill, WindowsSinksAndCaps) {
  const std::int64_t length = on_gpu() ? 1100 : 540;
  for (const QuantFormat& format : {kStoredBf16, kStoredInt8}) {
    for (const std::int64_t dim : {64, 128}) {
      if (!on_gpu() && dim == 128) continue;
      for (const std::int64_t window : {1, 50, 300}) {
        Scene scene = prefill_scene(format, dim, length, on_gpu() ? 700 : 40);
        scene.layers.window = window;
        scene.layers.sinks = 3;
        scene.sink_logits = window == 50;
        scene.soft_cap = window == 300 ? 2 : 0;
        scene.scale = window == 1 ? -0.3 : 0;
        expect_chunks(scene, {1, 33, 512}, split_borders());
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// Scores that jump: the running maximum moves often, in the middle of blocks.
TEST(CachedAttentionPrefill, ScoresThatJump) {
  for (const std::int64_t dim : {64, 128}) {
    if (!on_gpu() && dim == 128) continue;
    Scene scene = prefill_scene(kStoredBf16, dim, on_gpu() ? 1100 : 540, on_gpu() ? 300 : 30);
    scene.key_scale = 12;
    expect_chunks(scene, {1, 64}, split_borders());
  }
}

TEST(CachedAttentionPrefill, PageSizes) {
  const std::int64_t length = on_gpu() ? 1050 : 530;
  for (const std::int64_t dim : {64, 128}) {
    if (!on_gpu() && dim == 128) continue;
    Scene scene = prefill_scene(kStoredBf16, dim, length, on_gpu() ? 200 : 20);
    scene.query_heads = 4;
    AttentionRun first(scene);
    std::vector<std::unique_ptr<AttentionRun>> others;
    for (const std::int64_t page_tokens : {1, 7, 8, 24, 32, 64, 128, 256, 2048}) {
      scene.layers.page_tokens = page_tokens;
      others.push_back(std::make_unique<AttentionRun>(
          scene, Placement{.seed = static_cast<std::uint64_t>(page_tokens)}));
    }
    for_each_implementation(first.accepting(), [&](Runner& context) {
      first.run(context);
      EXPECT_TRUE(first.is_right());
      for (const auto& run : others) {
        // Large pages may have more slots than an implementation takes.
        const std::vector<std::string> names = run->accepting();
        if (std::ranges::find(names, context.implementation()) == names.end()) continue;
        run->run(context);
        EXPECT_EQ(run->row_bytes(0), first.row_bytes(0))
            << "page " << run->args.cache.groups[0].page_tokens;
      }
    });
  }
}

// A step of a server: decodes, short and long chunks, an empty row, all in one call; and heads in
// numbers that do not fill a tile.
TEST(CachedAttentionPrefill, MixedSteps) {
  for (const std::int64_t heads : {1, 3, 8, 20}) {
    for (const std::int64_t dim : {64, 128}) {
      if (!on_gpu() && (dim == 128 || heads == 20)) continue;
      Scene scene = prefill_scene(kStoredBf16, dim, 0, 0);
      scene.layers.kv_heads = 2;
      scene.query_heads = 2 * heads;
      const std::int64_t longest = on_gpu() ? 300 : 40;
      scene.rows = {{.length = 600, .queries = 1, .seed = 2},
                    {.length = 530, .queries = longest, .seed = 3},
                    {.length = 40, .queries = 40, .seed = 4},
                    {.length = 0, .queries = 0, .seed = 5},
                    {.length = 520, .queries = 15, .seed = 6},
                    {.length = 513, .queries = 16, .seed = 7},
                    {.length = 1, .queries = 1, .seed = 8},
                    {.length = 10, .queries = 20, .seed = 9}};  // more queries than tokens
      AttentionRun together(scene);
      std::vector<std::unique_ptr<AttentionRun>> alone;
      for (std::int64_t row = 0; row < std::ssize(scene.rows); ++row) {
        if (scene.rows[static_cast<std::size_t>(row)].queries == 0) continue;
        alone.push_back(std::make_unique<AttentionRun>(only_row(scene, row)));
      }
      for_each_implementation(together.accepting(), [&](Runner& context) {
        together.run(context);
        EXPECT_TRUE(together.is_right());
        std::int64_t row = 0;
        for (const auto& run : alone) {
          if (row == 3) ++row;
          run_like(*run, context);
          EXPECT_EQ(run->row_bytes(0), together.row_bytes(row)) << "row " << row;
          ++row;
        }
      });
    }
  }
}

// Positions in any order, and without causality.
TEST(CachedAttentionPrefill, PositionsInAnyOrder) {
  for (const bool causal : {true, false}) {
    Scene scene = prefill_scene(kStoredBf16, 64, 600, 30);
    scene.causal = causal;
    SceneRow& row = scene.rows[0];
    for (std::int64_t i = 0; i < 30; ++i) row.positions.push_back(i * 331 % 600);
    for (std::int64_t i = 0; i < 30; ++i) row.query_slots.push_back(i * 17);
    row.positions[7] = -1;
    row.positions[9] = 900;
    AttentionRun run(scene);
    for_each_implementation(run.accepting(), [&](Runner& context) {
      run.run(context);
      EXPECT_TRUE(run.is_right());
      for (const std::int64_t query : {0, 7, 9, 29}) {
        Scene one = scene;
        const auto i = static_cast<std::size_t>(query);
        one.rows[0].queries = 1;
        one.rows[0].positions = {row.positions[i]};
        one.rows[0].query_slots = {row.query_slots[i]};
        AttentionRun alone(one);
        run_like(alone, context);
        EXPECT_EQ(alone.row_bytes(0), run.query_bytes(query, 1)) << "query " << query;
      }
    });
  }
}

// NaN and infinity in a value reach the queries that attend to it and no others, in blocks of which
// some queries see one part and some another.
TEST(CachedAttentionPrefill, SpecialValuesStayWithThoseWhoSeeThem) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float special : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const std::int64_t window : {0, 40}) {
      Scene scene = prefill_scene(kStoredBf16, 64, 220, 100);
      scene.layers.window = window;
      scene.layers.sinks = window == 0 ? 0 : 2;
      AttentionRun clean(scene);
      scene.rows[0].values[150] = special;
      scene.rows[0].values[171] = special;
      AttentionRun run(scene);
      AttentionRun before(part_of(scene, 120, 173));
      AttentionRun one(part_of(scene, 160, 161));
      for_each_implementation(run.accepting(), [&](Runner& context) {
        clean.run(context);
        run.run(context);
        run_like(before, context);
        run_like(one, context);
        EXPECT_EQ(run.query_bytes(0, 30), clean.query_bytes(0, 30));  // positions 120 to 149
        EXPECT_EQ(run.query_bytes(0, 53), before.row_bytes(0));
        EXPECT_EQ(run.query_bytes(40, 1), one.row_bytes(0));
        if (window > 0) {
          EXPECT_EQ(run.query_bytes(91, 9), clean.query_bytes(91, 9));  // 211 to 219
        }
        const auto output = run.output.values();
        for (std::size_t query = 30; query < 60; ++query) {
          for (std::size_t head = 0; head < 3; ++head) {
            EXPECT_FALSE(std::isfinite(output[(query * 3 + head) * 64])) << query;
            EXPECT_TRUE(std::isfinite(output[(query * 3 + head) * 64 + 1])) << query;
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace touchstone::test
