// What is particular to embedding: tokens out of range, the order of sums, shapes of tokens, refusals.
// The sweep over shapes, dtypes, formats and implementations is spec_sweep_test.
#include "touchstone/ops/embedding.h"

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

Tensor filled(std::initializer_list<std::int64_t> shape, DType dtype = DType::f32) {
  Tensor tensor = Tensor::empty(shape, dtype);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    // Many exponents, so that the order of a sum shows in its bits.
    const float value = std::ldexp(static_cast<float>(i * 37 % 101 - 50), static_cast<int>(i % 9));
    const auto at = static_cast<std::size_t>(i);
    if (dtype == DType::f32) tensor.values<float>()[at] = value / 16;
    if (dtype == DType::bf16) tensor.values<Bf16>()[at] = Bf16(value / 16);
  }
  return tensor.to(test_device());
}
Tensor tokens_of(const std::vector<std::int32_t>& values) {
  Tensor tensor = Tensor::empty({std::ssize(values)}, DType::i32);
  std::ranges::copy(values, tensor.values<std::int32_t>().begin());
  return tensor.to(test_device());
}
std::vector<std::byte> bytes_of(const Tensor& tensor) {
  const Tensor host = tensor.to(Device::cpu());
  const auto* data = static_cast<const std::byte*>(host.data());
  return {data, data + host.bytes()};
}
std::vector<float> floats_of(const Tensor& tensor) {
  const Tensor host = tensor.to(Device::cpu());
  return {host.values<float>().begin(), host.values<float>().end()};
}

class EmbeddingTest : public ::testing::Test {
 protected:
  Context context_{{.device = test_device()}};
};

TEST_F(EmbeddingTest, TokensOutOfRange) {
  const Tensor weight = filled({4, 8});
  for (const std::int32_t bad : {-1, 4, 1 << 30}) {
    const Tensor tokens = tokens_of({1, bad, 3});
    Tensor y = filled({3, 8});
    const std::vector<float> before = floats_of(y);
    Tensor dweight = filled({4, 8});
    const Tensor dy = filled({3, 8});
    const std::vector<float> gradient = floats_of(dweight);
    const EmbeddingArgs forward{.tokens = tokens, .weight = weight, .y = y};
    const EmbeddingBackwardArgs backward{.tokens = tokens, .dy = dy, .dweight = dweight};
    if (!test_device().is_cuda()) {
      const std::string message = "tokens[1]: expected 0 <= token < 4, got " + std::to_string(bad);
      EXPECT_THAT([&] { embedding(context_, forward); },
                  ThrowsMessage<InvalidArgument>(HasSubstr("embedding: " + message)));
      EXPECT_THAT([&] { embedding_backward(context_, backward); },
                  ThrowsMessage<InvalidArgument>(HasSubstr("embedding_backward: " + message)));
      EXPECT_EQ(floats_of(y), before);
      EXPECT_EQ(floats_of(dweight), gradient);
      continue;
    }
    for (const ImplementationReport& report : explain(context_, forward)) {
      embedding(context_,
                {.tokens = tokens, .weight = weight, .y = y, .implementation = report.name});
      context_.synchronize();
      const std::vector<float> got = floats_of(y);
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i / 8 == 1) << i;
    }
    for (const ImplementationReport& report : explain(context_, backward)) {
      embedding_backward(
          context_,
          {.tokens = tokens, .dy = dy, .dweight = dweight, .implementation = report.name});
      context_.synchronize();
      const std::vector<float> got = floats_of(dweight), rows = floats_of(dy);
      for (std::size_t d = 0; d < 8; ++d) {
        EXPECT_EQ(got[d], 0);
        EXPECT_EQ(got[8 + d], rows[d]);
        EXPECT_EQ(got[24 + d], rows[16 + d]);
      }
    }
  }
}

// Every implementation adds the rows of a token one after the other, from the first on: the bits are
// those of this loop.
TEST_F(EmbeddingTest, Backward_AddsInTheOrderOfPositions) {
  constexpr std::int64_t kTokens = 700, kVocabulary = 5, kDim = 40;
  std::vector<std::int32_t> list(kTokens);
  for (std::size_t n = 0; n < list.size(); ++n) {
    list[n] = static_cast<std::int32_t>(n * n / 3 % (n % 2 == 0 ? 2 : 4));
  }
  const Tensor tokens = tokens_of(list);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor dy = filled({kTokens, kDim}, dtype);
    const Tensor host = dy.to(Device::cpu());
    const auto element = [&](std::size_t i) {
      return dtype == DType::f32 ? host.values<float>()[i]
                                 : static_cast<float>(host.values<Bf16>()[i]);
    };
    std::vector<float> expected(kVocabulary * kDim);
    for (std::size_t v = 0; v < 4; ++v) {
      for (std::size_t d = 0; d < kDim; ++d) {
        float sum = 0;
        for (std::size_t n = 0; n < kTokens; ++n) {
          if (list[n] == static_cast<std::int32_t>(v)) sum += element(n * kDim + d);
        }
        expected[v * kDim + d] = sum;
      }
    }
    Tensor dweight = Tensor::empty({kVocabulary, kDim}, DType::f32, test_device());
    for (const ImplementationReport& report :
         explain(context_, EmbeddingBackwardArgs{.tokens = tokens, .dy = dy, .dweight = dweight})) {
      ASSERT_TRUE(report.accepted) << report.refusal;
      embedding_backward(
          context_,
          {.tokens = tokens, .dy = dy, .dweight = dweight, .implementation = report.name});
      context_.synchronize();
      EXPECT_EQ(floats_of(dweight), expected) << report.name;
    }
  }
}

// With accumulate the rows of other tokens are not touched, NaN in them stays.
TEST_F(EmbeddingTest, Accumulate_LeavesOtherRows) {
  Tensor host = Tensor::empty({3, 2}, DType::f32);
  std::ranges::fill(host.values<float>(), std::nanf(""));
  host.values<float>()[2] = 1;
  host.values<float>()[3] = 2;
  Tensor dweight = host.to(test_device());
  const Tensor dy = filled({2, 2});
  embedding_backward(
      context_,
      {.tokens = tokens_of({1, 1}), .dy = dy, .dweight = dweight, .scale = 2, .accumulate = true});
  context_.synchronize();
  const std::vector<float> got = floats_of(dweight), rows = floats_of(dy);
  EXPECT_EQ(got[2], 1 + 2 * (rows[0] + rows[2]));
  EXPECT_EQ(got[3], 2 + 2 * (rows[1] + rows[3]));
  for (const std::size_t i : {0, 1, 4, 5}) EXPECT_TRUE(std::isnan(got[i])) << i;
}

TEST_F(EmbeddingTest, TokensOfAnyShape) {
  const Tensor weight = filled({5, 24}, DType::bf16);
  Tensor flat = Tensor::empty({6, 24}, DType::bf16, test_device());
  Tensor deep = Tensor::empty({2, 3, 24}, DType::bf16, test_device());
  Tensor host = Tensor::empty({2, 3}, DType::i64);
  std::ranges::copy(std::vector<std::int64_t>{4, 0, 1, 1, 3, 2},
                    host.values<std::int64_t>().begin());
  const Tensor tokens = host.to(test_device());
  embedding(context_, {.tokens = tokens, .weight = weight, .y = deep});
  embedding(context_, {.tokens = tokens_of({4, 0, 1, 1, 3, 2}), .weight = weight, .y = flat});
  context_.synchronize();
  EXPECT_EQ(bytes_of(deep), bytes_of(flat));
  Tensor none = Tensor::empty({0, 24}, DType::bf16, test_device());
  EXPECT_NO_THROW(embedding(context_, {.tokens = tokens_of({}), .weight = weight, .y = none}));
  Tensor dweight = filled({2, 24}, DType::bf16);
  embedding_backward(context_, {.tokens = tokens_of({}), .dy = none, .dweight = dweight});
  context_.synchronize();
  for (const std::byte byte : bytes_of(dweight)) EXPECT_EQ(byte, std::byte{0});
}

TEST_F(EmbeddingTest, Errors_NameTheArgument) {
  const Tensor weight = filled({4, 8});
  const Tensor tokens = tokens_of({0, 1});
  Tensor y = Tensor::empty({2, 8}, DType::f32, test_device());
  const auto refused = [&](const std::string& message, auto change) {
    EmbeddingArgs args{.tokens = tokens, .weight = weight, .y = y};
    change(args);
    EXPECT_THAT([&] { embedding(context_, args); },
                ThrowsMessage<InvalidArgument>(HasSubstr("embedding: " + message)));
  };
  const Tensor three = tokens_of({0, 1, 2});
  refused("y: expected shape [3, 8]", [&](EmbeddingArgs& a) { a.tokens = three; });
  refused("tokens: expected dtype i32 or i64", [&](EmbeddingArgs& a) { a.tokens = weight; });
  refused("tokens: expected a tensor", [&](EmbeddingArgs& a) { a.tokens = {}; });
  refused("y: expected the shape of tokens and [.., E]", [&](EmbeddingArgs& a) { a.y.rank = 1; });
  const Tensor narrow = filled({4, 7});
  refused("weight: expected shape [4, 8]", [&](EmbeddingArgs& a) { a.weight = narrow; });
  refused("weight: expected [V, E]", [&](EmbeddingArgs& a) { a.weight.rank = 1; });
  refused("weight: expected dtype u8", [&](EmbeddingArgs& a) { a.weight_format = "q8_0"; });
  refused("weight_format: expected a block format",
          [&](EmbeddingArgs& a) { a.weight_format = "bf16"; });
  refused("scale: expected a finite number", [&](EmbeddingArgs& a) { a.scale = INFINITY; });
  refused("y: expected no overlap with weight",
          [&](EmbeddingArgs& a) { a.y.data = const_cast<void*>(weight.data()); });
  const Tensor bytes = Tensor::zeros({4, 34}, DType::u8, test_device());
  refused("E: expected a multiple of 32 elements for q8_0, got 8", [&](EmbeddingArgs& a) {
    a.weight = bytes;
    a.weight_format = "q8_0";
  });
  Tensor half = Tensor::empty({4, 8}, DType::bf16, test_device());
  EXPECT_THAT(
      [&] {
        embedding_backward(context_,
                           {.tokens = tokens, .dy = y, .dweight = half, .accumulate = true});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("embedding_backward: dweight: expected dtype f32")));
}

}  // namespace
}  // namespace touchstone
