// Views that no constructor makes: every operator refuses them with an error that names the
// argument, before it reads a shape or writes anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/runners.h"
#include "touchstone/core/context.h"
#include "touchstone/core/error.h"
#include "touchstone/core/tensor.h"
#include "touchstone/ops/attention.h"
#include "touchstone/ops/layer_norm.h"
#include "touchstone/ops/sample.h"
#include "touchstone/ops/softmax_topk.h"
#include "touchstone/train/operators.h"

namespace touchstone::inline v0 {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Memory for views of at most 64 elements.
class BadViews : public ::testing::Test {
 protected:
  TensorView view(std::vector<std::int64_t> shape, DType dtype = DType::f32) {
    tensors_.push_back(Tensor::zeros({64}, DType::f64, test::test_device()));
    return make_view(tensors_.back().data(), shape, dtype, test::test_device());
  }

  // Spoils `member` of good arguments and expects an InvalidArgument that begins with `argument`.
  template <class Args, class Spoil, class Member>
  void expect_refused(void (*call)(Context&, const Args&), const Args& good, Member Args::*member,
                      const std::string& argument, Spoil spoil) {
    Args args = good;
    spoil(args.*member);
    for (const bool explained : {false, true}) {
      try {
        if (!explained) {
          call(context_, args);
        } else if constexpr (requires { explain(context_, args); }) {
          (void)explain(context_, args);
        } else {
          continue;
        }
        ADD_FAILURE() << argument << ": accepted";
      } catch (const InvalidArgument& error) {
        EXPECT_THAT(error.what(), StartsWith(argument)) << explained;
      }
    }
  }

  template <class Args, class Member>
  void expect_bad_ranks_refused(void (*call)(Context&, const Args&), const Args& good,
                                Member Args::*member, const std::string& argument) {
    for (const int rank : {-1, kMaxRank + 1, -1000000}) {
      expect_refused(call, good, member, argument, [&](auto& view) { view.rank = rank; });
    }
    // Not defined by its data, only by its rank.
    expect_refused(call, good, member, argument, [](auto& view) {
      view = {};
      view.rank = -1;
    });
  }

  Context context_{{.device = test::test_device(), .threads = 1}};

 private:
  std::vector<Tensor> tensors_;
};

// The specifications show the same of every other operator (spec_refusal_test).
TEST_F(BadViews, RanksOfTrainingOperators) {
  using namespace train;
  const CastArgs casting{.x = view({3, 8}), .y = view({3, 8})};
  expect_bad_ranks_refused(cast, casting, &CastArgs::x, "cast: x: ");
  expect_bad_ranks_refused(cast, casting, &CastArgs::y, "cast: y: ");
  const AddArgs adding{.x = view({3, 8}), .y = view({3, 8})};
  expect_bad_ranks_refused(add_to, adding, &AddArgs::x, "add_to: x: ");
  expect_bad_ranks_refused(add_to, adding, &AddArgs::y, "add_to: y: ");
  const DropoutArgs dropping{.x = view({3, 8}), .y = view({3, 8})};
  expect_bad_ranks_refused(dropout, dropping, &DropoutArgs::x, "dropout: x: ");
  expect_bad_ranks_refused(dropout, dropping, &DropoutArgs::y, "dropout: y: ");
  const GradientNormArgs norm{.gradient = view({8}), .norm = view({1}, DType::f64)};
  expect_bad_ranks_refused(gradient_norm, norm, &GradientNormArgs::gradient,
                           "gradient_norm: gradient: ");
  expect_bad_ranks_refused(gradient_norm, norm, &GradientNormArgs::norm, "gradient_norm: norm: ");
  const AdamWArgs step{.gradient = view({8}),
                       .norm = view({1}, DType::f64),
                       .weight = view({8}),
                       .m = view({8}),
                       .v = view({8}),
                       .average = view({8})};
  expect_bad_ranks_refused(adamw, step, &AdamWArgs::gradient, "adamw: gradient: ");
  expect_bad_ranks_refused(adamw, step, &AdamWArgs::norm, "adamw: norm: ");
  expect_bad_ranks_refused(adamw, step, &AdamWArgs::weight, "adamw: weight: ");
  expect_bad_ranks_refused(adamw, step, &AdamWArgs::m, "adamw: m: ");
  expect_bad_ranks_refused(adamw, step, &AdamWArgs::v, "adamw: v: ");
  expect_bad_ranks_refused(adamw, step, &AdamWArgs::average, "adamw: average: ");
}

// An expanded history: no stride of it is large, its rows are.
TEST_F(BadViews, SizesBeyond64Bits) {
  const SampleArgs good{.logits = view({3, 8}),
                        .repetition_penalty = view({3}),
                        .history = view({3, 4}, DType::i32),
                        .seed = view({3}, DType::i64),
                        .position = view({3}, DType::i64),
                        .token = view({3}, DType::i32)};
  for (const int power : {60, 61, 62}) {
    for (const bool expanded : {false, true}) {
      SCOPED_TRACE(std::to_string(power) + (expanded ? " expanded" : ""));
      expect_refused(sample, good, &SampleArgs::history, "sample: history",
                     [&](ConstTensorView& history) {
                       history.shape[1] = std::int64_t{1} << power;
                       history.stride[0] = expanded ? 0 : history.shape[1];
                     });
    }
  }
}

// Types that describe stored values only.
TEST_F(BadViews, StorageDtypes) {
  const LayerNormArgs norm{.x = view({3, 8}), .y = view({3, 8})};
  const SoftmaxTopkArgs topk{
      .logits = view({3, 8}), .probabilities = view({3, 2}), .indices = view({3, 2}, DType::i32)};
  const auto tensor = [&] { return view({1, 2, 2, 8}); };
  const AttentionArgs dense{.q = tensor(), .k = tensor(), .v = tensor(), .output = tensor()};
  for (const DType dtype : {DType::f8_e4m3, DType::i4}) {
    const auto spoil = [&](auto& view) { view.dtype = dtype; };
    expect_refused(layer_norm, norm, &LayerNormArgs::x, "layer_norm: x: expected dtype", spoil);
    expect_refused(layer_norm, norm, &LayerNormArgs::y, "layer_norm: y: expected dtype", spoil);
    expect_refused(softmax_topk, topk, &SoftmaxTopkArgs::logits,
                   "softmax_topk: logits: expected dtype", spoil);
    expect_refused(attention, dense, &AttentionArgs::k, "attention: k: expected dtype", spoil);
    expect_refused(attention, dense, &AttentionArgs::output, "attention: output: expected dtype",
                   spoil);
  }
}

TEST_F(BadViews, NumbersAreShownInFull) {
  const LayerNormArgs args{.x = view({3, 8}), .y = view({3, 8}), .eps = -1e-9};
  try {
    layer_norm(context_, args);
    ADD_FAILURE() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("got -1e-09"));
  }
}

}  // namespace
}  // namespace touchstone::inline v0
