// What is particular to rope: positions, in place, layouts, refusals, the frequencies of models. The
// sweep over shapes, dtypes and implementations is spec_sweep_test.
#include "touchstone/ops/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/runners.h"
#include "touchstone/core/error.h"

namespace touchstone {
namespace {

using test::test_device;
using testing::HasSubstr;
using testing::ThrowsMessage;

Tensor filled(std::initializer_list<std::int64_t> shape, DType dtype) {
  Tensor tensor = Tensor::empty(shape, dtype);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const float value = static_cast<float>(i * 37 % 101 - 50) / 16;
    const auto at = static_cast<std::size_t>(i);
    if (dtype == DType::f32) tensor.values<float>()[at] = value;
    if (dtype == DType::bf16) tensor.values<Bf16>()[at] = Bf16(value);
  }
  return tensor;
}
Tensor positions_of(std::vector<std::int64_t> values) {
  Tensor tensor = Tensor::empty({std::ssize(values)}, DType::i64);
  std::ranges::copy(values, tensor.values<std::int64_t>().begin());
  return tensor.to(test_device());
}
Tensor frequencies_of(std::int64_t dim) {
  const std::vector<double> values = rope_frequencies(dim, 10000).values;
  Tensor tensor = Tensor::empty({std::ssize(values)}, DType::f64);
  std::ranges::copy(values, tensor.values<double>().begin());
  return tensor.to(test_device());
}
std::vector<std::byte> bytes_of(const Tensor& tensor) {
  const Tensor host = tensor.to(Device::cpu());
  const auto* data = static_cast<const std::byte*>(host.data());
  return {data, data + host.bytes()};
}

class Rope : public ::testing::TestWithParam<RopePairs> {
 protected:
  Context context_{{.device = test_device()}};
};
INSTANTIATE_TEST_SUITE_P(Pairs, Rope, testing::Values(RopePairs::halves, RopePairs::adjacent),
                         [](const auto& pairs) {
                           return pairs.param == RopePairs::halves ? "halves" : "adjacent";
                         });

// A token alone, in a batch of any size, at any place, in place or not, in any layout and by the
// backward of a backward: the same bits.
TEST_P(Rope, ATokensBitsDependOnItsPositionAlone) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t dim : {64, 20}) {
      constexpr std::int64_t kTokens = 300;
      const Tensor frequencies = frequencies_of(dim == 20 ? 12 : dim);
      const Tensor x = filled({kTokens, 2, dim}, dtype).to(test_device());
      std::vector<std::int64_t> places(kTokens);
      for (std::size_t i = 0; i < places.size(); ++i) {
        places[i] = static_cast<std::int64_t>(i * i * 7919 % 100003);
      }
      Tensor y = Tensor::empty({kTokens, 2, dim}, dtype, test_device());
      const Tensor positions = positions_of(places);
      rope(context_, {.x = x,
                      .positions = positions,
                      .frequencies = frequencies,
                      .y = y,
                      .pairs = GetParam()});
      context_.synchronize();
      const std::vector<std::byte> batch = bytes_of(y);

      Tensor in_place = x.clone();
      rope(context_, {.x = in_place,
                      .positions = positions,
                      .frequencies = frequencies,
                      .y = in_place,
                      .pairs = GetParam()});
      context_.synchronize();
      EXPECT_EQ(bytes_of(in_place), batch);

      // Heads before tokens in memory.
      Tensor heads_first = Tensor::empty({2, kTokens, dim}, dtype, test_device());
      rope(context_, {.x = x,
                      .positions = positions,
                      .frequencies = frequencies,
                      .y = transposed(heads_first.view(), 0, 1),
                      .pairs = GetParam()});
      context_.synchronize();
      const std::vector<std::byte> other = bytes_of(heads_first);

      const auto row = static_cast<std::size_t>(dim * size_of(dtype));
      for (const std::int64_t n : {0, 1, 17, 299}) {
        const auto at = static_cast<std::size_t>(n);
        EXPECT_EQ(std::memcmp(other.data() + at * row, batch.data() + 2 * at * row, row), 0);
        Tensor alone = Tensor::empty({1, 2, dim}, dtype, test_device());
        ConstTensorView one = x;
        one.shape[0] = 1;
        one.data = static_cast<const std::byte*>(x.data()) + 2 * at * row;
        rope(context_, {.x = one,
                        .positions = positions_of({places[at]}),
                        .frequencies = frequencies,
                        .y = alone,
                        .pairs = GetParam()});
        context_.synchronize();
        const std::vector<std::byte> single = bytes_of(alone);
        EXPECT_EQ(std::memcmp(single.data(), batch.data() + 2 * at * row, 2 * row), 0) << n;
      }
      for (const ImplementationReport& report : explain(context_, RopeArgs{.x = x,
                                                                  .positions = positions,
                                                                  .frequencies = frequencies,
                                                                  .y = y,
                                                                  .pairs = GetParam()})) {
        // Every CUDA kernel does the same arithmetic; `plain` is the f64 reference.
        if (!report.accepted || report.name == "plain") continue;
        rope(context_, {.x = x,
                        .positions = positions,
                        .frequencies = frequencies,
                        .y = y,
                        .pairs = GetParam(),
                        .implementation = report.name});
        context_.synchronize();
        EXPECT_EQ(bytes_of(y), batch) << report.name;
      }
    }
  }
}

// Position 0 and whole turns change nothing; negative positions are the inverse.
TEST_P(Rope, KnownAngles) {
  const Tensor x = filled({2, 1, 8}, DType::f32).to(test_device());
  Tensor turns = Tensor::empty({4}, DType::f64);
  for (double& value : turns.values<double>()) value = 2 * 3.14159265358979323846;
  const Tensor frequencies = turns.to(test_device());
  Tensor y = Tensor::empty({2, 1, 8}, DType::f32, test_device());
  rope(context_, {.x = x,
                  .positions = positions_of({0, 5}),
                  .frequencies = frequencies,
                  .y = y,
                  .pairs = GetParam()});
  context_.synchronize();
  EXPECT_EQ(bytes_of(y), bytes_of(x));
  const Tensor quarter = frequencies_of(8);
  Tensor there = Tensor::empty({2, 1, 8}, DType::f32, test_device());
  Tensor back = Tensor::empty({2, 1, 8}, DType::f32, test_device());
  rope(context_, {.x = x,
                  .positions = positions_of({3, -9}),
                  .frequencies = quarter,
                  .y = there,
                  .pairs = GetParam()});
  rope_backward(context_, {.dy = there,
                           .positions = positions_of({3, -9}),
                           .frequencies = quarter,
                           .dx = back,
                           .pairs = GetParam()});
  context_.synchronize();
  const Tensor first = x.to(Device::cpu());
  const Tensor again = back.to(Device::cpu());
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_NEAR(again.values<float>()[i], first.values<float>()[i], 1e-5);
  }
}

TEST(RopeErrors, NameTheArgument) {
  Context context({.device = test_device()});
  const Tensor x = filled({2, 3, 8}, DType::f32).to(test_device());
  Tensor y = Tensor::empty({2, 3, 8}, DType::f32, test_device());
  const Tensor positions = positions_of({0, 1});
  const Tensor frequencies = frequencies_of(8);
  const auto refused = [&](const std::string& message, auto change) {
    RopeArgs args{.x = x, .positions = positions, .frequencies = frequencies, .y = y};
    change(args);
    EXPECT_THAT([&] { rope(context, args); },
                ThrowsMessage<InvalidArgument>(HasSubstr("rope: " + message)));
  };
  const Tensor flat = filled({2, 24}, DType::f32).to(test_device());
  refused("x: expected [N, H, D]", [&](RopeArgs& a) { a.x = flat; });
  refused("x: expected a tensor", [&](RopeArgs& a) { a.x = {}; });
  const Tensor integers = positions_of({1});
  refused("x: expected dtype", [&](RopeArgs& a) { a.x = integers; });
  Tensor half = Tensor::empty({2, 3, 8}, DType::bf16, test_device());
  refused("y: expected dtype f32", [&](RopeArgs& a) { a.y = half; });
  Tensor small = Tensor::empty({2, 3, 7}, DType::f32, test_device());
  refused("y: expected shape [2, 3, 8]", [&](RopeArgs& a) { a.y = small; });
  const Tensor three = positions_of({0, 1, 2});
  refused("positions: expected shape [2]", [&](RopeArgs& a) { a.positions = three; });
  refused("positions: expected dtype i64", [&](RopeArgs& a) { a.positions = frequencies; });
  const Tensor ten = frequencies_of(10);
  refused("frequencies: expected at most D / 2 = 4, got 5",
          [&](RopeArgs& a) { a.frequencies = ten; });
  refused("frequencies: expected extents of at least 0, got [-1]",
          [&](RopeArgs& a) { a.frequencies.shape[0] = -1; });
  // Twice as many do not fit in 64 bits.
  refused("frequencies: expected a size that fits in 64 bits",
          [&](RopeArgs& a) { a.frequencies.shape[0] = std::int64_t{1} << 62; });
  refused("frequencies: expected dtype f64", [&](RopeArgs& a) { a.frequencies = positions; });
  refused("scale: expected a finite number", [&](RopeArgs& a) { a.scale = std::nan(""); });
  refused("y: expected every element at an address of its own",
          [&](RopeArgs& a) { a.y.stride[1] = 4; });
  refused("x: expected a last dimension of stride 1", [&](RopeArgs& a) { a.x.stride[2] = 2; });
  refused("y: expected no overlap with x", [&](RopeArgs& a) {
    a.y.data = const_cast<std::byte*>(static_cast<const std::byte*>(x.data()) + 4);
  });
  Tensor empty = Tensor::empty({0, 3, 8}, DType::f32, test_device());
  const Tensor none = Tensor::empty({0}, DType::i64, test_device());
  EXPECT_NO_THROW(
      rope(context, {.x = empty, .positions = none, .frequencies = frequencies, .y = empty}));
}

// Frequencies as Hugging Face's transformers computes them (modeling_rope_utils), by hand.
TEST(RopeFrequencies, OfEveryKind) {
  const auto values = [](const RopeScaling& scaling, double base = 10000, std::int64_t dim = 8) {
    return rope_frequencies(dim, base, scaling).values;
  };
  using Kind = RopeScaling::Kind;
  EXPECT_THAT(values({}), testing::Pointwise(testing::DoubleNear(1e-15),
                                             std::vector<double>{1, 0.1, 0.01, 0.001}));
  EXPECT_THAT(values({.kind = Kind::linear, .factor = 4}),
              testing::Pointwise(testing::DoubleNear(1e-15),
                                 std::vector<double>{0.25, 0.025, 0.0025, 0.00025}));
  // The lowest frequency is that of linear scaling, the highest stays.
  const auto ntk = values({.kind = Kind::ntk, .factor = 4});
  EXPECT_NEAR(ntk[0], 1, 1e-15);
  EXPECT_NEAR(ntk[3], 0.001 / 4, 1e-15);
  // Llama 3.1: factor 8, 1 and 4, 8192, base 500000, dim 128.
  const RopeScaling llama{.kind = Kind::llama3,
                          .factor = 8,
                          .original_length = 8192,
                          .low_frequency_factor = 1,
                          .high_frequency_factor = 4};
  const auto plain = values({}, 500000, 128);
  const auto scaled = values(llama, 500000, 128);
  constexpr double kTwoPi = 6.283185307179586;
  for (std::size_t i = 0; i < 64; ++i) {
    const double wavelength = kTwoPi / plain[i];
    double expected = plain[i];
    if (wavelength > 8192) {
      expected = plain[i] / 8;
    } else if (wavelength > 8192 / 4.0) {
      const double smooth = (8192 / wavelength - 1) / 3;
      expected = (1 - smooth) * plain[i] / 8 + smooth * plain[i];
    }
    EXPECT_NEAR(scaled[i], expected, 1e-15) << i;
  }
  // YaRN of Qwen: factor 4, 32768, base 1000000, dim 128: low = 16 (23.59 at 32 turns floors to 23).
  const RopeFrequencies yarn =
      rope_frequencies(128, 1000000, {.kind = Kind::yarn, .factor = 4, .original_length = 32768});
  EXPECT_NEAR(yarn.attention_factor, 0.1 * std::log(4.0) + 1, 1e-15);
  const auto unscaled = values({}, 1000000, 128);
  EXPECT_EQ(yarn.values[0], unscaled[0]);
  EXPECT_NEAR(yarn.values[63], unscaled[63] / 4, 1e-18);
  const double low = std::floor(128 * std::log(32768 / (32 * kTwoPi)) / (2 * std::log(1e6)));
  const double high = std::ceil(128 * std::log(32768 / kTwoPi) / (2 * std::log(1e6)));
  for (std::size_t i = 0; i < 64; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    EXPECT_NEAR(yarn.values[i], unscaled[i] * (ramp / 4 + 1 - ramp), 1e-15) << i;
  }
}

TEST(RopeFrequencies, Refuses) {
  using Kind = RopeScaling::Kind;
  const auto refused = [](const std::string& message, std::int64_t dim, double base,
                          RopeScaling scaling) {
    EXPECT_THAT([&] { rope_frequencies(dim, base, scaling); },
                ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  refused("rotary_dim: expected an even number >= 2, got 7", 7, 1e4, {});
  refused("rotary_dim: expected an even number >= 2, got 0", 0, 1e4, {});
  refused("rotary_dim: expected an even number >= 4, got 2", 2, 1e4, {.kind = Kind::ntk});
  refused("base", 8, 0, {});
  refused("base", 8, std::nan(""), {});
  refused("factor", 8, 1e4, {.kind = Kind::linear, .factor = -1});
  refused("original_length", 8, 1e4, {.kind = Kind::yarn, .factor = 2});
  refused("original_length", 8, 1e4, {.kind = Kind::llama3, .factor = 2});
  refused("high_frequency_factor", 8, 1e4,
          {.kind = Kind::llama3, .original_length = 10, .high_frequency_factor = 1});
}

}  // namespace
}  // namespace touchstone
