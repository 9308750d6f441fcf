// 20 steps of training against PyTorch: tests/peers/train_golden_torch_peer.py made the numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "json/json.h"
#include "touchstone/train/decoder.h"
#include "touchstone/train/operators.h"
#include "train/train_test_support.h"

namespace touchstone::train {
namespace {

using test::device_tensor;
using test::host_values;
using test::test_device;

constexpr std::int64_t kRows = 3, kLength = 7, kVocabulary = 11;
constexpr int kSteps = 20;

io::ModelDescription golden_description() {
  io::ModelDescription d;
  d.family = io::ModelFamily::qwen3;
  d.width = 8;
  d.ffn_width = 12;
  d.heads = 2;
  d.kv_heads = 1;
  d.head_size = 4;
  d.vocabulary = kVocabulary;
  d.context = 32;
  d.layers.resize(2);
  d.qk_norm = true;
  d.norm_epsilon = 1e-5;
  d.rope.dims = 4;
  d.attention_scale = 0.5;
  return d;
}

Json golden() {
  std::ifstream file(TOUCHSTONE_TRAIN_TESTDATA "/adamw_qwen3.json");
  std::stringstream text;
  text << file.rdbuf();
  return Json::parse(text.str());
}

std::int64_t elements_of(const Parameter& parameter) {
  std::int64_t count = 1;
  for (const std::int64_t extent : parameter.shape) count *= extent;
  return count;
}

struct GoldenRun {
  std::vector<double> losses, norms;
  std::vector<double> weights;  // as the buffer has them
};

template <class T>
GoldenRun run_steps(Decoder& decoder, Context& context) {
  Parameters& p = decoder.parameters();
  std::vector<T> start(static_cast<std::size_t>(p.elements()));
  int index = 0;
  for (const Parameter& parameter : p.list()) {
    for (std::int64_t i = 0; i < elements_of(parameter); ++i) {
      const double value = std::sin(0.37 + 1.3 * index + 0.61 * static_cast<double>(i));
      start[static_cast<std::size_t>(parameter.offset + i)] =
          static_cast<T>(parameter.matrix ? 0.3 * value : 1 + 0.1 * value);
    }
    ++index;
  }
  const StreamLocation here{test_device(), context.stream()};
  queue_copy(here, p.weights().data, {}, start.data(),
             static_cast<std::int64_t>(start.size() * sizeof(T)));
  wait_for(here);
  std::vector<std::int32_t> tokens, targets;
  std::vector<std::int64_t> positions;
  std::int64_t counted = 0;
  for (std::int32_t i = 0; i < kRows * kLength; ++i) {
    const auto token = [&](std::int32_t salt) {
      return static_cast<std::int32_t>((i * 7 + i / 3 * 5 + salt) % kVocabulary);
    };
    tokens.push_back(token(1));
    targets.push_back(i % 5 == 2 ? -100 : token(4));
    counted += i % 5 == 2 ? 0 : 1;
    positions.push_back(i % kLength);
  }
  const Tensor device_tokens = device_tensor(tokens);
  const Tensor device_targets = device_tensor(targets);
  const Tensor device_positions = device_tensor(positions);
  const Tensor dloss = device_tensor(
      std::vector<T>(tokens.size(), static_cast<T>(1.0 / static_cast<double>(counted))));
  Tensor loss = device_tensor(std::vector<T>{0});
  Tensor norm = device_tensor(std::vector<double>{0});
  GoldenRun result;
  for (int step = 0; step < kSteps; ++step) {
    p.prepare(context);
    p.clear_gradients(context);
    decoder.backward(context,
                     {.tokens = device_tokens,
                      .targets = device_targets,
                      .positions = device_positions,
                      .rows = kRows},
                     {}, dloss, loss);
    gradient_norm(context, {.gradient = p.gradients(), .norm = norm});
    const std::int64_t ends[] = {0, p.matrix_elements(), p.elements()};
    for (int part = 0; part < 2; ++part) {
      const auto of = [&](const TensorView& buffer) {
        return Parameters::part(buffer, ends[part], ends[part + 1]);
      };
      adamw(context, {.gradient = of(p.gradients()),
                      .norm = norm,
                      .weight = of(p.weights()),
                      .m = of(p.m()),
                      .v = of(p.v()),
                      .step = step + 1,
                      .learning_rate = 0.01 * (1 - step / 40.0),
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .epsilon = 1e-8,
                      .weight_decay = part == 0 ? 0.1 : 0,
                      .clip = 0.5});
    }
    result.losses.push_back(static_cast<double>(host_values<T>(context, loss)[0]));
    result.norms.push_back(host_values<double>(context, norm)[0]);
  }
  const std::vector<T> weights = host_values<T>(context, p.weights());
  result.weights.assign(weights.begin(), weights.end());
  return result;
}

TEST(AdamWGolden, TwentyStepsInF64AreThoseOfPyTorch) {
  if (test_device().is_cuda()) GTEST_SKIP() << "f64 is on the CPU";
  const Json expected = golden();
  Context context;
  Decoder decoder(context, golden_description(),
                  {.compute = DType::f64, .max_tokens = kRows * kLength, .max_length = kLength});
  const GoldenRun got = run_steps<double>(decoder, context);
  for (std::size_t i = 0; i < kSteps; ++i) {
    EXPECT_NEAR(got.losses[i], expected["losses"][i].get<double>(), 1e-9) << "step " << i;
    EXPECT_NEAR(got.norms[i], expected["norms"][i].get<double>(), 1e-8) << "step " << i;
  }
  const std::vector<Parameter>& list = decoder.parameters().list();
  ASSERT_EQ(list.size(), expected["weights"].size());
  double worst = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto values = expected["weights"][i].get<std::vector<double>>();
    ASSERT_EQ(std::ssize(values), elements_of(list[i])) << list[i].name;
    for (std::size_t j = 0; j < values.size(); ++j) {
      const double difference =
          got.weights[static_cast<std::size_t>(list[i].offset) + j] - values[j];
      worst = std::max(worst, std::abs(difference));
    }
  }
  EXPECT_LT(worst, 1e-9);
}

TEST(AdamWGolden, TwentyStepsInF32HaveTheLossesOfPyTorch) {
  const Json expected = golden();
  Context context({.device = test_device()});
  Decoder decoder(context, golden_description(),
                  {.max_tokens = kRows * kLength, .max_length = kLength});
  const GoldenRun got = run_steps<float>(decoder, context);
  for (std::size_t i = 0; i < kSteps; ++i) {
    EXPECT_NEAR(got.losses[i], expected["losses_f32"][i].get<double>(), 1e-5) << "step " << i;
  }
}

}  // namespace
}  // namespace touchstone::train
