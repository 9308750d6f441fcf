// SmolLM2-135M-Instruct (make real-model) against tests/peers/smollm2_reference.py: float32 on the
// dequantized weights. All prompts and all their tokens with TOUCHSTONE_WHOLE_PRODUCT=1.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "model/model_test_support.h"
#include "touchstone/decode/perplexity.h"
#include "touchstone/decode/scheduler.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::model {
namespace {

namespace fs = std::filesystem;

using test::real_model;

class RealModel : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(real_model())) {
      std::cout << "SKIPPED: no real model; make real-model brings it\n";
      GTEST_SKIP();
    }
    golden_ = test::read_json(fs::path(TOUCHSTONE_MODEL_TESTDATA) / "smollm2.json");
    whole_ = std::getenv("TOUCHSTONE_WHOLE_PRODUCT") != nullptr;
  }

  Json golden_;
  bool whole_ = false;
};

TEST_F(RealModel, GreedyTokensAreThoseOfTheReference) {
  const std::size_t prompts = whole_ ? golden_["prompts"].size() : 8;
  const std::int64_t tokens = whole_ ? 200 : 24;
  Context context = test::device_context();
  Model model(context, io::ModelFile::open(real_model()),
              {.max_length = 320, .sequences = static_cast<std::int64_t>(prompts)});
  const io::Tokenizer tokenizer = io::Tokenizer::from_file(real_model());
  decode::Scheduler scheduler(model, {.tokenizer = &tokenizer});
  std::vector<decode::RequestId> ids;
  for (std::size_t i = 0; i < prompts; ++i) {
    const Json& prompt = golden_["prompts"][i];
    decode::Request request;
    request.prompt = tokenizer.encode(prompt["text"].get<std::string>());
    ASSERT_EQ(request.prompt, prompt["ids"].get<std::vector<std::int32_t>>());
    request.stop = {.max_tokens = tokens, .ignore_eos = true};
    ids.push_back(scheduler.submit(std::move(request)));
  }
  while (scheduler.step(context)) {
  }
  for (std::size_t i = 0; i < prompts; ++i) {
    auto expected = golden_["prompts"][i]["greedy"].get<std::vector<std::int32_t>>();
    expected.resize(static_cast<std::size_t>(tokens));
    EXPECT_EQ(scheduler.take(ids[i])[0].tokens, expected)
        << golden_["prompts"][i]["text"].get<std::string>();
  }
}

// The loss of windows, each alone. 0.1 % of the perplexity is required; float32 sums in another order
// differ by far less.
TEST_F(RealModel, WikiTextPerplexityIsThatOfTheReference) {
  const Json golden = test::read_json(fs::path(TOUCHSTONE_MODEL_TESTDATA) / "wikitext2.json");
  ASSERT_EQ(golden["windows"].size(), 8U);
  Context context = test::device_context();
  Model model(context, io::ModelFile::open(real_model()), {.max_length = 512, .max_rows = 64});
  const std::size_t windows = whole_ ? 8 : 1;
  double loss = 0;
  double expected = 0;
  for (std::size_t i = 0; i < windows; ++i) {
    const Json& window = golden["windows"][i];
    const auto tokens = window["ids"].get<std::vector<std::int32_t>>();
    const decode::Perplexity result = decode::perplexity(context, model, tokens, {.window = 512});
    ASSERT_EQ(result.tokens(), 511);
    const auto reference = window["nll"].get<double>();
    EXPECT_NEAR(std::exp((result.loss() - reference) / 511), 1, 1e-4) << i;
    loss += result.loss();
    expected += reference;
  }
  EXPECT_NEAR(std::exp((loss - expected) / (511 * static_cast<double>(windows))), 1, 1e-5);
}

TEST_F(RealModel, PerplexityIsThatOfTheReference) {
  const io::Tokenizer tokenizer = io::Tokenizer::from_file(real_model());
  const std::string text = [] {
    std::ifstream file(TOUCHSTONE_SOURCE "/LICENSE");
    return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }();
  const std::vector<std::int32_t> tokens = tokenizer.encode(text);
  Context context = test::device_context();
  Model model(context, io::ModelFile::open(real_model()), {.max_length = 512, .max_rows = 64});
  const std::size_t windows = whole_ ? golden_["license"].size() : 1;
  const decode::Perplexity result =
      decode::perplexity(context, model, std::span(tokens).first(windows * 512), {.window = 512});
  ASSERT_EQ(result.windows.size(), windows);
  for (std::size_t i = 0; i < windows; ++i) {
    const double expected = golden_["license"][i]["nll"].get<double>() / 511;
    // 0.1 % of the perplexity is required; float32 sums in another order differ by far less.
    EXPECT_NEAR(std::exp(result.windows[i].loss / 511), std::exp(expected),
                1e-4 * std::exp(expected));
  }
}

}  // namespace
}  // namespace touchstone::model
