// A row gets the same from every kernel and in every batch: the number of rows and their controls decide
// which kernels and code paths run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <tuple>

#include "ops/sample/sample_test_support.h"

namespace touchstone::test {
namespace {

// Every row alone, in a batch, in the batch turned round, and with other numbers of threads.
TEST(SampleBatches, BatchMatesNeverChangeARow) {
  constexpr std::size_t kRows = 70;
  for (const std::int64_t vocabulary : {50, 5003}) {
    Batch batch{.top_count = 5};
    for (std::size_t i = 0; i < kRows; ++i) {
      batch.rows.push_back(random_row(vocabulary, DType::f32, 3000 + i));
      // The draw must not see where the row is.
      batch.rows.back().history.resize(40, -1);
    }
    Batch turned = batch;
    std::ranges::reverse(turned.rows);
    SampleRun together(batch);
    SampleRun other_way(turned);
    for_each_implementation(together.accepting(), [&](Runner& context) {
      together.run(context);
      const std::vector<double> tokens = together.token.values();
      const std::vector<double> logs = together.log_probability.values();
      const std::vector<std::byte> top_logs = together.top_log_probabilities.bytes();
      other_way.run(context);
      for (std::size_t i = 0; i < kRows; ++i) {
        EXPECT_EQ(other_way.token.values()[kRows - 1 - i], tokens[i]) << i;
      }
      for (std::size_t i = 0; i<kRows; i += vocabulary> 100 ? 7 : 1) {
        Batch alone = batch;
        alone.rows = {batch.rows[i]};
        SampleRun run(alone);
        run_like(run, context);
        EXPECT_EQ(run.token.values()[0], tokens[i]) << i;
        const double log = run.log_probability.values()[0];
        EXPECT_TRUE(log == logs[i] || (std::isnan(log) && std::isnan(logs[i]))) << i;
      }
      for (const int threads : {1, 2, 7}) {
        Runner fresh({.device = test_device(),
                      .threads = threads,
                      .implementation = context.implementation()});
        together.run(fresh);
        EXPECT_EQ(together.token.values(), tokens);
        EXPECT_TRUE(same_bits(together.top_log_probabilities, top_logs));
      }
    });
  }
}

// `few`, repeated until there are `rows` of them: each row gets, to the bit, what it gets in `few`.
void expect_the_same_when_repeated(const Batch& few, std::int64_t rows, const Layout& layout) {
  Batch many = few;
  many.layout = layout;
  while (static_cast<std::int64_t>(many.rows.size()) < rows) {
    many.rows.push_back(few.rows[many.rows.size() % few.rows.size()]);
  }
  SampleRun alone(few);
  SampleRun together(many);
  std::vector<std::string> names = alone.accepting();
  for (const std::string& name : together.accepting()) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  for_each_implementation(names, [&](Runner& context) {
    run_like(alone, context);
    run_like(together, context);
    const std::vector<double> tokens = alone.token.values();
    const std::vector<double> logs = alone.log_probability.values();
    const std::vector<double> all_tokens = together.token.values();
    const std::vector<double> all_logs = together.log_probability.values();
    for (std::size_t i = 0; i < many.rows.size(); ++i) {
      ASSERT_EQ(all_tokens[i], tokens[i % few.rows.size()]) << i;
      ASSERT_EQ(all_logs[i], logs[i % few.rows.size()]) << i;
    }
  });
}

// Rows for every code path of a kernel: within the tokens that it sorts, beyond them, and unsorted.
Batch asking_for_everything(std::int64_t vocabulary, DType dtype) {
  struct Asked {
    std::int64_t top_k;
    float top_p;
    float min_p;
    double scale;  // of the logits: how peaked the row is
  };
  constexpr Asked kAsked[] = {{1, 1, 0, 3},         {50, 0.95F, 0, 3}, {64, 1, 0, 1},
                              {65, 0.9F, 0.01F, 1}, {300, 0.9F, 0, 1}, {1024, 0.97F, 0, 0.5},
                              {1500, 0.9F, 0, 1},   {0, 0.9F, 0, 6},   {0, 0.95F, 0, 1},
                              {0, 0.5F, 0, 0.01},   {0, 1, 0.2F, 2},   {0, 1, 0, 1}};
  Batch batch{.dtype = dtype, .top_count = 3};
  for (const Asked& asked : kAsked) {
    const auto seed = 800 + batch.rows.size();
    TestRow row = row_of(random_logits(vocabulary, asked.scale, dtype, seed), asked.top_k,
                         asked.top_p, asked.min_p);
    row.position = static_cast<std::int64_t>(seed);
    batch.rows.push_back(row);
  }
  return batch;
}

// Kernels and their slow paths are chosen by the number of rows, and the controls of a row are known on the
// device only: the row must get the same from all of them.
TEST(SampleBatches, OneRowAmongHundredsGetsWhatItGetsAlone) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(name_of(dtype));
    const Batch few = asking_for_everything(3001, dtype);
    check_batch(few);
    // More than a GPU has multiprocessors, times three and times four; 16-byte aligned and not.
    for (const std::int64_t rows : {200, 400, 600}) {
      const std::int64_t gap_to_grid = dtype == DType::f32 ? 3 : 7;
      const bool on_grid = dtype == DType::bf16 || rows < 600;
      expect_the_same_when_repeated(few, sanitized_size(rows, 36),
                                    {.row_gap = on_grid ? gap_to_grid : 0});
    }
  }
}

// Rows long enough that thresholds are estimated from a sample, with up to the largest number of sorted
// tokens: random rows, and rows where the sample misleads.
TEST(SampleBatches, ManyTokensInOrderOfLongRows) {
  const std::int64_t vocabulary = sanitized_size(60000, 6000);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(name_of(dtype));
    Batch few{.dtype = dtype};
    const auto add = [&](const std::vector<double>& logits, std::int64_t top_k, float top_p) {
      TestRow row = row_of(rounded(logits, dtype), top_k, top_p, 0);
      row.position = static_cast<std::int64_t>(few.rows.size());
      few.rows.push_back(row);
    };
    for (const std::int64_t top_k : {65, 256, 257, 1024, 2048}) {
      add(random_logits(vocabulary, 1, dtype, 900 + static_cast<std::uint64_t>(top_k)), top_k,
          0.95F);
    }
    for (const std::int64_t top_k : {200, 2048}) {
      std::vector<double> rising;
      std::vector<double> falling_again_and_again;
      for (std::int64_t i = 0; i < vocabulary; ++i) {
        const double size = static_cast<double>(vocabulary);
        rising.push_back(8 * static_cast<double>(i) / size);
        falling_again_and_again.push_back(-64 * static_cast<double>(i % (vocabulary / 8)) / size);
      }
      add(rising, top_k, 0.9F);
      add(falling_again_and_again, top_k, 0.9F);
    }
    check_batch(few);
    const std::int64_t many = dtype == DType::f32 ? 200 : 400;
    expect_the_same_when_repeated(few, test_device().is_cuda() ? many : 12, {});
  }
}

// So long that several CTAs share a row.
std::int64_t long_row(DType dtype) {
  return sanitized_size(dtype == DType::f32 ? 41000 : 82000, 8008);
}

// More CTAs per row where there are fewer rows, and other kernels where rows are not 16-byte aligned.
TEST(SampleBatches, FewLongRowsGetTheSameHoweverTheyAreShared) {
  for (const DType dtype : kLogitDTypes) {
    SCOPED_TRACE(name_of(dtype));
    const Batch few = asking_for_everything(long_row(dtype), dtype);
    check_batch(few);
    expect_the_same_when_repeated(few, 36, {});
    expect_the_same_when_repeated(few, 24, {.row_gap = 7});
  }
}

// Rows whose content sends a fast kernel to its slow path.
TEST(SampleBatches, LongRowsThatAreNotUsual) {
  const std::function<void(TestRow&)> edits[] = {
      [](TestRow& r) { r.logits[77] = kNan; },
      [](TestRow& r) { r.logits[5000] = kInfinity; },
      [](TestRow& r) { r.logits[7] = r.logits.back() = kInfinity, r.temperature = 0; },
      [](TestRow& r) { std::ranges::fill(r.logits, -kInfinity); },
      [](TestRow& r) { std::ranges::fill(r.logits, -kInfinity), r.logits[1234] = 2; },
      [](TestRow& r) { std::fill(r.logits.begin() + 20, r.logits.end(), -kInfinity); },
      [](TestRow& r) { std::ranges::fill(r.logits, 0.5); },
      [](TestRow& r) { std::ranges::fill(r.logits, 0.5), r.top_k = 0, r.top_p = 1; },
      [](TestRow& r) { std::ranges::fill(r.logits, -kInfinity), r.top_k = 0, r.top_p = 1; },
      [](TestRow& r) { std::fill(r.logits.end() - 300, r.logits.end(), 16.0); },
      [](TestRow& r) { std::fill(r.logits.begin() + 512, r.logits.begin() + 1536, 16.0); },
      [](TestRow& r) { std::ranges::sort(r.logits); },
      [](TestRow& r) { r.logits[4000] = 49152, r.temperature = 1e-4; },
      [](TestRow& r) { r.temperature = 0, r.top_k = 0; },
      [](TestRow& r) { r.top_p = 2; },
      [](TestRow& r) { r.temperature = kNan, r.top_k = 0; },
  };
  for (const DType dtype : kLogitDTypes) {
    SCOPED_TRACE(name_of(dtype));
    Batch batch{.dtype = dtype, .top_count = 7};
    for (const auto& edit : edits) {
      const auto seed = 1700 + batch.rows.size();
      TestRow row = row_of(random_logits(long_row(dtype), 2, dtype, seed), 50, 0.9F, 0);
      row.position = static_cast<std::int64_t>(seed);
      edit(row);
      batch.rows.push_back(row);
    }
    check_batch(batch);
  }
}

// So many that a warp draws several short rows at once.
TEST(SampleBatches, OneShortRowAmongThousandsGetsWhatItGetsAlone) {
  for (const auto& [vocabulary, dtype, rows] : {std::tuple{70, DType::bf16, 30001},
                                                {128, DType::bf16, 70001},
                                                {128, DType::f32, 70001},
                                                {512, DType::f16, 20001},
                                                {1000, DType::f32, 2999}}) {
    Batch few{.dtype = dtype};
    for (const std::int64_t top_k : {0, 1, 8, 20, 65}) {
      for (const float top_p : {0.7F, 1.0F}) {
        const auto seed = 900 + few.rows.size();
        TestRow row = row_of(random_logits(vocabulary, 2, few.dtype, seed), top_k, top_p,
                             top_k == 1 ? 0 : 0.01F);
        row.position = static_cast<std::int64_t>(seed);
        few.rows.push_back(row);
      }
    }
    expect_the_same_when_repeated(few, sanitized_size(rows, 101), few.layout);
  }
}

// Kept sets far beyond what is sorted: every implementation draws what the enumeration allows, and the
// CPU implementations, which all use f64 weights there, the same tokens.
TEST(SampleBatches, KeptSetsOfMostOfTheRow) {
  const std::int64_t vocabulary = sanitized_size(20011, 5003);
  struct Asked {
    std::int64_t top_k;
    float top_p;
    float min_p;
    double temperature;
    double scale;
  };
  constexpr Asked kAsked[] = {{0, 0.9F, 0, 1, 1},       {0, 1, 0.01F, 1, 1},
                              {4000, 0.95F, 0, 1, 1},   {4000, 1, 0, 1, 0.01},
                              {0, 0.5F, 0, 50, 1},      {0, 0.99F, 1e-4F, 0.5, 2},
                              {0, 0.9F, 0, 1000, 1e-3}, {0, 0.75F, 0, 1, 0.0}};
  Batch batch{.top_count = 3};
  for (const Asked& asked : kAsked) {
    for (std::int64_t position = 0; position < 6; ++position) {
      TestRow row = row_of(random_logits(vocabulary, asked.scale, DType::f32, 61), asked.top_k,
                           asked.top_p, asked.min_p);
      row.temperature = asked.temperature;
      row.position = position;
      if (position == 5) {  // half of the tokens are masked
        row.token_mask.assign(static_cast<std::size_t>(vocabulary), true);
        for (std::size_t i = 0; i < row.token_mask.size(); i += 2) row.token_mask[i] = false;
      }
      batch.rows.push_back(row);
    }
  }
  check_batch(batch);
  if (on_gpu()) return;
  SampleRun run(batch);
  std::vector<std::int64_t> first;
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    if (first.empty()) first = run.tokens();
    EXPECT_EQ(run.tokens(), first);
    EXPECT_TRUE(std::ranges::all_of(run.statuses(), [](std::int32_t s) { return s == 0; }));
  });
}

}  // namespace
}  // namespace touchstone::test
