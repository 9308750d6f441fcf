// The data of every family has what its title says, and a contender that lacks one thing loses no
// probe about another.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "judge/task/compare.h"
#include "judge/task/generate.h"
#include "judge/task/task.h"
#include "judge/task/tasks/families_test_support.h"
#include "judge/task/tasks/registry.h"

namespace touchstone::judge {
namespace {

using families::amplified_end;
using families::at;
using families::between;
using families::count_of;
using families::expect_fits;
using families::Fits;
using families::has;
using families::heavy;
using families::is_nan;
using families::largest;
using families::magnitude;
using families::Number;
using families::of_power;
using families::ordinary;
using families::values_of;

bool is_negative_zero(float v) { return std::bit_cast<uint32_t>(v) == 0x80000000U; }
bool is_masked(float v) { return v == -std::numeric_limits<float>::infinity(); }
bool is_lowest(float v) { return v == -std::numeric_limits<float>::max(); }
bool is_subnormal(float v) { return std::fpclassify(v) == FP_SUBNORMAL; }

Fits distinct(const std::string& name, size_t most) {
  return [=](const Case& c) {
    const std::span<const float> values = values_of(c, name);
    return std::set<float>(values.begin(), values.end()).size() <= most;
  };
}
Fits mostly_zero(const std::string& name) {
  return [=](const Case& c) {
    const auto zeros = count_of(c, name, [](float v) { return v == 0; });
    return 2 * zeros >= static_cast<int64_t>(values_of(c, name).size());
  };
}
// The columns of the `count` largest of the first row, rising.
std::vector<int64_t> best_columns(const Case& c, int64_t count) {
  const std::span<const float> v = values_of(c, "logits");
  std::vector<int64_t> columns(static_cast<size_t>(at(c, "vocab")));
  std::iota(columns.begin(), columns.end(), int64_t{0});
  std::ranges::sort(columns, [&](int64_t a, int64_t b) {
    return v[static_cast<size_t>(a)] > v[static_cast<size_t>(b)];
  });
  columns.resize(static_cast<size_t>(std::min<int64_t>(count, at(c, "vocab"))));
  std::ranges::sort(columns);
  return columns;
}

bool rising(const Case& c, bool up) {
  const std::span<const float> v = values_of(c, "logits");
  const auto vocab = static_cast<size_t>(at(c, "vocab"));
  const auto row = v.first(std::min(vocab, v.size()));
  return up ? std::ranges::is_sorted(row) : std::ranges::is_sorted(row, std::greater<>());
}

// The k largest of a row lie where `place` says.
Fits best_at(const std::function<bool(const Case&, int64_t)>& place) {
  return [=](const Case& c) {
    const std::span<const float> v = values_of(c, "logits");
    const auto best = std::max_element(v.begin(), v.begin() + at(c, "vocab"));
    return place(c, best - v.begin());
  };
}

// Of tiles of 128 columns, or of one of the parts that a row is taken in.
bool at_a_border(const Case& c, int64_t i) {
  const int64_t parts = parameter_or(c.spec, "parts", 1);
  if (parts == 1) return i % 128 == 0 || i % 128 == 127;
  for (int64_t count = 2; count <= parts; ++count) {
    const int64_t width = (at(c, "vocab") + count - 1) / count;
    if (i % width == 0 || i % width == width - 1) return true;
  }
  return false;
}

bool nan_at_an_end(const Case& c, const std::string& name, int64_t width) {
  const std::span<const float> v = values_of(c, name);
  int64_t found = 0;
  for (size_t i = 0; i < v.size(); ++i) {
    if (!std::isnan(v[i])) continue;
    const int64_t column = static_cast<int64_t>(i) % width;
    if (column != 0 && column != width - 1) return false;
    ++found;
  }
  return found > 0;
}

TEST(Families, OfSoftmax) {
  const Fits masked = has("logits", is_masked);
  const auto tied = [](const Case& c) {
    const std::span<const float> v = values_of(c, "logits");
    return at(c, "vocab") < 8 || std::set<float>(v.begin(), v.end()).size() < v.size();
  };
  expect_fits(
      "softmax_topk",
      {{"nominal", ordinary("logits")},
       {"sizes", ordinary("logits")},
       {"no_rows", between("rows", 0, 0)},
       {"k_one", between("k", 1, 1)},
       {"k_all", [](const Case& c) { return at(c, "k") == at(c, "vocab"); }},
       {"k_large", between("k", 32, 1 << 20)},
       {"scale", of_power("logits", "scale10")},
       {"heavy_tails", heavy("logits")},
       {"blocks",
        [](const Case& c) {
          return amplified_end(values_of(c, "logits"), static_cast<size_t>(at(c, "vocab")), 3);
        }},
       {"ties", distinct("logits", 6)},
       {"border_ties", tied},
       {"all_equal",
        [](const Case& c) { return distinct("logits", static_cast<size_t>(at(c, "rows")))(c); }},
       {"signed_zeros",
        [](const Case& c) {
          return at(c, "vocab") * at(c, "rows") < 16 ||
                 (count_of(c, "logits", is_negative_zero) > 0 &&
                  count_of(c, "logits", [](float v) { return v == 0 && !std::signbit(v); }) > 0);
        }},
       {"near_ties",
        [](const Case& c) {
          const std::span<const float> v = values_of(c, "logits");
          std::vector<float> row(v.begin(), v.begin() + at(c, "vocab"));
          std::ranges::sort(row);
          for (size_t i = 1; i < row.size(); ++i) {
            if (!(row[i] > row[i - 1] && row[i] - row[i - 1] < 0x1p-13F)) return false;
          }
          return true;
        }},
       {"ascending", [](const Case& c) { return rising(c, true); }},
       {"descending", [](const Case& c) { return rising(c, false); }},
       {"clustered",
        [](const Case& c) {
          const int64_t stride = parameter_or(c.spec, "stride", 256);
          const auto best = best_columns(c, std::min<int64_t>(4, at(c, "vocab") / stride));
          return std::ranges::all_of(
              best, [&](int64_t j) { return j % stride == best.front() % stride; });
        }},
       {"one_tile",
        [](const Case& c) {
          const std::vector<int64_t> best = best_columns(c, at(c, "k"));
          return best.back() - best.front() < at(c, "k") + 2;
        }},
       {"last_tile",
        best_at([](const Case& c, int64_t i) { return i >= at(c, "vocab") - at(c, "k") - 2; })},
       {"tile_borders", best_at(at_a_border)},
       {"one_hot",
        [](const Case& c) {
          const std::span<const float> v = values_of(c, "logits");
          std::vector<float> row(v.begin(), v.begin() + at(c, "vocab"));
          std::ranges::sort(row, std::greater<>());
          return row.size() < 2 || row[0] - row[1] > 15;
        }},
       {"sparse", mostly_zero("logits")},
       {"exact", masked},
       {"denormal", has("logits", is_subnormal)},
       {"large_logits",
        [](const Case& c) {
          return c.spec.parameters.contains("shift10") || c.spec.parameters.contains("scale10") ||
                 largest(c, "logits") > 4;
        }},
       {"extreme", magnitude("logits", 1e38, 3.5e38)},
       {"masked",
        [](const Case& c) { return at(c, "vocab") < 16 || count_of(c, "logits", is_masked) > 0; }},
       {"few_left",
        [](const Case& c) { return at(c, "vocab") < 3 || count_of(c, "logits", is_masked) > 0; }},
       {"masked_row", masked},
       {"nan", has("logits", is_nan)},
       {"nan_ends", [](const Case& c) { return nan_at_an_end(c, "logits", at(c, "vocab")); }},
       {"nan_masked",
        [](const Case& c) {
          return count_of(c, "logits", is_nan) > 0 && count_of(c, "logits", is_masked) > 0;
        }},
       {"extreme_masked",
        [](const Case& c) {
          return at(c, "vocab") < 16 ||
                 (count_of(c, "logits", is_masked) > 0 && largest(c, "logits") > 1e38);
        }},
       {"lowest",
        [](const Case& c) { return at(c, "vocab") < 2 || count_of(c, "logits", is_lowest) > 0; }},
       {"all_lowest",
        [](const Case& c) {
          return count_of(c, "logits", is_lowest) == at(c, "rows") * at(c, "vocab");
        }},
       {"one_negative_zero",
        [](const Case& c) { return count_of(c, "logits", is_negative_zero) == at(c, "rows"); }},
       {"large", between("vocab", 50000, 1 << 24)},
       {"many_rows", between("rows", 700, 1 << 24)},
       {"bad_k", [](const Case& c) { return at(c, "k") < 1 || at(c, "k") > at(c, "vocab"); }},
       {"common_shift", magnitude("logits", 4e3, 2e6)},
       {"small_probabilities", magnitude("logits", 80, 90)}});
}

TEST(Families, OfLayerNorm) {
  const auto special = [](const Number& fits) {
    return [=](const Case& c) { return count_of(c, at(c, "special") != 0 ? "dy" : "x", fits) > 0; };
  };
  expect_fits(
      "layer_norm_backward",
      {{"nominal", ordinary("x")},
       {"sizes", ordinary("x")},
       {"no_rows", between("rows", 0, 0)},
       {"scale", of_power("x", "scale10")},
       {"gradient_scale", of_power("dy", "grad10")},
       {"heavy_tails", heavy("x")},
       {"blocks",
        [](const Case& c) {
          return amplified_end(values_of(c, "x"), static_cast<size_t>(at(c, "cols")), 8);
        }},
       {"ties", distinct("x", 4)},
       {"monotone",
        [](const Case& c) {
          const auto x = values_of(c, "x");
          return std::is_sorted(x.begin(), x.begin() + at(c, "cols"));
        }},
       {"sparse", [](const Case& c) { return at(c, "cols") < 16 || mostly_zero("x")(c); }},
       {"one_hot",
        [](const Case& c) {
          return count_of(c, "x", [](float v) { return v != 0; }) == at(c, "rows");
        }},
       {"exact",
        [](const Case& c) {
          return distinct("x", 2)(c) && std::get<double>(c.calls[0].scalars[2]) == 3;
        }},
       {"weights",
        [](const Case& c) {
          return at(c, "cols") < 48 || count_of(c, "gamma", [](float v) { return v == 0; }) > 0;
        }},
       {"epsilon", [](const Case& c) { return std::get<double>(c.calls[0].scalars[2]) > 0; }},
       {"no_epsilon", [](const Case& c) { return std::get<double>(c.calls[0].scalars[2]) == 0; }},
       {"parallel_gradient",
        [](const Case& c) {
          const auto x = values_of(c, "x"), dy = values_of(c, "dy"), gamma = values_of(c, "gamma");
          for (size_t i = 0; i < x.size(); ++i) {
            const size_t row = i / gamma.size();
            const float g = dy[i] * gamma[i % gamma.size()];
            if (row % 4 == 3 ? dy[i] != 1.5F
                             : g != (row % 4 == 0   ? x[i]
                                     : row % 4 == 1 ? 1.5F
                                                    : 0.0F)) {
              return false;
            }
          }
          return true;
        }},
       {"long_columns", between("rows", 1500, 1 << 24)},
       {"wide", between("cols", 8192, 1 << 24)},
       {"interleaved", [](const Case& c) { return c.calls.size() == 5; }},
       {"many_caches",
        [](const Case& c) { return static_cast<int64_t>(c.calls.size()) == 2 * at(c, "alive"); }},
       {"zero_variance",
        [](const Case& c) {
          const auto x = values_of(c, "x");
          return std::adjacent_find(x.begin(), x.begin() + at(c, "cols"), std::not_equal_to<>()) ==
                 x.begin() + at(c, "cols");
        }},
       {"denormal", has("x", is_subnormal)},
       {"nan", special(is_nan)},
       {"nan_ends",
        [](const Case& c) {
          return nan_at_an_end(c, at(c, "special") != 0 ? "dy" : "x", at(c, "cols"));
        }},
       {"infinity", special([](float v) { return std::isinf(v); })},
       {"shifted_mean", magnitude("x", 40, 2e5)},
       {"far_mean", magnitude("x", 4e5, 2e6)},
       {"square_overflow", magnitude("x", 1e19, 1e38)},
       {"square_underflow", magnitude("x", 1e-38, 1e-19)}});
}

// Probes of which every case needs the feature: without it they are not tested at all.
std::set<std::string> probes_untested(const Task& task, const Feature& lacked, bool small) {
  const Plan plan = task.plan(17, small);
  std::set<std::string> with;
  std::set<std::string> without;
  const auto look = [&](const CaseSpec& spec, const std::vector<std::string>& probes) {
    (lacked.where.holds(spec) ? with : without).insert(probes.begin(), probes.end());
  };
  for (const CaseSpec& spec : plan.cases) look(spec, task.probes_of(spec));
  for (const Relation& r : plan.relations) look(r.first, task.probes_of(r));
  for (const std::string& probe : without) with.erase(probe);
  with.erase(lacked.probe);
  return with;
}

TEST(PlainCases, ALackCostsItsOwnProbeOnly) {
  // What a probe asks for by its nature.
  const std::map<std::string, std::set<std::string>> inherent = {
      {"causal", {"bottom_right", "future_nan", "sees_nothing"}},
      {"causal_lengths", {"sees_nothing"}},
      {"unequal_lengths", {"bottom_right", "sees_nothing"}},
      {"odd_lengths", {"one_query"}},
      {"several_items", {"isolated_items"}},
      {"chunks", {"full", "ragged", "reuse"}},
      {"ragged", {"fork", "full", "reuse"}},
      {"several_sequences", {"fork", "full", "isolated_sequences", "reuse"}},
      {"given_scale", {"long_memory"}},
      {"odd_inputs", {"padding"}}};
  for (const auto& task : tasks()) {
    for (const Feature& lacked : task->card().lacks) {
      if (!lacked.output.empty()) continue;
      for (const bool small : {true, false}) {
        for (const std::string& probe : probes_untested(*task, lacked, small)) {
          const auto known = inherent.find(lacked.id);
          EXPECT_TRUE(known != inherent.end() && known->second.contains(probe))
              << task->card().id << ": without " << lacked.id << ", " << probe << " is not tested";
        }
      }
    }
  }
}

}  // namespace
}  // namespace touchstone::judge
