// Writes plans: every case gets a seed of its own, derived from the seed of the plan.
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "judge/task/compare.h"
#include "judge/task/generate.h"
#include "judge/task/task.h"

namespace touchstone::judge {

class PlanBuilder {
 public:
  using Parameters = std::map<std::string, int64_t>;

  PlanBuilder(const TaskCard& card, uint64_t seed) : card_(card), seed_(seed) {}

  // A number in [0, count) that only the seed decides: sizes that nobody can prepare for.
  int64_t draw(int64_t count) { return Stream(seed_, 0x64726177).index(draws_++, count); }

  // `count` numbers from 1 to `most`: one in each of `count` equal parts of that range, by their
  // logarithm, in an order of the seed. No size of the range is out of reach, and every part of it
  // is asked about in every judgment.
  std::vector<int64_t> spread(int64_t most, size_t count);
  // Every number from 1 to `most` once, or one of each `step` that follow each other, in an order of
  // the seed. What is wrong at one size only, or at its multiples, is then wrong in every judgment.
  std::vector<int64_t> sweep(int64_t most, int64_t step = 1);
  // A number from `least` to `most`, uniform by its logarithm.
  int64_t draw_size(int64_t least, int64_t most);
  // A number in each region of a scalar, of those that begin at `borders` and end before the next one,
  // and one in the last sixteenth of all: what is cut off at some value is wrong for every seed.
  std::vector<int64_t> regions(std::initializer_list<int64_t> borders);
  // One more or one less than a multiple of many tiles at once, those that are no power of two among
  // them: f * 2^n up to `most` for f of 1, 3, 5, 7, with n as large as can be. Which of the two the seed
  // decides where not `both`.
  std::vector<int64_t> beside_tiles(int64_t most, bool both = true);
  // A number in the last sixteenth of 1 to `most`: what goes wrong beyond some size does so for every
  // seed, and nobody knows the size that is asked for.
  int64_t draw_largest(int64_t most) { return most - draw(std::max<int64_t>(1, most / 16)); }

  CaseSpec spec(std::string family, Parameters parameters) {
    return {std::move(family), std::move(parameters), derive_seed(seed_, ++cases_)};
  }
  void add(std::string family, Parameters parameters) {
    plan.cases.push_back(spec(std::move(family), std::move(parameters)));
  }
  // The same with a seed for which `suits` holds.
  void add_where(const std::string& family, const Parameters& parameters,
                 const std::function<bool(const CaseSpec&)>& suits) {
    CaseSpec drawn = spec(family, parameters);
    while (!suits(drawn)) drawn = spec(family, parameters);
    plan.cases.push_back(std::move(drawn));
  }
  // The last case with other scalars and the same numbers, right behind it: an answer that is known by its
  // numbers alone is the one before.
  void add_again(const Parameters& change) {
    CaseSpec again = plan.cases.back();
    for (const auto& [name, value] : change) again.parameters[name] = value;
    plan.cases.push_back(std::move(again));
  }
  // With numbers of an input replaced: what is 0 as a whole, or the same at both ends, no family draws.
  void add_edited(std::string family, Parameters parameters, std::vector<Edit> edits) {
    add(std::move(family), std::move(parameters));
    plan.cases.back().edits = std::move(edits);
  }
  // A size of the memory ladder: up to a quarter above `least`, as a multiple. A contender that holds
  // less at the sizes of a ladder it knows would have to do so at all of them.
  int64_t rung(int64_t least, int64_t multiple) {
    return least + multiple * draw(std::max<int64_t>(2, least / (4 * multiple)));
  }
  void ladder(std::string family, Parameters parameters) {
    plan.memory_ladder.push_back(spec(std::move(family), std::move(parameters)));
  }
  // The second case is the first with these parameters changed.
  void relate(const std::string& id, const CaseSpec& first, const Parameters& change) {
    Relation relation{id, "", first, first};
    for (const RelationKind& kind : card_.relations) {
      if (kind.id == id) relation.title = kind.title;
    }
    for (const auto& [name, value] : change) relation.second.parameters[name] = value;
    plan.relations.push_back(std::move(relation));
  }

  Plan plan;

 private:
  double uniform() { return Stream(seed_, 0x64726177).uniform(draws_++); }

  const TaskCard& card_;
  uint64_t seed_;
  uint64_t cases_ = 0;
  int64_t draws_ = 0;
};

// Smaller cases that `valid` does not throw at. The plain family comes first: a failure that needs
// no special data is the simplest to understand.
std::vector<CaseSpec> valid_neighbors(const CaseSpec& spec, std::span<const Shrinkable> list,
                                      const std::function<void(const CaseSpec&)>& valid);

// Output number `output` of a call against the oracle; the call was answered.
void compare_output(Checker& checker, const Case& asked, size_t call, size_t output,
                    const Expected& expected, Special special, const Elements& elements = {});

// All errors of an output together, in the Euclidean norm: at most `bound` of what it is. Roundings have
// both signs, so in a sum of terms that cancel they cancel too: what is left is what the sum itself
// costs. An output that is 0 is not looked at.
void compare_norm(Checker& checker, const Case& asked, size_t call, size_t output,
                  const Expected& right, double bound);

// Element i of an output is what element from[i] was before, or anything where that is negative. Two
// right answers are at most two bounds apart: of `right` the bounds count.
void compare_moved(Checker& checker, const Case& asked, size_t call, size_t output, Expected right,
                   std::span<const int64_t> from, const Reply& before);

// Such a list for rows of `width` elements, of which row i was row order[i] before.
std::vector<int64_t> elements_of_rows(std::span<const int64_t> order, int64_t width);

// Every output of a call but `unscaled` is what it was before times 2^power, to the bit.
void compare_scaled(Checker& checker, const Case& asked, size_t call, const Reply& before,
                    int64_t power, std::string_view unscaled = "");

// All outputs of all calls have the bits of another run of the same case.
void compare_all_bits(Checker& checker, const Case& asked, const std::vector<Reply>& before);

}  // namespace touchstone::judge
