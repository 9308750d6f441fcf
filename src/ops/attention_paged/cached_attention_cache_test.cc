// A whole cache at work: append and attend layer by layer, forks, windows; against attention over
// the keys and values as they were made.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "cache/cache_state.h"
#include "oracle/cached_attention.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"
#include "tests/support/runners.h"
#include "touchstone/ops/cached_attention.h"
#include "touchstone/ops/kv_append.h"

namespace touchstone::test {
namespace {

using namespace cache;

constexpr std::int64_t kQueryHeads = 4;
constexpr std::int64_t kDim = 32;

// A model without weights: queries, keys and values are functions of the tokens so far.
struct Story {
  std::vector<std::uint64_t> tokens;

  std::vector<double> vectors(std::int64_t kind, std::int64_t layer, std::int64_t first,
                              std::int64_t heads) const {
    std::vector<double> result;
    std::uint64_t history = 1;
    for (std::int64_t t = 0; t < std::ssize(tokens); ++t) {
      history = history * 6364136223846793005ULL + tokens[static_cast<std::size_t>(t)];
      if (t < first) continue;
      const Random random(history * 64 + static_cast<std::uint64_t>(kind * 16 + layer));
      for (std::int64_t i = 0; i < heads * kDim; ++i) {
        result.push_back(static_cast<double>(static_cast<float>(random.normal(i))));
      }
    }
    return result;
  }
};

class Model {
 public:
  explicit Model(Runner& context)
      : context_(context),
        layout_{{{.layers = 2,
                  .kv_heads = 2,
                  .k_dim = kDim,
                  .v_dim = kDim,
                  .k = {.dtype = DType::f32},
                  .v = {.dtype = DType::f32},
                  .page_tokens = 8},
                 {.layers = 1,
                  .kv_heads = 4,
                  .k_dim = kDim,
                  .v_dim = kDim,
                  .k = {.dtype = DType::f32},
                  .v = {.dtype = DType::f32},
                  .page_tokens = 4,
                  .window = 10,
                  .sinks = 2,
                  .rotate_keys = true}}},
        cache_(context, {.layout = layout_, .pool_pages = pool_pages_for(layout_, 300, 6, 60)}),
        builder_(cache_) {}

  KvCache& kv() { return cache_; }

  // Adds `count` tokens to each sequence and checks what attention gives for them in all layers.
  void step(std::map<std::uint32_t, Story>& stories, const std::vector<SequenceId>& ids,
            std::int64_t count) {
    cache_.reserve(ids, count);
    const CacheView& view = builder_.build(context_, ids);
    for (const SequenceId id : ids) {
      Story& story = stories.at(id.index);
      for (std::int64_t i = 0; i < count; ++i) story.tokens.push_back(next_token_++ * 7 + id.index);
    }
    for (std::int64_t group = 0; group < 2; ++group) {
      const LayerGroup& layers = layout_.groups[static_cast<std::size_t>(group)];
      for (std::int64_t layer = 0; layer < layers.layers; ++layer) {
        write(view, stories, ids, group, layer, count);
        expect_right(view, stories, ids, group, layer, count);
      }
    }
    cache_.commit(ids, count);
    for (const SequenceId id : ids) cache_.advance_window(id);
  }

 private:
  Guarded gathered(const std::map<std::uint32_t, Story>& stories,
                   const std::vector<SequenceId>& ids, std::int64_t kind, std::int64_t layer,
                   std::int64_t heads, std::int64_t count) const {
    std::vector<double> all;
    for (const SequenceId id : ids) {
      const Story& story = stories.at(id.index);
      const auto part = story.vectors(kind, layer, std::ssize(story.tokens) - count, heads);
      all.insert(all.end(), part.begin(), part.end());
    }
    return {test_device(), DType::f32, {std::ssize(ids) * count, heads, kDim}, all};
  }

  void write(const CacheView& view, const std::map<std::uint32_t, Story>& stories,
             const std::vector<SequenceId>& ids, std::int64_t group, std::int64_t layer,
             std::int64_t count) {
    const std::int64_t heads = layout_.groups[static_cast<std::size_t>(group)].kv_heads;
    const std::int64_t seed = group * 4 + layer;
    const Guarded k = gathered(stories, ids, 0, seed, heads, count);
    const Guarded v = gathered(stories, ids, 1, seed, heads, count);
    std::vector<double> rows;
    std::vector<double> positions;
    for (std::size_t r = 0; r < ids.size(); ++r) {
      for (std::int64_t i = 0; i < count; ++i) {
        rows.push_back(static_cast<double>(r));
        positions.push_back(static_cast<double>(cache_.length(ids[r]) + i));
      }
    }
    const Guarded row_of(test_device(), DType::i32, {std::ssize(rows)}, rows);
    const Guarded position_of(test_device(), DType::i64, {std::ssize(rows)}, positions);
    kv_append(context_, {.cache = view,
                         .layer_group = group,
                         .layer = layer,
                         .k = k,
                         .v = v,
                         .rows = row_of,
                         .positions = position_of,
                         .implementation = context_.implementation()});
    context_.synchronize();
  }

  void expect_right(const CacheView& view, const std::map<std::uint32_t, Story>& stories,
                    const std::vector<SequenceId>& ids, std::int64_t group, std::int64_t layer,
                    std::int64_t count) {
    const LayerGroup& layers = layout_.groups[static_cast<std::size_t>(group)];
    const std::int64_t seed = group * 4 + layer;
    const Guarded query = gathered(stories, ids, 2, seed, kQueryHeads, count);
    std::vector<double> starts;
    for (std::size_t r = 0; r <= ids.size(); ++r) {
      starts.push_back(static_cast<double>(r) * static_cast<double>(count));
    }
    const Guarded query_offsets(test_device(), DType::i64, {std::ssize(starts)}, starts);
    Guarded output(test_device(), DType::f32, {std::ssize(ids) * count, kQueryHeads, kDim});
    cached_attention(context_, {.q = query,
                                .query_offsets = query_offsets,
                                .cache = view,
                                .layer_group = group,
                                .layer = layer,
                                .output = output,
                                .include_reserved = true,
                                .implementation = context_.implementation()});
    context_.synchronize();
    const std::vector<double> actual = output.values();
    const std::vector<double> queries = query.values();
    const std::int64_t width = count * kQueryHeads * kDim;
    for (std::size_t r = 0; r < ids.size(); ++r) {
      const Story& story = stories.at(ids[r].index);
      const auto keys = story.vectors(0, seed, 0, layers.kv_heads);
      const auto values = story.vectors(1, seed, 0, layers.kv_heads);
      std::vector<double> expected(static_cast<std::size_t>(width));
      const std::int64_t first = static_cast<std::int64_t>(r) * width;
      oracle::cached_attention<double>({.length = std::ssize(story.tokens),
                                        .queries = count,
                                        .query_heads = kQueryHeads,
                                        .kv_heads = layers.kv_heads,
                                        .k_dim = kDim,
                                        .v_dim = kDim,
                                        .query = queries.data() + first,
                                        .keys = keys.data(),
                                        .values = values.data(),
                                        .scale = 1 / std::sqrt(static_cast<double>(kDim)),
                                        .window = layers.window,
                                        .sinks = layers.sinks,
                                        .output = expected.data()});
      for (std::size_t i = 0; i < expected.size(); ++i) {
        // Rotated keys are rounded once more when they are stored.
        ASSERT_NEAR(actual[static_cast<std::size_t>(first) + i], expected[i], 1e-5)
            << "row " << r << ", group " << group << ", layer " << layer;
      }
    }
  }

  Runner& context_;
  cache::Layout layout_;
  KvCache cache_;
  CacheViewBuilder builder_;
  std::uint64_t next_token_ = 1;
};

TEST(CachedAttentionInACache, EqualsRecomputationThroughPrefillForksAndDecoding) {
  for_each_implementation(
      on_gpu() ? std::vector<std::string>{""} : std::vector<std::string>{"simd", "plain"},
      [&](Runner& context) {
        Model model(context);
        std::map<std::uint32_t, Story> stories;
        std::vector<SequenceId> ids{model.kv().create(), model.kv().create()};
        for (const SequenceId id : ids) stories[id.index] = {};
        model.step(stories, {ids[0]}, 37);  // a prompt in chunks beside one that begins later
        model.step(stories, {ids[0]}, 13);
        model.step(stories, ids, 5);
        for (int i = 0; i < 2; ++i) {
          const SequenceId fork = model.kv().fork(ids[0]);
          stories[fork.index] = stories.at(ids[0].index);
          ids.push_back(fork);
        }
        for (int i = 0; i < 25; ++i) model.step(stories, ids, 1);
        // Speculative tokens are taken back, then other ones follow.
        model.kv().truncate(ids[1], model.kv().length(ids[1]) - 1);
        stories.at(ids[1].index).tokens.pop_back();
        model.step(stories, ids, 2);
        EXPECT_EQ(state_of(model.kv()).find_inconsistency(), "");
      });
}

}  // namespace
}  // namespace touchstone::test
