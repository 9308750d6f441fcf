// What is particular to activation and gate: in place, packed pairs, special values, refusals. The sweep
// over shapes, dtypes, kinds and implementations is spec_sweep_test.
#include "touchstone/ops/activation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/runners.h"
#include "touchstone/core/error.h"
#include "touchstone/ops/gate.h"

namespace touchstone {
namespace {

using test::test_device;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr Activation kAll[] = {Activation::silu, Activation::gelu, Activation::gelu_tanh,
                               Activation::relu_squared};

Tensor of_values(std::initializer_list<std::int64_t> shape, const std::vector<float>& values) {
  Tensor tensor = Tensor::empty(shape, DType::f32);
  for (std::size_t i = 0; i < tensor.values<float>().size(); ++i) {
    tensor.values<float>()[i] = values[i % values.size()];
  }
  return tensor.to(test_device());
}
std::vector<float> values_of(Context& context, const Tensor& tensor) {
  context.synchronize();
  const Tensor host = tensor.to(Device::cpu());
  return {host.values<float>().begin(), host.values<float>().end()};
}

class ActivationTest : public ::testing::Test {
 protected:
  Context context_{{.device = test_device()}};
};

// A packed row [.., 2 C] read as two views, alone and in a batch, in place and not.
TEST_F(ActivationTest, PackedPairsAndInPlaceHaveTheSameBits) {
  std::vector<float> numbers(997);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>(static_cast<int>(i * 7919 % 1601) - 800) / 100;
  }
  for (const std::int64_t cols : {64, 37}) {
    const Tensor packed = of_values({300, 2 * cols}, numbers);
    const auto half = [&](const Tensor& tensor, std::int64_t rows, std::int64_t first) {
      ConstTensorView view = tensor;
      view.shape = {rows, cols};
      view.data = static_cast<const float*>(tensor.data()) + first;
      return view;
    };
    for (const Activation kind : kAll) {
      Tensor y = Tensor::empty({300, cols}, DType::f32, test_device());
      gate(context_,
           {.gate = half(packed, 300, 0), .up = half(packed, 300, cols), .y = y, .kind = kind});
      const std::vector<float> batch = values_of(context_, y);
      Tensor one = Tensor::empty({1, cols}, DType::f32, test_device());
      for (const std::int64_t row : {0, 1, 299}) {
        gate(context_, {.gate = half(packed, 1, row * 2 * cols),
                        .up = half(packed, 1, (row * 2 + 1) * cols),
                        .y = one,
                        .kind = kind});
        const std::vector<float> alone = values_of(context_, one);
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), batch.begin() + row * cols));
      }
      Tensor copy = packed.clone();
      TensorView into = copy;
      into.shape = {300, cols};
      gate(context_, {.gate = into, .up = half(copy, 300, cols), .y = into, .kind = kind});
      const std::vector<float> both = values_of(context_, copy);
      for (std::int64_t r = 0; r < 300; ++r) {
        ASSERT_TRUE(std::equal(batch.begin() + r * cols, batch.begin() + (r + 1) * cols,
                               both.begin() + 2 * r * cols));
      }
      for (const ImplementationReport& report :
           explain(context_, GateArgs{.gate = half(packed, 300, 0),
                             .up = half(packed, 300, cols),
                             .y = y,
                             .kind = kind})) {
        if (!report.accepted || report.name == "plain") continue;
        gate(context_, {.gate = half(packed, 300, 0),
                        .up = half(packed, 300, cols),
                        .y = y,
                        .kind = kind,
                        .implementation = report.name});
        EXPECT_EQ(values_of(context_, y), batch) << report.name;
      }
    }
  }
}

TEST_F(ActivationTest, SpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = of_values({5}, {nan, kInfinity, 0.0F, 1e30F, -50.0F});
  Tensor y = Tensor::empty({5}, DType::f32, test_device());
  for (const Activation kind : kAll) {
    activation(context_, {.x = x, .y = y, .kind = kind});
    const std::vector<float> out = values_of(context_, y);
    EXPECT_TRUE(std::isnan(out[0]));
    EXPECT_EQ(out[1], kInfinity);
    EXPECT_EQ(out[2], 0);
    EXPECT_EQ(out[3], kind == Activation::relu_squared ? kInfinity : 1e30F);
    EXPECT_NEAR(out[4], 0, 1e-4);
    EXPECT_FALSE(std::isnan(out[4]));
  }
}

// x^2 of these is infinite, the slope of every activation but relu^2 is 0 or 1.
TEST_F(ActivationTest, SlopeOfLargeNumbers) {
  const std::vector<float> large = {1e10F, 1e20F, 3e38F, -1e10F, -1e20F, -3e38F};
  const Tensor x = of_values({6}, large);
  const Tensor ones = of_values({6}, std::vector<float>(6, 1.0F));
  Tensor dx = Tensor::empty({6}, DType::f32, test_device());
  for (const Activation kind : {Activation::silu, Activation::gelu, Activation::gelu_tanh}) {
    const ActivationBackwardArgs args{.dy = ones, .x = x, .dx = dx, .kind = kind};
    for (const ImplementationReport& report : explain(context_, args)) {
      if (!report.accepted) continue;
      ActivationBackwardArgs named = args;
      named.implementation = report.name;
      activation_backward(context_, named);
      EXPECT_THAT(values_of(context_, dx), testing::ElementsAre(1, 1, 1, 0, 0, 0))
          << report.name << " of kind " << static_cast<int>(kind);
    }
  }
}

// The contract bounds the absolute error; on the CPU the tail is right relative to itself, up to what
// rounding x^2 costs its exponential.
TEST_F(ActivationTest, TailOfGelu) {
  if (test::on_gpu()) GTEST_SKIP() << "the GPU approximates the tail within the contract";
  std::vector<float> x;
  for (float value = -12; value < 0; value += 1.0F / 128) x.push_back(value);
  const Tensor input = of_values({std::ssize(x)}, x);
  Tensor y = Tensor::empty({std::ssize(x)}, DType::f32);
  for (const ImplementationReport& report :
       explain(context_, {.x = input, .y = y, .kind = Activation::gelu})) {
    if (!report.refusal.empty()) continue;
    activation(context_,
               {.x = input, .y = y, .kind = Activation::gelu, .implementation = report.name});
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto at = static_cast<double>(x[i]);
      const double exact = 0.5 * at * std::erfc(-at * std::sqrt(0.5));
      EXPECT_NEAR(y.values<float>()[i], exact, 0x1p-22 * (4 + at * at) * -exact)
          << report.name << " of " << at;
    }
  }
}

TEST_F(ActivationTest, RefusesByArgument) {
  const Tensor x = of_values({4, 8}, {1});
  Tensor y = Tensor::empty({4, 8}, DType::f32, test_device());
  Tensor other = Tensor::empty({4, 8}, DType::f32, test_device());
  const auto refused = [&](const std::string& message, auto call) {
    EXPECT_THAT(call, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  refused("activation: x: expected a tensor", [&] { activation(context_, {.y = y}); });
  Tensor small = Tensor::empty({4, 7}, DType::f32, test_device());
  refused("activation: y: expected shape [4, 8], got [4, 7]",
          [&] { activation(context_, {.x = x, .y = small}); });
  Tensor half = Tensor::empty({4, 8}, DType::bf16, test_device());
  refused("activation: y: expected dtype f32", [&] { activation(context_, {.x = x, .y = half}); });
  refused("activation: kind: expected silu",
          [&] { activation(context_, {.x = x, .y = y, .kind = static_cast<Activation>(9)}); });
  TensorView shifted = y;
  shifted.data = static_cast<float*>(y.data()) + 1;
  shifted.shape[0] = 3;
  ConstTensorView three = y;
  three.shape[0] = 3;
  refused("activation: y: expected no overlap with x",
          [&] { activation(context_, {.x = three, .y = shifted}); });
  refused("gate: up: expected a tensor", [&] { gate(context_, {.gate = x, .y = y}); });
  refused("gate_backward: dgate: expected no overlap with dup",
          [&] { gate_backward(context_, {.dy = x, .gate = x, .up = x, .dgate = y, .dup = y}); });
  EXPECT_NO_THROW(gate_backward(context_, {.dy = x, .gate = x, .up = x, .dgate = y, .dup = other}));
  Tensor empty = Tensor::empty({0, 8}, DType::f32, test_device());
  EXPECT_NO_THROW(activation(context_, {.x = empty, .y = empty}));
  context_.synchronize();
}

}  // namespace
}  // namespace touchstone
