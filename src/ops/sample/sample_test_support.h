// What the sampling tests share: a batch of rows, the call on guarded buffers, and the judgment of
// what came back against the oracle.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "oracle/sample.h"
#include "spec/selection.h"
#include "tests/support/chi_square.h"
#include "tests/support/compare.h"
#include "tests/support/guarded_call.h"
#include "tests/support/random.h"
#include "tests/support/runners.h"
#include "touchstone/ops/row_status.h"
#include "touchstone/ops/sample.h"

namespace touchstone::test {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr DType kLogitDTypes[] = {DType::f32, DType::bf16, DType::f16};

// One row with what the oracle does not need to know.
struct TestRow : oracle::SampleRow {
  std::int64_t seed = 1;
  std::int64_t position = 0;
};

struct Batch {
  std::vector<TestRow> rows{};
  DType dtype = DType::f32;
  DType token_dtype = DType::i32;
  DType top_token_dtype = DType::i64;
  std::int64_t top_count = 0;
  Layout layout = {};                // of logits, a bias per row and the history
  std::vector<std::int64_t> lead{};  // empty: {rows}
  // What all rows have alike may be given once, and what all rows leave at its default may be left
  // out. Both are how most callers call.
  bool share_bias = false;
  bool share_mask = false;
  bool leave_out_defaults = false;
  bool want_log_probability = true;
  bool want_status = true;

  std::int64_t vocabulary() const { return static_cast<std::int64_t>(rows.at(0).logits.size()); }
};

// Guarded buffers for one batch. run() poisons the outputs, calls the operator, waits, and expects
// that nothing but the outputs was written.
struct SampleRun {
  explicit SampleRun(const Batch& batch);
  std::vector<std::string> accepting() const;  // implementations that take the call
  void run(Runner& context);

  std::vector<std::int64_t> tokens() const;
  // Without two_pass, which may differ by implementation.
  std::vector<std::int32_t> statuses() const;

  std::vector<Guarded*> inputs();
  std::vector<Guarded*> outputs();

  Guarded logits, bias, token_mask, temperature, top_k, top_p, min_p, repetition, frequency,
      presence, history, prompt_length, seed, position;
  Guarded token, log_probability, top_tokens, top_log_probabilities, status;
  SampleArgs args;
};

// A row with these logits and cuts, at temperature 1.
TestRow row_of(std::vector<double> logits, std::int64_t top_k, float top_p, float min_p);

// Runs the batch on every implementation and SIMD target and holds every row against the oracle.
void check_batch(const Batch& batch);

// Whether `token` is what the uniform picks, or would be if sums were off by `tolerance` of the
// whole: a uniform that close to a border has two right answers, and so has a cut.
testing::AssertionResult is_the_draw(const oracle::SampleRow& row,
                                     const oracle::SampleDistribution& d, double u,
                                     std::int64_t token, double tolerance);

// How far sums and weights of an implementation may be off: `plain` works in f64, the others as
// softmax_topk promises.
double sum_tolerance(const Runner& context);

// Draws `draws` tokens from one row with one seed and the positions 0, 1, ..; counts them by token.
// Anything else than a token fails the test.
std::vector<std::int64_t> draw_many(Runner& context, const Batch& one_row, std::int64_t draws);

// `count` logits, center 0, that the dtype holds exactly.
std::vector<double> random_logits(std::int64_t count, double scale, DType dtype,
                                  std::uint64_t seed);

// A row with random controls: every one of them is at its default in a good part of the rows.
TestRow random_row(std::int64_t vocabulary, DType dtype, std::uint64_t seed);

}  // namespace touchstone::test
