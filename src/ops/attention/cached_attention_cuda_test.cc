// What only a GPU can show: graphs, and a workspace that does not grow.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>

#include "cuda/check.h"
#include "ops/attention/attention_test_support.h"

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
      Context roomy({.device = test_device(), .implementation = name});
      run.run(roomy);
      EXPECT_TRUE(run.is_right());
      const auto expected = run.query_bytes(0, 35);
      for (const std::int64_t queries : {1, 2, 7, 34}) {
        Context tight({.device = test_device(),
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
      Context context({.device = test_device(), .workspace_bytes = 0, .implementation = name});
      run.output.poison();
      try {
        cached_attention(context, run.args);
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

// Captured in the strictest mode, where an allocation or a synchronisation anywhere is an error,
// and replayed several times on poisoned outputs.
TEST(CachedAttentionCudaStream, CanBeCapturedInAGraph) {
  for (const std::int64_t dim : {64, 40}) {
    AttentionRun run(scene_of(dim));
    for (const std::string& name : run.accepting()) {
      Context direct({.device = test_device(), .implementation = name});
      run.run(direct);
      const auto expected = run.query_bytes(0, 35);

      cudaStream_t stream = nullptr;
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create");
      Context captured({.device = test_device(), .stream = stream, .implementation = name});
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
      cached_attention(captured, run.args);
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
