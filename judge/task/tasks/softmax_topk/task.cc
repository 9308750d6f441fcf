#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "judge/task/generate.h"
#include "judge/task/tasks/card_task.h"
#include "judge/task/tasks/plan_builder.h"
#include "judge/task/tasks/softmax_topk/softmax_topk.h"

namespace touchstone::judge {
namespace {

using softmax_topk::Problem;

// From so many columns on the sum of a row may have lost more than any single probability.
constexpr int64_t kLongSum = 1024;

// The numbers as the case holds them, so that a case is judged by what was really asked.
Problem problem_of(const Case& asked) {
  const Call& call = asked.calls[0];
  return {call.whole(0), call.whole(1), call.whole(2), floats_of(call.inputs[0])};
}

class SoftmaxTopk final : public CardTask {
 public:
  SoftmaxTopk()
      : CardTask("softmax_topk", {.resolve = softmax_topk::resolve,
                                  .check = softmax_topk::check_spec,
                                  .sizes = {{"rows", 1}, {"vocab", 1}, {"k", 1}}}) {}

  Plan plan(uint64_t seed, bool small) const override;

  // Rows are checked one by one, against no more than one row of right answers.
  CaseCheck check_with(const Case& asked, const std::vector<Reply>& replies,
                       Memo& /*memo*/) const override {
    Checker checker(asked, replies);
    if (asked.spec.family == "bad_k") {
      checker.refused(0, true);
      return checker.finish();
    }
    if (!checker.answered(0)) return checker.finish();
    const Problem p = problem_of(asked);
    const Tolerance tolerance = tolerance_of(asked.spec);
    softmax_topk::RowErrors errors;
    errors.probabilities.output = "probabilities";
    errors.indices.output = "indices";
    const std::span<const float> probabilities = as_f32(replies[0].outputs[0]);
    const std::span<const int32_t> indices = as_i32(replies[0].outputs[1]);
    const auto k = static_cast<size_t>(p.k);
    // A long sum may cost more than the digits of a single probability.
    if (p.vocab >= kLongSum) errors.own = Expected(p.rows * p.k);
    for (int64_t row = 0; row < p.rows; ++row) {
      const size_t at = static_cast<size_t>(row) * k;
      softmax_topk::check_row(p, row, probabilities.subspan(at, k), indices.subspan(at, k),
                              tolerance, errors);
    }
    checker.add(errors.indices, {p.rows, p.k});
    checker.add(errors.probabilities, {p.rows, p.k});
    if (!errors.own.value.empty()) check_digits(checker, p, errors.own, probabilities);
    return checker.finish();
  }

  void compare_related(Checker& checker, const Related& pair) const override;
  std::vector<Reply> answer_in_bits(const Case& asked, int bits) const override;

  std::vector<CaseSpec> timed(uint64_t seed, bool small) const override {
    PlanBuilder b(card(), seed);
    if (small) {
      b.add("mixed", {{"rows", 8}, {"vocab", 4096}, {"k", 8}});
    } else {
      b.add("mixed", {{"rows", 1}, {"vocab", 128256}, {"k", 50}});
      b.add("mixed", {{"rows", 16}, {"vocab", 32000}, {"k", 50}});
      b.add("mixed", {{"rows", 512}, {"vocab", 1024}, {"k", 8}});
    }
    return b.plan.cases;
  }

  double bytes(const Case& c) const override {
    const Call& call = c.calls[0];
    return call.count(0) * (4.0 * call.count(1) + 8.0 * call.count(2));
  }

  double flops(const Case& c) const override {
    const Call& call = c.calls[0];
    return 6.0 * call.count(0) * call.count(1);
  }

 private:
  // The probabilities of a row against each other: an error of the sum is common to all of them.
  static void check_digits(Checker& checker, const Problem& p, const Expected& own,
                           std::span<const float> probabilities) {
    const auto k = static_cast<size_t>(p.k);
    const Shared shared{
        p.rows, p.k, [&](int64_t row, std::vector<std::vector<double>>& vectors) {
          const auto begin = own.value.begin() + static_cast<std::ptrdiff_t>(row) * p.k;
          const auto bounds = std::span(own.bound).subspan(static_cast<size_t>(row) * k, k);
          if (std::ranges::find(bounds, 0.0) != bounds.end()) return false;
          vectors.emplace_back(begin, begin + p.k);
          return true;
        }};
    OutputError error = compare_apart("probabilities", 0, probabilities, own, shared);
    error.worst_bits = 0;
    checker.add(error, {p.rows, p.k});
  }

  Case make_case(const CaseSpec& spec) const override {
    const Problem p = softmax_topk::make_problem(spec);
    Call call;
    call.function = "softmax_topk";
    call.scalars = {p.rows, p.vocab, p.k};
    call.inputs = {f32_input("logits", {p.rows, p.vocab}, p.logits)};
    const int64_t places = std::max<int64_t>(0, p.k);
    call.outputs = {{"probabilities", DType::f32, {p.rows, places}},
                    {"indices", DType::i32, {p.rows, places}}};
    return {spec, {std::move(call)}};
  }
};

void add_sizes(PlanBuilder& b, bool small) {
  constexpr std::array<int64_t, 21> kVocab = {1,   2,   3,    15,   16,   17,   31,
                                              33,  63,  65,   127,  128,  129,  255,
                                              257, 511, 1023, 1025, 2047, 4099, 5003};
  for (size_t i = 0; i < kVocab.size(); ++i) {
    if (small && i % 2 == 1) continue;
    const int64_t k = 1 + b.draw(std::min<int64_t>(kVocab[i], 20));
    b.add("sizes", {{"rows", 1 + b.draw(5)}, {"vocab", kVocab[i]}, {"k", k}});
  }
  for (const int64_t rows : {2, 3, 7, 33, 65, 129}) {
    b.add("sizes", {{"rows", rows}, {"vocab", 40 + b.draw(100)}, {"k", 5}});
  }
  // Tiles that are no power of two.
  for (const int64_t tile : {48, 80, 96, 112, 160, 192}) {
    for (const int64_t off : {-1, 1}) {
      b.add("sizes", {{"rows", 2}, {"vocab", tile + off}, {"k", 1 + b.draw(9)}});
    }
  }
  for (const int64_t vocab : b.beside_tiles(4096)) {
    b.add("last_tile", {{"rows", 2}, {"vocab", vocab}, {"k", 1 + b.draw(9)}});
  }
  b.add("sizes", {{"rows", 1}, {"vocab", 1}, {"k", 1}});
  const int64_t square = 9 + b.draw(60);
  b.add("sizes", {{"rows", square}, {"vocab", square}, {"k", 1 + b.draw(9)}});
  const int64_t places = 2 + b.draw(30);
  b.add("sizes", {{"rows", places}, {"vocab", places + b.draw(90)}, {"k", places}});
  // Every part of the range of k, and all but one.
  for (const int64_t k : {11, 21, 34, 51, 66, 102}) {
    const int64_t kept = k + b.draw(k / 4);
    b.add("sizes", {{"rows", 2}, {"vocab", 2 * kept + b.draw(99)}, {"k", kept}});
  }
  b.add("sizes", {{"rows", 2}, {"vocab", 400}, {"k", 11 * (2 + b.draw(9))}});
  for (const int64_t left : {2, 3, 4, 5, 6, 7}) {
    const int64_t vocab = 10 + b.draw(90);
    b.add("sizes", {{"rows", 1 + b.draw(3)}, {"vocab", vocab}, {"k", vocab - left}});
  }
  for (int64_t times = 3; times <= 8; ++times) {
    const int64_t k = 5 + b.draw(30);
    b.add("sizes", {{"rows", 1 + b.draw(3)}, {"vocab", times * k}, {"k", k}});
  }
  // Many rows and many places.
  const int64_t many = b.draw_size(65, 200);
  b.add("k_large", {{"rows", 9 + b.draw(24)}, {"vocab", many + 100 + b.draw(300)}, {"k", many}});
  const int64_t all = 9 + b.draw(90);
  b.add("sizes", {{"rows", 2}, {"vocab", all + 1}, {"k", all}});
  b.add("no_rows", {{"rows", 0}, {"vocab", 100}, {"k", 4}});
  for (const int64_t vocab : {1, 97, 1000}) {
    b.add("k_one", {{"rows", 4}, {"vocab", vocab}, {"k", 1}});
  }
  for (const int64_t vocab : {1, 2, 31, 32, 64, 257, 1000}) {
    b.add("k_all", {{"rows", 3}, {"vocab", vocab}, {"k", vocab}});
  }
  for (const int64_t k : {32, 33, 50, 64, 65, 100, 128, 129, 256, 257, 600}) {
    if (small && k % 2 == 0 && k != 50) continue;
    b.add("k_large", {{"rows", 2}, {"vocab", k + 700 + b.draw(2000)}, {"k", k}});
  }
  b.add("bad_k", {{"rows", 2}, {"vocab", 10}, {"k", 11}});
  b.add("bad_k", {{"rows", 2}, {"vocab", 10}, {"k", 0}});
  b.add("large", {{"rows", 2}, {"vocab", 50257}, {"k", 50}});
  b.add("large", {{"rows", 2}, {"vocab", 70001 + b.draw(999)}, {"k", 40}});  // beyond 16 bits
  b.add("many_rows", {{"rows", 65539}, {"vocab", 3}, {"k", 1}});
  b.add("many_rows", {{"rows", small ? 700 : 4099}, {"vocab", 61}, {"k", 4}});
  if (small) return;
  b.add("large", {{"rows", 1}, {"vocab", 151936}, {"k", 100}});
  b.add("large", {{"rows", 3}, {"vocab", 128256}, {"k", 20}});
}

void add_structured(PlanBuilder& b, bool small) {
  constexpr std::array<const char*, 16> kFamilies = {
      "ties",       "border_ties", "all_equal",  "signed_zeros", "near_ties", "ascending",
      "descending", "one_tile",    "last_tile",  "tile_borders", "one_hot",   "sparse",
      "masked",     "few_left",    "masked_row", "heavy_tails"};
  for (const char* family : kFamilies) {
    b.add(family, {{"rows", 4}, {"vocab", 150 + b.draw(150)}, {"k", 6 + b.draw(10)}});
    b.add(family, {{"rows", 3}, {"vocab", 2000 + b.draw(2000)}, {"k", 20 + b.draw(30)}});
    if (!small) b.add(family, {{"rows", 2}, {"vocab", 9000 + b.draw(5000)}, {"k", 40}});
  }
  for (const int64_t stride : {4, 8, 16, 32, 64, 128, 256, 512, 1024}) {
    if (small && stride % 3 == 2 && stride != 512) continue;
    b.add("clustered",
          {{"rows", 3}, {"vocab", 32 * stride + b.draw(30)}, {"k", 24}, {"stride", stride}});
  }
  for (const char* family : {"blocks", "denormal", "extreme", "exact"}) {
    b.add(family, {{"rows", 4}, {"vocab", 1024}, {"k", 16}});
  }
  b.add("blocks", {{"rows", 3}, {"vocab", 8000 + b.draw(900)}, {"k", 32}});
  b.add("exact", {{"rows", 2}, {"vocab", 64}, {"k", 40}});
  b.add("masked_row", {{"rows", 4}, {"vocab", 5}, {"k", 5}});
  for (const char* family :
       {"nan_ends", "nan_masked", "extreme_masked", "lowest", "all_lowest", "one_negative_zero"}) {
    b.add(family, {{"rows", 5}, {"vocab", 150 + b.draw(150)}, {"k", 6 + b.draw(10)}});
    b.add(family, {{"rows", 4}, {"vocab", 4000 + b.draw(2000)}, {"k", 20 + b.draw(20)}});
  }
  // Crossings: everything is kept although some of it is masked, tied or at the ends of the range.
  for (const char* family : {"masked", "few_left", "masked_row", "extreme_masked", "ties", "nan"}) {
    const int64_t vocab = 37 + b.draw(200);
    b.add(family, {{"rows", 4}, {"vocab", vocab}, {"k", vocab}});
  }
  b.add("nan", {{"rows", 5}, {"vocab", 333}, {"k", 7}});
  b.add("nan", {{"rows", 1}, {"vocab", 40}, {"k", 40}});
  b.add("nan", {{"rows", 4}, {"vocab", 5000 + b.draw(99)}, {"k", 33}});
}

// In every family one case that is plain in everything else: one row of whole vectors, few kept.
void add_plain(PlanBuilder& b) {
  constexpr std::array<const char*, 33> kFamilies = {
      "sizes",        "k_one",       "scale",          "heavy_tails",  "blocks",
      "ties",         "border_ties", "all_equal",      "signed_zeros", "near_ties",
      "ascending",    "descending",  "clustered",      "one_tile",     "last_tile",
      "tile_borders", "one_hot",     "sparse",         "exact",        "denormal",
      "large_logits", "extreme",     "masked",         "few_left",     "masked_row",
      "nan",          "nan_ends",    "extreme_masked", "lowest",       "one_negative_zero",
      "common_shift", "all_lowest",  "nan_masked"};
  for (const char* family : kFamilies) {
    const int64_t k = std::string(family) == "k_one" ? 1 : 8;
    PlanBuilder::Parameters p = {{"rows", 1}, {"vocab", 1024}, {"k", k}};
    if (std::string(family) == "common_shift") p["shift10"] = 5;
    b.add(family, p);
  }
  b.add("sizes", {{"rows", 1}, {"vocab", 1023}, {"k", 8}});
  b.add("k_all", {{"rows", 1}, {"vocab", 64}, {"k", 64}});
  b.add("k_large", {{"rows", 1}, {"vocab", 1024}, {"k", 50}});
  b.add("large", {{"rows", 1}, {"vocab", 65536}, {"k", 8}});
  b.add("small_probabilities", {{"rows", 1}, {"vocab", 300}, {"k", 32}});
  b.add("no_rows", {{"rows", 0}, {"vocab", 64}, {"k", 4}});
  for (const int64_t k : {int64_t{17}, int64_t{0}, -1 - b.draw(60), 18 + b.draw(60)}) {
    b.add("bad_k", {{"rows", 1}, {"vocab", 16}, {"k", k}});
  }
  b.add("many_rows", {{"rows", 1000}, {"vocab", 64}, {"k", 4}});
}

void add_numeric(PlanBuilder& b) {
  for (const int64_t scale10 : {-3, -1, 0, 1}) {
    b.add("scale", {{"rows", 3}, {"vocab", 900 + b.draw(400)}, {"k", 20}, {"scale10", scale10}});
  }
  for (const int64_t scale10 : {2, 3, 4}) {
    b.add("large_logits",
          {{"rows", 4}, {"vocab", 500 + b.draw(300)}, {"k", 12}, {"scale10", scale10}});
  }
  // All large and close together: overflow without a common maximum taken off.
  b.add("large_logits", {{"rows", 4}, {"vocab", 300 + b.draw(99)}, {"k", 12}, {"shift10", 2}});
  b.add("large_logits", {{"rows", 4}, {"vocab", 300 + b.draw(99)}, {"k", 12}, {"shift10", 4}});
  for (const int64_t shift10 : {4, 5, 6}) {
    b.add("common_shift",
          {{"rows", 4}, {"vocab", 700 + b.draw(300)}, {"k", 20}, {"shift10", shift10}});
  }
  b.add("small_probabilities", {{"rows", 2}, {"vocab", 300}, {"k", 300}});
}

void add_relations(PlanBuilder& b, bool small) {
  const auto relate_plain = [&](const char* id, int64_t rows, PlanBuilder::Parameters change) {
    b.relate(id, b.spec("nominal", {{"rows", rows}, {"vocab", 1024}, {"k", 8}, {"grid", 1}}),
             change);
  };
  relate_plain("permute_rows", 4, {{"relation", 1}});
  relate_plain("neighbours", 4, {{"relation", 2}});
  relate_plain("permute_vocabulary", 1, {{"relation", 3}});
  relate_plain("add_constant", 1, {{"add", 16}});
  relate_plain("repeat", 1, {});
  for (const int64_t vocab : {120, 3000}) {
    if (small && vocab == 3000) continue;
    const CaseSpec first =
        b.spec("nominal", {{"rows", 7}, {"vocab", vocab}, {"k", 12}, {"grid", 1}});
    b.relate("permute_rows", first, {{"relation", 1}});
    b.relate("neighbours", first, {{"relation", 2}});
    b.relate("permute_vocabulary", first, {{"relation", 3}});
    b.relate("add_constant", first, {{"add", 16}});
    b.relate("repeat", first, {});
  }
  b.relate("repeat", b.spec("ties", {{"rows", 4}, {"vocab", 5000}, {"k", 40}}), {});
}

// Sizes over the whole legal range, crossed with data of all kinds.
void add_drawn(PlanBuilder& b, bool small) {
  constexpr std::array<const char*, 18> kFamilies = {"sizes",
                                                     "masked",
                                                     "ties",
                                                     "heavy_tails",
                                                     "border_ties",
                                                     "few_left",
                                                     "extreme_masked",
                                                     "nan_ends",
                                                     "last_tile",
                                                     "blocks",
                                                     "descending",
                                                     "signed_zeros",
                                                     "lowest",
                                                     "one_hot",
                                                     "large_logits",
                                                     "ascending",
                                                     "one_negative_zero",
                                                     "sparse"};
  const size_t count = kFamilies.size();
  const std::vector<int64_t> vocab = b.spread(1 << 17, count);
  const std::vector<int64_t> rows = b.spread(1 << 15, count);
  const std::vector<int64_t> kept = b.spread(1 << 14, count);
  const int64_t most = small ? 1 << 13 : 1 << 17;  // logits of a case
  for (size_t i = 0; i < count; ++i) {
    // Some columns of a row that has masks are masked.
    const std::string family = kFamilies[i];
    const bool masks = family.ends_with("masked") || family == "few_left";
    const int64_t v = std::clamp<int64_t>(vocab[i], masks ? 24 : 1, most);
    // A list that is kept in order costs vocab * k.
    const int64_t k = std::clamp<int64_t>(std::min(kept[i], (int64_t{1} << 26) / v), 1, v);
    PlanBuilder::Parameters p = {
        {"rows", std::clamp<int64_t>(rows[i], 1, most / v)}, {"vocab", v}, {"k", k}};
    if (family == "large_logits") p["shift10"] = 1 + b.draw(4);
    b.add(kFamilies[i], p);
  }
  // As many rows as there are columns elsewhere, and the other way round.
  for (const int64_t r : b.spread(1 << 15, 4)) {
    const int64_t v = 1 + b.draw(std::max<int64_t>(1, most / r));
    b.add("sizes", {{"rows", std::min(r, most)}, {"vocab", v}, {"k", b.draw_size(1, v)}});
  }
  // Where one size stands out beside another.
  const int64_t deep = b.draw_size(1025, 6000);
  b.add("k_large", {{"rows", 2}, {"vocab", deep + b.draw(3000)}, {"k", deep}});
  const int64_t whole = b.draw_size(1001, 6000);
  b.add("k_all", {{"rows", 1 + b.draw(2)}, {"vocab", whole}, {"k", whole}});
  b.add("k_large",
        {{"rows", 2}, {"vocab", b.draw_size(8193, 40000)}, {"k", b.draw_size(129, 900)}});
  const int64_t long_row = b.draw_size(2001, 60000);
  b.add("last_tile", {{"rows", 3}, {"vocab", long_row}, {"k", 1}});
  const int64_t tall = b.draw_size(301, 900);
  b.add("sizes", {{"rows", tall}, {"vocab", 101 + 4 * b.draw(20)}, {"k", 3}});
  if (small) return;
  // The largest cases: 2^21 logits in few rows, or in many.
  // What counts stands at the end of the longest row: of so many equal terms a sum may lose more than
  // its last columns.
  b.add("last_tile", {{"rows", 1}, {"vocab", b.draw_largest(1 << 21)}, {"k", 20 + b.draw(40)}});
  b.add("sizes", {{"rows", 3}, {"vocab", b.draw_largest(1 << 18)}, {"k", 20 + b.draw(40)}});
  b.add("sizes", {{"rows", b.draw_largest(1 << 18)}, {"vocab", 4 + b.draw(3)}, {"k", 2}});
}

// Data of every kind where a size chooses another path: rows too long for one block, rows beyond those of
// one launch, more places than a list holds, one place, one column.
void add_crossings(PlanBuilder& b, bool small) {
  // Two rows of each special kind behind each other, with few columns, one place, or all of them.
  constexpr int64_t kPairs = 26;
  for (const int64_t vocab : {int64_t{1}, int64_t{2}, int64_t{3}, 4 + b.draw(60)}) {
    b.add("nan_masked", {{"rows", kPairs}, {"vocab", vocab}, {"k", vocab}});
    b.add("nan_masked", {{"rows", kPairs}, {"vocab", vocab}, {"k", 1}});
  }
  // As many NaN in a row as a count of 8 bits, or of 16, takes for none.
  b.add("nan_masked", {{"rows", kPairs}, {"vocab", 256 * (1 + b.draw(4))}, {"k", 1 + b.draw(9)}});
  if (!small) b.add("nan_masked", {{"rows", 4}, {"vocab", 1 << 16}, {"k", 2 + b.draw(9)}});
  for (const char* family :
       {"masked_row", "all_lowest", "signed_zeros", "all_equal", "near_ties"}) {
    b.add(family, {{"rows", 5}, {"vocab", 2 + b.draw(60)}, {"k", 1}});
    b.add(family, {{"rows", 5}, {"vocab", 1}, {"k", 1}});
  }
  // Neighboring floats far from zero.
  b.add("near_ties", {{"rows", 3}, {"vocab", 200 + b.draw(200)}, {"k", 20}, {"shift10", 3}});
  // More places than a list holds.
  for (const char* family : {"few_left", "masked", "lowest", "ties", "extreme_masked"}) {
    const int64_t many = b.draw_size(129, 1024), more = b.draw_size(1025, 2000);
    b.add(family, {{"rows", 2}, {"vocab", many + 1 + b.draw(200)}, {"k", many}});
    if (!small) b.add(family, {{"rows", 2}, {"vocab", more + 1 + b.draw(200)}, {"k", more}});
  }
  // Many places of whole tiles.
  for (const int64_t places : {33 + b.draw(31), 65 + b.draw(63), 129 + b.draw(99)}) {
    b.add("k_large", {{"rows", 2}, {"vocab", 256 * (1 + b.draw(6))}, {"k", places}});
  }
  // NaN in each column once.
  const int64_t columns = 40 + b.draw(30);
  b.add("nan", {{"rows", 3 * columns}, {"vocab", columns}, {"k", 1 + b.draw(9)}});
  if (small) return;
  for (const int64_t rows : b.sweep(16)) {
    b.add("sizes", {{"rows", rows}, {"vocab", 1025 + b.draw(200)}, {"k", 1 + b.draw(9)}});
  }
  const int64_t everything = 4097 + b.draw(500);
  b.add("k_all", {{"rows", 1}, {"vocab", everything}, {"k", everything}});
  const int64_t kept = 33 + b.draw(40);
  b.add("k_large", {{"rows", 257 + b.draw(300)}, {"vocab", kept + 1 + b.draw(60)}, {"k", kept}});
  b.add("k_large", {{"rows", 1}, {"vocab", 65537 + b.draw(999)}, {"k", b.draw_size(1025, 1200)}});
  // Thousands of rows.
  for (const char* family : {"nan_masked", "extreme_masked", "few_left"}) {
    b.add(family, {{"rows", b.draw_size(4097, 7000)}, {"vocab", 5 + b.draw(3)}, {"k", 2}});
  }
  b.add("nan_masked", {{"rows", 65537 + b.draw(999)}, {"vocab", 2}, {"k", 1}});
  // Long rows, with as many columns, and places, behind whole vectors as can be.
  constexpr std::array<const char*, 20> kLong = {
      "nan_ends",  "few_left",   "masked_row",   "all_equal",  "lowest",
      "near_ties", "ascending",  "large_logits", "descending", "tile_borders",
      "masked",    "ties",       "exact",        "one_hot",    "one_negative_zero",
      "sparse",    "all_lowest", "border_ties",  "blocks",     "extreme_masked"};
  for (size_t i = 0; i < kLong.size(); ++i) {
    const auto left = static_cast<int64_t>(i);
    const std::string family = kLong[i];
    PlanBuilder::Parameters p = {{"rows", 1},
                                 {"vocab", (1 << 16) + 16 * b.draw(256) + 1 + left % 15},
                                 {"k", 8 + 8 * b.draw(5) + left % 8}};
    if (family == "near_ties" || family == "large_logits") p["shift10"] = 3;
    // Some are all masked, others are not.
    if (family == "masked_row") p["rows"] = 4;
    // More of them than are kept: they are in the sum.
    if (family == "tile_borders") p["parts"] = 64;
    b.add(family, p);
  }
  b.add("nan", {{"rows", 4}, {"vocab", 65537 + b.draw(999)}, {"k", 1 + b.draw(9)}});
  // The borders of a row in 2 to 16 parts, all of them kept.
  b.add(
      "tile_borders",
      {{"rows", 1}, {"vocab", b.draw_size(65537, 80000)}, {"k", 240 + b.draw(20)}, {"parts", 16}});
  for (const int64_t vocab : b.beside_tiles(1 << 15)) {
    b.add("last_tile", {{"rows", 1}, {"vocab", vocab}, {"k", 1 + b.draw(9)}});
  }
}

// Every number of rows, of columns and of places up to 128: of places among more columns, of all columns,
// and a single one of every number of rows.
void add_swept(PlanBuilder& b, bool small) {
  const int64_t step = small ? 16 : 1;
  const std::vector<int64_t> rows = b.sweep(128, step);
  const std::vector<int64_t> vocab = b.sweep(128, step);
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t k = b.draw_size(1, std::min<int64_t>(vocab[i], 16));
    b.add("sizes", {{"rows", rows[i]}, {"vocab", vocab[i]}, {"k", k}});
  }
  for (const int64_t k : b.sweep(128, step)) {
    b.add("sizes", {{"rows", 1 + b.draw(3)}, {"vocab", k + b.draw_size(1, 300)}, {"k", k}});
  }
  for (const int64_t all : b.sweep(64, step)) {
    const int64_t many = b.draw(2) == 0 ? 33 + b.draw(40) : 1 + b.draw(3);
    b.add("k_all", {{"rows", many}, {"vocab", all}, {"k", all}});
  }
  for (const int64_t many : b.sweep(64, step)) {
    b.add("k_one", {{"rows", many}, {"vocab", 2 + b.draw(40)}, {"k", 1}});
  }
}

// Calls of the sizes of the one before, of the one before that, and of fewer places than those before: what
// is kept from one call to the next by its sizes is another's.
void add_sequences(PlanBuilder& b) {
  const PlanBuilder::Parameters one = {{"rows", 3}, {"vocab", 40 + b.draw(60)}, {"k", 9}};
  const PlanBuilder::Parameters other = {{"rows", 4}, {"vocab", 130 + b.draw(60)}, {"k", 7}};
  for (const auto& sizes : {one, one, one, other, one, other}) b.add("sizes", sizes);
  b.add("sizes", {{"rows", 2}, {"vocab", 60 + b.draw(60)}, {"k", 20}});
  for (const int64_t k : {11, 4, 15}) b.add_again({{"k", k}});
}

Plan SoftmaxTopk::plan(uint64_t seed, bool small) const {
  PlanBuilder b(card(), seed);
  b.add("nominal", {{"rows", 1}, {"vocab", 1024}, {"k", 8}});
  b.add("nominal", {{"rows", 4}, {"vocab", 64}, {"k", 5}});
  b.add("nominal", {{"rows", 8}, {"vocab", 1000}, {"k", 10}});
  b.add("nominal",
        {{"rows", 3 + b.draw(5)}, {"vocab", 3000 + b.draw(3000)}, {"k", 8 + b.draw(30)}});
  if (!small) b.add("nominal", {{"rows", 16}, {"vocab", 32000}, {"k", 50}});
  add_sizes(b, small);
  add_structured(b, small);
  add_numeric(b);
  add_plain(b);
  add_drawn(b, small);
  add_crossings(b, small);
  add_swept(b, small);
  // Half of the columns, or one less than that.
  const int64_t half = 8 + b.draw(40);
  for (const int64_t odd : {0, 1}) {
    b.add("sizes", {{"rows", 2}, {"vocab", 2 * half + odd}, {"k", half}});
  }
  add_relations(b, small);
  const int64_t rows = 13 + b.draw(8);
  const int64_t k = 5 + b.draw(8);
  for (const int64_t vocab : {4096, 8192, 16384, 32768}) {
    if (small && vocab > 16384) continue;
    b.ladder("nominal", {{"rows", rows}, {"vocab", b.rung(vocab, 4)}, {"k", k}});
  }
  add_sequences(b);
  return b.plan;
}

// Slot by slot the probabilities are the same.
void SoftmaxTopk::compare_related(Checker& checker, const Related& pair) const {
  const Problem p = problem_of(pair.second);
  const Tolerance tolerance = tolerance_of(pair.second.spec);
  const std::vector<int64_t> order = softmax_topk::row_order(pair.second.spec, p.rows);
  Expected expected(p.rows * p.k);
  std::vector<int64_t> from(expected.value.size(), -1);
  for (size_t r = 0; r < order.size(); ++r) {
    if (order[r] < 0) continue;
    const std::span<const float> logits(p.logits.data() + r * static_cast<size_t>(p.vocab),
                                        static_cast<size_t>(p.vocab));
    const softmax_topk::Row row = softmax_topk::analyze_row(logits, p.k, tolerance);
    for (int64_t j = 0; j < p.k; ++j) {
      const size_t at = r * static_cast<size_t>(p.k) + static_cast<size_t>(j);
      from[at] = order[r] * p.k + j;
      if (row.has_nan) continue;
      const float logit = row.kept[static_cast<size_t>(j)];
      expected.bound[at] = row.bound(logit, tolerance);
      expected.scale[at] = row.probability(logit);
    }
  }
  compare_moved(checker, pair.second, 0, 0, std::move(expected), from, pair.before[0]);
}

// Logits rounded, everything after it exact.
std::vector<Reply> SoftmaxTopk::answer_in_bits(const Case& asked, int bits) const {
  Problem p = problem_of(asked);
  round_to_bits(p.logits, bits);
  std::vector<float> probabilities;
  std::vector<int32_t> indices;
  std::vector<int32_t> order(static_cast<size_t>(p.vocab));
  for (int64_t r = 0; r < p.rows && asked.spec.family != "bad_k"; ++r) {
    const std::span<const float> logits(p.logits.data() + r * p.vocab,
                                        static_cast<size_t>(p.vocab));
    const softmax_topk::Row row = softmax_topk::analyze_row(logits, p.k, {});
    std::iota(order.begin(), order.end(), 0);
    const auto larger = [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    };
    if (!row.has_nan) std::partial_sort(order.begin(), order.begin() + p.k, order.end(), larger);
    for (int64_t j = 0; j < p.k; ++j) {
      const int32_t index = order[static_cast<size_t>(j)];
      indices.push_back(index);
      probabilities.push_back(
          row.has_nan ? std::numeric_limits<float>::quiet_NaN()
                      : static_cast<float>(row.probability(logits[static_cast<size_t>(index)])));
    }
  }
  Reply reply;
  reply.ending = asked.spec.family == "bad_k" ? Ending::refused : Ending::ok;
  reply.outputs = {bytes_of(probabilities), bytes_of(indices)};
  return {reply};
}

}  // namespace

std::unique_ptr<Task> make_softmax_topk() { return std::make_unique<SoftmaxTopk>(); }

}  // namespace touchstone::judge
