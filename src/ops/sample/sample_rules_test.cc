// The rules one by one, on rows small enough to know the answer by heart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <tuple>

#include "ops/sample/sample_test_support.h"
#include "touchstone/core/random.h"

namespace touchstone::test {
namespace {

using testing::ElementsAre;

double f32(float value) { return static_cast<double>(value); }

// ---- what is kept --------------------------------------------------------------------------

struct Kept {
  const char* name;
  TestRow row;
  std::vector<std::int64_t> tokens;  // those that can be drawn
};

std::vector<Kept> kept_sets() {
  const std::vector<double> four(4, 0.0);
  // Weights 1, 1/2, 1/4, 1/8, as near as f32 logits come.
  const std::vector<double> halves = {std::log(0.25), 0, std::log(0.125), std::log(0.5)};
  return {
      {"four equal, half", row_of(four, 0, 0.5F, 0), {0, 1}},
      {"four equal, a quarter", row_of(four, 0, 0.25F, 0), {0}},
      {"four equal, a little more than a quarter", row_of(four, 0, 0.2500001F, 0), {0, 1}},
      {"four equal, three quarters", row_of(four, 0, 0.75F, 0), {0, 1, 2}},
      {"four equal, a little more than three", row_of(four, 0, 0.7500001F, 0), {0, 1, 2, 3}},
      {"four equal, nothing", row_of(four, 0, 0, 0), {0}},
      {"four equal, everything", row_of(four, 0, 1, 0), {0, 1, 2, 3}},
      {"half of the first two", row_of(four, 2, 0.5F, 0), {0}},
      {"half of the first three", row_of(four, 3, 0.5F, 0), {0, 1}},
      {"top_k through ties", row_of({1, 3, 3, 3, 0}, 2, 1, 0), {1, 2}},
      {"top_k beyond the vocabulary", row_of({1, 3, 3, 3, 0}, 99, 1, 0), {0, 1, 2, 3, 4}},
      {"top_p through ties", row_of({1, 3, 3, 3, 0}, 0, 0.5F, 0), {1, 2}},
      {"min_p of 1 keeps all that tie", row_of({1, 3, 3, 3, 0}, 0, 1, 1), {1, 2, 3}},
      {"min_p above a half", row_of(halves, 0, 1, 0.501F), {1}},
      {"min_p below a half", row_of(halves, 0, 1, 0.499F), {1, 3}},
      {"top_p just within the first", row_of(halves, 0, 0.533F, 0), {1}},
      {"top_p just beyond the first", row_of(halves, 0, 0.534F, 0), {1, 3}},
      {"top_p of what top_k leaves", row_of(halves, 2, 0.666F, 0), {1}},
      {"top_p beyond it", row_of(halves, 2, 0.667F, 0), {1, 3}},
      {"the shortest of three: top_k", row_of(halves, 1, 0.9F, 0.2F), {1}},
      {"the shortest of three: min_p", row_of(halves, 3, 0.99F, 0.3F), {1, 3}},
      {"zeros of both signs are equal", row_of({-1, -0.0, 0.0}, 1, 1, 0), {1}},
      {"infinities share", row_of({1, kInfinity, 2, kInfinity}, 0, 1, 0), {1, 3}},
      {"half of the infinities", row_of({1, kInfinity, 2, kInfinity}, 0, 0.5F, 0), {1}},
      {"infinities and min_p", row_of({1, kInfinity, 2, kInfinity}, 0, 1, 0.01F), {1, 3}},
      {"masked tokens are never drawn", row_of({-kInfinity, 0, -kInfinity, 0}, 3, 1, 0), {1, 3}},
      {"too far below to weigh anything", row_of({0, -1e4, 0, -3e38}, 0, 1, 0), {0, 2}},
  };
}

TEST(SampleRules, ExactlyTheRightTokensAreDrawn) {
  for (const Kept& item : kept_sets()) {
    SCOPED_TRACE(item.name);
    Batch batch{.rows = {item.row}};
    batch.rows[0].logits = rounded(item.row.logits, DType::f32);
    const oracle::SampleDistribution d = oracle::sample_distribution(batch.rows[0]);
    std::set<std::int64_t> possible;
    for (std::size_t i = 0; i < d.probability.size(); ++i) {
      if (d.probability[i] > 0) possible.insert(static_cast<std::int64_t>(i));
    }
    const std::set<std::int64_t> wanted(item.tokens.begin(), item.tokens.end());
    EXPECT_EQ(possible, wanted) << "the oracle";
    for_each_implementation(SampleRun(batch).accepting(), [&](Runner& context) {
      // The rarest of them has 1/15: 2000 draws miss it once in 10^60 times.
      const std::vector<std::int64_t> counts = draw_many(context, batch, 2000);
      std::set<std::int64_t> drawn;
      for (std::size_t i = 0; i < counts.size(); ++i) {
        if (counts[i] > 0) drawn.insert(static_cast<std::int64_t>(i));
      }
      EXPECT_EQ(drawn, wanted);
    });
  }
}

// Equal logits away from 0, whose weights no arithmetic need have as 1: half of them is half of
// them. The uniforms are those that would show one token more.
TEST(SampleRules, HalfOfManyEqualTokensIsExactlyHalf) {
  Batch batch;
  std::vector<std::int64_t> expected;
  for (const std::int64_t vocabulary : {100, 1000, 3000}) {
    const std::int64_t kept = vocabulary / 2;
    TestRow row;
    row.temperature = f32(0.9F);
    row.top_p = 0.5;
    // Masked tokens make the rows equally long.
    row.logits.assign(3000, -kInfinity);
    std::fill_n(row.logits.begin(), vocabulary, f32(1.7F));
    while (random_uniform(row.seed, row.position) * static_cast<double>(kept + 1) <
           static_cast<double>(kept)) {
      ++row.position;
    }
    batch.rows.push_back(row);
    expected.push_back(kept - 1);
  }
  SampleRun run(batch);
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    EXPECT_EQ(run.tokens(), expected);
  });
}

// The running sum goes by token without a cut and by value with one: the same uniform picks
// different tokens.
TEST(SampleRules, TheDrawRunsByTokenOrByValue) {
  TestRow row;
  row.logits = {0, 0.5, 1, 1.5};
  Batch batch;
  std::vector<std::int64_t> expected;
  for (std::int64_t position = 0; position < 50; ++position) {
    for (const std::int64_t top_k : {0, 3}) {
      row.position = position;
      row.top_k = top_k;
      batch.rows.push_back(row);
      const double u = random_uniform(row.seed, position);
      const double e = std::exp(0.5);
      const std::vector<double> walk = top_k == 0 ? std::vector<double>{1, e, e * e, e * e * e}
                                                  : std::vector<double>{e * e, e, 1};
      double total = 0;
      for (const double w : walk) total += w;
      std::int64_t i = 0;
      for (double sum = walk[0]; sum <= u * total; sum += walk[static_cast<std::size_t>(i)]) ++i;
      expected.push_back(top_k == 0 ? i : 3 - i);
    }
  }
  SampleRun run(batch);
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    EXPECT_EQ(run.tokens(), expected);
  });
}

// ---- randomness ----------------------------------------------------------------------------

TEST(SampleRules, SeedAndPositionDecide) {
  TestRow row;
  row.logits.assign(1000, 0.0);
  Batch batch;
  for (const std::int64_t seed : {1, 2, 1}) {
    for (std::int64_t position = 0; position < 20; ++position) {
      row.seed = seed;
      row.position = position;
      batch.rows.push_back(row);
    }
  }
  SampleRun run(batch);
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    const std::vector<std::int64_t> tokens = run.tokens();
    const auto part = [&](int i) {
      return std::vector<std::int64_t>(tokens.begin() + 20 * i, tokens.begin() + 20 * (i + 1));
    };
    EXPECT_EQ(part(0), part(2));
    EXPECT_NE(part(0), part(1));
    const std::set<std::int64_t> different(tokens.begin(), tokens.begin() + 20);
    EXPECT_GT(different.size(), 15U);
    // Equal weights: the token is the uniform, scaled.
    for (std::int64_t position = 0; position < 20; ++position) {
      EXPECT_EQ(tokens[static_cast<std::size_t>(position)],
                static_cast<std::int64_t>(1000 * random_uniform(1, position)));
    }
  });
}

// ---- greedy --------------------------------------------------------------------------------

TEST(SampleRules, GreedyRowsBesideSampledOnes) {
  Batch batch{.top_count = 3};
  for (std::uint64_t i = 0; i < 30; ++i) {
    TestRow row = random_row(100, DType::f32, 5000 + i);
    row.temperature = i % 3 == 0 ? 0 : 0.8125;
    batch.rows.push_back(row);
  }
  // Ties, infinities, and controls that a greedy row does not care about.
  batch.rows[0].logits.assign(100, 2.0);
  batch.rows[3].logits[40] = batch.rows[3].logits[41] = kInfinity;
  batch.rows[6].top_k = 50;
  batch.rows[9].temperature = -0.0;
  check_batch(batch);
}

// ---- penalties -----------------------------------------------------------------------------

// Expected values by hand: tokens 0 .. 5 with the logits 2, -2, 2, -2, 2, 2.
TEST(SampleRules, PenaltiesInTheirOrder) {
  TestRow row;
  row.logits = {2, -2, 2, -2, 2, 2};
  row.history = {0, 1, 2, 3, 2, 2, 3, -1, 6, 1000, -5};
  row.prompt_length = 2;  // 0 and 1 are prompt; 2 three times and 3 twice are output
  row.repetition_penalty = 4;
  row.frequency_penalty = 0.5;
  row.presence_penalty = 0.25;
  const std::vector<float> expected = {0.5F, -8, 0.5F - 1.5F - 0.25F, -8 - 1 - 0.25F, 2, 2};
  EXPECT_EQ(oracle::sample_distribution(row).value, expected);
  Batch batch{.rows = {row, row, row, row, row}, .top_count = 6};
  batch.rows[1].repetition_penalty = 1;
  batch.rows[2].prompt_length = -3;   // clamped: all is output
  batch.rows[3].prompt_length = 100;  // clamped: all is prompt
  batch.rows[4].presence_penalty = -1;
  check_batch(batch);
}

TEST(SampleRules, AMaskedTokenStaysMaskedWhateverThePenalties) {
  TestRow row;
  row.logits = {1, -kInfinity, 0, 5};
  row.token_mask = {true, true, true, false};
  row.history = {1, 3, 1, 3, 0};
  row.repetition_penalty = 0.5;
  row.frequency_penalty = -3e38;
  row.frequency_penalty = f32(static_cast<float>(row.frequency_penalty));
  row.presence_penalty = f32(-3e38F);
  check_batch({.rows = {row}, .top_count = 4});
}

TEST(SampleRules, LongHistories) {
  Batch batch{.top_count = 40};
  const Random random(8);
  for (std::int64_t r = 0; r < 4; ++r) {
    TestRow row;
    row.logits = random_logits(1000, 2, DType::f32, 60 + static_cast<std::uint64_t>(r));
    for (std::int64_t i = 0; i < 3000 - 700 * r; ++i) {
      row.history.push_back(static_cast<std::int64_t>(random.bits(i + 5000 * r) % 1003) - 1);
    }
    row.prompt_length = 1000;
    row.repetition_penalty = f32(1.1F);
    row.frequency_penalty = f32(0.1F);
    batch.rows.push_back(row);
  }
  check_batch(batch);
}

// ---- special rows --------------------------------------------------------------------------

// The status words, spelled out, and what stands beside them.
TEST(SampleRules, SpecialRowsSayWhatTheyAre) {
  struct Special {
    std::int32_t status;
    std::function<void(TestRow&)> edit;
  };
  const Special specials[] = {
      {0, [](TestRow&) {}},
      {to_int(RowStatus::has_nan), [](TestRow& r) { r.logits[7] = kNan; }},
      {to_int(RowStatus::has_nan), [](TestRow& r) { r.logits[0] = kNan, r.temperature = 0; }},
      {to_int(RowStatus::has_nan),
       [](TestRow& r) { r.logits[3] = kInfinity, r.bias.assign(8, -kInfinity); }},
      {0,
       [](TestRow& r) {
         r.logits[7] = kNan, r.token_mask.assign(8, true), r.token_mask[7] = false;
       }},
      {to_int(RowStatus::has_infinity), [](TestRow& r) { r.logits[5] = kInfinity; }},
      {to_int(RowStatus::has_infinity),
       [](TestRow& r) { r.logits[5] = kInfinity, r.temperature = 0; }},
      {to_int(RowStatus::all_masked) | to_int(RowStatus::fewer_than_k),
       [](TestRow& r) { r.logits.assign(8, -kInfinity); }},
      {to_int(RowStatus::all_masked) | to_int(RowStatus::fewer_than_k),
       [](TestRow& r) { r.token_mask.assign(8, false); }},
      {to_int(RowStatus::all_masked) | to_int(RowStatus::fewer_than_k),
       [](TestRow& r) { r.token_mask.assign(8, false), r.temperature = 0; }},
      {to_int(RowStatus::fewer_than_k),
       [](TestRow& r) { r.token_mask.assign(8, false), r.token_mask[6] = true; }},
      {to_int(RowStatus::has_infinity) | to_int(RowStatus::fewer_than_k),
       [](TestRow& r) { r.logits.assign(8, -kInfinity), r.logits[2] = kInfinity; }},
      {to_int(RowStatus::bad_parameter), [](TestRow& r) { r.temperature = -1; }},
      {to_int(RowStatus::bad_parameter), [](TestRow& r) { r.temperature = kNan; }},
      {to_int(RowStatus::bad_parameter), [](TestRow& r) { r.temperature = kInfinity; }},
      {to_int(RowStatus::bad_parameter), [](TestRow& r) { r.top_k = -1; }},
      {to_int(RowStatus::bad_parameter), [](TestRow& r) { r.top_p = -0.5; }},
      {to_int(RowStatus::bad_parameter), [](TestRow& r) { r.top_p = 1.5; }},
      {to_int(RowStatus::bad_parameter), [](TestRow& r) { r.top_p = kNan; }},
      {to_int(RowStatus::bad_parameter), [](TestRow& r) { r.min_p = -0.5; }},
      {to_int(RowStatus::bad_parameter), [](TestRow& r) { r.min_p = 1.5; }},
      {to_int(RowStatus::bad_parameter), [](TestRow& r) { r.min_p = kNan; }},
      {to_int(RowStatus::bad_parameter), [](TestRow& r) { r.repetition_penalty = 0; }},
      {to_int(RowStatus::bad_parameter), [](TestRow& r) { r.repetition_penalty = -1; }},
      {to_int(RowStatus::bad_parameter), [](TestRow& r) { r.repetition_penalty = kInfinity; }},
      {to_int(RowStatus::bad_parameter), [](TestRow& r) { r.frequency_penalty = kNan; }},
      {to_int(RowStatus::bad_parameter), [](TestRow& r) { r.presence_penalty = -kInfinity; }},
      {to_int(RowStatus::bad_parameter), [](TestRow& r) { r.top_p = 2, r.temperature = 0; }},
  };
  Batch batch{.top_count = 2};
  std::vector<std::int32_t> expected;
  for (const Special& special : specials) {
    TestRow row;
    row.logits = {0, 1, 2, 3, 4, 3, 2, 1};
    row.history = {1, 2, 2};
    special.edit(row);
    batch.rows.push_back(row);
    expected.push_back(special.status);
  }
  check_batch(batch);
  SampleRun run(batch);
  for_each_implementation(run.accepting(), [&](Runner& context) {
    run.run(context);
    EXPECT_EQ(run.statuses(), expected);
  });
}

// Without a wish for top tokens there is no k to fall short of.
TEST(SampleRules, OneTokenLeftIsEnoughForADraw) {
  TestRow row;
  row.logits = {0, 1, 2};
  row.token_mask = {false, true, false};
  Batch batch{.rows = {row, row}};
  batch.rows[1].token_mask[1] = false;
  SampleRun run(batch);
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    EXPECT_THAT(run.tokens(), ElementsAre(1, -1));
    EXPECT_THAT(run.statuses(), ElementsAre(0, to_int(RowStatus::all_masked)));
    EXPECT_NEAR(run.log_probability.values()[0], 0, 1e-6);
  });
}

// ---- ways to call --------------------------------------------------------------------------

TEST(SampleRules, AnyLeadingShape) {
  Batch batch{.top_count = 2};
  for (std::uint64_t i = 0; i < 6; ++i) batch.rows.push_back(random_row(40, DType::bf16, 70 + i));
  batch.dtype = DType::bf16;
  for (const std::vector<std::int64_t>& lead :
       {std::vector<std::int64_t>{6}, {1, 6}, {2, 3}, {2, 1, 3}, {6, 1}}) {
    batch.lead = lead;
    check_batch(batch);
  }
}

TEST(SampleRules, SharedBiasAndMaskAndNothingElse) {
  Batch batch;
  TestRow row;
  row.bias = random_logits(70, 3, DType::f32, 5);
  for (int i = 0; i < 70; ++i) row.token_mask.push_back(i % 5 != 2);
  for (std::uint64_t i = 0; i < 9; ++i) {
    row.logits = random_logits(70, 1, DType::f32, 40 + i);
    row.position = static_cast<std::int64_t>(i);
    batch.rows.push_back(row);
  }
  batch.share_bias = batch.share_mask = batch.leave_out_defaults = true;
  check_batch(batch);
  batch.want_log_probability = batch.want_status = false;
  check_batch(batch);
}

TEST(SampleRules, OneRowWithoutALeadingShape) {
  const std::vector<double> logits = {0, 3, 1, 2};
  Guarded values(test_device(), DType::f32, {4}, logits);
  Guarded zero(test_device(), DType::i64, {1}, std::vector<double>{0});
  Guarded cold(test_device(), DType::f32, {1}, std::vector<double>{0});
  Guarded token(test_device(), DType::i64, {1});
  const auto scalar = [](auto view) {
    view.rank = 0;
    return view;
  };
  SampleArgs args{.logits = values,
                  .temperature = scalar(cold.view()),
                  .seed = scalar(zero.view()),
                  .position = scalar(zero.view()),
                  .token = scalar(token.view())};
  Context context({.device = test_device()});
  sample(context, args);
  context.synchronize();
  EXPECT_THAT(token.values(), ElementsAre(1));
}

TEST(SampleRules, NoRowsWriteNothing) {
  Batch batch{.rows = {random_row(20, DType::f32, 1)}, .top_count = 3};
  SampleRun run(batch);
  SampleArgs args = run.args;
  for (ConstTensorView* view :
       {&args.logits, &args.temperature, &args.top_k, &args.top_p, &args.min_p, &args.history,
        &args.repetition_penalty, &args.frequency_penalty, &args.presence_penalty,
        &args.prompt_length, &args.seed, &args.position}) {
    if (view->defined()) view->shape[0] = 0;
  }
  for (TensorView* view : {&args.token, &args.log_probability, &args.top_tokens,
                           &args.top_log_probabilities, &args.status}) {
    if (view->defined()) view->shape[0] = 0;
  }
  args.bias = args.token_mask = {};
  Context context({.device = test_device()});
  sample(context, args);
  context.synchronize();
  for (Guarded* output : run.outputs()) EXPECT_TRUE(output->unchanged());
}

}  // namespace
}  // namespace touchstone::test
