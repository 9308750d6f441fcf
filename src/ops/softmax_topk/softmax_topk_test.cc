// softmax_topk against the oracle: every shape, dtype, option and special value of the contract.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "ops/softmax_topk/softmax_topk_test_support.h"

namespace touchstone::test {
namespace {

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

// Sets everything optional from a running number, so that neighbors in a list differ and a failure
// can be repeated.
void rotate(TopkProblem& p, std::uint64_t choice) {
  const std::uint64_t bits = Random(99).bits(static_cast<std::int64_t>(choice));
  const auto pick = [&](int shift, std::uint64_t n) { return (bits >> shift) % n; };
  p.dtype = kDTypes[choice % 3];
  p.bias = static_cast<PerToken>(pick(0, 4) % 3);
  p.token_mask = static_cast<PerToken>(pick(8, 5) % 3);
  p.allowed_share = pick(40, 2) == 0 ? 0.5 : 0.97;
  if (pick(16, 2) == 0) p.temperature = {0.7, 1, 1.3};
  p.temperature_scale = pick(20, 3) == 0 ? 0.5 : 1;
  p.renormalize = pick(24, 3) == 0;
  p.wide_indices = pick(28, 2) == 0;
  p.extras = pick(32, 4) != 0;
  p.layout.row_gap = pick(36, 3) == 0 ? 5 : 0;
  p.layout.offset = static_cast<std::int64_t>(pick(44, 4));
  p.pattern = normal_pattern(3, choice + 1);
  p.seed = choice + 1;
}

std::vector<std::int64_t> places_for(std::int64_t vocabulary) {
  std::vector<std::int64_t> all;
  for (const std::int64_t k : {1, 2, 31, 32, 33, 64, 65, 256, 257, 1024, 2048}) {
    if (k < vocabulary) all.push_back(k);
  }
  if (vocabulary <= 60000) all.push_back(vocabulary);
  return all;
}

TEST(SoftmaxTopk, Shapes) {
  std::uint64_t choice = 0;
  for (const std::int64_t vocabulary : {1, 2, 31, 32, 33, 1000, 4095, 4097}) {
    for (const std::int64_t k : places_for(vocabulary)) {
      for (int repeat = 0; repeat < 3; ++repeat) {
        TopkProblem p{.vocabulary = vocabulary, .k = k};
        rotate(p, ++choice);
        check(p);
      }
    }
  }
}

TEST(SoftmaxTopk, Vocabularies) {
  std::uint64_t choice = 1000;
  for (const std::int64_t vocabulary : {50257, 128256, 151936}) {
    for (const std::int64_t k : places_for(sanitized_size(vocabulary, 50257))) {
      TopkProblem p{.lead = {1}, .vocabulary = vocabulary, .k = k};
      rotate(p, ++choice);
      if (kSanitized && choice % 4 != 0) continue;
      check(p);
    }
  }
}

TEST(SoftmaxTopk, MillionTokens) {
  const std::int64_t vocabulary = sanitized_size(std::int64_t{1} << 20, 1 << 17);
  for (const std::int64_t k : {1, 64, 2048}) {
    TopkProblem p{.lead = {1}, .vocabulary = vocabulary, .k = k};
    rotate(p, static_cast<std::uint64_t>(k));
    check(p);
  }
}

// The whole row in order, and its probabilities add up to 1.
TEST(SoftmaxTopk, EverythingKept) {
  for (const std::int64_t vocabulary : {1, 7, 300, 5000, 151936}) {
    TopkProblem p{.lead = {1}, .vocabulary = sanitized_size(vocabulary, vocabulary / 4 + 1)};
    p.k = p.vocabulary;
    check(p);
    const TopkData data = make_data(p);
    TopkRun run(p, data);
    for_each_runner(run.accepting(), [&](Runner& context) {
      run.run(context);
      const std::vector<double> all = run.probabilities.values();
      const double sum = std::accumulate(all.begin(), all.end(), 0.0);
      // Each is within 1e-6 + 2e-7 * distance; at distance 25 nothing is left to add.
      EXPECT_NEAR(sum, 1, 1e-6 + 2e-7 * 25);
    });
  }
}

TEST(SoftmaxTopk, RowCounts) {
  std::uint64_t choice = 2000;
  for (const std::int64_t rows : {1, 2, 131, 132, 133, 4096, 70000}) {
    for (const std::int64_t vocabulary : {8, 64, 128, 500}) {
      if (rows * vocabulary > sanitized_size(10000000, 300000)) continue;
      for (const std::int64_t k : {1, 4, 8}) {
        TopkProblem p{.lead = {rows}, .vocabulary = vocabulary, .k = k};
        rotate(p, ++choice);
        if (rows >= 4096) p.extras = choice % 2 == 0;
        if (rows * vocabulary > 1000000 && k == 4) continue;
        check(p);
      }
    }
  }
}

// As many rows as a GPU holds CTAs for, and more, 16-byte aligned and not, of every kind:
// one must not show in another.
TEST(SoftmaxTopk, ManyRowsOfEveryKind) {
  if (!on_gpu()) GTEST_SKIP() << "a row of the CPU has its memory to itself";
  const Pattern normal = normal_pattern();
  const auto pattern = [=](std::int64_t r, std::int64_t i) {
    switch (r % 7) {
      case 1:
        return i == r % 1301 ? kNan : 1.0;
      case 2:
        return i % 500 == 3 ? 2.0 : -kInfinity;
      case 3:
        return i == 700 ? kInfinity : 0.25;
      case 4:
        return 1.0;
      default:
        return normal(r, i);
    }
  };
  for (const std::int64_t rows : {500, 1700}) {
    for (const std::int64_t vocabulary : {1301, 1304}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        check({.lead = {rows},
               .vocabulary = vocabulary,
               .k = 40,
               .dtype = dtype,
               .pattern = pattern,
               .temperature = {1, 2, 1, 1, 1, 0, 1, 1, 1, 3, 1}});
      }
    }
  }
}

// Rows that lanes share, whole and not, whole tiles of them and not, of every kind: values that
// differ in their last bits only, and equal ones, are in the right order too.
TEST(SoftmaxTopk, ShortRowsOfEveryKind) {
  const Pattern normal = normal_pattern();
  const Random random(7);
  const auto pattern = [=](std::int64_t r, std::int64_t i) {
    const auto some = static_cast<double>(random.bits(r * 1024 + i) % 64);
    switch (r % 9) {
      case 1:
        return i == r % 97 ? kNan : 1.0;
      case 2:
        return i % 50 == 3 ? 2.0 : -kInfinity;
      case 3:
        return i == 70 ? kInfinity : 0.25;
      case 4:
        return 1 + some * 0x1p-22;
      case 5:
        return some < 8 ? 1 + some * 0x1p-22 : normal(r, i) / 8;
      case 6:
        return some;
      case 7:  // groups that are equal, almost equal, and above with an equal token
        if (i % 32 == 1) return 2.0;
        return i % 32 == 2 || (i % 4 == 0 && some >= 20) ? 1.5 + 0x1p-23 : i % 4 == 0 ? 1.5 : -some;
      default:
        return normal(r, i);
    }
  };
  for (const std::int64_t vocabulary : {100, 128, 256, 512, 1000, 1024}) {
    for (const DType dtype : kDTypes) {
      for (const std::int64_t rows : {1, 37, 401}) {
        check({.lead = {sanitized_size(rows, 37)},
               .vocabulary = vocabulary,
               .k = rows == 37 ? 5 : 8,
               .dtype = dtype,
               .pattern = pattern,
               .temperature = rows == 1 ? std::vector<double>{} : std::vector<double>{1, 2, 1, 0.5},
               .wide_indices = rows == 37});
      }
    }
  }
}

TEST(SoftmaxTopk, LeadingShapes) {
  for (const std::vector<std::int64_t>& lead :
       {std::vector<std::int64_t>{}, {5}, {2, 3}, {2, 1, 3}, {1, 1, 1, 1}}) {
    for (const PerToken kind : {PerToken::none, PerToken::shared, PerToken::rows}) {
      check({.lead = lead,
             .vocabulary = 100,
             .k = 7,
             .bias = kind,
             .token_mask = kind,
             .temperature = {1.5, 0.5},
             .layout = {.row_gap = lead.size() < 2 ? 3 : 0}});
    }
  }
}

// Nothing to do: nothing is written, nothing goes wrong.
TEST(SoftmaxTopk, NoRows) {
  for (const std::vector<std::int64_t>& lead : {std::vector<std::int64_t>{0}, {2, 0}, {0, 3}}) {
    const TopkProblem p{.lead = lead, .vocabulary = 10, .k = 2};
    TopkRun run(p, make_data(p));
    for_each_runner(run.accepting(), [&](Runner& context) { run.run(context); });
  }
}

// ---- order ---------------------------------------------------------------------------------

TEST(SoftmaxTopk, AllEqual) {
  for (const double value : {0.0, -7.5, 3e38, -3e38, 1e-40}) {
    for (const std::int64_t k : {1, 33, 2048, 5000}) {
      check(
          {.lead = {2}, .vocabulary = 10007, .k = k, .pattern = [=](auto, auto) { return value; }});
    }
  }
}

TEST(SoftmaxTopk, SortedEitherWay) {
  for (const double step : {-1e-3, 1e-3}) {
    for (const DType dtype : kDTypes) {
      for (const std::int64_t k : {1, 64, 300, 2048}) {
        check({.lead = {1},
               .vocabulary = 30001,
               .k = k,
               .dtype = dtype,
               .pattern = [=](auto, std::int64_t i) { return step * static_cast<double>(i); }});
      }
    }
  }
}

// 2^16 equal values, of which some are in and some are out.
TEST(SoftmaxTopk, DuplicatesAtTheBorder) {
  const std::int64_t vocabulary = sanitized_size(128256, 40000);
  const std::int64_t copies = sanitized_size(std::int64_t{1} << 16, 20000);
  for (const std::int64_t k : {64, 2048}) {
    for (const std::int64_t above : {std::int64_t{0}, k / 2, k - 1}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        check({.lead = {1},
               .vocabulary = vocabulary,
               .k = k,
               .dtype = dtype,
               .pattern = [=](auto, std::int64_t i) {
                 // An odd multiplier scatters the indices.
                 const std::int64_t place = i * 40503 % vocabulary;
                 if (place < above) return 5.0 + static_cast<double>(place % 7);
                 return place < above + copies ? 2.0 : -1.0;
               }});
      }
    }
  }
}

// All winners side by side, or all in one stripe, or around the borders of whatever tiles a kernel
// uses.
TEST(SoftmaxTopk, ClusteredMaxima) {
  const std::int64_t vocabulary = 70001;
  const auto high = [](std::int64_t i) { return 10 + 1e-3 * static_cast<double>(i % 1013); };
  for (const std::int64_t k : {8, 64, 300, 2048}) {
    for (const std::int64_t start : {std::int64_t{0}, std::int64_t{4093}, vocabulary - k}) {
      check({.lead = {1}, .vocabulary = vocabulary, .k = k, .pattern = [=](auto, std::int64_t i) {
               return i >= start && i < start + k ? high(i) : -1e-4 * static_cast<double>(i % 777);
             }});
    }
    for (const std::int64_t stripe : {16, 32, 128, 256, 1024}) {
      check({.lead = {1}, .vocabulary = vocabulary, .k = k, .pattern = [=](auto, std::int64_t i) {
               return i % stripe == 5 ? high(i) : -1e-4 * static_cast<double>(i % 777);
             }});
    }
  }
}

TEST(SoftmaxTopk, MaximaAtTileBorders) {
  const std::int64_t vocabulary = 3 * 8192 + 17;
  for (const std::int64_t tile : {32, 64, 128, 512, 1024, 2048, 4096, 8192}) {
    for (const DType dtype : kDTypes) {
      check({.lead = {1},
             .vocabulary = vocabulary,
             .k = 9,
             .dtype = dtype,
             .pattern = [=](auto, std::int64_t i) {
               const std::int64_t off =
                   (i + 1) % tile;  // 0, 1, 2: one before a border to one after
               const bool last = i + 2 * tile > vocabulary;
               return off <= 2 && last ? 8.0 + static_cast<double>(off) : 0.0;
             }});
    }
  }
}

// Winners closer together than any digit of a radix sort can tell, below one that is far away.
TEST(SoftmaxTopk, OneFarAboveACrowd) {
  for (const double far : {3e38, 2.0}) {
    for (const std::int64_t k : {200, 2048, 20000}) {
      check({.lead = {1}, .vocabulary = 20000, .k = k, .pattern = [=](auto, std::int64_t i) {
               // An odd multiplier scatters the indices.
               return i == 777 ? far : 1 + 0x1p-23 * static_cast<double>(i * 7919 % 20000);
             }});
    }
  }
}

// Winners that thin out evenly, that do not, and in crowds that lie far apart.
TEST(SoftmaxTopk, CrowdsOfWinners) {
  const Pattern normal = normal_pattern();
  const std::int64_t vocabulary = sanitized_size(128256, 40000);
  for (const double apart : {0.0, 30.0, 1e6, 2e38}) {
    for (const std::int64_t k : {150, 2048, 5000, 8000}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        check({.lead = {1},
               .vocabulary = vocabulary,
               .k = k,
               .dtype = dtype,
               .pattern = [=](std::int64_t r, std::int64_t i) {
                 // Every other winner of 2048, or of as many as there are.
                 return normal(r, i) + (i % 125 == 3 ? apart : 0);
               }});
      }
    }
  }
}

// One large value at every index of a row that has tails of every kind.
TEST(SoftmaxTopk, OneWinnerAnywhere) {
  const std::int64_t vocabulary = 4096 + 128 + 16 + 5;
  for (std::int64_t at = 0; at < vocabulary; at += kSanitized ? 83 : 7) {
    check({.lead = {1}, .vocabulary = vocabulary, .k = 2, .pattern = [=](auto, std::int64_t i) {
             return i == at ? 4.0 : -static_cast<double>(i % 11);
           }});
  }
}

// -0 equals +0: the earlier token wins.
TEST(SoftmaxTopk, ZerosOfBothSigns) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t k : {3, 100, 700}) {
      check(
          {.lead = {2}, .vocabulary = 1000, .k = k, .dtype = dtype, .pattern = [](auto r, auto i) {
             return i % 3 == 0 ? -1.0 : ((i + r) % 2 == 0 ? 0.0 : -0.0);
           }});
    }
  }
}

// Two legal temperatures have a legal product, also where f64 does not hold it.
TEST(SoftmaxTopk, ProductsOfTemperaturesBeyondDoubles) {
  struct Case {
    double own, scale;
    double as;  // a temperature of the same results
  };
  for (const Case& c : {Case{1e-30, 1e-300, 0x1p-1000}, Case{1e30, 1e300, 0x1p1000},
                        Case{0.25, 5e-324, 0x1p-1000}}) {
    for (const std::int64_t vocabulary : {5, 900, 20000}) {
      TopkProblem p{.vocabulary = vocabulary, .k = 3, .temperature = {c.own}};
      p.temperature_scale = c.scale;
      SCOPED_TRACE(p.describe());
      TopkData data = make_data(p);
      data.temperature.assign(data.temperature.size(), c.as);
      const auto expected = expected_rows(p, data);
      TopkRun run(p, data);
      for_each_runner(run.accepting(), [&](Runner& context) {
        run.run(context);
        expect_matches(p, data, run, expected);
      });
    }
  }
}

// Temperature never reorders, even where it makes probabilities equal.
TEST(SoftmaxTopk, TemperatureKeepsTheOrder) {
  for (const double temperature : {1e-30, 1e-3, 0.01, 100.0, 1e6, 1e30, 1e38}) {
    check({.vocabulary = 3000, .k = 50, .temperature_scale = temperature});
    check({.vocabulary = 3000, .k = 50, .temperature = {temperature}});
  }
  // Products beyond f32, and beyond where 1 / T is a number of f32.
  check({.vocabulary = 100, .k = 9, .temperature = {1e-38, 1e38}, .temperature_scale = 1e-10});
  check({.vocabulary = 100, .k = 9, .temperature = {1e-38, 1e38}, .temperature_scale = 1e10});
}

// ---- numbers -------------------------------------------------------------------------------

TEST(SoftmaxTopk, LargeAndSmallLogits) {
  for (const double scale : {1e4, 1e6, 3e37, 1e-3, 1e-40}) {
    for (const std::int64_t vocabulary : {50, 9000}) {
      for (const double temperature : {1.0, 0.02, 5e3}) {
        check({.lead = {2},
               .vocabulary = vocabulary,
               .k = 40,
               .pattern = normal_pattern(scale, 3),
               .temperature_scale = temperature});
      }
    }
  }
}

// The ends of the range beside each other, with temperatures that make the distance matter.
TEST(SoftmaxTopk, EndsOfTheRange) {
  for (const double temperature : {1.0, 1e38, 1e30}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      check({.lead = {2},
             .vocabulary = 6000,
             .k = 64,
             .dtype = dtype,
             .pattern =
                 [](std::int64_t r, std::int64_t i) {
                   return (i % 2 == r ? 3e38 : -3e38) * (1 - 1e-2 * static_cast<double>(i % 5));
                 },
             .temperature_scale = temperature});
    }
  }
}

// A common shift of 1e4 costs nothing: neighbors on the grid of f32 keep their distance.
TEST(SoftmaxTopk, LargeCommonShift) {
  for (const double shift : {-1e4, 1e4, 2e5, -3e6}) {
    check({.vocabulary = 5000, .k = 100, .pattern = [=](std::int64_t r, std::int64_t i) {
             return shift + 2 * Random(static_cast<std::uint64_t>(r + 3)).normal(i);
           }});
  }
}

// Probabilities down to the smallest subnormal, and 0 below.
TEST(SoftmaxTopk, VerySmallProbabilities) {
  check({.lead = {1}, .vocabulary = 300, .k = 300, .pattern = [](auto, std::int64_t i) {
           return -0.5 * static_cast<double>(i);
         }});
}

// ---- special values -----------------------------------------------------------------------

TEST(SoftmaxTopk, Infinities) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t count : {1, 3, 40}) {
      for (const bool renormalize : {false, true}) {
        check({.lead = {2},
               .vocabulary = 5000,
               .k = 20,
               .dtype = dtype,
               .pattern =
                   [=](std::int64_t r, std::int64_t i) {
                     return i % 100 == 7 + r && i / 100 < count ? kInfinity
                                                                : -0.01 * static_cast<double>(i);
                   },
               .renormalize = renormalize});
      }
    }
  }
}

// f16 has nothing above 65504 but infinity, and f32 sums may overflow into it.
TEST(SoftmaxTopk, OverflowIsInfinity) {
  check({.vocabulary = 700, .k = 10, .dtype = DType::f16, .pattern = [](auto r, std::int64_t i) {
           return i == 300 + r || i == 5 ? 70000.0 : 65504.0 - 32.0 * static_cast<double>(i % 50);
         }});
  TopkProblem p{.vocabulary = 700, .k = 10, .bias = PerToken::rows};
  p.pattern = [](auto, std::int64_t i) { return i == 123 ? 3e38 : 0.0; };
  TopkData data = make_data(p);
  data.bias[123] = static_cast<double>(3e38F);
  const auto expected = expected_rows(p, data);
  ASSERT_TRUE(expected[0].has_infinity);
  TopkRun run(p, data);
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    expect_matches(p, data, run, expected);
  });
}

TEST(SoftmaxTopk, MaskedTokens) {
  for (const std::int64_t vocabulary : {9, 40, 10000}) {
    for (const std::int64_t k : {1, 9}) {
      for (const std::int64_t live : {0, 1, 2, 5}) {
        for (const bool renormalize : {false, true}) {
          check({.lead = {3},
                 .vocabulary = vocabulary,
                 .k = k,
                 .dtype = kDTypes[live % 3],
                 .pattern =
                     [=](std::int64_t r, std::int64_t i) {
                       return (i + r) % vocabulary * 7 / vocabulary >= 7 - live && i % 2 == 0
                                  ? static_cast<double>(i % 5)
                                  : -kInfinity;
                     },
                 .renormalize = renormalize});
        }
      }
    }
  }
}

// The mask bits, down to one token per row and to none.
TEST(SoftmaxTopk, AllowedTokens) {
  for (const std::int64_t vocabulary : {1, 31, 32, 33, 65, 1000, 9001}) {
    for (const double share : {0.0, 0.002, 0.3, 1.0}) {
      for (const PerToken kind : {PerToken::shared, PerToken::rows}) {
        TopkProblem p{.vocabulary = vocabulary, .k = std::min<std::int64_t>(vocabulary, 20)};
        p.token_mask = kind;
        p.allowed_share = share;
        p.dtype = kDTypes[vocabulary % 3];
        check(p);
      }
    }
  }
}

// A token that is not token_mask may hold anything.
TEST(SoftmaxTopk, BannedNanIsNoNan) {
  TopkProblem p{.vocabulary = 3000, .k = 20, .token_mask = PerToken::rows};
  TopkData data = make_data(p);
  for (std::size_t i = 0; i < data.logits.size(); ++i) {
    if (data.banned[i] != 0) data.logits[i] = i % 2 == 0 ? kNan : kInfinity;
  }
  const auto expected = expected_rows(p, data);
  ASSERT_FALSE(expected[0].has_nan);
  TopkRun run(p, data);
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    expect_matches(p, data, run, expected);
  });
}

// NaN at any index spoils its own row, and only that.
TEST(SoftmaxTopk, Nan) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t vocabulary : {1, 16, 37, 5003}) {
      for (const double background : {0.5, -kInfinity, kInfinity}) {
        for (const std::int64_t at : {std::int64_t{0}, vocabulary / 2, vocabulary - 1}) {
          check({.lead = {3},
                 .vocabulary = vocabulary,
                 .k = std::min<std::int64_t>(vocabulary, 5),
                 .dtype = dtype,
                 .pattern = [=](std::int64_t r, std::int64_t i) {
                   return r == 1 && i == at ? kNan : background;
                 }});
        }
      }
    }
  }
}

// inf - inf inside the sum of logit and bias.
TEST(SoftmaxTopk, NanFromTheBias) {
  TopkProblem p{.vocabulary = 700, .k = 10, .bias = PerToken::shared};
  p.pattern = [](std::int64_t r, std::int64_t i) { return i == 600 && r == 2 ? kInfinity : 1.0; };
  TopkData data = make_data(p);
  for (std::size_t r = 0; r < 3; ++r) data.bias[r * 700 + 600] = -kInfinity;
  const auto expected = expected_rows(p, data);
  ASSERT_TRUE(expected[2].has_nan && !expected[1].has_nan);
  TopkRun run(p, data);
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    expect_matches(p, data, run, expected);
  });
}

TEST(SoftmaxTopk, BadTemperatures) {
  for (const double bad : {0.0, -1.0, -0.0, kNan, kInfinity, -kInfinity}) {
    check({.lead = {5},
           .vocabulary = 200,
           .k = 3,
           .pattern = [](std::int64_t r, std::int64_t i) { return r == 3 && i == 0 ? kNan : 1.0; },
           .temperature = {1, bad, 2, bad}});
  }
}

}  // namespace
}  // namespace touchstone::test
