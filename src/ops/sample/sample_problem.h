// A sampling problem after its checks, and the implementations that take it.
#pragma once

#include <cstdint>
#include <string>

#include "ops/selection/logit_rows.h"
#include "touchstone/core/context.h"

namespace touchstone::sampling {

// Row r of history starts at r * history_stride; a row reads that of history_row. Everything else
// beside the logits is one element per row unless it says otherwise. Null = absent where an
// argument is optional. rows >= 1.
struct SampleProblem : selection::LogitRows {
  DType token_dtype = DType::i32;      // i32 or i64
  DType top_token_dtype = DType::i32;  // i32 or i64
  std::int64_t history_length = 0;     // 0 without a history
  std::int64_t top_count = 0;          // of top_tokens and top_log_probabilities; 0 = absent

  const std::int32_t* history = nullptr;
  std::int64_t history_stride = 0;
  std::int64_t history_rows = 0;
  const std::int32_t* history_row = nullptr;  // null: the row itself
  const std::int32_t* parent = nullptr;       // a row before, or -1; null: there is no tree
  const std::int32_t* tree_token = nullptr;
  std::int64_t max_depth = 0;  // 0 without a tree

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
  std::int32_t* status = nullptr;          // RowStatus

  // Tokens of a row's history at most.
  constexpr std::int64_t history_entries() const { return history_length + max_depth; }
  constexpr bool has_penalties() const {
    return history_length > 0 && (repetition_penalty != nullptr || frequency_penalty != nullptr ||
                                  presence_penalty != nullptr);
  }
  // Whether the values are the logits themselves.
  constexpr bool samples_raw_logits() const { return has_raw_logits() && !has_penalties(); }
  // Whether a row may keep fewer than all tokens.
  constexpr bool has_cuts() const {
    return top_k != nullptr || top_p != nullptr || min_p != nullptr;
  }
};

// CPU, on the selection engine, every SIMD target: sample_cpu.cc.
std::string sample_simd_refuses(const Context& context, const SampleProblem& p);
void sample_simd(Context& context, const SampleProblem& p);

// CPU, scalar loops, f64 arithmetic: sample_plain.cc.
void sample_plain(Context& context, const SampleProblem& p);

// CUDA: cuda/sample_launch.cu, or src/no_cuda in a CPU-only build. Rows that a kernel cannot finish
// are deferred to a second launch of its own, except where its CTAs handle them.
//   subwarp          short rows, up to 16 rows per warp
//   cluster          few long rows with top_k or no cut, a cluster of CTAs per row
//   two_phase        many rows, one CTA per row
//   streaming_block  raw logits at 16-byte alignment, one CTA per row
//   streaming        any row, one CTA or a cluster per row
std::string sample_subwarp_refuses(const Context& context, const SampleProblem& p);
void sample_subwarp(Context& context, const SampleProblem& p);
std::string sample_cluster_refuses(const Context& context, const SampleProblem& p);
void sample_cluster(Context& context, const SampleProblem& p);
std::string sample_two_phase_refuses(const Context& context, const SampleProblem& p);
void sample_two_phase(Context& context, const SampleProblem& p);
std::string sample_streaming_block_refuses(const Context& context, const SampleProblem& p);
void sample_streaming_block(Context& context, const SampleProblem& p);
std::string sample_streaming_refuses(const Context& context, const SampleProblem& p);
void sample_streaming(Context& context, const SampleProblem& p);

}  // namespace touchstone::sampling
