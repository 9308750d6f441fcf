// Views that no constructor makes: every operator refuses them with an error that names the
// argument, before it reads a shape or writes anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/runners.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/cache/kv_cache.h"
#include "touchstone/core/context.h"
#include "touchstone/core/error.h"
#include "touchstone/core/tensor.h"
#include "touchstone/ops/attention.h"
#include "touchstone/ops/cached_attention.h"
#include "touchstone/ops/kv_append.h"
#include "touchstone/ops/layer_norm.h"
#include "touchstone/ops/rms_norm.h"
#include "touchstone/ops/sample.h"
#include "touchstone/ops/softmax_topk.h"

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
        explained ? (void)explain(context_, args) : call(context_, args);
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

TEST_F(BadViews, RanksOfLayerNorm) {
  const LayerNormArgs good{.x = view({3, 8}),
                           .residual = view({3, 8}),
                           .weight = view({8}),
                           .bias = view({8}),
                           .y = view({3, 8}),
                           .sum = view({3, 8}),
                           .mean = view({3}),
                           .rstd = view({3})};
  const auto bad = [&](auto member, const char* name) {
    expect_bad_ranks_refused(layer_norm, good, member, std::string("layer_norm: ") + name + ": ");
  };
  bad(&LayerNormArgs::x, "x"), bad(&LayerNormArgs::residual, "residual");
  bad(&LayerNormArgs::weight, "weight"), bad(&LayerNormArgs::bias, "bias");
  bad(&LayerNormArgs::y, "y"), bad(&LayerNormArgs::sum, "sum");
  bad(&LayerNormArgs::mean, "mean"), bad(&LayerNormArgs::rstd, "rstd");
}

TEST_F(BadViews, RanksOfRmsNormBackward) {
  const RmsNormBackwardArgs good{.dy = view({3, 8}),
                                 .x = view({3, 8}),
                                 .rstd = view({3}),
                                 .weight = view({8}),
                                 .dsum = view({3, 8}),
                                 .dx = view({3, 8}),
                                 .dweight = view({8})};
  const auto bad = [&](auto member, const char* name) {
    expect_bad_ranks_refused(rms_norm_backward, good, member,
                             std::string("rms_norm_backward: ") + name + ": ");
  };
  bad(&RmsNormBackwardArgs::dy, "dy"), bad(&RmsNormBackwardArgs::x, "x");
  bad(&RmsNormBackwardArgs::rstd, "rstd"), bad(&RmsNormBackwardArgs::weight, "weight");
  bad(&RmsNormBackwardArgs::dsum, "dsum"), bad(&RmsNormBackwardArgs::dx, "dx");
  bad(&RmsNormBackwardArgs::dweight, "dweight");
}

TEST_F(BadViews, RanksOfSoftmaxTopk) {
  const SoftmaxTopkArgs good{.logits = view({3, 8}),
                             .bias = view({3, 8}),
                             .probabilities = view({3, 2}),
                             .indices = view({3, 2}, DType::i32),
                             .log_sum_exp = view({3}),
                             .status = view({3}, DType::i32)};
  const auto bad = [&](auto member, const char* name) {
    expect_bad_ranks_refused(softmax_topk, good, member,
                             std::string("softmax_topk: ") + name + ": ");
  };
  bad(&SoftmaxTopkArgs::logits, "logits"), bad(&SoftmaxTopkArgs::bias, "bias");
  bad(&SoftmaxTopkArgs::probabilities, "probabilities"), bad(&SoftmaxTopkArgs::indices, "indices");
  bad(&SoftmaxTopkArgs::log_sum_exp, "log_sum_exp"), bad(&SoftmaxTopkArgs::status, "status");
}

TEST_F(BadViews, RanksOfSample) {
  const SampleArgs good{.logits = view({3, 8}),
                        .temperature = view({3}),
                        .repetition_penalty = view({3}),
                        .history = view({3, 4}, DType::i32),
                        .seed = view({3}, DType::i64),
                        .position = view({3}, DType::i64),
                        .token = view({3}, DType::i32)};
  const auto bad = [&](auto member, const char* name) {
    expect_bad_ranks_refused(sample, good, member, std::string("sample: ") + name + ": ");
  };
  bad(&SampleArgs::logits, "logits"), bad(&SampleArgs::temperature, "temperature");
  bad(&SampleArgs::history, "history"), bad(&SampleArgs::seed, "seed");
  bad(&SampleArgs::token, "token");
}

// Heads and tokens alike, so that the order of the dimensions does not matter here.
TEST_F(BadViews, RanksOfAttention) {
  const auto tensor = [&] { return view({1, 2, 2, 8}); };
  const AttentionArgs good{.q = tensor(),
                           .k = tensor(),
                           .v = tensor(),
                           .output = tensor(),
                           .log_sum_exp = view({1, 2, 2})};
  const auto bad = [&](auto member, const char* name) {
    expect_bad_ranks_refused(attention, good, member, std::string("attention: ") + name + ": ");
  };
  bad(&AttentionArgs::q, "q"), bad(&AttentionArgs::k, "k"), bad(&AttentionArgs::v, "v");
  bad(&AttentionArgs::output, "output"), bad(&AttentionArgs::log_sum_exp, "log_sum_exp");
}

TEST_F(BadViews, RanksOfPagedOperators) {
  const cache::Layout layout{{{.layers = 1, .kv_heads = 1, .k_dim = 8, .v_dim = 8}}};
  cache::KvCache cache(context_, {.layout = layout, .pool_pages = {2}});
  cache::CacheViewBuilder builder(cache);
  const cache::SequenceId id = cache.create();
  cache.reserve(id, 1);
  const KvAppendArgs append{.cache = builder.build(context_, {&id, 1}),
                            .k = view({1, 1, 8}),
                            .v = view({1, 1, 8}),
                            .rows = view({1}, DType::i32),
                            .positions = view({1}, DType::i64)};
  const auto bad_append = [&](auto member, const char* name) {
    expect_bad_ranks_refused(kv_append, append, member, std::string("kv_append: ") + name + ": ");
  };
  bad_append(&KvAppendArgs::k, "k"), bad_append(&KvAppendArgs::v, "v");
  bad_append(&KvAppendArgs::rows, "rows"), bad_append(&KvAppendArgs::positions, "positions");
  const CachedAttentionArgs attend{.q = view({1, 1, 8}),
                                   .query_offsets = view({2}, DType::i64),
                                   .cache = append.cache,
                                   .sink_logits = view({1}),
                                   .output = view({1, 1, 8}),
                                   .include_reserved = true};
  const auto bad = [&](auto member, const char* name) {
    expect_bad_ranks_refused(cached_attention, attend, member,
                             std::string("cached_attention: ") + name + ": ");
  };
  bad(&CachedAttentionArgs::q, "q"), bad(&CachedAttentionArgs::output, "output");
  bad(&CachedAttentionArgs::query_offsets, "query_offsets");
  bad(&CachedAttentionArgs::sink_logits, "sink_logits");
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
