// What only a GPU can show: graphs, a workspace that does not grow, and the kernels for the tensor
// cores, one for each pair of formats.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cuda/check.h"
#include "ops/attention_paged/paged_test_support.h"

namespace touchstone::test {
namespace {

using cuda::check;

// Rows of one split and of several, one query token and many, for both kernels.
Scene scene_of(std::int64_t dim) {
  return {.layers = {.layers = 1, .kv_heads = 2, .k_dim = dim, .v_dim = dim},
          .query_heads = 6,
          .rows = {{.length = 1300},
                   {.length = 40, .queries = 3, .seed = 2},
                   {.length = 0, .seed = 3},
                   {.length = 600, .queries = 30, .seed = 4}}};
}

// Partial results of one query token: each of 3 splits and 6 heads has `dim` sums, a largest score
// and a sum of weights.
std::int64_t least_workspace(std::int64_t dim) { return 3 * 6 * 4 * (dim + 2); }

TEST(CachedAttentionCudaWorkspace, BitsDoNotDependOnIt) {
  for (const std::int64_t dim : {64, 40}) {
    AttentionRun run(scene_of(dim));
    for (const std::string& name : run.accepting()) {
      Runner roomy({.device = test_device(), .implementation = name});
      run.run(roomy);
      EXPECT_TRUE(run.is_right());
      const auto expected = run.query_bytes(0, 35);
      for (const std::int64_t queries : {1, 2, 7, 34}) {
        Runner tight({.device = test_device(),
                      .workspace_bytes = queries * least_workspace(dim),
                      .implementation = name});
        run.run(tight);
        EXPECT_EQ(run.query_bytes(0, 35), expected) << name << ", " << queries << " at once";
      }
    }
  }
}

TEST(CachedAttentionCudaWorkspace, TooLittleIsRefusedCleanly) {
  for (const std::int64_t dim : {64, 40}) {
    AttentionRun run(scene_of(dim));
    for (const std::string& name : run.accepting()) {
      Runner context({.device = test_device(), .workspace_bytes = 0, .implementation = name});
      run.output.poison();
      try {
        cached_attention(context, context.with(run.args));
        ADD_FAILURE() << name << " took no workspace";
      } catch (const OutOfMemory& error) {
        EXPECT_NE(std::string(error.what()).find("reserve_workspace"), std::string::npos)
            << error.what();
      }
      EXPECT_TRUE(run.output.unchanged());
      context.reserve_workspace(least_workspace(dim));
      run.run(context);
      EXPECT_TRUE(run.is_right());
    }
  }
}

// What the tensor cores take: how it is read differs in all of these.
std::vector<cache::LayerGroup> tensor_layers(std::int64_t dim) {
  const QuantFormat bf16{};
  const QuantFormat int8{.dtype = DType::i8};
  const QuantFormat fp8{.dtype = DType::f8_e4m3};
  const QuantFormat int4{.dtype = DType::i4, .group_size = 32, .asymmetric = true};
  std::vector<std::pair<QuantFormat, QuantFormat>> pairs = {
      {bf16, bf16}, {int8, int8}, {fp8, fp8}, {int4, int4}, {int8, int4}};
  for (const DType encoding : {DType::i8, DType::i4}) {
    const QuantFormat symmetric{.dtype = encoding, .group_size = 32};
    const QuantFormat longer{.dtype = encoding, .group_size = 64, .asymmetric = true};
    pairs.insert(pairs.end(), {{symmetric, longer}, {longer, symmetric}});
  }
  std::vector<cache::LayerGroup> result;
  for (const auto& [k, v] : pairs) {
    result.push_back({.layers = 1, .kv_heads = 2, .k_dim = dim, .v_dim = dim, .k = k, .v = v});
  }
  return result;
}

// Right, and the same bits from other pages and alone.
void check_on_tensor_cores(const Scene& scene, const std::string& name = "tensor_core") {
  Runner context({.device = test_device(), .implementation = name});
  AttentionRun run(scene);
  run.run(context);
  EXPECT_TRUE(run.is_right());
  Scene other = scene;
  other.layers.page_tokens = 7;
  AttentionRun elsewhere(other, {.seed = 5, .share = false});
  elsewhere.run(context);
  for (std::int64_t row = 0; row < std::ssize(scene.rows); ++row) {
    EXPECT_EQ(elsewhere.row_bytes(row), run.row_bytes(row)) << "row " << row;
    AttentionRun alone(only_row(scene, row));
    alone.run(context);
    EXPECT_EQ(alone.row_bytes(0), run.row_bytes(row)) << "row " << row << " alone";
  }
}

TEST(CachedAttentionTensorCore, EveryPairOfFormats) {
  for (const std::int64_t dim : {64, 128}) {
    for (const cache::LayerGroup& layers : tensor_layers(dim)) {
      const testing::ScopedTrace trace(__FILE__, __LINE__,
                                       std::string(format_name(layers.k.dtype)) + " group " +
                                           std::to_string(layers.k.group_size) + ", dim " +
                                           std::to_string(dim));
      Scene scene{.layers = layers,
                  .query_heads = 8,
                  .rows = {{.length = 1100, .seed = 7},
                           {.length = 1100, .seed = 7, .forked_at = 600, .own_seed = 8},
                           {.length = 45, .queries = 3, .seed = 2}},
                  .query_dtype = DType::bf16};
      check_on_tensor_cores(scene);
      scene.query_dtype = DType::f32;
      scene.layers.rotate_keys = true;
      scene.scale = -0.2;
      scene.soft_cap = 5;
      check_on_tensor_cores(scene);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Whether a warp or a CTA attends to a split changes no bits: lengths around the chunks that warps take in
// turn and around splits, maxima that move in any of them, windows, forks, several passes of 8 vectors.
TEST(CachedAttentionTensorCore, CtasHaveTheBitsOfWarps) {
  for (const std::int64_t dim : {64, 128}) {
    for (const double key_scale : {1.0, 40.0}) {
      cache::LayerGroup layers{.layers = 1, .kv_heads = 2, .k_dim = dim, .v_dim = dim};
      layers.k = layers.v = QuantFormat{.dtype = DType::bf16};
      for (const std::int64_t window : {0, 300}) {
        layers.window = window;
        Scene scene{.layers = layers,
                    .query_heads = 24,
                    .rows = {{.length = 1, .seed = 2},
                             {.length = 17, .seed = 3},
                             {.length = 64, .queries = 3, .seed = 4},
                             {.length = 129, .seed = 5},
                             {.length = 513, .seed = 6},
                             {.length = 1100, .seed = 7},
                             {.length = 1100, .seed = 7, .forked_at = 600, .own_seed = 8},
                             {.length = 2049, .queries = 2, .seed = 9}},
                    .query_dtype = DType::bf16,
                    .key_scale = key_scale};
        for (const DType dtype : {DType::bf16, DType::f32}) {
          scene.query_dtype = dtype;
          AttentionRun run(scene);
          const std::vector<std::string> names = run.accepting();
          if (std::ranges::find(names, "tensor_core_cta") == names.end()) {
            GTEST_SKIP() << "this device has too little shared memory for a CTA";
          }
          Runner warps({.device = test_device(), .implementation = "tensor_core"});
          run.run(warps);
          const auto expected = run.query_bytes(0, scene.queries());
          Runner ctas({.device = test_device(), .implementation = "tensor_core_cta"});
          run.run(ctas);
          EXPECT_EQ(run.query_bytes(0, scene.queries()), expected) << dim << " " << key_scale;
        }
      }
    }
  }
}

// Whether rows go to the prefill kernel or are decoded changes no bits: prompts, chunks of as many queries
// as it takes and one less, and decodes beside them.
TEST(CachedAttentionTensorCore, PrefillHasTheBitsOfDecode) {
  for (const std::int64_t dim : {64, 128}) {
    cache::LayerGroup layers{.layers = 1, .kv_heads = 2, .k_dim = dim, .v_dim = dim};
    layers.k = layers.v = QuantFormat{.dtype = DType::bf16};
    for (const std::int64_t window : {0, 300}) {
      layers.window = window;
      AttentionRun run({.layers = layers,
                        .query_heads = 24,
                        .rows = {{.length = 700, .seed = 2},
                                 {.length = 530, .queries = 200, .seed = 3},
                                 {.length = 40, .queries = 40, .seed = 4},
                                 {.length = 1100, .queries = 16, .seed = 5},
                                 {.length = 1100, .queries = 15, .seed = 6}},
                        .query_dtype = DType::bf16});
      const std::vector<std::string> names = run.accepting();
      if (std::ranges::find(names, "wgmma_prefill") == names.end()) {
        GTEST_SKIP() << "this device has no wgmma";
      }
      Runner decode({.device = test_device(), .implementation = "tensor_core"});
      run.run(decode);
      const auto expected = run.query_bytes(0, 272);
      Runner prefill({.device = test_device(), .implementation = "wgmma_prefill"});
      run.run(prefill);
      EXPECT_EQ(run.query_bytes(0, 272), expected) << dim << ", window " << window;
    }
  }
}

// Latents of MLA: several tiles and splits, forks that go together, query tokens that do.
TEST(CachedAttentionTensorCore, Latents) {
  cache::LayerGroup layers{.layers = 1, .kv_heads = 1, .k_dim = 576, .v_dim = 512};
  layers.k_is_v = true;
  for (const DType dtype : {DType::bf16, DType::f32}) {
    check_on_tensor_cores({.layers = layers,
                           .query_heads = 6,
                           .rows = {{.length = 1100, .seed = 7},
                                    {.length = 1100, .seed = 7, .forked_at = 600, .own_seed = 8},
                                    {.length = 45, .queries = 3, .seed = 2}},
                           .query_dtype = dtype},
                          "mla");
  }
}

// Captured in the strictest mode, where an allocation or a synchronization anywhere is an error,
// and replayed several times on poisoned outputs.
TEST(CachedAttentionCudaStream, CanBeCapturedInAGraph) {
  for (const std::int64_t dim : {64, 40}) {
    AttentionRun run(scene_of(dim));
    for (const std::string& name : run.accepting()) {
      Runner direct({.device = test_device(), .implementation = name});
      run.run(direct);
      const auto expected = run.query_bytes(0, 35);

      cudaStream_t stream = nullptr;
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create");
      Runner captured({.device = test_device(), .stream = stream, .implementation = name});
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
      cached_attention(captured, captured.with(run.args));
      check(cudaStreamEndCapture(stream, &graph), "end capture");
      check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
      for (int replay = 0; replay < 3; ++replay) {
        run.output.poison();
        run.log_sum_exp.poison();
        check(cudaGraphLaunch(executable, stream), "launch");
        captured.synchronize();
        EXPECT_EQ(run.query_bytes(0, 35), expected) << name << ", replay " << replay;
      }
      cudaGraphExecDestroy(executable);
      cudaGraphDestroy(graph);
      check(cudaStreamDestroy(stream), "destroy");
    }
  }
}

}  // namespace
}  // namespace touchstone::test
