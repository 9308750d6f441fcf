// The data of every family has what its title says, and a contender that lacks one thing loses no
// probe about another.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "judge/task/compare.h"
#include "judge/task/generate.h"
#include "judge/task/task.h"
#include "judge/task/tasks/registry.h"

namespace touchstone::judge {
namespace {

using Fits = std::function<bool(const Case&)>;
using Number = std::function<bool(float)>;

std::span<const float> values_of(const Case& c, const std::string& name) {
  for (const Call& call : c.calls) {
    for (const InputTensor& input : call.inputs) {
      if (input.name == name && !input.data.empty()) return as_f32(input);
    }
  }
  return {};
}

int64_t count_of(const Case& c, const std::string& name, const Number& fits) {
  return std::ranges::count_if(values_of(c, name), fits);
}
int64_t at(const Case& c, const std::string& name) { return parameter_or(c.spec, name, 0); }
double largest(const Case& c, const std::string& name) {
  double most = 0;
  for (const float v : values_of(c, name)) {
    if (std::isfinite(v)) most = std::max(most, std::fabs(static_cast<double>(v)));
  }
  return most;
}

bool is_negative_zero(float v) { return std::bit_cast<uint32_t>(v) == 0x80000000U; }
bool is_masked(float v) { return v == -std::numeric_limits<float>::infinity(); }
bool is_lowest(float v) { return v == -std::numeric_limits<float>::max(); }
bool is_subnormal(float v) { return std::fpclassify(v) == FP_SUBNORMAL; }
bool is_nan(float v) { return std::isnan(v); }

Fits has(const std::string& name, const Number& fits) {
  return [=](const Case& c) { return count_of(c, name, fits) > 0; };
}
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
Fits between(const std::string& parameter, int64_t least, int64_t most) {
  return [=](const Case& c) { return at(c, parameter) >= least && at(c, parameter) <= most; };
}
Fits magnitude(const std::string& name, double least, double most) {
  return [=](const Case& c) { return largest(c, name) >= least && largest(c, name) <= most; };
}
Fits any_case() {
  return [](const Case&) { return true; };
}

// Each case of a family must fit; `somewhere` families need one such case.
void expect_fits(const std::string& id, const std::map<std::string, Fits>& families) {
  const Task& task = find_task(id);
  std::set<std::string> asked;
  for (const uint64_t seed : {3U, 4U}) {
    for (const CaseSpec& spec : task.plan(seed, true).cases) {
      asked.insert(spec.family);
      const auto family = families.find(spec.family);
      if (family == families.end()) {
        ADD_FAILURE() << id << ": nothing is known of " << spec.family;
        continue;
      }
      EXPECT_TRUE(family->second(task.build(spec))) << id << ": " << format_spec(spec);
    }
  }
  for (const auto& [family, fits] : families) {
    EXPECT_TRUE(asked.contains(family) || family.starts_with("mixed")) << family;
  }
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
      {{"nominal", any_case()},
       {"sizes", any_case()},
       {"no_rows", between("rows", 0, 0)},
       {"k_one", between("k", 1, 1)},
       {"k_all", [](const Case& c) { return at(c, "k") == at(c, "vocab"); }},
       {"k_large", between("k", 32, 1 << 20)},
       {"scale", any_case()},
       {"heavy_tails",
        [](const Case& c) { return at(c, "vocab") < 64 || largest(c, "logits") > 4; }},
       {"blocks", any_case()},
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
       {"near_ties", any_case()},
       {"ascending", [](const Case& c) { return rising(c, true); }},
       {"descending", [](const Case& c) { return rising(c, false); }},
       {"clustered", any_case()},
       {"one_tile", any_case()},
       {"last_tile",
        best_at([](const Case& c, int64_t i) { return i >= at(c, "vocab") - at(c, "k") - 2; })},
       {"tile_borders",
        best_at([](const Case&, int64_t i) { return i % 128 == 0 || i % 128 == 127; })},
       {"one_hot", any_case()},
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
      {{"nominal", any_case()},
       {"sizes", any_case()},
       {"no_rows", between("rows", 0, 0)},
       {"scale", any_case()},
       {"gradient_scale", any_case()},
       {"heavy_tails", any_case()},
       {"blocks", any_case()},
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
       {"parallel_gradient", any_case()},
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

// The scores of the first query, in exact arithmetic.
std::vector<double> first_scores(const Case& c) {
  const std::span<const float> q = values_of(c, "q"), k = values_of(c, "k");
  const auto dim = static_cast<size_t>(at(c, "dim"));
  std::vector<double> scores;
  const auto keys = static_cast<size_t>(at(c, "keys"));
  for (size_t t = 0; t < keys && !q.empty() && k.size() >= (t + 1) * dim; ++t) {
    double s = 0;
    for (size_t d = 0; d < dim; ++d) {
      s += static_cast<double>(q[d]) * static_cast<double>(k[t * dim + d]);
    }
    scores.push_back(s * std::get<double>(c.calls[0].scalars[7]));
  }
  return scores;
}

TEST(Families, OfAttention) {
  const auto most_apart = [](const Case& c) {
    const std::vector<double> s = first_scores(c);
    if (s.size() < 2) return 0.0;
    const auto [least, most] = std::ranges::minmax(s);
    return most - least;
  };
  const auto biggest_step = [](const Case& c) {
    const std::vector<double> s = first_scores(c);
    double step = 0;
    for (size_t t = 1; t < s.size(); ++t) step = std::max(step, std::fabs(s[t] - s[t - 1]));
    return step;
  };
  const auto jump_of = [](const Case& c) { return std::fabs(static_cast<double>(at(c, "jump"))); };
  const auto scores_near = [](double least, double most) {
    return [=](const Case& c) {
      return std::ranges::all_of(first_scores(c), [=](double s) { return s > least && s < most; });
    };
  };
  const std::map<std::string, Fits> families = {
      {"nominal", any_case()},
      {"sizes", any_case()},
      {"tile_borders", any_case()},
      {"one_query", between("queries", 1, 1)},
      {"one_key", between("keys", 1, 1)},
      {"nothing", [](const Case& c) { return at(c, "batch") * at(c, "queries") == 0; }},
      {"no_keys", between("keys", 0, 0)},
      {"long", between("keys", 700, 1 << 16)},
      {"causal",
       [](const Case& c) { return at(c, "causal") == 1 && at(c, "queries") == at(c, "keys"); }},
      {"causal_short",
       [](const Case& c) { return at(c, "causal") == 1 && at(c, "queries") < at(c, "keys"); }},
      {"sees_nothing",
       [](const Case& c) { return at(c, "causal") == 1 && at(c, "queries") > at(c, "keys"); }},
      {"grouped", between("group", 2, 256)},
      {"one_kv_head", [](const Case& c) { return at(c, "kv_heads") == 1 && at(c, "group") > 1; }},
      {"given_scale",
       [](const Case& c) {
         return std::fabs(std::get<double>(c.calls[0].scalars[7]) -
                          1 / std::sqrt(static_cast<double>(at(c, "dim")))) > 0 ||
                c.spec.parameters.contains("scale_milli") || c.spec.parameters.contains("scale2");
       }},
      {"scale", any_case()},
      {"equal_keys", [=](const Case& c) { return most_apart(c) < 1e-3; }},
      {"zero_keys", [](const Case& c) { return largest(c, "k") == 0; }},
      {"rising_scores", any_case()},
      {"falling_scores", any_case()},
      {"last_key", any_case()},
      {"blocks", any_case()},
      {"heavy_tails", any_case()},
      {"one_key_met", any_case()},
      {"offset_values", [](const Case& c) { return at(c, "keys") == 0 || largest(c, "v") > 25; }},
      {"large_scores",
       [=](const Case& c) { return at(c, "keys") < 8 || at(c, "dim") < 8 || most_apart(c) > 50; }},
      {"low_scores", scores_near(-250, -40)},
      {"step_scores",
       [=](const Case& c) {
         return at(c, "keys") < 2 || at(c, "dim") < 16 || biggest_step(c) > 0.8 * jump_of(c);
       }},
      {"ramp_scores",
       [=](const Case& c) {
         return at(c, "keys") < 32 || at(c, "dim") < 16 ||
                (most_apart(c) > 0.8 * jump_of(c) && biggest_step(c) < 0.5 * jump_of(c));
       }},
      {"future_nan", has("k", is_nan)},
      {"bad_arguments", any_case()},
      {"huge_scores", [](const Case& c) {
         return std::ranges::all_of(first_scores(c), [](double s) { return std::fabs(s) > 3e4; });
       }}};
  expect_fits("flash_attention_forward", families);
  expect_fits("flash_attention_backward", families);
}

int64_t calls_of(const Case& c, const std::string& function) {
  return std::ranges::count(c.calls, function, &Call::function);
}

TEST(Families, OfTheCache) {
  const auto calls = [](const std::string& function, int64_t least) {
    return [=](const Case& c) { return calls_of(c, function) >= least; };
  };
  expect_fits(
      "kv_cache",
      {{"nominal", any_case()},
       {"decode_only", between("prompt", 0, 0)},
       {"chunks", any_case()},
       {"ragged", any_case()},
       {"subset", any_case()},
       {"layers", any_case()},
       {"uneven_layers", any_case()},
       {"grouped", between("group", 2, 256)},
       {"one_kv_head", [](const Case& c) { return at(c, "kv_heads") == 1 && at(c, "group") > 1; }},
       {"page_borders", any_case()},
       {"sizes", any_case()},
       {"reuse",
        [](const Case& c) { return at(c, "steps") == 0 || calls_of(c, "kv_cache_free") > 0; }},
       {"full", calls("kv_cache_free", 1)},
       {"two_caches", calls("kv_cache_create", 2)},
       {"many_caches",
        [](const Case& c) { return calls_of(c, "kv_cache_create") > at(c, "alive"); }},
       {"changing_calls",
        [](const Case& c) {
          std::set<double> scales;
          for (const Call& call : c.calls) {
            if (call.function == "kv_cache_attend") {
              scales.insert(std::get<double>(call.scalars[4]));
            }
          }
          return scales.size() > 1;
        }},
       {"nothing", any_case()},
       {"equal_keys", any_case()},
       {"exact", any_case()},
       {"long_memory", any_case()},
       {"scale", any_case()},
       {"blocks", any_case()},
       {"rising_scores", any_case()},
       {"low_scores", any_case()},
       {"step_scores", [](const Case& c) { return c.spec.parameters.contains("jump"); }},
       {"ramp_scores", [](const Case& c) { return c.spec.parameters.contains("jump"); }},
       {"given_scale",
        [](const Case& c) {
          for (const Call& call : c.calls) {
            if (call.function != "kv_cache_attend") continue;
            const auto milli = static_cast<double>(at(c, "scale_milli"));
            return std::fabs(std::get<double>(call.scalars[4]) - milli / 1000) < 1e-6;
          }
          return false;
        }},
       {"wander",
        [](const Case& c) { return at(c, "steps") < 20 || calls_of(c, "kv_cache_free") > 0; }},
       {"wander_forks",
        [](const Case& c) {
          return calls_of(c, "kv_cache_fork") > 4 && calls_of(c, "kv_cache_free") > 0;
        }},
       {"other_nan", has("v", is_nan)},
       {"fork", calls("kv_cache_fork", 1)},
       {"future_nan", has("v", is_nan)},
       {"bad_calls", any_case()},
       {"bytes", calls("kv_cache_bytes", 1)},
       {"int8", calls("kv_cache_create_quantised", 1)},
       {"int4", calls("kv_cache_create_quantised", 1)},
       {"large_scores", any_case()},
       {"mixed", any_case()},
       {"mixed_prefill", any_case()}});
}

// Of each family and each kind of relation, the cases that need least besides what the probe is about.
std::set<std::string> probes_lost(const Task& task, const std::string& lacked, bool small) {
  const Plan plan = task.plan(5, small);
  const auto needs = [&](const CaseSpec& spec, const std::string& probe) {
    return std::ranges::count_if(task.card().lacks, [&](const Feature& f) {
      return f.probe != probe && f.where.holds(spec);
    });
  };
  const auto& feature = *std::ranges::find(task.card().lacks, lacked, &Feature::id);
  std::set<std::string> lost;
  for (const Probe& probe : task.card().probes) {
    std::map<std::string, std::pair<int64_t, bool>> kinds;  // least, and whether it needs the lack
    const auto look = [&](const std::string& kind, const CaseSpec& spec,
                          const std::vector<std::string>& probes) {
      if (std::ranges::find(probes, probe.id) == probes.end()) return;
      const int64_t besides = needs(spec, probe.id);
      const auto [known, first] = kinds.try_emplace(kind, besides, false);
      if (besides < known->second.first) known->second = {besides, false};
      if (besides == known->second.first) {
        known->second.second = known->second.second || feature.where.holds(spec);
      }
    };
    for (const CaseSpec& spec : plan.cases) look(spec.family, spec, task.probes_of(spec));
    for (const Relation& r : plan.relations) look("@" + r.id, r.first, task.probes_of(r));
    for (const auto& [kind, state] : kinds) {
      if (state.second) lost.insert(probe.id);
    }
  }
  return lost;
}

TEST(PlainCases, ALackCostsItsOwnProbeOnly) {
  const std::vector<std::pair<std::string, std::set<std::string>>> expected = {
      {"grouped_heads", {"grouped_heads"}},
      {"large_heads", {"any_size"}},
      {"odd_head_size", {"any_size"}},
      {"k_above_32", {"any_k", "small_probabilities"}},
      {"odd_vocabulary", {"any_size"}},
      {"odd_columns", {"any_size"}},
      {"wide", {"long_sums"}},
      {"several_layers", {"layers"}},
      {"several_kv_heads", {"refuses_bad_arguments"}}};
  for (const auto& task : tasks()) {
    for (const bool small : {true, false}) {
      for (const auto& [id, probes] : expected) {
        if (std::ranges::find(task->card().lacks, id, &Feature::id) == task->card().lacks.end()) {
          continue;
        }
        for (const std::string& lost : probes_lost(*task, id, small)) {
          EXPECT_TRUE(probes.contains(lost)) << task->card().id << ": " << id << " costs " << lost;
        }
      }
    }
  }
}

}  // namespace
}  // namespace touchstone::judge
