// What cached_attention promises beside being right: bits that depend on nothing but the query and
// what it sees, and eyes for nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "ops/attention_paged/paged_test_support.h"

namespace touchstone::test {
namespace {

using cache::LayerGroup;
using Bytes = std::vector<std::byte>;

constexpr QuantFormat kF32{.dtype = DType::f32};
constexpr QuantFormat kBf16{.dtype = DType::bf16};
constexpr QuantFormat kInt8{.dtype = DType::i8};
constexpr QuantFormat kInt4{.dtype = DType::i4, .group_size = 32, .asymmetric = true};

LayerGroup group_of(QuantFormat k, QuantFormat v, std::int64_t page_tokens = 16) {
  return {.layers = 1,
          .kv_heads = 2,
          .k_dim = 64,
          .v_dim = 64,
          .k = k,
          .v = v,
          .page_tokens = page_tokens};
}

// Pairs of formats whose kernels differ.
struct Formats {
  QuantFormat k, v;
};
constexpr Formats kFormats[] = {{kF32, kF32}, {kBf16, kInt8}, {kInt4, kBf16}, {kInt8, kInt4}};

// Different lengths, some with several queries, a fork of row 1 and a fork of that.
Scene mixed_scene(const Formats& formats) {
  return {.layers = group_of(formats.k, formats.v),
          .query_heads = 6,
          .rows = {{.length = 37, .queries = 2},
                   {.length = 1300, .queries = 1, .seed = 7},
                   {.length = 550, .queries = 66, .seed = 3},
                   {.length = 1310, .queries = 3, .seed = 7, .forked_at = 1290, .own_seed = 8},
                   {.length = 0, .queries = 1, .seed = 4},
                   {.length = 700, .queries = 1, .seed = 7, .forked_at = 520, .own_seed = 9}}};
}

std::vector<Bytes> all_rows(AttentionRun& run, Runner& context) {
  run.run(context);
  std::vector<Bytes> result;
  for (std::int64_t r = 0; r < run.args.cache.rows; ++r) result.push_back(run.row_bytes(r));
  return result;
}

TEST(CachedAttentionBits, DoNotDependOnPagesOrThreads) {
  for (const Formats& formats : kFormats) {
    const Scene scene = mixed_scene(formats);
    AttentionRun first(scene);
    std::vector<std::unique_ptr<AttentionRun>> others;
    for (const std::int64_t page_tokens : {1, 8, 16, 48, 64, 512, 2000}) {
      Scene other = scene;
      other.layers.page_tokens = page_tokens;
      const auto seed = static_cast<std::uint64_t>(page_tokens);
      others.push_back(std::make_unique<AttentionRun>(
          other, Placement{.seed = seed, .share = page_tokens % 3 == 1}));
    }
    for_each_runner(first.accepting(), [&](Runner& context) {
      const std::vector<Bytes> expected = all_rows(first, context);
      for (const auto& run : others) {
        EXPECT_EQ(all_rows(*run, context), expected)
            << "page " << run->args.cache.groups[0].page_tokens;
      }
      for (const int threads : {1, 2, 7}) {
        if (on_gpu()) break;
        Runner other({.threads = threads, .implementation = context.implementation()});
        EXPECT_EQ(all_rows(first, other), expected) << threads << " threads";
      }
    });
  }
}

TEST(CachedAttentionBits, DoNotDependOnOtherRows) {
  for (const Formats& formats : kFormats) {
    const Scene scene = mixed_scene(formats);
    AttentionRun together(scene);
    std::vector<std::unique_ptr<AttentionRun>> alone;
    for (std::int64_t row = 0; row < std::ssize(scene.rows); ++row) {
      alone.push_back(std::make_unique<AttentionRun>(only_row(scene, row)));
    }
    Scene reversed = scene;
    std::reverse(reversed.rows.begin(), reversed.rows.end());
    AttentionRun backwards(reversed);
    for_each_runner(together.accepting(), [&](Runner& context) {
      const std::vector<Bytes> expected = all_rows(together, context);
      for (std::size_t row = 0; row < alone.size(); ++row) {
        EXPECT_EQ(all_rows(*alone[row], context).front(), expected[row]) << "row " << row;
      }
      std::vector<Bytes> rows = all_rows(backwards, context);
      std::reverse(rows.begin(), rows.end());
      EXPECT_EQ(rows, expected);
    });
  }
}

// Forks of one long beginning: many rows of one unit of work, more than fit in a pass.
TEST(CachedAttentionBits, SharedBeginningsChangeNothing) {
  Scene scene{.layers = group_of(kBf16, kBf16), .query_heads = 8};
  for (std::uint64_t i = 0; i < 70; ++i) {
    scene.rows.push_back({.length = 1100 + static_cast<std::int64_t>(i % 9),
                          .queries = static_cast<std::int64_t>(i % 3),
                          .seed = 1,
                          .forked_at = 1090,
                          .own_seed = 100 + i});
  }
  AttentionRun shared(scene);
  AttentionRun apart(scene, {.share = false});
  // What another call leaves in the workspace is no partial result of this one.
  Scene another = scene;
  for (auto& row : another.rows) row.seed = 2;
  AttentionRun before(another);
  for_each_implementation(shared.accepting(), [&](Runner& context) {
    const std::vector<Bytes> expected = all_rows(apart, context);
    before.run(context);
    EXPECT_EQ(all_rows(shared, context), expected);
    EXPECT_TRUE(shared.is_right());
  });
}

// A prefill in chunks is the whole prefill, to the bit; and so is decoding token by token.
TEST(CachedAttentionBits, ChunksOfAPrefillMakeTheWhole) {
  constexpr std::int64_t kLength = 560;
  struct Part {
    std::int64_t begin, end;
    std::unique_ptr<AttentionRun> run;
  };
  for (const Formats& formats : kFormats) {
    for (const std::int64_t window : {0, 100}) {
      Scene scene{.layers = group_of(formats.k, formats.v),
                  .query_heads = formats.k == kBf16 && window == 0 ? 6 : 2,
                  .sink_logits = true};
      scene.layers.window = window;
      scene.layers.sinks = window == 0 ? 0 : 3;
      scene.rows = {{.length = kLength, .queries = kLength}};
      AttentionRun whole(scene);
      std::vector<Part> parts;
      for (const std::int64_t chunk : {1, 13, 100, 500}) {
        // Of small chunks the last few, around the border of a split.
        for (std::int64_t end = kLength; end > std::max<std::int64_t>(0, kLength - 6 * chunk);
             end -= chunk) {
          Scene part = scene;
          const std::int64_t begin = std::max<std::int64_t>(0, end - chunk);
          part.rows = {{.length = end, .queries = end - begin}};
          parts.push_back({begin, end, std::make_unique<AttentionRun>(part)});
        }
      }
      for_each_implementation(whole.accepting(), [&](Runner& context) {
        whole.run(context);
        for (const Part& part : parts) {
          part.run->run(context);
          ASSERT_EQ(part.run->row_bytes(0), whole.query_bytes(part.begin, part.end - part.begin))
              << "tokens " << part.begin << " to " << part.end << ", window " << window;
        }
      });
    }
  }
}

// ---- trees ------------------------------------------------------------------------------------

// A draft tree as parents, ascending: node i is at position `start + i`.
std::vector<std::vector<bool>> ancestors(const std::vector<std::int64_t>& parents) {
  std::vector<std::vector<bool>> result;
  for (std::size_t i = 0; i < parents.size(); ++i) {
    std::vector<bool> bits(parents.size());
    for (auto node = static_cast<std::int64_t>(i); node >= 0;
         node = parents[static_cast<std::size_t>(node)]) {
      bits[static_cast<std::size_t>(node)] = true;
    }
    result.push_back(bits);
  }
  return result;
}

std::vector<std::int64_t> random_tree(std::int64_t nodes, std::uint64_t seed) {
  std::vector<std::int64_t> parents;
  for (std::int64_t i = 0; i < nodes; ++i) {
    const auto choices = static_cast<std::uint64_t>(std::min<std::int64_t>(i, 9) + 1);
    parents.push_back(
        i == 0 ? -1
               : std::max<std::int64_t>(
                     0, i - 1 - static_cast<std::int64_t>(Random(seed).bits(i) % choices)));
  }
  return parents;
}

TEST(CachedAttentionTree, AgreesWithTheOracle) {
  for (const std::int64_t nodes : {1, 5, 64, 65, 200}) {
    Scene scene{.layers = group_of(kF32, kBf16), .query_heads = 4};
    for (const std::int64_t prompt : {0, 40, 500}) {
      scene.rows.push_back({.length = prompt + nodes,
                            .queries = nodes,
                            .seed = static_cast<std::uint64_t>(prompt + 1),
                            .tree = ancestors(random_tree(nodes, 5)),
                            .tree_start = prompt});
    }
    check_scene(scene);
    scene.give_tree_starts = true;
    check_scene(scene);
    scene.layers.window = 30;
    scene.layers.sinks = 4;
    check_scene(scene);
  }
}

// Only the newest level of a tree asks; the levels before are in the cache already.
TEST(CachedAttentionTree, QueriesMayBeFewerThanTheNodes) {
  Scene scene{.layers = group_of(kBf16, kBf16), .query_heads = 4, .give_tree_starts = true};
  auto bits = ancestors(random_tree(40, 3));
  scene.rows = {
      {.length = 140, .queries = 10, .tree = {bits.end() - 10, bits.end()}, .tree_start = 100}};
  check_scene(scene);
}

// A tree on top of `prompt` tokens, each node against its path decoded without a tree.
void expect_paths(const LayerGroup& layers, std::int64_t prompt,
                  const std::vector<std::int64_t>& parents) {
  const std::int64_t nodes = std::ssize(parents);
  SceneRow row{
      .length = prompt + nodes, .queries = nodes, .tree = ancestors(parents), .tree_start = prompt};
  std::vector<std::vector<std::int64_t>> paths;
  for (std::int64_t node = 0; node < nodes; ++node) {
    std::vector<std::int64_t> path;
    for (std::int64_t i = node; i >= 0; i = parents[static_cast<std::size_t>(i)]) {
      path.insert(path.begin(), prompt + i);
    }
    row.positions.push_back(prompt + std::ssize(path) - 1);
    row.query_slots.push_back(prompt + node);
    // Ancestors before the window have no bits.
    for (std::int64_t i = 0; layers.window > 0 && i < std::ssize(path) - layers.window; ++i) {
      const auto ancestor = static_cast<std::size_t>(path[static_cast<std::size_t>(i)] - prompt);
      row.tree[static_cast<std::size_t>(node)][ancestor] = false;
    }
    paths.push_back(path);
  }
  const Scene scene{.layers = layers, .query_heads = 4, .rows = {row}};
  AttentionRun tree(scene);
  for_each_implementation(tree.accepting(), [&](Runner& context) {
    tree.run(context);
    EXPECT_TRUE(tree.is_right());
    for (std::int64_t node = 0; node < nodes; ++node) {
      const auto& path = paths[static_cast<std::size_t>(node)];
      Scene alone = scene;
      alone.rows = {{.length = prompt + std::ssize(path), .queries = 1}};
      for (std::size_t i = 0; i < path.size(); ++i) {
        alone.rows[0].stands_for[prompt + static_cast<std::int64_t>(i)] = path[i];
      }
      AttentionRun run(alone);
      run.run(context);
      EXPECT_EQ(run.row_bytes(0), tree.query_bytes(node, 1))
          << "node " << node << " on " << prompt << " tokens, window " << layers.window;
    }
  });
}

TEST(CachedAttentionTree, EqualsEachPathAlone) {
  for (const Formats& formats : kFormats) {
    expect_paths(group_of(formats.k, formats.v), 530, random_tree(30, 11));
  }
}

// Splits are cut by the positions on a node's path, wherever its ancestors are stored.
TEST(CachedAttentionTree, EqualsEachPathAcrossSplits) {
  const std::vector<std::int64_t> parents{-1, -1, -1, 0, 3, 4};
  std::vector<std::int64_t> prompts{400, 505, 508, 510, 511, 1020, 1030};
  if (on_gpu()) prompts.insert(prompts.end(), {2044, 2047, 4094});
  if (kSanitized) prompts = {508, 1030};  // over a border, and between two
  for (const Formats& formats : kFormats) {
    LayerGroup layers = group_of(formats.k, formats.v);
    layers.kv_heads = 1;
    for (const std::int64_t prompt : prompts) {
      expect_paths(layers, prompt, parents);
      if (prompt == 400 || prompt == 1030) continue;
      layers.sinks = 4;
      for (const std::int64_t window : {2, 300}) {
        layers.window = window;
        expect_paths(layers, prompt, parents);
      }
      layers.window = layers.sinks = 0;
    }
  }
}

// Trees that reach over one, two and three borders of splits, with side branches among the
// ancestors: nodes behind each border against their paths.
TEST(CachedAttentionTree, EqualsEachPathAcrossThreeSplits) {
  const std::int64_t split = on_gpu() ? 2048 : 512;  // the longest of all kernels
  const std::int64_t prompt = split - 9;
  std::vector<std::int64_t> chain;  // nodes of the path; every seventh node is a side branch
  std::int64_t nodes = 0;
  for (; std::ssize(chain) < 2 * split + 20; ++nodes) {
    if (nodes % 7 != 3) chain.push_back(nodes);
  }
  const std::int64_t depths[] = {12, split + 15, 2 * split + 20};
  std::vector<Formats> all(std::begin(kFormats), std::end(kFormats));
  all.push_back({kBf16, kBf16});
  for (const Formats& formats : all) {
    for (const std::int64_t window : {std::int64_t{0}, split + 100}) {
      Scene scene{.layers = group_of(formats.k, formats.v), .query_heads = 2};
      scene.layers.kv_heads = 1;
      scene.layers.window = window;
      scene.give_tree_starts = true;
      SceneRow row{.length = prompt + nodes, .queries = 3, .tree_start = prompt};
      std::vector<Scene> paths;
      for (const std::int64_t depth : depths) {
        std::vector<bool> bits(static_cast<std::size_t>(nodes));
        Scene path = scene;
        path.give_tree_starts = false;
        path.rows = {{.length = prompt + depth}};
        for (std::int64_t i = 0; i < depth; ++i) {
          const std::int64_t node = chain[static_cast<std::size_t>(i)];
          // Ancestors before the window have no bits.
          if (window == 0 || i >= depth - window) bits[static_cast<std::size_t>(node)] = true;
          path.rows[0].stands_for[prompt + i] = prompt + node;
        }
        row.tree.push_back(bits);
        row.positions.push_back(prompt + depth - 1);
        row.query_slots.push_back(prompt + chain[static_cast<std::size_t>(depth - 1)]);
        paths.push_back(path);
      }
      scene.rows = {row};
      AttentionRun tree(scene);
      for_each_implementation(tree.accepting(), [&](Runner& context) {
        tree.run(context);
        for (std::size_t i = 0; i < paths.size(); ++i) {
          AttentionRun path(paths[i]);
          path.run(context);
          EXPECT_EQ(path.row_bytes(0), tree.query_bytes(static_cast<std::int64_t>(i), 1))
              << "depth " << depths[i] << ", window " << window;
        }
      });
    }
  }
}

// More than a word of bits, and slots of a split that are further apart than a split is long.
TEST(CachedAttentionTree, EqualsEachPathOfManyBranches) {
  std::vector<std::int64_t> parents(static_cast<std::size_t>(on_gpu() ? 700 : 580), -1);
  for (std::size_t i = parents.size() - 4; i < parents.size(); ++i) {
    parents[i] = static_cast<std::int64_t>(i) - 1;
  }
  const std::int64_t nodes = std::ssize(parents);
  for (const Formats& formats : kFormats) {
    // Only the last branch asks.
    const std::vector<std::vector<bool>> bits = ancestors(parents);
    for (const std::int64_t prompt : {0, 509}) {
      Scene scene{.layers = group_of(formats.k, formats.v), .query_heads = 4};
      scene.rows = {
          {.length = prompt + nodes, .queries = 1, .tree = {bits.back()}, .tree_start = prompt}};
      scene.give_tree_starts = true;
      AttentionRun tree(scene);
      Scene alone = scene;
      alone.rows = {{.length = prompt + 5, .queries = 1}};
      for (std::int64_t i = 0; i < 5; ++i) {
        alone.rows[0].stands_for[prompt + i] = prompt + nodes - 5 + i;
      }
      alone.give_tree_starts = false;
      AttentionRun path(alone);
      for_each_implementation(tree.accepting(), [&](Runner& context) {
        tree.run(context);
        EXPECT_TRUE(tree.is_right());
        path.run(context);
        EXPECT_EQ(path.row_bytes(0), tree.row_bytes(0)) << prompt;
      });
    }
  }
}

// Without tree_starts a tree begins at the position of the first query.
TEST(CachedAttentionTree, BeginsAtTheFirstPosition) {
  Scene scene{.layers = group_of(kF32, kF32), .query_heads = 2};
  scene.rows = {{.length = 8,
                 .queries = 1,
                 .positions = {5},
                 .tree = {{false, true, false}},
                 .tree_start = 5},
                {.length = 90,
                 .queries = 2,
                 .seed = 2,
                 .positions = {70, 71},
                 .tree = {{true, false, false}, {true, false, true}},
                 .tree_start = 70}};
  check_scene(scene);
}

// ---- what is not seen ---------------------------------------------------------------------------

// Unused slots, pages and layers are poison in every test; here seen and unseen share a page.
TEST(CachedAttentionMask, UnseenTokensMayHoldAnything) {
  for (const Formats& formats : kFormats) {
    // Queries 0 and 2 see what query 1 must not, in the same block of work.
    Scene scene{.layers = group_of(formats.k, formats.v), .query_heads = 2};
    const std::vector<bool> odd{false, true, false, true, false, true};
    scene.rows = {{.length = 66, .queries = 3, .tree = {odd, odd, odd}, .tree_start = 60}};
    scene.give_tree_starts = true;
    scene.rows[0].poisoned = {60, 62, 64};
    AttentionRun poisoned(scene);
    scene.rows[0].poisoned = {};
    AttentionRun clean(scene);
    for_each_runner(clean.accepting(), [&](Runner& context) {
      EXPECT_EQ(all_rows(poisoned, context), all_rows(clean, context));
    });

    Scene windowed{.layers = group_of(formats.k, formats.v), .query_heads = 2};
    windowed.layers.window = 20;
    windowed.layers.sinks = 3;
    windowed.rows = {{.length = 900, .queries = 1}, {.length = 90, .queries = 4, .seed = 2}};
    AttentionRun whole(windowed);
    for (std::int64_t t = 3; t < 880; ++t) windowed.rows[0].poisoned.insert(t);
    for (std::int64_t t = 3; t < 67; ++t) windowed.rows[1].poisoned.insert(t);
    AttentionRun rest(windowed);
    AttentionRun given_up(windowed, {.give_up = true});
    for_each_runner(whole.accepting(), [&](Runner& context) {
      const auto expected = all_rows(whole, context);
      EXPECT_EQ(all_rows(rest, context), expected);
      EXPECT_EQ(all_rows(given_up, context), expected);
    });
  }
}

// A NaN or infinity reaches the queries that see it, in its own KV head, and no others.
TEST(CachedAttentionMask, NanAndInfinityStayWithThoseWhoSeeThem) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const QuantFormat& format : {kF32, kBf16}) {
    for (const float special : {kNan, kInfinity, -kInfinity}) {
      for (const bool in_key : {true, false}) {
        Scene scene{.layers = group_of(format, format),
                    .query_heads = 4,
                    .rows = {{.length = 100, .queries = 20}, {.length = 50, .seed = 2}}};
        AttentionRun clean(scene);
        (in_key ? scene.rows[0].keys : scene.rows[0].values)[90] = special;
        AttentionRun run(scene);
        for_each_runner(run.accepting(), [&](Runner& context) {
          clean.run(context);
          run.run(context);
          EXPECT_EQ(run.row_bytes(1), clean.row_bytes(1));
          EXPECT_EQ(run.query_bytes(0, 10), clean.query_bytes(0, 10));  // positions 80 to 89
          const auto output = run.output.values();
          const auto expected = clean.output.values();
          const std::size_t width = 4 * 64;
          for (std::size_t query = 10; query < 20; ++query) {
            for (std::size_t i = 0; i < width; ++i) {
              const double x = output[query * width + i];
              if (i >= width / 2) {
                EXPECT_EQ(x, expected[query * width + i]);  // the other KV head
              } else if (!in_key) {
                EXPECT_EQ(!std::isfinite(x), i % 64 == 0) << query << " " << i;
              } else if (std::isnan(special)) {
                EXPECT_TRUE(std::isnan(x));
              }
            }
            for (std::size_t head = 0; head < 2; ++head) {
              const double lse = run.log_sum_exp.values()[query * 4 + head];
              if (in_key && std::isnan(special)) {
                EXPECT_TRUE(std::isnan(lse));
              }
              // An infinite key gives scores of +inf or -inf, by the sign of the query.
              if (in_key && std::isinf(special)) {
                EXPECT_TRUE(std::isnan(lse) || std::isfinite(lse));
                EXPECT_EQ(std::isnan(lse), std::isnan(output[query * width + head * 64]));
              }
            }
          }
        });
      }
    }
  }
}

TEST(CachedAttentionMask, ScoresOfMinusInfinityOnlyAreNothing) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Scene scene{.layers = group_of(kF32, kF32), .query_heads = 2, .rows = {{.length = 3}}};
  scene.layers.kv_heads = 1;
  for (std::int64_t t = 0; t < 3; ++t) scene.rows[0].keys[t] = kInfinity;
  AttentionRun run(scene);
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    const auto queries = run.query.values();
    for (std::size_t head = 0; head < 2; ++head) {
      const double lse = run.log_sum_exp.values()[head];
      const double output = run.output.values()[head * 64 + 1];
      if (queries[head * 64] < 0) {
        EXPECT_EQ(lse, -std::numeric_limits<double>::infinity());
        EXPECT_EQ(output, 0);
      } else {
        EXPECT_TRUE(std::isnan(lse));
        EXPECT_TRUE(std::isnan(output));
      }
    }
  });
}

TEST(CachedAttentionMask, PagesBeyond32BitsOfOffset) {
  for (const Formats& formats : kFormats) {
    const Scene scene = mixed_scene(formats);
    const std::int64_t page_bytes = cache::page_bytes(scene.layers);
    const std::int64_t far = (std::int64_t{1} << 33) / page_bytes + 5;
    AttentionRun near(scene);
    AttentionRun high(scene, {.first_page = far});
    for_each_implementation(near.accepting(), [&](Runner& context) {
      EXPECT_EQ(all_rows(high, context), all_rows(near, context));
    });
  }
}

// Anything beside anything.
TEST(CachedAttentionRandom, AgreesWithTheOracle) {
  const std::int64_t scenes = sanitized_size(100, 20);
  for (std::int64_t i = 0; i < scenes; ++i) {
    const Random random(static_cast<std::uint64_t>(1000 + i));
    std::int64_t draws = 0;
    const auto pick = [&](std::int64_t n) {
      return static_cast<std::int64_t>(random.bits(draws++) % static_cast<std::uint64_t>(n));
    };
    const auto format = [&]() -> QuantFormat {
      QuantFormat f{.dtype = kFormatDTypes[pick(6)]};
      if (!is_quantized(f.dtype)) return f;
      f.group_size = std::int64_t{8} << pick(4);
      f.asymmetric = f.dtype != DType::f8_e4m3 && pick(2) == 1;
      f.scale_dtype = pick(2) == 1 ? DType::f16 : DType::f32;
      return f;
    };
    Scene scene;
    scene.layers = {.layers = 1 + pick(2),
                    .kv_heads = 1 + pick(3),
                    .k_dim = 64 * (1 + pick(3)),
                    .v_dim = 64 * (1 + pick(3)),
                    .k = format(),
                    .v = format(),
                    .page_tokens = 1 + pick(70)};
    if (pick(3) == 0) {
      scene.layers.window = 1 + pick(200);
      scene.layers.sinks = pick(6);
    }
    scene.layers.rotate_keys = pick(3) == 0;
    scene.query_heads = scene.layers.kv_heads * (1 + pick(6));
    scene.soft_cap = pick(4) == 0 ? 4 : 0;
    scene.causal = pick(5) != 0;
    scene.sink_logits = pick(4) == 0;
    scene.output_dtype = pick(2) == 0 ? DType::f32 : DType::bf16;
    for (std::int64_t row = pick(4); row >= 0; --row) {
      scene.rows.push_back({.length = pick(3) == 0 ? pick(1200) : pick(90),
                            .queries = pick(6),
                            .seed = static_cast<std::uint64_t>(1 + pick(3))});
    }
    if (scene.queries() == 0) scene.rows[0].queries = 1;
    const testing::ScopedTrace trace(__FILE__, __LINE__, "scene " + std::to_string(i));
    check_scene(scene, {.seed = static_cast<std::uint64_t>(i)});
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace touchstone::test
