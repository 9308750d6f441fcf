// The selection of a step against sorting everything in float64.
#include "decode/beam/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "tests/support/runners.h"

namespace touchstone::decode::beam {
namespace {

constexpr double kLowest = -std::numeric_limits<double>::infinity();

struct Problem {
  std::int64_t vocabulary = 0;
  std::vector<Segment> segments;
  std::int64_t tokens_per_row = 0;
  double masked = 0;  // share of the tokens
  bool normalize_allowed = false;
};

struct Data {
  std::vector<float> logits;
  std::vector<double> scores;
  std::vector<std::int32_t> masks;
  std::vector<std::int32_t> normalize;
  std::int64_t rows = 0;
  std::int64_t max_excluded = 0;
};

bool bit(const Data& d, const Problem& p, std::int64_t row, std::int64_t token) {
  const std::int64_t words = (p.vocabulary + 31) / 32;
  return d.masks.empty() ||
         (static_cast<std::uint32_t>(d.masks[static_cast<std::size_t>(row * words + token / 32)]) >>
              (token % 32) &
          1U) != 0;
}

Data draw(const Problem& p, unsigned seed) {
  Data d;
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, 2);
  for (const Segment& s : p.segments) d.rows = std::max(d.rows, s.row + s.rows);
  d.logits.resize(static_cast<std::size_t>(d.rows * p.vocabulary));
  for (float& v : d.logits) v = normal(engine);
  for (std::int64_t r = 0; r < d.rows; ++r) {
    d.scores.push_back(-std::abs(static_cast<double>(normal(engine))));
  }
  if (p.masked > 0) {
    const std::int64_t words = (p.vocabulary + 31) / 32;
    d.masks.assign(static_cast<std::size_t>(d.rows * words), -1);
    std::bernoulli_distribution excluded(p.masked);
    for (std::int64_t r = 0; r < d.rows; ++r) {
      std::int64_t count = 0;
      for (std::int64_t t = 0; t < p.vocabulary; ++t) {
        if (!excluded(engine)) continue;
        d.masks[static_cast<std::size_t>(r * words + t / 32)] &=
            static_cast<std::int32_t>(~(1U << (t % 32)));
        ++count;
      }
      d.max_excluded = std::max(d.max_excluded, count);
    }
  }
  if (p.normalize_allowed) {
    for (std::int64_t r = 0; r < d.rows; ++r) d.normalize.push_back(static_cast<int>(r % 2));
  }
  return d;
}

std::vector<std::vector<Candidate>> run(const Problem& p, const Data& d, std::int64_t& nan_row) {
  const Device device = test::test_device();
  test::Runner runner({.device = device});
  Tensor logits = Tensor::empty({d.rows, p.vocabulary}, DType::f32);
  std::ranges::copy(d.logits, logits.values<float>().begin());
  const Tensor there = logits.to(device);
  Selector selector;
  BeamStatistics statistics;
  return selector.select(runner,
                         {.logits = there,
                          .scores = d.scores,
                          .segments = p.segments,
                          .tokens_per_row = p.tokens_per_row,
                          .masks = d.masks,
                          .max_excluded = d.max_excluded,
                          .normalize_allowed = d.normalize},
                         nan_row, statistics);
}

std::vector<Candidate> sorted(const Problem& p, const Data& d, const Segment& s) {
  std::vector<Candidate> all;
  for (std::int64_t r = s.row; r < s.row + s.rows; ++r) {
    const float* const row = d.logits.data() + r * p.vocabulary;
    const bool own = !d.normalize.empty() && d.normalize[static_cast<std::size_t>(r)] != 0;
    double sum = 0;
    for (std::int64_t t = 0; t < p.vocabulary; ++t) {
      if (!own || bit(d, p, r, t)) sum += std::exp(static_cast<double>(row[t]));
    }
    for (std::int64_t t = 0; t < p.vocabulary; ++t) {
      if (!bit(d, p, r, t)) continue;
      const double value = static_cast<double>(row[t]) - std::log(sum);
      all.push_back({d.scores[static_cast<std::size_t>(r)] + value, static_cast<float>(value),
                     static_cast<std::int32_t>(r), static_cast<std::int32_t>(t)});
    }
  }
  std::ranges::stable_sort(all, std::ranges::greater{}, &Candidate::score);
  return all;
}

void expect_sorted(const Problem& p, unsigned seed) {
  const Data d = draw(p, seed);
  std::int64_t nan_row = -1;
  const auto lists = run(p, d, nan_row);
  EXPECT_EQ(nan_row, -1);
  ASSERT_EQ(lists.size(), p.segments.size());
  for (std::size_t i = 0; i < lists.size(); ++i) {
    SCOPED_TRACE(i);
    const std::vector<Candidate> all = sorted(p, d, p.segments[i]);
    const std::size_t keep = std::min(all.size(), static_cast<std::size_t>(p.segments[i].keep));
    ASSERT_EQ(lists[i].size(), keep);
    for (std::size_t j = 0; j < keep; ++j) {
      ASSERT_NEAR(lists[i][j].score, all[j].score, 4e-6) << j;
      const double before = j == 0 ? 1 : all[j - 1].score - all[j].score;
      const double after = j + 1 == all.size() ? 1 : all[j].score - all[j + 1].score;
      if (before < 1e-5 || after < 1e-5) continue;
      ASSERT_EQ(lists[i][j].row, all[j].row) << j;
      ASSERT_EQ(lists[i][j].token, all[j].token) << j;
      ASSERT_NEAR(lists[i][j].log_probability, all[j].log_probability, 4e-6F);
    }
  }
}

TEST(BeamSelect, EqualsSortingEverything) {
  expect_sorted({.vocabulary = 50, .segments = {{0, 1, 8}}, .tokens_per_row = 8}, 1);
  expect_sorted({.vocabulary = 3, .segments = {{0, 1, 8}, {1, 5, 10}}, .tokens_per_row = 10}, 2);
  expect_sorted({.vocabulary = 700,
                 .segments = {{0, 4, 8}, {4, 1, 40}, {5, 33, 66}, {38, 20, 7}},
                 .tokens_per_row = 66},
                3);
  expect_sorted({.vocabulary = 5000, .segments = {{0, 64, 128}}, .tokens_per_row = 128}, 4);
  // Several rounds of merging.
  expect_sorted(
      {.vocabulary = 2100, .segments = {{0, 100, 1000}, {100, 300, 2048}}, .tokens_per_row = 2048},
      5);
  expect_sorted({.vocabulary = 64, .segments = {{0, 1024, 2048}}, .tokens_per_row = 64}, 6);
}

TEST(BeamSelect, MasksBySkippingAndByASecondPass) {
  for (const double share : {0.01, 0.3, 0.97}) {
    for (const bool own : {false, true}) {
      SCOPED_TRACE(testing::Message() << share << own);
      expect_sorted({.vocabulary = 900,
                     .segments = {{0, 5, 10}, {5, 1, 300}, {6, 20, 40}},
                     .tokens_per_row = 300,
                     .masked = share,
                     .normalize_allowed = own},
                    7);
    }
  }
}

TEST(BeamSelect, TiesGoToTheLowerRowThenToken) {
  const Problem p{.vocabulary = 40, .segments = {{0, 6, 100}}, .tokens_per_row = 40};
  Data d = draw(p, 1);
  std::ranges::fill(d.logits, 1.5F);
  std::ranges::fill(d.scores, -2.0);
  std::int64_t nan_row = -1;
  const auto lists = run(p, d, nan_row);
  ASSERT_EQ(lists[0].size(), 100U);
  for (std::int32_t i = 0; i < 100; ++i) {
    EXPECT_EQ(lists[0][static_cast<std::size_t>(i)].row, i / 40);
    EXPECT_EQ(lists[0][static_cast<std::size_t>(i)].token, i % 40);
  }
}

TEST(BeamSelect, TheBitsOfARowDoNotDependOnTheCall) {
  const Problem p{.vocabulary = 3000,
                  .segments = {{0, 8, 16}, {8, 70, 140}, {78, 1, 1000}},
                  .tokens_per_row = 1000};
  const Data d = draw(p, 9);
  std::int64_t nan_row = -1;
  const auto together = run(p, d, nan_row);
  for (std::size_t i = 0; i < p.segments.size(); ++i) {
    const Segment s = p.segments[i];
    Problem alone{.vocabulary = 3000, .segments = {{0, s.rows, s.keep}}, .tokens_per_row = s.keep};
    Data part;
    part.rows = s.rows;
    part.logits.assign(d.logits.begin() + s.row * 3000, d.logits.begin() + (s.row + s.rows) * 3000);
    part.scores.assign(d.scores.begin() + s.row, d.scores.begin() + s.row + s.rows);
    const auto lists = run(alone, part, nan_row);
    ASSERT_EQ(lists[0].size(), together[i].size());
    for (std::size_t j = 0; j < lists[0].size(); ++j) {
      EXPECT_EQ(lists[0][j].score, together[i][j].score);
      EXPECT_EQ(lists[0][j].row + s.row, together[i][j].row);
      EXPECT_EQ(lists[0][j].token, together[i][j].token);
    }
  }
}

TEST(BeamSelect, NanAndInfinity) {
  const Problem p{.vocabulary = 400, .segments = {{0, 3, 6}, {3, 40, 80}}, .tokens_per_row = 80};
  Data d = draw(p, 3);
  std::int64_t nan_row = -1;
  for (std::size_t i = 0; i < 400; ++i) d.logits[i] = static_cast<float>(kLowest);
  d.logits[400 + 7] = -static_cast<float>(kLowest);
  const auto lists = run(p, d, nan_row);
  EXPECT_EQ(nan_row, -1);
  for (const Candidate& c : lists[0]) {
    EXPECT_NE(c.row, 0);
    if (c.row == 1) {
      EXPECT_EQ(c.token, 7);
      EXPECT_EQ(c.log_probability, 0);
    }
  }
  d.logits[400 * 30 + 399] = std::numeric_limits<float>::quiet_NaN();
  d.logits[400 * 35] = std::numeric_limits<float>::quiet_NaN();
  run(p, d, nan_row);
  EXPECT_EQ(nan_row, 30);
}

}  // namespace
}  // namespace touchstone::decode::beam
