// cast, add_to, dropout, gradient_norm and adamw: values by their formulas, masks that hold on
// every device, refusals.
#include "touchstone/train/operators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/random.h"
#include "tests/support/refusal.h"
#include "touchstone/core/error.h"
#include "touchstone/core/random.h"
#include "train/train_test_support.h"

namespace touchstone::train {
namespace {

using test::device_tensor;
using test::expect_refusal;
using test::host_values;
using test::test_device;

std::vector<float> noise(std::int64_t count, std::uint64_t seed) {
  std::vector<float> values;
  for (const double value : test::random_values({}, count, seed)) {
    values.push_back(static_cast<float>(value));
  }
  return values;
}

TensorView matrix(const Tensor& tensor, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  const std::int64_t shape[] = {rows, cols};
  TensorView view =
      make_view(const_cast<void*>(tensor.data()), shape, tensor.dtype(), tensor.device());
  view.stride[0] = stride;
  return view;
}

class TrainOperators : public ::testing::Test {
 protected:
  Context context_{{.device = test_device()}};
};

TEST_F(TrainOperators, CastRoundsOnceAtAnyStride) {
  const std::int64_t rows = 5, cols = 37, wide = 41;
  const std::vector<float> values = noise(rows * wide, 1);
  const Tensor x = device_tensor(values);
  for (const DType to : {DType::f32, DType::bf16, DType::f16}) {
    Tensor y = Tensor::zeros({rows * wide}, to, test_device());
    cast(context_, {.x = matrix(x, rows, cols, wide), .y = matrix(y, rows, cols, wide)});
    Tensor back = Tensor::zeros({rows * wide}, DType::f32, test_device());
    cast(context_, {.x = y, .y = back});
    const std::vector<float> got = host_values<float>(context_, back);
    for (std::int64_t i = 0; i < rows * wide; ++i) {
      const float value = values[static_cast<std::size_t>(i)];
      float expected = value;
      if (to == DType::bf16) expected = static_cast<float>(Bf16(value));
      if (to == DType::f16) expected = static_cast<float>(F16(value));
      if (i % wide >= cols) expected = 0;  // between the rows nothing is written
      ASSERT_EQ(got[static_cast<std::size_t>(i)], expected) << name_of(to) << " " << i;
    }
  }
  // Whole vectors.
  Tensor y = Tensor::zeros({rows * wide - 5}, DType::bf16, test_device());
  TensorView whole = x.clone();
  whole = matrix(x, 1, rows * wide - 5, rows * wide - 5);
  cast(context_, {.x = whole, .y = matrix(y, 1, rows * wide - 5, rows * wide - 5)});
  const std::vector<std::uint16_t> bits = host_values<std::uint16_t>(context_, y);
  for (std::size_t i = 0; i < bits.size(); ++i) ASSERT_EQ(bits[i], Bf16(values[i]).bits);
}

TEST_F(TrainOperators, AddToAdds) {
  const std::vector<float> a = noise(1000, 2);
  const std::vector<float> b = noise(1000, 3);
  Tensor y = device_tensor(a);
  add_to(context_, {.x = device_tensor(b), .y = y});
  context_.synchronize();
  const std::vector<float> got = host_values<float>(context_, y);
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], a[i] + b[i]);
}

// The mask of each element by the words of the contract, whatever the shape and wherever the token
// lies in its batch.
TEST_F(TrainOperators, DropoutFollowsTheCounter) {
  const std::int64_t rows = 33, cols = 21;
  const DropoutMask mask{
      .probability = 0.2, .seed = 42, .step = 123, .first_token = 500, .draw = 9};
  const std::vector<float> values = noise(rows * cols, 4);
  Tensor y = Tensor::zeros({rows, cols}, DType::f32, test_device());
  const Tensor x = device_tensor(values);
  dropout(context_, {.x = matrix(x, rows, cols, cols), .y = y, .mask = mask});
  const std::vector<float> got = host_values<float>(context_, y);
  std::int64_t dropped = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const PhiloxWords words = random_words(42, (std::int64_t{123} << 40) + (500 + r) * 3 + c / 8,
                                             RandomPurpose::dropout, 9);
      const std::uint32_t bits = words.word[c % 8 / 2] >> (c % 2 * 16) & 0xffff;
      const auto at = static_cast<std::size_t>(r * cols + c);
      const bool out = bits < 13107;
      dropped += out ? 1 : 0;
      ASSERT_EQ(got[at], out ? 0.0F : values[at] * static_cast<float>(65536.0 / (65536 - 13107)));
    }
  }
  EXPECT_NEAR(static_cast<double>(dropped) / static_cast<double>(rows * cols), 0.2, 0.06);
  // The last rows alone, in place, in 16 bits: the same mask.
  DropoutMask tail = mask;
  tail.first_token = 500 + rows - 2;
  Tensor last = Tensor::zeros({2, cols}, DType::bf16, test_device());
  Tensor ones = device_tensor(std::vector<float>(static_cast<std::size_t>(2 * cols), 1));
  cast(context_, {.x = matrix(ones, 2, cols, cols), .y = last});
  dropout(context_, {.x = last, .y = last, .mask = tail});
  const std::vector<std::uint16_t> bits = host_values<std::uint16_t>(context_, last);
  for (std::int64_t i = 0; i < 2 * cols; ++i) {
    EXPECT_EQ(bits[static_cast<std::size_t>(i)] == 0,
              got[static_cast<std::size_t>((rows - 2) * cols + i)] == 0);
  }
}

TEST_F(TrainOperators, NormIsThatOfTheWholeGradient) {
  for (const std::int64_t count : {0, 1, 16383, 16384, 16385, 100001}) {
    const std::vector<float> values = noise(count, 5);
    long double sum = 0;
    for (const float value : values) sum += static_cast<long double>(value) * value;
    Tensor norm = device_tensor(std::vector<double>{-1});
    gradient_norm(context_, {.gradient = device_tensor(values), .norm = norm});
    context_.synchronize();
    const double expected = std::sqrt(static_cast<double>(sum));
    EXPECT_NEAR(host_values<double>(context_, norm)[0], expected, 1e-12 * expected) << count;
  }
}

struct Moments {
  Tensor weight, m, v, average, gradient, norm;
};

Moments moments(std::int64_t count, double norm) {
  return {device_tensor(noise(count, 6)),
          device_tensor(noise(count, 7)),
          device_tensor(std::vector<float>(static_cast<std::size_t>(count), 0.5F)),
          device_tensor(noise(count, 8)),
          device_tensor(noise(count, 9)),
          device_tensor(std::vector<double>{norm})};
}

AdamWArgs arguments(Moments& s) {
  return {.gradient = s.gradient,
          .norm = s.norm,
          .weight = s.weight,
          .m = s.m,
          .v = s.v,
          .average = s.average,
          .step = 3,
          .learning_rate = 0.01,
          .weight_decay = 0.1,
          .clip = 0.5,
          .average_decay = 0.9};
}

TEST_F(TrainOperators, AdamWFollowsItsFormula) {
  const std::int64_t count = 3001;
  Moments s = moments(count, 4.0);
  const std::vector<float> w = host_values<float>(context_, s.weight);
  const std::vector<float> m = host_values<float>(context_, s.m);
  const std::vector<float> e = host_values<float>(context_, s.average);
  const std::vector<float> g = host_values<float>(context_, s.gradient);
  adamw(context_, arguments(s));
  const std::vector<float> got = host_values<float>(context_, s.weight);
  const std::vector<float> average = host_values<float>(context_, s.average);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double gradient = static_cast<double>(g[i]) * (0.5 / (4.0 + 1e-6));
    const double m1 = 0.9 * static_cast<double>(m[i]) + 0.1 * gradient;
    const double v1 = 0.95 * 0.5 + 0.05 * gradient * gradient;
    const double m_hat = m1 / (1 - std::pow(0.9, 3));
    const double v_hat = v1 / (1 - std::pow(0.95, 3));
    const double expected =
        static_cast<double>(w[i]) * (1 - 0.01 * 0.1) - 0.01 * m_hat / (std::sqrt(v_hat) + 1e-8);
    ASSERT_NEAR(got[i], expected, 1e-6) << i;
    ASSERT_NEAR(average[i], 0.9 * static_cast<double>(e[i]) + 0.1 * expected, 1e-6) << i;
  }
}

// A step whose gradient is not finite leaves the last good weights, bit for bit.
TEST_F(TrainOperators, AdamWSkipsAStepWithoutAFiniteNorm) {
  for (const double norm :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Moments s = moments(100, norm);
    const std::vector<float> w = host_values<float>(context_, s.weight);
    const std::vector<float> m = host_values<float>(context_, s.m);
    adamw(context_, arguments(s));
    EXPECT_EQ(host_values<float>(context_, s.weight), w);
    EXPECT_EQ(host_values<float>(context_, s.m), m);
  }
}

TEST_F(TrainOperators, BadArgumentsAreRefused) {
  Tensor x = device_tensor(noise(24, 1));
  Tensor y = device_tensor(noise(24, 2));
  Tensor short_one = device_tensor(noise(23, 2));
  Tensor half = Tensor::zeros({24}, DType::bf16, test_device());
  expect_refusal("cast: y", [&] { cast(context_, {.x = x, .y = short_one}); });
  expect_refusal("cast: y", [&] { cast(context_, {.x = x, .y = x}); });
  expect_refusal("add_to: y", [&] { add_to(context_, {.x = x, .y = short_one}); });
  expect_refusal("dropout: probability",
                 [&] { dropout(context_, {.x = x, .y = y, .mask = {.probability = 1}}); });
  expect_refusal("dropout: step", [&] {
    dropout(context_, {.x = x, .y = y, .mask = {.step = std::int64_t{1} << 23}});
  });
  expect_refusal("gradient_norm: norm", [&] { gradient_norm(context_, {.gradient = x}); });
  Moments s = moments(10, 1);
  const auto refused = [&](const char* prefix, const auto& change) {
    AdamWArgs args = arguments(s);
    change(args);
    expect_refusal(prefix, [&] { adamw(context_, args); });
  };
  refused("adamw: m", [&](AdamWArgs& a) { a.m = x; });
  refused("adamw: v", [&](AdamWArgs& a) { a.v = a.m; });
  refused("adamw: step", [](AdamWArgs& a) { a.step = 0; });
  refused("adamw: beta1", [](AdamWArgs& a) { a.beta1 = 1; });
  refused("adamw: learning_rate", [](AdamWArgs& a) { a.learning_rate = -1; });
}

}  // namespace
}  // namespace touchstone::train
