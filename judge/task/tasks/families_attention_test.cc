// The data of every family of the attention tasks and of the cache has what its title says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "judge/task/compare.h"
#include "judge/task/generate.h"
#include "judge/task/tasks/families_test_support.h"

namespace touchstone::judge {
namespace {

using families::amplified_end;
using families::at;
using families::between;
using families::expect_fits;
using families::Fits;
using families::has;
using families::heavy;
using families::is_nan;
using families::largest;
using families::of_power;
using families::ordinary;
using families::root_mean_square;
using families::values_of;

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
  const auto end_over_start = [](const Case& c) {
    const std::vector<double> s = first_scores(c);
    return s.size() < 2 ? 0.0 : s.back() - s.front();
  };
  const auto head = [](const Case& c) { return static_cast<size_t>(at(c, "keys") * at(c, "dim")); };
  const std::map<std::string, Fits> families = {
      {"nominal", ordinary("k")},
      {"sizes", ordinary("k")},
      {"tile_borders",
       [](const Case& c) { return ordinary("k")(c) && (at(c, "keys") + 1) % 16 <= 2; }},
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
      {"scale", of_power("v", "value10")},
      {"equal_keys", [=](const Case& c) { return most_apart(c) < 1e-3; }},
      {"zero_keys", [](const Case& c) { return largest(c, "k") == 0; }},
      {"rising_scores", [=](const Case& c) { return at(c, "keys") < 2 || end_over_start(c) > 8; }},
      {"falling_scores",
       [=](const Case& c) { return at(c, "keys") < 2 || end_over_start(c) < -8; }},
      {"last_key",
       [=](const Case& c) {
         const auto k = values_of(c, "k");
         const auto dim = static_cast<size_t>(at(c, "dim"));
         if (at(c, "keys") < 8 || dim < 16) return true;
         return root_mean_square(k.subspan(head(c) - dim, dim)) >
                2 * root_mean_square(k.first(head(c) - dim));
       }},
      {"blocks",
       [=](const Case& c) {
         return at(c, "keys") < 16 || amplified_end(values_of(c, "v"), head(c), 8);
       }},
      {"heavy_tails", heavy("k")},
      {"one_key_met",
       [](const Case& c) {
         std::vector<double> s = first_scores(c);
         std::ranges::sort(s, std::greater<>());
         return s.size() < 2 || s[0] - s[1] > 1;
       }},
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
      {"bad_arguments",
       [](const Case& c) {
         const auto whole = [&](size_t i) { return std::get<int64_t>(c.calls[0].scalars[i]); };
         return whole(5) < 1 || whole(2) < 1 || whole(1) % whole(2) != 0;
       }},
      {"huge_scores", [](const Case& c) {
         return std::ranges::all_of(first_scores(c), [](double s) { return std::fabs(s) > 3e4; });
       }}};
  expect_fits("flash_attention_forward", families);
  expect_fits("flash_attention_backward", families);
}

size_t as_size(const Scalar& scalar) { return static_cast<size_t>(std::get<int64_t>(scalar)); }

int64_t calls_of(const Case& c, const std::string& function) {
  return std::ranges::count(c.calls, function, &Call::function);
}

// Whether a call of this function has rows that fit: (sequences, tokens).
Fits has_rows(const std::string& function,
              const std::function<bool(std::span<const int32_t>, std::span<const int32_t>)>& fits) {
  return [=](const Case& c) {
    return std::ranges::any_of(c.calls, [&](const Call& call) {
      return call.function == function && fits(as_i32(call.inputs[0]), as_i32(call.inputs[1]));
    });
  };
}

// The keys of the first prompt, its first sequence and head, against the query of its last token.
std::vector<double> prompt_scores(const Case& c) {
  const auto dim = static_cast<size_t>(at(c, "head_dim"));
  const auto heads = static_cast<size_t>(at(c, "kv_heads"));
  const Call* append = nullptr;
  for (const Call& call : c.calls) {
    if (call.function == "kv_cache_append" && append == nullptr) append = &call;
    if (call.function != "kv_cache_attend" || append == nullptr) continue;
    const auto tokens = static_cast<size_t>(as_i32(append->inputs[1])[0]);
    const auto queries = static_cast<size_t>(as_i32(call.inputs[1])[0]);
    const std::span<const float> k = as_f32(append->inputs[2]), q = as_f32(call.inputs[2]);
    const size_t at_query = (queries - 1) * (q.size() / as_size(call.scalars[2]));
    std::vector<double> scores;
    for (size_t t = 0; t < tokens; ++t) {
      double s = 0;
      for (size_t d = 0; d < dim; ++d) {
        s += static_cast<double>(q[at_query + d]) * static_cast<double>(k[t * heads * dim + d]);
      }
      scores.push_back(s * std::get<double>(call.scalars[4]));
    }
    return scores;
  }
  return {};
}

TEST(Families, OfTheCache) {
  const auto spread = [](const Case& c) {
    const std::vector<double> s = prompt_scores(c);
    return s.empty() ? 0.0 : std::ranges::max(s) - std::ranges::min(s);
  };
  const auto calls = [](const std::string& function, int64_t least) {
    return [=](const Case& c) { return calls_of(c, function) >= least; };
  };
  expect_fits(
      "kv_cache",
      {{"nominal", ordinary("k")},
       {"decode_only", between("prompt", 0, 0)},
       {"chunks",
        [](const Case& c) {
          return calls_of(c, "kv_cache_append") > at(c, "layers") * (at(c, "steps") + 1) ||
                 at(c, "prompt") < 8;
        }},
       {"ragged",
        [=](const Case& c) {
          return at(c, "sequences") < 2 || at(c, "prompt") < 4 || at(c, "steps") < 3 ||
                 has_rows("kv_cache_append", [](auto, auto tokens) {
                   return std::set<int32_t>(tokens.begin(), tokens.end()).size() > 1;
                 })(c);
        }},
       {"subset",
        [=](const Case& c) {
          return at(c, "sequences") < 2 || at(c, "steps") < 3 ||
                 has_rows("kv_cache_append", [&](auto sequence, auto) {
                   return static_cast<int64_t>(sequence.size()) < at(c, "sequences");
                 })(c);
        }},
       {"apart",
        [=](const Case& c) {
          // All sequences together would fit in the place of one, and each is asked about alone.
          const int64_t most = std::get<int64_t>(c.calls[0].scalars[4]);
          return most >= at(c, "sequences") * (at(c, "prompt") + at(c, "steps")) &&
                 calls_of(c, "kv_cache_attend") ==
                     at(c, "layers") * at(c, "sequences") * (at(c, "steps") + 1);
        }},
       {"layers",
        [](const Case& c) {
          std::set<int64_t> layers;
          for (const Call& call : c.calls) {
            if (call.function == "kv_cache_append") {
              layers.insert(std::get<int64_t>(call.scalars[0]));
            }
          }
          return static_cast<int64_t>(layers.size()) == at(c, "layers");
        }},
       {"uneven_layers",
        [](const Case& c) {
          std::map<int64_t, int64_t> length;
          for (const Call& call : c.calls) {
            if (call.function == "kv_cache_append") {
              length[std::get<int64_t>(call.scalars[0])] += std::get<int64_t>(call.scalars[2]);
            }
          }
          std::set<int64_t> different;
          for (const auto& [layer, tokens] : length) different.insert(tokens);
          return at(c, "layers") < 2 || at(c, "prompt") < 8 || different.size() > 1;
        }},
       {"grouped", between("group", 2, 256)},
       {"one_kv_head", [](const Case& c) { return at(c, "kv_heads") == 1 && at(c, "group") > 1; }},
       {"page_borders", [](const Case& c) { return (at(c, "prompt") + 1) % 16 <= 2; }},
       {"sizes", ordinary("k")},
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
       {"nothing",
        has_rows("kv_cache_append", [](auto sequence, auto) { return sequence.empty(); })},
       {"equal_keys", [=](const Case& c) { return spread(c) < 1e-3; }},
       {"exact",
        [=](const Case& c) {
          const std::vector<double> s = prompt_scores(c);
          return s.size() < 2 || std::ranges::max(s) > 1.9 * static_cast<double>(at(c, "head_dim"));
        }},
       {"long_memory",
        [=](const Case& c) {
          const std::vector<double> s = prompt_scores(c);
          return s.size() < 2 || s.front() == std::ranges::max(s);
        }},
       {"scale", of_power("k", "scale10")},
       {"blocks",
        [](const Case& c) {
          const auto width =
              static_cast<size_t>(at(c, "prompt") * at(c, "kv_heads") * at(c, "head_dim"));
          return at(c, "prompt") < 8 || amplified_end(values_of(c, "v"), width, 8);
        }},
       {"rising_scores", [=](const Case& c) { return std::ranges::is_sorted(prompt_scores(c)); }},
       {"low_scores",
        [=](const Case& c) {
          return std::ranges::all_of(prompt_scores(c), [](double s) { return s < -50; });
        }},
       {"step_scores",
        [=](const Case& c) {
          return at(c, "prompt") < 2 || at(c, "head_dim") < 8 ||
                 spread(c) > 0.8 * std::fabs(static_cast<double>(at(c, "jump")));
        }},
       {"ramp_scores",
        [=](const Case& c) {
          return at(c, "prompt") < 16 || at(c, "head_dim") < 8 ||
                 spread(c) > 0.8 * std::fabs(static_cast<double>(at(c, "jump")));
        }},
       {"given_scale",
        [](const Case& c) {
          for (const Call& call : c.calls) {
            if (call.function != "kv_cache_attend") continue;
            const auto scale = static_cast<float>(static_cast<double>(at(c, "scale_milli")) / 1000);
            return std::get<double>(call.scalars[4]) == static_cast<double>(scale);
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
       {"fork_far", calls("kv_cache_fork", 1)},
       {"asked_again",
        [](const Case& c) {
          return calls_of(c, "kv_cache_attend") > at(c, "steps") &&
                 4 * calls_of(c, "kv_cache_append") < 3 * calls_of(c, "kv_cache_attend");
        }},
       {"future_nan", has("v", is_nan)},
       {"bad_calls", has_rows("kv_cache_append",
                              [](auto sequence, auto) {
                                return std::ranges::any_of(sequence,
                                                           [](int32_t i) { return i < 0; });
                              })},
       {"bytes", calls("kv_cache_bytes", 1)},
       {"int8", calls("kv_cache_create_quantised", 1)},
       {"int4", calls("kv_cache_create_quantised", 1)},
       {"large_scores", [=](const Case& c) { return at(c, "prompt") < 8 || spread(c) > 100; }},
       {"mixed", calls("kv_cache_attend", 1)},
       {"mixed_prefill", calls("kv_cache_attend", 1)}});
}

}  // namespace
}  // namespace touchstone::judge
