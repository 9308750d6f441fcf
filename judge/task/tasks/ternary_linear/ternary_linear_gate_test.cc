// The gate of the task: honest implementations pass every case that can make a verdict, wrong ones do
// not, decisions keep their distance, and the data of every family has what its title says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "judge/task/generate.h"
#include "judge/task/tasks/families_test_support.h"
#include "judge/task/tasks/gate_test_support.h"
#include "judge/task/tasks/registry.h"
#include "judge/task/tasks/ternary_linear/ternary_linear.h"
#include "touchstone/core/ternary.h"

namespace touchstone::judge {
namespace {

using ternary_linear::Problem;
using ternary_linear::Projected;

enum class Fault {
  none,
  padded_mean,
  epsilon,
  tie_up,
  scale_not_rounded,
  codes_of_rounded,
  clipped_gradient,
  scaled_gradient,
  dx_of_latent,
  x_not_rounded,
  sums_in_half,
};

struct Style {
  bool single = false;  // 32-bit sums
  Fault fault = Fault::none;
};

// A sum as the style keeps it.
struct Sum {
  const Style& style;
  double value = 0;
  void add(double a, double b) {
    value +=
        style.single ? static_cast<double>(static_cast<float>(a) * static_cast<float>(b)) : a * b;
    if (style.single) value = static_cast<double>(static_cast<float>(value));
    if (style.fault == Fault::sums_in_half) {
      value = static_cast<double>(round_to_bits(static_cast<float>(value), 11));
    }
  }
  float result() const { return static_cast<float>(value); }
};

// The projection of the library, which has its own order of sums, with faults.
Projected project(const Style& style, const Problem& p) {
  TernaryRule rule;
  rule.geometry = {p.group == 0 ? TernaryGrouping::row : TernaryGrouping::group,
                   p.group == 0 ? 128 : p.group};
  rule.scale = p.absmax ? TernaryScaleRule::absmax : TernaryScaleRule::mean;
  const TernaryMatrix m = touchstone::ternary_project(rule, p.outputs, p.inputs, p.weight);
  Projected out;
  out.codes.assign(m.codes.begin(), m.codes.end());
  out.scales = m.scales;
  for (int64_t o = 0; o < p.outputs; ++o) {
    for (int64_t g = 0; g < p.groups(); ++g) {
      const int64_t begin = g * p.group_size();
      const int64_t count = std::min(p.group_size(), p.inputs - begin);
      const auto first = static_cast<size_t>(o * p.inputs + begin);
      const auto group = std::span(p.weight).subspan(first, static_cast<size_t>(count));
      double scale = ternary_linear::scale_of(group, p.absmax);
      float& stored = out.scales[static_cast<size_t>(o * p.groups() + g)];
      if (style.fault == Fault::padded_mean && !p.absmax) {
        scale *= static_cast<double>(count) / static_cast<double>(p.group_size());
        stored = ternary_linear::stored_scale(scale);
      }
      if (style.fault == Fault::epsilon) {
        scale = std::max(scale, 1e-5);
        stored = ternary_linear::stored_scale(scale);
      }
      if (style.fault == Fault::scale_not_rounded) stored = static_cast<float>(scale);
      if (style.fault == Fault::codes_of_rounded) scale = static_cast<double>(stored);
      for (size_t i = 0; i < group.size(); ++i) {
        const double twice = 2 * std::abs(static_cast<double>(group[i]));
        const bool one = style.fault == Fault::tie_up ? twice >= scale && twice > 0 : twice > scale;
        out.codes[first + i] = one ? (group[i] > 0 ? 1 : -1) : 0;
      }
    }
  }
  out.packed.assign(static_cast<size_t>(p.outputs * p.words()), 0);
  for (int64_t i = 0; i < std::ssize(out.codes); ++i) {
    const int64_t o = i / p.inputs, c = i % p.inputs;
    auto& word = out.packed[static_cast<size_t>(o * p.words() + c / 16)];
    word |= static_cast<int32_t>(static_cast<uint32_t>(out.codes[static_cast<size_t>(i)] + 1)
                                 << (2 * (c % 16)));
  }
  return out;
}

std::vector<Reply> run(const Style& style, const Case& c) {
  std::vector<Reply> replies(c.calls.size());
  for (Reply& reply : replies) reply.ending = Ending::refused;
  if (c.spec.family == "bad_input") return replies;
  Problem p = ternary_linear::make_problem(c.spec);
  // What the case holds, edits included.
  if (!c.spec.edits.empty()) {
    p.weight = floats_of(c.calls[0].inputs[0]);
    p.x = floats_of(c.calls[1].inputs[2]);
    p.dy = floats_of(c.calls[2].inputs[3]);
  }
  const Projected mine = project(style, p);
  const auto packed = as_i32(c.calls[1].inputs[0]);
  const auto scales = as_f32(c.calls[1].inputs[1]);
  const std::vector<int32_t> codes = ternary_linear::unpacked(p, packed);
  std::vector<double> x = ternary_linear::activations(p);
  if (style.fault == Fault::x_not_rounded) x.assign(p.x.begin(), p.x.end());
  const auto weight = [&](int64_t o, int64_t i) {
    const double scale =
        static_cast<double>(scales[static_cast<size_t>(o * p.groups() + i / p.group_size())]);
    return scale * codes[static_cast<size_t>(o * p.inputs + i)];
  };
  std::vector<float> y, dx, dweight;
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t o = 0; o < p.outputs; ++o) {
      Sum sum{style};
      for (int64_t i = 0; i < p.inputs; ++i) {
        sum.add(x[static_cast<size_t>(r * p.inputs + i)], weight(o, i));
      }
      y.push_back(sum.result());
    }
    for (int64_t i = 0; i < p.inputs; ++i) {
      Sum sum{style};
      for (int64_t o = 0; o < p.outputs; ++o) {
        const bool latent = style.fault == Fault::dx_of_latent;
        sum.add(static_cast<double>(p.dy[static_cast<size_t>(r * p.outputs + o)]),
                latent ? static_cast<double>(p.weight[static_cast<size_t>(o * p.inputs + i)])
                       : weight(o, i));
      }
      dx.push_back(sum.result());
    }
  }
  for (int64_t o = 0; o < p.outputs; ++o) {
    for (int64_t i = 0; i < p.inputs; ++i) {
      Sum sum{style};
      for (int64_t r = 0; r < p.rows; ++r) {
        sum.add(static_cast<double>(p.dy[static_cast<size_t>(r * p.outputs + o)]),
                x[static_cast<size_t>(r * p.inputs + i)]);
      }
      const bool zero = codes[static_cast<size_t>(o * p.inputs + i)] == 0;
      if (style.fault == Fault::clipped_gradient && zero) sum.value = 0;
      if (style.fault == Fault::scaled_gradient) {
        sum.value *= static_cast<double>(scales[static_cast<size_t>(o * p.groups())]);
      }
      dweight.push_back(sum.result());
    }
  }
  for (Reply& reply : replies) reply.ending = Ending::ok;
  replies[0].outputs = {bytes_of(mine.packed), bytes_of(mine.scales)};
  replies[1].outputs = {bytes_of(y)};
  replies[2].outputs = {bytes_of(dx), bytes_of(dweight)};
  return replies;
}

gate::Contender contender(const Style& style) {
  return [style](const Case& c) { return run(style, c); };
}

const Task& task() { return find_task("ternary_linear"); }

// The projection of the library is a second opinion on that of the judge.
TEST(TernaryLinearGate, HonestStylesPass) {
  gate::expect_passes(task(), "in double", contender({}), 21);
  gate::expect_passes(task(), "in float", contender({.single = true}), 22);
}

TEST(TernaryLinearGate, PlantedFaultsAreFound) {
  for (int fault = 1; fault <= static_cast<int>(Fault::sums_in_half); ++fault) {
    gate::expect_found(task(), "fault " + std::to_string(fault),
                       contender({.fault = static_cast<Fault>(fault)}), 3);
  }
}

TEST(TernaryLinearGate, TrivialContendersFailEverywhere) { gate::expect_trivial_fail(task()); }

TEST(TernaryLinearGate, LowerPrecisionFails) {
  gate::expect_lower_precision_fails(task(), "nominal");
}

TEST(TernaryLinearGate, RelationsHoldAndBite) { gate::expect_relations(task(), contender({})); }

// Calls visit(weights of a group, absmax) for each group of a case.
template <class Visit>
void each_group(const Problem& p, const Visit& visit) {
  for (int64_t o = 0; o < p.outputs; ++o) {
    for (int64_t begin = 0; begin < p.inputs; begin += p.group_size()) {
      const auto count = static_cast<size_t>(std::min(p.group_size(), p.inputs - begin));
      visit(std::span(p.weight).subspan(static_cast<size_t>(o * p.inputs + begin), count));
    }
  }
}

// No code and no scale of a case hangs on rounding, but for exact ties.
TEST(TernaryLinearGate, DecisionsKeepTheirDistance) {
  for (const uint64_t seed : {1, 2, 3}) {
    for (const CaseSpec& spec : task().plan(seed, true).cases) {
      if (spec.family == "bad_input" || spec.family == "exact" || spec.family == "halfway")
        continue;
      const Problem p = ternary_linear::make_problem(spec);
      each_group(p, [&](std::span<const float> group) {
        const double scale = ternary_linear::scale_of(group, p.absmax);
        for (const float w : group) {
          const double twice = 2 * std::abs(static_cast<double>(w));
          EXPECT_TRUE(scale == 0 || std::abs(twice - scale) > 1e-4 * scale) << format_spec(spec);
        }
        EXPECT_EQ(ternary_linear::stored_scale(scale * (1 - 2e-5)),
                  ternary_linear::stored_scale(scale * (1 + 2e-5)))
            << format_spec(spec) << " " << scale;
      });
    }
  }
}

using families::between;
using families::Fits;

Fits says(const std::function<bool(const Problem&, const Projected&)>& fits) {
  return [=](const Case& c) {
    const Problem p = ternary_linear::make_problem(c.spec);
    return fits(p, ternary_linear::project(p));
  };
}

// All scales, those of groups of zeros apart, are in this range.
Fits scales_in(double least, double most) {
  return says([=](const Problem&, const Projected& w) {
    return std::ranges::all_of(w.scales, [=](float s) {
      return s == 0 || (static_cast<double>(s) >= least && static_cast<double>(s) <= most);
    });
  });
}

bool has_tie(const Problem& p, const Projected&) {
  bool found = false;
  each_group(p, [&](std::span<const float> group) {
    const double scale = ternary_linear::scale_of(group, p.absmax);
    for (const float w : group) {
      found = found || (w != 0 && 2 * std::abs(static_cast<double>(w)) == scale);
    }
  });
  return found;
}

TEST(Families, OfTernaryLinear) {
  const Fits any = [](const Case&) { return true; };
  families::expect_fits(
      "ternary_linear",
      {{"nominal",  // the mean of a few weights may be anything
        [](const Case& c) { return families::at(c, "inputs") < 16 || scales_in(0.005, 0.2)(c); }},
       {"sizes", any},
       {"odd_groups", says([](const Problem& p, const auto&) { return p.inputs % p.group != 0; })},
       {"constant", says([](const Problem& p, const auto&) {
          return p.inputs % p.group <= 2 &&
                 std::ranges::all_of(p.weight, [](float w) { return w == 0.02F; });
        })},
       {"absmax", between("absmax", 1, 1)},
       {"int8", between("int8", 1, 1)},
       {"row_scales", between("group", 0, 0)},
       {"no_rows", between("rows", 0, 0)},
       {"one_row", between("rows", 1, 1)},
       {"many_rows", between("rows", 100, 1 << 16)},
       {"wide", between("inputs", 5000, 1 << 20)},
       {"tall", between("outputs", 2000, 1 << 20)},
       {"heavy_tails", families::heavy("weight")},
       {"one_sided", says([](const Problem& p, const auto&) {
          return std::ranges::all_of(p.weight, [](float w) { return w > 0; });
        })},
       {"sparse", says([](const Problem& p, const auto&) {
          return p.inputs < 64 || 2 * std::ranges::count(p.weight, 0.0F) > std::ssize(p.weight);
        })},
       {"tiny", scales_in(0x1p-24, 0x1p-24)},
       {"denormal", says([](const Problem& p, const auto&) {
          return std::ranges::all_of(p.weight, [](float w) { return std::abs(w) < 0x1p-126F; });
        })},
       {"small_scales", scales_in(0x1p-24, 0.99 * 0x1p-14)},
       {"huge", scales_in(65504, 65504)},
       {"zero_groups", says([](const Problem&, const Projected& w) {
          return std::ranges::count(w.scales, 0.0F) > 0;
        })},
       {"alike", says([](const Problem& p, const auto& w) {
          const auto begin = w.codes.begin();
          const auto groups = static_cast<size_t>(p.groups());
          return std::equal(begin, begin + p.inputs, begin + p.inputs) &&
                 w.scales[groups] == 2 * w.scales[0];
        })},
       {"zero_rows", families::has("x", [](float v) { return v == 0; })},
       {"outlier_rows", families::magnitude("x", 300, 300)},
       {"scaled_rows",
        [](const Case& c) {
          const Problem p = ternary_linear::make_problem(c.spec);
          bool low = false;
          bool high = false;
          for (int64_t r = 0; r < p.rows; ++r) {
            float most = 0;
            for (int64_t i = 0; i < p.inputs; ++i) {
              most = std::max(most, std::abs(p.x[static_cast<size_t>(r * p.inputs + i)]));
            }
            low = low || most < 1e-28F;
            high = high || most > 1e28F;
          }
          // A size that is given is that of rows between ordinary ones.
          return parameter_or(c.spec, "tens", 0) == 0 ? low && high : low != high;
        }},
       {"padding", any},
       {"exact", says(has_tie)},
       {"halfway", says([](const Problem& p, const auto&) {
          bool halfway = true;
          each_group(p, [&](std::span<const float> group) {
            const double s = ternary_linear::scale_of(group, p.absmax);
            halfway = halfway && ternary_linear::stored_scale(s * (1 - 1e-6)) !=
                                     ternary_linear::stored_scale(s * (1 + 1e-6));
          });
          return halfway;
        })},
       {"bad_input", any}});
}

}  // namespace
}  // namespace touchstone::judge
