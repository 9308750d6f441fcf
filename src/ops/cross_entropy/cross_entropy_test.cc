// What is particular to cross_entropy: bits that do not depend on the batch, targets out of range, NaN,
// refusals. The sweep over shapes, dtypes and implementations is spec_sweep_test.
#include "touchstone/ops/cross_entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/runners.h"
#include "touchstone/core/convert.h"
#include "touchstone/core/error.h"

namespace touchstone {
namespace {

using test::test_device;
using testing::HasSubstr;
using testing::ThrowsMessage;

Tensor filled(std::initializer_list<std::int64_t> shape, DType dtype, std::int64_t seed) {
  Tensor tensor = Tensor::empty(shape, dtype);
  visit_float_dtype(dtype, [&]<class T>() {
    std::int64_t i = seed;
    for (T& value : tensor.values<T>()) {
      value = convert<T>(static_cast<float>(++i * 7919 % 2003 - 1001) / 700);
    }
  });
  return tensor.to(test_device());
}
Tensor targets_of(const std::vector<std::int64_t>& values) {
  Tensor tensor = Tensor::empty({std::ssize(values)}, DType::i64);
  std::ranges::copy(values, tensor.values<std::int64_t>().begin());
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

// Everything about `count` tokens from `first` on, as bytes.
struct Outputs {
  std::vector<std::byte> loss, log_probability, lse, dx;
};

class CrossEntropyTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kTokens = 300, kDim = 72, kVocabulary = 777;

  Outputs run(const Tensor& x, const Tensor& weight, const std::vector<std::int64_t>& targets,
              std::int64_t first, std::int64_t count, const std::string& implementation) {
    ConstTensorView part = x;
    part.shape[0] = count;
    part.data = static_cast<const std::byte*>(x.data()) + first * kDim * size_of(x.dtype());
    const Tensor labels = targets_of({targets.begin() + first, targets.begin() + first + count});
    Tensor loss = Tensor::empty({count}, DType::f32, test_device());
    Tensor log_probability = Tensor::empty({count}, DType::f32, test_device());
    Tensor lse = Tensor::empty({count}, DType::f32, test_device());
    Tensor dx = Tensor::empty({count, kDim}, x.dtype(), test_device());
    Tensor host = Tensor::empty({count}, DType::f32);
    for (std::int64_t n = 0; n < count; ++n) {
      host.values<float>()[static_cast<std::size_t>(n)] = static_cast<float>(first + n + 1) / 64;
    }
    const Tensor dloss = host.to(test_device());
    cross_entropy_backward(context_, {.x = part,
                                      .weight = weight,
                                      .targets = labels,
                                      .dloss = dloss,
                                      .dx = dx,
                                      .loss = loss,
                                      .log_probability = log_probability,
                                      .lse = lse,
                                      .label_smoothing = 0.1,
                                      .z_loss = 0.01,
                                      .soft_cap = 6,
                                      .implementation = implementation});
    context_.synchronize();
    Outputs result{bytes_of(loss), bytes_of(log_probability), bytes_of(lse), bytes_of(dx)};
    // The forward alone gives the same.
    cross_entropy(context_, {.x = part,
                             .weight = weight,
                             .targets = labels,
                             .loss = loss,
                             .lse = lse,
                             .label_smoothing = 0.1,
                             .z_loss = 0.01,
                             .soft_cap = 6,
                             .implementation = implementation});
    context_.synchronize();
    EXPECT_EQ(bytes_of(loss), result.loss);
    EXPECT_EQ(bytes_of(lse), result.lse);
    return result;
  }

  Context context_{{.device = test_device()}};
};

TEST_F(CrossEntropyTest, ATokensBitsDependOnThatTokenAlone) {
  std::vector<std::int64_t> targets(kTokens);
  for (std::size_t n = 0; n < targets.size(); ++n) {
    targets[n] = n % 5 == 3 ? -100 : static_cast<std::int64_t>(n * 31 % kVocabulary);
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = filled({kTokens, kDim}, dtype, 1);
    const Tensor weight = filled({kVocabulary, kDim}, dtype, 2);
    Tensor dx = Tensor::empty({kTokens, kDim}, dtype, test_device());
    for (const ImplementationReport& report : explain(
             context_, CrossEntropyBackwardArgs{
                           .x = x, .weight = weight, .targets = targets_of(targets), .dx = dx})) {
      if (!report.accepted) continue;
      SCOPED_TRACE(report.name);
      const Outputs all = run(x, weight, targets, 0, kTokens, report.name);
      for (const auto& [first, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{
               {0, 1}, {7, 1}, {299, 1}, {3, 2}, {1, 65}, {100, 129}}) {
        const Outputs part = run(x, weight, targets, first, count, report.name);
        const auto equal = [&](const std::vector<std::byte>& got,
                               const std::vector<std::byte>& whole) {
          const std::size_t one = got.size() / static_cast<std::size_t>(count);
          return std::memcmp(got.data(), whole.data() + static_cast<std::size_t>(first) * one,
                             got.size()) == 0;
        };
        EXPECT_TRUE(equal(part.loss, all.loss)) << first << " " << count;
        EXPECT_TRUE(equal(part.log_probability, all.log_probability)) << first << " " << count;
        EXPECT_TRUE(equal(part.lse, all.lse)) << first << " " << count;
        EXPECT_TRUE(equal(part.dx, all.dx)) << first << " " << count;
      }
    }
  }
}

TEST_F(CrossEntropyTest, TargetsOutOfRange) {
  const Tensor x = filled({3, 16}, DType::f32, 1);
  const Tensor weight = filled({5, 16}, DType::f32, 2);
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{5}, std::int64_t{1} << 40}) {
    const Tensor targets = targets_of({1, bad, 4});
    Tensor loss = filled({3}, DType::f32, 3);
    Tensor mean = filled({1}, DType::f32, 3);
    Tensor dx = filled({3, 16}, DType::f32, 3);
    Tensor dweight = filled({5, 16}, DType::f32, 3);
    const std::vector<float> before = floats_of(dweight);
    const CrossEntropyBackwardArgs args{.x = x,
                                        .weight = weight,
                                        .targets = targets,
                                        .dx = dx,
                                        .dweight = dweight,
                                        .loss = loss,
                                        .mean_loss = mean};
    if (!test_device().is_cuda()) {
      EXPECT_THAT([&] { cross_entropy_backward(context_, args); },
                  ThrowsMessage<InvalidArgument>(
                      HasSubstr("cross_entropy_backward: targets[1]: expected 0 <= target < 5, or "
                                "ignore_index, got " +
                                std::to_string(bad))));
      EXPECT_EQ(floats_of(dweight), before);
      continue;
    }
    cross_entropy_backward(context_, args);
    context_.synchronize();
    const std::vector<float> losses = floats_of(loss), row = floats_of(dx);
    EXPECT_TRUE(std::isfinite(losses[0]) && std::isnan(losses[1]) && std::isfinite(losses[2]));
    EXPECT_TRUE(std::isnan(floats_of(mean)[0]));
    for (std::size_t i = 0; i < 48; ++i) {
      EXPECT_TRUE(std::isfinite(row[i]));
      if (i / 16 == 1) {
        EXPECT_EQ(row[i], 0);
      }
    }
    for (const float value : floats_of(dweight)) EXPECT_TRUE(std::isfinite(value));
  }
}

// NaN and infinity stay with their token; an ignored one does not reach dweight.
TEST_F(CrossEntropyTest, NanStaysWithItsToken) {
  Tensor host = filled({4, 16}, DType::f32, 1).to(Device::cpu());
  host.values<float>()[16] = std::nanf("");
  host.values<float>()[3 * 16] = INFINITY;
  const Tensor x = host.to(test_device());
  const Tensor weight = filled({40, 16}, DType::f32, 2);
  Tensor loss = Tensor::empty({4}, DType::f32, test_device());
  Tensor dx = Tensor::empty({4, 16}, DType::f32, test_device());
  Tensor dweight = Tensor::empty({40, 16}, DType::f32, test_device());
  cross_entropy_backward(context_, {.x = x,
                                    .weight = weight,
                                    .targets = targets_of({1, -100, 2, -100}),
                                    .dx = dx,
                                    .dweight = dweight,
                                    .loss = loss});
  context_.synchronize();
  for (const float value : floats_of(loss)) EXPECT_TRUE(std::isfinite(value));
  for (const float value : floats_of(dx)) EXPECT_TRUE(std::isfinite(value));
  cross_entropy_backward(
      context_,
      {.x = x, .weight = weight, .targets = targets_of({1, 3, 2, 3}), .dx = dx, .loss = loss});
  context_.synchronize();
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(std::isnan(floats_of(dx)[i]), i / 16 % 2 == 1);
  EXPECT_TRUE(std::isnan(floats_of(loss)[1]));
  EXPECT_TRUE(std::isnan(floats_of(loss)[3]));
}

// Rows of W that are -inf: tokens that cannot come, a whole tile of them, too.
TEST_F(CrossEntropyTest, LogitsOfMinusInfinityHaveNoShare) {
  if (test_device().is_cuda()) GTEST_SKIP() << "the tiles are those of the CPU";
  constexpr std::int64_t kRows = 1600;
  constexpr std::int64_t kFirst = 500, kEnd = 1100;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Tensor x = Tensor::empty({1, 1}, dtype);
    Tensor weight = Tensor::empty({kRows, 1}, dtype);
    visit_float_dtype(dtype, [&]<class T>() {
      x.values<T>()[0] = T(1.0);
      for (std::int64_t i = 0; i < kRows; ++i) {
        const bool none = i >= kFirst && i < kEnd;
        weight.values<T>()[static_cast<std::size_t>(i)] =
            T(none ? -std::numeric_limits<double>::infinity() : 0.25 * static_cast<double>(i % 4));
      }
    });
    const double sum =
        250 * (1 + std::exp(0.25) + std::exp(0.5) + std::exp(0.75));  // 1000 rows are left
    const Tensor targets = targets_of({3});
    const CrossEntropyArgs args{.x = x, .weight = weight, .targets = targets};
    for (const ImplementationReport& report : explain(context_, args)) {
      if (!report.accepted) continue;
      SCOPED_TRACE(report.name);
      Tensor loss = Tensor::empty({1}, dtype == DType::f64 ? DType::f64 : DType::f32);
      cross_entropy(context_, {.x = x,
                               .weight = weight,
                               .targets = targets,
                               .loss = loss,
                               .implementation = report.name});
      const double got = dtype == DType::f64 ? loss.values<double>()[0]
                                             : static_cast<double>(loss.values<float>()[0]);
      EXPECT_NEAR(got, std::log(sum) - 0.75, 1e-5);
    }
  }
}

// A logit that overflows to -inf has no share in the gradients either; a token that has no other has
// neither a loss nor lse.
TEST_F(CrossEntropyTest, GradientsBesideMinusInfinity) {
  Tensor host = Tensor::empty({3, 1}, DType::f32);
  std::ranges::copy(std::vector{-1e30F, 1e-30F, 2e-30F}, host.values<float>().begin());
  const Tensor weight = host.to(test_device());
  Tensor one = Tensor::empty({1, 1}, DType::f32);
  one.values<float>()[0] = 1e30F;
  const Tensor x = one.to(test_device());
  const Tensor targets = targets_of({1});
  Tensor dx = Tensor::empty({1, 1}, DType::f32, test_device());
  Tensor dweight = Tensor::empty({3, 1}, DType::f32, test_device());
  const CrossEntropyBackwardArgs args{
      .x = x, .weight = weight, .targets = targets, .dx = dx, .dweight = dweight};
  for (const ImplementationReport& report : explain(context_, args)) {
    if (!report.accepted) continue;
    SCOPED_TRACE(report.name);
    CrossEntropyBackwardArgs named = args;
    named.implementation = report.name;
    cross_entropy_backward(context_, named);
    context_.synchronize();
    EXPECT_NEAR(floats_of(dx)[0], 7.31059e-31F, 1e-35F);
    EXPECT_EQ(floats_of(dweight)[0], 0);
  }
  std::ranges::fill(host.values<float>(), -INFINITY);
  const Tensor nothing = host.to(test_device());
  Tensor loss = Tensor::empty({1}, DType::f32, test_device());
  Tensor lse = Tensor::empty({1}, DType::f32, test_device());
  for (const ImplementationReport& report : explain(context_, args)) {
    if (!report.accepted) continue;
    cross_entropy(context_, {.x = x,
                             .weight = nothing,
                             .targets = targets,
                             .loss = loss,
                             .lse = lse,
                             .implementation = report.name});
    context_.synchronize();
    EXPECT_TRUE(std::isnan(floats_of(loss)[0])) << report.name;
    EXPECT_TRUE(std::isnan(floats_of(lse)[0])) << report.name;
  }
}

// More tokens than a chunk has: what each of two calls gives, and their sum.
TEST_F(CrossEntropyTest, ChunksAreSeamless) {
  if (!test_device().is_cuda()) GTEST_SKIP() << "chunks are those of the GPU";
  constexpr std::int64_t kMany = 2300, kHalf = 2048, kHead = 128256, kWidth = 16;
  context_.reserve_workspace(std::int64_t{560} << 20);
  const Tensor x = filled({kMany, kWidth}, DType::bf16, 1);
  const Tensor weight = filled({kHead, kWidth}, DType::bf16, 2);
  std::vector<std::int64_t> targets(kMany);
  for (std::size_t n = 0; n < targets.size(); ++n) {
    targets[n] = static_cast<std::int64_t>(n * 7919 % kHead);
  }
  Tensor host = Tensor::empty({kMany}, DType::f32);
  std::ranges::fill(host.values<float>(), 1.0F);
  const Tensor ones = host.to(test_device());
  const auto gradients = [&](std::int64_t first, std::int64_t count, Tensor& dx, Tensor& dweight,
                             bool accumulate) {
    ConstTensorView part = x, dloss = ones;
    part.shape[0] = dloss.shape[0] = count;
    part.data = static_cast<const Bf16*>(x.data()) + first * kWidth;
    TensorView rows = dx;
    rows.shape[0] = count;
    rows.data = static_cast<Bf16*>(dx.data()) + first * kWidth;
    cross_entropy_backward(
        context_,
        {.x = part,
         .weight = weight,
         .targets = targets_of({targets.begin() + first, targets.begin() + first + count}),
         .dloss = dloss,
         .dx = rows,
         .dweight = dweight,
         .accumulate = accumulate});
    context_.synchronize();
  };
  Tensor dx = Tensor::empty({kMany, kWidth}, DType::bf16, test_device());
  Tensor other = Tensor::empty({kMany, kWidth}, DType::bf16, test_device());
  Tensor whole = Tensor::empty({kHead, kWidth}, DType::f32, test_device());
  Tensor parts = Tensor::empty({kHead, kWidth}, DType::f32, test_device());
  gradients(0, kMany, dx, whole, false);
  gradients(0, kHalf, other, parts, false);
  gradients(kHalf, kMany - kHalf, other, parts, true);
  EXPECT_EQ(bytes_of(dx), bytes_of(other));
  EXPECT_EQ(bytes_of(whole), bytes_of(parts));
  Tensor narrow = Tensor::empty({kHead, kWidth}, DType::bf16, test_device());
  gradients(0, kMany, dx, narrow, false);
  const Tensor rounded = narrow.to(Device::cpu());
  const std::vector<float> exact = floats_of(whole);
  for (std::size_t i = 0; i < exact.size(); i += 97) {
    EXPECT_NEAR(static_cast<float>(rounded.values<Bf16>()[i]), exact[i],
                0.016F * std::fabs(exact[i]) + 1e-3F);
  }
}

TEST_F(CrossEntropyTest, NoTokens) {
  const Tensor x = Tensor::empty({0, 16}, DType::f32, test_device());
  const Tensor weight = filled({5, 16}, DType::f32, 2);
  Tensor mean = filled({1}, DType::f32, 3);
  Tensor dweight = filled({5, 16}, DType::f32, 3);
  Tensor dx = Tensor::empty({0, 16}, DType::f32, test_device());
  cross_entropy_backward(context_, {.x = x,
                                    .weight = weight,
                                    .targets = targets_of({}),
                                    .dx = dx,
                                    .dweight = dweight,
                                    .mean_loss = mean});
  context_.synchronize();
  EXPECT_EQ(floats_of(mean)[0], 0);
  for (const float value : floats_of(dweight)) EXPECT_EQ(value, 0);
}

TEST_F(CrossEntropyTest, Errors_NameTheArgument) {
  const Tensor x = filled({2, 8}, DType::f32, 1);
  const Tensor weight = filled({4, 8}, DType::f32, 2);
  const Tensor targets = targets_of({0, 1});
  Tensor loss = Tensor::empty({2}, DType::f32, test_device());
  const auto refused = [&](const std::string& message, auto change) {
    CrossEntropyArgs args{.x = x, .weight = weight, .targets = targets, .loss = loss};
    change(args);
    EXPECT_THAT([&] { cross_entropy(context_, args); },
                ThrowsMessage<InvalidArgument>(HasSubstr("cross_entropy: " + message)));
  };
  const Tensor three = targets_of({0, 1, 2});
  const Tensor narrow = filled({4, 7}, DType::f32, 2);
  const Tensor half = filled({4, 8}, DType::bf16, 2);
  const Tensor none = Tensor::empty({0, 8}, DType::f32, test_device());
  Tensor longer = Tensor::empty({3}, DType::f32, test_device());
  using Args = CrossEntropyArgs;
  refused("targets: expected shape [2]", [&](Args& a) { a.targets = three; });
  refused("targets: expected dtype i32 or i64", [&](Args& a) { a.targets = loss; });
  refused("weight: expected shape [4, 8]", [&](Args& a) { a.weight = narrow; });
  refused("weight: expected dtype f32", [&](Args& a) { a.weight = half; });
  refused("weight: expected at least one row", [&](Args& a) { a.weight = none; });
  refused("loss: expected shape [2]", [&](Args& a) { a.loss = longer; });
  refused("label_smoothing: expected at most 1", [&](Args& a) { a.label_smoothing = 1.5; });
  refused("z_loss", [&](Args& a) { a.z_loss = -1; });
  refused("soft_cap", [&](Args& a) { a.soft_cap = std::nan(""); });
  refused("soft_cap: expected 0 or a normal number of f32, got 1e+300",
          [&](Args& a) { a.soft_cap = 1e300; });
  refused("soft_cap", [&](Args& a) { a.soft_cap = 1e-42; });
  refused("loss: expected no overlap with x",
          [&](Args& a) { a.loss.data = const_cast<void*>(x.data()); });
}

}  // namespace
}  // namespace touchstone
