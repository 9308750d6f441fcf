// The textbook versions of the operators, on plain pointers to contiguous operands. On the CPU as a
// compiler at -O3 makes them: one pass per quantity, nothing vectorized by hand, rows or heads
// shared between the threads of the context. On CUDA one simple kernel per step, queued on the
// context's stream; in a build without CUDA these are Unsupported.
#pragma once

#include <cstdint>
#include <functional>

#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"

namespace touchstone::bench {

inline constexpr double kEpsilon = 1e-5;

// Layer norm, or RMS norm, which has no mean and no bias. `out` is y or dx.
struct NormOperands {
  DType dtype = DType::f32;
  bool layer = true;
  bool backward = false;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const void* x = nullptr;
  const void* dy = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* out = nullptr;
  void* mean = nullptr;
  void* rstd = nullptr;
  void* dweight = nullptr;
  void* dbias = nullptr;
};
using NaiveNorm = std::function<void(const NormOperands&)>;
// `like`: of the shape and dtype of the calls.
NaiveNorm naive_norm_cpu(Context& context, const NormOperands& like);
NaiveNorm naive_norm_cuda(Context& context, const NormOperands& like);

// softmax_topk with values and tokens [rows, k], or sample with log-probability and token [rows].
struct SelectionOperands {
  DType dtype = DType::f32;
  bool sampled = false;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t k = 0;
  const void* logits = nullptr;
  const std::int64_t* seed = nullptr;
  const std::int64_t* position = nullptr;
  float* values = nullptr;
  std::int32_t* tokens = nullptr;
};
using NaiveSelection = std::function<void(const SelectionOperands&)>;
// The softmax written out, then a full sort; and std::partial_sort beside the sum of exponentials.
NaiveSelection naive_selection_cpu(Context& context, const SelectionOperands& like);
NaiveSelection partial_sort_selection(Context& context, const SelectionOperands& like);
NaiveSelection naive_selection_cuda(Context& context, const SelectionOperands& like);

// The whole matrix of scores of every head; memory [B, H, S, D].
struct AttentionOperands {
  DType dtype = DType::f32;
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t tokens = 0;
  std::int64_t dim = 0;
  bool causal = false;
  bool backward = false;
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* doutput = nullptr;
  void* output = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
};
using NaiveAttention = std::function<void(const AttentionOperands&)>;
NaiveAttention naive_attention_cpu(Context& context, const AttentionOperands& like);
NaiveAttention naive_attention_cuda(Context& context, const AttentionOperands& like);

}  // namespace touchstone::bench
