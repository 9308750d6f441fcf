// One softmax_topk call after its checks, and the implementations that take it.
#pragma once

#include <cstdint>
#include <string>

#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"

namespace touchstone::topk {

// Everything is contiguous but logits, bias and allowed, whose row r starts at r * stride. Null =
// absent. rows >= 1 and 1 <= k <= vocabulary.
struct Topk {
  DType dtype = DType::f32;  // of logits: f32, bf16, f16
  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;
  std::int64_t k = 0;
  const void* logits = nullptr;
  std::int64_t logits_stride = 0;  // elements; 0 when all rows are one
  const float* bias = nullptr;
  std::int64_t bias_stride = 0;  // elements; 0 when shared
  const std::uint32_t* allowed = nullptr;
  std::int64_t allowed_stride = 0;     // words; 0 when shared
  const float* temperature = nullptr;  // [rows]
  double temperature_scale = 1;        // finite, > 0
  float* probabilities = nullptr;      // [rows, k]
  void* indices = nullptr;             // [rows, k]
  bool wide_indices = false;           // i64, not i32
  float* log_probabilities = nullptr;  // [rows, k]
  float* log_sum_exp = nullptr;        // [rows]
  std::int32_t* status = nullptr;      // [rows]
  bool renormalize = false;
};

// CPU, Highway, every SIMD target: topk_cpu.cc. Counts tokens in 32 bits.
std::string softmax_topk_simd_refuses(const Context& context, const Topk& p);
void softmax_topk_simd(Context& context, const Topk& p);

// CPU, plain loops, one thread, f64 arithmetic: topk_plain.cc.
void softmax_topk_plain(Context& context, const Topk& p);
// One row of it, for rows that are not worth a fast path: NaN, +inf, nothing allowed, temperatures
// beyond what f32 arithmetic holds.
void plain_row(const Topk& p, std::int64_t row);

// CUDA: short rows in the registers of a few lanes; longer ones by the maxima of lanes, where they
// are few by clusters of blocks; others by one scan; a sort where many places are wanted.
// topk_cuda_*.cu, or src/no_cuda in a CPU-only build.
std::string softmax_topk_short_refuses(const Context& context, const Topk& p);
void softmax_topk_short(Context& context, const Topk& p);
std::string softmax_topk_few_refuses(const Context& context, const Topk& p);
void softmax_topk_few(Context& context, const Topk& p);
std::string softmax_topk_maxima_refuses(const Context& context, const Topk& p);
void softmax_topk_maxima(Context& context, const Topk& p);
std::string softmax_topk_scan_refuses(const Context& context, const Topk& p);
void softmax_topk_scan(Context& context, const Topk& p);
std::string softmax_topk_sort_refuses(const Context& context, const Topk& p);
void softmax_topk_sort(Context& context, const Topk& p);

}  // namespace touchstone::topk
