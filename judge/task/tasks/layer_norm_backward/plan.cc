// The cases of a judgment.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "judge/task/generate.h"
#include "judge/task/tasks/layer_norm_backward/layer_norm.h"
#include "judge/task/tasks/plan_builder.h"

namespace touchstone::judge::layer_norm {
namespace {

// Sizes around what tiles and vectors are made of, and primes.
constexpr std::array<int64_t, 22> kCols = {1,  2,   3,   7,   15,  16,  17,  31,  33,  63,   65,
                                           97, 127, 128, 129, 255, 257, 509, 511, 513, 1023, 1025};

void add_structured(PlanBuilder& b, bool small) {
  constexpr std::array<const char*, 9> kFamilies = {"heavy_tails", "blocks",        "ties",
                                                    "monotone",    "sparse",        "one_hot",
                                                    "weights",     "zero_variance", "denormal"};
  for (const char* family : kFamilies) {
    b.add(family, {{"rows", 5 + b.draw(4)}, {"cols", 60 + b.draw(80)}});
    if (!small) b.add(family, {{"rows", 16 + b.draw(9)}, {"cols", 700 + b.draw(400)}});
  }
  b.add("one_hot", {{"rows", 3}, {"cols", 5000 + b.draw(3000)}});
  b.add("parallel_gradient", {{"rows", 7}, {"cols", 96 + b.draw(40)}});
  b.add("exact", {{"rows", 6}, {"cols", 128}});
  if (!small) b.add("exact", {{"rows", 9}, {"cols", 2 * (100 + b.draw(100))}});
  for (const int64_t special : {0, 1, 2}) {
    b.add("nan", {{"rows", 7}, {"cols", 50 + b.draw(60)}, {"special", special}});
    b.add("infinity", {{"rows", 7}, {"cols", 50 + b.draw(60)}, {"special", special}});
  }
  for (const int64_t special : {0, 1}) {
    b.add("nan_ends", {{"rows", 6}, {"cols", 40 + b.draw(60)}, {"special", special}});
  }
  b.add("many_caches", {{"rows", 5}, {"cols", 20 + b.draw(30)}, {"alive", 3}});
  b.add("many_caches", {{"rows", 9}, {"cols", 40 + b.draw(60)}, {"alive", small ? 12 : 40}});
  b.add("nan", {{"rows", 1}, {"cols", 19}, {"special", 0}});
  b.add("interleaved", {{"rows", 8}, {"cols", 64 + b.draw(10)}});
}

// In every family one case that is plain in everything else: a few rows of whole vectors.
void add_plain(PlanBuilder& b) {
  constexpr std::array<const char*, 15> kFamilies = {
      "scale",         "gradient_scale", "heavy_tails", "blocks",  "ties",    "monotone",
      "sparse",        "one_hot",        "exact",       "weights", "epsilon", "parallel_gradient",
      "zero_variance", "denormal",       "interleaved"};
  for (const char* family : kFamilies) b.add(family, {{"rows", 4}, {"cols", 64}});
  b.add("sizes", {{"rows", 3}, {"cols", 96}});
  b.add("no_rows", {{"rows", 0}, {"cols", 64}});
  b.add("no_epsilon", {{"rows", 4}, {"cols", 64}, {"eps10", -99}});
  b.add("long_columns", {{"rows", 4096}, {"cols", 8}});
  b.add("wide", {{"rows", 2}, {"cols", 8192}});
  b.add("many_caches", {{"rows", 4}, {"cols", 64}, {"alive", 5}});
  for (const char* family : {"nan", "nan_ends", "infinity"})
    b.add(family, {{"rows", 4}, {"cols", 64}});
  b.add("shifted_mean", {{"rows", 4}, {"cols", 512}, {"mean10", 3}});
  b.add("square_overflow", {{"rows", 4}, {"cols", 64}, {"scale10", 25}});
  b.add("square_underflow", {{"rows", 4}, {"cols", 64}, {"scale10", -25}, {"eps10", -99}});
}

void add_numeric(PlanBuilder& b, bool small) {
  for (const int64_t scale10 : {-10, -6, -3, -1, 2, 5, 10}) {
    if (small && scale10 % 2 != 0) continue;
    b.add("scale", {{"rows", 6}, {"cols", 200 + b.draw(100)}, {"scale10", scale10}});
  }
  for (const int64_t grad10 : {-30 - b.draw(5), int64_t{-20}, int64_t{20}, 30 + b.draw(5)}) {
    b.add("gradient_scale", {{"rows", 6}, {"cols", 200 + b.draw(60)}, {"grad10", grad10}});
  }
  for (const int64_t eps10 : {-3, -1, 1}) {
    b.add("epsilon", {{"rows", 5}, {"cols", 100 + b.draw(60)}, {"eps10", eps10}});
  }
  b.add("epsilon", {{"rows", 5}, {"cols", 100 + b.draw(60)}, {"scale10", -3}, {"eps10", -5}});
  b.add("no_epsilon", {{"rows", 5}, {"cols", 100 + b.draw(60)}, {"eps10", -99}});
  for (const int64_t mean10 : {2, 3, 4, 5}) {
    if (small && mean10 % 2 != 0) continue;
    b.add("shifted_mean", {{"rows", 8}, {"cols", 900 + b.draw(300)}, {"mean10", mean10}});
  }
  b.add("far_mean", {{"rows", 48}, {"cols", 4096}, {"mean10", 6}});
  for (const int64_t scale10 : {20, 30}) {
    b.add("square_overflow", {{"rows", 4}, {"cols", 300 + b.draw(60)}, {"scale10", scale10}});
    b.add("square_underflow",
          {{"rows", 4}, {"cols", 300 + b.draw(60)}, {"scale10", -scale10}, {"eps10", -99}});
  }
}

void add_relations(PlanBuilder& b, bool small) {
  const CaseSpec plain = b.spec("nominal", {{"rows", 4}, {"cols", 64}});
  b.relate("permute_rows", plain, {{"relation", 1}});
  b.relate("neighbours", plain, {{"relation", 2}});
  b.relate("scale_gradient", plain, {{"grad2", 5}});
  b.relate("repeat", plain, {});
  for (const int64_t cols : {77, 256}) {
    if (small && cols == 256) continue;
    const CaseSpec first = b.spec("nominal", {{"rows", 9}, {"cols", cols}});
    b.relate("permute_rows", first, {{"relation", 1}});
    b.relate("neighbours", first, {{"relation", 2}});
    b.relate("scale_gradient", first, {{"grad2", 5}});
    b.relate("repeat", first, {});
  }
  b.relate("repeat", b.spec("nominal", {{"rows", small ? 32 : 512}, {"cols", 128}}), {});
}

// Sizes over the whole legal range and scalars over theirs, crossed with data of all kinds.
void add_drawn(PlanBuilder& b, bool small) {
  constexpr std::array<const char*, 16> kFamilies = {
      "sizes",   "weights",  "heavy_tails", "epsilon",        "sparse", "zero_variance",
      "blocks",  "nan_ends", "scale",       "gradient_scale", "ties",   "sizes",
      "epsilon", "monotone", "one_hot",     "epsilon"};
  const size_t count = kFamilies.size();
  const std::vector<int64_t> cols = b.spread(1 << 15, count);
  const std::vector<int64_t> rows = b.spread(1 << 14, count);
  const int64_t most = small ? 1 << 13 : 1 << 16;  // elements of a case
  for (size_t i = 0; i < count; ++i) {
    const std::string family = kFamilies[i];
    // Blocks of one column are rows of one value.
    const int64_t wide = std::clamp<int64_t>(cols[i], family == "blocks" ? 8 : 1, most);
    PlanBuilder::Parameters p = {{"rows", std::clamp<int64_t>(rows[i], 1, most / wide)},
                                 {"cols", wide}};
    // eps from 1e-14 to 9e3, each part of that range in every judgment.
    p["eps10"] = static_cast<int64_t>(i * 18 / count) - 14 + b.draw(2);
    p["eps_digit"] = 1 + b.draw(9);
    // The variance of very few columns may be 0, and a formula that is right on paper then has to live
    // with its roundings beside eps.
    if (wide < 8) p["eps10"] = std::max<int64_t>(p["eps10"], -4);
    if (family == "epsilon" || family == "scale") p["scale10"] = b.draw(9) - 4;
    if (family == "gradient_scale") p["grad10"] = b.draw(37) - 18;
    if (family == "nan_ends") p["special"] = b.draw(2);
    b.add(kFamilies[i], p);
  }
  // Every decade of eps against data small enough to feel it.
  for (int64_t eps10 = -14; eps10 <= 3; ++eps10) {
    if (small && eps10 % 2 != 0) continue;
    b.add("epsilon", {{"rows", 1 + b.draw(9)},
                      {"cols", b.draw_size(8, 600)},
                      {"scale10", eps10 > 0 ? -b.draw(2) : eps10 / 2},
                      {"eps10", eps10},
                      {"eps_digit", eps10 == 3 ? 9 : 1 + b.draw(9)}});
  }
  // Every part of the range of eps, none at all included, in short rows, in long ones and in many; where
  // the numbers are the same in each, one of a few is told by them alone.
  for (const auto& [height, width] : {std::pair(1 + b.draw(3), b.draw_size(8, 512)),
                                      std::pair(1 + b.draw(3), b.draw_size(2049, 8192)),
                                      std::pair(b.draw_size(257, 2048), 8 + b.draw(8))}) {
    constexpr std::array<int64_t, 5> kEps = {-5, -12, -8, 0, 1};
    const int64_t first = b.draw(5);
    for (int64_t i = 0; i < 5; ++i) {
      const int64_t eps10 = kEps[static_cast<size_t>((first + i) % 5)] + b.draw(2);
      const PlanBuilder::Parameters p = {{"rows", height},
                                         {"cols", width},
                                         {"scale10", std::clamp<int64_t>(eps10 / 2, -6, 1)},
                                         {"eps10", eps10},
                                         {"eps_digit", 1 + b.draw(9)}};
      b.add("epsilon", p);
      if (i == 0) b.add_again({{"eps10", eps10 + 1}});
    }
    b.add("no_epsilon", {{"rows", height}, {"cols", width}, {"eps10", -99}});
  }
  b.add("many_caches",
        {{"rows", b.draw_size(1, 40)}, {"cols", b.draw_size(1, 200)}, {"alive", 2 + b.draw(30)}});
  // Many rows that are not short.
  b.add("sizes", {{"rows", b.draw_size(160, 400)}, {"cols", b.draw_size(150, 300)}});
  b.add("sizes", {{"rows", b.draw_size(1001, 2000)}, {"cols", b.draw_size(65, 100)}});
  // A row longer than any of the fixed sizes, in every form of the plan.
  b.add("sizes", {{"rows", 1 + b.draw(3)}, {"cols", b.draw_size(8193, 64000)}});
  if (small) return;
  // The largest cases: 400000 columns, or 300000 rows. Of several columns, because the sum of what is
  // left out of one may be near 0 by chance.
  b.add("sizes", {{"rows", 1 + b.draw(3)}, {"cols", b.draw_largest(400000)}});
  b.add("sizes", {{"rows", b.draw_largest(300000)}, {"cols", 3 + b.draw(2)}});
}

// An input that is 0 as a whole, or but for one number; weights that begin alike; sizes that are powers of
// two both, with more rows than columns.
void add_degenerate(PlanBuilder& b) {
  const int64_t rows = 3 + b.draw(6), cols = 9 + b.draw(60);
  const PlanBuilder::Parameters shape = {{"rows", rows}, {"cols", cols}};
  const int64_t last = rows * cols - 1;
  b.add_edited("scale", shape, {{1, "dy", 0, last, 0.0F}});
  b.add_edited("scale", shape, {{1, "dy", cols, 2 * cols - 2, 0.0F}});
  b.add_edited("scale", shape, {{0, "x", 0, last, 0.0F}});
  b.add_edited("scale", shape, {{0, "beta", 0, cols - 1, 0.0F}});
  b.add_edited("weights", shape, {{0, "gamma", 0, cols - 1, 0.0F}});
  b.add_edited("weights", shape, {{0, "gamma", 0, 2 + b.draw(4), 0.75F}});
  // Two inputs of the same numbers, and two rows.
  b.add_edited("scale", shape, {{0, "beta", 0, cols - 1, 0, "gamma", 0}});
  b.add_edited("scale", shape, {{1, "dy", 0, last, 0, "x", 0}});
  b.add_edited("scale", shape, {{0, "x", cols, 2 * cols - 1, 0, "x", 0}});
  b.add_edited("scale", shape, {{1, "dy", cols, 2 * cols - 1, 0, "dy", 0}});
  for (int i = 0; i < 2; ++i) {
    const int64_t power = 2 + b.draw(4);
    b.add("sizes", {{"rows", int64_t{2} << (power + b.draw(3))}, {"cols", int64_t{1} << power}});
  }
}

// Data of every kind where a size chooses another path, and what is special where the other factor is 0.
void add_crossings(PlanBuilder& b, bool small) {
  const int64_t rows = 7, cols = 9 + b.draw(60);
  const PlanBuilder::Parameters shape = {{"rows", rows}, {"cols", cols}};
  const int64_t last = rows * cols - 1;
  const auto special = [&](int64_t r, int64_t c, int64_t where) {
    return PlanBuilder::Parameters{{"rows", r}, {"cols", c}, {"special", where}};
  };
  for (const char* family : {"nan", "infinity"}) {
    // 0 times NaN: a row without gradient, a gradient of 0, weights of 0.
    b.add_edited(family, special(rows, cols, 0), {{1, "dy", 0, cols - 1, 0.0F}});
    b.add_edited(family, special(rows, cols, 0), {{1, "dy", 0, last, 0.0F}});
    b.add_edited(family, special(rows, cols, 1), {{0, "gamma", 0, cols - 1, 0.0F}});
    for (const int64_t where : {0, 1}) b.add(family, special(5, 1, where));
  }
  // Subnormal weights of large gradients, and the other way round.
  PlanBuilder::Parameters steep = shape, flat = shape;
  steep["grad10"] = 20;
  flat["grad10"] = -40;
  b.add_edited("gradient_scale", steep, {{0, "gamma", 0, cols - 1, 3e-40F}});
  b.add_edited("gradient_scale", flat, {{0, "gamma", 0, cols - 1, 1e20F}});
  // eps below every fixed small number, where it is all there is.
  PlanBuilder::Parameters least = shape;
  least["eps10"] = -20 - b.draw(4);
  b.add_edited("scale", least, {{0, "x", cols, 2 * cols - 1, 0.0F}});
  // Weights that are alike, or none at all, at both ends.
  for (const float end : {0.75F, 1.0F}) {
    const int64_t many = 1 + b.draw(4);
    b.add_edited("scale", shape,
                 {{0, "gamma", 0, many, end},
                  {0, "gamma", cols - 2, cols - 1, end},
                  {0, "beta", 0, many, 1 - end},
                  {0, "beta", cols - 2, cols - 1, 1 - end}});
  }
  // A gradient whose sum is 0, and no element is.
  const int64_t even = 2 * (5 + b.draw(30));
  b.add_edited("scale", {{"rows", rows}, {"cols", even}},
               {{1, "dy", even, even + even / 2 - 1, 1.5F},
                {1, "dy", even + even / 2, 2 * even - 1, -1.5F}});
  // NaN in each column once.
  for (const int64_t where : {0, 1}) b.add("nan", special(3 * cols, cols, where));
  b.add("no_rows", {{"rows", 0}, {"cols", b.draw_size(8193, 20000)}});
  if (small) return;
  // Every remainder of one size beside a large other one, and both large.
  for (const int64_t size : b.sweep(16)) {
    b.add("sizes", {{"rows", size}, {"cols", 1025 + b.draw(60)}});
    b.add("sizes", {{"rows", 513 + b.draw(60)}, {"cols", size}});
  }
  b.add("sizes", {{"rows", 1025 + b.draw(50)}, {"cols", 513 + b.draw(20)}});
  b.add("sizes", {{"rows", 2049 + b.draw(50)}, {"cols", 257 + b.draw(10)}});
  const auto with_scalars = [&](const std::string& family, PlanBuilder::Parameters p) {
    // A variance that any small number added to it would change.
    if (family == "no_epsilon") {
      p["eps10"] = -99;
      p["scale10"] = -4;
    }
    if (family == "epsilon") p["eps10"] = 1 + b.draw(2);
    if (family == "gradient_scale") p["grad10"] = 12 + b.draw(12);
    if (family == "scale") {
      p["scale10"] = -5;
      p["eps10"] = -13 - b.draw(2);
    }
    b.add(family, p);
  };
  constexpr std::array<const char*, 11> kFamilies = {
      "zero_variance", "nan",     "infinity",       "nan_ends", "no_epsilon", "epsilon",
      "scale",         "weights", "gradient_scale", "blocks",   "one_hot"};
  for (size_t i = 0; i < kFamilies.size(); ++i) {
    // With columns behind whole vectors.
    const int64_t wide = 8192 + 8 * b.draw(60) + 1 + static_cast<int64_t>(i) % 7;
    with_scalars(kFamilies[i], special(3, wide, b.draw(3) % 2));
    with_scalars(kFamilies[i], special(b.draw_size(4097, 4300), 8 + b.draw(3), b.draw(3) % 2));
  }
  // The other input.
  for (const int64_t where : {0, 1}) {
    for (const char* family : {"nan", "infinity"}) {
      b.add(family, special(2, b.draw_size(8193, 9000), where));
      b.add(family, special(b.draw_size(4097, 4300), 3, where));
    }
  }
  // A single infinity: of several the sums are NaN, which a number that is too large also becomes.
  for (const auto& [r, c] : {std::pair(rows, cols), std::pair(int64_t{2}, b.draw_size(8193, 9000)),
                             std::pair(b.draw_size(4097, 4300), 3 + b.draw(8))}) {
    for (const int64_t where : {0, 1}) {
      PlanBuilder::Parameters single = special(r, c, where);
      single["single"] = 1;
      b.add("infinity", single);
    }
  }
  for (const int64_t wide : b.beside_tiles(1 << 14)) {
    b.add("sizes", {{"rows", 1}, {"cols", wide}, {"far_end", 1}});
  }
}

// Every number of rows and of columns up to 128. Two columns at least: the gradient of gamma is 0 where
// there is one.
void add_swept(PlanBuilder& b, bool small) {
  const int64_t step = small ? 16 : 1;
  const std::vector<int64_t> rows = b.sweep(128, step);
  const std::vector<int64_t> cols = b.sweep(128, step);
  for (size_t i = 0; i < rows.size(); ++i) {
    b.add("sizes", {{"rows", rows[i]}, {"cols", 1 + cols[i]}});
  }
}

}  // namespace

Plan make_plan(const TaskCard& card, uint64_t seed, bool small) {
  PlanBuilder b(card, seed);
  b.add("nominal", {{"rows", 4}, {"cols", 64}});
  b.add("nominal", {{"rows", 32}, {"cols", 768}});
  b.add("nominal", {{"rows", 10 + b.draw(20)}, {"cols", 200 + b.draw(300)}});
  if (!small) {
    b.add("nominal", {{"rows", 128}, {"cols", 1024}});
    b.add("nominal", {{"rows", 33}, {"cols", 4096}});
    b.add("nominal", {{"rows", 1}, {"cols", 2048}});
  }
  for (size_t i = 0; i < kCols.size(); ++i) {
    if (small && i % 2 == 1) continue;
    b.add("sizes", {{"rows", 1 + b.draw(9)}, {"cols", kCols[i]}});
  }
  for (const int64_t rows : {1, 2, 31, 33, 64, 127, 129}) {
    b.add("sizes", {{"rows", rows}, {"cols", 3 + b.draw(60)}});
  }
  // Tiles that are no power of two, as many rows as columns, a single number.
  for (const int64_t tile : {48, 80, 96, 112, 160, 192}) {
    for (const int64_t off : {-1, 1}) {
      b.add("sizes", {{"rows", 1 + b.draw(4)}, {"cols", tile + off}});
      if (!small || off < 0) b.add("sizes", {{"rows", tile / 2 + off}, {"cols", 1 + b.draw(9)}});
    }
  }
  for (const int64_t size : b.beside_tiles(4096)) {
    b.add("sizes", {{"rows", 1 + b.draw(3)}, {"cols", size}, {"far_end", 1}});
    b.add("sizes", {{"rows", size}, {"cols", 2 + b.draw(3)}});
  }
  const int64_t square = 9 + b.draw(60);
  b.add("sizes", {{"rows", square}, {"cols", square}});
  // Sizes that are multiples of each other.
  for (const int64_t odd : {0, 1}) {
    const int64_t size = 2 * (4 + b.draw(20)) + odd;
    b.add("sizes", {{"rows", 2 * size}, {"cols", size}});
    b.add("sizes", {{"rows", size}, {"cols", 2 * size}});
  }
  for (int64_t times = 3; times <= 8; ++times) {
    const int64_t size = 2 + b.draw(12);
    b.add("sizes", {{"rows", times * size}, {"cols", size}});
    b.add("sizes", {{"rows", size}, {"cols", times * size}});
  }
  b.add("sizes", {{"rows", 1}, {"cols", 1}});
  b.add("no_rows", {{"rows", 0}, {"cols", 33}});
  b.add("long_columns", {{"rows", small ? 1500 : 20011}, {"cols", 8}});
  b.add("long_columns", {{"rows", 65537}, {"cols", 2}});  // more than 16 bits can count
  b.add("wide", {{"rows", 2}, {"cols", small ? 65537 : 131073}});
  add_structured(b, small);
  add_numeric(b, small);
  add_plain(b);
  add_drawn(b, small);
  add_swept(b, small);
  add_degenerate(b);
  add_crossings(b, small);
  add_relations(b, small);
  const int64_t cols = 232 + 8 * b.draw(8);
  for (const int64_t rows : {256, 512, 1024, 2048}) {
    if (small && rows > 1024) continue;
    b.ladder("nominal", {{"rows", b.rung(rows, 1)}, {"cols", cols}});
  }
  return b.plan;
}

}  // namespace touchstone::judge::layer_norm
