// The cases of a judgment.
#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "judge/task/tasks/plan_builder.h"
#include "judge/task/tasks/ternary_linear/ternary_linear.h"

namespace touchstone::judge::ternary_linear {
namespace {

using Parameters = PlanBuilder::Parameters;

constexpr std::array<int64_t, 6> kGroups = {32, 64, 128, 256, 100, 0};

// Plain in everything that may be lacked: a multiple of 16, whole and short groups of 128.
Shape plain(PlanBuilder& b) {
  return {.rows = 1 + b.draw(5),
          .outputs = 3 + b.draw(14),
          .inputs = 16 * (9 + b.draw(20)),
          .group = 128};
}

Shape common(PlanBuilder& b) {
  return {.rows = 1 + b.draw(5),
          .outputs = 3 + b.draw(14),
          .inputs = 150 + b.draw(300),
          .group = kGroups[static_cast<size_t>(b.draw(6))]};
}

// Float and 8-bit activations, mean and largest.
Parameters controls(size_t kind) {
  return {{"int8", static_cast<int64_t>(kind % 2)}, {"absmax", kind % 4 / 2 == 1 ? 1 : 0}};
}

void add_families(PlanBuilder& b, bool small) {
  constexpr std::array<const char*, 10> kFamilies = {
      "nominal",  "heavy_tails",  "one_sided", "sparse",      "tiny",
      "denormal", "small_scales", "huge",      "zero_groups", "padding"};
  for (const char* family : kFamilies) {
    // Whole words have no bits that are unused.
    if (std::string_view(family) != "padding") b.add(family, shape(plain(b)));
    for (size_t kind = 0; kind < (small ? 3U : 4U); ++kind) {
      b.add(family, shape(common(b), controls(kind)));
    }
  }
  b.add("exact", shape({.rows = 3, .outputs = 7, .inputs = 144 + 16 * b.draw(6), .group = 128}));
  for (size_t kind = 0; kind < 4; ++kind) {
    b.add("exact", shape({.rows = 2 + b.draw(4),
                          .outputs = 6 + b.draw(9),
                          .inputs = 96 + b.draw(80),
                          .group = 32},
                         controls(kind)));
    b.add("exact", shape({.rows = 3, .outputs = 5, .inputs = 200 + 2 * b.draw(20), .group = 0},
                         controls(kind)));
    b.add("exact", shape({.rows = 4, .outputs = 7, .inputs = 260, .group = 128},
                         PlanBuilder::Parameters{{"power", 3 - 2 * static_cast<int64_t>(kind)}}));
  }
  for (const int64_t group : {32, 64, 128}) {
    b.add("halfway", shape({.rows = 2, .outputs = 4, .inputs = 2 * group, .group = group},
                           {{"power", b.draw(9) - 6}}));
    b.add("halfway", shape({.rows = 2, .outputs = 4, .inputs = 2 * group, .group = group},
                           {{"power", -16 - b.draw(4)}}));
  }
  // Halfway in a short group, too. Ties go down and up by turns: of three groups in a row the short one
  // has both.
  b.add("halfway", shape({.rows = 2, .outputs = 4, .inputs = 144, .group = 64}, {{"power", 3}}));
  b.add("halfway", shape({.rows = 2, .outputs = 4, .inputs = 264, .group = 128}, {{"power", -17}}));
  for (const int64_t absmax : {0, 1}) {
    // Between the last half and where the next one would be.
    for (const int64_t above : {1 + b.draw(15), 16 + b.draw(16)}) {
      const Shape s = plain(b);
      b.add_edited(
          "huge", shape(s, {{"absmax", absmax}}),
          {{0, "weight", 0, s.outputs * s.inputs - 1, 65504.0F + static_cast<float>(above)}});
    }
  }
  b.add("absmax", shape(plain(b), {{"absmax", 1}}));
  b.add("int8", shape(plain(b), {{"int8", 1}}));
  for (const int64_t group : {64, 128, 150}) {
    b.add("absmax", shape({.rows = 2, .outputs = 6, .inputs = 200 + b.draw(90), .group = group},
                          {{"absmax", 1}}));
    b.add("int8", shape({.rows = 3, .outputs = 6, .inputs = 200 + b.draw(90), .group = group},
                        {{"int8", 1}}));
    b.add("row_scales", shape({.rows = 2, .outputs = 6, .inputs = 3 * group, .group = 0}));
  }
  // A group that is nearly empty: what is not there must not enter its mean.
  b.add("constant", shape({.rows = 2, .outputs = 3, .inputs = 130, .group = 128}));
  b.add("constant", shape({.rows = 1, .outputs = 2, .inputs = 33, .group = 32}, {{"int8", 1}}));
  b.add("constant", shape({.rows = 1, .outputs = 2, .inputs = 257, .group = 256}));
  b.add("zero_rows", shape(plain(b)));
  b.add("outlier_rows", shape(plain(b)));
  b.add("scaled_rows",
        shape({.rows = 7, .outputs = 5, .inputs = 96 + 16 * b.draw(6), .group = 128}));
  for (const int64_t int8 : {0, 1}) {
    b.add("zero_rows", shape(common(b), {{"int8", int8}}));
    b.add("zero_rows", shape({.rows = 7 + 3 * b.draw(4), .outputs = 5, .inputs = 70, .group = 32},
                             {{"int8", int8}}));
    b.add("outlier_rows", shape(common(b), {{"int8", int8}}));
    b.add("scaled_rows", shape({.rows = 7, .outputs = 5, .inputs = 90 + b.draw(90), .group = 64},
                               {{"int8", int8}}));
  }
  // Rows at both ends of the range, of which 127 times a number is no float; as far as the scale of 8-bit
  // activations is a normal number. Weights of such a size that y is one all the same.
  for (const int64_t int8 : {0, 1}) {
    for (const auto& [tens, power] : {std::pair{int8 == 0 ? -37 : -35, 12}, std::pair{37, -6}}) {
      b.add("scaled_rows", shape({.rows = 4, .outputs = 5, .inputs = 90 + b.draw(90), .group = 64},
                                 {{"int8", int8}, {"tens", tens}, {"power", power}}));
    }
  }
  const auto bad = [&](int64_t defect, int64_t group) {
    b.add("bad_input",
          shape({.rows = 2, .outputs = 3, .inputs = 80, .group = group}, {{"defect", defect}}));
  };
  for (const int64_t defect : {0, 1, 4}) bad(defect, 32);
  // Groups that are none, of every part of what is left.
  for (const int64_t group : {int64_t{31}, 1 + b.draw(30), -1 - b.draw(300), int64_t{-128}}) {
    bad(2, group);
  }
  for (const int64_t group : {int64_t{257}, 258 + b.draw(9), 270 + b.draw(900)}) {
    bad(3, group);
    bad(5, group);
  }
}

// The last group of a row is a short one.
void add_odd_group(PlanBuilder& b, int64_t outputs, int64_t least_inputs, int64_t group) {
  int64_t inputs = least_inputs + b.draw(80);
  if (inputs % group == 0) ++inputs;
  b.add("odd_groups", shape({.rows = 2, .outputs = outputs, .inputs = inputs, .group = group},
                            controls(static_cast<size_t>(b.draw(4)))));
}

void add_sizes(PlanBuilder& b, bool small) {
  constexpr std::array<int64_t, 14> kInputs = {1,  2,  15, 16,  17,  31,  33,
                                               48, 64, 65, 127, 255, 257, 513};
  for (size_t i = 0; i < kInputs.size(); ++i) {
    b.add("sizes", shape({.rows = 1 + b.draw(4),
                          .outputs = 1 + b.draw(9),
                          .inputs = kInputs[i],
                          .group = kGroups[i % kGroups.size()]},
                         controls(i)));
  }
  for (const int64_t group : {33, 47, 63, 96, 160, 255}) {
    add_odd_group(b, 5, 300, group);
  }
  b.add("odd_groups", shape({.rows = 2, .outputs = 5, .inputs = 320, .group = 96}));
  const int64_t cube = 5 + b.draw(40);
  b.add("sizes", shape({.rows = cube, .outputs = cube, .inputs = cube, .group = 32}));
  for (const int64_t size : b.beside_tiles(512)) {
    const auto rule = controls(static_cast<size_t>(b.draw(4)));
    b.add("sizes", shape({.rows = 2, .outputs = 3, .inputs = size, .group = 64}, rule));
    b.add("sizes", shape({.rows = 2, .outputs = size, .inputs = 20, .group = 32}, rule));
    b.add("sizes", shape({.rows = size, .outputs = 3, .inputs = 20, .group = 32}, rule));
  }
  b.add("no_rows", shape({.rows = 0, .outputs = 4, .inputs = 70, .group = 32}, {{"int8", 1}}));
  b.add("no_rows", shape({.rows = 0, .outputs = 4, .inputs = 70, .group = 32}));
  b.add("no_rows", shape({.rows = 0, .outputs = 4, .inputs = 256, .group = 128}));
  b.add("no_rows", shape({.rows = 0, .outputs = 4, .inputs = 96, .group = 0}));
  b.add("one_row", shape({.rows = 1, .outputs = 1, .inputs = 1, .group = 32}));
  const int64_t columns = 65 + b.draw(100);  // each of which counts
  b.add_edited("one_row", shape({.rows = 1, .outputs = 1, .inputs = columns, .group = 32}),
               {{0, "weight", 0, columns - 1, 0.02F}});
  b.add("one_row", shape({.rows = 1, .outputs = 40, .inputs = 640, .group = 128}));
  b.add("one_row", shape({.rows = 1, .outputs = 33, .inputs = 700, .group = 64}, {{"int8", 1}}));
  b.add("many_rows", shape({.rows = 150, .outputs = 12, .inputs = 150, .group = 64}));
  b.add("many_rows",
        shape({.rows = 130, .outputs = 9, .inputs = 130, .group = 128}, {{"int8", 1}}));
  // Tiles of rows and of outputs, over groups that are no whole vectors.
  for (const int64_t int8 : {0, 1}) {
    b.add("sizes", shape({.rows = 17 + b.draw(20),
                          .outputs = 49 + b.draw(40),
                          .inputs = 100 + b.draw(90),
                          .group = 33 + 2 * b.draw(30)},
                         {{"int8", int8}}));
  }
  b.add("wide", shape({.rows = 2, .outputs = 3, .inputs = 9000, .group = 128}, {{"int8", 1}}));
  b.add("wide", shape({.rows = 1, .outputs = 9, .inputs = 6000, .group = 0}, {{"absmax", 1}}));
  b.add(
      "outlier_rows",
      shape({.rows = 2, .outputs = 3, .inputs = 9000 + b.draw(3000), .group = 128}, {{"int8", 1}}));
  b.add("wide", shape({.rows = 1, .outputs = 3, .inputs = 6000, .group = 0}));
  b.add("tall", shape({.rows = 2, .outputs = 3000, .inputs = 40, .group = 32}));
  if (small) return;
  b.add("many_rows", shape({.rows = 700, .outputs = 20, .inputs = 200, .group = 128}));
  b.add("wide", shape({.rows = 2, .outputs = 2, .inputs = 40000, .group = 256}));
  b.add("tall", shape({.rows = 3, .outputs = 9000, .inputs = 130, .group = 128}, {{"int8", 1}}));
}

// One in each part of the range of every size, crossed with rules and families of all kinds.
void add_drawn(PlanBuilder& b, bool small) {
  constexpr std::array<const char*, 8> kFamilies = {"nominal", "heavy_tails", "sparse",
                                                    "tiny",    "zero_groups", "small_scales",
                                                    "padding", "one_sided"};
  const size_t count = 2 * kFamilies.size();
  const std::vector<int64_t> inputs = b.spread(small ? 1500 : 8000, count);
  const std::vector<int64_t> outputs = b.spread(small ? 100 : 500, count);
  const std::vector<int64_t> rows = b.spread(small ? 30 : 90, count);
  for (size_t i = 0; i < count; ++i) {
    const int64_t most = std::max<int64_t>(1, 1500000 / (inputs[i] * outputs[i]));
    b.add(kFamilies[i % kFamilies.size()],
          shape({.rows = std::min(rows[i], most),
                 .outputs = std::min(outputs[i], std::max<int64_t>(1, 1500000 / inputs[i])),
                 .inputs = inputs[i],
                 .group = b.draw(4) == 0 ? 0 : b.draw_size(32, 256)},
                controls(static_cast<size_t>(b.draw(4)))));
  }
  if (small) return;
  // Large ones, where a single size stands out.
  const auto rule = [&] { return controls(static_cast<size_t>(b.draw(4))); };
  for (const int64_t many : {b.draw_size(8001, 20000), b.draw_size(20001, 39999),
                             b.draw_size(40001, 65535), b.draw_largest(1 << 18)}) {
    b.add("sizes", shape({.rows = 2, .outputs = 2, .inputs = many, .group = 128}, rule()));
  }
  b.add("sizes",
        shape({.rows = 2, .outputs = b.draw_largest(1 << 16), .inputs = 36, .group = 32}, rule()));
  b.add("sizes",
        shape({.rows = b.draw_largest(1 << 16), .outputs = 2, .inputs = 17, .group = 32}, rule()));
}

// Activations or gradients that are 0 as a whole, outputs without a code, sizes that are all powers of two,
// one row of many outputs, one output of many rows.
void add_degenerate(PlanBuilder& b) {
  // The same numbers under another rule. Few of them: none lies where one of the rules moves it.
  for (int i = 0; i < 4; ++i) {
    b.add("sizes", shape({.rows = 1, .outputs = 5, .inputs = 17 + b.draw(9), .group = 32},
                         {{"int8", i % 2}}));
    b.add_again({{"int8", 1 - i % 2}});
    b.add_again({{"signs", 1}});
    b.add_again({{"power", 2}});
    b.add("sizes", shape({.rows = 2, .outputs = 1, .inputs = 9 + b.draw(9), .group = 32},
                         {{"absmax", i % 2}}));
    b.add_again({{"absmax", 1 - i % 2}});
  }
  // Sums of 8-bit numbers that do not cancel, beyond 16 bits.
  for (const float all : {0.75F, -0.75F}) {
    const int64_t inputs = 300 + b.draw(200);
    b.add_edited("constant",
                 shape({.rows = 1, .outputs = 3, .inputs = inputs, .group = 0}, {{"int8", 1}}),
                 {{1, "x", 0, inputs - 1, all}});
  }
  for (const int64_t group : {32, 0}) {
    b.add("alike", shape({.rows = 3, .outputs = 6, .inputs = 40 + b.draw(90), .group = group}));
  }
  for (const int64_t int8 : {0, 1}) {
    const Shape s = plain(b);
    b.add_edited("zero_rows", shape(s, {{"int8", int8}}),
                 {{1, "x", 0, s.rows * s.inputs - 1, 0.0F}});
    b.add_edited("zero_rows", shape(s, {{"int8", int8}}),
                 {{2, "dy", 0, s.rows * s.outputs - 1, 0.0F}});
    // Rows that only begin with zeros.
    b.add_edited("sizes",
                 shape({.rows = 2, .outputs = 9, .inputs = 80, .group = 32}, {{"int8", int8}}),
                 {{1, "x", 0, 15 + b.draw(40), 0.0F}, {2, "dy", 0, 3 + b.draw(4), 0.0F}});
    // One number for a whole row, and for all.
    b.add_edited("sizes", shape(s, {{"int8", int8}}), {{1, "x", 0, s.inputs - 1, 0.5F}});
    b.add_edited("sizes", shape(s, {{"int8", int8}}), {{1, "x", 0, s.rows * s.inputs - 1, -1.5F}});
    const auto power = [&] { return int64_t{16} << b.draw(3); };
    b.add("sizes", shape({.rows = power(), .outputs = power(), .inputs = 2 * power(), .group = 32},
                         {{"int8", int8}}));
    b.add("sizes",
          shape({.rows = 1, .outputs = 301 + b.draw(900), .inputs = 40 + b.draw(60), .group = 32},
                {{"int8", int8}}));
    b.add("sizes",
          shape({.rows = 65 + b.draw(200), .outputs = 1, .inputs = 40 + b.draw(60), .group = 32},
                {{"int8", int8}}));
  }
}

// Of a size and its double one gets 1 and the other 0: multiples of whatever size meet both. Among the
// odd ones the seed decides.
class ByTurns {
 public:
  explicit ByTurns(PlanBuilder& b) {
    for (int64_t& first : first_) first = b.draw(2);
  }
  int64_t operator()(int64_t size) const {
    const int twos = std::countr_zero(static_cast<uint64_t>(size));
    return (first_[static_cast<size_t>(size >> twos) % first_.size()] + twos) % 2;
  }

 private:
  std::array<int64_t, 128> first_{};
};

// Every number of inputs up to 128, of outputs and rows up to 64, and every group.
void add_swept(PlanBuilder& b, bool small) {
  const ByTurns of_inputs(b), of_others(b), of_groups(b);
  const int64_t step = small ? 16 : 1;
  const std::vector<int64_t> inputs = b.sweep(128, step);
  const std::vector<int64_t> outputs = b.sweep(64, step);
  const std::vector<int64_t> rows = b.sweep(64, step);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool tall = i % 2 == 0;
    const size_t half = i / 2;
    b.add("sizes", shape({.rows = tall ? rows[half] : 1 + b.draw(4),
                          .outputs = tall ? 1 + b.draw(4) : outputs[half],
                          .inputs = inputs[i],
                          .group = kGroups[i % kGroups.size()]},
                         {{"int8", of_others(tall ? rows[half] : outputs[half])},
                          {"absmax", of_inputs(inputs[i])}}));
  }
  for (const int64_t above : b.sweep(225, step)) {
    add_odd_group(b, 3, 260, 31 + above);
    b.plan.cases.back().parameters["int8"] = of_groups(31 + above);
  }
}

void add_relations(PlanBuilder& b) {
  for (const int64_t int8 : {0, 1}) {
    const CaseSpec first = b.spec(
        "nominal", shape({.rows = 6, .outputs = 9, .inputs = 208, .group = 128}, {{"int8", int8}}));
    b.relate("permute_rows", first, {{"relation", 1}});
    b.relate("neighbors", first, {{"relation", 2}});
    b.relate("scale_weights", first, {{"power", 3}});
    b.relate("repeat", first, {});
  }
}

}  // namespace

std::map<std::string, int64_t> shape(const Shape& s, std::map<std::string, int64_t> more) {
  more.insert({{"rows", s.rows}, {"outputs", s.outputs}, {"inputs", s.inputs}, {"group", s.group}});
  return more;
}

Plan make_plan(const TaskCard& card, uint64_t seed, bool small) {
  PlanBuilder b(card, seed);
  b.add("nominal", shape({.rows = 2, .outputs = 8, .inputs = 256, .group = 128}));
  b.add("nominal", shape({.rows = 3, .outputs = 16, .inputs = 384, .group = 64}, {{"int8", 1}}));
  add_families(b, small);
  add_sizes(b, small);
  add_drawn(b, small);
  add_swept(b, small);
  add_degenerate(b);
  add_relations(b);
  const int64_t outputs = 56 + b.draw(20);
  for (const int64_t inputs : {408, 816, 1632, 3264}) {  // at most 4096: more may be lacked
    if (small && inputs > 1632) continue;
    b.ladder(
        "nominal",
        shape(
            {.rows = 2, .outputs = outputs, .inputs = b.rung(inputs / 16 * 16, 16), .group = 128}));
  }
  return b.plan;
}

}  // namespace touchstone::judge::ternary_linear
