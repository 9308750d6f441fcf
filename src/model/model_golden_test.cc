// Random models of every architecture against `transformers`: testdata/*.json, by
// tests/peers/model_golden_torch_peer.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

#include "model/model_test_support.h"

namespace touchstone::model {
namespace {

using test::last_logits;
using test::random_tokens;

constexpr const char* kGolden[] = {"llama",      "llama3", "mistral",  "qwen2",
                                   "qwen2_yarn", "qwen3",  "gemma2",   "gemma3",
                                   "phi3",       "gpt2",   "gpt_neox", "gpt_neox_sequential"};

Json golden(const std::string& name) {
  return test::read_json(std::filesystem::path(TOUCHSTONE_MODEL_TESTDATA) / (name + ".json"));
}

constexpr std::int64_t kLongest = 2048;  // prompts have up to 2000 tokens

class ModelGolden : public testing::TestWithParam<const char*> {};

void expect_logits(Context& context, Model& model, const Json& row, double tolerance) {
  const auto length = row["length"].get<std::uint64_t>();
  const auto sequence = model.create();
  const std::vector<float> logits =
      last_logits(context, model, sequence, random_tokens(length, 512), 256);
  model.release(sequence);
  const auto bound = tolerance * row["largest"].get<double>();
  for (std::size_t i = 0; i < row["indices"].size(); ++i) {
    const auto token = row["indices"][i].get<std::size_t>();
    ASSERT_NEAR(logits[token], row["logits"][i].get<double>(), bound)
        << length << " tokens, logit " << token;
  }
}

TEST_P(ModelGolden, LogitsAndGreedyTokens) {
  const Json g = golden(GetParam());
  const test::ModelFolder folder(std::string("golden_") + GetParam());
  folder.write(g["config"], g["tensors"]);
  Context context = test::device_context();
  Model model(context, io::ModelFile::open(folder.path()), {.max_length = kLongest});
  const double tolerance = test::logit_tolerance(DType::f32, model.description().layers.size());
  for (const Json& row : g["rows"]) expect_logits(context, model, row, tolerance);

  const auto prompt = random_tokens(g["greedy"]["prompt"].get<std::uint64_t>(), 512);
  const auto sequence = model.create();
  std::vector<float> logits = last_logits(context, model, sequence, prompt, prompt.size());
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < g["greedy"]["ids"].size(); ++i) {
    ids.push_back(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
    logits = last_logits(context, model, sequence, {&ids.back(), 1}, 1);
  }
  EXPECT_EQ(ids, g["greedy"]["ids"].get<std::vector<std::int32_t>>());
  // The first step of one row runs as it is, and so does a prompt of one token.
  EXPECT_EQ(model.graph_replays() > 190, ::touchstone::test::on_gpu());
}

// Logits after each of `ids` but the last, which follow the prompt of the greedy tokens.
std::vector<std::vector<float>> forced_logits(Context& context, Model& model, const Json& greedy) {
  const auto prompt = random_tokens(greedy["prompt"].get<std::uint64_t>(), 512);
  const auto ids = greedy["ids"].get<std::vector<std::int32_t>>();
  const auto sequence = model.create();
  std::vector<std::vector<float>> steps = {
      last_logits(context, model, sequence, prompt, prompt.size())};
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    steps.push_back(last_logits(context, model, sequence, {&ids[i], 1}, 1));
  }
  model.release(sequence);
  return steps;
}

// A greedy token is the same where the two largest logits are further apart than both may move.
TEST_P(ModelGolden, SixteenBits) {
  const Json g = golden(GetParam());
  const test::ModelFolder folder(std::string("golden16_") + GetParam());
  folder.write(g["config"], g["tensors"]);
  Context context = test::device_context();
  Model exact(context, io::ModelFile::open(folder.path()), {.max_length = kLongest});
  const std::vector<std::vector<float>> expected = forced_logits(context, exact, g["greedy"]);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    SCOPED_TRACE(name_of(dtype));
    const double tolerance = test::logit_tolerance(dtype, exact.description().layers.size());
    Model model(context, io::ModelFile::open(folder.path()),
                {.compute = dtype, .max_length = kLongest});
    for (const Json& row : g["rows"]) {
      // Of the two, the one with the coarser roundings reads the longest prompts.
      if (dtype == DType::f16 && row["length"].get<int>() > 300) continue;
      expect_logits(context, model, row, tolerance);
    }
    const std::vector<std::vector<float>> steps = forced_logits(context, model, g["greedy"]);
    int decided = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const auto token = g["greedy"]["ids"][i].get<std::ptrdiff_t>();
      std::vector<float> sorted = expected[i];
      std::ranges::sort(sorted, std::greater());
      const double largest = std::max(std::abs(sorted.front()), std::abs(sorted.back()));
      const double margin = sorted[0] - sorted[1];
      if (margin <= 2 * tolerance * largest) continue;
      ++decided;
      EXPECT_EQ(std::ranges::max_element(steps[i]) - steps[i].begin(), token) << "step " << i;
    }
    EXPECT_GT(decided, 0);
    RecordProperty(std::string("decided_") + std::string(name_of(dtype)), decided);
  }
}

// What a GPU runs from: the weights of the file on the device.
TEST_P(ModelGolden, UploadedWeightsHaveTheBitsOfTheFile) {
  Context context = test::device_context();
  const Json g = golden(GetParam());
  const test::ModelFolder folder(std::string("uploaded_") + GetParam());
  folder.write(g["config"], g["tensors"]);
  const io::ModelFile file = io::ModelFile::open(folder.path());
  const std::vector<std::int32_t> tokens = random_tokens(9, 512);
  Model mapped(context, io::ModelFile::open(folder.path()), {.max_length = 32});
  Model uploaded(context, file.description(), io::upload_weights(context, file),
                 {.max_length = 32});
  EXPECT_EQ(last_logits(context, mapped, mapped.create(), tokens, 9),
            last_logits(context, uploaded, uploaded.create(), tokens, 9));
}

INSTANTIATE_TEST_SUITE_P(Architectures, ModelGolden, testing::ValuesIn(kGolden),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace touchstone::model
