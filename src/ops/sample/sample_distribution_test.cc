// The distribution of a million draws against its enumeration. Seeds are fixed, so a test that
// passes once passes always; the threshold of 1e-6 is for whoever changes a seed.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/sample/sample_test_support.h"

namespace touchstone::test {
namespace {

constexpr double kThreshold = 1e-6;
constexpr std::int64_t kDrawsPerCall = sanitized_size(250'000, 10'000);
constexpr int kCalls = sanitized_size(4, 2);

struct Mix {
  const char* name;
  DType dtype;
  TestRow row;
  // What a wrong rule would make of the row: each must be told from the right one.
  std::vector<std::pair<const char*, TestRow>> wrong;
};

TestRow with(TestRow row, const std::function<void(TestRow&)>& edit) {
  edit(row);
  return row;
}

TestRow plain_row(std::int64_t vocabulary, double scale, std::uint64_t seed,
                  DType dtype = DType::f32) {
  TestRow row;
  row.logits = random_logits(vocabulary, scale, dtype, seed);
  row.seed = static_cast<std::int64_t>(seed);
  return row;
}

Mix temperature_mix() {
  const TestRow row = with(plain_row(24, 1.5, 11), [](TestRow& r) { r.temperature = 0.75; });
  return {"temperature",
          DType::f32,
          row,
          {{"two percent colder", with(row, [](TestRow& r) { r.temperature *= 0.98; })},
           {"no temperature", with(row, [](TestRow& r) { r.temperature = 1; })}}};
}

Mix top_k_mix() {
  const TestRow row = with(plain_row(40, 1, 12), [](TestRow& r) { r.top_k = 7; });
  return {"top_k",
          DType::bf16,
          row,
          {{"one more", with(row, [](TestRow& r) { r.top_k = 8; })},
           {"one less", with(row, [](TestRow& r) { r.top_k = 6; })}}};
}

Mix top_p_mix() {
  // Twenty equal tokens: .35 of the mass is exactly seven.
  TestRow row = plain_row(20, 0, 13);
  row.top_p = static_cast<double>(0.35F);
  return {"top_p",
          DType::f16,
          row,
          {{"one more", with(row, [](TestRow& r) { r.top_p = 0.4; })},
           {"one less", with(row, [](TestRow& r) { r.top_p = 0.3; })}}};
}

Mix min_p_mix() {
  const TestRow row =
      with(plain_row(33, 2, 14), [](TestRow& r) { r.min_p = static_cast<double>(0.1F); });
  return {"min_p",
          DType::f32,
          row,
          {{"of the whole, not of the first", with(row, [](TestRow& r) { r.min_p = 0.02; })},
           {"not at all", with(row, [](TestRow& r) { r.min_p = 0; })}}};
}

Mix cuts_mix() {
  TestRow row = plain_row(30, 0.7, 15);
  row.top_k = 10;
  row.top_p = static_cast<double>(0.6F);
  row.min_p = static_cast<double>(0.05F);
  row.temperature = 1.25;
  return {"all cuts",
          DType::f32,
          row,
          {{"top_p of the whole mass", with(row, [](TestRow& r) { r.top_k = 0; })},
           {"no top_p", with(row, [](TestRow& r) { r.top_p = 1; })}}};
}

Mix penalties_mix() {
  TestRow row = plain_row(17, 1, 16);
  row.bias = rounded(random_values({.scale = 0.5}, 17, 161), DType::f32);
  row.token_mask.assign(17, true);
  row.token_mask[3] = row.token_mask[16] = false;
  row.history = {0, 1, 1, -1, 2, 5, 5, 5, 99, 2, 7, -1};
  row.prompt_length = 5;
  row.repetition_penalty = static_cast<double>(1.3F);
  row.frequency_penalty = 0.25;
  row.presence_penalty = 0.125;
  return {"penalties",
          DType::f32,
          row,
          {{"no bias", with(row, [](TestRow& r) { r.bias.clear(); })},
           {"no mask", with(row, [](TestRow& r) { r.token_mask.clear(); })},
           {"no repetition", with(row, [](TestRow& r) { r.repetition_penalty = 1; })},
           {"prompt counted as output", with(row, [](TestRow& r) { r.prompt_length = 0; })},
           {"no presence", with(row, [](TestRow& r) { r.presence_penalty = 0; })}}};
}

Mix ties_mix() {
  // Few different values: the cut goes through a run of equal tokens.
  TestRow row;
  for (int i = 0; i < 36; ++i) row.logits.push_back(i % 3 * 0.5);
  row.top_k = 17;
  row.seed = 17;
  return {"ties",
          DType::bf16,
          row,
          {{"the last of the ties instead of the first", with(row, [](TestRow& r) {
              for (int i = 0; i < 36; ++i) {
                if (i % 3 == 1) r.logits[static_cast<std::size_t>(i)] += i * 1e-3;
              }
            })}}};
}

Mix infinity_mix() {
  TestRow row = plain_row(9, 1, 18);
  row.logits[2] = row.logits[4] = row.logits[8] = HUGE_VAL;
  return {"infinity",
          DType::f32,
          row,
          {{"the first only", with(row, [](TestRow& r) { r.top_k = 1; })},
           {"two of three", with(row, [](TestRow& r) { r.top_k = 2; })}}};
}

Mix large_mix() {
  const TestRow row = plain_row(400, 1, 19);
  return {"four hundred tokens", DType::f32, row, {{"two percent colder", with(row, [](TestRow& r) {
                                                      r.temperature = 0.98;
                                                    })}}};
}

class SampleDistribution : public testing::TestWithParam<Mix (*)()> {};

TEST_P(SampleDistribution, OfAMillionDrawsMatchesEnumeration) {
  Mix mix = GetParam()();
  SCOPED_TRACE(mix.name);
  mix.row.logits = rounded(mix.row.logits, mix.dtype);
  Batch batch{.rows = {mix.row}, .dtype = mix.dtype};
  batch.want_log_probability = batch.want_status = false;
  const oracle::SampleDistribution right = oracle::sample_distribution(mix.row);
  for_each_implementation(SampleRun(batch).accepting(), [&](Runner& context) {
    std::vector<std::int64_t> counts(mix.row.logits.size());
    for (int call = 0; call < kCalls; ++call) {
      batch.rows[0].position = call * kDrawsPerCall;
      const std::vector<std::int64_t> more = draw_many(context, batch, kDrawsPerCall);
      for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += more[i];
    }
    EXPECT_GT(chi_square_p(counts, right.probability), kThreshold);
    if (kSanitized) return;  // too few draws to tell small mistakes
    for (const auto& [name, row] : mix.wrong) {
      const oracle::SampleDistribution wrong = oracle::sample_distribution(row);
      EXPECT_LT(chi_square_p(counts, wrong.probability), kThreshold)
          << "a wrong rule would go unnoticed: " << name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Mixes, SampleDistribution,
                         testing::Values(temperature_mix, top_k_mix, top_p_mix, min_p_mix, cuts_mix,
                                         penalties_mix, ties_mix, infinity_mix, large_mix));

// The statistic itself: a fair die passes, a loaded one does not, and the tail is the tabulated
// one.
TEST(ChiSquare, TellsALoadedDieFromAFairOne) {
  const std::vector<double> fair(6, 1.0 / 6);
  EXPECT_GT(chi_square_p({166, 170, 165, 171, 163, 165}, fair), 0.9);
  EXPECT_LT(chi_square_p({100, 170, 165, 171, 163, 231}, fair), kThreshold);
  EXPECT_EQ(chi_square_p({10, 1}, {1, 0}), 0);
  // One degree of freedom: a statistic of 3.841 has the probability .05.
  EXPECT_NEAR(chi_square_p({531, 469}, {0.5, 0.5}), std::erfc(std::sqrt(3.844 / 2)), 1e-9);
}

}  // namespace
}  // namespace touchstone::test
