// Guards against self-deception: models whose perplexity is known.
#include "touchstone/decode/perplexity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "oracle/path_scorer.h"
#include "touchstone/core/error.h"
#include "touchstone/core/random.h"

namespace touchstone::decode {
namespace {

constexpr std::int64_t kLetters = 26;

std::vector<std::int32_t> random_letters(std::int64_t count) {
  std::vector<std::int32_t> text;
  for (std::int64_t i = 0; i < count; ++i) {
    text.push_back(static_cast<std::int32_t>(random_uniform(3, i) * kLetters));
  }
  return text;
}

// Expects the last token again, with probability .9.
oracle::TableScorer copying_model() {
  return {kLetters, 4096, [](const std::vector<std::int32_t>& path, std::span<double> logits) {
            for (double& logit : logits) logit = std::log(0.1 / (kLetters - 1));
            logits[static_cast<std::size_t>(path.back())] = std::log(0.9);
          }};
}

// A fault to be caught: the logits of a row are those of the row after it.
class Shifted : public oracle::TableScorer {
 public:
  Shifted()
      : TableScorer(kLetters, 4096, [this](const auto& path, std::span<double> logits) {
          for (double& logit : logits) logit = std::log(0.1 / (kLetters - 1));
          const std::size_t next = path.size();
          const std::int32_t label = next < text_.size() ? text_[next] : path.back();
          logits[static_cast<std::size_t>(label)] = std::log(0.9);
        }) {}
  void score(Context& context, const ScoreArgs& args) override {
    text_.clear();
    for (const ScoreRow& row : args.rows) text_.push_back(row.token);
    TableScorer::score(context, args);
  }

 private:
  std::vector<std::int32_t> text_;
};

TEST(Perplexity, CopyingIsNoPredictionOfRandomLetters) {
  Context context({.threads = 1});
  oracle::TableScorer model = copying_model();
  const std::vector<std::int32_t> text = random_letters(2000);
  const Perplexity result = perplexity(context, model, text, {.window = 500});
  EXPECT_GE(result.value(), 26);
  EXPECT_EQ(result.tokens(), 4 * 499);
  EXPECT_TRUE(check_causality(context, model, std::span(text).first(16)));
  // Of one row or none there is none but the last.
  EXPECT_TRUE(check_causality(context, model, std::span(text).first(1)));
  EXPECT_TRUE(check_causality(context, model, {}));
  // What a shift of the labels would have made of it.
  Shifted shifted;
  EXPECT_LT(perplexity(context, shifted, text, {.window = 500, .max_rows = 500}).value(), 2);
  EXPECT_FALSE(check_causality(context, shifted, std::span(text).first(16)));
}

TEST(Perplexity, AUnigramModelHasThatOfTheText) {
  Context context({.threads = 1});
  std::vector<std::int32_t> text;
  for (int i = 0; i < 1001; ++i) text.push_back(random_uniform(5, i) < 0.25 ? 1 : 0);
  double ones = 0;
  for (std::size_t i = 1; i < text.size(); ++i) ones += text[i];
  const double p = ones / 1000;
  oracle::TableScorer model(2, 4096, [&](const auto& /*path*/, std::span<double> logits) {
    logits[0] = std::log(1 - p);
    logits[1] = std::log(p);
  });
  const double expected = std::exp(-(p * std::log(p) + (1 - p) * std::log(1 - p)));
  const Perplexity result = perplexity(context, model, text, {.window = 1001});
  EXPECT_EQ(result.tokens(), 1000);
  EXPECT_NEAR(result.value(), expected, 1e-6 * expected);
  EXPECT_TRUE(std::isnan(result.log_probabilities[0]));
  EXPECT_GT(result.half_interval(), 0);
}

TEST(Perplexity, EveryTokenOnceInSlidingWindows) {
  Context context({.threads = 1});
  oracle::TableScorer model(kLetters, 64, oracle::hashed_table(2, 3));
  const std::vector<std::int32_t> text = random_letters(83);
  const Perplexity sliding = perplexity(context, model, text, {.window = 20, .stride = 7});
  EXPECT_EQ(sliding.tokens(), 82);
  // Token 30 is first met in the window from 14 to 34.
  std::vector<double> logits(kLetters);
  oracle::hashed_table(2, 3)({text.begin() + 14, text.begin() + 30}, logits);
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit);
  EXPECT_NEAR(sliding.log_probabilities[30],
              logits[static_cast<std::size_t>(text[30])] - std::log(sum), 1e-5);
  for (const std::int64_t rows : {1, 3, 64}) {
    const Perplexity again =
        perplexity(context, model, text, {.window = 20, .stride = 7, .max_rows = rows});
    EXPECT_EQ(std::vector(sliding.log_probabilities.begin() + 1, sliding.log_probabilities.end()),
              std::vector(again.log_probabilities.begin() + 1, again.log_probabilities.end()));
  }
  // 83 = 4 * 20 + 3: four whole windows and one of three tokens, each without its first.
  EXPECT_EQ(perplexity(context, model, text, {.window = 20}).tokens(), 4 * 19 + 2);
}

TEST(Perplexity, Refuses) {
  Context context({.threads = 1});
  oracle::TableScorer model = copying_model();
  const auto refused = [&](std::vector<std::int32_t> text, const PerplexityOptions& options,
                           const char* message) {
    EXPECT_THAT([&] { perplexity(context, model, text, options); },
                testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr(message)));
  };
  refused({1}, {}, "tokens: expected at least 2, got 1");
  refused({1, 2}, {.window = 1}, "window: expected 2 to 4096, the context, got 1");
  refused({1, 2}, {.window = 8, .stride = 9}, "stride: expected 1 to the window, 8, got 9");
  refused({1, 26}, {}, "token 26 is outside [0, 26)");
}

}  // namespace
}  // namespace touchstone::decode
