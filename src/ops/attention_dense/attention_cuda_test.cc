// What only a GPU can show of dense attention: graphs.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "cuda/check.h"
#include "ops/attention_dense/attention_test_support.h"

namespace touchstone::test {
namespace {

using cuda::check;

// What `call` does on a stream of its own, replayed several times; `again` before each, `seen`
// after each.
void replay(const std::string& implementation, const std::function<void(Runner&)>& call,
            const std::function<void()>& again, const std::function<void()>& seen) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create");
  Runner captured({.device = test_device(), .stream = stream, .implementation = implementation});
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
  call(captured);
  check(cudaStreamEndCapture(stream, &graph), "end capture");
  check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  for (int i = 0; i < 3; ++i) {
    const testing::ScopedTrace trace(__FILE__, __LINE__,
                                     implementation + ", replay " + std::to_string(i));
    again();
    check(cudaGraphLaunch(executable, stream), "launch");
    captured.synchronize();
    seen();
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  check(cudaStreamDestroy(stream), "destroy");
}

// Plain, with every option, and packed.
std::vector<DenseProblem> problems() {
  const DenseProblem plain{{.batch = 2,
                            .heads = 4,
                            .kv_heads = 2,
                            .queries = 200,
                            .keys = 230,
                            .k_dim = 64,
                            .dtype = DType::bf16,
                            .causal = true,
                            .sink_logits = true,
                            .log_sum_exp_grad = true}};
  DenseProblem full = plain;
  full.k_dim = 128;
  full.soft_cap = 3;
  full.alibi = true;
  full.bias = BiasKind::per_head;
  DenseProblem packed = plain;
  packed.packed = {{130, 130}, {0, 7}, {70, 150}};
  return {plain, full, packed};
}

TEST(AttentionGraph, ForwardCanBeCaptured) {
  for (const DenseProblem& p : problems()) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, p.describe());
    DenseForwardRun run(p, make_data(p));
    for (const std::string& name : run.accepting()) {
      Runner direct({.device = test_device(), .implementation = name});
      run.run(direct);
      const auto expected = run.bytes();
      replay(
          name, [&](Runner& context) { attention(context, context.with(run.args)); },
          [&] {
            run.output.memory.poison();
            run.log_sum_exp.memory.poison();
          },
          [&] { EXPECT_TRUE(run.bytes() == expected); });
    }
  }
}

TEST(AttentionGraph, BackwardCanBeCaptured) {
  for (const DenseProblem& p : problems()) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, p.describe());
    DenseBackwardRun run(p, make_data(p));
    for (const std::string& name : run.accepting()) {
      Runner direct({.device = test_device(), .implementation = name});
      run.run(direct);
      const auto expected = run.bytes();
      replay(
          name, [&](Runner& context) { attention_backward(context, context.with(run.args)); },
          [&] {
            for (Guarded* part :
                 {&run.dq.memory, &run.dk.memory, &run.dv.memory, &run.dbias, &run.dsinks}) {
              part->poison();
            }
          },
          [&] { EXPECT_TRUE(run.bytes() == expected); });
    }
  }
}

}  // namespace
}  // namespace touchstone::test
