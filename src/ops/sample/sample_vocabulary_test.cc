// Every vocabulary size and dtype with random controls, row by row against the oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "ops/sample/sample_test_support.h"

namespace touchstone::test {
namespace {

Batch random_batch(std::int64_t rows, std::int64_t vocabulary, DType dtype, std::uint64_t seed) {
  Batch batch;
  batch.dtype = dtype;
  for (std::int64_t i = 0; i < rows; ++i) {
    batch.rows.push_back(
        random_row(vocabulary, dtype, seed * 1000 + static_cast<std::uint64_t>(i)));
  }
  return batch;
}

TEST(SampleVocabulary, SmallOnesInEveryLayout) {
  std::uint64_t seed = 1;
  for (const std::int64_t vocabulary : {1, 2, 3, 31, 32, 33, 64, 65, 257, 1000}) {
    for (const DType dtype : kLogitDTypes) {
      SCOPED_TRACE(std::to_string(vocabulary) + " " + std::string(name_of(dtype)));
      Batch batch = random_batch(sanitized_size(40, 8), vocabulary, dtype, ++seed);
      batch.layout = {.row_gap = static_cast<std::int64_t>(seed % 4),
                      .offset = static_cast<std::int64_t>(seed % 3)};
      batch.top_count =
          1 + static_cast<std::int64_t>(seed) % std::min<std::int64_t>(vocabulary, 25);
      batch.token_dtype = seed % 2 == 0 ? DType::i32 : DType::i64;
      batch.top_token_dtype = seed % 4 < 2 ? DType::i32 : DType::i64;
      check_batch(batch);
    }
  }
}

// Rows without bias, mask and penalties, as a router has them: most want few tokens.
TEST(SampleVocabulary, SmallOnesThatArePlain) {
  std::uint64_t seed = 50;
  for (const std::int64_t vocabulary : {1, 5, 8, 9, 70, 128, 130, 256, 500, 512, 1000, 1024}) {
    for (const DType dtype : kLogitDTypes) {
      SCOPED_TRACE(std::to_string(vocabulary) + " " + std::string(name_of(dtype)));
      Batch batch = random_batch(sanitized_size(90, 12), vocabulary, dtype, ++seed);
      for (std::size_t i = 0; i < batch.rows.size(); ++i) {
        TestRow& row = batch.rows[i];
        row.bias.clear();
        row.token_mask.clear();
        row.history.clear();
        if (i % 3 != 0) row.top_k = 1 + static_cast<std::int64_t>(i) % 10;
        if (i % 11 == 7) row.logits.assign(row.logits.size(), 0.5);
        if (i % 13 == 5)
          row.logits[i % row.logits.size()] = std::numeric_limits<double>::quiet_NaN();
      }
      batch.top_count = std::min<std::int64_t>(vocabulary, static_cast<std::int64_t>(seed) % 4 * 4);
      batch.layout = {.row_gap = seed % 5 == 0 ? 3 : 0, .offset = seed % 7 == 0 ? 1 : 0};
      check_batch(batch);
    }
  }
}

TEST(SampleVocabulary, LargeOnes) {
  std::uint64_t seed = 100;
  for (const std::int64_t vocabulary : {50257, 151936}) {
    for (const DType dtype : kLogitDTypes) {
      SCOPED_TRACE(std::to_string(vocabulary) + " " + std::string(name_of(dtype)));
      Batch batch = random_batch(sanitized_size(4, 1), vocabulary, dtype, ++seed);
      batch.layout = {.row_gap = 1, .offset = 1};
      batch.top_count = 20;
      check_batch(batch);
    }
  }
}

// Kept sets from a handful to the whole vocabulary, across whatever an implementation calls small.
TEST(SampleVocabulary, KeptSetsOfEverySize) {
  for (const double scale : {0.01, 1.0, 4.0}) {
    Batch batch;
    const std::vector<double> logits =
        random_logits(sanitized_size(20000, 5000), scale, DType::f32, 77);
    for (const std::int64_t top_k : {1, 2, 63, 64, 65, 2047, 2048, 2049, 4096, 0}) {
      for (const float top_p : {0.05F, 0.5F, 0.9F, 0.999F, 1.0F}) {
        if (top_k != 0 && top_p == 0.05F) continue;
        TestRow row;
        row.logits = logits;
        row.top_k = top_k;
        row.top_p = static_cast<double>(top_p);
        row.seed = 5;
        row.position = static_cast<std::int64_t>(batch.rows.size());
        batch.rows.push_back(row);
      }
    }
    check_batch(batch);
  }
}

// Draws by token from rows of several segments of any implementation: even, peaked, with whole
// stretches masked, and penalized.
TEST(SampleVocabulary, DrawsByTokenFromLongRows) {
  constexpr std::int64_t kVocabulary = 9001;
  for (const DType dtype : kLogitDTypes) {
    SCOPED_TRACE(name_of(dtype));
    Batch batch;
    batch.dtype = dtype;
    for (std::int64_t i = 0; i < sanitized_size(48, 8); ++i) {
      TestRow row;
      const auto seed = static_cast<std::uint64_t>(i);
      row.logits = random_logits(kVocabulary, i % 2 == 0 ? 0.5 : 5, dtype, 600 + seed);
      row.position = i;
      if (i % 3 == 1) {
        for (std::int64_t t = 0; t < kVocabulary; ++t) row.token_mask.push_back(t / 4500 == 1);
        row.bias = random_logits(kVocabulary, 1, DType::f32, 700 + seed);
      }
      if (i % 4 == 3) {
        row.history = {5, 4500, 9000};
        row.repetition_penalty = 2;
      }
      batch.rows.push_back(row);
    }
    check_batch(batch);
  }
}

// One row alone may be shared among threads; its bits must not tell how many there were.
TEST(SampleVocabulary, ThreadsThatShareARowDoNotShow) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Batch batch{.rows = {random_row(151936, DType::f32, 7000 + seed)}, .top_count = 4};
    batch.rows[0].temperature = 0.8125;
    if (seed > 3) batch.rows[0].top_k = 0, batch.rows[0].top_p = 1, batch.rows[0].min_p = 0;
    SampleRun run(batch);
    for_each_implementation(run.accepting(), [&](Runner& context) {
      run.run(context);
      const std::vector<std::byte> token = run.token.bytes();
      const std::vector<std::byte> logs = run.top_log_probabilities.bytes();
      for (const int threads : {1, 2}) {
        Runner fresh({.device = test_device(),
                      .threads = threads,
                      .implementation = context.implementation()});
        run.run(fresh);
        EXPECT_TRUE(same_bits(run.token, token));
        EXPECT_TRUE(same_bits(run.top_log_probabilities, logs));
      }
    });
  }
}

TEST(SampleVocabulary, AllTopTokensOfAll) {
  for (const DType dtype : kLogitDTypes) {
    Batch batch = random_batch(12, 300, dtype, 400);
    batch.top_count = 300;
    check_batch(batch);
  }
}

// The values of softmax_topk's own stress: huge, tiny, and beyond f16.
TEST(SampleVocabulary, ExtremeLogits) {
  for (const double scale : {1e-40, 1e-30, 1e4, 3e37}) {
    SCOPED_TRACE(scale);
    Batch batch;
    for (std::uint64_t i = 0; i < 12; ++i) {
      TestRow row = random_row(200, DType::f32, 900 + i);
      row.logits = random_logits(200, scale, DType::f32, 900 + i);
      batch.rows.push_back(row);
    }
    batch.top_count = 10;
    check_batch(batch);
  }
}

// The weights of a block that is masked say nothing about those of the next.
TEST(SampleVocabulary, MaskedTokensBeforeOthersFarBelowZero) {
  for (const double most : {-800.0, -2000.0, -1e30}) {
    SCOPED_TRACE(most);
    Batch batch;
    for (std::uint64_t i = 0; i < 12; ++i) {
      TestRow row;
      row.logits = random_logits(200, 1, DType::f32, 700 + i);
      for (double& logit : row.logits) logit += most;
      const auto masked = static_cast<std::ptrdiff_t>(16 * i + 16);
      std::fill_n(row.logits.begin(), masked, -kInfinity);
      row.position = static_cast<std::int64_t>(i);
      batch.rows.push_back(row);
    }
    check_batch(batch);
  }
}

TEST(SampleVocabulary, ExtremeTemperatures) {
  Batch batch;
  for (const float temperature : {1e-45F, 1e-38F, 1e-20F, 1e-3F, 1e3F, 1e20F, 3e38F}) {
    TestRow row = random_row(100, DType::f32, 950);
    row.temperature = static_cast<double>(temperature);
    batch.rows.push_back(row);
  }
  check_batch(batch);
}

}  // namespace
}  // namespace touchstone::test
