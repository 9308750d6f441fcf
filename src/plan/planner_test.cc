// Figures that can be worked out by hand, and what must hold for any plan.
#include "touchstone/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cache/cache_state.h"
#include "touchstone/core/error.h"
#include "touchstone/plan/catalog.h"

namespace touchstone::inline v0::plan {
namespace {

using namespace cache;  // NOLINT: sizes of pages and tokens

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr double kGiBd = 1024.0 * 1024 * 1024;

PlanRequest request_for(const char* model, const char* gpu = "h100-sxm-80gb") {
  PlanRequest request;
  request.model = find_model(model);
  request.gpu = find_gpu(gpu);
  return request;
}

std::int64_t bytes_per_token(const char* model, const char* format = "f16") {
  return token_bytes(planned_layout(find_model(model), parse_cache_format(format), 16, 1));
}

TEST(Planner, BytesPerTokenByHand) {
  EXPECT_EQ(bytes_per_token("llama-2-7b"), 2 * 32 * 32 * 128 * 2);
  EXPECT_EQ(bytes_per_token("llama-2-7b"), 524288);
  EXPECT_EQ(bytes_per_token("llama-3-8b"), 2 * 32 * 8 * 128 * 2);
  EXPECT_EQ(bytes_per_token("llama-3-8b"), 131072);
  EXPECT_EQ(bytes_per_token("llama-2-70b"), 327680);
  EXPECT_EQ(bytes_per_token("gpt-2"), 2 * 12 * 12 * 64 * 2);
  EXPECT_EQ(bytes_per_token("deepseek-v3"), 61 * (512 + 64) * 2);
  EXPECT_EQ(bytes_per_token("mimo-v2-flash"), 9 * 4 * (192 + 128) * 2 + 39 * 8 * (192 + 128) * 2);
  EXPECT_EQ(bytes_per_token("qwen3.5-27b"), 65536);
}

TEST(Planner, QuantizedFormatsPayForTheirScales) {
  // One f16 scale per head and token; int4: a scale and a minimum per 32 values.
  EXPECT_EQ(bytes_per_token("llama-3-8b", "int8"), 2 * 32 * 8 * (128 + 2));
  EXPECT_EQ(bytes_per_token("llama-3-8b", "fp8"), 2 * 32 * 8 * (128 + 2));
  EXPECT_EQ(bytes_per_token("llama-3-8b", "int4"), 2 * 32 * 8 * (64 + 4 * 4));
  EXPECT_EQ(bytes_per_token("llama-3-8b", "k8v4"), 32 * 8 * ((128 + 2) + (64 + 16)));
  EXPECT_EQ(bytes_per_token("llama-3-8b", "k16v8"), 32 * 8 * (256 + 130));
  EXPECT_EQ(bytes_per_token("llama-3-8b", "f32"), 2 * 131072);
}

// Published figures for one sequence with 16-bit keys and values, which our tables must reproduce.
TEST(Planner, CacheSizesOthersMeasured) {
  struct Known {
    const char* model;
    std::int64_t context;
    double gib;
  };
  for (const Known& known :
       {Known{"gemma-3-27b", 131072, 10.41}, Known{"qwen3.5-27b", 262144, 16.0},
        Known{"deepseek-v3", 163840, 10.72}, Known{"kimi-k2.5", 262144, 17.16},
        Known{"glm-5.2", 202752, 16.97}, Known{"qwen3-0.6b", 40960, 4.375},
        Known{"gemma-3-1b", 32768, 139.0 / 1024}, Known{"llama-2-7b", 4096, 2.0}}) {
    PlanRequest request = request_for(known.model);
    request.context = known.context;
    const Plan plan = make_plan(request);
    const double gib = static_cast<double>(plan.cache_bytes - plan.state_bytes) / kGiBd;
    EXPECT_NEAR(gib, known.gib, 0.006) << known.model;
  }
}

TEST(Planner, WeightsComeFromTheRealCount) {
  const Plan plan = make_plan(request_for("llama-2-7b"));
  EXPECT_EQ(plan.weight_bytes, 2 * std::int64_t{6738415616});
  EXPECT_NEAR(static_cast<double>(plan.weight_bytes) / kGiBd, 12.55, 0.005);
  EXPECT_EQ(find_model("gpt-2").parameters, 124439808);
  EXPECT_EQ(weight_bytes(parse_weight_format("f32"), 1000), 4000);
  EXPECT_EQ(weight_bytes(parse_weight_format("int8"), 256), 256 + 2 * 2);
  EXPECT_EQ(weight_bytes(parse_weight_format("int4"), 256), 128 + 2 * 4);
  EXPECT_EQ(weight_bytes(parse_weight_format("fp8"), 1000), 1000);
  EXPECT_EQ(weight_bytes(parse_weight_format("mxfp4"), 320), 160 + 10);
  EXPECT_EQ(weight_bytes(parse_weight_format("nvfp4"), 320), 160 + 20);
  for (const char* name : {"f32", "bf16", "f16", "int8", "int4", "fp8", "mxfp4", "nvfp4"}) {
    EXPECT_EQ(weight_format_name(parse_weight_format(name)), name);
  }
  EXPECT_EQ(weight_format_name({.dtype = DType::i4, .group_size = 64}), "int4 per 64");
}

TEST(Planner, SlidingWindowsStopGrowing) {
  PlanRequest request = request_for("gemma-3-27b");
  request.context = 2048;
  const std::int64_t at_2k = make_plan(request).cache_bytes;
  request.context = 4096;
  const std::int64_t at_4k = make_plan(request).cache_bytes;
  // Only the ten layers that see everything still grow.
  EXPECT_EQ(at_4k - at_2k, std::int64_t{2048} * 10 * 2 * 16 * 128 * 2);
}

TEST(Planner, RecurrentStateIsCountedOncePerSequence) {
  PlanRequest request = request_for("qwen3.5-27b", "h200");
  request.context = 1024;
  request.batch = 3;
  const Plan plan = make_plan(request);
  const std::int64_t state = 48 * (48 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 48 * 128) * 2);
  EXPECT_EQ(plan.state_bytes, 3 * state);
  EXPECT_EQ(plan.cache_bytes, 3 * (state + 1024 * 65536));
}

// Every model on every GPU, several formats: the limits are exact, one page more does not fit.
TEST(Planner, LimitsAreExactForEveryModel) {
  for (const ModelEntry& model : models()) {
    for (const GpuEntry& gpu : gpus()) {
      for (const char* format : {"bf16", "int4"}) {
        PlanRequest request;
        request.model = model.spec;
        request.gpu = gpu.spec;
        request.cache = parse_cache_format(format);
        request.weights = parse_weight_format("int4");
        request.batch = 3;
        request.gpus = 4;
        const Plan plan = make_plan(request);
        ASSERT_EQ(plan.fits, plan.max_batch >= request.batch) << model.spec.name;
        ASSERT_EQ(plan.fits, plan.max_context >= plan.context) << model.spec.name;
        if (plan.max_context == 0 || plan.max_context == kUnlimitedTokens) continue;
        request.context = plan.max_context;
        ASSERT_TRUE(make_plan(request).fits) << model.spec.name << " " << gpu.spec.name;
        request.context = plan.max_context + 1;
        ASSERT_FALSE(make_plan(request).fits) << model.spec.name << " " << gpu.spec.name;
        request.context = plan.context;
        request.batch = plan.max_batch + 1;
        ASSERT_FALSE(make_plan(request).fits) << model.spec.name << " " << gpu.spec.name;
      }
    }
  }
}

// The real cache, given the pages of the plan, grows every sequence to the planned limit token by
// token, and does not fit one more.
void expect_limit_is_real(const PlanRequest& request) {
  const Plan plan = make_plan(request);
  ASSERT_GT(plan.max_context, 0);
  ASSERT_LT(plan.max_context, 100000);
  KvCacheOptions options;
  options.layout = plan.layout;
  options.pool_pages = pool_pages_for(plan.layout, plan.max_context, request.batch);
  Context context({.threads = 1});
  KvCache cache(context, options);
  std::int64_t bytes = 0;
  for (const GroupStatistics& group : cache.statistics().groups) {
    bytes += group.capacity * group.page_bytes;
  }
  EXPECT_LE(bytes, page_budget(request));
  // One page more for each sequence in a group that still grows: too much.
  EXPECT_GT(bytes + request.batch * page_bytes(plan.layout.groups.front()), page_budget(request));

  std::vector<SequenceId> ids;
  for (std::int64_t i = 0; i < request.batch; ++i) ids.push_back(cache.create());
  for (std::int64_t token = 0; token < plan.max_context; ++token) {
    for (const SequenceId id : ids) {
      cache.advance_window(id);
      ASSERT_NO_THROW(cache.reserve(id, 1)) << "token " << token;
      cache.commit(id, 1);
    }
  }
  EXPECT_EQ(cache.length(ids.front()), plan.max_context);
  EXPECT_THROW(cache.reserve(ids.front(), 1), OutOfMemory);
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
}

TEST(Planner, TheLongestContextCanBeAllocated) {
  for (const char* model : {"gpt-2", "gemma-3-1b", "gpt-oss-20b", "deepseek-v3", "qwen3.5-27b"}) {
    for (const char* format : {"bf16", "k8v4"}) {
      PlanRequest request = request_for(model);
      request.cache = parse_cache_format(format);
      request.batch = 3;
      request.context = 1;
      const Plan least = make_plan(request);
      request.gpu.memory_bytes = least.total_bytes + (std::int64_t{200} << 20) + 12345;
      SCOPED_TRACE(std::string(model) + " " + format);
      expect_limit_is_real(request);
    }
  }
}

TEST(Planner, MoreMemoryNeverHoldsLess) {
  for (const char* model : {"gemma-3-12b", "llama-3-8b", "deepseek-v3", "gpt-oss-20b"}) {
    PlanRequest request = request_for(model);
    request.weights = parse_weight_format("int4");
    std::int64_t context = 0;
    std::int64_t batch = 0;
    for (std::int64_t gib = 1; gib < 2048; gib += 7) {
      request.gpu.memory_bytes = gib * kGiB;
      const Plan plan = make_plan(request);
      EXPECT_GE(plan.max_context, context);
      EXPECT_GE(plan.max_batch, batch);
      context = plan.max_context;
      batch = plan.max_batch;
    }
    EXPECT_GT(context, 0) << model;
  }
}

TEST(Planner, LongerSequencesAndLargerBatchesNeverTakeLess) {
  PlanRequest request = request_for("gemma-3-27b");
  std::int64_t bytes = 0;
  for (request.context = 1; request.context < 5000; request.context += 37) {
    const Plan plan = make_plan(request);
    EXPECT_GE(plan.cache_bytes, bytes);
    bytes = plan.cache_bytes;
    EXPECT_EQ(plan.growth.back().batch_bytes, plan.cache_bytes);
    EXPECT_EQ(plan.growth.back().tokens, plan.context);
  }
}

TEST(Planner, GpusShareHeadsButNotTheLatent) {
  PlanRequest request = request_for("llama-3-8b");
  request.gpus = 8;
  EXPECT_EQ(make_plan(request).token_bytes, 131072 / 8);
  EXPECT_EQ(make_plan(request).weight_bytes, 2 * std::int64_t{8030261248} / 8);
  // More GPUs than heads: each keeps one.
  request.gpus = 16;
  EXPECT_EQ(make_plan(request).token_bytes, 131072 / 8);
  PlanRequest latent = request_for("deepseek-v3", "h200");
  latent.gpus = 16;
  EXPECT_EQ(make_plan(latent).token_bytes, 70272);
}

TEST(Planner, SaysHowManyGpusItTakes) {
  PlanRequest request = request_for("llama-2-70b");
  const Plan plan = make_plan(request);
  EXPECT_FALSE(plan.fits);
  EXPECT_EQ(plan.max_context, 0);
  EXPECT_EQ(plan.max_batch, 0);
  EXPECT_EQ(plan.gpus_needed, 2);
  request.gpus = plan.gpus_needed;
  EXPECT_TRUE(make_plan(request).fits);
}

TEST(Planner, DecodingByHand) {
  PlanRequest request = request_for("llama-2-7b");
  request.context = 1000;
  request.batch = 4;
  const DecodeStep step = make_plan(request).decode;
  EXPECT_EQ(step.weight_bytes, std::int64_t{13476831232});
  EXPECT_EQ(step.cache_bytes, std::int64_t{4} * 1000 * 524288);
  const double flops = 4 * (2.0 * 6738415616 + 2.0 * 32 * 32 * (128 + 128) * 1000);
  EXPECT_DOUBLE_EQ(step.flops, flops);
  const double bytes = 13476831232.0 + 4000.0 * 524288;
  EXPECT_DOUBLE_EQ(step.intensity, flops / bytes);
  EXPECT_DOUBLE_EQ(step.tokens_per_second, 4 * 3350e9 / bytes);
  EXPECT_NEAR(step.ridge, 989e12 / 3350e9, 1e-9);
}

TEST(Planner, AMixtureReadsItsActiveExperts) {
  PlanRequest request = request_for("mixtral-8x7b", "h200");
  EXPECT_EQ(make_plan(request).decode.weight_bytes, 2 * std::int64_t{12879925248});
  request.batch = 64;
  EXPECT_EQ(make_plan(request).decode.weight_bytes, 2 * std::int64_t{46702792704});
}

TEST(Planner, RecomputationIsTheSumOfItsSteps) {
  for (const char* model : {"llama-3-8b", "gpt-oss-20b", "deepseek-v3"}) {
    PlanRequest request = request_for(model);
    double steps = 0;
    double all = 0;
    for (request.context = 1; request.context <= 300; ++request.context) {
      const Recomputation cost = make_plan(request).recomputation;
      steps += cost.step_cached;
      all += cost.step_recomputed;
      EXPECT_NEAR(cost.step_recomputed / steps, 1, 1e-12);
      EXPECT_NEAR(cost.all_cached / steps, 1, 1e-12);
      EXPECT_NEAR(cost.all_recomputed / all, 1, 1e-12);
    }
  }
}

double ratio_of(const Plan& plan, const char* name) {
  for (const Alternative& other : plan.alternatives) {
    if (other.name == name) return other.ratio;
  }
  ADD_FAILURE() << "no alternative " << name;
  return 0;
}

TEST(Planner, AlternativesSaveWhatTheyShould) {
  const Plan mha = make_plan(request_for("llama-2-7b"));
  EXPECT_DOUBLE_EQ(ratio_of(mha, "as planned"), 1);
  EXPECT_DOUBLE_EQ(ratio_of(mha, "cache in int8"), 130.0 / 256);
  EXPECT_DOUBLE_EQ(ratio_of(mha, "cache in int4"), 80.0 / 256);
  EXPECT_DOUBLE_EQ(ratio_of(mha, "GQA: 8 KV heads"), 0.25);
  const Plan gqa = make_plan(request_for("llama-3.1-8b"));
  EXPECT_DOUBLE_EQ(ratio_of(gqa, "MHA: 32 KV heads"), 4);
  EXPECT_NEAR(ratio_of(gqa, "window of 4096 on every layer"), 4096.0 / 131072, 2e-4);
  const Plan windows = make_plan(request_for("gemma-3-27b"));
  EXPECT_NEAR(ratio_of(windows, "no windows: every layer sees all"), 62.0 / 10.41, 0.01);
}

TEST(Planner, NamesOfFormats) {
  EXPECT_EQ(parse_cache_format("k8v4").k.dtype, DType::i8);
  EXPECT_EQ(parse_cache_format("k8v4").v.dtype, DType::i4);
  for (const char* wrong : {"", "f8", "k8", "k8v", "kv", "v4k8", "k8v5", "K8V4", "int 8"}) {
    EXPECT_THROW(parse_cache_format(wrong), InvalidArgument) << wrong;
  }
  EXPECT_THROW(parse_weight_format("int2"), InvalidArgument);
}

TEST(Planner, ActivationsFollowThePrefillAndTheGpus) {
  PlanRequest request = request_for("llama-2-7b");
  const std::int64_t width = std::int64_t{2048} * 2 * 4096;
  EXPECT_EQ(make_plan(request).overhead.activations, 16 * width);
  request.prefill_tokens = 8192;
  EXPECT_EQ(make_plan(request).overhead.activations, 4 * 16 * width);
  request.gpus = 7;  // two widths on every GPU, fourteen divided
  EXPECT_EQ(make_plan(request).overhead.activations, 4 * 4 * width);
}

TEST(Planner, PublishedWeightsKeepSomeParametersWide) {
  PlanRequest request = request_for("llama-3-8b");
  const std::int64_t parameters = request.model.parameters;
  request.model.weights = parse_weight_format("int4");
  request.model.unquantized_parameters = 1'000'000'000;
  const Plan published = make_plan(request);
  EXPECT_EQ(published.weights, *request.model.weights);
  EXPECT_EQ(published.weight_bytes,
            2'000'000'000 + weight_bytes(*request.model.weights, parameters - 1'000'000'000));
  request.weights = parse_weight_format("bf16");  // as asked for instead
  EXPECT_EQ(make_plan(request).weight_bytes, 2 * parameters);
}

TEST(Planner, RefusesNonsense) {
  const auto refused = [](auto&& change) {
    PlanRequest request = request_for("llama-2-7b");
    change(request);
    EXPECT_THROW(make_plan(request), InvalidArgument);
  };
  refused([](PlanRequest& request) { request.context = -1; });
  refused([](PlanRequest& request) { request.batch = 0; });
  refused([](PlanRequest& request) { request.gpus = 0; });
  refused([](PlanRequest& request) { request.page_tokens = 0; });
  refused([](PlanRequest& request) { request.chunk = 0; });
  refused([](PlanRequest& request) { request.prefill_tokens = 0; });
  refused([](PlanRequest& request) { request.model.cached[0].kv_heads = 5; });  // of 32
  refused([](PlanRequest& request) { request.model.cached.clear(); });
  refused([](PlanRequest& request) { request.model.native_context = 0; });
  refused([](PlanRequest& request) { request.gpu.bytes_per_second = 0; });
  // 2^48 tokens of 2^32 sequences are more bytes than 64 bits can count.
  refused([](PlanRequest& request) {
    request.context = std::int64_t{1} << 48;
    request.batch = std::int64_t{1} << 32;
  });
}

}  // namespace
}  // namespace touchstone::inline v0::plan
