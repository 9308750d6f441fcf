// The SIMD implementation of cached_attention: what its kernels and the code above them share.
//
// The positions of a row are cut into splits of kSplit. The query vectors that attend to the
// same tokens of a split make a pass over them: all scores first, then the softmax of each, then
// the weighted sum of the values. A pass leaves one partial result per query vector; partial
// results are merged in ascending order of the splits:
//
//   m = max(m1, m2)    a = 2^(m1 - m)    b = 2^(m2 - m)
//   sum = a sum1 + b sum2    out = a out1 + b out2
//
// Determinism, whatever is computed together: a score is a sum of products in an order
// that is independent of other tokens and queries; softmax and weighted sum go through the tokens
// that the query attends to, in order; and splits begin at fixed positions of its path.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "ops/attention_paged/paged_problem.h"

namespace touchstone::paged_attention {

// Positions that are summed before sums are merged.
inline constexpr std::int64_t kSplit = 512;
inline constexpr std::size_t kSplitTokens = kSplit;
// Query vectors of a pass at most: their scores take 64 KiB.
inline constexpr std::size_t kPassVectors = 32;
// Dims at most: decoded tokens lie on the stack.
inline constexpr std::int64_t kMaxDim = 1024;

// Where the keys or the values of the tokens of a pass are: those of its first KV head, and how far
// it is to those of the next.
struct TokenAddresses {
  std::array<const std::byte*, kSplitTokens> values;
  std::array<const std::byte*, kSplitTokens> scales;
  // How many tokens, from each on, lie side by side in a page, and the bytes of their scales.
  std::array<std::uint16_t, kSplitTokens> run;
  std::int64_t scale_bytes = 0;
  std::int64_t next_values = 0;
  std::int64_t next_scales = 0;
};

// Several KV heads at a time, since their vectors are neighbors in a page. Scores are logarithms
// to base 2: the factor is in the query already.
struct Pass {
  const PagedAttentionProblem* problem = nullptr;
  std::size_t tokens = 0;
  const TokenAddresses* keys = nullptr;
  const TokenAddresses* values = nullptr;
  std::size_t heads = 0;    // KV heads
  std::size_t vectors = 0;  // query vectors of each; heads * vectors <= kPassVectors
  std::array<const float*, kPassVectors> queries{};  // [heads, vectors], as prepare_query left them
  std::array<float*, kPassVectors> partials{};       // [heads, vectors]
};

// Floats of a prepared query vector and of a partial result, on this machine's vectors.
std::size_t query_floats(const PagedAttentionProblem& p);
std::size_t partial_floats(const PagedAttentionProblem& p);

// One query vector in f32, rotated, scaled, in the order in which the kernel reads keys.
void prepare_query(const PagedAttentionProblem& p, std::int64_t query, std::int64_t head,
                   float* to);
// Overwrites the partial results.
void run_pass(const Pass& pass);
// A partial result of nothing.
void clear_partial(const PagedAttentionProblem& p, float* partial);
void merge_partial(const PagedAttentionProblem& p, float* total, const float* partial);
// Adds the sink, divides by the sum and stores.
void finish_query(const PagedAttentionProblem& p, std::int64_t query, std::int64_t head,
                  const float* total);

}  // namespace touchstone::paged_attention
