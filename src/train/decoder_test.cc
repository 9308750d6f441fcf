// Loss and gradients of the decoder: against dual numbers through an independent float64 model,
// with every option; straight through the ternary projection; with activation checkpoints.
#include "touchstone/train/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oracle/decoder_gradient.h"
#include "tests/support/compare.h"
#include "touchstone/core/error.h"
#include "touchstone/gradcheck.h"
#include "touchstone/ops/ternary_project.h"
#include "touchstone/train/operators.h"
#include "train/decoder_test_support.h"
#include "train/operators/problem.h"

namespace touchstone::train {
namespace {

using test::device_tensor;
using Variant = test::DecoderVariant;
using Model = test::RandomDecoder;
using test::host_values;
using test::make_batch;
using test::oracle_batch;
using test::oracle_shape;
using test::OwnedBatch;
using test::small_description;
using test::test_device;

class Gradients : public ::testing::TestWithParam<Variant> {};

TEST_P(Gradients, AgreeWithDualNumbers) {
  if (test_device().is_cuda()) GTEST_SKIP() << "f64 is on the CPU";
  const Variant v = GetParam();
  const io::ModelDescription d = small_description(v.qk_norm, v.tied, v.window);
  const std::int64_t length = 9;
  OwnedBatch b = make_batch(1, length, d.vocabulary, v.document, DType::f64);
  Model model(d, {.compute = DType::f64,
                  .max_tokens = length,
                  .max_length = length,
                  .dropout = v.dropout,
                  .attention_dropout = v.attention_dropout});
  Parameters& p = model.decoder.parameters();
  const StepSeed seed{.seed = 77, .step = 5, .first_token = 40};
  Tensor loss = Tensor::zeros({1}, DType::f64);
  model.decoder.backward(model.context, b.view, seed, b.dloss, loss);

  const oracle::DecoderLossShape shape = oracle_shape(d);
  const oracle::DecoderLossBatch batch = oracle_batch(b, seed, v, d.width);
  const test::LossGradients gradients(model.context, p);
  const gradcheck::Report report = gradients.check(
      [&](const auto& duals) {
        return oracle::decoder_mean_loss<gradcheck::DualScalar>(shape, batch, duals);
      },
      1e-10);
  EXPECT_TRUE(report.ok) << report.summary();
  const auto weights = [&](const std::string& name) { return gradients.value(name); };
  const double expected = oracle::decoder_mean_loss<double>(shape, batch, weights);
  EXPECT_NEAR(loss.values<double>()[0], expected, 1e-12);

  // The gradient by hand that the test of bf16 rounds.
  const oracle::DecoderGradient by_hand = oracle::decoder_gradient(
      shape, batch, weights, [](oracle::Stored, double value) { return value; });
  EXPECT_NEAR(by_hand.loss, expected, 1e-12);
  for (const auto& [name, at] : gradients.index()) {
    EXPECT_LT(test::relative_l2(by_hand.of.at(name), gradients.problem().inputs[at].grad), 1e-12)
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Decoder, Gradients,
    ::testing::Values(
        Variant{}, Variant{.qk_norm = true, .tied = true}, Variant{.tied = true, .document = 4},
        Variant{.qk_norm = true, .document = 3, .dropout = 0.25},
        Variant{.window = 3, .dropout = 0.5}, Variant{.attention_dropout = 0.4},
        Variant{.qk_norm = true, .document = 4, .dropout = 0.1, .attention_dropout = 0.2}),
    [](const auto& variant) {
      const Variant& v = variant.param;
      std::string name = v.qk_norm ? "QkNorm" : "Plain";
      if (v.tied) name += "Tied";
      if (v.document > 0) name += "Documents";
      if (v.window > 0) name += "Window";
      if (v.dropout > 0) name += "Dropout";
      if (v.attention_dropout > 0) name += "Weights";
      return name;
    });

// In f32, and on the GPU, loss and gradients of a batch against f64 on the CPU, which the test
// above proves. Rounding of results and of the sums behind them each move a gradient by about 2^-16
// of the 2 to 3 % that bf16 moves it by (bf16_gradient_test.cc); the bound is twice their sum.
TEST(DecoderTest, F32GradientsAreThoseOfF64) {
  for (const bool qk_norm : {false, true}) {
    const io::ModelDescription d = small_description(qk_norm, qk_norm);
    const StepSeed seed{.seed = 1, .step = 2};
    const auto options = [&](DType compute) {
      return DecoderOptions{.compute = compute,
                            .max_tokens = 24,
                            .max_length = 8,
                            .dropout = 0.25,
                            .attention_dropout = qk_norm ? 0.2 : 0};
    };
    const std::int64_t document = qk_norm ? 4 : 0;
    OwnedBatch wide_batch = make_batch(3, 8, d.vocabulary, document, DType::f64, Device::cpu());
    Model wide(d, options(DType::f64), Device::cpu());
    Tensor wide_loss = Tensor::zeros({1}, DType::f64);
    wide.decoder.backward(wide.context, wide_batch.view, seed, wide_batch.dloss, wide_loss);
    const double expected_loss = wide_loss.values<double>()[0];
    const std::vector<double> expected =
        host_values<double>(wide.context, wide.decoder.parameters().gradients());
    constexpr double kTolerance = 2e-6;
    OwnedBatch b = make_batch(3, 8, d.vocabulary, document);
    Model model(d, options(DType::f32));
    Tensor loss = Tensor::zeros({1}, DType::f32, test_device());
    model.decoder.backward(model.context, b.view, seed, b.dloss, loss);
    EXPECT_NEAR(host_values<float>(model.context, loss)[0], expected_loss,
                kTolerance * expected_loss);
    const std::vector<float> got =
        host_values<float>(model.context, model.decoder.parameters().gradients());
    const std::vector<double> values(got.begin(), got.end());
    EXPECT_LT(test::relative_l2(values, expected), kTolerance);
  }
}

std::vector<std::uint32_t> bits_of_gradients(Model& model) {
  return host_values<std::uint32_t>(model.context, model.decoder.parameters().gradients());
}

TEST(DecoderTest, ActivationCheckpointsChangeNoBit) {
  const io::ModelDescription d = small_description(true, false);
  OwnedBatch b = make_batch(4, 8, d.vocabulary);
  std::vector<std::vector<std::uint32_t>> results;
  for (const bool checkpointed : {false, true, false}) {
    Model model(d, {.max_tokens = 32,
                    .max_length = 8,
                    .checkpoint_activations = checkpointed,
                    .dropout = 0.1});
    Tensor loss = Tensor::zeros({1}, DType::f32, test_device());
    model.decoder.backward(model.context, b.view, {.seed = 3}, b.dloss, loss);
    results.push_back(bits_of_gradients(model));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// The gradient of the latent weights is that of the projected ones, bit for bit: a second model
// whose weights are the projection has the same loss and the same gradients.
TEST(DecoderTest, StraightThroughIsTheGradientOfTheProjectedWeights) {
  io::ModelDescription d = small_description(false, true);
  OwnedBatch b = make_batch(2, 8, d.vocabulary);
  const TernaryRule rule{.geometry = {.size = 32}};
  const auto project = [&](Context& context, const ConstTensorView& weight, const TensorView& y) {
    ternary_project(context, {.weight = weight, .rule = rule, .values = y});
  };
  Model latent(d, {.max_tokens = 16, .max_length = 8, .projection = project});
  Model plain(d, {.max_tokens = 16, .max_length = 8});
  Parameters& p = plain.decoder.parameters();
  Tensor values = Tensor::zeros({p.elements()}, DType::f32, test_device());
  for (const Parameter& parameter : p.list()) {
    if (!parameter.matrix) continue;
    const TensorView weight = p.view(p.weights(), parameter);
    ternary_project(plain.context, {.weight = weight, .rule = rule, .values = weight});
  }
  p.prepare(plain.context);
  std::vector<std::vector<std::uint32_t>> gradients;
  std::vector<float> losses;
  for (Model* model : {&latent, &plain}) {
    Tensor loss = Tensor::zeros({1}, DType::f32, test_device());
    model->decoder.backward(model->context, b.view, {}, b.dloss, loss);
    gradients.push_back(bits_of_gradients(*model));
    losses.push_back(host_values<float>(model->context, loss)[0]);
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_NE(host_values<float>(latent.context, latent.decoder.parameters().weights()),
            host_values<float>(plain.context, p.weights()));
}

// Two half batches add up to the whole one: masks follow the token, and gradients are summed.
TEST(DecoderTest, AccumulationGivesTheGradientOfTheWholeBatch) {
  if (test_device().is_cuda()) GTEST_SKIP() << "f64 is on the CPU";
  const io::ModelDescription d = small_description(false, false);
  OwnedBatch whole = make_batch(2, 6, d.vocabulary, 0, DType::f64);
  const DecoderOptions options{
      .compute = DType::f64, .max_tokens = 12, .max_length = 6, .dropout = 0.3};
  Model at_once(d, options);
  Model in_parts(d, options);
  Tensor loss = Tensor::zeros({1}, DType::f64);
  at_once.decoder.backward(at_once.context, whole.view, {.seed = 9}, whole.dloss, loss);
  for (std::int64_t part = 0; part < 2; ++part) {
    const auto half = [&](ConstTensorView view) {
      view.data = static_cast<const std::byte*>(view.data) + part * 6 * size_of(view.dtype);
      view.shape[0] = 6;
      return view;
    };
    in_parts.decoder.backward(in_parts.context,
                              {.tokens = half(whole.view.tokens),
                               .targets = half(whole.view.targets),
                               .positions = half(whole.view.positions)},
                              {.seed = 9, .first_token = part * 6}, half(whole.dloss), loss);
  }
  const std::vector<double> a =
      host_values<double>(at_once.context, at_once.decoder.parameters().gradients());
  const std::vector<double> c =
      host_values<double>(in_parts.context, in_parts.decoder.parameters().gradients());
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], c[i], 1e-14) << i;
}

// (1 - w) cross entropy + w T^2 KL(teacher, student), mean over the tokens with a target, by the
// formula from the oracle's logits.
template <class S>
S distillation_loss(const std::vector<std::vector<S>>& logits,
                    const std::vector<std::int64_t>& targets, std::span<const float> teacher,
                    double weight, double temperature) {
  using std::exp;
  using std::log;
  S sum = 0.0;
  double counted = 0;
  for (std::size_t r = 0; r < logits.size(); ++r) {
    if (targets[r] < 0) continue;
    const std::span expert = teacher.subspan(r * logits[r].size(), logits[r].size());
    S plain = 0.0;
    S student = 0.0;
    double of_teacher = 0;
    for (const S& logit : logits[r]) {
      plain += exp(logit);
      student += exp(logit / temperature);
    }
    for (const float t : expert) of_teacher += std::exp(static_cast<double>(t) / temperature);
    S divergence = 0.0;
    for (std::size_t i = 0; i < expert.size(); ++i) {
      const double q = std::exp(static_cast<double>(expert[i]) / temperature) / of_teacher;
      divergence += q * (std::log(q) - (logits[r][i] / temperature - log(student)));
    }
    const S hard = log(plain) - logits[r][static_cast<std::size_t>(targets[r])];
    sum += (1 - weight) * hard + weight * temperature * temperature * divergence;
    counted += 1;
  }
  return sum / counted;
}

TEST(DecoderTest, DistillationAgreesWithDualNumbers) {
  if (test_device().is_cuda()) GTEST_SKIP() << "f64 is on the CPU";
  const io::ModelDescription d = small_description(false, true);
  const std::int64_t n = 9;
  OwnedBatch b = make_batch(1, n, d.vocabulary, 4, DType::f64);
  Model model(d, {.compute = DType::f64, .max_tokens = n, .max_length = n});
  std::vector<float> expert;
  for (const double value : gradcheck::random_values(n * d.vocabulary, 8)) {
    expert.push_back(static_cast<float>(3 * value));
  }
  const Tensor teacher = device_tensor(expert);
  const std::int64_t sizes[] = {n, d.vocabulary};
  const oracle::DecoderLossShape shape = oracle_shape(d);
  const oracle::DecoderLossBatch batch = oracle_batch(b, {}, {.tied = true}, d.width);
  for (const auto& [weight, temperature] : {std::pair(0.3, 2.0), {1.0, 1.0}, {0.5, 0.7}}) {
    Parameters& p = model.decoder.parameters();
    p.clear_gradients(model.context);
    Tensor loss = Tensor::zeros({1}, DType::f64);
    const Distillation distillation{.logits = make_view(teacher.data(), sizes, DType::f32),
                                    .weight = weight,
                                    .temperature = temperature};
    model.decoder.backward(model.context, b.view, {}, b.dloss, loss, distillation);
    const auto reference = [&, w = weight,
                            t = temperature]<class S>(const oracle::WeightsByName<S>& weights) {
      return distillation_loss<S>(oracle::decoder_logits<S>(shape, batch, weights), batch.targets,
                                  expert, w, t);
    };
    const test::LossGradients gradients(model.context, p);
    const gradcheck::Report report = gradients.check(
        [&](const auto& duals) {
          return reference.template operator()<gradcheck::DualScalar>(duals);
        },
        1e-10);
    EXPECT_TRUE(report.ok) << report.summary();
    const oracle::WeightsByName<double> weights = [&](const std::string& name) {
      return gradients.value(name);
    };
    EXPECT_NEAR(loss.values<double>()[0], reference(weights), 1e-12);
  }
}

TEST(DecoderTest, WhatItCannotTrainIsRefusedByName) {
  Context context({.device = test_device()});
  const auto expect_refusal = [&](const char* what, const auto& change) {
    io::ModelDescription d = small_description(false, false);
    change(d);
    try {
      Decoder decoder(context, d, {.max_tokens = 8, .max_length = 8});
      ADD_FAILURE() << "accepted " << what;
    } catch (const Unsupported& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(what));
    }
  };
  using D = io::ModelDescription;
  expect_refusal("biases", [](D& d) { d.qkv_bias = true; });
  expect_refusal("soft caps", [](D& d) { d.final_soft_cap = 30; });
  expect_refusal("norms after", [](D& d) { d.post_norms = true; });
  expect_refusal("family", [](D& d) { d.family = io::ModelFamily::gpt2; });
  expect_refusal("learned positions", [](D& d) { d.rope.dims = 0; });
  expect_refusal("gate with silu", [](D& d) { d.gated = false; });
  const io::ModelDescription d = small_description(false, false);
  EXPECT_THROW(Decoder(context, d, {.max_tokens = 8, .max_length = 65}), InvalidArgument);
  Decoder decoder(context, d, {.max_tokens = 8, .max_length = 8});
  OwnedBatch b = make_batch(2, 8, d.vocabulary);
  Tensor loss = Tensor::zeros({1}, DType::f32, test_device());
  EXPECT_THROW(decoder.loss(context, b.view, loss), InvalidArgument);
}

}  // namespace
}  // namespace touchstone::train
