// The cases of both attention tasks. Forward and backward are asked about the same shapes.
#include "judge/task/tasks/attention/plan.h"

#include <array>
#include <limits>

namespace touchstone::judge::attention {
namespace {

using Parameters = PlanBuilder::Parameters;

Parameters shape(int64_t batch, int64_t kv_heads, int64_t group, int64_t queries, int64_t keys,
                 int64_t dim, int64_t causal) {
  return {{"batch", batch}, {"kv_heads", kv_heads}, {"group", group},  {"queries", queries},
          {"keys", keys},   {"dim", dim},           {"causal", causal}};
}

Parameters with(Parameters parameters, const char* name, int64_t value) {
  parameters[name] = value;
  return parameters;
}

void add_sizes(PlanBuilder& b, bool small) {
  for (const int64_t dim : {1, 3, 17, 32, 33, 80, 96, 128, 192, 256}) {
    if (small && (dim == 32 || dim == 192)) continue;
    const int64_t n = 5 + b.draw(9);
    b.add("sizes", shape(1, 2, 1, n, n, dim, b.draw(2)));
  }
  // Lengths beside the borders of every usual tile.
  for (const int64_t tile : {16, 32, 64, 128}) {
    for (const int64_t off : {-1, 0, 1}) {
      if (small && tile == 32 && off != 0) continue;
      const int64_t n = tile + off;
      b.add("tile_borders", shape(1, 1, 1, n, n, 16, 1));
      if (!small || tile != 128) b.add("tile_borders", shape(1, 1, 1, 3, n, 8, 0));
    }
  }
  // Tiles that are no power of two, and heads between those that kernels are written for.
  for (const int64_t tile : {48, 80, 96, 112, 160, 192}) {
    for (const int64_t off : {-1, 0, 1}) {
      if (small && tile % 48 != 0 && off == 0) continue;
      b.add("tile_borders", shape(1, 1, 1, tile + off, tile + off, 4, b.draw(2)));
    }
  }
  for (const int64_t dim : {129, 161, 193, 225}) {
    b.add("sizes", shape(1, 1 + b.draw(2), 1, 5 + b.draw(5), 5 + b.draw(5), dim + b.draw(31), 0));
  }
  // Heads beyond those that kernels are written for, and wide ones over several tiles.
  for (const int64_t dim : {257 + b.draw(200), b.draw_largest(1024)}) {
    b.add("sizes", shape(1, 1 + b.draw(2), 1, 3 + b.draw(3), 5 + b.draw(9), dim, b.draw(2)));
  }
  for (const int64_t causal : {0, 1}) {
    const int64_t queries = 130 + b.draw(40);
    b.add("sizes", shape(1, 1, 1, queries, queries + b.draw(40), 129 + b.draw(127), causal));
  }
  const int64_t equal = 2 + b.draw(4);
  b.add("sizes", shape(equal, equal, 1, equal, equal, 3 + b.draw(9), 0));
  b.add("sizes", shape(1, 1, 1, 67, 131, 8, 0));
  b.add("sizes", shape(1, 1, 1, 131, 67, 8, 0));
  b.add("one_query", shape(2, 2, 2, 1, 60 + b.draw(90), 32, 0));
  b.add("one_query", shape(1, 1, 1, 1, 128, 64, 1));
  b.add("one_query", shape(1, 1, 1, 1, 1, 16, 1));
  b.add("one_query", shape(2, 2, 2 + b.draw(3), 1, 60 + b.draw(90), 32, 1));
  b.add("one_query", shape(1, 1, 1, 1, 1, 1, b.draw(2)));
  b.add("one_key", shape(2, 1, 1, 20 + b.draw(20), 1, 16, 0));
  b.add("nothing", shape(0, 2, 1, 5, 5, 16, 0));
  b.add("nothing", shape(2, 2, 1, 0, 5, 16, 1));
  b.add("no_keys", shape(2, 2, 2, 5, 0, 16, 0));
  b.add("no_keys", shape(1, 1, 1, 3, 0, 16, 1));
  b.add("long",
        shape(1, 1, 1, small ? 40 : 300, small ? 700 + b.draw(99) : 1500 + b.draw(99), 16, 0));
  if (!small) b.add("long", shape(1, 1, 1, 700 + b.draw(99), 700, 16, 1));
  // Few queries over keys that are worth splitting, of several items and heads; values that do not cancel.
  b.add("long", shape(2 + b.draw(2), 2, 1 + b.draw(3), 1 + b.draw(3), 1100 + b.draw(900),
                      8 + b.draw(9), b.draw(2)));
  b.add("offset_values", shape(1, 1, 1, 2, 1100 + b.draw(900), 16, 0));
  // Rows of queries beyond 16 bits.
  if (!small) b.add("sizes", shape(2, 1, 3, 11000 + b.draw(3000), 2 + b.draw(2), 1 + b.draw(2), 0));
}

void add_masks(PlanBuilder& b, bool small) {
  b.add("causal", shape(1, 2, 1, 7, 7, 8, 1));
  b.add("causal", shape(2, 1, 2, 40 + b.draw(30), 0, 32, 1));
  b.plan.cases.back().parameters["keys"] = b.plan.cases.back().parameters["queries"];
  if (!small) b.add("causal", shape(1, 2, 1, 150, 150, 64, 1));
  // Fewer queries than keys: the last query stands at the last key.
  b.add("causal_short", shape(1, 2, 1, 5, 9, 8, 1));
  b.add("causal_short", shape(2, 1, 2, 20 + b.draw(20), 90 + b.draw(60), 32, 1));
  b.add("causal_short", shape(1, 1, 1, 64, 65, 16, 1));
  // More queries than keys: the first ones see nothing.
  b.add("sees_nothing", shape(1, 2, 1, 9, 5, 8, 1));
  b.add("sees_nothing", shape(2, 1, 2, 90 + b.draw(60), 20 + b.draw(20), 32, 1));
  b.add("sees_nothing", shape(1, 1, 1, 130, 1, 16, 1));
  // Over several tiles of both, where the first key is met within a tile.
  const int64_t many = 66 + b.draw(60);
  b.add("sees_nothing", shape(1, 1, 1, many + 65 + b.draw(62), many, 8, 1));
  b.add("future_nan", shape(2, 1, 2, 40, 40, 16, 1));
  b.add("future_nan", shape(1, 2, 1, 9, 70, 16, 1));
  // Every group up to nine, with and without a mask, crossed with several items and heads, and with
  // fewer, as many or more queries than keys.
  for (int64_t group = 2; group <= 9; ++group) {
    const int64_t odd = b.draw(2);  // of the two, one head size is odd
    for (const int64_t causal : {0, 1}) {
      const int64_t queries = 3 + b.draw(9);
      const int64_t keys = group % 4 == 1 ? 2 + b.draw(12) : queries + b.draw(20);
      const int64_t heads = group % 4 == 0 ? 8 + b.draw(5) : 2 + b.draw(2);
      const int64_t dim = 4 + 2 * b.draw(10) + (causal == odd ? 1 : 0);
      b.add("grouped", shape(1 + group % 4, heads, group, queries, keys, dim, causal));
    }
  }
  b.add("one_kv_head", shape(2, 1, 8, 12, 30, 32, 1));
  // Heads of every region crossed with masks, groups and several items.
  for (const int64_t causal : {0, 1}) {
    for (const int64_t items : {int64_t{1}, 3 + b.draw(3)}) {
      for (const int64_t group : {int64_t{1}, 2 + b.draw(4)}) {
        for (const int64_t dim : b.regions({1, 17, 65, 129, 257})) {
          const int64_t queries = 2 + b.draw(8);
          b.add(group > 1 ? "grouped" : "sizes",
                shape(items, 2, group, queries, queries + b.draw(9), dim, causal));
        }
      }
    }
  }
  // A chunk of a few queries at the end of a long context.
  for (const int64_t length : b.beside_tiles(2048)) {
    b.add("sizes", shape(1, 1, 1, 2 + b.draw(3), length, 2 + b.draw(5), b.draw(2)));
    b.add("sizes", shape(1, 1, 1, length, 2 + b.draw(3), 2 + b.draw(5), 0));
  }
  b.add("causal_short", shape(1, 1 + b.draw(2), 1 + b.draw(2), 2 + b.draw(7),
                              b.draw_size(501, small ? 900 : 3000), 8 + b.draw(24), 1));
  b.add("bad_arguments", with(shape(1, 2, 1, 64, 64, 8, 0), "bad", 1));
  for (const int64_t bad : {2, 3, 4}) {
    b.add("bad_arguments", with(shape(1, 1, 1, 64, 64, 8, 0), "bad", bad));
  }
}

// Weights far below the others that count all the same, because the values of the others are 0. The high
// key comes first, last, or anywhere: a weight is small when it is computed, when a later maximum rescales
// what came before, or with all the weights of its tile.
void add_far_weights(PlanBuilder& b) {
  constexpr int64_t kQueries = 3, kDim = 16;
  for (const int64_t distance : {3 + b.draw(2), 5 + b.draw(3), 8 + b.draw(3)}) {
    const int64_t few = 3 + b.draw(6), tiles = 260 + b.draw(60);
    for (const auto& [keys, high] :
         {std::pair{few, int64_t{0}}, std::pair{few, few - 1}, std::pair{few, b.draw(few)},
          std::pair{tiles, int64_t{0}}, std::pair{tiles, tiles - 1}}) {
      b.add_edited("scale",
                   with(shape(1, 1, 1, kQueries, keys, kDim, 0), "values2", 50 + b.draw(20)),
                   {{0, "q", 0, kQueries * kDim - 1, 1.0F},
                    {0, "k", 0, keys * kDim - 1, -static_cast<float>(distance)},
                    {0, "k", high * kDim, high * kDim + kDim - 1, static_cast<float>(distance)},
                    {0, "v", high * kDim, high * kDim + kDim - 1, 0.0F}});
    }
  }
  // Next to the smallest normal number.
  const int64_t keys = 3 + b.draw(6), high = b.draw(keys);
  constexpr float kFarthest = 10.7F;
  b.add_edited("scale", with(shape(1, 1, 1, kQueries, keys, kDim, 0), "values2", 50 + b.draw(20)),
               {{0, "q", 0, kQueries * kDim - 1, 1.0F},
                {0, "k", 0, keys * kDim - 1, -kFarthest},
                {0, "k", high * kDim, high * kDim + kDim - 1, kFarthest},
                {0, "v", high * kDim, high * kDim + kDim - 1, 0.0F}});
}

// Scores in every region up to 2e6, of both signs: a number that stands for minus infinity, or an end
// of their range, is not one. All keys score the same, so that little but such a number goes wrong.
void add_far_scores(PlanBuilder& b) {
  constexpr int64_t kQueries = 5, kDim = 16;
  for (const int64_t size : b.regions({500, 5000, 25000, 75000, 500000})) {
    for (const int64_t sign : {1, -1}) {
      const int64_t keys = 1 + b.draw(20);
      b.add_edited("scale", shape(1, 1, 1, kQueries, keys, kDim, b.draw(2)),
                   {{0, "q", 0, kQueries * kDim - 1, 1.0F},
                    {0, "k", 0, keys * kDim - 1, static_cast<float>(sign * size)}});
    }
  }
}

void add_numeric(PlanBuilder& b, bool small) {
  for (const int64_t power : {-4, 0}) {
    b.add("given_scale", with(shape(1, 2, 1, 20, 30, 16, 0), "scale2", power));
  }
  for (const int64_t value10 : {-3, -1, 1, 3}) {
    b.add("scale", with(shape(1, 2, 1, 24 + b.draw(9), 40, 32, b.draw(2)), "value10", value10));
  }
  constexpr std::array<const char*, 9> kFamilies = {
      "equal_keys",  "zero_keys", "rising_scores", "falling_scores", "blocks",
      "heavy_tails", "last_key",  "offset_values", "one_key_met"};
  for (const char* family : kFamilies) {
    b.add(family, shape(1, 2, 1, 30 + b.draw(20), 50 + b.draw(30), 32, 0));
    b.add(family, shape(2, 1, 2, 70, 70, small ? 32 : 64, 1));
    if (!small) b.add(family, shape(1, 1, 1, 140 + b.draw(20), 200 + b.draw(60), 64, 1));
  }
  // Within one key, and evenly over hundreds of keys.
  for (const int64_t jump : {100, 1000, 3000}) {
    for (const int64_t sign : {1, -1}) {
      b.add("step_scores", with(shape(1, 1, 2, 9, 150 + b.draw(99), 32, 0), "jump", sign * jump));
      b.add("step_scores", with(b.plan.cases.back().parameters, "late", 1));
      b.add("ramp_scores", with(shape(1, 2, 1, 7, 300 + b.draw(300), 16, 0), "jump", sign * jump));
    }
  }
  // Scales of no sign and of the other sign, under a mask and without one.
  for (const int64_t milli : {0, 2, -125, -1000, 7777}) {
    const int64_t left_out = b.draw(2);
    for (const int64_t causal : {0, 1}) {
      if (milli > 0 && causal == left_out) continue;
      b.add("given_scale", with(shape(1, 2, 1, 20, 30, 16, causal), "scale_milli", milli));
    }
  }
  // Every region of both signs, crossed with groups and masks; then the same numbers with another scale and
  // under the other mask.
  const int64_t first = b.draw(4);
  int64_t turn = first;
  for (const int64_t milli : b.regions({1, 10, 30, 1000, 8000, 64001})) {
    const int64_t group = turn % 2 == 0 ? 1 : 2 + b.draw(3);
    const int64_t causal = turn / 2 % 2;
    for (const int64_t sign : {1, -1}) {
      const int64_t dim = 4 + b.draw(8);
      b.add("given_scale",
            with(shape(1, 2, group, 9, 12 + b.draw(9), dim, causal), "scale_milli", sign * milli));
    }
    if (turn++ != first) continue;
    b.add_again({{"scale_milli", 300 + b.draw(300)}});
    b.add_again({{"causal", 1 - causal}});
  }
  // Scales that only small queries come with.
  for (const int64_t sign : {1, -1}) {
    const int64_t dim = 4 + b.draw(8), queries = 5 + b.draw(9);
    b.add_edited("given_scale",
                 with(shape(1, 1, 1, queries, 12 + b.draw(9), dim, b.draw(2)), "scale_milli",
                      sign * b.draw_largest(1000000)),
                 {{0, "q", 0, queries * dim - 1, 0.001F}});
  }
  add_far_weights(b);
  add_far_scores(b);
  for (const char* power : {"values2", "grads2"}) {
    for (const int64_t sign : {1, -1}) {
      b.add("sizes", with(shape(1, 2, 1, 9, 17, 16, b.draw(2)), power, sign * (14 + b.draw(7))));
    }
  }
  // Numbers far from 1, which exact arithmetic only passes on.
  for (const char* power : {"values2", "grads2"}) {
    b.add("sizes", with(shape(1, 2, 1, 9, 17, 16, b.draw(2)), power, 73 + b.draw(8)));
    b.add("sizes", with(shape(1, 2, 1, 9, 17, 16, b.draw(2)), power, -70 - b.draw(10)));
  }
  b.add("large_scores", shape(1, 2, 1, 40, 60 + b.draw(9), 64, 0));
  b.add("large_scores", shape(1, 1, 2, 70, 70, 32, 1));
  // A length of 64 more than whole tiles of 128, and single queries: where others had NaN.
  b.add("low_scores", shape(1, 1, 2, 64, 64, 32, 1));
  b.add("low_scores", shape(1, 2, 1, 1, 128, 64, 0));
  b.add("low_scores", shape(1, 1, 1, small ? 33 : 192, small ? 70 : 192, 32, 0));
  b.add("low_scores", shape(1, 1, 1, 17 + 2 * b.draw(20), 33 + 2 * b.draw(60), 32, 0));
  // The roundings of such scores are large: little but infinity and NaN is outside the bound.
  if (!small) b.add("huge_scores", shape(1, 2, 1, 20, 40, 32, 0));
  b.add("huge_scores", shape(1, 2, 1, 33, 33, 64, 1));
}

// A query, a key, a value or a gradient that is 0, alone or all of them; a first and a last value that are
// the same.
void add_degenerate(PlanBuilder& b, bool backward) {
  std::vector<const char*> inputs = {"q", "k", "v"};
  if (backward) inputs.push_back("dout");
  for (const char* input : inputs) {
    const int64_t n = 10 + b.draw(20), dim = 4 + b.draw(20);
    const int64_t row = b.draw(n - 1);
    const Parameters p = shape(1, 1, 1, n, n, dim, b.draw(2));
    b.add_edited("scale", p, {{0, input, 0, n * dim - 1, 0.0F}});
    // A row, and some that only begin with 0.
    std::vector<Edit> edits = {{0, input, row * dim, (row + 1) * dim - 1, 0.0F}};
    for (int64_t i = row % 3; i < n; i += 3) {
      if (i != row)
        edits.push_back({0, input, i * dim, i * dim + b.draw(std::min(dim, int64_t{4})), 0.0F});
    }
    b.add_edited("scale", p, edits);
  }
  // A log-sum-exp that is 0.
  const int64_t zero_queries = 2 + b.draw(9), zero_dim = 4 + b.draw(20);
  b.add_edited("one_key", shape(1, 1, 1, zero_queries, 1, zero_dim, 0),
               {{0, "q", 0, zero_queries * zero_dim - 1, 0.0F}});
  // Two inputs of the same numbers.
  const int64_t m = 6 + b.draw(20), width = 3 + b.draw(20);
  std::vector<std::pair<const char*, const char*>> pairs = {{"k", "q"}, {"v", "k"}, {"v", "q"}};
  if (backward) pairs.insert(pairs.end(), {{"dout", "q"}, {"dout", "v"}, {"dout", "out"}});
  for (const auto& [input, source] : pairs) {
    b.add_edited("scale", shape(1, 1, 1, m, m, width, b.draw(2)),
                 {{0, input, 0, m * width - 1, 0, source, 0}});
  }
  // NaN in two queries, of which one is not the last of a tile, or in their gradients, infinity in the last
  // value: other queries know nothing of it.
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Parameters whole = shape(1, 1, 1, 64, 64, 64, 1);
  const int64_t at = 64 * (1 + b.draw(60)) + b.draw(64);
  for (const char* input : {"q", "dout"}) {
    if (input[0] == 'd' && !backward) continue;
    b.add_edited("future_nan", whole,
                 {{0, input, at, at, kNan}, {0, input, at + 2 * 64, at + 2 * 64, kNan}});
  }
  if (!backward) b.add_edited("future_nan", whole, {{0, "v", 64 * 64 - 1, 64 * 64 - 1, kInfinity}});
  const int64_t n = 9 + b.draw(9);
  b.add_edited("scale", shape(1, 1, 1, n, n, 4, 0),
               {{0, "v", 0, 3, 0.5F}, {0, "v", 4 * n - 4, 4 * n - 1, 0.5F}});
}

// In every family one case that is plain in everything else: one item, one head, whole tiles, no
// mask. A contender that lacks grouped heads fails no probe but that of grouped heads.
void add_plain(PlanBuilder& b) {
  constexpr std::array<const char*, 13> kFamilies = {
      "scale",        "equal_keys", "zero_keys",   "rising_scores", "falling_scores",
      "blocks",       "last_key",   "heavy_tails", "one_key_met",   "offset_values",
      "large_scores", "low_scores", "huge_scores"};
  for (const char* family : kFamilies) b.add(family, shape(1, 1, 1, 64, 64, 64, 0));
  for (const char* family : {"step_scores", "ramp_scores"}) {
    for (const int64_t jump : {1000, -1000}) {
      b.add(family, with(shape(1, 1, 1, 64, 64, 64, 0), "jump", jump));
    }
  }
  b.add("given_scale", with(shape(1, 1, 1, 64, 64, 64, 0), "scale2", -2));
  b.add("sizes", shape(1, 1, 1, 7, 7, 17, 0));
  b.add("one_query", shape(1, 1, 1, 1, 64, 64, 0));
  b.add("one_key", shape(1, 1, 1, 64, 1, 64, 0));
  b.add("nothing", shape(0, 1, 1, 64, 64, 64, 0));
  b.add("no_keys", shape(1, 1, 1, 64, 0, 64, 0));
  b.add("long", shape(1, 1, 1, 64, 1088, 8, 0));
  b.add("long", shape(1, 1, 1, 1088, 1088, 8, 0));
  b.add("causal", shape(1, 1, 1, 64, 64, 64, 1));
  b.add("causal_short", shape(1, 1, 1, 64, 128, 64, 1));
  b.add("sees_nothing", shape(1, 1, 1, 128, 64, 64, 1));
  b.add("future_nan", shape(1, 1, 1, 64, 64, 64, 1));
  b.add("grouped", shape(1, 1, 2, 64, 64, 64, 0));
  b.add("one_kv_head", shape(1, 1, 8, 64, 64, 16, 0));
}

// Shapes over the whole legal range and scales over theirs, crossed with data of all kinds.
void add_drawn(PlanBuilder& b, bool small) {
  constexpr std::array<const char*, 18> kFamilies = {
      "sizes",        "step_scores", "ramp_scores", "sizes", "last_key",      "heavy_tails",
      "low_scores",   "equal_keys",  "given_scale", "sizes", "given_scale",   "blocks",
      "large_scores", "zero_keys",   "given_scale", "sizes", "offset_values", "sizes"};
  const size_t count = kFamilies.size();
  const std::vector<int64_t> batch = b.spread(24, count);
  const std::vector<int64_t> heads = b.spread(16, count);
  const std::vector<int64_t> group = b.spread(16, count);
  const std::vector<int64_t> queries = b.spread(2048, count);
  const std::vector<int64_t> keys = b.spread(2048, count);
  const std::vector<int64_t> dim = b.spread(256, count);
  const std::vector<int64_t> milli = b.spread(8000, count);
  const int64_t most =
      small ? 1 << 17 : 1 << 20;  // pairs of a query and a key, times the head size
  for (size_t i = 0; i < count; ++i) {
    Parameters p = shape(batch[i], heads[i], group[i], queries[i], keys[i], dim[i], b.draw(2));
    // Too much work: one of the sizes is halved, whichever comes by turns.
    constexpr std::array<const char*, 6> kSizes = {"batch",   "kv_heads", "group",
                                                   "queries", "keys",     "dim"};
    for (size_t turn = static_cast<size_t>(b.draw(6));; ++turn) {
      int64_t work = 1;
      for (const char* size : kSizes) work *= p[size];
      if (work <= most) break;
      int64_t& size = p[kSizes[turn % kSizes.size()]];
      size = std::max<int64_t>(1, size / 2);
    }
    const std::string family = kFamilies[i];
    if (family.ends_with("_scores") && family[0] != 'l') {
      p["jump"] = (b.draw(2) == 0 ? 1 : -1) * b.draw_size(50, 3500);
    }
    if (family == "given_scale") p["scale_milli"] = (b.draw(2) == 0 ? 1 : -1) * milli[i];
    b.add(family, p);
  }
  // Long ones, where a single size stands out.
  b.add("sizes", shape(1, 1, 1, 1 + b.draw(3), b.draw_largest(6000), 8 + b.draw(57), 0));
  b.add("sizes", shape(1, 1, 1, b.draw_largest(6000), 2 + b.draw(8), 8 + b.draw(57), 0));
  // Nearly all weight on the last keys, and on the first.
  b.add("ramp_scores", with(shape(1, 1, 1, 1 + b.draw(3), b.draw_largest(5000), 16, 0), "jump",
                            b.draw_size(500, 3500)));
  b.add("ramp_scores", with(shape(1, 1, 1, 1 + b.draw(3), b.draw_size(1000, 5000), 16, 0), "jump",
                            -b.draw_size(500, 3500)));
  // On one key anywhere, of scores that leave its value all digits.
  b.add("one_key_met", shape(1, 1, 1, 9, b.draw_largest(6000), 48, 0));
  b.add("sizes", shape(b.draw_largest(140), 1, 1, 2, 3, 4, 0));
  b.add("sizes", shape(1, b.draw_largest(140), 1, 2, 3, 4, 0));
  b.add("sizes", shape(1, 1, b.draw_largest(140), 2, 3, 4, b.draw(2)));
  b.add("grouped", shape(1, 1, 2 + b.draw(3), 5 + b.draw(9), 9 + b.draw(20), b.draw_size(136, 256),
                         b.draw(2)));
  if (small) return;
  b.add("sizes", shape(1, 1, 1, 24 + b.draw(40), b.draw_largest(4096), 32, 1));
}

// Every head size, and every length that a tile or two can have. Two keys at least: over one key any
// score is right. Small ones with every number of items, of key-value heads and of heads in a group.
void add_swept(PlanBuilder& b, bool small) {
  const int64_t step = small ? 16 : 1;
  const std::vector<int64_t> dim = b.sweep(256, step);
  const std::vector<int64_t> keys = b.sweep(128, step);
  for (size_t i = 0; i < dim.size(); ++i) {
    const int64_t seen = 1 + keys[i % keys.size()];
    b.add("sizes", shape(1, 1 + b.draw(2), 1, 2 + b.draw(3), seen, dim[i], b.draw(2)));
  }
  const std::vector<int64_t> queries = b.sweep(64, step);
  const std::vector<int64_t> counts = b.sweep(21, step);
  for (size_t i = 0; i < queries.size(); ++i) {
    Parameters p = shape(1, 1, 1, queries[i], 2 + b.draw(12), 1 + b.draw(12), b.draw(2));
    constexpr std::array<const char*, 3> kCounts = {"batch", "kv_heads", "group"};
    if (i / kCounts.size() < counts.size()) p[kCounts[i % 3]] = counts[i / 3];
    b.add("sizes", p);
  }
}

void add_relations(PlanBuilder& b, bool small, bool backward) {
  const auto relate_plain = [&](const char* id, int64_t items, int64_t causal,
                                const Parameters& change) {
    b.relate(id, b.spec("nominal", shape(items, 1, 1, 64, 64, 64, causal)), change);
  };
  relate_plain("future_key", 1, 1, {{"relation", 1}});
  relate_plain("neighbours", 2, 0, {{"relation", 2}});
  relate_plain("permute_keys", 1, 0, {{"relation", 3}});
  relate_plain("permute_batch", 2, 0, {{"relation", 4}});
  relate_plain("power_of_two", 1, 0, {{backward ? "grads2" : "values2", 5}});
  relate_plain("repeat", 1, 0, {});
  for (const int64_t n : {21, 80}) {
    if (small && n == 80) continue;
    const CaseSpec causal = b.spec("nominal", shape(3, 2, 2, n, n + 4, 32, 1));
    const CaseSpec full = b.spec("nominal", shape(3, 2, 2, n, n + 4, 32, 0));
    b.relate("future_key", causal, {{"relation", 1}});
    b.relate("neighbours", causal, {{"relation", 2}});
    b.relate("permute_keys", full, {{"relation", 3}});
    b.relate("permute_batch", causal, {{"relation", 4}});
    b.relate("power_of_two", causal, {{backward ? "grads2" : "values2", 5}});
    b.relate("repeat", causal, {});
  }
  b.relate("repeat", b.spec("heavy_tails", shape(2, 2, 2, 70, 130, 32, 0)), {});
}

}  // namespace

Plan make_plan(const TaskCard& card, uint64_t seed, bool small, bool backward) {
  PlanBuilder b(card, seed);
  b.add("nominal", shape(1, 1, 1, 64, 64, 64, 0));
  b.add("nominal", shape(1, 1, 1, 6, 6, 8, 0));
  b.add("nominal", shape(2, 2, 1, 33, 33, 16, 0));
  b.add("nominal", shape(1, 2, 2, 64, 64, 32, 1));
  b.add("nominal", shape(1, 1, 1, 40 + b.draw(60), 60 + b.draw(60), 64, 0));
  if (!small) {
    b.add("nominal", shape(1, 1, 1, 256, 256, 64, 1));
    b.add("nominal", shape(2, 2, 2, 100 + b.draw(60), 160, 64, 1));
  }
  add_sizes(b, small);
  add_masks(b, small);
  add_numeric(b, small);
  add_plain(b);
  add_drawn(b, small);
  add_swept(b, small);
  add_degenerate(b, backward);
  add_relations(b, small, backward);
  const int64_t dim = 16 + 8 * b.draw(4);
  for (const int64_t least : {256, 512, 1024, 2048}) {
    if (small && least > 1024) continue;
    const int64_t n = b.rung(least, 64);
    b.ladder("nominal", shape(1, 1, 1, n, n, dim, 0));
  }
  return b.plan;
}

std::vector<CaseSpec> make_timed(const TaskCard& card, uint64_t seed, bool small) {
  PlanBuilder b(card, seed);
  if (small) {
    b.add("mixed", shape(1, 2, 1, 96, 96, 32, 1));
  } else {
    b.add("mixed", shape(1, 4, 2, 256, 256, 64, 1));
    b.add("mixed", shape(1, 2, 1, 384, 384, 64, 0));
    b.add("mixed", shape(8, 2, 1, 64, 64, 128, 1));
  }
  return b.plan.cases;
}

}  // namespace touchstone::judge::attention
