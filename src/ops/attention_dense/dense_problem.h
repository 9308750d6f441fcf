// One attention call over dense keys and values after its checks, its masks, and the
// implementations.
#pragma once

#include <cstdint>
#include <string>

#include "core/host_device.h"
#include "ops/attention_common/visible_range.h"
#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"
#include "touchstone/core/random.h"

namespace touchstone::dense_attention {

using attention_common::attends;
using attention_common::larger;
using attention_common::smaller;
using attention_common::VisibleRange;

// Pointer and strides, in elements, of [batch, head, token, dim]; the last stride is 1. Packed
// sequences lie in one batch: batch stride 0, tokens counted over all of them.
template <class Pointer>
struct Heads {
  Pointer data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t token_stride = 0;
};
using ConstHeads = Heads<const void*>;
using MutableHeads = Heads<void*>;

// Which weights are dropped (AttentionDropout), checked.
struct DropoutRule {
  std::uint32_t threshold = 0;  // of 16 bits; 0 = nothing is dropped
  std::uint32_t draw = 0;
  std::int64_t seed = 0;
  std::int64_t first = 0;  // position of the first query of the call
  float scale = 1;         // of what is kept

  // The random bits of keys 8 * block ... of a query; `token` counts over all queries of the call.
  TOUCHSTONE_HOST_DEVICE PhiloxWords words(std::int64_t head, std::int64_t token,
                                           std::int64_t block) const {
    return random_words(seed, first + (token << 13) + block, RandomPurpose::dropout,
                        draw + (static_cast<std::uint32_t>(head) << 16));
  }
  TOUCHSTONE_HOST_DEVICE float factor(const PhiloxWords& words, unsigned lane) const {
    return (words.word[lane / 2] >> (16 * (lane % 2)) & 0xffffU) < threshold ? 0.0F : scale;
  }
  TOUCHSTONE_HOST_DEVICE float factor(std::int64_t head, std::int64_t token,
                                      std::int64_t key) const {
    return factor(words(head, token, key / 8), static_cast<unsigned>(key % 8));
  }
};

// The fields of both directions. Null = absent; all pointers are to memory of the context's device.
struct DenseProblem {
  std::int64_t batch = 0;  // sequences
  std::int64_t query_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t heads_per_kv = 1;
  std::int64_t queries = 0;  // of a sequence; packed: of all together
  std::int64_t keys = 0;     // likewise
  std::int64_t k_dim = 0;
  std::int64_t v_dim = 0;
  DType dtype = DType::f32;
  ConstHeads q, k, v;
  const std::int64_t* query_offsets = nullptr;  // [batch + 1]
  const std::int64_t* key_offsets = nullptr;    // [batch + 1]
  // f32, f64 when dtype is f64.
  const void* bias = nullptr;  // strides in elements, 0 where it is broadcast
  std::int64_t bias_batch_stride = 0;
  std::int64_t bias_head_stride = 0;
  std::int64_t bias_query_stride = 0;
  std::int64_t bias_key_stride = 0;
  const void* alibi_slopes = nullptr;  // [query_heads]
  const void* sink_logits = nullptr;   // [query_heads]
  double scale = 1;
  double soft_cap = 0;
  std::int64_t window = 0;
  std::int64_t sinks = 0;
  std::int64_t tile = 0;  // keys of a tile on the CPU (ScopedKeyTile); 0 = the default
  bool causal = false;
  DropoutRule dropout{};
};

struct ForwardProblem : DenseProblem {
  MutableHeads output;
  MutableHeads log_sum_exp;  // one number per token
};

struct BackwardProblem : DenseProblem {
  ConstHeads doutput, output;
  ConstHeads log_sum_exp, dlog_sum_exp;  // one number per token
  MutableHeads dq, dk, dv;
  void* dbias = nullptr;         // contiguous, of the bias's own shape
  std::int64_t dbias_batch = 1;  // batches and heads of dbias: 1 = summed over them
  std::int64_t dbias_heads = 1;
  void* dsink_logits = nullptr;  // [query_heads]
};

// The queries and keys of one sequence, as offsets into the token dimension.
struct SequenceSpan {
  std::int64_t first_query = 0;
  std::int64_t queries = 0;
  std::int64_t first_key = 0;
  std::int64_t keys = 0;
};

TOUCHSTONE_HOST_DEVICE inline SequenceSpan span_of(const DenseProblem& p, std::int64_t sequence) {
  if (p.query_offsets == nullptr) return {0, p.queries, 0, p.keys};
  return {p.query_offsets[sequence], p.query_offsets[sequence + 1] - p.query_offsets[sequence],
          p.key_offsets[sequence], p.key_offsets[sequence + 1] - p.key_offsets[sequence]};
}

// The keys query i of a sequence attends to: [0, sinks) and [begin, end).
TOUCHSTONE_HOST_DEVICE inline VisibleRange visible_range(const DenseProblem& p,
                                                         const SequenceSpan& span,
                                                         std::int64_t query) {
  const std::int64_t position = query + span.keys - span.queries;
  VisibleRange visible;
  visible.end = span.keys;
  if (p.causal) {
    visible.end = smaller(larger(position + 1, 0), span.keys);
  } else if (p.window > 0 && position < span.keys - p.window) {
    visible.end = larger(position + p.window, 0);
  }
  if (p.window > 0 && position >= p.window) {
    visible.begin = smaller(position - p.window + 1, visible.end);
    visible.sinks = smaller(p.sinks, visible.begin);
  }
  return visible;
}

// Index of a query and head in arrays of the implementations, [batch, query_heads, queries] or
// [query_heads, queries]. `query` counts within its sequence.
TOUCHSTONE_HOST_DEVICE inline std::int64_t row_index(const DenseProblem& p,
                                                     const SequenceSpan& span,
                                                     std::int64_t sequence, std::int64_t head,
                                                     std::int64_t query) {
  const std::int64_t lead = p.query_offsets == nullptr ? sequence * p.query_heads : 0;
  return (lead + head) * p.queries + span.first_query + query;
}

// The index of a query among all queries of the call.
TOUCHSTONE_HOST_DEVICE inline std::int64_t query_token(const DenseProblem& p,
                                                       const SequenceSpan& span,
                                                       std::int64_t sequence, std::int64_t query) {
  return (p.query_offsets == nullptr ? sequence * p.queries : 0) + span.first_query + query;
}

// Queries times heads in all.
TOUCHSTONE_HOST_DEVICE inline std::int64_t row_count(const DenseProblem& p) {
  return (p.query_offsets == nullptr ? p.batch : 1) * p.query_heads * p.queries;
}

// One token of one head. `token` counts over all sequences where they are packed.
template <class T>
TOUCHSTONE_HOST_DEVICE const T* token_of(const ConstHeads& heads, std::int64_t sequence,
                                         std::int64_t head, std::int64_t token) {
  return static_cast<const T*>(heads.data) + sequence * heads.batch_stride +
         head * heads.head_stride + token * heads.token_stride;
}
template <class T>
TOUCHSTONE_HOST_DEVICE T* token_of(const MutableHeads& heads, std::int64_t sequence,
                                   std::int64_t head, std::int64_t token) {
  return static_cast<T*>(heads.data) + sequence * heads.batch_stride + head * heads.head_stride +
         token * heads.token_stride;
}

// The (sequence, head) pairs whose dS are summed into one matrix of dbias, to be taken in ascending
// order, heads fastest. Without dbias every pair is a unit of its own.
struct DbiasUnit {
  std::int64_t first_sequence = 0;
  std::int64_t sequences = 0;
  std::int64_t first_head = 0;
  std::int64_t heads = 0;
};

TOUCHSTONE_HOST_DEVICE inline std::int64_t dbias_units(const BackwardProblem& p) {
  return p.dbias == nullptr ? p.batch * p.query_heads : p.dbias_batch * p.dbias_heads;
}

TOUCHSTONE_HOST_DEVICE inline DbiasUnit dbias_unit(const BackwardProblem& p, std::int64_t unit) {
  if (p.dbias == nullptr) return {unit / p.query_heads, 1, unit % p.query_heads, 1};
  DbiasUnit result{unit / p.dbias_heads, 1, unit % p.dbias_heads, 1};
  if (p.dbias_batch == 1) result.sequences = p.batch;
  if (p.dbias_heads == 1) result.heads = p.query_heads;
  return result;
}

// CPU, Highway, every SIMD target, f32 and 16 bits: dense_cpu_forward.cc and dense_cpu_backward.cc.
std::string attention_simd_refuses(const Context& context, const ForwardProblem& p);
void attention_simd(Context& context, const ForwardProblem& p);
std::string attention_backward_simd_refuses(const Context& context, const BackwardProblem& p);
void attention_backward_simd(Context& context, const BackwardProblem& p);

// CPU, plain loops over rows and tiles, any dtype, f64 included: dense_plain.cc.
void attention_plain(Context& context, const ForwardProblem& p);
// One query of one head, for rows whose sums overflow in f32. `query` counts within its sequence.
void attention_plain_query(const ForwardProblem& p, std::int64_t sequence, std::int64_t head,
                           std::int64_t query);
void attention_backward_plain(Context& context, const BackwardProblem& p);

// CUDA, or src/no_cuda in a CPU-only build. Hopper's tensor cores, 16 bits: dense_wgmma_forward.cu
// and dense_wgmma_backward.cu; those of any GPU from Ampere on: dense_mma_forward.cu and
// dense_mma_backward.cu; any GPU, head and dtype: dense_portable.cu.
std::string attention_wgmma_refuses(const Context& context, const ForwardProblem& p);
void attention_wgmma(Context& context, const ForwardProblem& p);
std::string attention_backward_wgmma_refuses(const Context& context, const BackwardProblem& p);
void attention_backward_wgmma(Context& context, const BackwardProblem& p);
std::string attention_mma_refuses(const Context& context, const ForwardProblem& p);
void attention_mma(Context& context, const ForwardProblem& p);
std::string attention_backward_mma_refuses(const Context& context, const BackwardProblem& p);
void attention_backward_mma(Context& context, const BackwardProblem& p);
std::string attention_portable_refuses(const Context& context, const ForwardProblem& p);
void attention_portable(Context& context, const ForwardProblem& p);
std::string attention_backward_portable_refuses(const Context& context, const BackwardProblem& p);
void attention_backward_portable(Context& context, const BackwardProblem& p);

}  // namespace touchstone::dense_attention
