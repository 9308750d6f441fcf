// The benchmark of dense attention, forward and backward.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/dense_attention_data.h"
#include "bench/session.h"

namespace touchstone::bench {

// InvalidArgument when the machine has not the memory for the problem.
void check_dense_attention_memory(const SessionOptions& session,
                                  const DenseAttentionProblem& problem);

class DenseAttentionBench {
 public:
  // InvalidArgument when no implementation has the name asked for.
  DenseAttentionBench(Session& session, bool backward);

  // After Session::start: "naive", "torch 2.11.0 flash", ...
  std::vector<std::string> peers() const;
  // CPU: f32 multiplications and additions in registers; 0 on a GPU.
  double fma_gflops() const { return fma_gflops_; }
  void measure_fma();

  BenchRow measure(DenseAttentionProblem problem);

 private:
  void enter_peers(std::vector<Contender>& contenders, const BenchRow& row,
                   const DenseAttentionProblem& problem, DenseAttentionData& data);

  Session& session_;
  std::function<void()> naive_;  // has the memory that its graph writes to
  double fma_gflops_ = 0;
};

}  // namespace touchstone::bench
