// A sampling problem, checked already, and the implementations that take it.
#pragma once

#include <cstdint>
#include <string>

#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"

namespace touchstone::sampling {

// Row r of a matrix starts at data + r * stride elements; stride 0 is one row for all. Null =
// absent where an argument is optional. Everything else is one element per row. `rows` and
// `vocabulary` are positive.
struct Sampling {
  DType dtype = DType::f32;            // of logits: f32, bf16, f16
  DType token_dtype = DType::i32;      // i32 or i64
  DType top_token_dtype = DType::i32;  // i32 or i64
  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;
  std::int64_t history_length = 0;  // 0 without a history
  std::int64_t top_count = 0;       // of top_tokens and top_log_probabilities; 0 = not wanted

  const void* logits = nullptr;
  std::int64_t logits_stride = 0;
  const float* bias = nullptr;
  std::int64_t bias_stride = 0;
  const std::int32_t* allowed = nullptr;  // packed bits, ceil(vocabulary / 32) words
  std::int64_t allowed_stride = 0;
  const std::int32_t* history = nullptr;
  std::int64_t history_stride = 0;

  const float* temperature = nullptr;
  const std::int32_t* top_k = nullptr;
  const float* top_p = nullptr;
  const float* min_p = nullptr;
  const float* repetition_penalty = nullptr;
  const float* frequency_penalty = nullptr;
  const float* presence_penalty = nullptr;
  const std::int32_t* prompt_length = nullptr;
  const std::int64_t* seed = nullptr;
  const std::int64_t* position = nullptr;

  void* token = nullptr;
  float* log_probability = nullptr;
  void* top_tokens = nullptr;              // [rows, top_count]
  float* top_log_probabilities = nullptr;  // [rows, top_count]
  std::int32_t* status = nullptr;
};

// CPU, on the scan of softmax_topk, every SIMD target: sample_cpu.cc.
std::string sample_simd_refuses(const Context& context, const Sampling& p);
void sample_simd(Context& context, const Sampling& p);

// CPU, plain loops, f64 arithmetic: sample_plain.cc.
void sample_plain(Context& context, const Sampling& p);

// CUDA: sample_cuda.cu, or src/no_cuda in a CPU-only build.
std::string sample_cuda_refuses(const Context& context, const Sampling& p);
void sample_cuda(Context& context, const Sampling& p);

}  // namespace touchstone::sampling
