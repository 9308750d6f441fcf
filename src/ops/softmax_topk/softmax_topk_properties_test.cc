// What must hold whatever the numbers are: the same bits for any batch, split, alignment and
// stride; random problems against the sort; contexts that share nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>
#include <utility>

#include "ops/softmax_topk/softmax_topk_test_support.h"
#include "tests/support/run_log.h"

namespace touchstone::test {
namespace {

std::vector<std::string> every_implementation(const TopkProblem& p) {
  return TopkRun(p, make_data(p)).accepting();
}

// Row r of the data, as data of one row.
TopkData one_row(const TopkProblem& p, const TopkData& data, std::int64_t row) {
  const auto cut = [&](const auto& all, std::int64_t cols) {
    if (all.empty()) return all;
    using Values = std::decay_t<decltype(all)>;
    return Values(all.begin() + row * cols, all.begin() + (row + 1) * cols);
  };
  return {.logits = cut(data.logits, p.vocabulary),
          .bias = cut(data.bias, p.vocabulary),
          .banned = cut(data.banned, p.vocabulary),
          .temperature = cut(data.temperature, 1),
          .own_temperature = cut(data.own_temperature, 1)};
}

std::vector<TopkProblem> different_problems() {
  return {
      {.lead = {5}, .vocabulary = 50257, .k = 64},
      {.lead = {3}, .vocabulary = 33333, .k = 2048, .dtype = DType::bf16},
      {.lead = {7}, .vocabulary = 20000, .k = 1, .dtype = DType::f16, .temperature = {0.5, 2}},
      {.lead = {40}, .vocabulary = 128, .k = 8, .dtype = DType::bf16},
      {.lead = {37}, .vocabulary = 256, .k = 8},
      {.lead = {13}, .vocabulary = 1024, .k = 8, .dtype = DType::f16},
      {.lead = {9}, .vocabulary = 1000, .k = 1000, .bias = PerToken::rows},
      {.lead = {4},
       .vocabulary = 30000,
       .k = 300,
       .bias = PerToken::shared,
       .token_mask = PerToken::rows,
       .temperature = {0.9, 1.1, 1.2},
       .renormalize = true,
       .wide_indices = true},
  };
}

// A row alone has the bits it has in company; of every so many rows.
void expect_same_alone(const TopkProblem& p, std::int64_t step) {
  SCOPED_TRACE(p.describe());
  const TopkData data = make_data(p);
  TopkRun together(p, data);
  for_each_runner(together.accepting(), [&](Runner& context) {
    together.run(context);
    const std::vector<double> tokens = together.indices.values();
    const std::vector<std::byte> probabilities = together.probabilities.bytes();
    const std::vector<std::byte> logs = together.log_probabilities.bytes();
    const std::vector<std::byte> sums = together.log_sum_exp.bytes();
    for (std::int64_t r = 0; r < p.rows(); r += step) {
      TopkProblem q = p;
      q.lead = {1};
      TopkRun alone(q, one_row(p, data, r));
      run_like(alone, context);
      const auto part = [&](const auto& all, std::int64_t each) {
        using Values = std::decay_t<decltype(all)>;
        return Values(all.begin() + r * each, all.begin() + (r + 1) * each);
      };
      EXPECT_EQ(alone.indices.values(), part(tokens, p.k)) << "row " << r;
      EXPECT_TRUE(same_bits(alone.probabilities, part(probabilities, 4 * p.k))) << "row " << r;
      EXPECT_TRUE(same_bits(alone.log_probabilities, part(logs, 4 * p.k))) << "row " << r;
      EXPECT_TRUE(same_bits(alone.log_sum_exp, part(sums, 4))) << "row " << r;
    }
  });
}

TEST(SoftmaxTopkBits, BatchMates) {
  for (const TopkProblem& p : different_problems()) expect_same_alone(p, 1);
}

TEST(SoftmaxTopkBits, Threads) {
  if (on_gpu()) GTEST_SKIP() << "CPU threads";
  for (TopkProblem p : different_problems()) {
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{2}, p.rows()}) {
      p.lead = {rows};
      SCOPED_TRACE(p.describe());
      const TopkData data = make_data(p);
      for_each_runner(every_implementation(p), [&](Runner& context) {
        const std::string& name = context.implementation();
        const std::vector<std::byte> expected = answer_bits(p, data, name, 1);
        for (const int threads : {2, 3, 5}) {
          EXPECT_TRUE(answer_bits(p, data, name, threads) == expected) << threads << " threads";
        }
      });
    }
  }
}

TEST(SoftmaxTopkBits, AlignmentAndStride) {
  for (TopkProblem p : different_problems()) {
    const TopkData data = make_data(p);
    for_each_runner(every_implementation(p), [&](Runner& context) {
      p.layout = {};
      const std::vector<std::byte> expected = answer_bits(p, data, context.implementation(), 2);
      for (const Layout layout : {Layout{.offset = 1}, Layout{.row_gap = 1, .offset = 3},
                                  Layout{.row_gap = 64, .offset = 7}}) {
        p.layout = layout;
        EXPECT_TRUE(answer_bits(p, data, context.implementation(), 2) == expected) << p.describe();
      }
    });
  }
}

// A second run finds the scratch memory of the first.
TEST(SoftmaxTopkBits, OneContextForEverything) {
  const std::vector<TopkProblem> problems = different_problems();
  for_each_implementation(every_implementation(problems[0]), [&](Runner& shared) {
    for (int round = 0; round < 2; ++round) {
      for (const TopkProblem& p : problems) {
        const TopkData data = make_data(p);
        TopkRun run(p, data);
        run.run(shared);
        EXPECT_TRUE(run.bits() == answer_bits(p, data, shared.implementation(), kTestThreads))
            << p.describe();
      }
    }
  });
}

TEST(SoftmaxTopkBits, ContextsShareNothing) {
  const std::vector<TopkProblem> problems = different_problems();
  std::vector<TopkData> data;
  std::vector<std::vector<std::byte>> expected;
  for (const TopkProblem& p : problems) {
    data.push_back(make_data(p));
    expected.push_back(answer_bits(p, data.back(), "", 1));
  }
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < problems.size(); ++i) {
        const std::size_t at = (i + 2 * t) % problems.size();
        wrong[t] += answer_bits(problems[at], data[at], "", 2) == expected[at] ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(wrong.size(), 0));
}

// All rows are one row; rows that overlap; the bias and the mask spread over the rows the same way.
TEST(SoftmaxTopkLayout, RowsInOnePlace) {
  for (const std::int64_t stride : {0, 1, 37}) {
    TopkProblem p{.lead = {6}, .vocabulary = 4500, .k = 50, .bias = PerToken::rows};
    p.token_mask = PerToken::rows;
    TopkData data = make_data(p);
    const std::vector<double> signal =
        rounded(random_values({.scale = 3}, 6 * stride + p.vocabulary, 11), DType::f32);
    for (std::int64_t r = 0; r < 6; ++r) {
      for (std::int64_t i = 0; i < p.vocabulary; ++i) {
        const auto at = static_cast<std::size_t>(r * p.vocabulary + i);
        data.logits[at] = signal[static_cast<std::size_t>(r * stride + i)];
        data.bias[at] = data.bias[static_cast<std::size_t>(i)];
        data.banned[at] = data.banned[static_cast<std::size_t>(i)];
      }
    }
    const auto expected = expected_rows(p, data);
    const Guarded source(test_device(), DType::f32, {std::ssize(signal)}, signal);
    TopkRun run(p, data);
    run.args.logits.data = source.view().data;
    run.args.logits.stride[0] = stride;
    run.args.bias.stride[0] = 0;
    run.args.token_mask.stride[0] = 0;
    for_each_runner(run.accepting(), [&](Runner& context) {
      run.run(context);
      expect_matches(p, data, run, expected);
    });
  }
}

// The tokens of every so many rows, each a token further on in the signal.
std::vector<std::vector<double>> tokens_of_windows(TopkProblem p, const std::vector<double>& signal,
                                                   std::int64_t step) {
  const std::int64_t rows = p.rows();
  p.lead = {1};
  TopkData data = make_data(p);
  std::vector<std::vector<double>> tokens;
  for (std::int64_t r = 0; r < rows; r += step) {
    std::copy_n(signal.begin() + r, p.vocabulary, data.logits.begin());
    const oracle::SoftmaxTopkRow row = expected_rows(p, data)[0];
    tokens.emplace_back(row.tokens.begin(), row.tokens.end());
  }
  return tokens;
}

// More long rows than fit a GPU at once, each a token further on, so that they start at every
// offset from the grid. What is unusual at both ends of the tokens is in some of the rows only.
TEST(SoftmaxTopkLayout, ManyLongRowsThatOverlap) {
  if (test_device().kind != DeviceKind::cuda) GTEST_SKIP() << "rows of the CPU are all alike";
  const std::int64_t rows = sanitized_size(2300, 560);
  using Case = std::pair<DType, std::int64_t>;
  for (const auto& [dtype, k] : {Case{DType::f32, 50}, {DType::bf16, 50}, {DType::bf16, 200}}) {
    const std::int64_t vocabulary = dtype == DType::f32 ? 46001 : 50257;
    TopkProblem p{.lead = {rows}, .vocabulary = vocabulary, .k = k, .dtype = dtype};
    SCOPED_TRACE(p.describe());
    std::vector<double> signal = rounded(random_values({.scale = 3}, rows + vocabulary, 11), dtype);
    // Peaks at one offset of many segments: what is found must be found once.
    for (std::size_t i = 7; i < 30000; i += 1024) signal[i] = 14 + static_cast<double>(i % 3);
    // Where the threshold is sampled, so that its estimate is too high for large k.
    for (const std::size_t segment : {0, 1024, 6144, 7168}) {
      for (std::size_t i = 0; i < 256; i += 8) {
        signal[segment + i] = 15 + 0.25 * static_cast<double>(i / 8 % 8);
      }
    }
    signal[30] = kNan;
    signal[signal.size() - 40] = kInfinity;
    std::fill(signal.end() - 900, signal.end() - 500, 20.0);  // more than fit
    const Guarded source(test_device(), dtype, {std::ssize(signal)}, signal);
    Guarded probabilities(test_device(), DType::f32, {rows, p.k});
    Guarded indices(test_device(), DType::i32, {rows, p.k});
    Guarded log_sum_exp(test_device(), DType::f32, {rows});
    Guarded status(test_device(), DType::i32, {rows});
    ConstTensorView windows = source;
    windows.rank = 2;
    windows.shape = {rows, vocabulary};
    windows.stride = {1, 1};
    const SoftmaxTopkArgs args{.logits = windows,
                               .probabilities = probabilities,
                               .indices = indices,
                               .log_sum_exp = log_sum_exp,
                               .status = status};
    Runner context({.device = test_device()});
    const auto expected = tokens_of_windows(p, signal, 45);
    std::vector<std::byte> first;
    for (const ImplementationReport& report : explain(context, args)) {
      if (!report.accepted || report.name == "sort") continue;
      SCOPED_TRACE(report.name);
      context.set_implementation(report.name);
      for (Guarded* output : {&probabilities, &indices, &log_sum_exp, &status}) output->poison();
      softmax_topk(context, context.with(args));
      context.synchronize();
      log_ran("softmax_topk", report.name);
      const std::vector<double> tokens = indices.values();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const auto begin = tokens.begin() + static_cast<std::int64_t>(i) * 45 * p.k;
        EXPECT_EQ(std::vector<double>(begin, begin + p.k), expected[i]) << "row " << i * 45;
      }
      std::vector<std::byte> all;
      for (const Guarded* output : {&probabilities, &indices, &log_sum_exp}) {
        const std::vector<std::byte> bytes = output->bytes();
        all.insert(all.end(), bytes.begin(), bytes.end());
        EXPECT_TRUE(output->outside_intact());
      }
      for (const double word : status.values()) {
        all.push_back(
            static_cast<std::byte>(static_cast<std::int32_t>(word) & ~to_int(RowStatus::two_pass)));
      }
      if (first.empty()) first = all;
      EXPECT_TRUE(all == first) << "other bits";
      const auto read_twice = [](double word) {
        return (static_cast<std::int32_t>(word) & to_int(RowStatus::two_pass)) != 0;
      };
      // Its threshold is an estimate, which is too high for some of these rows.
      EXPECT_TRUE(report.name != "streaming_packed" ||
                  std::ranges::any_of(status.values(), read_twice));
    }
  }
}

// Rows that clusters of blocks share, two to eight of them, of every kind: right, and with the bits
// of every other way, so with those of the same row in a larger batch.
TEST(SoftmaxTopkLayout, FewLongRowsOfEveryKind) {
  if (!on_gpu()) GTEST_SKIP() << "clusters are a matter of the GPU";
  const Pattern normal = normal_pattern();
  const auto pattern = [=](std::int64_t r, std::int64_t i) {
    const double value = normal(r, i);
    switch (r % 12) {
      case 1:
        return i == 17000 ? kNan : value;
      case 2:
        return i % 997 == 3 ? 2.0 + value : -kInfinity;  // fewer than k
      case 3:
        return i % 499 == 3 ? 2.0 + value : -kInfinity;  // some more
      case 4:
        return i == 39999 ? kInfinity : value;
      case 5:
        return 1.0;
      case 6:
        return i / 50 == 300 ? 20 + value : value;  // side by side
      case 7:
        return i % 4096 / 8 == 100 ? 20 + value : value;  // in one block, in few lanes
      case 8:
        return 1e-3 * static_cast<double>(i);
      case 9:
        return 1e37 * value;
      case 10:
        return std::round(value);
      default:
        return value - 40 * static_cast<double>(r % 2);
    }
  };
  // On the grid; none ends with a whole segment.
  for (const auto& [rows, vocabulary, gap] :
       {std::array<std::int64_t, 3>{12, 151936, 0}, {26, 65528, 8}, {50, 40008, 0}}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      TopkProblem p{.lead = {rows},
                    .vocabulary = vocabulary,
                    .k = 64,
                    .dtype = dtype,
                    .pattern = pattern,
                    .temperature = {1, 2, 1, 1, 0.5, 1, 1, 1, 3, 1, 1, 1, 0},
                    .renormalize = dtype == DType::f16,
                    .layout = {.row_gap = gap}};
      check(p);
      const TopkData data = make_data(p);
      EXPECT_TRUE(answer_bits(p, data, "cluster", 1) == answer_bits(p, data, "streaming", 1))
          << p.describe();
    }
  }
}

// Large k: on a GPU with so many rows that one CTA has a row, and its candidates are packed keys.
TEST(SoftmaxTopkLayout, LargeKOfRowsOfEveryKind) {
  const std::int64_t rows = on_gpu() ? 208 : 16;
  const Pattern normal = normal_pattern();
  const auto pattern = [=](std::int64_t r, std::int64_t i) {
    const double value = normal(r, i);
    switch (r % 16) {
      case 1:
        return i == 17000 ? kNan : value;
      case 2:
        return i % 333 == 3 ? 2.0 + value : -kInfinity;  // fewer than k, or hardly more
      case 3:
        return i == 19999 ? kInfinity : value;
      case 4:
        return 1.0;
      case 5:
        return i / 2300 == 3 ? 20.0 : value;  // side by side and equal: bins are overfull
      case 6:
        return i / 2300 == 3 ? 20 + value : value;
      case 7:
        return i % 4096 / 8 == 100 ? 20 + value : value;
      case 8:
        return 1e-3 * static_cast<double>(i);
      case 9:
        return 1e37 * value;
      case 10:
        return std::round(value);
      case 11:
        return i % 2 == 0 ? 0.0 : (i % 3 == 0 ? -0.0 : -std::abs(value));
      case 12:
        return value - 6;  // a threshold below 0, values above
      case 13:
        return i % 50 == 0 ? 1e-12 * value : value - 6;  // some hardly above 0
      case 14:
        return i == 12345 ? 1e7 : -1000 + 100 * value;
      case 15:
        return i % 7 == 0 ? -1e9 + 1e8 * value : -kInfinity;
      default:
        return value;
    }
  };
  for (const std::int64_t k : {65, 257, 2048}) {
    for (const std::int64_t vocabulary : {20008, 20011}) {
      check({.lead = {rows},
             .vocabulary = vocabulary,
             .k = k,
             .dtype = DType::bf16,
             .pattern = pattern,
             .temperature = {1, 2, 1, 1, 0.5, 1, 1, 1, 3, 1, 1, 1, 0},
             .renormalize = (k + vocabulary) % 3 == 0,
             .wide_indices = vocabulary % 2 != 0,
             .extras = k % 2 != 0});
    }
  }
  const TopkProblem wide{
      .lead = {rows}, .vocabulary = 66008, .k = 300, .dtype = DType::bf16, .pattern = pattern};
  check(wide);
  expect_same_alone(wide, 13);
}

// The same for rows so short that some warps have nothing to read.
TEST(SoftmaxTopkLayout, LargeKOfShortRows) {
  const std::int64_t rows = on_gpu() ? 140 : 4;
  for (const auto& [vocabulary, k] :
       {std::array<std::int64_t, 2>{3001, 65}, {3000, 2048}, {5003, 300}}) {
    check({.lead = {rows}, .vocabulary = vocabulary, .k = k, .dtype = DType::bf16});
  }
}

// The same row many times, so long that packed keys have few bits for the value.
TEST(SoftmaxTopkLayout, OneLongRowManyTimes) {
  if (!on_gpu()) GTEST_SKIP() << "packed keys are of the GPU";
  const Pattern normal = normal_pattern();
  const std::int64_t rows = 208;
  for (const double farthest : {20.0, 1e7}) {
    TopkProblem p{.lead = {1}, .vocabulary = 300000, .k = 300, .dtype = DType::bf16};
    p.pattern = [=](auto r, std::int64_t i) {
      return i == 250000 ? farthest : -1000 + 100 * normal(r, i);
    };
    const TopkRun one(p, make_data(p));
    const oracle::SoftmaxTopkRow row = expected_rows(p, make_data(p))[0];
    Guarded probabilities(test_device(), DType::f32, {rows, p.k});
    Guarded indices(test_device(), DType::i32, {rows, p.k});
    ConstTensorView logits = one.args.logits;
    logits.shape[0] = rows;
    logits.stride[0] = 0;
    Runner context({.device = test_device()});
    softmax_topk(context, {.logits = logits,
                           .probabilities = probabilities,
                           .indices = indices,
                           .implementation = "streaming_packed"});
    context.synchronize();
    const std::vector<double> tokens = indices.values();
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::vector<double> found(tokens.begin() + r * p.k, tokens.begin() + (r + 1) * p.k);
      EXPECT_EQ(found, std::vector<double>(row.tokens.begin(), row.tokens.end())) << "row " << r;
    }
  }
}

// Offsets beyond 31 bits: many rows, all of them the same memory.
TEST(SoftmaxTopkLayout, MoreElementsThan31Bits) {
  const std::int64_t rows = sanitized_size(70000, 500);
  TopkProblem p{.lead = {1}, .vocabulary = 50257, .k = 3};
  const TopkData data = make_data(p);
  const Guarded logits(test_device(), DType::f32, {1, p.vocabulary}, data.logits);
  const std::vector<double> tokens = [&] {
    const auto expected = expected_rows(p, data);
    return std::vector<double>(expected[0].tokens.begin(), expected[0].tokens.end());
  }();
  Guarded probabilities(test_device(), DType::f32, {rows, p.k});
  Guarded indices(test_device(), DType::i32, {rows, p.k});
  ConstTensorView spread = logits;
  spread.shape[0] = rows;
  spread.stride[0] = 0;
  const SoftmaxTopkArgs args{.logits = spread, .probabilities = probabilities, .indices = indices};
  for_each_implementation(every_implementation(p), [&](Runner& context) {
    if (context.implementation() == "plain") return;  // would take a minute
    probabilities.poison();
    indices.poison();
    softmax_topk(context, context.with(args));
    context.synchronize();
    const std::vector<double> all = indices.values();
    const std::vector<double> weights = probabilities.values();
    for (std::size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(all[i], tokens[i % tokens.size()]) << "place " << i;
      ASSERT_EQ(weights[i], weights[i % tokens.size()]) << "place " << i;
    }
  });
}

// ---- random problems -----------------------------------------------------------------------

// Values that collide often, or never, or lie at few indices, or are far apart.
Pattern random_pattern(std::uint64_t kind, std::uint64_t seed) {
  const Random random(seed);
  const auto draw = [=](std::int64_t r, std::int64_t i) { return random.normal(r * 1000003 + i); };
  switch (kind) {
    case 0:
      return draw;
    case 1:
      return [=](auto r, auto i) { return std::round(draw(r, i)); };
    case 2:
      return [=](auto r, auto i) { return draw(r, i) > 2 ? 1.0 : 0.0; };
    case 3:
      return [=](auto r, auto i) { return std::ldexp(draw(r, i), static_cast<int>(i % 40) - 20); };
    case 4:
      return [=](auto r, auto i) { return draw(r, i) - 1e-4 * static_cast<double>(i); };
    case 5:
      return [=](auto r, auto i) { return draw(r, i) > 1 ? draw(r, i) : -kInfinity; };
    default:
      return [=](auto r, auto i) { return 1e4 * draw(r, i); };
  }
}

TEST(SoftmaxTopkRandom, AgainstTheSort) {
  const int count = static_cast<int>(sanitized_size(400, 60));
  for (int n = 0; n < count; ++n) {
    const Random random(static_cast<std::uint64_t>(n) + 500);
    const auto pick = [&](int i, std::uint64_t below) {
      return static_cast<std::int64_t>(random.bits(i) % below);
    };
    TopkProblem p;
    p.lead = {1 + pick(0, 6)};
    // Small ones as often as large ones.
    p.vocabulary = 1 + pick(1, std::uint64_t{1} << (1 + pick(2, 14)));
    p.k = 1 + pick(3, static_cast<std::uint64_t>(pick(4, 3) == 0 ? p.vocabulary
                                                                 : std::min(p.vocabulary, {70})));
    p.dtype = std::array{DType::f32, DType::bf16, DType::f16}[static_cast<std::size_t>(pick(5, 3))];
    p.pattern = random_pattern(random.bits(6) % 7, random.bits(7));
    p.bias = static_cast<PerToken>(pick(8, 3));
    p.token_mask = static_cast<PerToken>(pick(9, 3));
    p.allowed_share = random.uniform(10);
    p.temperature_scale = std::exp2(8 * random.uniform(11) - 4);
    if (pick(12, 2) == 0) p.temperature = {0.25, 1, 3};
    p.renormalize = pick(13, 2) == 0;
    p.wide_indices = pick(14, 2) == 0;
    p.layout = {.row_gap = pick(15, 4), .offset = pick(16, 5)};
    p.seed = static_cast<std::uint64_t>(n) + 1;
    check(p);
  }
}

}  // namespace
}  // namespace touchstone::test
