// One softmax_topk call after its checks, and the implementations that take it.
#pragma once

#include <cstdint>
#include <string>

#include "ops/selection/logit_rows.h"
#include "touchstone/core/context.h"

namespace touchstone::topk {

// Outputs are contiguous. Null = absent. rows >= 1 and 1 <= k <= vocabulary.
struct SoftmaxTopkProblem : selection::LogitRows {
  std::int64_t k = 0;
  const float* temperature = nullptr;  // [rows]
  double temperature_scale = 1;        // finite, > 0
  float* probabilities = nullptr;      // [rows, k]
  void* indices = nullptr;             // [rows, k]
  bool wide_indices = false;           // i64, not i32
  float* log_probabilities = nullptr;  // [rows, k]
  float* log_sum_exp = nullptr;        // [rows]
  std::int32_t* status = nullptr;      // [rows]: RowStatus
  bool renormalize = false;
};

// Products of temperatures beyond these count as these, which f64 holds with their inverses: in f32
// the results are the same.
inline constexpr double kMinTemperatureProduct = 0x1p-1000;
inline constexpr double kMaxTemperatureProduct = 0x1p1000;

// CPU, Highway, every SIMD target: softmax_topk_cpu.cc. Counts tokens in 32 bits.
std::string softmax_topk_simd_refuses(const Context& context, const SoftmaxTopkProblem& p);
void softmax_topk_simd(Context& context, const SoftmaxTopkProblem& p);

// CPU, scalar loops, one thread, f64 arithmetic: softmax_topk_plain.cc.
void softmax_topk_plain(Context& context, const SoftmaxTopkProblem& p);
// One row of it, for rows outside the fast path: NaN, +inf, all masked, temperatures beyond the
// range of f32 arithmetic.
void plain_row(const SoftmaxTopkProblem& p, std::int64_t row);

// CUDA, softmax_topk_<name>.cu, or src/no_cuda in a CPU-only build.
//   subwarp_smem      short rows, k <= 8, several rows per warp, in shared memory
//   subwarp           the same in registers: very short rows, a bias or a mask
//   cluster           few long rows, k <= 64, a cluster of CTAs per row
//   two_phase         many rows, k <= 64, one CTA per row
//   streaming_packed  bf16, 64 < k <= 2048, one CTA per row, 32-bit keys
//   streaming         k <= 2048, any row, one CTA or a cluster per row
//   sort              any k, radix sort in the workspace
std::string softmax_topk_subwarp_smem_refuses(const Context& context, const SoftmaxTopkProblem& p);
void softmax_topk_subwarp_smem(Context& context, const SoftmaxTopkProblem& p);
std::string softmax_topk_subwarp_refuses(const Context& context, const SoftmaxTopkProblem& p);
void softmax_topk_subwarp(Context& context, const SoftmaxTopkProblem& p);
std::string softmax_topk_cluster_refuses(const Context& context, const SoftmaxTopkProblem& p);
void softmax_topk_cluster(Context& context, const SoftmaxTopkProblem& p);
std::string softmax_topk_two_phase_refuses(const Context& context, const SoftmaxTopkProblem& p);
void softmax_topk_two_phase(Context& context, const SoftmaxTopkProblem& p);
std::string softmax_topk_streaming_packed_refuses(const Context& context,
                                                  const SoftmaxTopkProblem& p);
void softmax_topk_streaming_packed(Context& context, const SoftmaxTopkProblem& p);
std::string softmax_topk_streaming_refuses(const Context& context, const SoftmaxTopkProblem& p);
void softmax_topk_streaming(Context& context, const SoftmaxTopkProblem& p);
std::string softmax_topk_sort_refuses(const Context& context, const SoftmaxTopkProblem& p);
void softmax_topk_sort(Context& context, const SoftmaxTopkProblem& p);

}  // namespace touchstone::topk
