// Dense attention to be measured: the cases, the memory they are measured on, and a check.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cases/cases.h"
#include "touchstone/core/context.h"
#include "touchstone/ops/attention.h"

namespace touchstone::bench {

struct DenseAttentionProblem {
  Device device;
  DType dtype = DType::f32;
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t tokens = 0;
  std::int64_t dim = 0;
  bool causal = false;
  bool backward = false;
  std::string implementation{};  // "" = chosen by the operator

  std::string op() const;     // "attention_backward"
  std::string shape() const;  // "1x16/4x1024x128"
  // By the usual counting: 4 B H S S D, 2.5 times that backward, half of it when causal.
  double flops() const;
  // The least that has to move.
  std::int64_t minimal_bytes() const;
  std::int64_t data_bytes() const;
};

// The cases of cases/attention.txt for a device. CorruptData names the line.
std::vector<DenseAttentionProblem> dense_attention_problems(Device device, cases::Tier tier,
                                                            std::optional<DType> dtype = {});

// The operands of one call, [B, H, S, D], random; the backward's output and log-sum-exp are those
// of our forward.
struct DenseAttentionData {
  Tensor q, k, v, output, log_sum_exp;
  Tensor doutput, dq, dk, dv;

  DenseAttentionData(Context& context, const DenseAttentionProblem& problem);
  // Arguments that leave the implementation to the operator; run() takes the problem's.
  AttentionArgs forward_args(const DenseAttentionProblem& problem);
  AttentionBackwardArgs backward_args(const DenseAttentionProblem& problem);
  void run(Context& context, const DenseAttentionProblem& problem);
};

std::vector<ImplementationReport> dense_attention_implementations(
    Context& context, const DenseAttentionProblem& problem, DenseAttentionData& data);

// The relative error of what `call` writes, against float64 on a sample of queries and keys, NaN
// where there is one. Outputs are poisoned first.
double dense_attention_error(Context& context, const DenseAttentionProblem& problem,
                             DenseAttentionData& data, const std::function<void()>& call);

// The whole matrix of scores, row by row and loop by loop, heads dealt out to the threads.
void naive_attention_cpu(Context& context, const DenseAttentionProblem& problem,
                         DenseAttentionData& data);
// On CUDA one simple kernel for each product and each softmax. Takes the memory for the matrices.
std::function<void()> naive_attention_cuda_call(Context& context,
                                                const DenseAttentionProblem& problem,
                                                DenseAttentionData& data);

}  // namespace touchstone::bench
