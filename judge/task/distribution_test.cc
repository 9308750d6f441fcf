#include "judge/task/distribution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "judge/task/generate.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

// What the mildly wrong samplers below are found with. Half of it is not always enough.
constexpr size_t kDraws = 65536;
constexpr size_t kVocabulary = 100;

struct Settings {
  double temperature = 0.8;
  double top_p = 0.9;
  int64_t extra_tokens = 0;  // kept beyond the border of top_p; negative: lost before it
};

std::vector<double> logits() {
  const Stream random(3, 1);
  std::vector<double> values(kVocabulary);
  for (size_t v = 0; v < kVocabulary; ++v) values[v] = 1.5 * random.normal(static_cast<int64_t>(v));
  return values;
}

std::vector<double> probabilities(const Settings& settings) {
  std::vector<double> p = logits();
  const double largest = *std::ranges::max_element(p);
  for (double& value : p) value = std::exp((value - largest) / settings.temperature);
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  std::vector<size_t> rank(p.size());
  std::iota(rank.begin(), rank.end(), size_t{0});
  std::ranges::sort(rank, [&](size_t a, size_t b) { return p[a] > p[b]; });
  size_t kept = 0;
  for (double mass = 0; kept < p.size() && mass < settings.top_p * sum; ++kept)
    mass += p[rank[kept]];
  kept = static_cast<size_t>(static_cast<int64_t>(kept) + settings.extra_tokens);
  for (size_t i = kept; i < rank.size(); ++i) p[rank[i]] = 0;
  const double mass = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= mass;
  return p;
}

// Draws by inverting the distribution function; a table says where to begin.
class Sampler {
 public:
  explicit Sampler(std::vector<double> p) : p_(std::move(p)), start_(kTable) {
    double below = 0;
    size_t entry = 0;
    for (size_t v = 0; v < p_.size(); ++v) {
      below += p_[v];
      sums_.push_back(below);
      for (; entry < kTable && static_cast<double>(entry) < below * kTable; ++entry)
        start_[entry] = v;
    }
    for (; entry < kTable; ++entry) start_[entry] = p_.size() - 1;
  }

  std::vector<int32_t> draw(uint64_t seed, size_t count) const {
    const Stream random(seed, 9);
    std::vector<int32_t> draws(count);
    for (size_t i = 0; i < count; ++i) {
      const double u = random.uniform(static_cast<int64_t>(i));
      size_t v = start_[static_cast<size_t>(u * kTable)];
      while (v + 1 < p_.size() && (sums_[v] <= u || p_[v] <= 0)) ++v;
      while (p_[v] <= 0) --v;  // the sum of all may round to less than 1
      draws[i] = static_cast<int32_t>(v);
    }
    return draws;
  }

 private:
  static constexpr size_t kTable = 4096;
  std::vector<double> p_;
  std::vector<double> sums_;
  std::vector<size_t> start_;
};

TEST(Binomial, TailsAreThoseOfTheSum) {
  // By hand: 10 throws of a coin.
  EXPECT_NEAR(binomial_at_least(10, 0.5, 9), 11.0 / 1024, 1e-14);
  EXPECT_NEAR(binomial_at_most(10, 0.5, 1), 11.0 / 1024, 1e-14);
  EXPECT_EQ(binomial_at_least(10, 0.3, 0), 1);
  EXPECT_EQ(binomial_at_least(10, 0.3, 11), 0);
  EXPECT_NEAR(binomial_at_most(1000, 0.02, 0), std::pow(0.98, 1000), 1e-20);
  EXPECT_NEAR(binomial_at_least(1000, 1e-6, 1), 1 - std::pow(1 - 1e-6, 1000), 1e-12);
}

TEST(Draws, OfARightSamplerFitAThousandTimes) {
  const std::vector<double> p = probabilities({});
  const Sampler sampler(p);
  int surprising = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    // The promise is for any number of draws; most of these are few, to save time.
    const size_t count = seed % 20 == 0 ? kDraws : kDraws / 8;
    const DrawnTest test = test_draws(sampler.draw(seed, count), p);
    ASSERT_GE(test.p_value, kFalseAlarm) << seed << ": " << test.reason;
    surprising += test.p_value < 0.01 ? 1 : 0;
  }
  // The rate is a promise at every level: 10 are expected at most.
  EXPECT_LE(surprising, 22);
}

// Few draws, one value, many values: where limit theorems do not hold.
TEST(Draws, TheRateHoldsForOddDistributions) {
  std::vector<std::vector<double>> shapes = {{1.0}, {0.999999, 0.000001}, {0.5, 0.0, 0.5}};
  shapes.emplace_back(5000, 1.0 / 5000);
  std::vector<double> steep(200);
  for (size_t v = 0; v < steep.size(); ++v) steep[v] = std::ldexp(1.0, -static_cast<int>(v) - 1);
  steep.back() *= 2;
  shapes.push_back(steep);
  for (const std::vector<double>& p : shapes) {
    const Sampler sampler(p);
    for (const size_t count : {0, 1, 2, 17, 1000}) {
      int surprising = 0;
      for (uint64_t seed = 1; seed <= 200; ++seed) {
        const DrawnTest test = test_draws(sampler.draw(seed, count), p);
        ASSERT_GE(test.p_value, kFalseAlarm) << p.size() << " " << count << ": " << test.reason;
        surprising += test.p_value < 0.02 ? 1 : 0;
      }
      EXPECT_LE(surprising, 13) << p.size() << " values, " << count << " draws";
    }
  }
}

void expect_caught(const std::string& what, const std::vector<double>& wrong,
                   const std::string& word) {
  const std::vector<std::vector<double>> right = {probabilities({})};
  const Sampler sampler(wrong);
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const DrawnError found = compare_draws("token", 0, sampler.draw(seed, kDraws), right);
    ASSERT_FALSE(found.reason.empty()) << what << ", seed " << seed;
    EXPECT_GT(found.error.outside, 0);
    EXPECT_GT(found.error.worst, 1);
    EXPECT_NE(found.reason.find(word), std::string::npos) << found.reason;
  }
}

TEST(Draws, OfMildlyWrongSamplersDoNotFit) {
  expect_caught("temperature 5 % too high", probabilities({.temperature = 0.84}), "");
  expect_caught("temperature 5 % too low", probabilities({.temperature = 0.76}), "");
  expect_caught("one token beyond top-p", probabilities({.extra_tokens = 1}), "probability 0");
  expect_caught("one token too few", probabilities({.extra_tokens = -1}), "");
  expect_caught("top-p 0.88", probabilities({.top_p = 0.88}), "");
  // Any one token missing, its share spread over the others.
  const std::vector<double> right = probabilities({});
  for (size_t v = 0; v < right.size(); ++v) {
    if (right[v] < 5e-4) continue;
    std::vector<double> missing = right;
    missing[v] = 0;
    for (double& p : missing) p /= 1 - right[v];
    expect_caught("token " + std::to_string(v) + " missing", missing, "");
  }
  // The two most probable tokens exchanged.
  std::vector<double> exchanged = right;
  const auto first = std::ranges::max_element(exchanged);
  double& most = *first;
  double* second = nullptr;
  for (double& p : exchanged) {
    if (&p != &most && (!second || p > *second)) second = &p;
  }
  ASSERT_GT(most, 1.1 * *second);
  std::swap(most, *second);
  expect_caught("two tokens exchanged", exchanged, "");
}

TEST(Draws, ThatDependOnEachOtherDoNotFit) {
  const std::vector<double> p = probabilities({});
  std::vector<int32_t> draws = Sampler(p).draw(5, kDraws);
  ASSERT_GE(test_draws(draws, p).p_value, kFalseAlarm);
  std::vector<int32_t> doubled(draws);
  for (size_t i = 0; i + 1 < doubled.size(); i += 2) doubled[i + 1] = doubled[i];
  EXPECT_LT(test_draws(doubled, p).p_value, kFalseAlarm);
  std::ranges::sort(draws);  // the right frequencies, and still no draws
  EXPECT_LT(test_draws(draws, p).p_value, kFalseAlarm);
}

TEST(Draws, ImpossibleOnesAreNamed) {
  const std::vector<double> p = {0.25, 0.75, 0};
  const std::vector<int32_t> draws = {1, 0, 1, 2, 1, -1, 7};
  const DrawnTest test = test_draws(draws, p);
  EXPECT_EQ(test.p_value, 0);
  EXPECT_EQ(test.outside, 3);
  EXPECT_EQ(test.first_outside, 3);
  EXPECT_EQ(test.reason, "3 of 7 draws have probability 0, the first is 2");
}

// A token at the border of top-p may be in or out; then all of it.
TEST(Draws, MayFitAnyOfSeveralDistributions) {
  const std::vector<std::vector<double>> either = {probabilities({}),
                                                   probabilities({.extra_tokens = 1})};
  for (const std::vector<double>& p : either) {
    EXPECT_TRUE(compare_draws("token", 0, Sampler(p).draw(8, kDraws), either).reason.empty());
  }
  std::vector<double> between = either[0];
  for (size_t v = 0; v < between.size(); ++v) between[v] = (either[0][v] + either[1][v]) / 2;
  EXPECT_FALSE(compare_draws("token", 0, Sampler(between).draw(8, kDraws), either).reason.empty());
  EXPECT_THROW(compare_draws("token", 0, {}, {}), InvalidArgument);
}

}  // namespace
}  // namespace touchstone::judge
